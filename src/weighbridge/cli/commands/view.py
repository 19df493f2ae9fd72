"""`wb view`: a page about a model, or about several and their differences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples, refuse_others
from weighbridge.cli.values import SOURCE
from weighbridge.page.viewing import ExportOptions, ViewOptions

_TURN: Final = 5e-4  # longest time in seconds for which a preparing thread delays an answering one


@dataclass(frozen=True, kw_only=True)
class ViewCommand(ViewOptions, ExportOptions, CommandOptions):
    output: str | None = option(
        "Write the page to a file that needs no server.", metavar="FILE", kind="file", letter="o"
    )


@command(
    ViewCommand,
    epilog=examples(
        "wb view model.gguf",
        "wb view ./my-model/ my-model-Q4_K_M.gguf",
        "wb view ./base/ ./tuned/ ./merged/ merged-Q4_K_M.gguf",
        "wb view model.gguf -o page.html",
        "wb view ./my-model/ my-model-Q4_K_M.gguf -o page.html --values",
        "wb view model.gguf --port 8000 --no-browser",
    ),
)
@click.argument("path", type=SOURCE)
@click.argument("other", type=SOURCE, nargs=-1, metavar="[OTHER...]")
def view(path: str, other: tuple[str, ...], options: ViewCommand) -> None:
    """View the model at PATH in a browser, and with OTHER the differences from it; with several, also their family
    tree.

    Shows a summary, the tensors, the layout of the file, bytes with their meaning, the distribution of the values, the
    tokenizer and the architecture. The page is served only to this machine, under an address with a token, and loads
    nothing from other servers. --output writes one file instead; it contains the data of the headers, and statistics
    of tensors only with --values. Ends with Ctrl-C.
    """
    from weighbridge.cli.render import Progress
    from weighbridge.page.viewing import export_view, view

    if options.output is not None:
        refuse_others("--output", options, ("port", "browser", "idle"), hint="it serves nothing")
        with Progress() as progress:
            export_view(path, options.output, other, progress=progress, **options.keywords(export_view))
        return _print({"page": options.output, "nbytes": Path(options.output).stat().st_size}, options.json)
    if options.values:
        raise UsageError("--values applies to a written page; a served page reads values on demand",
                         hint="write one with --output FILE")  # fmt: skip
    if options.overwrite:
        raise UsageError("--overwrite replaces a page", hint="write one with --output FILE")
    from weighbridge.page.malloc import share_one_arena

    share_one_arena()
    sys.setswitchinterval(_TURN)
    with view(path, other, **options.keywords(view)) as page:
        try:
            _print({"url": page.url}, options.json)
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
