"""What PyTorch's checkpoints are made of: storages and tensors as their pickles name them, the names of types, and
checks of arguments. `UnexpectedOpcode` where they are not as torch writes them. References: torch/serialization.py,
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
    """Bytes that the pickle itself holds: in a source from `start` on, or in memory. `codec`: of the text that they are
    written as; `turned`: the byte order is that of big machines."""

    data: bytes | Source
    start: int
    size: int
    codec: str = ""
    turned: bool = False


class Storage(msgspec.Struct, frozen=True, gc=False):
    """`numel` elements of `dtype`, as its id says; an untyped one has bytes. A view (files before 1.6) is `view`
    elements from `start` on of the storage `key`. `kept`: the bytes, where the pickle holds them."""

    key: str
    dtype: DType
    numel: int
    location: str
    start: int = 0
    view: int | None = None
    kept: InlineBytes | None = None

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


class SavedTensor(msgspec.Struct, frozen=True, gc=False):
    """A view: element (i, j ...) is element offset + i * strides[0] + ... of the storage, taken as `dtype`."""

    at: int
    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool = False
    flags: tuple[str, ...] = ()  # "conj", "neg": the values are those of the bytes conjugated, negated


# ---- names ----------------------------------------------------------------------------------------------------

DTYPES: Final = MappingProxyType({t.torch: t for t in TABLE if t.torch})
# torch.storage's classes: `torch.FloatStorage`. A quantized storage has the integers.
_CLASSES: Final = MappingProxyType(
    {
        "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
        "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
        "ComplexDouble": "complex128", "QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32",
    }
)  # fmt: skip
STORAGES: Final[Mapping[tuple[str, str], DType]] = MappingProxyType(
    {(m, f"{c}Storage"): DTYPES[d] for c, d in _CLASSES.items() for m in ("torch", "torch.cuda")}
    | {("torch.storage", "UntypedStorage"): U8, ("torch", "UntypedStorage"): U8}
)
#: The storage class that torch writes for a type; types that came later have none and lie in an UntypedStorage.
CLASS_OF: Final[Mapping[DType, str]] = MappingProxyType(
    {DTYPES[d]: f"{c}Storage" for c, d in _CLASSES.items() if not c.startswith("Q")}
)
WIDTHS: Final = MappingProxyType({path: t.size for path, t in STORAGES.items()})
TENSORS: Final = MappingProxyType({(m, n.replace("Storage", "Tensor")): d for (m, n), d in STORAGES.items()})
# Names that stand for values: harmless to import.
_SCHEMES: Final = ("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric")
# Types that torch itself hardly computes with: their elements as they lie in memory.
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


def count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise UnexpectedOpcode(f"{what} is {preview(value)}")
    return value


def items(value: Object) -> list[Any]:
    args = arguments(value, 0, 1)
    kept = args[0] if args else ()
    if isinstance(kept, Set):
        kept = kept.items
    if not isinstance(kept, list | tuple):
        raise UnexpectedOpcode(f"{value.callee} of {preview(kept)}")
    return [*kept, *value.items]


def counts(value: Any, what: str) -> tuple[int, ...]:
    if isinstance(value, Object) and isinstance(value.callee, Global) and value.callee.path == ("torch", "Size"):
        value = tuple(items(value))
    if not isinstance(value, tuple | list) or len(value) > DIMS:
        raise UnexpectedOpcode(f"{what} is {preview(value)}")
    return tuple(count(v, what) for v in value)


def text(value: Any, what: str) -> str:
    if isinstance(value, bytes):  # written by Python 2
        value = value.decode("latin-1")
    if not isinstance(value, str):
        raise UnexpectedOpcode(f"{what} is {preview(value)}")
    return value


def storage_of(value: Any) -> Storage:
    """The storage of a persistent id ("storage", class, key, location, numel(, view)); one that was pickled whole."""
    if isinstance(value, Object) and isinstance(value.meaning, Storage | UnexpectedOpcode):
        if isinstance(value.meaning, UnexpectedOpcode):
            raise value.meaning
        return value.meaning
    id = value.id if isinstance(value, Persistent) else None
    if not isinstance(id, tuple) or len(id) not in (5, 6) or text(id[0], "an id") != "storage":
        raise UnexpectedOpcode(f"{preview(value)} is not a storage")
    kind = id[1]
    if not isinstance(kind, Global) or kind.path not in STORAGES:
        raise UnexpectedOpcode(f"a storage's class is {preview(kind)}")
    key, place, numel = text(id[2], "a storage's key"), text(id[3], "its place"), count(id[4], "its length")
    if len(id) == 5 or id[5] is None:
        return Storage(key, STORAGES[kind.path], numel, place)
    if not isinstance(id[5], tuple) or len(id[5]) != 3:
        raise UnexpectedOpcode(f"a storage's view is {preview(id[5])}")
    start, size = count(id[5][1], "a view's start"), count(id[5][2], "a view's length")
    if start + size > numel:
        raise UnexpectedOpcode("a view lies outside its storage")
    return Storage(key, STORAGES[kind.path], numel, place, start, size)


def embedded(data: bytes | Blob, room: int) -> Storage | UnexpectedOpcode:
    """The storage of `torch.storage._load_from_bytes(data)`: how a tensor is pickled without torch.save. The bytes are
    a file as torch wrote before 1.6 whose object is the storage. Text is decoded while there is `room` for it."""
    if isinstance(data, Blob) and data.codec:
        if room < 0:
            return UnexpectedOpcode("bytes that are written as text take too much memory")
        try:
            data = data.source.read(data.start, data.size).decode().encode("latin-1")
        except UnicodeError:
            return UnexpectedOpcode("its text is not of bytes")
    source = BytesSource(data) if isinstance(data, bytes) else data.source.window(data.start, data.size)
    try:
        stack = legacy.read(source, WIDTHS, PICKLE_MEMORY)
        found = storage_of(stack.values[3])
    except (FormatError, UnsupportedError, UnexpectedOpcode) as error:
        return UnexpectedOpcode(f"the bytes that it is made of are no storage: {error}")
    span = stack.spans.get(found.key)
    if span is None or span.size != found.nbytes:
        return UnexpectedOpcode("the storage that it is made of has another length")
    if isinstance(data, bytes):
        return replace(found, kept=InlineBytes(data, span.start, span.size))
    return replace(found, kept=InlineBytes(data.source, data.start + span.start, span.size))


def class_of(callee: Any) -> Global | None:
    """A name; or the class of an id ("module", class, file, source), as files before 1.6 name a module. (torch compares
    the source with its own; it makes no difference here.)"""
    if isinstance(callee, Persistent):
        id = callee.id
        if isinstance(id, tuple) and len(id) == 4 and isinstance(id[0], str) and id[0] == "module":
            callee = id[1]
    return callee if isinstance(callee, Global) else None


def within(t: SavedTensor) -> SavedTensor:
    """The tensor, if it lies in its storage and nothing of it is negative."""
    if t.offset < 0 or any(n < 0 for n in (*t.shape, *t.strides)):
        raise UnexpectedOpcode("a size, a stride or its offset is negative")
    room = t.storage.nbytes if t.storage.view is None else t.storage.view * t.storage.dtype.size
    if 0 in t.shape:
        return t
    last = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
    if (last + 1) * t.dtype.size > room:
        raise UnexpectedOpcode(f"it reaches element {last} of a storage of {room // t.dtype.size}")
    return t
