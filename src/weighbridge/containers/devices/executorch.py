"""ExecuTorch programs (.pte) and the data files next to them (.ptd): a FlatBuffer, then segments of data.

    header             u32 root, ET12 or FT01, eh00 or FH01, u32 its bytes, u64 numbers: the last but one is the offset
                       of the segments
    Program            execution_plan = 1, constant_buffer = 2, backend_delegate_data = 3, segments = 4,
                       constant_segment = 5, mutable_data_segments = 6, named_data = 7
    ExecutionPlan      name = 0, values = 2
    Tensor             scalar_type = 0, sizes = 2, dim_order = 3, data_buffer_idx = 5, allocation_info = 6, extra = 9
    ExtraTensorInfo    mutable_data_segments_idx = 0, fully_qualified_name = 1, location = 2
    FlatTensor         segments = 1, named_data = 2
    NamedData          key = 0, segment_index = 1, tensor_layout = 2 (scalar_type, sizes, dim_order)

Constants of a program have no names, unless they have been saved as external data: they are called buffer_NUMBER, and
initial values of buffers that the program changes mutable_NUMBER. Data of delegates is opaque. Reference: program.fbs,
flat_tensor.fbs and extended_header.h of executorch 1.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, FLATBUFFER_TENSORS
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.flatbuffer import FlatBuffer, FlatTable, Vector
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.io.source import Source

NAME: Final = "executorch"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **COMMON,
        "external": Rule(Severity.INFO, "a tensor whose data is in a .ptd file is left out"),
        "opaque": Rule(Severity.INFO, "data that only the backend of a delegate reads is left out or given as bytes"),
    }
)
#: ScalarType -> type. The others are torch's own quantized types.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "U8", 1: "I8", 2: "I16", 3: "I32", 4: "I64", 5: "F16", 6: "F32", 7: "F64", 11: "BOOL", 15: "BF16",
        23: "F8_E5M2", 24: "F8_E4M3", 25: "F8_E5M2FNUZ", 26: "F8_E4M3FNUZ", 27: "U16", 28: "U32", 29: "U64",
    }
)  # fmt: skip
_TENSOR: Final = 5  # in the union KernelTypes
#: Magic of the extended header -> the offset of "where the segments begin".
_BASES: Final = MappingProxyType({b"eh00": 24, b"FH01": 32})
_HEAD: Final = 8


class Segments:
    """The data of a file by segment. FormatError for a segment outside the file."""

    def __init__(self, source: Source, table: Vector | None) -> None:
        self.source, self.table = source, table
        head = source.head(40)
        place = _BASES.get(head[_HEAD : _HEAD + 4])
        self.base = int.from_bytes(head[place : place + 8], "little") if place else 0

    @property
    def count(self) -> int:
        return self.table.length if self.table else 0

    def span(self, number: int) -> tuple[int, int]:
        """Returns the offset and size of a segment."""
        if self.table is None or number >= self.count:
            raise FormatError("a segment doesn't exist", path=self.source.name, expected=f"< {self.count}",
                              found=number)  # fmt: skip
        row = self.table.table(number)
        offset, size = self.base + row.number(0, "Q"), row.number(1, "Q")
        self.source.check(offset, size)
        return offset, size


class StoredLayout(NamedTuple):
    """Type, shape and order of the axes, outermost first, of a tensor or a layout."""

    kind: int
    shape: Sequence[int]
    order: Sequence[int]

    @classmethod
    def of(cls, table: FlatTable, sizes: int, order: int) -> StoredLayout:
        dims, axes = table.vector(sizes), table.vector(order, 1)
        if (dims and dims.length > DIMS) or (axes and axes.length > DIMS):
            raise FormatError("the shape is impossible", path=table.buffer.source.name, offset=table.at)
        return cls(table.number(0, "b"), dims.numbers("i") if dims else (), axes.numbers("B") if axes else ())

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Returns the strides in elements if the axes aren't in their order."""
        if list(self.order) == sorted(self.order) or sorted(self.order) != [*range(len(self.shape))]:
            return None
        strides, step = [0] * len(self.shape), 1
        for axis in reversed(self.order):
            strides[axis], step = step, step * self.shape[axis]
        return tuple(strides)

    def nbytes(self) -> int | None:
        """Returns the bytes of the data; None for an unknown type."""
        row = BY_NAME.get(DTYPES.get(self.kind, ""))
        known = row is not None and all(0 <= n < 1 << 32 for n in self.shape)
        return math.prod(self.shape) * row.size if known and row is not None else None


def parse(source: Source) -> Index:
    """The constants of all plans, and named data as bytes."""
    tensor_list, program = TensorList(NAME, source, RULES), FlatBuffer(source).root()
    segments = Segments(source, program.vector(4))
    seen: set[str] = set()
    for tensor in _tensors(program):
        number, extra, is_mutable = tensor.number(5, "I"), tensor.table(9), tensor.place(6) is not None
        name = (extra.text(1) if extra else "") or f"{'mutable' if is_mutable else 'buffer'}_{number}"
        if extra is not None and extra.number(2, "b"):
            tensor_list.finding("external", "left out: its data is in a .ptd file", tensor.at, name)
        elif number and name not in seen:  # 0 is an activation; several plans may use one constant
            seen.add(name)
            offset = _offset(tensor_list, name, tensor, program, segments)
            _add(tensor_list, name, StoredLayout.of(tensor, 2, 3), offset, None, tensor.at)
    _add_delegates(tensor_list, program, segments)
    return tensor_list.index({}, program.number(0, "I"))


def _add_delegates(tensor_list: TensorList, program: FlatTable, segments: Segments) -> None:
    """Adds named data as bytes, and a finding on the size of other data of delegates."""
    used = {t.number(0, "I") for t in (program.table(5), *_tables(program.vector(6))) if t is not None}
    for key, number, entry in _named(tensor_list, program.vector(7)):
        offset, size = segments.span(number)
        used.add(number)
        tensor_list.finding("opaque", f"data of a delegate, given as {size:,} bytes", entry.at, key)
        tensor_list.add(key, "U8", (size,), offset, size, kind="U8", at=entry.at)
    hidden = sum(segments.span(n)[1] for n in range(segments.count) if n not in used)
    hidden += sum(data.length for blob in _tables(program.vector(3)) if (data := blob.vector(0, 1)) is not None)
    if hidden:
        tensor_list.finding("opaque", f"left out: {hidden:,} bytes of delegates")


def _tables(vector: Vector | None) -> Iterator[FlatTable]:
    if vector is not None and vector.length > FLATBUFFER_TENSORS:
        raise UnsupportedError(f"{vector.buffer.source.name} has more than {FLATBUFFER_TENSORS:,} items in a vector")
    return (vector.table(number) for number in range(vector.length)) if vector is not None else iter(())


def _tensors(program: FlatTable) -> Iterator[FlatTable]:
    """The tensors among the values of all plans."""
    count = 0
    for plan in _tables(program.vector(1)):
        for value in _tables(plan.vector(2)):
            count += 1
            if count > FLATBUFFER_TENSORS:
                raise UnsupportedError(f"{program.buffer.source.name} has more than {FLATBUFFER_TENSORS:,} values")
            if value.number(0, "B") == _TENSOR and (tensor := value.table(1)) is not None:
                yield tensor


def _offset(tensor_list: TensorList, name: str, tensor: FlatTable, program: FlatTable, segments: Segments) -> int:
    """The offset of a constant's data: in the FlatBuffer, or by a table of offsets in a segment."""
    number, inline, table = tensor.number(5, "I"), program.vector(2), program.table(5)
    missing = tensor_list.error("a buffer doesn't exist", name, tensor.at, found=number)
    if inline is not None and inline.length:
        data = inline.table(number).vector(0, 1) if number < inline.length else None
        if data is None:
            raise missing
        return data.start
    if tensor.place(6) is not None:
        extra, groups = tensor.table(9), program.vector(6)  # the initial value of a mutable tensor
        group = extra.number(0, "Q") if extra else 0
        table = groups.table(group) if groups and group < groups.length else None
    offsets = table.vector(1, 8) if table else None
    if table is None or offsets is None or number >= offsets.length:
        raise missing
    start, size = segments.span(table.number(0, "I"))
    offset = tensor.buffer.number(offsets.start + 8 * number, "Q")
    if offset > size:
        raise tensor_list.error("a buffer is outside its segment", name, tensor.at, expected=f"<= {size}", found=offset)
    return start + offset


def _named(tensor_list: TensorList, named: Vector | None) -> Iterator[tuple[str, int, FlatTable]]:
    """The key and segment of each named piece of data."""
    for entry in _tables(named):
        key = entry.text(0)
        if not key:
            raise tensor_list.error("named data has no name", "named_data", entry.at)
        yield key, entry.number(1, "I"), entry


def _add(tensor_list: TensorList, name: str, layout: StoredLayout, offset: int, size: int | None, at: int) -> None:
    """Adds a tensor. `size`: the bytes of its segment, if it has one."""
    nbytes = layout.nbytes()
    if size is not None and nbytes is not None and nbytes > size:
        raise tensor_list.error("the data is shorter than the shape", name, at, expected=nbytes, found=size)
    strides = layout.strides if nbytes else None
    tensor_list.add(
        name, DTYPES.get(layout.kind), layout.shape, offset, nbytes or 0, at=at, strides=strides,
        kind=f"number {layout.kind} of ScalarType",
    )  # fmt: skip


def parse_data(source: Source, name: str) -> Index:
    """The tensors of a data file; data without a layout as bytes."""
    tensor_list, root = TensorList(name, source, RULES), FlatBuffer(source).root()
    segments = Segments(source, root.vector(1))
    for key, number, entry in _named(tensor_list, root.vector(2)):
        offset, size = segments.span(number)
        layout = entry.table(2)
        if layout is None:
            tensor_list.finding("opaque", f"data without a layout, given as {size:,} bytes", entry.at, key)
            tensor_list.add(key, "U8", (size,), offset, size, kind="U8", at=entry.at)
        else:
            _add(tensor_list, key, StoredLayout.of(layout, 1, 2), offset, size, entry.at)
    return tensor_list.index({}, root.number(0, "I"))


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "tables of the FlatBuffer, padding, data of delegates")
