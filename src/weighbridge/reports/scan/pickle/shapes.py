"""The shapes of arguments in the table of allowed calls: one word, one test on a value of the abstract machine.

A test looks at the value and at the callee of a call in it, never deeper: what an argument is made of was called, too,
and is judged by its own row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.limits import DIMS
from weighbridge.unpickle.values import Blob, Dict, Global, Object, Persistent, Set

Path = tuple[str, str]
Test = Callable[[Any], bool]

_SIZE: Final = ("torch", "Size")
#: It reads bytes as a file of torch's own: those are scanned as such.
LOADED: Final = ("torch.storage", "_load_from_bytes")
#: Callables that make bytes of plain numbers.
BYTES: Final = frozenset((m, n) for m in ("builtins", "__builtin__") for n in ("bytes", "bytearray"))
_BYTES: Final = frozenset({("_codecs", "encode"), ("builtins", "bytes"), ("__builtin__", "bytes")})
_LAYOUTS: Final = frozenset(
    f"torch.{name}" for name in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc",
                                 "_mkldnn", "jagged")
)  # fmt: skip
#: Modules of the functions that make tensors, and of their classes.
_REBUILDING: Final = frozenset({"torch._utils", "torch._tensor", "torch.nn.parameter"})
NUMPY_CORE: Final = ("numpy.core", "numpy._core")
ARRAYS: Final = frozenset(
    {(f"{m}.multiarray", "_reconstruct") for m in NUMPY_CORE} | {(f"{m}.numeric", "_frombuffer") for m in NUMPY_CORE}
)
#: Classes of arrays, whose objects are made by `_reconstruct` alone.
ARRAY_CLASSES: Final = frozenset(
    {("numpy", n) for n in ("ndarray", "memmap", "matrix", "recarray")} | {("numpy.matrixlib.defmatrix", "matrix")}
    | {(m, "recarray") for m in ("numpy.rec", "numpy.core.records", "numpy._core.records")}
)  # fmt: skip
RECORDS: Final = frozenset((m, "record") for m in ("numpy", "numpy.rec", "numpy.core.records", "numpy._core.records"))
_SCALARS: Final = (bool, int, float, str, bytes)


def callee_of(value: Any) -> Path | None:
    """The name that a call's result came from."""
    callee = value.callee if isinstance(value, Object) else None
    return callee.path if isinstance(callee, Global) else None


def _named(module: str, names: Callable[[str], bool]) -> Test:
    return lambda v: isinstance(v, Global) and v.module == module and names(v.name)


def is_count(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63


def _int(v: Any) -> bool:
    return isinstance(v, int) and v.bit_length() <= 64


def is_text(v: Any) -> bool:
    return isinstance(v, str | bytes) or (isinstance(v, Blob) and bool(v.codec))


def _str(v: Any) -> bool:
    return isinstance(v, str) or (isinstance(v, Blob) and bool(v.codec))


def _counts(v: Any) -> bool:
    if callee_of(v) == _SIZE:
        return True  # judged by its own row
    return isinstance(v, tuple | list) and len(v) <= DIMS and all(map(is_count, v))


def _bytes(v: Any) -> bool:
    return isinstance(v, bytes | Blob) or callee_of(v) in _BYTES


def is_tensor(v: Any) -> bool:
    """What a function or class of torch's makes that stands in the table."""
    path = callee_of(v)
    if path is None:
        return False
    return path[0] in _REBUILDING or (path[0].startswith("torch") and path[1].endswith("Tensor"))


# torch's classes of storages, and the bytes of an element. An untyped one has bytes.
_ELEMENTS: Final = MappingProxyType(
    {
        "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1,
        "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1,
        "QUInt2x4": 1, "Untyped": 1, "Typed": 1,
    }
)  # fmt: skip
WIDTHS: Final[Mapping[Path, int]] = MappingProxyType(
    {(m, f"{name}Storage"): width for name, width in _ELEMENTS.items() for m in ("torch", "torch.cuda")}
    | {("torch.storage", f"{_}{name}Storage"): 1 for name in ("Untyped", "Typed") for _ in ("", "_")}
)


def storage_id(v: Any) -> tuple[str, int] | None:
    """The key and the bytes of an element of a storage, by its id ("storage", class, key, location, numel(, view));
    None of any other id."""
    id = v.id if isinstance(v, Persistent) and isinstance(v.id, tuple) else ()
    if len(id) not in (5, 6) or not isinstance(id[1], Global) or id[1].path not in WIDTHS:
        return None
    if id[0] not in ("storage", b"storage") or not isinstance(id[2], str | bytes) or not is_text(id[3]):
        return None
    if not is_count(id[4]) or (len(id) == 6 and not _view(id[5], id[4])):
        return None
    return (id[2] if isinstance(id[2], str) else id[2].decode("latin-1")), WIDTHS[id[1].path]


def _view(v: Any, numel: int) -> bool:
    """(key, start, length) in elements, inside the storage; or none."""
    if v is None:
        return True
    return isinstance(v, tuple) and len(v) == 3 and is_count(v[1]) and is_count(v[2]) and v[1] + v[2] <= numel


def _storage(v: Any) -> bool:
    if isinstance(v, tuple):  # an id that was not made one: torch refuses it, burn's tar files have it
        v = Persistent(0, v)
    return storage_id(v) is not None or callee_of(v) == LOADED  # the latter: of a tensor pickled without torch.save


def class_of(callee: Any) -> Global | None:
    """A name that is called; or the class of an id ("module", class, file, source), as files before 1.6 name one."""
    if isinstance(callee, Persistent) and isinstance(callee.id, tuple) and len(callee.id) == 4:
        kind, named = callee.id[:2]
        callee = named if isinstance(kind, str) and kind == "module" else None
    return callee if isinstance(callee, Global) else None


def plain(v: Any) -> bool:
    """A number, text, or nothing."""
    return v is None or isinstance(v, _SCALARS)


def _dtype(v: Any) -> bool:
    return isinstance(v, Global) and v.module == "torch" and bool(_DTYPE.fullmatch(v.name))


_DTYPE: Final = re.compile(r"q?u?int\d+(x\d)?|quint\dx\d|b?float\d+(_\w+)?|complex\d+|bits\d+(x\d)?|bool")


def names_attributes(v: Any) -> bool:
    """A state that sets attributes: a dict of names (one for slots, too), none of Python's own."""
    parts = v if isinstance(v, tuple) else (v,)
    return len(parts) <= 2 and all(p is None or (isinstance(p, Dict) and _plain_names(p.pairs)) for p in parts)


def _plain_names(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return all(isinstance(k, str) and k.isprintable() and not k.startswith("__") for k, _ in pairs)


def _metadata(v: Any) -> bool:
    """What torch's state dicts are given: an attribute `_metadata`, the versions of the modules."""
    return isinstance(v, Dict) and all(k == "_metadata" for k, _ in v.pairs)


def _pairs(v: Any) -> bool:
    return isinstance(v, Dict | list | tuple) or callee_of(v) is not None


def _data_list(v: Any) -> bool:
    return isinstance(v, list | tuple | Set) or callee_of(v) is not None


# ---- numpy ----

_CODE: Final = re.compile(r"[|<>=]?(?:[biufcSUVmM?]\d*|a\d+)")


def numpy_state(dtype: Object) -> bool:
    """The state of a numpy.dtype as numpy writes it (arraydescr_reduce). Its last number is flags: those of Python
    objects taken away from an array of objects would make numpy read bytes as pointers."""
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
        return False  # numpy takes the state's word for it
    return (sub is None or _subarray(sub)) and (fields is None or _fields(names, fields, size))


_SIZED: Final = ("S", "U", "V", "a")  # types whose state tells their size
_OBJECT_FLAGS: Final = 0x01 | 0x02 | 0x04  # NPY_ITEM_REFCOUNT, NPY_LIST_PICKLE, NPY_ITEM_IS_POINTER


def _kind(code: str | bytes) -> str:
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    return text.lstrip("|<>=")[:1]


def _size(code: str | bytes) -> int:
    """Bytes of a number of a type such as `<f4` or `U8`."""
    digits = re.search(r"\d+\Z", code.decode("latin-1") if isinstance(code, bytes) else code)
    return int(digits[0]) * (4 if _kind(code) == "U" else 1) if digits else 1 if _kind(code) in "?bB" else 0


def _inner_dtype(v: Any) -> bool:
    """A dtype in another; of objects there may be none, as the outer one's flags would have to tell of them."""
    code = v.args[0] if callee_of(v) == ("numpy", "dtype") and isinstance(v.args, tuple) and v.args else None
    return isinstance(code, str | bytes) and _kind(code) != "O"


def _subarray(v: Any) -> bool:
    return isinstance(v, tuple) and len(v) == 2 and _inner_dtype(v[0]) and (is_count(v[1]) or _counts(v[1]))


def _fields(names: Any, fields: Any, size: int) -> bool:
    """Fields of a record of `size` bytes, each inside it."""
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


def _array_state(v: Any) -> bool:
    """(version, shape, dtype, Fortran order, data); before version 1 without the first."""
    parts = v[-4:] if isinstance(v, tuple) and len(v) in (4, 5) else None
    if parts is None:
        return False
    shape, dtype, order, data = parts
    data_fits = isinstance(data, list | str) or _bytes(data)
    return _counts(shape) and callee_of(dtype) == ("numpy", "dtype") and isinstance(order, bool | int) and data_fits


def scheme_fits(scheme: tuple[Any, ...], size: Any) -> bool:
    """(scheme, scale, zero point) of a quantized tensor, or (scheme, scales, zero points, axis) with one of each for
    every channel: torch before 2.13 reads beyond them."""
    name = scheme[0].name if scheme and isinstance(scheme[0], Global) and scheme[0].module == "torch" else ""
    if name.startswith("per_tensor"):
        return len(scheme) == 3 and WORDS["number"](scheme[1]) and _int(scheme[2])
    sizes = _plain_counts(size)
    if not name.startswith("per_channel") or len(scheme) != 4 or sizes is None or not is_count(scheme[3]):
        return False
    return scheme[3] < len(sizes) and all(_channels(part) == sizes[scheme[3]] for part in scheme[1:3])


def _plain_counts(v: Any) -> Sequence[int] | None:
    """The numbers of a shape, also of a torch.Size."""
    if callee_of(v) == _SIZE:
        v = v.args[0] if isinstance(v.args, tuple) and v.args else None
    return v if isinstance(v, tuple | list) and all(map(is_count, v)) else None


def _channels(v: Any) -> int:
    """The length of a list of numbers, or of a tensor of one dimension; -1 of anything else."""
    if isinstance(v, list):
        return len(v)
    if callee_of(v) not in _VIEWS or not isinstance(v.args, tuple) or len(v.args) < 4:
        return -1
    sizes = _plain_counts(v.args[2])
    return sizes[0] if sizes is not None and len(sizes) == 1 else -1


_VIEWS: Final = frozenset({("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3")})


def _codec(v: Any) -> bool:
    return v in ("latin1", "latin-1") if isinstance(v, str) else False


WORDS: Final[Mapping[str, Test]] = MappingProxyType(
    {
        "any": lambda v: True,
        "none": lambda v: v is None,
        "bool": lambda v: isinstance(v, bool),
        "flag": lambda v: isinstance(v, bool | int) and v in (0, 1),
        "int": _int,
        "whole": lambda v: v is None or _int(v),
        "count": is_count,
        "counts": _counts,
        "number": lambda v: isinstance(v, float) or _int(v),
        "str": _str,
        "text": is_text,
        "codec": _codec,
        "bytes": _bytes,
        "bytes-or-text": lambda v: _bytes(v) or isinstance(v, str),
        "plain": plain,
        "tuple": lambda v: isinstance(v, tuple),
        "storage": _storage,
        "tensor": is_tensor,
        "array": lambda v: callee_of(v) in ARRAYS,
        "dtype": _dtype,
        "device": lambda v: is_text(v) or callee_of(v) == ("torch", "device"),
        "layout": lambda v: callee_of(v) == ("torch.serialization", "_get_layout"),
        "layout-name": lambda v: isinstance(v, str) and v in _LAYOUTS,
        "hooks": lambda v: v is None or callee_of(v) == ("collections", "OrderedDict") or isinstance(v, Dict),
        "flags": lambda v: v is None or isinstance(v, Dict),
        "attributes": names_attributes,
        "metadata": _metadata,
        "pairs": _pairs,
        "items": _data_list,
        "name": lambda v: v is None or isinstance(v, Global),
        "tensor-class": lambda v: isinstance(v, Global),
        "ndarray": lambda v: isinstance(v, Global) and v.path in ARRAY_CLASSES,
        "numpy-code": _numpy_code,
        "numpy-dtype": lambda v: callee_of(v) == ("numpy", "dtype"),
        "array-state": _array_state,
        "delta": lambda v: callee_of(v) == ("datetime", "timedelta"),
        "zone": lambda v: callee_of(v) == ("datetime", "timezone"),
        "tensor-state": lambda v: isinstance(v, tuple) and len(v) == 4 and _storage(v[0]) and is_count(v[1])
        and _counts(v[2]) and _counts(v[3]),
        "parameter-state": lambda v: isinstance(v, tuple) and 1 <= len(v) <= 4 and is_tensor(v[0]),
    }
)  # fmt: skip


def fits(words: tuple[str, ...], args: Any) -> bool:
    """Whether a call's arguments are those of `words`: `x?` may be missing, `x*` may come any number of times."""
    if not isinstance(args, tuple):
        return False
    at = 0
    for word in words:
        test = WORDS[word.rstrip("?*")]
        if word.endswith("*"):
            return all(map(test, args[at:]))
        if at == len(args):
            return word.endswith("?")
        if not test(args[at]):
            return False
        at += 1
    return at == len(args)
