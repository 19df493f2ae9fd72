"""Bits, group size and mode of a weight: from the weight itself; and for MLX weights whose config says nothing, from
shapes alone.

Shapes fix only the product of bits and group size. The family's table knows how many columns the matrix has, which
settles both; where no table knows the model, MLX's default group of 64 is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from weighbridge.base.dtypes import U32, Kind
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.packings.schema.affine import BITS, GROUPS
from weighbridge.packings.schema.base import settings
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor

_USUAL_GROUP = 64


class WeightQuantization(NamedTuple):
    """`bits` of a code (of a ggml type: bits per weight, its scales included), columns that share a scale (`group`;
    None where all do), and `mode`: the packing or the block type."""

    bits: float
    group: int | None
    mode: str


def quantization_of(tensor: LogicalTensor) -> WeightQuantization | None:
    """How one weight is quantized; None where it isn't."""
    if isinstance(tensor, QuantizedTensor):
        packing = tensor.packing
        return WeightQuantization(getattr(packing, "bits", 0), getattr(packing, "group", None) or None, packing.name)
    dtype = tensor.spec.dtype
    return WeightQuantization(dtype.bits, dtype.block, dtype.name) if dtype.kind is Kind.BLOCK else None


def most_common(tensors: Iterable[LogicalTensor]) -> WeightQuantization | None:
    """The quantization of most elements of a model's quantized weights; None where none is quantized."""
    counts = Counter[WeightQuantization]()
    for tensor in tensors:
        if (found := quantization_of(tensor)) is not None:
            counts[found] += tensor.spec.elements
    return max(counts, key=counts.__getitem__) if counts else None


def inferred(model: Checkpoint) -> dict[str, Any] | None:
    """MLX's `quantization` object from shapes; None where the config has one, or no weight asks for it."""
    if model.format != "safetensors" or settings(model.config):
        return None
    columns = _columns(model)
    found = {module: _parameters(model, module, columns.get(f"{module}.weight")) for module in _modules(model)}
    if not found:
        return None
    usual = Counter(found.values()).most_common(1)[0][0]
    own = {module: _table(*pair) for module, pair in found.items() if pair != usual}
    return {**_table(*usual), **own}


def _table(bits: int, group: int) -> dict[str, Any]:
    return {"bits": bits, "group_size": group}


def _modules(model: Checkpoint) -> list[str]:
    """Modules that look like MLX affine: words, scales and biases."""
    entries = model.index.by_name
    names = (name.removesuffix(".biases") for name in entries if name.endswith(".biases"))
    return [m for m in names if (w := entries.get(f"{m}.weight")) and w.dtype is U32 and f"{m}.scales" in entries]


def _columns(model: Checkpoint) -> Mapping[str, int]:
    """Name -> columns of the matrix, by the family's table; {} where none knows the model."""
    try:
        family, sizes = model.family, model.sizes
        dialect, prefix = family.dialect_and_prefix([*model.index.by_name], sizes)
    except (UnsupportedError, FormatError):
        return {}
    places = family.expansion(dialect, sizes, prefix).places
    return {name: place.shape[-1] for name, place in places.items() if place.shape}


def _parameters(model: Checkpoint, module: str, columns: int | None) -> tuple[int, int]:
    """(bits, group size). FormatError where the shapes allow none."""
    words = model.index.by_name[f"{module}.weight"].shape[-1]
    groups = model.index.by_name[f"{module}.scales"].shape[-1]
    columns = columns or groups * _USUAL_GROUP
    bits, group = 32 * words // columns, columns // max(groups, 1)
    if bits not in BITS or group not in GROUPS or bits * columns != 32 * words or group * groups != columns:
        raise FormatError(
            "bits and group size don't follow from the shapes", field=module,
            expected=f"bits of {BITS} and groups of {GROUPS}", found=f"{words} words, {groups} groups",
            hint='pass quantization={"bits": ..., "group_size": ...}',
        )  # fmt: skip
    return bits, group
