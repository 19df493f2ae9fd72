"""The type of each tensor in a GGUF of an image or video model, by the rules of ComfyUI-GGUF (diffusion_types.toml).

The base type of a tensor is that of an unquantized file. Matrices may be quantized: of those, mixtures choose the type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, DType, Kind
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FileType
from weighbridge.base.imports.tables import read_table
from weighbridge.base.spec import Shape, Spec, without_leading_ones
from weighbridge.conversion.quantize import ftypes

_SMALL: Final = 1024  # elements of a tensor that stays F32 (tools/convert.py, QUANTIZATION_THRESHOLD)
_REARRANGED: Final = 512  # and of the smallest whose rows are divided anew (REARRANGE_THRESHOLD)
_ROW: Final = 256


class PrecisionRules(NamedTuple):
    """The rules of an architecture; the columns are described in the table."""

    keep: tuple[str, ...]
    keep_names: frozenset[str]
    f32: tuple[str, ...]
    ignore: tuple[str, ...]
    reshape: bool


class MixGroup(NamedTuple):
    """Tensors whose type a mixture raises. `parts`: of names; all texts of one entry must be in the name."""

    name: str
    parts: tuple[tuple[str, ...], ...]
    first: Mapping[str, tuple[int, DType]]
    types: Mapping[str, DType]


class DiffusionTypes(NamedTuple):
    """The content of diffusion_types.toml."""

    architectures: Mapping[str, PrecisionRules]
    groups: tuple[MixGroup, ...]
    file_types: frozenset[str]


@cache
def table() -> DiffusionTypes:
    """The parsed table."""
    return build_table(read_table(__file__, "diffusion_types.toml"))


def build_table(raw: Mapping[str, Any]) -> DiffusionTypes:
    """The rules of a parsed table."""
    return DiffusionTypes(
        {
            name: PrecisionRules(
                tuple(row["keep"]),
                frozenset(row.get("keep_names", ())),
                tuple(row.get("f32", ())),
                tuple(row.get("ignore", ())),
                row.get("reshape", False),
            )
            for name, row in raw["architecture"].items()
        },
        tuple(
            MixGroup(
                row["name"],
                tuple((part,) if isinstance(part, str) else tuple(part) for part in row["parts"]),
                {name: (count, BY_NAME[dtype]) for name, (count, dtype) in row.get("first", {}).items()},
                {name: BY_NAME[dtype] for name, dtype in row["types"].items()},
            )
            for row in raw["group"]
        ),
        frozenset(raw["file_types"]),
    )


def is_ignored(rules: PrecisionRules, name: str) -> bool:
    """Whether a tensor is left out: it is computed when a model is built."""
    return any(part in name for part in rules.ignore)


def stored_shape(rules: PrecisionRules, shape: Shape) -> Shape:
    """The shape in the file: rows of 256 elements, if the architecture divides rows anew."""
    count = prod(shape)
    if not rules.reshape or len(shape) < 2 or count < _REARRANGED or count % _ROW or shape[-1] % _ROW == 0:
        return shape
    return count // _ROW, _ROW


def base_dtype(rules: PrecisionRules, name: str, source: Spec, requested: DType | None) -> DType:
    """The type of a tensor in an unquantized file. `requested`: of matrices; None: BF16 of BF16, else F16."""
    if source.dtype.kind is not Kind.FLOAT or len(source.shape) > 4:
        return F32 if len(source.shape) > 4 or source.dtype.kind is Kind.INT else requested or F16
    small = len(source.shape) < 2 or source.elements <= _SMALL or any(part in name for part in rules.f32)
    if small and source.dtype in (F32, BF16):
        return F32
    return requested or (BF16 if source.dtype is BF16 else F16)


def quantizable(architecture: str, name: str, spec: Spec) -> bool:
    """Whether the type of a tensor may change: matrices that no rule keeps. `spec`: in the file."""
    rules = table().architectures[architecture]
    if name in rules.keep_names or any(part in name for part in rules.keep):
        return False
    return len(without_leading_ones(spec.shape)) == 2 and ftypes.quantizable(name, spec, architecture)


def choose_types(
    tensors: Sequence[tuple[str, Spec]], architecture: str, ftype: FileType | None, options: ftypes.TypeOptions
) -> ftypes.TypeChoice:
    """Chooses the type of each tensor. `ftype`: None for COPY. Raises UsageError for a type without rules."""
    if ftype is None:
        return ftypes.TypeChoice({name: spec.dtype for name, spec in tensors})
    if ftype.name not in table().file_types or ftype.type is None:
        known = ", ".join(sorted(table().file_types))
        raise UsageError(f"ComfyUI-GGUF has no rules for {ftype.name}", hint=f"it has rules for {known}")
    seen = Counter[str]()
    types: dict[str, DType] = {}
    fallbacks: dict[str, tuple[DType, DType]] = {}
    refusals: list[ftypes.Refusal] = []
    for name, spec in tensors:
        types[name] = spec.dtype
        if not quantizable(architecture, name, spec):
            continue
        mixed = ftype.type if options.pure else _mixed(name, ftype, ftype.type, seen)
        target = options.type_of(name) or mixed
        if spec.shape[-1] % target.block:
            fallbacks[name] = (target, F16)
            target = F16
        types[name] = target
        if spec.dtype.kind is Kind.BLOCK and spec.dtype is not target and not options.allow_requantize:
            refusals.append(ftypes.Refusal(name, "requantize", f"it is already quantized to {spec.dtype}"))
    return ftypes.TypeChoice(types, fallbacks, tuple(refusals))


def _mixed(name: str, ftype: FileType, default: DType, seen: Counter[str]) -> DType:
    """The type by the mixture. `seen`: tensors of each group so far."""
    group = next((g for g in table().groups if any(all(p in name for p in parts) for parts in g.parts)), None)
    if group is None:
        return default
    seen[group.name] += 1
    count, early = group.first.get(ftype.name, (0, default))
    return early if seen[group.name] <= count else group.types.get(ftype.name, default)
