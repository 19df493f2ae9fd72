"""`wb anatomy`: every byte of a file with its meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples, json_option, option, refuse_others
from weighbridge.cli.paths import SOURCE_OR_TENSOR

if TYPE_CHECKING:
    from pathlib import Path

    from weighbridge.reports.anatomy import AnatomyReport

_DUMPED: Final = 32  # bytes of a region
_WIDE: Final = 77  # columns of a line with 16 bytes
# Options of the dump -> their parameters.
_PARTS: Final = {"at": "at", "kind": "kinds", "limit": "limit", "bytes": "head"}
# Colours of kinds, in the dump and in the map.
_STYLES: Final = {
    "tensor": "name",
    "padding": "dim",
    "unknown": "error",
    "magic": "ok",
    "json": "number",
    "value": "number",
}


def _offset(text: str) -> int:
    try:
        return int(text.replace("_", "").replace(",", ""), 0)
    except ValueError:
        raise UsageError(f"{text!r} is not an offset", hint="write it like 4096 or 0x1000") from None


def _range(text: str) -> dict[str, int]:
    start, _, end = text.partition(":")
    return ({"start": _offset(start)} if start else {}) | ({"end": _offset(end)} if end else {})


@command(
    epilog=examples(
        "wb anatomy model.gguf --limit 40",
        "wb anatomy model.safetensors --map",
        "wb anatomy model.gguf --at 0x5f3a80",
        "wb anatomy model.gguf --range 0:4096 --json",
        "wb anatomy model.gguf --tensor blk.0.attn_q.weight --block 3",
    )
)
@click.argument("file", type=SOURCE_OR_TENSOR)
@option("--at", type=_offset, metavar="OFFSET", help="Say what the byte there means.")
@option("--range", "span", type=_range, default="", metavar="A:B", help="Regions that meet bytes A to B.")
@option("--map", "only_map", is_flag=True, help="Show how the file divides, and no regions.")
@option("--kind", "kinds", multiple=True, metavar="KIND", help="Regions of a kind (key, value, tensor, padding ...).")
@option("--bytes", "head", type=click.IntRange(0, 1 << 20), help="Bytes of a region to dump [32].")
@option("--limit", type=click.IntRange(0), metavar="N", help="Show the first N regions.")
@option("--tensor", metavar="NAME", help="Only this tensor, as FILE::NAME.")
@option("--block", type=click.IntRange(0), metavar="N", help="Decode one of its blocks: fields, scales, codes, values.")
@json_option
def anatomy(
    file: str,
    span: dict[str, Any],
    only_map: bool,
    tensor: str | None,
    block: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Name every byte of FILE: an annotated hexdump (FILE::TENSOR for one tensor's bytes) and a map of the layout.

    --block shows how the bytes of one block of a tensor give its values, with the formula: the block of a ggml type,
    an element of a plain type, or a group of a packed weight (MLX, GPTQ, AWQ), for which FILE may be a folder."""
    from weighbridge.cli.render import emit_json, width
    from weighbridge.reports.anatomy import anatomy

    if block is not None:
        given = {f"--{name}": options[key] not in (None, ()) for name, key in _PARTS.items()}
        refuse_others("--block", {**given, "--range": span, "--map": only_map}, hint="it is about one block alone")
        return _show_block(*_named_tensor(file, tensor), block, as_json)
    if tensor is not None:
        file = "::".join(map(str, _named_tensor(file, tensor)))
    if only_map:
        given = {f"--{name}": options[key] not in (None, ()) for name, key in _PARTS.items()}
        refuse_others("--map", {**given, "--range": span}, hint="the map is of the whole file")
    elif options["at"] is not None:
        named = tensor is not None or "::" in file
        refuse_others("--at", {"--range": span, "--tensor": named}, hint="give one of them")
    options["head"] = _DUMPED if options["head"] is None else options["head"]
    report = anatomy(file, **span, **options, cells=max(width() - 2, 16))
    if as_json:
        return emit_json(report)
    if not only_map:
        _dump(report)
    if only_map or not (options["at"] is not None or span):
        _map(report)


def _named_tensor(file: str, tensor: str | None) -> tuple[Path, str]:
    """The file and the tensor, which either the argument or the option names."""
    from weighbridge.reports import tensor_path

    path, name = tensor_path.split(file)
    if name is not None and tensor is not None:
        raise UsageError(f"{file} names a tensor already", hint="omit --tensor")
    if name is None and tensor is None:
        raise UsageError("no tensor is named", hint="add --tensor NAME; wb inspect FILE --tensors lists them")
    return path, name or tensor or ""


def _show_block(path: Path, tensor: str, number: int, as_json: bool) -> None:
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import block as view
    from weighbridge.models.open import open_model
    from weighbridge.reports.microscope.blocks import block

    with open_model(path) as model:
        report = block(model, tensor, number)
    emit_json(report) if as_json else view.show(report)


def _dump(report: AnatomyReport) -> None:
    from weighbridge.cli.render import clean, echo, styled, width
    from weighbridge.reports.anatomy import hexdump

    columns = 16 if width() >= _WIDE else 8
    for part in report.parts:
        value = f" = {part.value}" if part.value else ""
        words = f"{part.kind:8} {clean(part.label)}{clean(value)}"
        echo(
            f"{styled(f'{part.start:#010x}', 'dim')}  {styled(words, _STYLES.get(part.kind))}  ({part.length:,} bytes)"
        )
        for at, row, text in hexdump(part.head, part.start, columns):
            echo(f"  {at:08x}  {row:{columns * 3 - 1}}  {styled(text, 'dim')}")
        if part.length * 2 > len(part.head) > 0:
            echo(f"  ... {part.length - len(part.head) // 2:,} more", "dim")
    if report.place:
        echo(
            f"byte {report.at:#x} is {report.place.words} of {clean(report.place.tensor)} ({report.place.dtype})",
            "head",
        )


def _map(report: AnatomyReport) -> None:
    from weighbridge.cli.render import Column, echo, human_bytes, styled, table

    echo(f"{report.nbytes:,} bytes in {report.region_count:,} regions", "head")
    letters = {s.kind: letter for s, letter in zip(report.shares, _letters(report), strict=True)}
    echo("[" + "".join(styled(letters[kind], _STYLES.get(kind)) for kind in report.strip) + "]")
    table(
        ["", "kind", Column("regions", right=True), Column("bytes", right=True), Column("share", right=True)],
        [(letters[s.kind], s.kind, f"{s.regions:,}", human_bytes(s.nbytes), f"{s.share:.2%}") for s in report.shares],
    )


def _letters(report: AnatomyReport) -> list[str]:
    """One letter a kind: its first that is free."""
    out: list[str] = []
    for share in report.shares:
        wanted = {"tensor": "#", "padding": ".", "unknown": "?"}.get(share.kind, "") + share.kind
        out.append(next((c for c in wanted + "0123456789" if c not in out), " "))
    return out
