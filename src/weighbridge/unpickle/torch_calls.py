"""The calls of PyTorch's checkpoints that are understood: exact module and name, checked arguments. Each function of
the table gives what the call would: a `Tensor`, a plain value, or parts. `Odd` where the arguments are not as torch
writes them. References: torch/_utils.py, torch/_tensor.py, torch/serialization.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from weighbridge.base.dtypes import TABLE, U8, DType
from weighbridge.base.limits import DIMS
from weighbridge.unpickle.values import Dict, Global, Object, Persistent, Set, preview


class Odd(Exception):
    """A known call with arguments that torch would not write, or with a result that can't be had."""


class Storage(msgspec.Struct, frozen=True, gc=False):
    """`numel` elements of `dtype`, as its id says; an untyped one has bytes. A view (files before 1.6) is `view`
    elements from `start` on of the storage `key`."""

    key: str
    dtype: DType
    numel: int
    location: str
    start: int = 0
    view: int | None = None

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """A view: element (i, j ...) is element offset + i * strides[0] + ... of the storage, taken as `dtype`."""

    at: int
    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool = False


# ---- names ----------------------------------------------------------------------------------------------------

_DTYPES: Final = MappingProxyType({t.torch: t for t in TABLE if t.torch})
# torch.storage's classes: `torch.FloatStorage`. A quantized storage has the integers.
_CLASSES: Final = MappingProxyType(
    {
        "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
        "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
        "ComplexDouble": "complex128", "QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32",
    }
)  # fmt: skip
STORAGES: Final[Mapping[tuple[str, str], DType]] = MappingProxyType(
    {(m, f"{c}Storage"): _DTYPES[d] for c, d in _CLASSES.items() for m in ("torch", "torch.cuda")}
    | {("torch.storage", "UntypedStorage"): U8, ("torch", "UntypedStorage"): U8}
)
_TENSORS: Final = MappingProxyType({(m, n.replace("Storage", "Tensor")): d for (m, n), d in STORAGES.items()})
# Names that stand for values: harmless to import.
_SCHEMES: Final = ("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric")
_OTHER_DTYPES: Final = (
    "complex32", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "quint4x2", "quint2x4", "qint8", "quint8",
    "qint32",
    *(f"{sign}int{bits}" for bits in range(1, 8) for sign in ("", "u")),
)  # fmt: skip
_VALUES: Final = frozenset(("torch", n) for n in (*_DTYPES, *_SCHEMES, *_OTHER_DTYPES))


# ---- arguments ------------------------------------------------------------------------------------------------


def _arguments(value: Object, least: int, most: int) -> tuple[Any, ...]:
    if not isinstance(value.args, tuple) or not least <= len(value.args) <= most or value.kwargs is not None:
        count = len(value.args) if isinstance(value.args, tuple) else "no tuple of"
        raise Odd(f"{value.callee} has {count} arguments")
    return value.args


def _count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise Odd(f"{what} is {preview(value)}")
    return value


def _counts(value: Any, what: str) -> tuple[int, ...]:
    if isinstance(value, Object) and isinstance(value.callee, Global) and value.callee.path == ("torch", "Size"):
        value = _size(value)
    if not isinstance(value, tuple | list) or len(value) > DIMS:
        raise Odd(f"{what} is {preview(value)}")
    return tuple(_count(v, what) for v in value)


def _text(value: Any, what: str) -> str:
    if isinstance(value, bytes):  # written by Python 2
        value = value.decode("latin-1")
    if not isinstance(value, str):
        raise Odd(f"{what} is {preview(value)}")
    return value


def storage_of(value: Any) -> Storage:
    """The storage of a persistent id ("storage", class, key, location, numel(, view))."""
    id = value.id if isinstance(value, Persistent) else None
    if not isinstance(id, tuple) or len(id) not in (5, 6) or _text(id[0], "an id") != "storage":
        raise Odd(f"{preview(value)} is not a storage")
    kind = id[1]
    if not isinstance(kind, Global) or kind.path not in STORAGES:
        raise Odd(f"a storage's class is {preview(kind)}")
    key, place, numel = _text(id[2], "a storage's key"), _text(id[3], "its place"), _count(id[4], "its length")
    if len(id) == 5 or id[5] is None:
        return Storage(key, STORAGES[kind.path], numel, place)
    if not isinstance(id[5], tuple) or len(id[5]) != 3:
        raise Odd(f"a storage's view is {preview(id[5])}")
    start, size = _count(id[5][1], "a view's start"), _count(id[5][2], "a view's length")
    if start + size > numel:
        raise Odd("a view lies outside its storage")
    return Storage(key, STORAGES[kind.path], numel, place, start, size)


def class_of(callee: Any) -> Global | None:
    """A name; or the class of an id ("module", class, file, source), as files before 1.6 name a module. (torch compares
    the source with its own; here it is not looked at.)"""
    if isinstance(callee, Persistent):
        id = callee.id
        if isinstance(id, tuple) and len(id) == 4 and isinstance(id[0], str) and id[0] == "module":
            callee = id[1]
    return callee if isinstance(callee, Global) else None


# ---- tensors --------------------------------------------------------------------------------------------------


def _tensor(value: Object, storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    found = storage_of(storage)
    shape, strides = _counts(size, "a tensor's shape"), _counts(stride, "a tensor's strides")
    if len(shape) != len(strides):
        raise Odd(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    at = _count(offset, "a tensor's offset")
    return _within(Tensor(value.at, found, found.dtype, shape, strides, at))


def _within(t: Tensor) -> Tensor:
    """The tensor, if it lies in its storage."""
    room = t.storage.nbytes if t.storage.view is None else t.storage.view * t.storage.dtype.size
    if 0 in t.shape:
        return t
    last = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
    if (last + 1) * t.dtype.size > room:
        raise Odd(f"it reaches element {last} of a storage of {room // t.dtype.size}")
    return t


def _no_flags(flags: Any) -> None:
    """The optional last argument: {'conj': True, 'neg': True} say that the bytes are not the values."""
    if flags is None:
        return
    pairs = flags.pairs if isinstance(flags, Dict) else None
    if pairs is None:
        raise Odd(f"its flags are {preview(flags)}")
    for key, on in pairs:
        if on is not False:
            raise Odd(f"its bytes are not its values ({preview(key)}): resolve it before saving")


def _rebuild(value: Object) -> Tensor:
    return _tensor(value, *_arguments(value, 4, 4))


def _rebuild_v2(value: Object) -> Tensor:
    args = _arguments(value, 6, 7)
    _no_flags(args[6] if len(args) > 6 else None)
    return replace(_tensor(value, *args[:4]), requires_grad=args[4] is True)


def _rebuild_v3(value: Object) -> Tensor:
    args = _arguments(value, 7, 8)
    _no_flags(args[7] if len(args) > 7 else None)
    kind = args[6]
    if not isinstance(kind, Global) or kind.module != "torch" or kind.name not in _DTYPES:
        raise Odd(f"type {preview(kind)} has no equal here")
    storage, offset, size, stride = args[:4]
    shape, strides = _counts(size, "a tensor's shape"), _counts(stride, "a tensor's strides")
    if len(shape) != len(strides):
        raise Odd(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    at = _count(offset, "a tensor's offset")
    made = Tensor(value.at, storage_of(storage), _DTYPES[kind.name], shape, strides, at, args[4] is True)
    return _within(made)


def _old_tensor(value: Object) -> Tensor:
    """`torch.FloatTensor` and a state (storage, offset, size, stride)."""
    state = value.states[-1] if len(value.states) == 1 else None
    if not isinstance(state, tuple) or len(state) != 4 or value.args != ():
        raise Odd(f"{value.callee} has no state of a tensor")
    made = _tensor(value, *state)
    if isinstance(value.callee, Global) and made.storage.dtype is not _TENSORS[value.callee.path]:
        raise Odd(f"{value.callee} of a storage of {made.storage.dtype}")
    return made


def _inner(value: Any) -> Tensor:
    """The tensor that a parameter is made of. A parameter of a parameter is nothing torch writes: this never nests."""
    if isinstance(value, Object) and isinstance(value.callee, Global):
        if value.callee.path == _FROM_TYPE:
            value = _unwrapped(value)
        make = _BARE.get(value.callee.path)
        if make is not None:
            return make(value)
    raise Odd(f"a parameter of {preview(value)}")


def _parameter(value: Object) -> Tensor:
    args = _arguments(value, 3, 4)
    return replace(_inner(args[0]), at=value.at, requires_grad=args[1] is True)


def _old_parameter(value: Object) -> Tensor:
    """`torch.nn.Parameter` and a state (data, requires_grad(, hooks)); or made of its data alone."""
    state = value.states[-1] if len(value.states) == 1 else value.args
    if not isinstance(state, tuple) or not 1 <= len(state) <= 4:
        raise Odd("a parameter without data")
    return replace(_inner(state[0]), at=value.at, requires_grad=len(state) > 1 and state[1] is True)


def _from_type(value: Object) -> Any:
    """(function, type, arguments, state): a tensor with attributes, or of a subclass; its data is read."""
    made = _unwrapped(value)
    return _REBUILDS[made.callee.path](made)


def _unwrapped(value: Object) -> Object:
    function, _, args, _ = _arguments(value, 4, 4)
    if not isinstance(function, Global) or function.path not in _REBUILDS:
        raise Odd(f"a tensor that {preview(function)} makes")
    return Object(value.at, "REDUCE", function, args)


def _parts(at: int, **parts: Any) -> Dict:
    return Dict(at, [x for pair in parts.items() for x in pair])


def _quantized(value: Object) -> Dict:
    """A quantized tensor as its parts: the integers, and the scale and zero point of all or of each channel."""
    storage, offset, size, stride, scheme, *_ = _arguments(value, 6, 7)
    values = _tensor(value, storage, offset, size, stride)
    name = scheme[0].name if isinstance(scheme, tuple) and scheme and isinstance(scheme[0], Global) else None
    if name == "per_tensor_affine" and len(scheme) == 3:
        return _parts(value.at, int_repr=values, scale=scheme[1], zero_point=scheme[2])
    if isinstance(name, str) and name.startswith("per_channel_affine") and len(scheme) == 4:
        return _parts(value.at, int_repr=values, scales=scheme[1], zero_points=scheme[2], axis=scheme[3])
    raise Odd(f"a quantized tensor of scheme {preview(name)}")


def _sparse(value: Object) -> Dict:
    """A sparse tensor as its parts."""
    layout, data = _arguments(value, 2, 2)
    args = layout.args if isinstance(layout, Object) and isinstance(layout.args, tuple) else ()
    kind = args[0] if len(args) == 1 and isinstance(args[0], str) else preview(layout)
    if not isinstance(data, tuple) or not 3 <= len(data) <= 5:
        raise Odd(f"a sparse tensor of layout {kind}")
    names = ("indices", "values") if len(data) == 3 or "coo" in kind else ("compressed", "plain", "values")
    parts: dict[str, Any] = dict(zip(names, data, strict=False))
    return _parts(value.at, **parts, size=_counts(data[len(names)], "its shape"), layout=kind)


def _meta(value: Object) -> Any:
    raise Odd("it was saved without data (device meta)")


# ---- plain values ---------------------------------------------------------------------------------------------


def _pairs(value: Object) -> Dict:
    """A dict of some class: made of pairs or of another dict, then filled."""
    args = value.args if isinstance(value.args, tuple) else ()
    flat: list[Any] = []
    for arg in args:
        if isinstance(arg, Dict):
            flat += arg.flat
        elif isinstance(arg, list | tuple):
            flat += [x for p in arg if isinstance(p, list | tuple) and len(p) == 2 for x in p]
    flat += value.flat
    # A state beyond torch's own `_metadata` (versions of modules) is walked as attributes would be.
    for state in value.states:
        if isinstance(state, Dict):
            flat += [x for pair in state.pairs if pair[0] != "_metadata" for x in pair]
    return Dict(value.at, flat)


def _items(value: Object) -> list[Any]:
    args = _arguments(value, 0, 1)
    held = args[0] if args else ()
    if isinstance(held, Set):
        held = held.items
    if not isinstance(held, list | tuple):
        raise Odd(f"{value.callee} of {preview(held)}")
    return [*held, *value.items]


def _size(value: Object) -> tuple[Any, ...]:
    return tuple(_items(value))


def _encoded(value: Object) -> bytes:
    """`_codecs.encode(text, "latin1")`: how protocol 2 writes bytes."""
    text, *codec = _arguments(value, 1, 2)
    if not isinstance(text, str) or codec not in (["latin1"], ["latin-1"]):
        raise Odd(f"{value.callee} of {preview(text)}")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise Odd("text is not of bytes") from None


def _described(value: Object) -> str:
    """A device: `cuda:0`."""
    return ":".join(str(a) for a in _arguments(value, 1, 2) if isinstance(a, str | int) and not isinstance(a, bool))


def _nothing(value: Object) -> None:
    """A value that is no tensor and is not kept (a complex number, a layout)."""


def _reconstructed(value: Object) -> Object:
    """`copy_reg._reconstructor(class, object, None)`: an object of a class, by protocols 0 and 1."""
    cls, *_ = _arguments(value, 3, 3)
    made = Object(value.at, "NEWOBJ", cls, ())
    made.states, made.items, made.flat = value.states, value.items, value.flat
    return made


_T: Final = "torch._utils"
_FROM_TYPE: Final = ("torch._tensor", "_rebuild_from_type_v2")
_BARE: Final[Mapping[tuple[str, str], Callable[[Object], Tensor]]] = MappingProxyType(
    {
        (_T, "_rebuild_tensor"): _rebuild,
        (_T, "_rebuild_tensor_v2"): _rebuild_v2,
        (_T, "_rebuild_tensor_v3"): _rebuild_v3,
        **dict.fromkeys(_TENSORS, _old_tensor),
    }
)
_REBUILDS: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = MappingProxyType(
    {
        **{path: make for path, make in _BARE.items() if path not in _TENSORS},
        (_T, "_rebuild_parameter"): _parameter,
        (_T, "_rebuild_parameter_with_state"): _parameter,
        (_T, "_rebuild_qtensor"): _quantized,
        (_T, "_rebuild_sparse_tensor"): _sparse,
        (_T, "_rebuild_meta_tensor_no_storage"): _meta,
    }
)
_BUILTINS: Final = ("builtins", "__builtin__")
_COPYING: Final = ("copyreg", "copy_reg")

#: Calls that are understood.
KNOWN: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = MappingProxyType(
    {
        **_REBUILDS,
        _FROM_TYPE: _from_type,
        ("torch.serialization", "_get_layout"): _nothing,
        **dict.fromkeys(_TENSORS, _old_tensor),
        ("torch.nn.parameter", "Parameter"): _old_parameter,
        ("torch", "Size"): _size,
        ("torch", "device"): _described,
        ("collections", "OrderedDict"): _pairs,
        ("collections", "defaultdict"): _pairs,
        ("collections", "Counter"): _pairs,
        ("_codecs", "encode"): _encoded,
        **{(m, "dict"): _pairs for m in _BUILTINS},
        **{(m, n): _items for m in _BUILTINS for n in ("set", "frozenset", "list", "tuple")},
        **{(m, "complex"): _nothing for m in _BUILTINS},
        **{(m, "bytearray"): _nothing for m in _BUILTINS},
        **{(m, "_reconstructor"): _reconstructed for m in _COPYING},
    }
)
#: Names that may be imported without a remark: the calls, and names that stand for values.
CLASSES: Final = frozenset({("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch._tensor", "Tensor")})
NAMES: Final = frozenset({*KNOWN, *STORAGES, *_VALUES, *CLASSES, *((m, "object") for m in _BUILTINS),
                          *((m, n) for m in _BUILTINS for n in ("int", "float", "str", "bool", "bytes"))})  # fmt: skip


# What may be done to the result of a known call: its state set, items added, pairs set. Anything else (SETITEM on a
# tensor was CVE-2026-24747) is nothing torch writes.
_DONE: Final[Mapping[Callable[[Object], Any], tuple[str, ...]]] = MappingProxyType(
    {
        _pairs: ("states", "pairs"),
        _items: ("items",),
        _old_tensor: ("states",),
        _old_parameter: ("states",),
        _reconstructed: ("states", "items", "pairs"),
    }
)


def _check_untouched(value: Object, known: Callable[[Object], Any]) -> None:
    allowed = _DONE.get(known, ())
    for what, done in (("states", value.states), ("items", value.items), ("pairs", value.flat)):
        if done and what not in allowed:
            raise Odd(f"the result of {value.callee} is changed after it was made")


def interpret(value: Any) -> Any:
    """What a record stands for: a `Tensor`, a plain value, parts; itself where it is not known. Odd where a known call
    is not as torch writes it."""
    if isinstance(value, Global):
        return str(value) if value.path in _VALUES else None
    if not isinstance(value, Object) or not isinstance(value.callee, Global):
        return value if isinstance(value, Object) else None
    known = KNOWN.get(value.callee.path)
    if known is None:
        return value
    _check_untouched(value, known)
    return known(value)
