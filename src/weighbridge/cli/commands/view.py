"""`wb view`: a page about a model, or about the difference between two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import (
    arch_file_option,
    command,
    examples,
    json_option,
    option,
    overwrite_option,
    refuse_others,
)
from weighbridge.cli.values import FILE, SOURCE

_TURN: Final = 5e-4  # longest time in seconds for which a preparing thread delays an answering one


@command(
    epilog=examples(
        "wb view model.gguf",
        "wb view ./my-model/ my-model-Q4_K_M.gguf",
        "wb view model.gguf -o page.html",
        "wb view ./my-model/ my-model-Q4_K_M.gguf -o page.html --values",
        "wb view model.gguf --port 8000 --no-browser",
    )
)
@click.argument("path", type=SOURCE)
@click.argument("other", type=SOURCE, required=False)
@option("-o", "--output", type=FILE, metavar="FILE", help="Write the page to a file that needs no server.")
@option("--values", is_flag=True, help="Also read the tensors for FILE: statistics, heat maps, differences.")
@overwrite_option
@option("--port", type=click.IntRange(0, 65535), help="Port to listen on [any].")
@option("--browser/--no-browser", default=None, help="Open the page in a browser [yes].")
@option(
    "--idle",
    type=click.FloatRange(0),
    metavar="MINUTES",
    help="Stop after this many minutes without an open page; 0: never [30].",
)
@arch_file_option
@json_option
def view(
    path: str,
    other: str | None,
    output: str | None,
    values: bool,
    overwrite: bool,
    port: int | None,
    browser: bool | None,
    idle: float | None,
    arch_file: Path | None,
    as_json: bool,
) -> None:
    """View the model at PATH in a browser, and with OTHER the differences from it.

    Shows a summary, the tensors, the layout of the file, bytes with their meaning, the distribution of the values, the
    tokenizer and the architecture. The page is served only to this machine, under an address with a token, and loads
    nothing from other servers. --output writes one file instead; it contains the data of the headers, and statistics
    of tensors only with --values. Ends with Ctrl-C.
    """
    from weighbridge.cli.render import Progress
    from weighbridge.page.viewing import export_view

    serving = {"--port": port, "--browser": browser, "--idle": idle}
    if output is not None:
        refuse_others(
            "--output", {name: value is not None for name, value in serving.items()}, hint="it serves nothing"
        )
        with Progress() as progress:
            export_view(path, output, other, values=values, overwrite=overwrite, arch_file=arch_file, progress=progress)
        return _print({"page": output, "nbytes": Path(output).stat().st_size}, as_json)
    if values:
        raise UsageError("--values applies to a written page; a served page reads values on demand",
                         hint="write one with --output FILE")  # fmt: skip
    if overwrite:
        raise UsageError("--overwrite replaces a page", hint="write one with --output FILE")
    from weighbridge.page.malloc import share_one_arena
    from weighbridge.page.viewing import view

    share_one_arena()
    sys.setswitchinterval(_TURN)
    idle = 30 if idle is None else idle
    with view(path, other, port=port or 0, browser=browser is not False, idle=idle, arch_file=arch_file) as page:
        try:
            _print({"url": page.url}, as_json)
            page.wait()
        except KeyboardInterrupt:  # the ordinary end
            pass


def _print(facts: dict[str, str | int], as_json: bool) -> None:
    from weighbridge.cli.render import clean, echo, emit_json

    if as_json:
        emit_json(facts)
    else:
        echo(clean(str(facts.get("url") or facts["page"])))
    sys.stdout.flush()  # a parent process may wait for the address
