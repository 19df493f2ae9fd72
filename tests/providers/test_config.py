"""One config for a model, whatever its files: of every recorded model, from config.json and from the reference's GGUF,
and its numbers are those that config.json states."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.models import family_judges as judges
from tests.oracles.families import CASES

import weighbridge as wb
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import family_of_gguf, family_of_hf
from weighbridge.models.config.mapping import gguf_to_config
from weighbridge.providers import config as module
from weighbridge.providers.config import ModelConfig, build_config, unified_keys

# How a config.json states what a field says, in the words of transformers' classes: of the first that is there.
WORDS = {
    "sliding_layers": ("use_sliding_window",),
    "dim": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_used": ("num_experts_per_tok",),
    "expert_hidden": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "sliding_window": ("sliding_window",),
    "logit_softcap": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
}
# The text part of HunYuan-VL comes back as a dense Hunyuan, whose base frequency is the stretched one. Talkie's scale
# of the logits is a tensor in its folder and a key in its GGUF. A GGUF of GLM-4.7-Flash is a DeepSeek's, whose table
# counts the further layers with the others.
STRETCHED = {
    ("dspark-gemma4", "rope"), ("hunyuan-ocr", "rope"), ("hunyuan-ocr-silent", "rope"), ("talkie", "logit_scale"),
    ("talkie-silent", "logit_scale"), ("glm4.7-flash-further", "layer_sets"),
}  # fmt: skip
# Where keys and config.json differ: layers that predict further tokens are counted, a window that nothing uses is left
# out, as are experts that no layer has.
COUNTED = frozenset(
    {
        "layers", "sliding_window", "heads", "norm_eps", "embedding_scale", "residual_scale", "logit_softcap",
        "experts_used",
    }
)  # fmt: skip


@cache
def inputs(name: str) -> tuple[Family, dict[str, Any], dict[str, Any], int | None]:
    config = judges.golden()[name]["config"]
    family = family_of_hf(config)
    return family, config, unified_keys(family, config, {}), family.sizes_from_hf(config).get("V")


def own(name: str) -> ModelConfig:
    """The config from config.json."""
    family, config, keys, vocab = inputs(name)
    return build_config(family, config, keys, vocab=vocab, tied=False)


def restored(name: str) -> ModelConfig:
    """The config from the reference's keys."""
    family, record = inputs(name)[0], judges.golden()[name]
    keys = judges.metadata_of(name)
    names = [*dict.fromkeys([*(n for n, *_ in record["gguf"]), *CASES[name].kept])]
    home = family_of_gguf(keys, names=names)
    config = gguf_to_config(keys, home, names, vectors=judges.vectors_of(family, name).get).config
    vocab = home.sizes_from_gguf(keys, names).get("V")
    return build_config(home, config, unified_keys(home, config, keys), vocab=vocab, tied=False)


def without_gguf(name: str) -> bool:
    """Whether no GGUF opens as the model's family: its class is known from config.json alone."""
    return not judges._opens(family_of_hf(judges.golden()[name]["config"]))


@pytest.mark.parametrize("name", list(CASES))
def test_a_gguf_and_a_config_give_one_config(name: str) -> None:
    if name not in judges.golden():
        return
    mine = own(name)
    assert mine.dim > 0
    if without_gguf(name) or CASES[name].computed:
        return
    theirs = restored(name)
    unheld = CASES[name].unheld
    for field in dataclasses.fields(ModelConfig):
        found, want = getattr(theirs, field.name), getattr(mine, field.name)
        if field.name == "keys":
            assert {k: v for k, v in want.items() if found.get(k) != v} == {}, name
        elif not unheld & {*WORDS.get(field.name, ())} and (name, field.name) not in STRETCHED:
            assert found == want, f"{name}: {field.name}"


def stated(config: dict[str, Any], field: str) -> Any:
    text = {**config, **(config.get("text_config") or {})}
    return next((text[word] for word in WORDS[field] if text.get(word) is not None), None)


def wrong_fields() -> set[str]:
    """The fields that differ from what a config.json states, in any recorded model."""
    found = set()
    for name, record in judges.golden().items():
        mine = own(name)
        for field in WORDS:
            want, have = stated(record["config"], field), getattr(mine, field)
            if isinstance(want, int | float) and have not in (want, None) and not isinstance(have, tuple):
                found.add(field)
    return found


def test_numbers_are_those_of_config_json() -> None:
    assert wrong_fields() <= COUNTED
    models = [own(name) for name in judges.golden()]
    assert {field for field in WORDS if all(getattr(m, field) is None for m in models)} == set()


@pytest.mark.mutation
@pytest.mark.parametrize("field", sorted(module._KEYS))
def test_a_wrong_row_is_seen(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: getattr(own(name), field) for name in judges.golden()}
    assert any(value is not None for value in before.values()), f"no recorded model has {field}"
    monkeypatch.setattr(module, "_KEYS", MappingProxyType({**module._KEYS, field: ("no.such.key",)}))
    with pytest.raises((AssertionError, TypeError)):
        assert {name: getattr(own(name), field) for name in before} == before


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_output_is_the_same_in_every_file(tied: bool, tmp_path: Path) -> None:
    """A torch file has both names of one matrix, a Safetensors file one, a GGUF none of the output's."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": tied,
    }  # fmt: skip
    family = family_of_hf(config)
    places = family.expansion("hf", family.sizes_from_hf(config)).places.values()
    shapes = {p.name: p.shape for p in places if p.need in (None, "only head")}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    if tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    for kind in ("bin", "safetensors"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps(config))
    torch.save(tensors, tmp_path / "bin" / "pytorch_model.bin")
    kept = {name: tensor for name, tensor in tensors.items() if not (tied and name == "lm_head.weight")}
    save_file(kept, tmp_path / "safetensors" / "model.safetensors")
    wb.convert(tmp_path / "safetensors", tmp_path / "m.gguf", tokenizer=False)
    for source in ("bin", "safetensors", "m.gguf"):
        with wb.provider(tmp_path / source) as weights:
            assert weights.config.tied_embeddings is tied, source
