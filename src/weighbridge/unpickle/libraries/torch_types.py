"""The parts of PyTorch's checkpoints: storages and tensors as pickles name them, the names of types, and checks of
arguments, which raise `UnexpectedOpcode` for anything that torch doesn't write. References: torch/serialization.py,
torch/storage.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from weighbridge.base.dtypes import TABLE, U8, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, PICKLE_MEMORY
from weighbridge.io.source import BytesSource, Source
from weighbridge.unpickle.libraries import torch_legacy as legacy
from weighbridge.unpickle.values import Blob, Global, Object, Persistent, Set, UnexpectedOpcode, preview


class InlineBytes(NamedTuple):
    """Bytes inside the pickle: in a source from `start` on, or in memory. `codec`: of the text that encodes them;
    `big_endian`: most significant byte first."""

    data: bytes | Source
    start: int
    size: int
    codec: str = ""
    big_endian: bool = False


class Storage(msgspec.Struct, frozen=True, gc=False):
    """`numel` elements of `dtype`; an untyped storage has bytes. A view (files before 1.6) is `view` elements from
    `start` on of the storage `key`. `inline`: the bytes, if they are inside the pickle."""

    key: str
    dtype: DType
    numel: int
    location: str
    start: int = 0
    view: int | None = None
    inline: InlineBytes | None = None

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


class SavedTensor(msgspec.Struct, frozen=True, gc=False):
    """A view: element (i, j ...) is element offset + i * strides[0] + ... of the storage, read as `dtype`."""

    at: int
    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool = False
    flags: tuple[str, ...] = ()  # "conj", "neg": the values are the stored ones conjugated, negated


# ---- names ----------------------------------------------------------------------------------------------------

DTYPES: Final = MappingProxyType({t.torch: t for t in TABLE if t.torch})
# torch's storage classes: `torch.FloatStorage`. A quantized storage has integers.
_CLASSES: Final = MappingProxyType(
    {
        "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
        "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
        "ComplexDouble": "complex128", "QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32",
    }
)  # fmt: skip
_MODULES: Final = ("torch", "torch.cuda")
#: Classes whose elements are smaller than a byte. The length in an id counts bytes, a shape counts elements.
SMALL_STORAGES: Final = frozenset((m, f"{c}Storage") for c in ("QUInt4x2", "QUInt2x4") for m in _MODULES)
_UNTYPED: Final = (*((m, "UntypedStorage") for m in _MODULES),
                   *(("torch.storage", f"{_}UntypedStorage") for _ in ("", "_")))  # fmt: skip
_TYPED: Final = (*((m, "TypedStorage") for m in _MODULES), *(("torch.storage", f"{_}TypedStorage") for _ in ("", "_")))
#: The classes whose elements are known.
STORAGES: Final[Mapping[tuple[str, str], DType]] = MappingProxyType(
    {(m, f"{c}Storage"): DTYPES[d] for c, d in _CLASSES.items() for m in _MODULES} | dict.fromkeys(_UNTYPED, U8)
)
#: The storage class that torch writes for a type. Newer types have none and are in an UntypedStorage.
CLASS_OF: Final[Mapping[DType, str]] = MappingProxyType(
    {DTYPES[d]: f"{c}Storage" for c, d in _CLASSES.items() if not c.startswith("Q")}
)
WIDTHS: Final = MappingProxyType({path: t.size for path, t in STORAGES.items()})
#: All of torch's classes, with the bytes of an element.
ALL_WIDTHS: Final[Mapping[tuple[str, str], int]] = MappingProxyType(
    {**WIDTHS, **dict.fromkeys((*sorted(SMALL_STORAGES), *_TYPED), 1)}
)
#: Types with a class like `torch.FloatTensor`.
DENSE: Final = tuple(c for c in _CLASSES if not c.startswith(("Q", "Complex")))
TENSORS: Final = MappingProxyType({(m, f"{c}Tensor"): DTYPES[d] for c, d in _CLASSES.items() for m in _MODULES})
# Names of values, harmless to import.
_SCHEMES: Final = ("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric")
# Types that torch hardly computes with -> the type of their elements in memory.
PLAIN: Final = MappingProxyType(
    {name: "uint8" for name in ("bits8", "bits1x8", "bits2x4", "bits4x2", *(f"uint{n}" for n in range(1, 8)))}
    | {name: "int8" for name in (f"int{n}" for n in range(1, 8))}
    | {"bits16": "uint16", "complex32": "float16"}
)
_OTHER_DTYPES: Final = (*PLAIN, "quint4x2", "quint2x4", "qint8", "quint8", "qint32")
VALUES: Final = frozenset(("torch", n) for n in (*DTYPES, *_SCHEMES, *_OTHER_DTYPES))


COMPLEX: Final = ("C64", "C128")
SIGNED: Final = ("F16", "BF16", "F32", "F64", *COMPLEX)


# ---- arguments ------------------------------------------------------------------------------------------------


def arguments(value: Object, least: int, most: int) -> tuple[Any, ...]:
    if not isinstance(value.args, tuple) or not least <= len(value.args) <= most or value.kwargs is not None:
        count = len(value.args) if isinstance(value.args, tuple) else "no tuple of"
        raise UnexpectedOpcode(f"{value.callee} has {count} arguments")
    return value.args


def count(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise UnexpectedOpcode(f"{name} is {preview(value)}")
    return value


def items(value: Object) -> list[Any]:
    args = arguments(value, 0, 1)
    initial = args[0] if args else ()
    if isinstance(initial, Set):
        initial = initial.items
    if not isinstance(initial, list | tuple):
        raise UnexpectedOpcode(f"{value.callee} of {preview(initial)}")
    return [*initial, *value.items]


def counts(value: Any, name: str) -> tuple[int, ...]:
    if isinstance(value, Object) and isinstance(value.callee, Global) and value.callee.path == ("torch", "Size"):
        value = tuple(items(value))
    if not isinstance(value, tuple | list) or len(value) > DIMS:
        raise UnexpectedOpcode(f"{name} is {preview(value)}")
    return tuple(count(v, name) for v in value)


def text(value: Any, name: str) -> str:
    if isinstance(value, bytes):  # written by Python 2
        value = value.decode("latin-1")
    if not isinstance(value, str):
        raise UnexpectedOpcode(f"{name} is {preview(value)}")
    return value


def storage_of(value: Any) -> Storage:
    """The storage of an id ("storage", class, key, location, numel(, view)), or one that was pickled whole."""
    if isinstance(value, Object) and isinstance(value.meaning, Storage | UnexpectedOpcode):
        if isinstance(value.meaning, UnexpectedOpcode):
            raise value.meaning
        return value.meaning
    id = value.id if isinstance(value, Persistent) else None
    if not isinstance(id, tuple) or len(id) not in (5, 6) or text(id[0], "an id") != "storage":
        raise UnexpectedOpcode(f"{preview(value)} is not a storage")
    kind = id[1]
    if not isinstance(kind, Global) or kind.path not in STORAGES:
        small = isinstance(kind, Global) and kind.path in SMALL_STORAGES
        problem = "whose elements are smaller than a byte" if small else "which isn't torch's"
        raise UnexpectedOpcode(f"a storage's class is {preview(kind)}, {problem}")
    key, location, numel = text(id[2], "a storage's key"), text(id[3], "its location"), count(id[4], "its length")
    if len(id) == 5 or id[5] is None:
        return Storage(key, STORAGES[kind.path], numel, location)
    if not isinstance(id[5], tuple) or len(id[5]) != 3:
        raise UnexpectedOpcode(f"a storage's view is {preview(id[5])}")
    start, size = count(id[5][1], "a view's start"), count(id[5][2], "a view's length")
    if start + size > numel:
        raise UnexpectedOpcode("a view reaches outside its storage")
    return Storage(key, STORAGES[kind.path], numel, location, start, size)


def embedded_file(data: bytes | Blob, room: int) -> Source:
    """The file that `torch.storage._load_from_bytes(data)` loads. `room`: the memory left for decoding text."""
    if isinstance(data, Blob) and data.codec:
        if room < 0:
            raise UnexpectedOpcode("bytes encoded as text take too much memory")
        try:
            data = data.source.read(data.start, data.size).decode().encode("latin-1")
        except UnicodeError:
            raise UnexpectedOpcode("its text doesn't encode bytes") from None
    return BytesSource(data) if isinstance(data, bytes) else data.source.window(data.start, data.size)


def embedded(data: bytes | Blob, room: int) -> Storage | UnexpectedOpcode:
    """The storage of `torch.storage._load_from_bytes(data)`, which a tensor pickled without torch.save calls. The bytes
    are a file in torch's format before 1.6 whose object is the storage."""
    try:
        source = embedded_file(data, room)
    except UnexpectedOpcode as odd:
        return odd
    try:
        stack = legacy.read(source, WIDTHS, PICKLE_MEMORY)
        storage = storage_of(stack.values[3])
    except (FormatError, UnsupportedError, UnexpectedOpcode) as error:
        return UnexpectedOpcode(f"its bytes aren't a storage: {error}")
    span = stack.spans.get(storage.key)
    if span is None or span.size != storage.nbytes:
        return UnexpectedOpcode("its storage has a different length")
    if isinstance(source, BytesSource) or isinstance(data, bytes):
        return replace(storage, inline=InlineBytes(source.read(0, source.size), span.start, span.size))
    return replace(storage, inline=InlineBytes(data.source, data.start + span.start, span.size))


def class_of(callee: Any) -> Global | None:
    """A name, or the class of an id ("module", class, file, source), by which files before 1.6 name a module. (torch
    also compares the source with its own.)"""
    if isinstance(callee, Persistent):
        id = callee.id
        if isinstance(id, tuple) and len(id) == 4 and isinstance(id[0], str) and id[0] == "module":
            callee = id[1]
    return callee if isinstance(callee, Global) else None


def within(t: SavedTensor) -> SavedTensor:
    """Returns the tensor after checking that it is inside its storage, without negative sizes or strides."""
    if t.offset < 0 or any(n < 0 for n in (*t.shape, *t.strides)):
        raise UnexpectedOpcode("a size, a stride or its offset is negative")
    room = t.storage.nbytes if t.storage.view is None else t.storage.view * t.storage.dtype.size
    if 0 in t.shape:
        return t
    last = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
    if (last + 1) * t.dtype.size > room:
        raise UnexpectedOpcode(f"it reaches element {last} of a storage of {room // t.dtype.size}")
    return t
