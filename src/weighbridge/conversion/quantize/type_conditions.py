"""The conditions of the rules of ftypes.toml, and the facts of the model and the tensor that they test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.conversion.quantize.ftype_table import TypeRule, table
from weighbridge.models.llamacpp import table as loader_table


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model. `architecture`: of an mmproj file with the projector's type. `heads`, `kv_heads`: of the first
    layer. `layers`: all, including `nextn` for speculative decoding."""

    architecture: str
    layers: int
    heads: int = 0
    kv_heads: int = 0
    experts: int = 0
    nextn: int = 0

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> ModelFacts:
        """From a GGUF's key-values, with llama.cpp's defaults (llama_model_base::load_hparams)."""
        arch = metadata.get("general.architecture")
        if not isinstance(arch, str):
            raise FormatError("the architecture is missing", field="general.architecture", found=arch)
        if arch in loader_table().parts:  # of a part, such as an mmproj file, llama-quantize reads no sizes
            return cls(f"{arch} {metadata.get(f'{arch}.projector_type', '')}".strip(), layers=0)
        heads = _first(metadata, f"{arch}.attention.head_count", 0)
        return cls(
            arch,
            layers=_first(metadata, f"{arch}.block_count", None),
            heads=heads,
            kv_heads=_first(metadata, f"{arch}.attention.head_count_kv", heads),
            experts=_first(metadata, f"{arch}.expert_count", 0),
            nextn=_first(metadata, f"{arch}.nextn_predict_layers", 0),
        )

    @property
    def gqa(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads if self.kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """Whether the reference treats it as a 70B model."""
        row = table().large_models.get(self.architecture)
        if row is None or self.layers - self.nextn != row.layers:
            return False
        return not any(
            {"plain heads": self.heads == self.kv_heads, "8 experts": self.experts == 8}[u] for u in row.unless
        )


def _first(metadata: Mapping[str, Any], key: str, default: int | None) -> int:
    """A number, or the first one of a list with one per layer."""
    value = metadata.get(key, default)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FormatError("types depend on this number", field=key, expected="a number", found=value)
    return value


class TensorFacts(NamedTuple):
    """The facts that a condition may test.

    They are those of the model, whether there is an importance matrix, the block size of the file type, and the tensor,
    the `nth` of `total` of its role.
    """

    facts: ModelFacts
    imatrix: bool
    block: int
    spec: Spec
    nth: int
    total: int


CONDITIONS: Final[Mapping[str, Callable[[TensorFacts], bool]]] = MappingProxyType(
    {
        "70B": lambda at: at.facts.is_70b,
        "grouped by 4": lambda at: at.facts.gqa >= 4,
        "8 experts": lambda at: at.facts.experts == 8,
        "4 experts or more": lambda at: at.facts.experts >= 4,
        "imatrix": lambda at: at.imatrix,
        "broken blocks": lambda at: bool(at.spec.shape[-1] % at.block),
        "stacked": lambda at: len(at.spec.shape) > 2 and at.spec.shape[-3] > 1,
        "first two": lambda at: at.nth < 2,
        "first four": lambda at: at.nth < 4,
        "first eighth": lambda at: at.nth < at.total // 8,
        "first sixteenth": lambda at: at.nth < at.total // 16,
        "middle": lambda at: at.total // 8 <= at.nth < 7 * at.total // 8,
        # the first and the last eighth, and every third between: `use_more_bits`
        "more bits": lambda at: not at.total // 8 <= at.nth < 7 * at.total // 8 or (at.nth - at.total // 8) % 3 == 2,
    }
)


def matches(rule: TypeRule, name: str, place: TensorFacts, now: DType) -> bool:
    """Whether a rule about the tensor's role and file type applies to it. `now`: its type so far."""
    return (
        (not rule.part or any(part in name for part in rule.part))
        and (not rule.only_from or now.name in rule.only_from)
        and all(_holds(condition, place) for condition in rule.when)
    )


def _holds(condition: str, place: TensorFacts) -> bool:
    """Whether a condition holds: a key of `CONDITIONS` or `architecture NAME`, negated by a leading `not`."""
    if condition.startswith("not "):
        return not _holds(condition.removeprefix("not "), place)
    if condition.startswith("architecture "):
        return place.facts.architecture == condition.removeprefix("architecture ")
    return CONDITIONS[condition](place)
