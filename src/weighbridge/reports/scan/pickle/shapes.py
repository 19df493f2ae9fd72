"""The shapes of arguments in the table of allowed calls: each word is a test on a value of the abstract machine.

A test looks at the value and at the callee of a call in it, never deeper: the arguments of that call were judged by
its own row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.limits import DIMS
from weighbridge.unpickle.libraries.torch_types import ALL_WIDTHS
from weighbridge.unpickle.values import Blob, Dict, Global, Object, Persistent, Set

Path = tuple[str, str]
Test = Callable[[Any], bool]

_SIZE: Final = ("torch", "Size")
#: Reads bytes as a torch file: those are scanned as such.
LOADED: Final = ("torch.storage", "_load_from_bytes")
#: Callables that convert numbers to bytes.
BYTES: Final = frozenset((m, n) for m in ("builtins", "__builtin__") for n in ("bytes", "bytearray"))
_BYTES: Final = frozenset({("_codecs", "encode"), ("builtins", "bytes"), ("__builtin__", "bytes")})
_LAYOUTS: Final = frozenset(
    f"torch.{name}" for name in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc",
                                 "_mkldnn", "jagged")
)  # fmt: skip
#: Modules of the functions that create tensors, and of their classes.
_REBUILDING: Final = frozenset({"torch._utils", "torch._tensor", "torch.nn.parameter"})
NUMPY_CORE: Final = ("numpy.core", "numpy._core")
ARRAYS: Final = frozenset(
    {(f"{m}.multiarray", "_reconstruct") for m in NUMPY_CORE} | {(f"{m}.numeric", "_frombuffer") for m in NUMPY_CORE}
)
#: Classes of arrays, whose objects only `_reconstruct` creates.
ARRAY_CLASSES: Final = frozenset(
    {("numpy", n) for n in ("ndarray", "memmap", "matrix", "recarray")} | {("numpy.matrixlib.defmatrix", "matrix")}
    | {(m, "recarray") for m in ("numpy.rec", "numpy.core.records", "numpy._core.records")}
)  # fmt: skip
#: Classes that a tensor may have.
TENSOR_CLASSES: Final = frozenset(
    {("torch", "Tensor"), ("torch._tensor", "Tensor"), ("torch.tensor", "Tensor")}
    | {("torch.nn.parameter", name) for name in ("Parameter", "Buffer")}
)
RECORDS: Final = frozenset((m, "record") for m in ("numpy", "numpy.rec", "numpy.core.records", "numpy._core.records"))


def callee_of(value: Any) -> Path | None:
    """The name of the function that returned `value`, or None."""
    callee = value.callee if isinstance(value, Object) else None
    return callee.path if isinstance(callee, Global) else None


def is_count(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63


def _int(v: Any) -> bool:
    return isinstance(v, int) and v.bit_length() <= 64


def is_text(v: Any) -> bool:
    return isinstance(v, str | bytes) or (isinstance(v, Blob) and bool(v.codec))


def _str(v: Any) -> bool:
    return isinstance(v, str) or (isinstance(v, Blob) and bool(v.codec))


def _counts(v: Any) -> bool:
    """A shape: a tuple, which can't change after the call that gets it."""
    if callee_of(v) == _SIZE:
        return True  # judged by its own row
    return isinstance(v, tuple) and len(v) <= DIMS and all(map(is_count, v))


def _bytes(v: Any) -> bool:
    return isinstance(v, bytes | Blob) or callee_of(v) in _BYTES


def is_tensor(v: Any) -> bool:
    """Whether `v` is the result of a function or class of torch in the table."""
    module, name = callee_of(v) or ("", "")
    return module in _REBUILDING or (module.startswith("torch") and name.endswith("Tensor"))


def storage_id(v: Any) -> tuple[str, int] | None:
    """The key of a storage and the bytes of an element, from its id ("storage", class, key, location, numel(, view));
    None for any other id."""
    id = v.id if isinstance(v, Persistent) and isinstance(v.id, tuple) else ()
    if len(id) not in (5, 6) or not isinstance(id[1], Global) or id[1].path not in ALL_WIDTHS:
        return None
    if id[0] not in ("storage", b"storage") or not isinstance(id[2], str | bytes) or not is_text(id[3]):
        return None
    numel, view = id[4], id[5] if len(id) == 6 else None  # a view: (key, start, length) in elements
    if not is_count(numel):
        return None
    if view is not None and not (isinstance(view, tuple) and len(view) == 3 and is_count(view[1])
                                 and is_count(view[2]) and view[1] + view[2] <= numel):  # fmt: skip
        return None
    return (id[2] if isinstance(id[2], str) else id[2].decode("latin-1")), ALL_WIDTHS[id[1].path]


def _storage(v: Any) -> bool:
    if isinstance(v, tuple):  # an id without BINPERSID: torch refuses it, burn's tar files have it
        v = Persistent(0, v)
    return storage_id(v) is not None or callee_of(v) == LOADED  # the latter: of a tensor pickled without torch.save


def class_of(callee: Any) -> Global | None:
    """The name that is called, or the class in an id ("module", class, file, source) of files before 1.6."""
    if isinstance(callee, Persistent) and isinstance(callee.id, tuple) and len(callee.id) == 4:
        kind, named = callee.id[:2]
        callee = named if isinstance(kind, str) and kind == "module" else None
    return callee if isinstance(callee, Global) else None


_DTYPE: Final = re.compile(r"q?u?int\d+(x\d)?|quint\dx\d|b?float\d+(_\w+)?|complex\d+|bits\d+(x\d)?|bool")


def names_attributes(v: Any) -> bool:
    """Whether a state sets attributes: a dict of names (and one for slots), without Python's own names."""
    parts = v if isinstance(v, tuple) else (v,)
    if len(parts) > 2 or not all(p is None or isinstance(p, Dict) for p in parts):
        return False
    names = [k for p in parts if p is not None for k, _ in p.pairs]
    return all(isinstance(k, str) and k.isprintable() and not k.startswith("__") for k in names)


# Attributes of torch.Tensor whose setters do more than store a value.
_SETTERS: Final = frozenset(
    {"data", "grad", "grad_dtype", "grad_fn", "imag", "name", "names", "real", "requires_grad", "retains_grad",
     "volatile", "_backward_hooks", "_base", "_cdata", "_grad", "_grad_fn", "_post_accumulate_grad_hooks",
     "_python_dispatch", "_version"}
)  # fmt: skip


def _tensor_attributes(v: Any) -> bool:
    """Attributes of a tensor without setters in its class."""
    parts = v if isinstance(v, tuple) else (v,)
    return names_attributes(v) and all(p is None or _SETTERS.isdisjoint(k for k, _ in p.pairs) for p in parts)


def _tensor_properties(v: Any) -> bool:
    """The state of DCP's TensorProperties: type, layout, gradient, memory format, pinned."""
    words = ("dtype", "layout", "bool", "any", "bool")
    return isinstance(v, tuple) and len(v) == len(words) and all(WORDS[w](x) for w, x in zip(words, v, strict=True))


# The attributes of joblib's wrapper, and the word of each value.
_WRAPPER: Final = MappingProxyType(
    {"subclass": "ndarray", "shape": "counts", "order": "str", "dtype": "numpy-dtype", "allow_mmap": "bool",
     "numpy_array_alignment_bytes": "whole"}
)  # fmt: skip


# Iterables: containers, and sequences of numbers.
_CONTAINERS: Final = frozenset(
    {("collections", n) for n in ("OrderedDict", "defaultdict", "Counter", "deque")}
    | {(m, n) for m in ("builtins", "__builtin__") for n in ("set", "frozenset", "list", "tuple", "dict", "range",
                                                             "xrange", "bytes", "bytearray")}
    | {_SIZE}
)  # fmt: skip


# The factories of a defaultdict.
_FACTORIES: Final = _CONTAINERS | {
    (m, n) for m in ("builtins", "__builtin__") for n in ("int", "float", "str", "bool", "long", "unicode", "complex")
}


# ---- numpy ----

_CODE: Final = re.compile(r"[|<>=]?(?:[biufcSUVmM?]\d*|a\d+)")


def numpy_state(dtype: Object) -> bool:
    """Whether the state of a numpy.dtype is as numpy writes it (arraydescr_reduce). Its last number is flags: without
    those of Python objects numpy would read the bytes of an array of objects as pointers."""
    code = dtype.args[0] if isinstance(dtype.args, tuple) and dtype.args else None
    if isinstance(code, Global) and code.path in RECORDS and dtype.states and isinstance(dtype.states[0], tuple):
        code = f"V{dtype.states[0][5]}" if len(dtype.states[0]) > 5 and is_count(dtype.states[0][5]) else None
    state = dtype.states[0] if len(dtype.states) == 1 else None
    if not isinstance(state, tuple) or len(state) not in (8, 9):
        return not dtype.states and code != "O8"
    version, order, sub, names, fields, size, align, flags = state[:8]
    if version not in (3, 4) or order not in ("<", ">", "|", "=", b"<", b">", b"|", b"="):
        return False
    if isinstance(code, str | bytes) and _kind(code) == "O":
        return (sub, names, fields, size, align, flags) == (None, None, None, -1, -1, 63)
    if not (_int(size) and _int(align) and is_count(flags)) or flags & _OBJECT_FLAGS:
        return False
    if not isinstance(code, str | bytes) or size != (_size(code) if _kind(code) in _SIZED else -1):
        return False  # numpy trusts the state
    return (sub is None or _subarray(sub, size)) and (fields is None or _fields(names, fields, size))


_SIZED: Final = ("S", "U", "V", "a")  # types whose state has their size
_OBJECT_FLAGS: Final = 0x01 | 0x02 | 0x04  # NPY_ITEM_REFCOUNT, NPY_LIST_PICKLE, NPY_ITEM_IS_POINTER


def _kind(code: str | bytes) -> str:
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    return text.lstrip("|<>=")[:1]


def _size(code: str | bytes) -> int:
    """The bytes of an element of a type such as `<f4` or `U8`."""
    digits = re.search(r"\d+\Z", code.decode("latin-1") if isinstance(code, bytes) else code)
    return int(digits[0]) * (4 if _kind(code) == "U" else 1) if digits else 1 if _kind(code) in "?bB" else 0


def _inner_dtype(v: Any) -> bool:
    """Whether `v` is a dtype for a field. Fields of objects aren't allowed: the outer dtype's flags would have to
    include theirs."""
    code = v.args[0] if callee_of(v) == ("numpy", "dtype") and isinstance(v.args, tuple) and v.args else None
    return isinstance(code, str | bytes) and _kind(code) != "O"


def _subarray(v: Any, size: int) -> bool:
    """Whether `v` is an array field of `size` bytes: (type, shape)."""
    if not isinstance(v, tuple) or len(v) != 2 or not _inner_dtype(v[0]):
        return False
    sizes = _plain_counts(v[1]) if not is_count(v[1]) else (v[1],)
    return sizes is not None and math.prod(sizes) * _size(v[0].args[0]) == size


def _fields(names: Any, fields: Any, size: int) -> bool:
    """Whether the fields of a record of `size` bytes are inside it."""
    if not isinstance(fields, Dict) or not isinstance(names, tuple) or not all(map(is_text, names)):
        return False
    return all(isinstance(f, tuple) and 2 <= len(f) <= 3 and _inner_dtype(f[0]) and is_count(f[1])
               and f[1] + _size(f[0].args[0]) <= size for _, f in fields.pairs)  # fmt: skip


def _numpy_code(v: Any) -> bool:
    if isinstance(v, Global):
        return v.module == "ml_dtypes" or v.path in RECORDS
    if not isinstance(v, str | bytes):
        return False
    text = v.decode("latin-1") if isinstance(v, bytes) else v
    return text in ("O8", "O4", "O", "|O") or bool(_CODE.fullmatch(text))


def _letter(v: Any) -> bool:
    """Whether `v` is the type that numpy's `_reconstruct` gets before the array has its state: b"b"."""
    if callee_of(v) == ("_codecs", "encode"):
        v = v.args[0] if isinstance(v.args, tuple) and v.args else None
    return isinstance(v, str | bytes) and v in (b"b", "b")


def _array_state(v: Any) -> bool:
    """Whether `v` is (version, shape, dtype, Fortran order, data); before version 1 without the first."""
    parts = v[-4:] if isinstance(v, tuple) and len(v) in (4, 5) else None
    if parts is None:
        return False
    shape, dtype, order, data = parts
    data_fits = isinstance(data, list | str) or _bytes(data)
    return _counts(shape) and callee_of(dtype) == ("numpy", "dtype") and isinstance(order, bool | int) and data_fits


def scheme_fits(scheme: tuple[Any, ...], size: Any) -> bool:
    """Whether `scheme` is (scheme, scale, zero point) of a quantized tensor, or (scheme, scales, zero points, axis)
    with one of each per channel: torch before 2.13 reads out of bounds otherwise."""
    name = scheme[0].name if scheme and isinstance(scheme[0], Global) and scheme[0].module == "torch" else ""
    if name.startswith("per_tensor"):
        return len(scheme) == 3 and WORDS["number"](scheme[1]) and _int(scheme[2])
    sizes = _plain_counts(size)
    if not name.startswith("per_channel") or len(scheme) != 4 or sizes is None or not is_count(scheme[3]):
        return False
    return scheme[3] < len(sizes) and all(_channels(part) == sizes[scheme[3]] for part in scheme[1:3])


def _plain_counts(v: Any) -> Sequence[int] | None:
    """The numbers of a shape or a torch.Size, or None."""
    if callee_of(v) == _SIZE:
        v = v.args[0] if isinstance(v.args, tuple) and v.args else None
    return v if isinstance(v, tuple) and len(v) <= DIMS and all(map(is_count, v)) else None


def _channels(v: Any) -> int:
    """The length of a list of numbers or of a tensor with one dimension; -1 for anything else."""
    if isinstance(v, list):
        return len(v)
    if callee_of(v) not in _VIEWS or not isinstance(v.args, tuple) or len(v.args) < 4:
        return -1
    sizes = _plain_counts(v.args[2])
    return sizes[0] if sizes is not None and len(sizes) == 1 else -1


_VIEWS: Final = frozenset({("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3")})


WORDS: Final[Mapping[str, Test]] = MappingProxyType(
    {
        "any": lambda v: True,
        "bool": lambda v: isinstance(v, bool),
        "flag": lambda v: isinstance(v, bool | int) and v in (0, 1),
        "int": _int,
        "whole": lambda v: v is None or _int(v),
        "count": is_count,
        "counts": _counts,
        "number": lambda v: isinstance(v, float) or _int(v),
        "str": _str,
        "text": is_text,
        "codec": lambda v: isinstance(v, str) and v in ("latin1", "latin-1"),
        "bytes": _bytes,
        "bytes-or-text": lambda v: _bytes(v) or isinstance(v, str),
        "tuple": lambda v: isinstance(v, tuple),
        "storage": _storage,
        "tensor": is_tensor,
        "array": lambda v: callee_of(v) in ARRAYS,
        "dtype": lambda v: isinstance(v, Global) and v.module == "torch" and bool(_DTYPE.fullmatch(v.name)),
        "device": lambda v: is_text(v) or callee_of(v) == ("torch", "device"),
        "layout": lambda v: callee_of(v) == ("torch.serialization", "_get_layout"),
        "layout-name": lambda v: isinstance(v, str) and v in _LAYOUTS,
        "hooks": lambda v: v is None or callee_of(v) == ("collections", "OrderedDict") or isinstance(v, Dict),
        "flags": lambda v: v is None or isinstance(v, Dict),
        "attributes": names_attributes,
        "tensor-properties": _tensor_properties,
        "memory-format": lambda v: _int(v) and 0 <= v <= 2,
        # torch's state dicts: an attribute `_metadata`, the versions of the modules
        "metadata": lambda v: isinstance(v, Dict) and all(k == "_metadata" for k, _ in v.pairs),
        "pairs": lambda v: isinstance(v, Dict | list | tuple) or callee_of(v) in _CONTAINERS,
        "items": lambda v: isinstance(v, list | tuple | Set) or callee_of(v) in _CONTAINERS or _bytes(v) or is_text(v),
        "numbers": lambda v: isinstance(v, list | tuple) or _bytes(v),
        "factory": lambda v: v is None or (isinstance(v, Global) and v.path in _FACTORIES),
        "class": lambda v: isinstance(v, Global),  # `policy` checks it
        "text-or-none": lambda v: v is None or _str(v),
        "tensor-class": lambda v: isinstance(v, Global) and v.path in TENSOR_CLASSES,
        "tensor-attributes": _tensor_attributes,
        "wrapper-state": lambda v: isinstance(v, Dict)
        and all(isinstance(k, str) and k in _WRAPPER and WORDS[_WRAPPER[k]](value) for k, value in v.pairs),
        "ndarray": lambda v: isinstance(v, Global) and v.path in ARRAY_CLASSES,
        "numpy-code": _numpy_code,
        "numpy-dtype": lambda v: callee_of(v) == ("numpy", "dtype"),
        "array-letter": _letter,
        "array-state": _array_state,
        "delta": lambda v: callee_of(v) == ("datetime", "timedelta"),
        "zone": lambda v: callee_of(v) == ("datetime", "timezone"),
        "tensor-state": lambda v: isinstance(v, tuple) and len(v) == 4 and _storage(v[0]) and is_count(v[1])
        and _counts(v[2]) and _counts(v[3]),
        "parameter-state": lambda v: isinstance(v, tuple) and 1 <= len(v) <= 4 and is_tensor(v[0]),
    }
)  # fmt: skip


def fits(row: tuple[str, ...], args: Any) -> bool:
    """Whether a call's arguments fit `row`: `x?` may be missing, `x*` may occur any number of times."""
    if not isinstance(args, tuple):
        return False
    at = 0
    for word in row:
        test = WORDS[word.rstrip("?*")]
        if word.endswith("*"):
            return all(map(test, args[at:]))
        if at == len(args):
            return word.endswith("?")
        if not test(args[at]):
            return False
        at += 1
    return at == len(args)
