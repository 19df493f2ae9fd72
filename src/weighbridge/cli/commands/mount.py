"""`wb mount`: mounts a folder with a model in other forms, converted on the fly."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from weighbridge.base.words import plural
from weighbridge.cli.forms import FormsCommand, chosen
from weighbridge.cli.options import command, examples
from weighbridge.cli.values import PATH


@command(
    FormsCommand,
    epilog=examples(
        "wb mount ./my-model/ /mnt/m",
        "wb mount ./my-model/ /mnt/m --form Q4_K_M --form mlx-4bit",
    ),
)
@click.argument("src", type=PATH)
@click.argument("point", type=click.Path(path_type=Path), metavar="FOLDER")
def mount(src: Path | str, point: Path, options: FormsCommand) -> None:
    """Mount the model SRC at the empty FOLDER in other forms: NAME-Q4_K_M.gguf, mlx-4bit/, safetensors/ ...

    Each file has the bytes that wb quantize or wb convert would write, computed on reading; nothing is stored. Runs
    until FOLDER is unmounted (fusermount3 -u FOLDER) or Ctrl-C.
    """
    from weighbridge.adapters.serving.mount import check_mountable
    from weighbridge.adapters.serving.mount import mount as serve
    from weighbridge.base.errors import UnsupportedError
    from weighbridge.cli.render import clean, emit_json, note, warn
    from weighbridge.conversion.forms.library import ModelForms

    check_mountable(point)
    with ModelForms(src, chosen(options.form)) as model:
        files = dict(model.tree())
        for name, why in model.reasons.items():
            warn(clean(f"no {name}: {why}"))
        if not files:
            raise UnsupportedError(f"{src} can't be converted to any of these forms", hint="wb mount --form NAME")

        def started() -> None:
            where = clean(str(point))
            if options.json:
                emit_json({"folder": str(point), "files": {name: file.size for name, file in files.items()}})
                sys.stdout.flush()  # a parent process may wait for it
            else:
                note(f"{plural(len(files), 'file')} at {where}; fusermount3 -u {where} ends it")

        serve(files, point, started)
