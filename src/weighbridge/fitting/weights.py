"""The tensors and metadata that a model has as a GGUF, from its headers and config only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from weighbridge.base.dtypes import BF16, F16, F32, Kind
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.ftypes import FILE_TYPES, FileType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec, spec_of, without_leading_ones
from weighbridge.containers.formats import DIFFUSERS_CLASS
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.quantize import ftypes
from weighbridge.models.arch.derived import MAKERS
from weighbridge.models.arch.naming import optional_places
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.models.model import OpenModel

_LISTED: Final = 6  # parts of a checkpoint


@dataclass(frozen=True)
class GgufModel:
    """A model as a GGUF. `tensors`: with the source's types if it is a GGUF, else those of an unquantized GGUF.
    `stored`: bytes of the source's tensors. `quantized`: whether the source's matrices are quantized. `native`: the
    file type that keeps the published codes."""

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

    def as_type(self, ftype: FileType) -> dict[str, Spec]:
        """Returns the tensors with the types that llama-quantize would choose, ignoring whether it would refuse to
        quantize without an importance matrix."""
        facts = ftypes.ModelFacts.of(self.keys)
        choice = ftypes.choose_types(self._ordered, facts, ftype, refusing=False)
        return {name: spec_of(self.tensors[name].shape, dtype) for name, dtype in choice.types.items()}

    @cached_property
    def _ordered(self) -> list[tuple[str, Spec]]:
        return ftypes.ordered(list(self.tensors.items()))


def gguf_model(model: OpenModel) -> GgufModel:
    """Returns an open model as a GGUF. Raises UnsupportedError without a family, an architecture or a config."""
    stored = sum(entry.nbytes for entry in model.index)
    is_language = model.format != "gguf" and model.config and DIFFUSERS_CLASS not in model.config
    if not is_language and model.makes_pictures:
        sizes = Counter[str]()
        for entry in model.index:
            sizes[entry.name.partition(".")[0]] += entry.nbytes
        parts = ", ".join(f"{part} {size:,}" for part, size in sizes.most_common(_LISTED))
        more = f" and {len(sizes) - _LISTED} more" if len(sizes) > _LISTED else ""
        raise UnsupportedError(
            f"{model.place.path} makes pictures: its memory depends on their size, which isn't computed",
            hint=f"the weights alone have {stored:,} bytes: {parts}{more}",
        )
    if model.format == "gguf":
        if not isinstance(model.metadata.get("general.architecture"), str):
            raise UnsupportedError(
                f"{model.place.path} has no general.architecture, which the memory depends on",
                hint="wb verify lists further missing keys",
            )
        tensors = {e.name: Spec(e.shape, e.dtype) for e in model.index}
        quantized = any(spec.dtype.kind is Kind.BLOCK for spec in tensors.values())
        return GgufModel(dict(model.metadata), tensors, stored, quantized, True)
    if not model.config:
        from weighbridge.models.lora.forms import adapter_form  # late, as are the next: most models have a config
        from weighbridge.models.lora.pictures import is_picture_lora
        from weighbridge.models.whisper.forms import form_of

        if form_of(model) is not None:
            raise UnsupportedError(
                f"{model.place.path} is a Whisper: wb fit has no rules for its programs",
                hint=f"the weights alone have {stored:,} bytes",
            )
        if adapter_form(model) is not None or is_picture_lora(model):
            raise UnsupportedError(
                f"{model.place.path} is a LoRA, which is loaded with its base model",
                hint="wb fit MODEL; wb convert MODEL DST --lora FILE writes a model with it",
            )
        raise UnsupportedError(
            f"{model.place.path} has no config.json, which the memory depends on", hint="wb fit MODEL --config FILE"
        )
    keys = {"general.architecture": model.family.gguf}
    keys |= {key: kv.value for key, kv in config_to_gguf(model.config, model.family, file_type=0).items()}
    dialect, prefix = model.family.dialect_and_prefix(model.index.by_name, model.sizes)
    tensors = dict(_converted(model, dialect, prefix))
    packed = bool(model.config.get("quantization_config") or model.config.get("quantization"))
    block = model.family.dialects[dialect].block_dtype
    native = (row.name for row in FILE_TYPES.values() if block and row.type and row.type.name == block)
    return GgufModel(keys, tensors, stored, packed, False, next(native, None))


def _converted(model: OpenModel, dialect: str, prefix: str) -> Iterator[tuple[str, Spec]]:
    """Yields the tensors that `wb convert` would write, by the family's table. Matrices get the source's type if all
    have one of 16 bits, else F32, as in `wb quantize`. `dialect`, `prefix`: of the source's names."""
    family, sizes = model.family, model.sizes
    dtypes = {entry.dtype for entry in model.index if len(entry.shape) > 1}
    dtype = next((half for half in (BF16, F16) if dtypes == {half}), F32)
    metadata_tensors, f32 = set(family.metadata_names()), family.dialects["gguf"].f32
    # Optional roles that the source has. A packed weight is recognised by its name without ending.
    names, slots = model.index.by_name, list(optional_places(family, dialect, sizes, prefix))
    absent = [slot for slot in slots if slot.name not in names]
    stems = {name.rpartition(".")[0] for name in names} if absent else set()
    missing = {slot.name for slot in absent if not (slot.name.endswith(".weight") and slot.name[:-7] in stems)}
    present = {instance for slot in slots if slot.name not in missing for instance in slot.instances}
    for name, slot in family.expansion("gguf", sizes).places.items():
        if name in metadata_tensors:
            continue
        row = family.rows[slot.roles[0]]
        follows = row.derived is not None and MAKERS[row.derived](sizes.facts) is not None  # from the config
        if slot.need is None or follows or row.name in family.copied or not present.isdisjoint(slot.instances):
            kept = dtype_policy.gguf_dtype(name, Spec(slot.shape, dtype), dtype, f32)
            yield name, Spec(without_leading_ones(slot.shape), kept)
