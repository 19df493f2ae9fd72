"""The calls of PyTorch's checkpoints that are understood: exact module and name, checked arguments. Each function of
the table returns what the call would: a `SavedTensor`, a plain value, or parts. It raises `UnexpectedOpcode` for
arguments that torch doesn't write. References: torch/_utils.py, torch/_tensor.py, torch/serialization.py of torch 2.13.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from weighbridge.unpickle.libraries import numpy as numpy_calls
from weighbridge.unpickle.libraries.numpy import Array
from weighbridge.unpickle.libraries.torch_types import (
    COMPLEX,
    DTYPES,
    PLAIN,
    SIGNED,
    STORAGES,
    TENSORS,
    VALUES,
    InlineBytes,
    SavedTensor,
    Storage,
    arguments,
    count,
    counts,
    items,
    storage_of,
    within,
)
from weighbridge.unpickle.values import Dict, Global, Object, UnexpectedOpcode, preview

# ---- tensors --------------------------------------------------------------------------------------------------


def _tensor(value: Object, storage: Any, offset: Any, size: Any, stride: Any) -> SavedTensor:
    found = storage_of(storage)
    shape, strides = counts(size, "a tensor's shape"), counts(stride, "a tensor's strides")
    if len(shape) != len(strides):
        raise UnexpectedOpcode(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    at = count(offset, "a tensor's offset")
    return within(SavedTensor(value.at, found, found.dtype, shape, strides, at))


def _flags(flags: Any) -> tuple[str, ...]:
    """The optional last argument: {'conj': True, 'neg': True} say that the bytes are not the values."""
    if flags is None:
        return ()
    if not isinstance(flags, Dict):
        raise UnexpectedOpcode(f"its flags are {preview(flags)}")
    for key, on in flags.pairs:
        if key not in ("conj", "neg") or not isinstance(on, bool):
            raise UnexpectedOpcode(f"it has a flag {preview(key)}: {preview(on)}")
    return tuple(sorted({key for key, on in dict(flags.pairs).items() if on}))


def _rebuild(value: Object) -> SavedTensor:
    return _tensor(value, *arguments(value, 4, 4))


def _rebuild_v2(value: Object) -> SavedTensor:
    args = arguments(value, 6, 7)
    flags = _flags(args[6] if len(args) > 6 else None)
    return _marked(_tensor(value, *args[:4]), args[4], flags)


def _marked(made: SavedTensor, requires_grad: Any, flags: tuple[str, ...]) -> SavedTensor:
    if requires_grad is not True and not flags:
        return made
    if ("conj" in flags and made.dtype.name not in COMPLEX) or ("neg" in flags and made.dtype.name not in SIGNED):
        raise UnexpectedOpcode(f"{made.dtype} can't be {' or '.join(flags)}")
    return replace(made, requires_grad=requires_grad is True, flags=flags)


def _rebuild_v3(value: Object) -> SavedTensor:
    args = arguments(value, 7, 8)
    flags = _flags(args[7] if len(args) > 7 else None)
    kind = args[6]
    name = kind.name if isinstance(kind, Global) and kind.module == "torch" else ""
    if name not in DTYPES and name not in PLAIN:
        raise UnexpectedOpcode(f"type {preview(kind)} has no equal here")
    storage, offset, size, stride = args[:4]
    shape, strides = counts(size, "a tensor's shape"), counts(stride, "a tensor's strides")
    if len(shape) != len(strides):
        raise UnexpectedOpcode(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    at = count(offset, "a tensor's offset")
    if name == "complex32":  # real and imaginary parts as a last axis, as torch.view_as_real has them
        shape, strides, at = (*shape, 2), (*(2 * s for s in strides), 1), 2 * at
    dtype = DTYPES[PLAIN.get(name, name)]
    return _marked(within(SavedTensor(value.at, storage_of(storage), dtype, shape, strides, at)), args[4], flags)


def _old_tensor(value: Object) -> SavedTensor:
    """`torch.FloatTensor` and a state (storage, offset, size, stride)."""
    state = value.states[-1] if len(value.states) == 1 else None
    if not isinstance(state, tuple) or len(state) != 4 or value.args != ():
        raise UnexpectedOpcode(f"{value.callee} has no state of a tensor")
    made = _tensor(value, *state)
    if isinstance(value.callee, Global) and made.storage.dtype is not TENSORS[value.callee.path]:
        raise UnexpectedOpcode(f"{value.callee} of a storage of {made.storage.dtype}")
    return made


def _inner(value: Any) -> SavedTensor:
    """The tensor that a parameter is made of. A parameter of a parameter is nothing torch writes: this never nests."""
    if isinstance(value, Object) and isinstance(value.callee, Global):
        if value.callee.path == _FROM_TYPE:
            value = _unwrapped(value)
        make = _BARE.get(value.callee.path)
        if make is not None:
            return make(value)
    raise UnexpectedOpcode(f"a parameter of {preview(value)}")


def _parameter(value: Object) -> SavedTensor:
    args = arguments(value, 3, 4)
    return replace(_inner(args[0]), at=value.at, requires_grad=args[1] is True)


def _old_parameter(value: Object) -> SavedTensor:
    """`torch.nn.Parameter` and a state (data, requires_grad(, hooks)); or made of its data alone."""
    state = value.states[-1] if len(value.states) == 1 else value.args
    if not isinstance(state, tuple) or not 1 <= len(state) <= 4:
        raise UnexpectedOpcode("a parameter without data")
    return replace(_inner(state[0]), at=value.at, requires_grad=len(state) > 1 and state[1] is True)


def _from_type(value: Object) -> Any:
    """(function, type, arguments, state): a tensor with attributes, or of a subclass; its data is read."""
    made = _unwrapped(value)
    return _REBUILDS[made.callee.path](made)


def _unwrapped(value: Object) -> Object:
    function, _, args, _ = arguments(value, 4, 4)
    if not isinstance(function, Global) or function.path not in _REBUILDS:
        raise UnexpectedOpcode(f"a tensor that {preview(function)} makes")
    return Object(value.at, "REDUCE", function, args)


def _parts(at: int, **parts: Any) -> Dict:
    return Dict(at, [x for pair in parts.items() for x in pair])


def _quantized(value: Object) -> Dict:
    """A quantized tensor as its parts: the integers, and the scale and zero point of all or of each channel."""
    storage, offset, size, stride, scheme, *_ = arguments(value, 6, 7)
    values = _tensor(value, storage, offset, size, stride)
    name = scheme[0].name if isinstance(scheme, tuple) and scheme and isinstance(scheme[0], Global) else None
    if name == "per_tensor_affine" and len(scheme) == 3:
        return _parts(value.at, int_repr=values, scale=scheme[1], zero_point=scheme[2])
    if isinstance(name, str) and name.startswith("per_channel_affine") and len(scheme) == 4:
        return _parts(value.at, int_repr=values, scales=scheme[1], zero_points=scheme[2], axis=scheme[3])
    raise UnexpectedOpcode(f"a quantized tensor of scheme {preview(name)}")


def _sparse(value: Object) -> Dict:
    """A sparse tensor as its parts."""
    layout, data = arguments(value, 2, 2)
    args = layout.args if isinstance(layout, Object) and isinstance(layout.args, tuple) else ()
    kind = args[0] if len(args) == 1 and isinstance(args[0], str) else preview(layout)
    if not isinstance(data, tuple) or not 3 <= len(data) <= 5:
        raise UnexpectedOpcode(f"a sparse tensor of layout {kind}")
    names = ("indices", "values") if len(data) == 3 or "coo" in kind else ("compressed", "plain", "values")
    parts: dict[str, Any] = dict(zip(names, data, strict=False))
    return _parts(value.at, **parts, size=counts(data[len(names)], "its shape"), layout=kind)


def _meta(value: Object) -> Any:
    raise UnexpectedOpcode("it was saved without data (device meta)")


def _array(found: Array) -> SavedTensor:
    data, shape = found.data, found.shape
    if isinstance(data, bytes):
        kept = InlineBytes(data, 0, len(data), turned=found.big)
    else:
        kept = InlineBytes(data.source, data.start, data.size, data.codec, found.big)
    storage = Storage("", found.dtype, math.prod(shape), "cpu", kept=kept)
    steps = list(itertools.accumulate(shape[:-1] if found.fortran else shape[:0:-1], operator.mul, initial=1))
    strides = tuple(steps if found.fortran else reversed(steps)) if shape else ()
    return SavedTensor(found.at, storage, found.dtype, shape, strides, 0)


def _numpy(make: Callable[[Object], Any]) -> Callable[[Object], Any]:
    def call(value: Object) -> Any:
        made = make(value)
        return _array(made) if isinstance(made, Array) else made

    return call


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


def _size(value: Object) -> tuple[Any, ...]:
    return tuple(items(value))


def _encoded(value: Object) -> bytes:
    """`_codecs.encode(text, "latin1")`: how protocol 2 writes bytes."""
    text, *codec = arguments(value, 1, 2)
    if not isinstance(text, str) or codec not in (["latin1"], ["latin-1"]):
        raise UnexpectedOpcode(f"{value.callee} of {preview(text)}")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise UnexpectedOpcode("text is not of bytes") from None


def _described(value: Object) -> str:
    """A device: `cuda:0`."""
    return ":".join(str(a) for a in arguments(value, 1, 2) if isinstance(a, str | int) and not isinstance(a, bool))


def _nothing(value: Object) -> None:
    """A value that is no tensor and is not kept (a complex number, a layout)."""


def _tagged(value: Object) -> Any:
    """`restore_type_tag(value, "Dict[str, Tensor]")`: TorchScript's word for a container's type."""
    kept, _ = arguments(value, 2, 2)
    return kept


def _embedded_alone(value: Object) -> SavedTensor:
    """A storage that is no tensor's: its elements."""
    found = storage_of(value)
    return SavedTensor(value.at, found, found.dtype, (found.numel,), (1,), 0)


def _reconstructed(value: Object) -> Object:
    """`copy_reg._reconstructor(class, object, None)`: an object of a class, by protocols 0 and 1."""
    cls, *_ = arguments(value, 3, 3)
    made = Object(value.at, "NEWOBJ", cls, ())
    made.states, made.items, made.flat = value.states, value.items, value.flat
    return made


_T: Final = "torch._utils"
_FROM_TYPE: Final = ("torch._tensor", "_rebuild_from_type_v2")
_BARE: Final[Mapping[tuple[str, str], Callable[[Object], SavedTensor]]] = MappingProxyType(
    {
        (_T, "_rebuild_tensor"): _rebuild,
        (_T, "_rebuild_tensor_v2"): _rebuild_v2,
        (_T, "_rebuild_tensor_v3"): _rebuild_v3,
        **dict.fromkeys(TENSORS, _old_tensor),
    }
)
_REBUILDS: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = MappingProxyType(
    {
        **{path: make for path, make in _BARE.items() if path not in TENSORS},
        (_T, "_rebuild_parameter"): _parameter,
        (_T, "_rebuild_parameter_with_state"): _parameter,
        (_T, "_rebuild_qtensor"): _quantized,
        (_T, "_rebuild_sparse_tensor"): _sparse,
        (_T, "_rebuild_meta_tensor_no_storage"): _meta,
    }
)
EMBEDDED: Final = ("torch.storage", "_load_from_bytes")
_BUILTINS: Final = ("builtins", "__builtin__")
_COPYING: Final = ("copyreg", "copy_reg")

#: Calls that are understood.
KNOWN: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = MappingProxyType(
    {
        **_REBUILDS,
        _FROM_TYPE: _from_type,
        ("torch.serialization", "_get_layout"): _nothing,
        **dict.fromkeys(TENSORS, _old_tensor),
        ("torch.nn.parameter", "Parameter"): _old_parameter,
        ("torch", "Size"): _size,
        ("torch", "device"): _described,
        ("collections", "OrderedDict"): _pairs,
        ("collections", "defaultdict"): _pairs,
        ("collections", "Counter"): _pairs,
        ("_codecs", "encode"): _encoded,
        **{(m, "dict"): _pairs for m in _BUILTINS},
        **{(m, n): items for m in _BUILTINS for n in ("set", "frozenset", "list", "tuple")},
        **{(m, "complex"): _nothing for m in _BUILTINS},
        **{(m, "bytearray"): _nothing for m in _BUILTINS},
        **{(m, "_reconstructor"): _reconstructed for m in _COPYING},
        **{path: _numpy(make) for path, make in numpy_calls.CALLS.items()},
        **{("torch.jit._pickle", f"build_{kind}"): items for kind in ("intlist", "doublelist", "boollist")},
        ("torch.jit._pickle", "build_tensorlist"): items,
        ("torch.jit._pickle", "restore_type_tag"): _tagged,
        EMBEDDED: _embedded_alone,
    }
)
#: Names that may be imported without a remark: the calls, and names that stand for values.
CLASSES: Final = frozenset(
    {("torch", "Tensor"), ("numpy", "ndarray"), ("torch.nn.parameter", "Parameter"), ("torch._tensor", "Tensor")}
)
NAMES: Final = frozenset({*KNOWN, *STORAGES, *VALUES, *CLASSES, *((m, "object") for m in _BUILTINS),
                          *((m, n) for m in _BUILTINS for n in ("int", "float", "str", "bool", "bytes"))})  # fmt: skip


# What may be done to the result of a known call: its state set, items added, pairs set. Anything else (SETITEM on a
# tensor was CVE-2026-24747) is nothing torch writes.
_CHANGES: Final[Mapping[Callable[[Object], Any], tuple[str, ...]]] = MappingProxyType(
    {
        _pairs: ("states", "pairs"),
        items: ("items",),
        _old_tensor: ("states",),
        _old_parameter: ("states",),
        _reconstructed: ("states", "items", "pairs"),
    }
)
_DONE: Final[Mapping[tuple[str, str], tuple[str, ...]]] = MappingProxyType(
    {
        **{path: _CHANGES[make] for path, make in KNOWN.items() if make in _CHANGES},
        **{path: ("states",) for path in numpy_calls.CALLS if path[1] in ("_reconstruct", "dtype")},
    }
)


def _check_untouched(value: Object, path: tuple[str, str]) -> None:
    allowed = _DONE.get(path, ())
    for what, done in (("states", value.states), ("items", value.items), ("pairs", value.flat)):
        if done and what not in allowed:
            raise UnexpectedOpcode(f"the result of {value.callee} is changed after it was made")


def interpret(value: Any) -> Any:
    """What a record stands for: a `SavedTensor`, a plain value, parts; itself if unknown. UnexpectedOpcode for a known
    call that torch doesn't write."""
    if isinstance(value, Global):
        return str(value) if value.path in VALUES else None
    if not isinstance(value, Object) or not isinstance(value.callee, Global):
        return value if isinstance(value, Object) else None
    known = KNOWN.get(value.callee.path)
    if known is None:
        return value
    _check_untouched(value, value.callee.path)
    return known(value)
