"""`wb mount`: a folder with a model in forms that are made where they are read."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.cli.options import command, examples
from weighbridge.cli.paths import PATH
from weighbridge.cli.views.forms import chosen, forms_option


@command(
    epilog=examples(
        "wb mount ./my-model/ /mnt/m",
        "wb mount ./my-model/ /mnt/m --form Q4_K_M --form mlx-4bit",
    )
)
@click.argument("src", type=PATH)
@click.argument("point", type=click.Path(path_type=Path), metavar="FOLDER")
@forms_option
def mount(src: Path | str, point: Path, forms: tuple[str, ...]) -> None:
    """Mount the model SRC at the empty FOLDER in other forms: NAME-Q4_K_M.gguf, mlx-4bit/, safetensors/ ...

    Each file has the bytes that wb quantize or wb convert would write, computed where they are read; nothing is stored.
    Runs until FOLDER is unmounted (fusermount3 -u FOLDER) or Ctrl-C.
    """
    from weighbridge.adapters.serving.mount import check_mount_point
    from weighbridge.adapters.serving.mount import mount as serve
    from weighbridge.base.errors import UnsupportedError
    from weighbridge.cli.render import clean, note, warn
    from weighbridge.conversion.forms.library import ModelForms

    check_mount_point(point)
    with ModelForms(src, chosen(forms)) as model:
        files = dict(model.tree())
        for form, why in model.reasons.items():
            warn(clean(f"no {form}: {why}"))
        if not files:
            raise UnsupportedError(f"{src} can't be had in any of these forms", hint="wb mount --form NAME")
        note(f"{len(files):,} files at {clean(str(point))}; fusermount3 -u {clean(str(point))} ends it")
        serve(files, point)
