"""Programs of `torch.export.save` (.pt2): a zip with the graph as JSON, and one member a tensor.

    <root>/archive_format                                   "pt2"
    <root>/data/weights/model_weights_config.json           of each weight its member, type, shape and strides
    <root>/data/weights/weight_0                            the bytes of its storage
    <root>/data/constants/model_constants_config.json, tensor_0   those of constants
    <root>/models/model.json, data/sample_inputs/model.pt   the graph; a pickle: neither is read

Weights that are pickled themselves (`use_pickle`: subclasses of tensors) are left out. Reference:
torch/export/pt2_archive (_package.py, constants.py) and torch/_export/serde/schema.py of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import CONFIG_JSON, EXPANDED
from weighbridge.base.spec import in_c_order
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_records
from weighbridge.containers.base import Entry, Index, Region, Rule, Severity
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList
from weighbridge.io.source import Source

NAME: Final = "torch-exported"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**COMMON, "pickled": Rule(Severity.WARNING, "a tensor that is pickled inside the program is left out")}
)
#: ScalarType of the schema -> type.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "U8", 2: "I8", 3: "I16", 4: "I32", 5: "I64", 6: "F16", 7: "F32", 8: "F64", 10: "C64", 11: "C128", 12: "BOOL",
        13: "BF16", 28: "U16", 29: "F8_E4M3", 30: "F8_E5M2", 31: "F8_E4M3FNUZ", 32: "F8_E5M2FNUZ", 33: "F8_E8M0",
        34: "U32", 35: "U64",
    }
)  # fmt: skip
_CONFIGS: Final = re.compile(r"([^/]+/data/(?:weights|constants)/)[^/]+_(?:weights|constants)_config\.json")


class _Number(msgspec.Struct):
    as_int: int = -1


class _Meta(msgspec.Struct):
    dtype: int
    sizes: list[_Number]
    strides: list[_Number]
    storage_offset: _Number


class _Payload(msgspec.Struct):
    path_name: str
    use_pickle: bool = False
    tensor_meta: _Meta | None = None


class _Config(msgspec.Struct):
    config: dict[str, _Payload]


def parse(source: Source) -> Index:
    """The weights, then the constants, in the order of their configs."""
    members = {member.name: member for member in zips.read(source).members}
    found = TensorList(NAME, source, RULES)
    configs = [(name, match[1]) for name in members if (match := _CONFIGS.fullmatch(name))]
    if not configs:
        raise UnsupportedError(f"{source.name}: an exported program without a list of its weights",
                               hint="export it again with a current torch")  # fmt: skip
    for name, folder in configs:
        for tensor, payload in _config(source, members[name]).items():
            member = members.get(folder + payload.path_name)
            if member is None:
                raise found.error(
                    "a tensor's member is missing", tensor, members[name].start, found=payload.path_name[:80]
                )
            if payload.use_pickle or payload.tensor_meta is None:
                found.finding("pickled", "left out: it is a pickle", member.start, tensor)
                continue
            if member.method != zip_records.STORED:
                raise UnsupportedError(
                    f"{source.name}: {member.name} is compressed", hint="store the members of the zip"
                )
            _add(found, tensor, member, payload.tensor_meta)
    stated = next((m for name, m in members.items() if name.count("/") == 1 and name.endswith("/byteorder")), None)
    order = zips.read_member(source, stated, 64) if stated else b"little"
    if order != b"little":
        raise UnsupportedError(f"{source.name}: its byte order is {order[:20]!r}")
    return found.index({})


def _config(source: Source, member: zips.ZipMember) -> dict[str, _Payload]:
    path = f"{source.name}::{member.name}"
    data = zips.read_member(source, member, CONFIG_JSON)
    try:
        return msgspec.json.decode(data, type=_Config).config
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the list of weights can't be read: {error}", path=path) from None


def _add(found: TensorList, name: str, member: zips.ZipMember, meta: _Meta) -> None:
    shape, strides = ([n.as_int for n in numbers] for numbers in (meta.sizes, meta.strides))
    kind, dtype = f"number {meta.dtype} of ScalarType", DTYPES.get(meta.dtype)
    spec = found.spec(name, dtype, shape, kind, member.at)
    if spec is None:
        return
    if len(strides) != len(shape) or min((*strides, meta.storage_offset.as_int)) < 0:
        raise found.error("the strides are impossible", name, member.at, found=strides[:8])
    size = BY_NAME[str(dtype)].size
    start = meta.storage_offset.as_int * size
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if spec.elements else -1
    end = start + (last + 1) * size
    if end > member.size:
        raise found.error(
            "a tensor reaches beyond its storage", name, member.at, expected=f"<= {member.size}", found=end
        )
    if spec.nbytes > max(end - start, EXPANDED):
        raise UnsupportedError(f"{found.source.name}: {name!r} is an expanded view of {spec.nbytes:,} bytes")
    view = None if in_c_order(spec.shape, tuple(strides)) else tuple(strides)
    found.add(name, dtype, shape, member.start + start, end - start, kind=kind, at=member.at, strides=view)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; a member with weights by its tensors."""
    try:
        entries = parse(source).entries
    except (FormatError, UnsupportedError):
        entries = ()
    names: dict[int, list[Entry]] = {}
    for entry in entries:
        names.setdefault(entry.offset, []).append(entry)
    return zips.regions(source, lambda _, member: [_region(member, names.get(member.start, []))])


def _region(member: zips.ZipMember, inside: list[Entry]) -> Region:
    end = member.start + member.packed
    if not inside:
        return Region(member.start, end, "value", member.name)
    return Region(
        member.start, end, "tensor", ", ".join(e.name for e in inside[:3]), f"{inside[0].spec}, {member.name}"
    )
