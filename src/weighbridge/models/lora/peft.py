"""PEFT's folders: adapter_config.json, and adapter_model.safetensors or .bin with the pairs under their modules' names.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight      [rank, in]
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight      [out, rank]
    base_model.model.model.embed_tokens.lora_embedding_A                [rank, vocabulary], B [hidden, rank]

peft 0.18: tuners/lora/config.py, layer.py (scaling), utils/save_and_load.py (removes an adapter's name from names).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.arch.tables.values import number
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

CONFIG: Final = "adapter_config.json"
STEM: Final = "adapter_model"
_FRONT: Final = "base_model.model."
_PART: Final = re.compile(r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<which>[AB])(?:\.(?!bias$)\w+)*", re.ASCII)
_BASE_LAYER: Final = ".base_layer."
_LENGTHS: Final = re.compile(r"(?P<module>.+)\.lora_magnitude_vector(?:\.\w+)*", re.ASCII)
# Settings that change the result and aren't expressed by pairs: key -> description.
_UNSUPPORTED: Final = {
    "use_qalora": "QA-LoRA: its A is over groups of inputs",
    "lora_bias": "biases of B",
    "layer_replication": "repeated layers",
    "use_bdlora": "block-diagonal matrices",
    "arrow_config": "a router over adapters",
}
_MERGE: Final = "merge it with PEFT (merge_and_unload), and convert the model"


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter: pairs and whole tensors (norms), keyed by the tensors they are for, in file order. `base_weights`:
    the base's weights, which PEFT stores next to the pair of an embedding. `alpha`: a pair is scaled by alpha/rank.
    `tokens`: the sequence that activates an aLoRA. `alphas` (per module name or pattern) and `root` (alpha/sqrt(rank))
    come from PEFT's config and are unset once resolved."""

    pairs: Mapping[str, LoraPair]
    whole: Mapping[str, Node] = field(default_factory=dict)
    base_weights: Mapping[str, Node] = field(default_factory=dict, kw_only=True)
    alpha: float = 1.0
    base: str | None = None
    tokens: tuple[int, ...] = ()
    alphas: Mapping[str, float] = field(default_factory=dict)
    root: bool = False
    version: tuple[int, ...] = ()  # PEFT's version, if given

    def scale(self, pair: LoraPair) -> float:
        return self.alpha / pair.rank


def read(model: OpenModel) -> LoraAdapter:
    """Reads the adapter in a PEFT folder. Raises UnsupportedError for anything but a plain LoRA, and FormatError if
    half of a pair is missing."""
    config = model.json(CONFIG) or {}
    path = str(model.place.folder / CONFIG)
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise UnsupportedError(f"{path}: an adapter of type {kind}, not LORA", hint=_MERGE)
    for key, description in _UNSUPPORTED.items():
        if config.get(key):
            raise UnsupportedError(f"{path}: {key} is set: {description}, not B @ A", hint=_MERGE)
    pairs, whole, base_weights = _pairs(model)
    if config.get("use_dora") and (bare := next((n for n, pair in pairs.items() if pair.lengths is None), None)):
        raise FormatError("use_dora is set, but a pair has no row lengths", path=path, field=bare,
                          expected=f"{bare.removesuffix('.weight')}.lora_magnitude_vector", found="none")  # fmt: skip
    if not pairs:
        raise FormatError("contains no LoRA pairs", path=str(model.place.path), expected="MODULE.lora_A.weight")
    tokens = token_ids(config.get("alora_invocation_tokens"), path, "alora_invocation_tokens")
    base = config.get("base_model_name_or_path")
    alphas = config.get("alpha_pattern") or {}  # of individual modules
    if not isinstance(alphas, Mapping):
        value = repr(alphas)[:80]
        raise FormatError("isn't a mapping of modules to numbers", path=path, field="alpha_pattern", found=value)
    version = re.match(r"(\d{1,4})\.(\d{1,4})", str(config.get("peft_version") or ""), re.ASCII)
    return LoraAdapter(
        pairs, whole, number(config.get("lora_alpha", 8), "lora_alpha"), base if isinstance(base, str) else None,
        tokens, {str(key): number(value, f"alpha_pattern.{key}") for key, value in alphas.items()},
        bool(config.get("use_rslora")), (int(version[1]), int(version[2])) if version else (),
        base_weights=base_weights,
    )  # fmt: skip


def token_ids(declared: Any, path: str, field: str) -> tuple[int, ...]:
    """Validates a list of token ids; empty if the config has none."""
    listed = declared or ()
    whole = hasattr(listed, "__len__") and not isinstance(listed, str | Mapping)
    if not whole or any(type(t) is not int or not 0 <= t < 1 << 32 for t in listed):
        raise FormatError("isn't a list of token ids", path=path, field=field, found=repr(declared)[:80])
    return tuple(listed)


def _pairs(model: OpenModel) -> tuple[dict[str, LoraPair], dict[str, Node], dict[str, Node]]:
    """Returns the pairs, the whole tensors, and the base's weights."""
    halves: dict[str, dict[str, Node]] = {}
    tables: set[str] = set()
    lengths: dict[str, Node] = {}
    whole: dict[str, Node] = {}
    base_weights: dict[str, Node] = {}
    for name in sorted(model.stored) if model.format == "safetensors" else model.stored:
        node, short = model.stored[name], name.removeprefix(_FRONT)
        if _BASE_LAYER in name and ".lora_" not in name:
            base_weights[short.replace(_BASE_LAYER, ".")] = node
        elif magnitude := _LENGTHS.fullmatch(short):
            lengths[f"{magnitude['module']}.weight"] = node
        elif match := _PART.fullmatch(short):
            target = f"{match['module']}.weight"
            halves.setdefault(target, {})[match["which"]] = node
            tables |= {target} if match["table"] else set()
        else:
            whole[short.replace(".modules_to_save", "")] = node
    pairs = {name: _pair(name, parts, lengths.pop(name, None)) for name, parts in halves.items()}
    if lengths:
        raise FormatError("row lengths (DoRA) without a pair", field=next(iter(lengths)))
    # An embedding is [vocabulary, hidden] with A over the vocabulary: the change is (B @ A) transposed.
    return {n: p.turned() if n in tables else p for n, p in pairs.items()}, whole, base_weights


def _pair(name: str, halves: Mapping[str, Node], lengths: Node | None) -> LoraPair:
    """Checks A [rank, in], B [out, rank] and a DoRA's row lengths [out]."""
    from weighbridge.tensors.nodes import reshape

    if set(halves) != {"A", "B"}:
        raise FormatError(f"an adapter's pair without its {'A' if 'B' in halves else 'B'}", field=name)
    a, b = halves["A"].spec, halves["B"].spec
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        raise FormatError("A and B have different ranks", field=name, expected="[rank, in] and [out, rank]",
                          found=f"{list(a.shape)} and {list(b.shape)}")  # fmt: skip
    if lengths is None:
        return LoraPair(halves["A"], halves["B"])
    if lengths.spec.elements != b.shape[0]:
        raise FormatError("row lengths (DoRA) don't match the pair", field=name,
                          expected=f"[{b.shape[0]}]", found=str(list(lengths.spec.shape)))  # fmt: skip
    return LoraPair(halves["A"], halves["B"], reshape(lengths, (b.shape[0], 1)))


# ------------------------------------------------------------------------------------------------ writing


def write(
    adapter: LoraAdapter, tables: frozenset[str], *, conv: bool = False
) -> tuple[dict[str, Node], dict[str, Any]]:
    """Returns the tensors and config of a PEFT folder. `tables`: the embeddings' names. `conv`: whether the model's
    layers are GPT-2's Conv1D. Whole tensors are modules to save, whose names PEFT writes like those of the base."""
    from weighbridge.tensors.nodes import transpose

    tensors: dict[str, Node] = {}
    for name, pair in adapter.pairs.items():
        module = f"{_FRONT}{name.removesuffix('.weight')}"
        if name in tables:
            tensors[f"{module}.lora_embedding_A"] = transpose(pair.b)
            tensors[f"{module}.lora_embedding_B"] = transpose(pair.a)
        else:
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = pair.a, pair.b
    tensors |= {f"{_FRONT}{name}": node for name, node in adapter.whole.items()}
    ranks = Counter(pair.rank for pair in adapter.pairs.values())
    rank = ranks.most_common(1)[0][0] if ranks else 1
    # Modules by full name: PEFT matches a bare last component against every module that ends in it.
    modules = {name.removesuffix(".weight"): pair for name, pair in adapter.pairs.items()}
    config = {
        "alpha_pattern": {name: int(alpha) if alpha.is_integer() else alpha for name, alpha in adapter.alphas.items()},
        "base_model_name_or_path": adapter.base,
        "bias": "none",
        "fan_in_fan_out": conv,
        "inference_mode": True,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": sorted({name.rpartition(".")[0] for name in adapter.whole}) or None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {module: pair.rank for module, pair in modules.items() if pair.rank != rank},
        "target_modules": sorted(modules),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
        **({"alora_invocation_tokens": list(adapter.tokens)} if adapter.tokens else {}),
    }
    return tensors, config
