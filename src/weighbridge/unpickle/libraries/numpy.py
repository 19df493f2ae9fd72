"""Arrays and scalars of NumPy in pickles: exact names, checked arguments, no NumPy.

    _reconstruct(ndarray, (0,), b"b"), state (version, shape, dtype, fortran, bytes)     protocols 0 to 4
    _frombuffer(bytes, dtype, shape, "C" or "F")                                         protocol 5
    scalar(dtype, bytes)
    dtype("f4", False, True), state (3, "<", None, None, None, -1, -1, 0)

    eval("data", {"data": array})      of Paddle: a tensor of a static graph; the name `data` is looked up in the dict
    tuple((name, array))               of Paddle: a tensor that isn't in a state dict

An array of objects is the list of its objects. Reference: numpy/_core/src/multiarray/methods.c (array_reduce,
array_setstate), descriptor.c (arraydescr_setstate), numpy/_core/numeric.py of NumPy 2; python/paddle/framework/io.py
of Paddle 3.3 (`_pickle_save`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base import dtypes
from weighbridge.base.dtypes import DType
from weighbridge.base.limits import DIMS
from weighbridge.unpickle.values import Blob, Dict, Global, Object, UnexpectedOpcode, preview


class Array(NamedTuple):
    """`data` is in C order, or Fortran order if `fortran`; most significant byte first if `big`."""

    at: int
    dtype: DType
    shape: tuple[int, ...]
    data: bytes | Blob
    fortran: bool
    big: bool


class NumpyDtype(NamedTuple):
    """A dtype. `code`: NumPy's spelling ("f4"); `big`: most significant byte first."""

    code: str
    big: bool


# NumPy's kind and size -> the type here, and the format character of `struct`.
_KINDS: Final[Mapping[str, tuple[DType, str]]] = MappingProxyType(
    {
        code: (dtypes.dtype(name), form)
        for code, name, form in (
            ("b1", "BOOL", "?"), ("i1", "I8", "b"), ("i2", "I16", "h"), ("i4", "I32", "i"), ("i8", "I64", "q"),
            ("u1", "U8", "B"), ("u2", "U16", "H"), ("u4", "U32", "I"), ("u8", "U64", "Q"), ("f2", "F16", "e"),
            ("f4", "F32", "f"), ("f8", "F64", "d"), ("c8", "C64", ""), ("c16", "C128", ""),
        )
    }
)  # fmt: skip
_OBJECTS: Final = ("O8", "O4")


def shape_of(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > DIMS:
        raise UnexpectedOpcode(f"an array's shape is {preview(value)}")
    for n in value:
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 1 << 63:
            raise UnexpectedOpcode(f"an array's shape has {preview(n)}")
    return value


def _kind(value: Any) -> NumpyDtype:
    """Parses a dtype: its code, and the byte order in its state."""
    if not isinstance(value, Object) or not _is(value.callee, ("numpy", "dtype")) or not isinstance(value.args, tuple):
        raise UnexpectedOpcode(f"an array's type is {preview(value)}")
    code = value.args[0] if value.args else None
    if isinstance(code, bytes):  # written by Python 2
        code = code.decode("latin-1")
    if not isinstance(code, str) or value.kwargs is not None or value.items or value.flat:
        raise UnexpectedOpcode(f"an array's type is {preview(code)}")
    order = "|"
    for state in value.states:
        if not isinstance(state, tuple) or len(state) < 8 or not isinstance(state[1], str | bytes):
            raise UnexpectedOpcode("a type's state is not NumPy's")
        order = state[1] if isinstance(state[1], str) else state[1].decode("latin-1")
        if state[2] is not None or state[3] is not None or state[4] is not None:
            raise UnexpectedOpcode("records are unsupported")
    if order not in ("<", ">", "|", "="):
        raise UnexpectedOpcode(f"a byte order is {order!r}")
    return NumpyDtype(code, order == ">")


def _is(value: Any, path: tuple[str, str]) -> bool:
    return isinstance(value, Global) and value.path == path


_BYTES: Final = ("builtins.bytes", "__builtin__.bytes")


def raw(value: Any) -> bytes | Blob:
    """Bytes in the forms of all protocols: bytes, Python 2 text, and latin-1 text with a call that encodes it."""
    if isinstance(value, Object) and _is(value.callee, ("_codecs", "encode")):
        args = value.args if isinstance(value.args, tuple) else ()
        if len(args) != 2 or args[1] not in ("latin1", "latin-1") or value.kwargs is not None:
            raise UnexpectedOpcode("an array's bytes are not latin-1")
        value = args[0]
        if isinstance(value, Blob) and value.codec == "utf-8":
            return value
    elif isinstance(value, Object) and value.args == () and str(value.callee) in _BYTES:
        return b""
    if isinstance(value, Blob) and value.codec in ("", "python 2"):
        return value
    if isinstance(value, str):
        try:
            return value.encode("latin-1")
        except UnicodeEncodeError:
            raise UnexpectedOpcode("an array's text is not of bytes") from None
    if not isinstance(value, bytes):
        raise UnexpectedOpcode(f"an array's bytes are {preview(value)}")
    return value


def _array(at: int, kind: NumpyDtype, shape: tuple[int, ...], value: Any, fortran: bool) -> Array:
    if kind.code not in _KINDS:
        raise UnexpectedOpcode(f"arrays of type {kind.code!r} are unsupported")
    dtype, data = _KINDS[kind.code][0], raw(value)
    expected = math.prod(shape) * dtype.size
    size = len(data) if isinstance(data, bytes) else data.size
    # Latin-1 text has a known size only after decoding.
    if size != expected and not (isinstance(data, Blob) and data.codec == "utf-8" and size > expected):
        raise UnexpectedOpcode(f"an array of {expected} bytes has {size}")
    return Array(at, dtype, shape, data, fortran and len(shape) > 1, kind.big)


def _reconstruct(value: Object) -> Any:
    args = value.args
    if not isinstance(args, tuple) or len(args) != 3 or not _is(args[0], ("numpy", "ndarray")):
        raise UnexpectedOpcode("an array is not made of numpy.ndarray")
    state = value.states[0] if len(value.states) == 1 else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise UnexpectedOpcode("an array without its state")
    _, shape, dtype, fortran, raw = state
    kind = _kind(dtype)
    if kind.code in _OBJECTS:
        if not isinstance(raw, list):
            raise UnexpectedOpcode("an array of objects without them")
        return raw
    return _array(value.at, kind, shape_of(shape), raw, fortran is True)


def _frombuffer(value: Object) -> Any:
    args = value.args
    if not isinstance(args, tuple) or len(args) != 4 or args[3] not in ("C", "F"):
        raise UnexpectedOpcode("an array of a buffer has other arguments")
    return _array(value.at, _kind(args[1]), shape_of(args[2]), args[0], args[3] == "F")


def _scalar(value: Object) -> Any:
    """A number; None if metadata can't hold it (a complex number, a date)."""
    args = value.args
    if not isinstance(args, tuple) or len(args) != 2:
        raise UnexpectedOpcode("a scalar has other arguments")
    kind = _kind(args[0])
    if kind.code not in _KINDS or not _KINDS[kind.code][1]:
        return None
    codec = struct.Struct((">" if kind.big else "<") + _KINDS[kind.code][1])
    data = raw(args[1])
    if not isinstance(data, bytes) or len(data) != codec.size:
        raise UnexpectedOpcode("a scalar's bytes are not of its type")
    return codec.unpack(data)[0]


_CORES: Final = ("numpy.core", "numpy._core")
CALLS: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = MappingProxyType(
    {
        **{(f"{core}.multiarray", "_reconstruct"): _reconstruct for core in _CORES},
        **{(f"{core}.multiarray", "scalar"): _scalar for core in _CORES},
        **{(f"{core}.numeric", "_frombuffer"): _frombuffer for core in _CORES},
        ("numpy", "dtype"): lambda value: f"numpy.{_kind(value).code}",
    }
)
NAMES: Final = frozenset({("numpy", "ndarray"), *CALLS})

# ---- Paddle ----

#: `eval` of Python 3 and 2.
EVAL: Final = frozenset({("builtins", "eval"), ("__builtin__", "eval")})
_TUPLE: Final = frozenset({("builtins", "tuple"), ("__builtin__", "tuple")})
_ARRAYS: Final = frozenset(path for path in CALLS if path[1] in ("_reconstruct", "_frombuffer"))


def array_of(value: Object) -> Object | None:
    """Returns the array of one of Paddle's calls; None for any other call, also one whose result or arguments were
    changed."""
    path = value.callee.path if isinstance(value.callee, Global) else None
    if value.op != "REDUCE" or value.states or value.items or value.flat or not isinstance(value.args, tuple):
        return None
    array: Any = None
    match value.args:
        case ("data", Dict(flat=["data", found])) if path in EVAL:
            array = found
        case (tuple((str(), found)),) if path in _TUPLE:
            array = found
    is_array = isinstance(array, Object) and isinstance(array.callee, Global) and array.callee.path in _ARRAYS
    return array if is_array else None
