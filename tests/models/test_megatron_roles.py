"""Megatron-LM's names become those of a family: a model that is cut into Megatron-LM's parameters converts to the same
folder and the same GGUF as the original."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import weighbridge as wb
from weighbridge.base.errors import FormatError
from weighbridge.models.arch import registry
from weighbridge.models.megatron_roles import PLACES

torch = pytest.importorskip("torch")

_LLAMA = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen2": {**_LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {**_LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8},
    "mixtral": {**_LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
                "num_experts_per_tok": 2},
    "qwen3moe": {**_LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4,
                 "head_dim": 4, "moe_intermediate_size": 12, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
                 "mlp_only_layers": []},
    "phi3": {**_LLAMA, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
             "original_max_position_embeddings": 64, "sliding_window": None, "pad_token_id": 0},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 20, "n_embd": 16, "n_layer": 2,
             "n_head": 4, "n_positions": 8, "n_ctx": 8, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
}  # fmt: skip
PADDING = 4


def original(folder: Path, config: Mapping[str, Any]) -> Path:
    """A model with random weights."""
    family = registry.family_of_hf(config)
    rng = np.random.default_rng(7)
    places = family.expansion("hf", family.sizes_from_hf(config), family.dialect("hf").prefixes[0]).places
    needed = {
        n: p for n, p in places.items() if p.need is None or (n.endswith("bias") and config["model_type"] == "qwen2")
    }
    folder.mkdir(parents=True)
    save_file({n: rng.standard_normal(p.shape).astype(np.float32) for n, p in needed.items()},
              folder / "model.safetensors", {"format": "pt"})  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def parameters(folder: Path, config: Mapping[str, Any], norms: str) -> dict[str, np.ndarray]:
    """Megatron-LM's parameters of a model. `norms`: "fused" with the layers after them, as of Transformer Engine."""
    with wb.open(folder, names="canonical") as model:
        source = {name: model[name].numpy() for name in model}
    heads = config.get("num_attention_heads") or config["n_head"]
    groups = config.get("num_key_value_heads") or heads
    out = {"embedding.word_embeddings.weight": source["embed.weight"]}
    for name, key in (("head", "output_layer"), ("position", "embedding.position_embeddings")):
        if f"{name}.weight" in source:
            out[f"{key}.weight"] = source[f"{name}.weight"]
    for kind in ("weight", "bias"):
        if f"norm.{kind}" in source:
            out[f"decoder.final_layernorm.{kind}"] = source[f"norm.{kind}"]
    attention = ("self_attention.linear_qkv.layer_norm_", "input_layernorm.")[norms == "apart"]
    mlp = ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")[norms == "apart" or "experts" in "".join(source)]
    for layer in range(config.get("num_hidden_layers") or config["n_layer"]):
        front, found = f"decoder.layers.{layer}.", f"layers.{layer}."
        for kind in ("weight", "bias"):
            plain = {f"{attention}{kind}": "attention.norm", f"{mlp}{kind}": "mlp.norm",
                     f"self_attention.linear_proj.{kind}": "attention.o", f"mlp.linear_fc2.{kind}": "mlp.down",
                     f"self_attention.q_layernorm.{kind}": "attention.q.norm", f"mlp.router.{kind}": "moe.router",
                     f"self_attention.k_layernorm.{kind}": "attention.k.norm"}  # fmt: skip
            out |= {front + key: source[f"{found}{name}.{kind}"] for key, name in plain.items()
                    if f"{found}{name}.{kind}" in source}  # fmt: skip
            names = [f"{found}attention.{part}.{kind}" for part in ("q", "k", "v")]
            qkv = [source[name] for name in names if name in source]
            if (fused := source.get(f"{found}attention.qkv.{kind}")) is not None:
                qkv = list(np.split(fused, 3))
            if qkv:
                parts = [part.reshape(groups, -1, *part.shape[1:]) for part in qkv]
                joined = np.concatenate(parts, axis=1)
                out[f"{front}self_attention.linear_qkv.{kind}"] = joined.reshape(-1, *joined.shape[2:])
            if (up := source.get(f"{found}mlp.up.{kind}")) is not None:
                gate = source.get(f"{found}mlp.gate.{kind}")
                out[f"{front}mlp.linear_fc1.{kind}"] = up if gate is None else np.concatenate([gate, up])
        if (gates := source.get(f"{found}moe.experts.gate.weight")) is not None:
            ups, downs = (source[f"{found}moe.experts.{part}.weight"] for part in ("up", "down"))
            for n, (gate, up, down) in enumerate(zip(gates, ups, downs, strict=True)):
                expert = f"{front}mlp.experts.local_experts.{n}."
                out |= {f"{expert}linear_fc1.weight": np.concatenate([gate, up]), f"{expert}linear_fc2.weight": down}
    return out


def padded(model: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With rows of padding after the vocabulary."""
    names = ("embedding.word_embeddings.weight", "output_layer.weight")
    more = {
        n: np.concatenate([model[n], np.ones((PADDING, model[n].shape[1]), np.float32)]) for n in names if n in model
    }
    return {**model, **more}


def stacked(model: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With all layers and experts in one tensor, as in Megatron-LM's distributed checkpoints."""
    for mark, name in (("local_experts.", "experts."), ("layers.", "layers.")):
        groups: dict[str, list[np.ndarray]] = {}
        for key, array in model.items():
            front, found, rest = key.partition(mark)
            groups.setdefault(front + name + rest.partition(".")[2] if found else key, []).append(array)
        model = {key: arrays[0] if key in model else np.stack(arrays) for key, arrays in groups.items()}
    return dict(model)


def rank(folder: Path, model: Mapping[str, np.ndarray]) -> Path:
    (folder / "mp_rank_00").mkdir(parents=True)
    args = argparse.Namespace(tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in model.items()}
    torch.save({"args": args, "model": tensors}, folder / "mp_rank_00" / "model_optim_rng.pt")
    return folder


def distributed(folder: Path, model: Mapping[str, np.ndarray]) -> Path:
    import torch.distributed.checkpoint as dcp

    tensors = {f"module.{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in model.items()}
    dcp.save(tensors, checkpoint_id=folder)
    return folder


FORMS = {
    "apart": lambda folder, model: rank(folder, padded(model)),
    "fused": rank,
    "distributed": lambda folder, model: distributed(folder, stacked(padded(model))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_converts_like_the_original(tmp_path: Path, family: str, form: str) -> None:
    hf = original(tmp_path / "hf", CONFIGS[family])
    source = FORMS[form](tmp_path / "step", parameters(hf, CONFIGS[family], form))
    wb.convert(source, tmp_path / "out", to="hf", config=hf)
    right, found = load_file(hf / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == right.keys()
    for name, array in right.items():
        assert (found[name].shape, found[name].tobytes()) == (array.shape, array.tobytes()), name
    wb.convert(hf, tmp_path / "right.gguf", tokenizer=False)
    wb.convert(source, tmp_path / "found.gguf", config=hf, tokenizer=False)
    with wb.open(tmp_path / "right.gguf") as first, wb.open(tmp_path / "found.gguf") as second:
        assert set(first) == set(second)
        assert all(first[name].numpy().tobytes() == second[name].numpy().tobytes() for name in first)


def test_every_role_is_used() -> None:
    roles = set()
    for config in CONFIGS.values():
        family = registry.family_of_hf(config)
        for place in family.expansion("canonical", family.sizes_from_hf(config), "").places.values():
            roles |= {role for role, _ in place.instances}
    assert roles - PLACES.keys() <= {"factors_long", "factors_short", "factors"}


def test_padding_and_parameters_without_a_role_are_listed(tmp_path: Path) -> None:
    hf = original(tmp_path / "hf", CONFIGS["llama"])
    model = {**padded(parameters(hf, CONFIGS["llama"], "apart")), "decoder.layers.0.odd.weight": np.ones(3, np.float32)}
    with wb.plan_convert(rank(tmp_path / "step", model), tmp_path / "out.gguf", config=hf, tokenizer=False) as plan:
        losses = {loss.tensor: loss.message for loss in plan.losses}
    assert "rows beyond the vocabulary" in losses["embed.weight"]
    assert "no role" in losses["decoder.layers.0.odd.weight"]


@pytest.mark.parametrize(("key", "value"), [("hidden_size", 24), ("num_attention_heads", 3), ("intermediate_size", 20)])
def test_a_config_that_contradicts_the_parameters(tmp_path: Path, key: str, value: int) -> None:
    hf = original(tmp_path / "hf", CONFIGS["llama"])
    source = rank(tmp_path / "step", parameters(hf, CONFIGS["llama"], "apart"))
    config = {**CONFIGS["llama"], key: value}
    with pytest.raises(FormatError, match=r"config\.json"):
        wb.convert(source, tmp_path / "out.gguf", config=config, tokenizer=False)
    assert not (tmp_path / "out.gguf").exists()
