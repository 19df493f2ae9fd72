"""What the key-values of a family with recorded conversions (reference_cases.py) are held against: those that the
reference converter wrote, and the config that they came from. Each judge raises where the family errs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tests.models.reference_cases import CASES, SMALL, Case, golden

from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.config.card import read_card, write_card
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import HfConfig, assemble, config_to_gguf, gguf_to_config
from weighbridge.models.config.pooling import pooling_type

Shapes = dict[str, tuple[int, ...]]
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


def shapes_of(name: str) -> Shapes:
    return {tensor: tuple(shape) for tensor, _, shape in golden("reference")[name]["tensors"]}


def _reader(case: Case) -> Callable[[str], bytes | None]:
    return lambda name: case.files[name].encode() if name in case.files else None


def keys_of(family: Family, name: str) -> dict[str, KV]:
    """All key-values that we write for a case, without the tokenizer's."""
    case = CASES[name]
    card, note = read_card(case.card.encode() if case.card else None)
    assert note is None
    general = general_to_gguf(
        family,
        directory=case.folder,
        config=case.config,
        shapes=shapes_of(name),
        generation_config=case.generation,
        card=card,
    )
    pooling = pooling_type(_reader(case))
    own = config_to_gguf(case.config, family, file_type=FILE_TYPES[case.outtype], pooling=pooling)
    return assemble(general, own, {})


def plain(kvs: Mapping[str, KV]) -> list[list[Any]]:
    """Names, types and values; an F32 by its bytes."""
    return [[k, kv.type, struct.pack("<f", kv.value).hex() if kv.type == "f32" else kv.value] for k, kv in kvs.items()]


def metadata(name: str) -> dict[str, Any]:
    """The recorded GGUF's key-values as a reader gives them: an f32 is what its bits are."""
    return {
        key: struct.unpack("<f", bytes.fromhex(value))[0] if kind == "f32" else value
        for key, kind, value in golden("reference")[name]["keys"]
    }


def factors_of(name: str) -> tuple[float, ...] | None:
    """The recorded `rope_freqs.weight`."""
    raw = golden("reference")[name]["rope_freqs"]
    return struct.unpack(f"<{len(raw) // 8}f", bytes.fromhex(raw)) if raw else None


def restored(family: Family, name: str) -> HfConfig:
    """The config that a case's recorded GGUF leads back to."""
    return gguf_to_config(
        metadata(name), family, shapes_of(name), vectors=lambda _: factors_of(name), torch_dtype="float32"
    )


# ---------------------------------------------------------------------- the judges


# docs/reference-differences.md
OWN = {"bert-dummies": {"bert.classifier.output_labels": ["LABEL_0", "LABEL_1"]}}


def judge_case_keys(family: Family, name: str) -> None:
    """Keys, types, values and order are the reference's."""
    found, own = plain(keys_of(family, name)), OWN.get(name, {})
    assert [row for row in found if row[0] not in own] == golden("reference")[name]["keys"]
    assert {key: value for key, _, value in found if key in own} == own


def judge_round_trip(family: Family, name: str) -> None:
    """HF -> GGUF -> HF -> GGUF: not a key differs, the names of the card included."""
    found, want = restored(family, name), keys_of(family, name)
    file_type, pooling = want["general.file_type"].value, want.get(f"{family.gguf}.pooling_type")
    again = config_to_gguf(found.config, family, file_type=file_type, pooling=pooling and pooling.value)
    card, _ = read_card(write_card(metadata(name)))
    general = general_to_gguf(
        family,
        directory="elsewhere",
        config=found.config,
        shapes=shapes_of(name),
        generation_config=found.generation,
        card=card,
    )
    assert plain(assemble(general, again, {})) == plain(want)
    json.dumps(found.config)


_COMPUTES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "qkv_bias",
    "norm_topk_prob",
    "rms_norm_eps",
    "layer_norm_eps",
    "hidden_act",
    "labels",
)


def judge_computes(family: Family, name: str) -> None:
    """What a model computes with comes back or is a loss."""
    case, tokens = CASES[name], {"tokenizer.ggml.tokens": ["x"] * SMALL["vocab_size"]}
    found = gguf_to_config({**metadata(name), **tokens}, family, shapes_of(name), vectors=lambda _: factors_of(name))
    before, after = family.effective(case.config), family.effective(found.config)
    assert {k: after.get(k) for k in _COMPUTES} == {k: before.get(k) for k in _COMPUTES}
    experts = [facts.get("num_experts") or facts.get("num_local_experts") for facts in (before, after)]
    assert experts[0] == experts[1]
    if family.name == "bert":
        return
    assert after["tie_word_embeddings"] == ("output.weight" not in shapes_of(name))
    renamed = {"attn_factor": "attention_factor"}
    rope = {renamed.get(k, k): v for k, v in before["rope"].items() if k != "type"}
    lost = any("rope_type" in loss for loss in config_losses(case.config, family))
    assert lost == (name in ("dynamic-v4", "longrope"))
    assert lost or after["rope"] == rope


_LLAMA = {"hidden_act": "gelu", "partial_rotary_factor": 0.5, "rope.rope_type": "dynamic"}
_QWEN = {"hidden_act": "gelu", "use_sliding_window": True, "partial_rotary_factor": 0.5, "rope.rope_type": "llama3"}
# Cases, and the values that a config of the family can't have without a loss.
UNSAID: dict[str, dict[str, Any]] = {
    "llama-v4": {**_LLAMA, "sliding_window": 4096},
    "llama-bias": {**_LLAMA, "sliding_window": 4096},
    "bert": {"hidden_act": "relu", "position_embedding_type": "relative_key", "is_decoder": True},
    "qwen2-silent": _QWEN,
    "qwen2moe": {**_QWEN, "norm_topk_prob": True},
    "qwen2moe-v5": {**_QWEN, "norm_topk_prob": True},
    "qwen3": _QWEN,
    "qwen3moe": {**_QWEN, "norm_topk_prob": False},
}


def judge_unsaid(family: Family, name: str) -> None:
    """What a GGUF has no key for is a loss each, and what every GGUF of the family means comes back."""
    config, unsaid = CASES[name].config, UNSAID[name]
    assert config_losses(config, family) == [], name
    for path, value in unsaid.items():
        change = {"rope_scaling": {"type": value}} if path == "rope.rope_type" else {path: value}
        losses = config_losses({**config, **change}, family)
        assert [loss.split(" = ")[0] for loss in losses] == [f"config.json: {path}"], (name, path)
    if "norm_topk_prob" in unsaid:
        assert restored(family, name).config["norm_topk_prob"] is not unsaid["norm_topk_prob"], name


_SPECIAL = {"bos_token_id": ("bos", 3), "eos_token_id": ("eos", 4), "pad_token_id": ("padding", 5)}
_BIASED = ("qkv_bias", "attention_bias", "mlp_bias")


def judge_restored(family: Family, name: str) -> None:
    """What tensors and the tokenizer show comes back: the vocabulary, special tokens, biases, a tied output."""
    tokenizer: dict[str, Any] = {f"tokenizer.ggml.{key}_token_id": token for key, token in _SPECIAL.values()}
    tokenizer["tokenizer.ggml.tokens"] = ["x"] * SMALL["vocab_size"]
    shapes, decodes, facts = shapes_of(name), family.name != "bert", family.effective(CASES[name].config)
    biased = {key: facts[key] for key in _BIASED if key in facts}
    special = {key: token for key, (_, token) in _SPECIAL.items() if decodes or key == "pad_token_id"}
    for names in (shapes.keys() - {"output.weight"}, shapes.keys() | {"output.weight"}):
        found = gguf_to_config({**metadata(name), **tokenizer}, family, sorted(names))
        assert found.config["vocab_size"] == SMALL["vocab_size"], name
        assert {key: found.config[key] for key in _SPECIAL if key in found.config} == special, name
        assert {key: found.config[key] for key in biased} == biased, name
        if decodes:
            assert found.config["tie_word_embeddings"] == ("output.weight" not in names), name
            assert found.generation is not None
            assert special.items() <= found.generation.items(), name
        else:
            assert found.generation is None


JUDGES = (judge_case_keys, judge_round_trip, judge_computes)


@cache
def _cases_of_families() -> dict[str, list[str]]:
    """Family -> its cases. Asked once: mutations ask thousands of times."""
    found: dict[str, list[str]] = {}
    for name, case in CASES.items():
        found.setdefault(family_of_hf(case.config).name, []).append(name)
    return found


def judge_configs(family: Family) -> None:
    """All of the above for each of the family's cases."""
    cases = _cases_of_families().get(family.name, [])
    for name in cases:
        for judge in JUDGES:
            judge(family, name)
    for name in (name for name in cases if name in UNSAID):
        judge_unsaid(family, name)
        judge_restored(family, name)
