"""PEFT's folders: adapter_config.json, and adapter_model.safetensors or .bin with the pairs under their modules' names.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight      [rank, in]
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight      [out, rank]
    base_model.model.model.embed_tokens.lora_embedding_A                [rank, vocabulary], B [hidden, rank]

peft 0.18: tuners/lora/config.py, layer.py (scaling), utils/save_and_load.py (an adapter's name is taken out of names).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.tables.values import number
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.lora.pairs import LoraPair

if TYPE_CHECKING:
    from weighbridge.base.spec import Spec
    from weighbridge.tensors.nodes import Node

CONFIG: Final = "adapter_config.json"
STEM: Final = "adapter_model"
_FRONT: Final = "base_model.model."
_PART: Final = re.compile(r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<which>[AB])(?:\.(?!bias$)\w+)*", re.ASCII)
_LENGTHS: Final = re.compile(r"(?P<module>.+)\.lora_magnitude_vector(?:\.\w+)*", re.ASCII)
# Settings that change what is computed and aren't pairs: key -> description.
_OTHERS: Final = {
    "use_qalora": "QA-LoRA: its A is over groups of inputs",
    "lora_bias": "biases of B",
    "layer_replication": "layers that are repeated",
    "use_bdlora": "block-diagonal matrices",
    "arrow_config": "a router over adapters",
}
_MERGE: Final = "merge it with PEFT (merge_and_unload), and convert the model"


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter: pairs and whole tensors (norms), keyed by the tensors they are for, in file order. `alpha`: a pair
    is scaled by alpha/rank. `tokens`: the sequence that activates an aLoRA. `alphas` (per module name or pattern)
    and `root` (alpha/sqrt(rank)) come from PEFT's config and are unset once resolved."""

    pairs: Mapping[str, LoraPair]
    whole: Mapping[str, Node] = field(default_factory=dict)
    alpha: float = 1.0
    base: str | None = None
    tokens: tuple[int, ...] = ()
    alphas: Mapping[str, float] = field(default_factory=dict)
    root: bool = False
    version: tuple[int, ...] = ()  # PEFT's version, where given

    def scale(self, pair: LoraPair) -> float:
        return self.alpha / pair.rank


def is_adapter(model: Checkpoint) -> bool:
    """Whether the weights are an adapter's. Its config also lies beside whole models, into which it was merged."""
    if model.format == "gguf" or not (model.place.folder / CONFIG).is_file():
        return False
    return any(w.name.startswith("adapter") for w in model.place.weights) or any("lora_" in e.name for e in model.index)


def read(model: Checkpoint) -> LoraAdapter:
    """The adapter in a PEFT folder. UnsupportedError for anything but a plain LoRA, FormatError where half of a pair
    is missing."""
    config = model.json(CONFIG) or {}
    path = str(model.place.folder / CONFIG)
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise UnsupportedError(f"{path}: an adapter of type {kind}, not LORA", hint=_MERGE)
    for key, words in _OTHERS.items():
        if config.get(key):
            raise UnsupportedError(f"{path}: {key} is set. That is {words}; it isn't B @ A", hint=_MERGE)
    pairs, whole = _pairs(model)
    if config.get("use_dora") and (bare := next((n for n, pair in pairs.items() if pair.lengths is None), None)):
        raise FormatError("use_dora is set, but a pair has no row lengths", path=path, field=bare,
                          expected=f"{bare.removesuffix('.weight')}.lora_magnitude_vector", found="none")  # fmt: skip
    if not pairs:
        raise FormatError("contains no LoRA pairs", path=str(model.place.path), expected="MODULE.lora_A.weight")
    tokens = token_ids(config.get("alora_invocation_tokens"), path, "alora_invocation_tokens")
    base = config.get("base_model_name_or_path")
    return LoraAdapter(
        pairs, whole, number(config.get("lora_alpha", 8), "lora_alpha"), base if isinstance(base, str) else None,
        tokens, _alphas(config, path), bool(config.get("use_rslora")), _version(config),
    )  # fmt: skip


def token_ids(declared: Any, path: str, field: str) -> tuple[int, ...]:
    """A list of token ids, validated; empty where the config has none."""
    listed = declared or ()
    whole = hasattr(listed, "__len__") and not isinstance(listed, str | Mapping)
    if not whole or any(type(t) is not int or not 0 <= t < 1 << 32 for t in listed):
        raise FormatError("isn't a list of token ids", path=path, field=field, found=repr(declared)[:80])
    return tuple(listed)


def _version(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The first two numbers of PEFT's version; () where it isn't given."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", str(config.get("peft_version") or ""), re.ASCII)
    return (int(match[1]), int(match[2])) if match else ()


def _alphas(config: Mapping[str, Any], path: str) -> Mapping[str, float]:
    """The alphas of individual modules."""
    others = config.get("alpha_pattern") or {}
    if not isinstance(others, Mapping):
        raise FormatError(
            "isn't a mapping of modules to numbers", path=path, field="alpha_pattern", found=repr(others)[:80]
        )
    return {str(key): number(value, f"alpha_pattern.{key}") for key, value in others.items()}


def _pairs(model: Checkpoint) -> tuple[dict[str, LoraPair], dict[str, Node]]:

    halves: dict[str, dict[str, Node]] = {}
    tables: set[str] = set()
    lengths: dict[str, Node] = {}
    whole: dict[str, Node] = {}
    for name in sorted(model.stored) if model.format == "safetensors" else model.stored:
        node, short = model.stored[name], name.removeprefix(_FRONT)
        if ".base_layer." in name and ".lora_" not in name:
            continue
        if (of_rows := _LENGTHS.fullmatch(short)) is not None:
            lengths[f"{of_rows['module']}.weight"] = node
            continue
        match = _PART.fullmatch(short)
        if match is None:
            whole[short.replace(".modules_to_save", "")] = node
            continue
        target = f"{match['module']}.weight"
        halves.setdefault(target, {})[match["which"]] = node
        tables |= {target} if match["table"] else set()
    for name, found in halves.items():
        _check_pair(name, found)
    pairs = {n: LoraPair(h["A"], h["B"], _lengths(n, lengths.pop(n, None), h["B"].spec)) for n, h in halves.items()}
    if lengths:
        raise FormatError("row lengths (DoRA) without a pair", field=next(iter(lengths)))
    # An embedding is [vocabulary, hidden] with A over the vocabulary: the change is (B @ A) transposed.
    return {n: p.turned() if n in tables else p for n, p in pairs.items()}, whole


def _lengths(name: str, node: Node | None, b: Spec) -> Node | None:
    """A DoRA's row lengths as a column."""
    from weighbridge.tensors.nodes import reshape

    if node is not None and node.spec.elements != b.shape[0]:
        raise FormatError("row lengths (DoRA) don't match the pair", field=name,
                          expected=f"[{b.shape[0]}]", found=str(list(node.spec.shape)))  # fmt: skip
    return None if node is None else reshape(node, (b.shape[0], 1))


def _check_pair(name: str, found: Mapping[str, Node]) -> None:
    if set(found) != {"A", "B"}:
        missing = "A" if "B" in found else "B"
        raise FormatError(f"an adapter's pair without its {missing}", field=name)
    a, b = found["A"].spec, found["B"].spec
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        raise FormatError("A and B have different ranks", field=name, expected="[rank, in] and [out, rank]",
                          found=f"{list(a.shape)} and {list(b.shape)}")  # fmt: skip


# ------------------------------------------------------------------------------------------------ writing


def write(
    adapter: LoraAdapter, tables: frozenset[str], *, conv: bool = False
) -> tuple[dict[str, Node], dict[str, Any]]:
    """The tensors and config of a PEFT folder. `tables`: the embeddings' names. `conv`: whether the model's layers
    are GPT-2's Conv1D."""
    from weighbridge.tensors.nodes import transpose

    tensors: dict[str, Node] = {}
    for name, pair in adapter.pairs.items():
        module = f"{_FRONT}{name.removesuffix('.weight')}"
        if name in tables:
            tensors[f"{module}.lora_embedding_A"] = transpose(pair.b)
            tensors[f"{module}.lora_embedding_B"] = transpose(pair.a)
        else:
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = pair.a, pair.b
    return tensors, _config(adapter, conv)


def _config(adapter: LoraAdapter, conv: bool) -> dict[str, Any]:
    """PEFT's config. Modules are listed by full name: PEFT matches a bare last component against every module that
    ends in it."""
    ranks = Counter(pair.rank for pair in adapter.pairs.values())
    rank = ranks.most_common(1)[0][0] if ranks else 1
    modules = {name.removesuffix(".weight"): pair for name, pair in adapter.pairs.items()}
    alpha = adapter.alpha
    return {
        "alpha_pattern": {},
        "base_model_name_or_path": adapter.base,
        "bias": "none",
        "fan_in_fan_out": conv,
        "inference_mode": True,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {module: pair.rank for module, pair in modules.items() if pair.rank != rank},
        "target_modules": sorted(modules),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
        **({"alora_invocation_tokens": list(adapter.tokens)} if adapter.tokens else {}),
    }
