"""Megatron-LM's names become those of a family: a model that is cut into Megatron-LM's parameters converts to the same
folder and the same GGUF as the original. Recorded runs of megatron-core become what Megatron-Bridge's table states."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.containers.megatron_cases import FOLDER, expected, unpack

import weighbridge as wb
from weighbridge.base.errors import FormatError
from weighbridge.models.arch import registry
from weighbridge.models.megatron_roles import PLACES, modern_names

torch = pytest.importorskip("torch")

_LLAMA = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_LATENT: dict[str, Any] = {
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 3,
    "v_head_dim": 2,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "moe_intermediate_size": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
_MIXERS: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 20, "hidden_size": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "mamba_num_heads": 8, "mamba_head_dim": 4,
    "ssm_state_size": 3, "n_groups": 2, "conv_kernel": 4, "use_conv_bias": True, "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False, "mlp_hidden_act": "relu2", "n_shared_experts": 1, "max_position_embeddings": 64,
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
    "deepseek2": {**_LLAMA, **_LATENT, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
                  "q_lora_rank": None, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "num_hidden_layers": 27},
    "deepseek3": {**_LLAMA, **_LATENT, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
                  "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc"},
    "nemotronh": {**_MIXERS, "hybrid_override_pattern": "M*-M", "intermediate_size": 24},
    "nemotronhmoe": {**_MIXERS, "hybrid_override_pattern": "M*EM", "n_routed_experts": 4, "moe_intermediate_size": 12,
                     "moe_shared_expert_intermediate_size": 20, "num_experts_per_tok": 2},
    "latent experts": {**_MIXERS, "hybrid_override_pattern": "E*M", "n_routed_experts": 4, "moe_intermediate_size": 12,
                       "moe_shared_expert_intermediate_size": 20, "moe_latent_size": 8, "num_experts_per_tok": 2},
    "mamba2": {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": 20, "hidden_size": 16,
               "num_hidden_layers": 2, "num_heads": 8, "head_dim": 4, "expand": 2, "state_size": 3, "n_groups": 2,
               "conv_kernel": 4, "use_conv_bias": True, "use_bias": False, "layer_norm_epsilon": 1e-5},
    "qwen2moe": {**_LLAMA, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 4,
                 "tie_word_embeddings": True,
                 "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20,
                 "decoder_sparse_step": 1, "mlp_only_layers": []},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 20, "n_embd": 16, "n_layer": 2,
             "n_head": 4, "n_positions": 8, "n_ctx": 8, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
}  # fmt: skip
PADDING = 4


def original(folder: Path, config: Mapping[str, Any]) -> Path:
    """A model with random weights."""
    family = registry.family_of_hf(config)
    rng = np.random.default_rng(7)
    places = family.expansion("hf", family.sizes_from_hf(config), family.dialect("hf").prefixes[0]).places
    biased = config["model_type"] in ("qwen2", "qwen2_moe")
    needed = {
        n: p
        for n, p in places.items()
        if p.need is None
        or (n.endswith("bias") and biased)
        or n.endswith(("e_score_correction_bias", "latent_proj.weight"))
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
    heads = config.get("num_attention_heads") or config.get("n_head") or 1
    groups = config.get("num_key_value_heads") or heads
    out = {"embedding.word_embeddings.weight": source["embed.weight"]}
    norms = "apart" if norms == "older" else norms
    for name, key in (("head", "output_layer"), ("position", "embedding.position_embeddings")):
        if f"{name}.weight" in source:
            out[f"{key}.weight"] = source[f"{name}.weight"]
    for kind in ("weight", "bias"):
        if f"norm.{kind}" in source:
            out[f"decoder.final_layernorm.{kind}"] = source[f"norm.{kind}"]
    attention = ("self_attention.linear_qkv.layer_norm_", "input_layernorm.")[norms == "apart"]
    mlp = ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")[norms == "apart" or "experts" in "".join(source)]
    layers = {int(name.split(".")[1]) for name in source if name.startswith("layers.")}
    for layer in sorted(layers):
        front, found = f"decoder.layers.{layer}.", f"layers.{layer}."
        for kind in ("weight", "bias"):
            plain = {f"{attention}{kind}": "attention.norm", f"{mlp}{kind}": "mlp.norm",
                     f"self_attention.linear_proj.{kind}": "attention.o", f"mlp.linear_fc2.{kind}": "mlp.down",
                     f"self_attention.q_layernorm.{kind}": "attention.q.norm", f"mlp.router.{kind}": "moe.router",
                     f"self_attention.k_layernorm.{kind}": "attention.k.norm"}  # fmt: skip
            one = f"{found}norm.{kind}"  # of a layer of one kind
            if one in source or f"{found}ssm.norm.{kind}" in source:
                module = "mixer.in_proj" if f"{found}ssm.in.weight" in source else "mlp.linear_fc1"
                module = "self_attention.linear_qkv" if f"{found}attention.q.weight" in source else module
                moe = f"{found}moe.router.weight" in source
                apart = "norm." if module == "mixer.in_proj" else "pre_mlp_layernorm." if moe else "input_layernorm."
                key = apart if norms == "apart" or moe else f"{module}.layer_norm_"
                out[f"{front}{key}{kind}"] = source[one if one in source else f"{found}ssm.norm.{kind}"]
            q, kv = (
                ("q_layernorm.", "kv_layernorm.")
                if norms in ("apart", "distributed")
                else ("linear_q_up_proj.layer_norm_", "linear_kv_up_proj.layer_norm_")
            )
            more = {
                f"self_attention.linear_q_down_proj.{kind}": "attention.q_a",
                f"self_attention.{q}{kind}": "attention.q_a.norm",
                f"self_attention.linear_q_up_proj.{kind}": "attention.q_b",
                f"self_attention.linear_kv_down_proj.{kind}": "attention.kv_a",
                f"self_attention.{kv}{kind}": "attention.kv_a.norm",
                f"mixer.in_proj.{kind}": "ssm.in",
                f"mixer.out_proj.{kind}": "ssm.out",
                f"mixer.conv1d.{kind}": "ssm.conv",
                f"mixer.norm.{kind}": "ssm.out.norm",
                f"mlp.shared_experts.linear_fc2.{kind}": "moe.shared.down",
                f"mlp.fc1_latent_proj.{kind}": "moe.latent.down",
                f"mlp.fc2_latent_proj.{kind}": "moe.latent.up",
            }
            plain |= {key: name for key, name in more.items() if f"{found}{name}.{kind}" in source}
            out |= {front + key: source[f"{found}{name}.{kind}"] for key, name in plain.items()
                    if f"{found}{name}.{kind}" in source}  # fmt: skip
            names = [f"{found}attention.{part}.{kind}" for part in ("q", "k", "v")]
            qkv = [source[name] for name in names if name in source]
            if (fused := source.get(f"{found}attention.qkv.{kind}")) is not None:
                qkv = list(np.split(fused, 3))
            if len(qkv) == 1:  # latent attention without a latent query
                out[f"{front}self_attention.linear_q_proj.{kind}"] = qkv[0]
            elif qkv:
                parts = [part.reshape(groups, -1, *part.shape[1:]) for part in qkv]
                joined = np.concatenate(parts, axis=1)
                out[f"{front}self_attention.linear_qkv.{kind}"] = joined.reshape(-1, *joined.shape[2:])
            if (up := source.get(f"{found}mlp.up.{kind}")) is not None:
                gate = source.get(f"{found}mlp.gate.{kind}")
                out[f"{front}mlp.linear_fc1.{kind}"] = up if gate is None else np.concatenate([gate, up])
        more = {
            "ssm.a_log": "mixer.A_log",
            "ssm.d": "mixer.D",
            "ssm.dt.bias": "mixer.dt_bias",
            "moe.router.bias": "mlp.router.expert_bias",
            "moe.shared.router.weight": "mlp.shared_experts.gate_weight",
        }
        out |= {front + key: source[found + name] for name, key in more.items() if found + name in source}
        if (keys := source.get(f"{found}attention.k_b.weight")) is not None:
            both = np.concatenate([keys, source[f"{found}attention.v_b.weight"]], axis=1)
            out[f"{front}self_attention.linear_kv_up_proj.weight"] = both.reshape(-1, both.shape[2])
        if (up := source.get(f"{found}moe.shared.up.weight")) is not None:
            gate = source.get(f"{found}moe.shared.gate.weight")
            out[f"{front}mlp.shared_experts.linear_fc1.weight"] = up if gate is None else np.concatenate([gate, up])
        if (ups := source.get(f"{found}moe.experts.up.weight")) is not None:
            downs, gates = source[f"{found}moe.experts.down.weight"], source.get(f"{found}moe.experts.gate.weight")
            for n, (up, down) in enumerate(zip(ups, downs, strict=True)):
                expert = f"{front}mlp.experts.local_experts.{n}."
                out |= {
                    f"{expert}linear_fc1.weight": up if gates is None else np.concatenate([gates[n], up]),
                    f"{expert}linear_fc2.weight": down,
                }
    return out


def fused_latent(model: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one down projection of queries, keys and values."""
    out = dict(model)
    for name in model:
        if name.endswith("linear_q_down_proj.weight"):
            other = name.replace("linear_q_down", "linear_kv_down")
            out[name.replace("linear_q_down", "linear_qkv_down")] = np.concatenate([out.pop(name), out.pop(other)])
    return out


def in_sections(model: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """With a tensor for each section of a mixer's rows, as in distributed checkpoints."""
    heads = config.get("mamba_num_heads") or config.get("num_heads", 0)
    inner = heads * (config.get("mamba_head_dim") or config.get("head_dim", 0))
    states = config.get("n_groups", 0) * (config.get("ssm_state_size") or config.get("state_size", 0))
    sizes = {"z": inner, "x": inner, "B": states, "C": states, "dt": heads}
    out = {}
    for name, array in model.items():
        if not name.endswith(("in_proj.weight", "conv1d.weight", "conv1d.bias")):
            out[name] = array
            continue
        parts = ("z", "x", "B", "C", "dt") if "in_proj" in name else ("x", "B", "C")
        ends = np.cumsum([sizes[part] for part in parts])[:-1]
        out |= {f"{name}.{part}": found for part, found in zip(parts, np.split(array, ends), strict=True)}
    return out


def older(model: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Under the names of older versions."""
    names = (
        ("decoder.", "language_model.encoder."),
        ("embedding.", "language_model.embedding."),
        ("output_layer.", "language_model.output_layer."),
        ("linear_qkv.", "query_key_value."),
        ("self_attention.linear_proj.", "self_attention.dense."),
        ("mlp.linear_fc1.", "mlp.dense_h_to_4h."),
        ("mlp.linear_fc2.", "mlp.dense_4h_to_h."),
        ("pre_mlp_layernorm.", "post_attention_layernorm."),
    )
    out = {}
    for name, array in model.items():
        for new, old in names:
            name = name.replace(new, old)
        out[name] = array
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
    "older": lambda folder, model: rank(folder, older(padded(model))),
}
#: Families whose layers differ: distributed checkpoints don't stack them.
UNLIKE = {"nemotronh", "nemotronhmoe", "latent experts", "deepseek2", "deepseek3"}
FAMILY = {"latent experts": "nemotronhmoe"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_converts_like_the_original(tmp_path: Path, family: str, form: str) -> None:
    hf = original(tmp_path / "hf", CONFIGS[family])
    model = parameters(hf, CONFIGS[family], form)
    if form == "distributed":
        model = in_sections(model, CONFIGS[family])
    if form == "fused":
        model = fused_latent(model)
    if form == "distributed" and family in UNLIKE:
        source = distributed(tmp_path / "step", padded(model))
    else:
        source = FORMS[form](tmp_path / "step", model)
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


#: Parameters of megatron-core, and the names of the same weights in transformers: from Megatron-Bridge's mappings
#: (models/deepseek/common.py, models/nemotronh/nemotron_h_bridge.py), with `*` for a number.
BRIDGE = {
    "deepseek": {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "decoder.layers.*.input_layernorm.weight": "model.layers.*.input_layernorm.weight",
        "decoder.layers.*.self_attention.linear_proj.weight": "model.layers.*.self_attn.o_proj.weight",
        "decoder.layers.*.pre_mlp_layernorm.weight": "model.layers.*.post_attention_layernorm.weight",
        "decoder.layers.*.self_attention.linear_kv_down_proj.weight":
            "model.layers.*.self_attn.kv_a_proj_with_mqa.weight",
        "decoder.layers.*.self_attention.linear_kv_up_proj.weight": "model.layers.*.self_attn.kv_b_proj.weight",
        "decoder.layers.*.self_attention.kv_layernorm.weight": "model.layers.*.self_attn.kv_a_layernorm.weight",
        "decoder.layers.*.mlp.linear_fc1.weight":
            "model.layers.*.mlp.gate_proj.weight model.layers.*.mlp.up_proj.weight",
        "decoder.layers.*.mlp.linear_fc2.weight": "model.layers.*.mlp.down_proj.weight",
        "decoder.layers.*.mlp.router.weight": "model.layers.*.mlp.gate.weight",
        "decoder.layers.*.mlp.router.expert_bias": "model.layers.*.mlp.gate.e_score_correction_bias",
        "decoder.layers.*.mlp.shared_experts.linear_fc1.weight":
            "model.layers.*.mlp.shared_experts.gate_proj.weight model.layers.*.mlp.shared_experts.up_proj.weight",
        "decoder.layers.*.mlp.shared_experts.linear_fc2.weight": "model.layers.*.mlp.shared_experts.down_proj.weight",
        "decoder.layers.*.mlp.experts.local_experts.*.linear_fc1.weight":
            "model.layers.*.mlp.experts.*.gate_proj.weight model.layers.*.mlp.experts.*.up_proj.weight",
        "decoder.layers.*.mlp.experts.local_experts.*.linear_fc2.weight":
            "model.layers.*.mlp.experts.*.down_proj.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
        "output_layer.weight": "lm_head.weight",
        "decoder.layers.*.self_attention.linear_q_down_proj.weight": "model.layers.*.self_attn.q_a_proj.weight",
        "decoder.layers.*.self_attention.linear_q_up_proj.weight": "model.layers.*.self_attn.q_b_proj.weight",
        "decoder.layers.*.self_attention.q_layernorm.weight": "model.layers.*.self_attn.q_a_layernorm.weight",
    },
    "nemotronh": {
        "embedding.word_embeddings.weight": "backbone.embeddings.weight",
        "decoder.layers.*.norm.weight": "backbone.layers.*.norm.weight",
        "decoder.layers.*.pre_mlp_layernorm.weight": "backbone.layers.*.norm.weight",
        "decoder.layers.*.mlp.linear_fc1.weight": "backbone.layers.*.mixer.up_proj.weight",
        "decoder.layers.*.mlp.linear_fc2.weight": "backbone.layers.*.mixer.down_proj.weight",
        **{f"decoder.layers.*.mixer.{name}": f"backbone.layers.*.mixer.{name}" for name in (
            "A_log", "D", "dt_bias", "norm.weight", "out_proj.weight", "in_proj.weight", "conv1d.weight",
            "conv1d.bias")},
        "decoder.final_norm.weight": "backbone.norm_f.weight",
        "output_layer.weight": "lm_head.weight",
    },
}  # fmt: skip
#: Recorded runs, and a config with their sizes.
_SMALL = {
    "vocab_size": 24, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 12, "q_lora_rank": 16, "kv_lora_rank": 20, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4,
    "v_head_dim": 3, "moe_intermediate_size": 12, "n_routed_experts": 4, "n_shared_experts": 1,
}  # fmt: skip
RECORDED: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("latent", "latent-whole", "latent-pipeline"), (
        "deepseek", {**CONFIGS["deepseek3"], **_SMALL, "first_k_dense_replace": 2})),
    "latent-experts": ("deepseek", {**CONFIGS["deepseek3"], **_SMALL, "first_k_dense_replace": 0}),
    "mixer-plain": ("nemotronh", {
        **CONFIGS["nemotronh"], "vocab_size": 24, "hidden_size": 8, "mamba_head_dim": 2, "n_groups": 4,
        "hybrid_override_pattern": "M-M-", "intermediate_size": 12}),
}  # fmt: skip


@pytest.mark.parametrize("run", RECORDED)
def test_recorded_runs_have_the_names_of_megatron_bridge(tmp_path: Path, run: str) -> None:
    table, config = RECORDED[run]
    unpack(tmp_path)
    right: dict[str, np.ndarray] = {}
    for name, array in expected(tmp_path / f"{run}.npz").items():
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
        new = BRIDGE[table].get(re.sub(r"(?<=\.)\d+(?=\.)", "*", name))
        if new is None:
            assert name.endswith(".bias")  # of the norms: these runs have LayerNorm
            continue
        parts = new.split()
        for one, part in zip(parts, np.split(array, len(parts)), strict=True):
            for number in numbers:
                one = one.replace("*", number, 1)
            right[one] = part
    with wb.open(tmp_path / run / FOLDER, config=config, names="hf") as model:
        found = {name: model[name].numpy() for name in model}
    assert found.keys() == right.keys()
    for name, array in right.items():
        assert (found[name].shape, found[name].tobytes()) == (array.shape, array.tobytes()), name


def test_layers_of_a_pipeline_are_numbered_from_the_first() -> None:
    names = ["tied_modules.embed.word_embeddings.weight", "3.input_layernorm.weight", "4.input_layernorm.weight",
             "4.self_attention.query_key_value.weight", "4.mlp.dense_h_to_4h.bias", "6.weight", "6.bias",
             "7.lm_head.weight", "1.word_embeddings.norm.weight"]  # fmt: skip
    assert list(modern_names(names).values()) == [
        "embedding.word_embeddings.weight", "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.1.input_layernorm.weight", "decoder.layers.1.self_attention.linear_qkv.weight",
        "decoder.layers.1.mlp.linear_fc1.bias", "decoder.final_layernorm.weight", "decoder.final_layernorm.bias",
        "output_layer.weight", "embedding.word_embeddings.norm.weight",
    ]  # fmt: skip
    assert list(modern_names(["0.weight", "1.bias"]).values()) == ["0.weight", "1.bias"]


@pytest.mark.filterwarnings("ignore")
def test_the_folders_of_ranks_are_not_listed_as_left_out(tmp_path: Path) -> None:
    hf = original(tmp_path / "hf", CONFIGS["llama"])
    source = rank(tmp_path / "step", parameters(hf, CONFIGS["llama"], "apart"))
    with wb.plan_convert(source, tmp_path / "out", to="hf", config=hf) as plan:
        assert not any("mp_rank_00" in note for note in plan.notes)


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
