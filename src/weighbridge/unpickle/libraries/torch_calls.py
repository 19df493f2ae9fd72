"""The known calls of PyTorch's checkpoints: exact module and name, checked arguments. Each function of the table
returns the result of a call: a `SavedTensor`, a plain value, or parts. It raises `UnexpectedOpcode` for arguments that
torch doesn't write. References: torch/_utils.py, torch/_tensor.py, torch/serialization.py of torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from weighbridge.base.spec import c_strides
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


def _tensor(value: Object, storage: Any, offset: Any, size: Any, stride: Any, type_name: str = "") -> SavedTensor:
    """A view of a storage. `type_name`: torch's name of its type, if it isn't the storage's."""
    typed = storage_of(storage)
    shape, strides = counts(size, "a tensor's shape"), counts(stride, "a tensor's strides")
    if len(shape) != len(strides):
        raise UnexpectedOpcode(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    at = count(offset, "a tensor's offset")
    if type_name == "complex32":  # real and imaginary parts as a last axis, like torch.view_as_real
        shape, strides, at = (*shape, 2), (*(2 * s for s in strides), 1), 2 * at
    dtype = DTYPES[PLAIN.get(type_name, type_name)] if type_name else typed.dtype
    return within(SavedTensor(value.at, typed, dtype, shape, strides, at))


def _flags(flags: Any) -> tuple[str, ...]:
    """The optional last argument, {'conj': True, 'neg': True}: the values are the stored ones conjugated, negated."""
    if flags is None:
        return ()
    if not isinstance(flags, Dict):
        raise UnexpectedOpcode(f"its flags are {preview(flags)}")
    for key, on in flags.pairs:
        if key not in ("conj", "neg") or not isinstance(on, bool):
            raise UnexpectedOpcode(f"it has a flag {preview(key)}: {preview(on)}")
    return tuple(sorted({key for key, on in dict(flags.pairs).items() if on}))


def _rebuild_v2(value: Object) -> SavedTensor:
    args = arguments(value, 6, 7)
    flags = _flags(args[6] if len(args) > 6 else None)
    return _with_flags(_tensor(value, *args[:4]), args[4], flags)


def _with_flags(tensor: SavedTensor, requires_grad: Any, flags: tuple[str, ...]) -> SavedTensor:
    if requires_grad is not True and not flags:
        return tensor
    if ("conj" in flags and tensor.dtype.name not in COMPLEX) or ("neg" in flags and tensor.dtype.name not in SIGNED):
        raise UnexpectedOpcode(f"{tensor.dtype} can't be {' or '.join(flags)}")
    return replace(tensor, requires_grad=requires_grad is True, flags=flags)


def _rebuild_v3(value: Object) -> SavedTensor:
    args = arguments(value, 7, 8)
    flags = _flags(args[7] if len(args) > 7 else None)
    kind = args[6]
    name = kind.name if isinstance(kind, Global) and kind.module == "torch" else ""
    if name not in DTYPES and name not in PLAIN:
        raise UnexpectedOpcode(f"type {preview(kind)} is unsupported")
    storage, offset, size, stride = args[:4]
    return _with_flags(_tensor(value, storage, offset, size, stride, name), args[4], flags)


def _old_tensor(value: Object) -> SavedTensor:
    """`torch.FloatTensor` and a state (storage, offset, size, stride)."""
    state = value.states[-1] if len(value.states) == 1 else None
    if not isinstance(state, tuple) or len(state) != 4 or value.args != ():
        raise UnexpectedOpcode(f"{value.callee} has no state of a tensor")
    tensor = _tensor(value, *state)
    if isinstance(value.callee, Global) and tensor.storage.dtype is not TENSORS[value.callee.path]:
        raise UnexpectedOpcode(f"{value.callee} of a storage of {tensor.storage.dtype}")
    return tensor


def _inner(value: Any) -> SavedTensor:
    """The data of a parameter. torch never writes a parameter of a parameter, so this doesn't nest."""
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
    """`torch.nn.Parameter` with a state (data, requires_grad(, hooks)), or called with its data only."""
    state = value.states[-1] if len(value.states) == 1 else value.args
    if not isinstance(state, tuple) or not 1 <= len(state) <= 4:
        raise UnexpectedOpcode("a parameter without data")
    return replace(_inner(state[0]), at=value.at, requires_grad=len(state) > 1 and state[1] is True)


def _from_type(value: Object) -> Any:
    """(function, type, arguments, state): a tensor of a subclass or with attributes, read as its data."""
    call = _unwrapped(value)
    return _REBUILDS[call.callee.path](call)


def _unwrapped(value: Object) -> Object:
    function, _, args, _ = arguments(value, 4, 4)
    if not isinstance(function, Global) or function.path not in _REBUILDS:
        raise UnexpectedOpcode(f"a tensor of {preview(function)}")
    return Object(value.at, "REDUCE", function, args)


def _parts(at: int, **parts: Any) -> Dict:
    return Dict(at, [x for pair in parts.items() for x in pair])


def _quantized(value: Object) -> Dict:
    """A quantized tensor as its parts: the integers, and a scale and zero point per tensor or per channel."""
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


def _numpy(interpret: Callable[[Object], Any]) -> Callable[[Object], Any]:
    """A call of NumPy's, whose arrays become tensors."""

    def call(value: Object) -> Any:
        array = interpret(value)
        if not isinstance(array, Array):
            return array
        data, shape = array.data, array.shape
        if isinstance(data, bytes):
            inline = InlineBytes(data, 0, len(data), big_endian=array.big)
        else:
            inline = InlineBytes(data.source, data.start, data.size, data.codec, array.big)
        storage = Storage("", array.dtype, math.prod(shape), "cpu", inline=inline)
        strides = c_strides(shape[::-1])[::-1] if array.fortran else c_strides(shape)
        return SavedTensor(array.at, storage, array.dtype, shape, strides, 0)

    return call


# ---- plain values ---------------------------------------------------------------------------------------------


def _pairs(value: Object) -> Dict:
    """A dict or subclass, called with pairs or a dict, then filled."""
    args = value.args if isinstance(value.args, tuple) else ()
    flat: list[Any] = []
    for arg in args:
        if isinstance(arg, Dict):
            flat += arg.flat
        elif isinstance(arg, list | tuple):
            flat += [x for p in arg if isinstance(p, list | tuple) and len(p) == 2 for x in p]
    flat += value.flat
    # A state other than torch's `_metadata` (versions of modules) is walked like attributes.
    for state in value.states:
        if isinstance(state, Dict):
            flat += [x for pair in state.pairs if pair[0] != "_metadata" for x in pair]
    return Dict(value.at, flat)


def _encoded(value: Object) -> bytes:
    """`_codecs.encode(text, "latin1")`, by which protocol 2 writes bytes."""
    text, *codec = arguments(value, 1, 2)
    if not isinstance(text, str) or codec not in (["latin1"], ["latin-1"]):
        raise UnexpectedOpcode(f"{value.callee} of {preview(text)}")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise UnexpectedOpcode("text doesn't encode bytes") from None


def _device(value: Object) -> str:
    """A device: `cuda:0`."""
    return ":".join(str(a) for a in arguments(value, 1, 2) if isinstance(a, str | int) and not isinstance(a, bool))


def _nothing(value: Object) -> None:
    """A value that is dropped (a complex number, a layout)."""


def _embedded_storage(value: Object) -> SavedTensor:
    """The elements of a storage that no tensor uses."""
    storage = storage_of(value)
    return SavedTensor(value.at, storage, storage.dtype, (storage.numel,), (1,), 0)


def _reconstructed(value: Object) -> Object:
    """`copy_reg._reconstructor(class, object, None)`: an object of a class, by protocols 0 and 1."""
    cls, *_ = arguments(value, 3, 3)
    new = Object(value.at, "NEWOBJ", cls, ())
    new.states, new.items, new.flat = value.states, value.items, value.flat
    return new


_T: Final = "torch._utils"
_FROM_TYPE: Final = ("torch._tensor", "_rebuild_from_type_v2")
_BARE: Final[Mapping[tuple[str, str], Callable[[Object], SavedTensor]]] = MappingProxyType(
    {
        (_T, "_rebuild_tensor"): lambda value: _tensor(value, *arguments(value, 4, 4)),
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

#: The known calls.
KNOWN: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = MappingProxyType(
    {
        **_REBUILDS,
        _FROM_TYPE: _from_type,
        ("torch.serialization", "_get_layout"): _nothing,
        **dict.fromkeys(TENSORS, _old_tensor),
        ("torch.nn.parameter", "Parameter"): _old_parameter,
        ("torch", "Size"): lambda value: tuple(items(value)),
        ("torch", "device"): _device,
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
        # restore_type_tag(value, "Dict[str, Tensor]"): TorchScript's name for a container's type
        ("torch.jit._pickle", "restore_type_tag"): lambda value: arguments(value, 2, 2)[0],
        EMBEDDED: _embedded_storage,
        # the stage of ZeRO, an enum of DeepSpeed
        ("deepspeed.runtime.zero.config", "ZeroStageEnum"): lambda value: count(arguments(value, 1, 1)[0], "a stage"),
    }
)
# DeepSpeed's objects next to an optimizer's state: numbers in attributes.
_DEEPSPEED: Final = (
    *(("deepspeed.runtime.fp16.loss_scaler", name) for name in ("LossScaler", "DynamicLossScaler")),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
)
#: Names that may be imported without a remark: the calls, and names of values.
CLASSES: Final = frozenset(
    {("torch", "Tensor"), ("numpy", "ndarray"), ("torch.nn.parameter", "Parameter"), ("torch._tensor", "Tensor")}
    | {*_DEEPSPEED}
)
NAMES: Final = frozenset({*KNOWN, *STORAGES, *VALUES, *CLASSES, *((m, "object") for m in _BUILTINS),
                          *((m, n) for m in _BUILTINS for n in ("int", "float", "str", "bool", "bytes"))})  # fmt: skip


# Allowed changes of a known call's result: a state set, items added, pairs set. torch writes no others (SETITEM on a
# tensor was CVE-2026-24747).
_CHANGES: Final[Mapping[Callable[[Object], Any], tuple[str, ...]]] = MappingProxyType(
    {
        _pairs: ("states", "pairs"),
        items: ("items",),
        _old_tensor: ("states",),
        _old_parameter: ("states",),
        _reconstructed: ("states", "items", "pairs"),
    }
)
_ALLOWED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = MappingProxyType(
    {
        **{path: _CHANGES[make] for path, make in KNOWN.items() if make in _CHANGES},
        **{path: ("states",) for path in numpy_calls.CALLS if path[1] in ("_reconstruct", "dtype")},
    }
)


def interpret(value: Any) -> Any:
    """The meaning of a record: a `SavedTensor`, a plain value or parts; the record if it is unknown. UnexpectedOpcode
    for a known call in a form that torch doesn't write."""
    if isinstance(value, Global):
        return str(value) if value.path in VALUES else None
    if not isinstance(value, Object) or not isinstance(value.callee, Global):
        return value if isinstance(value, Object) else None
    if (array := numpy_calls.array_of(value)) is not None:
        value = array
    function = KNOWN.get(value.callee.path)
    if function is None:
        return value
    allowed = _ALLOWED.get(value.callee.path, ())
    for change, values in (("states", value.states), ("items", value.items), ("pairs", value.flat)):
        if values and change not in allowed:
            raise UnexpectedOpcode(f"the result of {value.callee} is changed after the call")
    return function(value)
