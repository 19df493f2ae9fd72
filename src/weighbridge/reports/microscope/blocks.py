"""One block of a tensor: its bytes field by field, the scales and codes in them, the decoded values, and the formula. A
block is the smallest unit that can be decoded: a block of a ggml type, an element of a plain type, or a group of
weights with a common scale in a packed tensor (MLX, GPTQ, AWQ ...).

    block(model, "blk.0.attn_q.weight", 3) -> BlockView
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import Field, Kind
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Entry
from weighbridge.models.model import OpenModel
from weighbridge.reports import tensor_path
from weighbridge.reports.anatomy import coordinates
from weighbridge.reports.microscope import numbers
from weighbridge.reports.microscope.code_bits import CodeBits, code_bits

if TYPE_CHECKING:
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.reference.codec import Unpacking

SCHEMA: Final = "weighbridge/block/1"

Values = tuple[float | int, ...]
_BITS: Final = "bits"  # the only field of a plain type


@dataclass(frozen=True, slots=True)
class BlockField:
    """Bytes [start, end) of the block: `count` scalars of type `scalar` (in the table of number types). `raw`: the
    bytes in hexadecimal. `stored`: the stored tensor, for a packed weight."""

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
    """Numbers in the fields, in the order of the elements. `each`: the number of elements that share one; 0 for a table
    indexed by the codes."""

    name: str
    each: int
    values: Values


@dataclass(frozen=True, slots=True)
class BlockView:
    """Block `number` of the `blocks` of a tensor. `element`: its first value; `index`: the coordinates of it. `offset`:
    its first byte in `file`; -1 for a group of a packed weight, whose bytes are in several tensors, and for compressed
    bytes. `formula`: a Python expression of the parts that computes `values` in f32; empty if the type has none.
    `values`: decoded by the kernels; empty if the type can't be decoded. `bits`: for each value, the bytes of the block
    with its code, each with a mask; empty without a formula."""

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


def block(model: OpenModel, tensor: str, number: int) -> BlockView:
    """Returns block `number` of a tensor, named as stored or as a packed weight. A packed weight takes precedence if
    its groups of weights have separate scales (those of FP8 belong to squares). Raises UsageError for an unknown tensor
    or block, and UnsupportedError if blocks can't be decoded separately."""
    packed = _packed_weight(model, tensor)
    if packed is not None and (tensor not in model.index or _grouping(packed.node) is not None):
        return _group(model, tensor, packed.node, packed.match.stored, number)
    return _block(model, tensor_path.entry(model.index, tensor, model.place.path), number)


def _packed_weight(model: OpenModel, tensor: str) -> PackedGroup | None:
    """Returns the packed weight with this name; None for a plain tensor, or a member of a broken group."""
    try:
        groups = model.packed_near([tensor]).values()
        return next((group for group in groups if group.name == tensor), None)
    except (FormatError, UnsupportedError):
        if tensor not in model.index:
            raise
        return None


def _block(model: OpenModel, entry: Entry, number: int) -> BlockView:
    dtype, atoms = entry.dtype, prod(entry.shape) // entry.dtype.block
    _check(entry.name, number, atoms)
    node = model.stored[entry.name]
    row, at = divmod(number, node.spec.row_atoms)
    data = node.read(row, row + 1)[at * dtype.size : (at + 1) * dtype.size].copy()  # little-endian
    layout = _unpacking(entry)
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
        index=coordinates(entry.shape, number * dtype.block),
        offset=entry.offset + number * dtype.size if whole else -1,
        nbytes=dtype.size,
        formula=layout.formula if layout else "",
        fields=tuple(_field(f, data, dtype.size) for f in fields),
        parts=_parts(layout.parts(data), dtype.block) if layout else (),
        values=_decode(entry, data),
        bits=code_bits([data], lambda: layout.parts(data), dtype.block) if layout else (),
    )


def _check(name: str, number: int, blocks: int) -> None:
    if not 0 <= number < blocks:
        raise UsageError(f"{name} has no block {number:,}", hint=f"it has {blocks:,}, from 0")


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


def _parts(arrays: Mapping[str, Any], elements: int) -> tuple[BlockPart, ...]:
    return tuple(
        BlockPart(name, 0 if name == "table" else elements // max(part.size, 1), _listed(part.reshape(-1)))
        for name, part in arrays.items()
    )


def _listed(values: Any) -> Values:
    """Returns Python numbers; floats of up to 32 bits get the shortest digits that identify them in f32."""
    import numpy as np

    if values.dtype.kind in "biu":
        return tuple(map(int, values))
    return tuple(float(str(v)) for v in (values.astype(np.float32) if values.dtype.itemsize < 4 else values))


def _decode(entry: Entry, data: Any) -> Values:
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


def _group(model: OpenModel, name: str, tensor: Any, stored: Mapping[str, str], number: int) -> BlockView:
    """Returns group `number` of a packed weight: the weights of a row with a common scale."""
    layout = _grouping(tensor)
    if layout is None:
        raise UnsupportedError(
            f"{name} has no groups that can be decoded separately",
            hint=f"name one of its stored tensors: {', '.join(stored.values())}",
        )
    columns = tensor.spec.shape[-1]
    groups = -(-columns // layout.group)
    _check(name, number, groups * tensor.spec.rows)
    row, at = divmod(number, groups)
    lo, hi = at * layout.group, min((at + 1) * layout.group, columns)
    with tensor.borrow(row, row + 1) as members:
        data = {member: part.copy() for member, part in members.items()}
    parts = layout.parts(data, columns, at)
    return BlockView(
        file=model.files_of_tensors[next(iter(stored.values()))],
        tensor=name,
        dtype=layout.name,
        shape=tensor.spec.shape,
        number=number,
        blocks=groups * tensor.spec.rows,
        element=row * columns + lo,
        index=coordinates(tensor.spec.shape, row * columns + lo),
        offset=-1,
        nbytes=sum(part.nbytes for part in parts.raw.values()),
        formula=layout.formula,
        fields=_members(parts, {role: stored.get(role, "") for role in parts.raw}),
        parts=_parts(parts.unpacked, hi - lo),
        values=_listed(tensor.decode().read(row, row + 1).view("<f4")[lo:hi]),
        bits=code_bits(list(parts.raw.values()), lambda: layout.parts(data, columns, at).unpacked, hi - lo),
    )


def _grouping(tensor: Any) -> numbers.Grouping | None:
    from weighbridge.tensors.nodes import QuantizedTensor

    return numbers.grouping(tensor.packing) if isinstance(tensor, QuantizedTensor) else None


def _members(parts: numbers.GroupParts, stored: Mapping[str, str]) -> tuple[BlockField, ...]:
    """Returns the bytes of each member, one after another."""
    fields, start = [], 0
    for role, raw in parts.raw.items():
        scalar, values = parts.scalars[role]
        end = start + raw.nbytes
        data = raw.tobytes().hex()
        fields.append(BlockField(role, scalar, len(values), start, end, data, _listed(values), stored[role]))
        start = end
    return tuple(fields)
