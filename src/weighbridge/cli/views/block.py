"""The output of `wb anatomy --block`: the fields of a block, their numbers, the formula, the values."""

from __future__ import annotations

from weighbridge.cli.render import Column, clean, echo, styled, table, width
from weighbridge.reports.microscope.blocks import BlockView, Values

_RAW = 16  # shown bytes of a field


def show(block: BlockView) -> None:
    where = ", ".join(map(str, block.index))
    echo(f"{clean(block.tensor)}  {block.dtype} [{', '.join(map(str, block.shape))}]", "head")
    place = f" at byte {block.offset:,} (0x{block.offset:x})" if block.offset >= 0 else ""
    echo(f"block {block.number:,} of {block.blocks:,}, from element [{where}]: {block.nbytes:,} bytes{place}")
    echo()
    rows = []
    for field in block.fields:
        raw, name = bytes.fromhex(field.raw), f"{field.name} ({field.stored})" if field.stored else field.name
        shown = raw[:_RAW].hex(" ") + (" ..." if len(raw) > _RAW else "")
        scalar = f"{field.scalar}[{field.count}]" if field.count > 1 else field.scalar
        value = _text(field.values[0]) if len(field.values) == 1 else ""
        rows.append((name, scalar, f"{field.start}-{field.end}", shown, value))
    table(["field", "type", Column("bytes", right=True), "raw", "value"], rows)
    if block.formula:
        echo()
        echo(f"value = {block.formula}", "number")
    for part in block.parts:
        echo()
        each = "one per element" if part.each == 1 else f"one per {part.each} elements"
        echo(f"{styled(part.name, 'name')}  {each if part.each else 'indexed by codes'}")
        _numbers(part.values)
    if block.values:
        echo()
        echo(f"{styled('values', 'name')}  in f32")
        _numbers(block.values)


def _text(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _numbers(values: Values) -> None:
    """Prints the numbers in columns; each line starts with the index of its first number."""
    texts = [_text(value) for value in values]
    wide = max(map(len, texts), default=1)
    each = 1 << max((width() - 8) // (wide + 1), 1).bit_length() - 1
    for at in range(0, len(texts), each):
        echo(f"{at:6}  " + " ".join(text.rjust(wide) for text in texts[at : at + each]))
