"""The tensors of a model as a GGUF holds them, by headers and config alone: names, shapes, types, key-values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weighbridge.base.dtypes import BF16, F16, F32, DType, Kind
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.ftypes import FILE_TYPES, FileType
from weighbridge.base.spec import Spec, spec_of, without_leading_ones
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.quantize import ftypes
from weighbridge.models.arch import kv_tensors
from weighbridge.models.arch.derived import MAKERS
from weighbridge.models.arch.dialects import optional_places
from weighbridge.models.arch.expand import Instance, TensorSlot
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config.mapping import config_to_gguf


@dataclass(frozen=True)
class GgufModel:
    """A model as a GGUF. `tensors`: in the source's types where that is a GGUF, else as an unquantized GGUF has them.
    `quantized`: whether the source's matrices are quantized. `stored`: bytes of the source's tensors. `native`: the
    file type that keeps the codes in which the model was published."""

    keys: Mapping[str, Any]
    tensors: Mapping[str, Spec]
    stored: int
    quantized: bool
    is_gguf: bool
    native: str | None = None

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"])

    @cached_property
    def parameters(self) -> int:
        return sum(spec.elements for spec in self.tensors.values())

    def as_type(self, wanted: FileType) -> dict[str, Spec]:
        """The tensors with the types that llama-quantize would choose. (Refusals, for want of an importance matrix, are
        not looked for.)"""
        facts = ftypes.ModelFacts.of(self.keys)
        choice = ftypes.choose_types(self._ordered, facts, wanted, refusing=False)
        return {name: spec_of(self.tensors[name].shape, dtype) for name, dtype in choice.types.items()}

    @cached_property
    def _ordered(self) -> list[tuple[str, Spec]]:
        return ftypes.ordered(list(self.tensors.items()))


def gguf_model(model: Checkpoint) -> GgufModel:
    """UnsupportedError for a model whose memory no rule gives: without a family, or a file without a config."""
    stored = sum(entry.nbytes for entry in model.index)
    if model.format == "gguf":
        tensors = {e.name: Spec(e.shape, e.dtype) for e in model.index}
        return GgufModel(dict(model.metadata), tensors, stored, _quantized(t.dtype for t in tensors.values()), True)
    if not model.config:
        raise UnsupportedError(
            f"{model.place.path} has no config.json, which the memory depends on", hint="pass the model's folder"
        )
    keys = {"general.architecture": model.family.gguf}
    keys |= {key: kv.value for key, kv in config_to_gguf(model.config, model.family, file_type=0).items()}
    dialect, prefix = model.family.dialect_and_prefix(model.index.by_name, model.sizes)
    tensors = dict(_converted(model, dialect, prefix))
    packed = bool(model.config.get("quantization_config") or model.config.get("quantization"))
    return GgufModel(keys, tensors, stored, packed, False, _native(model, dialect))


def _native(model: Checkpoint, dialect: str) -> str | None:
    block = model.family.dialects[dialect].block_dtype
    return next((row.name for row in FILE_TYPES.values() if block and row.type and row.type.name == block), None)


def _quantized(dtypes: Iterator[DType]) -> bool:
    return any(dtype.kind is Kind.BLOCK for dtype in dtypes)


def _converted(model: Checkpoint, dialect: str, prefix: str) -> Iterator[tuple[str, Spec]]:
    """The tensors that `wb convert` would write, by the family's table. `dialect`, `prefix`: of the source's names."""
    family, sizes = model.family, model.sizes
    dtype, inside = _main_dtype(model), set(kv_tensors.names(family))
    present = _optional_instances(model, dialect, prefix)
    for name, slot in family.expansion("gguf", sizes).places.items():
        if name in inside or not (slot.need is None or _made(model, slot) or not present.isdisjoint(slot.instances)):
            continue
        shape = without_leading_ones(slot.shape)
        yield name, Spec(shape, dtype_policy.gguf_dtype(name, Spec(shape, dtype), dtype))


def _main_dtype(model: Checkpoint) -> DType:
    """The type of all matrices, if it is one of 16 bits, else F32, as `wb quantize` takes them."""
    dtypes = {entry.dtype for entry in model.index if len(entry.shape) > 1}
    one = next(iter(dtypes)) if len(dtypes) == 1 else None
    return one if one in (BF16, F16) else F32


def _made(model: Checkpoint, slot: TensorSlot) -> bool:
    """Whether a tensor follows from the config."""
    derived = model.family.rows[slot.roles[0]].derived
    return derived is not None and MAKERS[derived](model.sizes.facts) is not None


def _optional_instances(model: Checkpoint, dialect: str, prefix: str) -> set[Instance]:
    """The optional roles that the source's names show. A packed weight has other endings than a plain one."""
    names = model.index.by_name
    absent = [slot for slot in optional_places(model.family, dialect, model.sizes, prefix) if slot.name not in names]
    stems = {name.rpartition(".")[0] for name in names} if absent else set()
    missing = {slot.name for slot in absent if not (slot.name.endswith(".weight") and slot.name[:-7] in stems)}
    return {
        instance
        for slot in optional_places(model.family, dialect, model.sizes, prefix)
        if slot.name not in missing
        for instance in slot.instances
    }
