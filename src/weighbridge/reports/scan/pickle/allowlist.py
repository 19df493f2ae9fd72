"""The names that a pickle may import and call as data: exact names, the arguments of calls, and the operations allowed
on the results. Everything else is unknown code, however harmless it looks.

Sources: torch's `weights_only` unpickler (torch/_weights_only_unpickler.py), torch/_utils.py, and the `__reduce__`
methods of numpy, collections, datetime and others. The source of each was reviewed: with arguments that fit, none looks
up a name, imports a module, calls anything beyond this table, or accesses a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.reports.scan.pickle.shapes import ARRAY_CLASSES, NUMPY_CORE, RECORDS, TENSOR_CLASSES, Path
from weighbridge.unpickle.libraries import torch_types
from weighbridge.unpickle.libraries.torch_types import ALL_WIDTHS, DENSE


class Allowed(NamedTuple):
    """The arguments of a call and the state of the result (empty: none), as words of `shapes.WORDS`. `new`: NEWOBJ may
    create it as well. `items`, `pairs`: the result may be filled with them."""

    args: tuple[str, ...]
    state: str = ""
    new: bool = False
    items: bool = False
    pairs: bool = False


def _row(args: str, state: str = "", *, new: bool = False, items: bool = False, pairs: bool = False) -> Allowed:
    return Allowed(tuple(args.split()), state, new, items, pairs)


def _in_modules(modules: Iterable[str], rows: Mapping[str, Allowed]) -> dict[Path, Allowed]:
    return {(module, name): row for module in modules for name, row in rows.items()}


BUILTINS: Final = ("builtins", "__builtin__")
_TORCH: Final = {
    "_rebuild_tensor": _row("storage count counts counts"),
    "_rebuild_tensor_v2": _row("storage count counts counts bool hooks flags?"),
    "_rebuild_tensor_v3": _row("storage count counts counts bool hooks dtype flags?"),
    "_rebuild_parameter": _row("tensor bool hooks"),
    "_rebuild_parameter_with_state": _row("tensor bool hooks tensor-attributes"),
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
    "defaultdict": _row("factory? pairs?", new=True, pairs=True),
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
    "bytes": _row("numbers?"),
    "bytearray": _row("bytes-or-text? codec?"),
    "slice": _row("whole whole whole"),
    "range": _row("int int int"),
}
_COPYING: Final = _row("class class text-or-none")
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
        "_reconstruct": _row("ndarray counts array-letter", "array-state"),
        "scalar": _row("numpy-dtype bytes-or-text"),
    },
    "numeric": {"_frombuffer": _row("bytes numpy-dtype counts str")},
}
# `.metadata` of torch.distributed.checkpoint: dataclasses. torch creates them without a call and sets their fields.
_DCP: Final = {
    "Metadata": _row("any? any? any? any? str?", "attributes", new=True),
    "TensorStorageMetadata": _row("any? counts? items?", "attributes", new=True),
    "ChunkStorageMetadata": _row("counts? counts?", "attributes", new=True),
    "MetadataIndex": _row("str? counts? whole?", "attributes", new=True),
    "StorageMeta": _row("", "attributes", new=True),
    "BytesStorageMetadata": _row("", new=True),
    "TensorProperties": _row("dtype? layout? bool? any? bool?", "tensor-properties", new=True),
    "_MEM_FORMAT_ENCODING": _row("memory-format"),
}
# DeepSpeed's ZeRO: objects with numbers, created without a call, and an enum.
_DEEPSPEED: Final = {
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"): _row("", "attributes", new=True),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"): _row("", "attributes", new=True),
    ("deepspeed.utils.tensor_fragment", "fragment_address"): _row("", "attributes", new=True),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"): _row("whole"),
}
# TorchScript's lists: each returns its argument.
_SCRIPT: Final = ("build_intlist", "build_tensorlist", "build_doublelist", "build_boollist")

#: Names that may be called.
CALLS: Final[Mapping[Path, Allowed]] = MappingProxyType(
    {
        **_in_modules(("torch._utils",), _TORCH),
        ("torch._tensor", "_rebuild_from_type_v2"): _row("class tensor-class tuple tensor-attributes"),
        ("torch._tensor", "_rebuild_from_type"): _row("class tensor-class tuple tensor-attributes"),
        ("torch.tensor", "_rebuild_from_type_v2"): _row("class tensor-class tuple tensor-attributes"),
        ("torch.serialization", "_get_layout"): _row("layout-name"),
        ("torch.storage", "_load_from_bytes"): _row("bytes"),
        ("torch", "Size"): _row("counts"),
        ("torch", "device"): _row("text count?"),
        ("torch.torch_version", "TorchVersion"): _row("str", new=True),
        ("torch.nn.parameter", "Parameter"): _row("tensor? bool?", "parameter-state", new=True),
        ("torch.nn.parameter", "Buffer"): _row("tensor?", "parameter-state", new=True),
        **{(m, f"{n}Tensor"): _row("", "tensor-state", new=True) for n in DENSE for m in ("torch", "torch.cuda")},
        **_in_modules(("torch.distributed.checkpoint.metadata",), _DCP),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _row("str? int? int?", "attributes", new=True),
        **_DEEPSPEED,
        **_in_modules(("torch.jit._pickle",), dict.fromkeys(_SCRIPT, _row("items"))),
        ("torch.jit._pickle", "restore_type_tag"): _row("any str"),
        **_in_modules(("collections",), _CONTAINERS),
        **_in_modules(BUILTINS, _BUILT_IN),
        ("__builtin__", "xrange"): _BUILT_IN["range"],
        ("_codecs", "encode"): _row("str codec"),
        ("copyreg", "_reconstructor"): _COPYING,
        ("copy_reg", "_reconstructor"): _COPYING,
        **_in_modules(("datetime",), _DATES),
        ("decimal", "Decimal"): _row("str"),
        ("fractions", "Fraction"): _row("int int"),
        ("uuid", "UUID"): _row("", "attributes", new=True),
        ("argparse", "Namespace"): _row("", "attributes", new=True),
        ("types", "SimpleNamespace"): _row("", "attributes", new=True),
        **_in_modules(("pathlib", "pathlib._local"), dict.fromkeys(_PATHS, _row("str*"))),
        **{path: row for part, rows in _NUMPY.items() for path, row in
           _in_modules([f"{core}.{part}" for core in NUMPY_CORE], rows).items()},
        ("joblib.numpy_pickle", "NumpyArrayWrapper"): _row("", "wrapper-state", new=True),
        ("numpy", "dtype"): _row("numpy-code flag? flag?", "any"),  # checked by `shapes.numpy_state`
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
# Beside torch's number types and schemes of quantization (`torch_types.VALUES`).
_TORCH_VALUES: Final = (
    "Tensor", "per_channel_affine_float_qparams", "contiguous_format", "preserve_format", "channels_last",
    "channels_last_3d",
)  # fmt: skip

#: Names that may be imported as values: types of numbers, classes of storages.
VALUES: Final[frozenset[Path]] = frozenset(
    {*torch_types.VALUES, *(("torch", name) for name in _TORCH_VALUES)}
    | {*ALL_WIDTHS}
    | {(m, f"{n}Tensor") for n in DENSE for m in ("torch.sparse", "torch.cuda.sparse")}
    | ARRAY_CLASSES
    | RECORDS
    | {path for path in TENSOR_CLASSES if path not in CALLS}
    | {("numpy", name) for name in _NUMBERS}
    | {("ml_dtypes", name) for name in _SMALL_FLOATS}
    | {(m, name) for m in BUILTINS for name in ("int", "float", "str", "bool", "long", "unicode")}
)

#: Classes whose objects `copyreg._reconstructor` may create (protocols 0 and 1), and the base class whose `__new__` it
#: calls: `object`, or `str` with the text.
RECONSTRUCTORS: Final[Mapping[Path, str]] = MappingProxyType(
    {
        ("argparse", "Namespace"): "object",
        ("joblib.numpy_pickle", "NumpyArrayWrapper"): "object",
        ("torch.torch_version", "TorchVersion"): "str",
        ("types", "SimpleNamespace"): "object",
        ("uuid", "UUID"): "object",
    }
)

_BEYOND_TORCH: Final = frozenset(
    {("torch", f"{name}_format") for name in ("contiguous", "preserve")} | {("torch.nn.parameter", "Buffer")}
    | {("torch", "channels_last"), ("torch", "channels_last_3d"), ("torch._utils", "_rebuild_xla_tensor")}
    | {("torch._tensor", "Tensor"), ("torch._tensor", "_rebuild_from_type"), ("torch.storage", "_load_from_bytes")}
    | {(m, f"{n}Storage") for m in ("torch", "torch.cuda") for n in ("Typed", "Untyped")}
    | {("torch.cuda", f"{n}Storage") for n in ("QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4")}
    | {(m, "BoolTensor") for m in ("torch.sparse", "torch.cuda.sparse")}
    | {("torch.storage", f"_{n}Storage") for n in ("Typed", "Untyped")}
)  # fmt: skip
#: The names that torch.load accepts with weights_only=True.
WEIGHTS_ONLY: Final[frozenset[Path]] = frozenset(
    {("_codecs", "encode"), ("collections", "Counter"), ("collections", "OrderedDict")}
    | {("builtins", name) for name in ("bytearray", "complex", "set")}
    | {path for path in (*CALLS, *VALUES) if path[0].startswith("torch") and path not in _BEYOND_TORCH
       and path[0] not in ("torch.jit._pickle", "torch.tensor", "torch.torch_version")
       and not path[0].startswith("torch.distributed.")}
)  # fmt: skip

#: Functions that `_rebuild_from_type_v2` may call.
REBUILDS: Final[Mapping[Path, Allowed]] = MappingProxyType(
    {path: row for path, row in CALLS.items() if path[0] == "torch._utils"}
)
