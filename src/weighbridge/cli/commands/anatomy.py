"""`wb anatomy`: the meaning of every byte of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.cli.options import CommandOptions, command, examples, refuse_others
from weighbridge.cli.values import SOURCE_OR_TENSOR
from weighbridge.reports.options import AnatomyOptions, TensorOptions

if TYPE_CHECKING:
    from pathlib import Path

    from weighbridge.reports.anatomy import AnatomyReport

_SELECTING: Final = ("at", "start", "end", "kind", "head", "limit")
_WIDE: Final = 77  # columns of a line with 16 bytes
# Colours of kinds, in the dump and in the map.
_STYLES: Final = {
    "tensor": "name",
    "padding": "dim",
    "unknown": "error",
    "magic": "ok",
    "json": "number",
    "value": "number",
}


@dataclass(frozen=True, kw_only=True)
class AnatomyCommand(AnatomyOptions, TensorOptions, CommandOptions):
    map: bool = option("Show how the file divides, and no regions.", False)
    block: int | None = option("Decode one of its blocks: fields, scales, codes, values.", metavar="N", least=0)


@command(
    AnatomyCommand,
    epilog=examples(
        "wb anatomy model.gguf --limit 40",
        "wb anatomy model.safetensors --map",
        "wb anatomy model.gguf --at 0x5f3a80",
        "wb anatomy model.gguf --end 4096 --json",
        "wb anatomy model.gguf --tensor blk.0.attn_q.weight --block 3",
    ),
)
@click.argument("file", type=SOURCE_OR_TENSOR)
def anatomy(file: str, options: AnatomyCommand) -> None:
    """Name every byte of FILE: an annotated hexdump (FILE::TENSOR for one tensor's bytes) and a map of the layout.

    --block shows how the bytes of one block of a tensor become values, with the formula: the block of a ggml type,
    an element of a plain type, or a group of a packed weight (MLX, GPTQ, AWQ), for which FILE may be a folder."""
    from weighbridge.cli.render import emit_json, width
    from weighbridge.reports.anatomy import anatomy
    from weighbridge.reports.tensor_path import names_tensor

    if options.block is not None:
        refuse_others("--block", options, {*_SELECTING, "map"}, hint="it shows one block")
        from weighbridge.cli.views import block as view
        from weighbridge.models.open import WHOLE, open_model
        from weighbridge.reports.microscope.blocks import block as block_view

        path, name = _named_tensor(file, options.tensor)
        with open_model(path, WHOLE) as model:
            shown = block_view(model, name, options.block)
        return emit_json(shown) if options.json else view.show(shown)
    if options.tensor is not None:
        file = "::".join(str(part) for part in _named_tensor(file, options.tensor))
    if options.map:
        refuse_others("--map", options, _SELECTING, hint="the map shows the whole file")
    elif options.at is not None:
        refuse_others("--at", options, ("start", "end"), hint="give one of them")
        if names_tensor(file):
            raise UsageError("--tensor doesn't apply to --at", hint="give one of them")
    report = anatomy(file, cells=max(width() - 2, 16), **options.keywords(anatomy))
    if options.json:
        return emit_json(report)
    if not options.map:
        from weighbridge.cli.render import clean, echo, styled, width
        from weighbridge.reports.anatomy import hexdump

        columns = 16 if width() >= _WIDE else 8
        for part in report.parts:
            value = f" = {part.value}" if part.value else ""
            meaning = styled(f"{part.kind:8} {clean(part.label)}{clean(value)}", _STYLES.get(part.kind))
            echo(f"{styled(f'{part.start:#010x}', 'dim')}  {meaning}  ({part.length:,} bytes)")
            for at, row, text in hexdump(part.head, part.start, columns):
                echo(f"  {at:08x}  {row:{columns * 3 - 1}}  {styled(text, 'dim')}")
            if part.length * 2 > len(part.head) > 0:
                echo(f"  ... {part.length - len(part.head) // 2:,} more", "dim")
        if report.place:
            echo(
                f"byte {report.at:#x} is {report.place.words} of {clean(report.place.tensor)} ({report.place.dtype})",
                "head",
            )
    if options.map or not {"at", "start", "end"} & {*options.given}:
        _map(report)


def _named_tensor(file: str, tensor: str | None) -> tuple[Path, str]:
    """The file and the tensor, named by either the argument or the option."""
    from weighbridge.reports import tensor_path

    path, name = tensor_path.split(file)
    if name is not None and tensor is not None:
        raise UsageError(f"{file} names a tensor already", hint="omit --tensor")
    if name is None and tensor is None:
        raise UsageError("no tensor is named", hint="add --tensor NAME; wb inspect FILE --tensors lists them")
    return path, name or tensor or ""


def _map(report: AnatomyReport) -> None:
    from weighbridge.cli.render import Column, echo, human_bytes, styled, table

    echo(f"{report.nbytes:,} bytes in {plural(report.region_count, 'region')}", "head")
    letters: dict[str, str] = {}  # one for each kind: the first that is free
    for share in report.shares:
        candidates = {"tensor": "#", "padding": ".", "unknown": "?"}.get(share.kind, "") + share.kind + "0123456789"
        letters[share.kind] = next((c for c in candidates if c not in letters.values()), " ")
    echo("[" + "".join(styled(letters[kind], _STYLES.get(kind)) for kind in report.strip) + "]")
    table(
        ["", "kind", Column("regions", right=True), Column("bytes", right=True), Column("share", right=True)],
        [(letters[s.kind], s.kind, f"{s.regions:,}", human_bytes(s.nbytes), f"{s.share:.2%}") for s in report.shares],
    )
