"""One block of a tensor: its bytes field by field, the scales and codes in them, the values that these give, and the
formula. A block is the smallest piece that decodes by itself: a block of a ggml type, an element of a plain type, a
group of weights that share a scale in a packed tensor (MLX, GPTQ, AWQ ...).

    block(model, "blk.0.attn_q.weight", 3) -> BlockView
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import Field, Kind
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.base import Entry
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.reports import tensor_path
from weighbridge.reports.microscope import numbers
from weighbridge.reports.microscope.code_bits import CodeBits, code_bits

if TYPE_CHECKING:
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.nodes import Node, QuantizedTensor
    from weighbridge.tensors.reference.codec import Unpacking

SCHEMA: Final = "weighbridge/block/1"

Values = tuple[float | int, ...]
_BITS: Final = "bits"  # the one field of a plain type


@dataclass(frozen=True, slots=True)
class BlockField:
    """Bytes [start, end) of the block: `count` scalars of the type `scalar` (as in the table of number types). `raw`:
    the bytes in hexadecimal. `stored`: of a packed tensor, the stored tensor that they are from."""

    name: str
    scalar: str
    count: int
    start: int
    end: int
    raw: str
    values: Values
    stored: str = ""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Numbers that are packed into the fields, in the order of the elements. `each`: elements that one number is for;
    0: a table that codes are numbers into."""

    name: str
    each: int
    values: Values


@dataclass(frozen=True, slots=True)
class BlockView:
    """Block `number` of the `blocks` of a tensor. `element`: of its first value; `index`: the same as coordinates.
    `offset`: its first byte in `file`; -1 for a group of a packed tensor, whose bytes lie in several tensors, and for
    compressed ones. `formula`: an expression of the parts in Python's notation that gives `values` in f32; empty where
    the type has none. `values` are those of the kernels; empty for a type that can't be decoded. `bits`: of each
    value the bytes of the block that its code lies in, each with a mask; empty without a formula."""

    file: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    number: int
    blocks: int
    element: int
    index: tuple[int, ...]
    offset: int
    nbytes: int
    formula: str
    fields: tuple[BlockField, ...]
    parts: tuple[BlockPart, ...]
    values: Values
    bits: CodeBits = ()
    schema: str = SCHEMA


def block(model: Checkpoint, tensor: str, number: int) -> BlockView:
    """Block `number` of a tensor, by its stored name or that of a packed weight, which goes first where groups of its
    weights have scales of their own (those of FP8 are of squares). UsageError where there is none; UnsupportedError
    where its blocks don't decode by themselves."""
    packed = _packed(model, tensor)
    if packed is not None and (tensor not in model.index or _grouping(packed.node) is not None):
        return _group(model, tensor, packed.node, packed.match.stored, number)
    return _block(model, tensor_path.entry(model.index, tensor, model.place.path), number)


def _packed(model: Checkpoint, tensor: str) -> PackedGroup | None:
    """The packed weight of this name; None where it is a tensor of its own, or a member of a broken one."""
    try:
        groups = model.packed_near([tensor]).values()
        return next((group for group in groups if group.name == tensor), None)
    except (FormatError, UnsupportedError):
        if tensor not in model.index:
            raise
        return None


def _block(model: Checkpoint, entry: Entry, number: int) -> BlockView:
    dtype, atoms = entry.dtype, prod(entry.shape) // entry.dtype.block
    _check(entry.name, number, atoms)
    data = _atom(model.stored[entry.name], number)
    how = _unpacking(entry)
    fields = dtype.fields or (Field(_BITS, dtype.name, 1, 0),)
    source = model.index.files[entry.file]
    whole = entry.strides is None and not source.sequential and model.nodes is None
    return BlockView(
        file=source.name,
        tensor=entry.name,
        dtype=dtype.name,
        shape=entry.shape,
        number=number,
        blocks=atoms,
        element=number * dtype.block,
        index=_coordinates(entry.shape, number * dtype.block),
        offset=entry.offset + number * dtype.size if whole else -1,
        nbytes=dtype.size,
        formula=how.formula if how else "",
        fields=tuple(_field(f, data, dtype.size) for f in fields),
        parts=_parts(how.parts(data), dtype.block) if how else (),
        values=_decoded(entry, data),
        bits=code_bits([data], lambda: how.parts(data), dtype.block) if how else (),
    )


def _check(name: str, number: int, blocks: int) -> None:
    if not 0 <= number < blocks:
        raise UsageError(f"{name} has no block {number:,}", hint=f"it has {blocks:,}, from 0")


def _atom(node: Node, number: int) -> Any:
    """The bytes of one atom, little-endian."""
    row, at = divmod(number, node.spec.row_atoms)
    size = node.spec.dtype.size
    return node.read(row, row + 1)[at * size : (at + 1) * size].copy()


def _coordinates(shape: tuple[int, ...], element: int) -> tuple[int, ...]:
    indices: list[int] = []
    for n in reversed(shape):
        element, i = divmod(element, n)
        indices.insert(0, i)
    return tuple(indices)


def _unpacking(entry: Entry) -> Unpacking | None:
    from weighbridge.tensors.reference import legacy_blocks
    from weighbridge.tensors.reference.registry import BLOCKS

    if entry.dtype in legacy_blocks.DECODED:
        return legacy_blocks.unpacking(entry.dtype)
    if entry.dtype.kind is Kind.BLOCK:
        codec = BLOCKS.get(entry.dtype.name)
        return codec.unpacking if codec else None
    return numbers.unpacking(entry.dtype)


def _field(field: Field, data: Any, size: int) -> BlockField:
    from weighbridge.tensors.reference.codec import scalars

    plain = field.name == _BITS
    raw = data[field.offset : size if plain else field.offset + field.size]
    values = raw.view(f"<u{size}") if plain and size in (1, 2, 4, 8) else raw if plain else scalars(field, raw)
    end = field.offset + len(raw)
    return BlockField(field.name, field.scalar, field.count, field.offset, end, raw.tobytes().hex(), _listed(values))


def _parts(found: Mapping[str, Any], elements: int) -> tuple[BlockPart, ...]:
    return tuple(
        BlockPart(name, 0 if name == "table" else elements // max(part.size, 1), _listed(part.reshape(-1)))
        for name, part in found.items()
    )


def _listed(values: Any) -> Values:
    """Numbers as Python has them: a float of up to 32 bits with the digits that identify it among those of 32."""
    import numpy as np

    if values.dtype.kind in "biu":
        return tuple(map(int, values))
    return tuple(float(str(v)) for v in (values.astype(np.float32) if values.dtype.itemsize < 4 else values))


def _decoded(entry: Entry, data: Any) -> Values:
    import numpy as np

    from weighbridge.tensors import kernels
    from weighbridge.tensors.reference import legacy_blocks

    out = np.empty(entry.dtype.block, np.float32)
    if entry.dtype in legacy_blocks.DECODED:
        legacy_blocks.decode(entry.dtype, data, out)
    elif kernels.decodes(entry.dtype) and entry.dtype.name != "F64":
        kernels.decode(entry.dtype, data, out)
    elif entry.dtype.numpy is not None and entry.dtype.kind is not Kind.COMPLEX:
        return _listed(data.view(np.dtype(entry.dtype.numpy)))
    else:
        return ()
    return _listed(out)


# ---- groups of packed tensors ----


def _group(model: Checkpoint, name: str, tensor: Any, stored: Mapping[str, str], number: int) -> BlockView:
    """Group `number` of a packed weight: the weights of a row that share a scale."""
    how = _grouping(tensor)
    if how is None:
        raise UnsupportedError(
            f"{name} isn't made of groups that decode by themselves",
            hint=f"name one of its stored tensors: {', '.join(stored.values())}",
        )
    columns = tensor.spec.shape[-1]
    groups = -(-columns // how.group)
    _check(name, number, groups * tensor.spec.rows)
    row, at = divmod(number, groups)
    lo, hi = at * how.group, min((at + 1) * how.group, columns)
    data = _row(tensor, row)
    parts = how.parts(data, columns, at)
    first = next(iter(stored.values()))
    return BlockView(
        file=model.files_of_tensors[first],
        tensor=name,
        dtype=how.name,
        shape=tensor.spec.shape,
        number=number,
        blocks=groups * tensor.spec.rows,
        element=row * columns + lo,
        index=_coordinates(tensor.spec.shape, row * columns + lo),
        offset=-1,
        nbytes=sum(part.nbytes for part in parts.raw.values()),
        formula=how.formula,
        fields=_members(parts, {role: stored.get(role, "") for role in parts.raw}),
        parts=_parts(parts.unpacked, hi - lo),
        values=_listed(tensor.decode().read(row, row + 1).view("<f4")[lo:hi]),
        bits=code_bits(list(parts.raw.values()), lambda: how.parts(data, columns, at).unpacked, hi - lo),
    )


def _grouping(tensor: Any) -> numbers.Grouping | None:
    from weighbridge.tensors.nodes import QuantizedTensor

    return numbers.grouping(tensor.packing) if isinstance(tensor, QuantizedTensor) else None


def _row(tensor: QuantizedTensor, row: int) -> dict[str, Any]:
    with tensor.borrow(row, row + 1) as parts:
        return {name: part.copy() for name, part in parts.items()}


def _members(parts: numbers.GroupParts, stored: Mapping[str, str]) -> tuple[BlockField, ...]:
    """The bytes of each member, one after the other."""
    fields, at = [], 0
    for role, raw in parts.raw.items():
        scalar, values = parts.scalars[role]
        end = at + raw.nbytes
        fields.append(
            BlockField(role, scalar, len(values), at, end, raw.tobytes().hex(), _listed(values), stored[role])
        )
        at = end
    return tuple(fields)
