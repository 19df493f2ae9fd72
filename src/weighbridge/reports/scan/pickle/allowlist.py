"""What a pickle may import and call and still be data only: exact names, the arguments they may have, and what may be
done to the result. Everything else is unknown code, however harmless it looks.

Sources: what torch's `weights_only` unpickler takes (torch/_weights_only_unpickler.py), torch/_utils.py, what numpy,
collections, datetime and the like write of themselves (`__reduce__`). Each was read for what it does with arguments
that fit: none looks up a name, imports a module, calls what it is given beyond this table, or touches a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.reports.scan.pickle.shapes import ARRAY_CLASSES, NUMPY_CORE, RECORDS, WIDTHS, Path


class Allowed(NamedTuple):
    """Words of `shapes.WORDS`: the arguments of a call, the state that the result may be given (empty: none).
    `new`: its objects may also be made by NEWOBJ. `items`, `pairs`: the result may be filled with them."""

    args: tuple[str, ...]
    state: str = ""
    new: bool = False
    items: bool = False
    pairs: bool = False


def _row(args: str, state: str = "", *, new: bool = False, items: bool = False, pairs: bool = False) -> Allowed:
    return Allowed(tuple(args.split()), state, new, items, pairs)


def _both(modules: Iterable[str], rows: Mapping[str, Allowed]) -> dict[Path, Allowed]:
    return {(module, name): row for module in modules for name, row in rows.items()}


BUILTINS: Final = ("builtins", "__builtin__")
_TORCH: Final = {
    "_rebuild_tensor": _row("storage count counts counts"),
    "_rebuild_tensor_v2": _row("storage count counts counts bool hooks flags?"),
    "_rebuild_tensor_v3": _row("storage count counts counts bool hooks dtype flags?"),
    "_rebuild_parameter": _row("tensor bool hooks"),
    "_rebuild_parameter_with_state": _row("tensor bool hooks attributes"),
    "_rebuild_sparse_tensor": _row("layout tuple"),
    "_rebuild_qtensor": _row("storage count counts counts tuple bool hooks"),
    "_rebuild_meta_tensor_no_storage": _row("dtype counts counts bool"),
    "_rebuild_nested_tensor": _row("tensor tensor tensor tensor"),
    "_rebuild_device_tensor_from_numpy": _row("array dtype device bool"),
    "_rebuild_xla_tensor": _row("array dtype device bool"),
    "_rebuild_device_tensor_from_cpu_tensor": _row("tensor dtype device bool"),
    "_rebuild_wrapper_subclass": _row("tensor-class dtype counts counts count layout device bool"),
}
_CONTAINERS: Final = {
    "OrderedDict": _row("pairs?", "metadata", new=True, pairs=True),
    "defaultdict": _row("name? pairs?", new=True, pairs=True),
    "Counter": _row("pairs?", new=True, pairs=True),
    "deque": _row("items? whole?", new=True, items=True),
}
_BUILT_IN: Final = {
    "set": _row("items?", new=True, items=True),
    "frozenset": _row("items?", new=True),
    "list": _row("items?", new=True, items=True),
    "tuple": _row("items?", new=True),
    "dict": _row("pairs?", new=True, pairs=True),
    "object": _row("", new=True),
    "complex": _row("number number"),
    "bytes": _row("items?"),
    "bytearray": _row("bytes-or-text? codec?"),
    "slice": _row("whole whole whole"),
    "range": _row("int int int"),
}
_COPYING: Final = _row("tensor-class tensor-class any", "attributes", items=True, pairs=True)
_DATES: Final = {
    "datetime": _row("bytes-or-text zone?"),
    "date": _row("bytes-or-text"),
    "time": _row("bytes-or-text zone?"),
    "timedelta": _row("int int int"),
    "timezone": _row("delta str?"),
}
_PATHS: Final = ("PurePath", "PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath", "Path")
_NUMPY: Final = {
    "multiarray": {
        "_reconstruct": _row("ndarray counts bytes-or-text", "array-state"),
        "scalar": _row("numpy-dtype bytes-or-text"),
    },
    "numeric": {"_frombuffer": _row("bytes numpy-dtype counts str")},
}
# TorchScript's lists: each gives its argument back.
_SCRIPT: Final = ("build_intlist", "build_tensorlist", "build_doublelist", "build_boollist")

_DENSE: Final = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")

#: What may be called.
CALLS: Final[Mapping[Path, Allowed]] = MappingProxyType(
    {
        **_both(("torch._utils",), _TORCH),
        ("torch._tensor", "_rebuild_from_type_v2"): _row("name tensor-class tuple attributes"),
        ("torch._tensor", "_rebuild_from_type"): _row("name tensor-class tuple attributes"),
        ("torch.tensor", "_rebuild_from_type_v2"): _row("name tensor-class tuple attributes"),
        ("torch.serialization", "_get_layout"): _row("layout-name"),
        ("torch.storage", "_load_from_bytes"): _row("bytes"),
        ("torch", "Size"): _row("items"),
        ("torch", "device"): _row("text count?"),
        ("torch.torch_version", "TorchVersion"): _row("str", new=True),
        ("torch.nn.parameter", "Parameter"): _row("tensor? bool?", "parameter-state", new=True),
        ("torch.nn.parameter", "Buffer"): _row("tensor?", "parameter-state", new=True),
        **{(m, f"{n}Tensor"): _row("", "tensor-state", new=True) for n in _DENSE for m in ("torch", "torch.cuda")},
        **_both(("torch.jit._pickle",), dict.fromkeys(_SCRIPT, _row("items"))),
        ("torch.jit._pickle", "restore_type_tag"): _row("any str"),
        **_both(("collections",), _CONTAINERS),
        **_both(BUILTINS, _BUILT_IN),
        ("__builtin__", "xrange"): _BUILT_IN["range"],
        ("_codecs", "encode"): _row("str codec"),
        ("copyreg", "_reconstructor"): _COPYING,
        ("copy_reg", "_reconstructor"): _COPYING,
        **_both(("datetime",), _DATES),
        ("decimal", "Decimal"): _row("str"),
        ("fractions", "Fraction"): _row("int int"),
        ("uuid", "UUID"): _row("", "attributes", new=True),
        ("argparse", "Namespace"): _row("", "attributes", new=True),
        ("types", "SimpleNamespace"): _row("", "attributes", new=True),
        **_both(("pathlib", "pathlib._local"), dict.fromkeys(_PATHS, _row("str*"))),
        **{path: row for part, rows in _NUMPY.items() for path, row in
           _both([f"{core}.{part}" for core in NUMPY_CORE], rows).items()},
        ("joblib.numpy_pickle", "NumpyArrayWrapper"): _row("", "attributes", new=True),
        ("numpy", "dtype"): _row("numpy-code flag? flag?", "any"),  # `shapes.numpy_state` looks at it
    }
)  # fmt: skip

_NUMBERS: Final = (
    "bool_", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "longdouble", "complex64", "complex128", "str_", "bytes_", "datetime64", "timedelta64", "ndarray",
    "intc", "longlong", "ulonglong", "uintc",
)  # fmt: skip
_SMALL_FLOATS: Final = (
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int2", "int4", "uint2",
    "uint4",
)  # fmt: skip
_TORCH_VALUES: Final = (
    "Tensor", "float8_e8m0fnu", "float4_e2m1fn_x2", "per_channel_affine_float_qparams", "contiguous_format",
    "preserve_format", "channels_last", "channels_last_3d", "per_tensor_affine", "per_channel_affine",
    "per_tensor_symmetric", "per_channel_symmetric", "bool", "bfloat16", "complex32", "complex64", "complex128",
    "float16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    *(f"{sign}int{bits}" for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64) for sign in ("", "u")),
    "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
)  # fmt: skip

#: What may be imported and stands for itself: types of numbers, classes of storages.
VALUES: Final[frozenset[Path]] = frozenset(
    {("torch", name) for name in _TORCH_VALUES}
    | {*WIDTHS}
    | {(m, f"{n}Tensor") for n in _DENSE for m in ("torch.sparse", "torch.cuda.sparse")}
    | ARRAY_CLASSES
    | RECORDS
    | {("torch._tensor", "Tensor"), ("torch.tensor", "Tensor")}
    | {("numpy", name) for name in _NUMBERS}
    | {("ml_dtypes", name) for name in _SMALL_FLOATS}
    | {(m, name) for m in BUILTINS for name in ("int", "float", "str", "bool", "long", "unicode")}
)

#: Functions that `_rebuild_from_type_v2` may be given to call.
REBUILDS: Final[Mapping[Path, Allowed]] = MappingProxyType(
    {path: row for path, row in CALLS.items() if path[0] == "torch._utils"}
)
