"""Models that transformers has no class for, since their code came with the weights: what they compute.

Each has a twin: a class of transformers that computes the same with the same weights under its own names. How the
weights lie is said here plainly, apart from the tables under test.
"""

from __future__ import annotations

import json
import math
import pkgutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.oracles import plain

Config = dict[str, Any]
Tensors = dict[str, Any]
Pairs = Mapping[str, str]


@dataclass(frozen=True)
class Twin:
    """`cls`: transformers' config class. `config`: its arguments for a config. `names`: parts of names and what they
    are in the twin. `parts`: cuts a tensor that the twin has in several. `beyond`: how names of a GGUF of the twin end
    that one of the model hasn't. `finish`: what else the twin is to do."""

    cls: str
    config: Callable[[Config], dict[str, Any]]
    names: Pairs
    parts: Callable[[Config, str, Any], Tensors] = lambda config, name, tensor: {name: tensor}
    beyond: tuple[str, ...] = ()
    finish: Callable[[Any], Any] = lambda model: model

    def write(self, folder: Path, target: Path) -> Any:
        """The twin with the folder's weights as a folder, in the order in which the model's own names are read: a file
        for each tensor. Its settings."""
        import transformers
        from safetensors.torch import load_file, save_file

        config = json.loads((folder / "config.json").read_text())
        config |= config.get("text_config", {})
        held: Tensors = {}
        for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
            held |= self.parts(config, name, tensor.float())
        state = {_renamed(name, self.names): tensor.contiguous() for name, tensor in held.items()}
        tied = config.get("tie_word_embeddings", "lm_head.weight" not in state)
        settings = getattr(transformers, self.cls)(**_common(config), **self.config(config), tie_word_embeddings=tied)
        settings.architectures = [transformers.AutoModelForCausalLM._model_mapping[type(settings)].__name__]
        settings.save_pretrained(target)
        state = dict(sorted(state.items(), key=lambda item: bool(item[1].any())))  # what is made comes first
        files = {name: f"model-{n:05}-of-{len(state):05}.safetensors" for n, name in enumerate(state, 1)}
        for name, file in files.items():
            save_file({name: state[name]}, target / file, {"format": "pt"})
        (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
        return settings

    def load(self, folder: Path) -> Any:
        """The twin with the folder's weights, in f32, eager attention."""
        import torch
        import transformers

        with tempfile.TemporaryDirectory() as twin:
            settings = self.write(folder, Path(twin))
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                twin, config=settings, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
        assert not found["unexpected_keys"], found
        assert not found["missing_keys"], found
        return self.finish(model.eval())


def of(folder: Path) -> Twin | plain.Plain | None:
    """The twin of a folder's class, where that is none of transformers', or what else computes it."""
    config = json.loads((folder / "config.json").read_text())
    said = config.get("architectures") or [""]
    names = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("plain"))
    rooms = (import_module(f"tests.oracles.{name}") for name in names)
    every = [row for room in rooms for row in room.MODELS.items()]
    meant = config | {"": True}
    written_out = {name: model for name, model in every if meant.get(getattr(model, "variant", ""))}
    return TWINS.get(said[0]) or written_out.get(said[0])


def _renamed(name: str, pairs: Pairs) -> str:
    for theirs, ours in pairs.items():
        name = name.replace(theirs, ours)
    return name


_WORDS = {
    "hidden_size": ("hidden_size", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": (
        "num_key_value_heads", "multi_query_group_num", "num_query_groups", "num_attention_heads", "n_head",
    ),
    "max_position_embeddings": ("max_position_embeddings", "seq_length", "n_positions"),
}  # fmt: skip


def _common(config: Config) -> dict[str, Any]:
    """What all say, each in its own words."""
    said = {ours: next(config[word] for word in words if word in config) for ours, words in _WORDS.items()}
    return {"vocab_size": config["vocab_size"], **said}


def _rope(config: Config, **more: Any) -> dict[str, Any]:
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    return {"rope_parameters": {"rope_theta": config.get("rope_theta", 10000.0), **scaling, **more}}


def _llama(config: Config) -> dict[str, Any]:
    epsilon = config.get("rms_norm_eps", config.get("layer_norm_epsilon"))
    return {"intermediate_size": config["intermediate_size"], "rms_norm_eps": epsilon, **_rope(config)}


def _grouped(config: Config, name: str, tensor: Any) -> Tensors:
    """InternLM 2: for each head of keys its queries, its key, its value."""
    if "wqkv" not in name:
        return {name: tensor}
    groups, width = config["num_key_value_heads"], config["hidden_size"]
    heads = tensor.reshape(groups, -1, width // config["num_attention_heads"], width)
    parts = {"q": heads[:, :-2], "k": heads[:, -2], "v": heads[:, -1]}
    return {name.replace("wqkv", f"{part}_proj"): t.reshape(-1, width) for part, t in parts.items()}


_INTERNLM2 = {
    "tok_embeddings": "embed_tokens",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wo": "self_attn.o_proj",
    ".attention.": ".self_attn.",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "output.weight": "lm_head.weight",
}
_EXAONE = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "transformer.h.": "model.layers.",
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.attention.out_proj": "self_attn.o_proj",
    "attn.attention": "self_attn",
    "c_fc_0": "gate_proj",
    "c_fc_1": "up_proj",
    "c_proj": "down_proj",
}


def _minicpm(config: Config) -> dict[str, Any]:
    """MiniCPM is a Granite 3 that divides where that multiplies."""
    return _llama(config) | {
        "embedding_multiplier": float(config["scale_emb"]),
        "residual_multiplier": config["scale_depth"] / math.sqrt(config["num_hidden_layers"]),
        "logits_scaling": config["hidden_size"] / config["dim_model_base"],
        "attention_multiplier": (config["hidden_size"] / config["num_attention_heads"]) ** -0.5,
    }


_BAILING = {
    "word_embeddings": "embed_tokens",
    "attention.dense": "self_attn.o_proj",
    "query_layernorm": "q_norm",
    "key_layernorm": "k_norm",
    "gate.expert_bias": "gate.e_score_correction_bias",
    ".attention.": ".self_attn.",
}


def _bailing(config: Config) -> dict[str, Any]:
    """Ling 2 is a GLM 4.5."""
    same = (
        "moe_intermediate_size", "first_k_dense_replace", "num_experts_per_tok", "n_group", "topk_group", "head_dim",
        "norm_topk_prob", "routed_scaling_factor",
    )  # fmt: skip
    return {
        **_llama(config),
        **_rope(config, partial_rotary_factor=config["partial_rotary_factor"]),
        **{key: config[key] for key in same},
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config["moe_shared_expert_intermediate_size"] // config["moe_intermediate_size"],
        "use_qk_norm": True,
        "attention_bias": False,
    }


_CHATGLM = {
    "transformer.embedding.word_embeddings": "model.embed_tokens",
    "transformer.encoder.final_layernorm": "model.norm",
    "transformer.encoder.": "model.",
    "transformer.output_layer": "lm_head",
    "self_attention.dense": "self_attn.o_proj",
    "self_attention": "self_attn",
    "dense_h_to_4h": "gate_up_proj",
    "dense_4h_to_h": "down_proj",
}


def _chatglm(config: Config) -> dict[str, Any]:
    return {
        "intermediate_size": config["ffn_hidden_size"],
        "rms_norm_eps": config["layernorm_epsilon"],
        "head_dim": config["kv_channels"],
        "attention_bias": config["add_qkv_bias"],
        "pad_token_id": config["pad_token_id"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0 * config["rope_ratio"],
            "partial_rotary_factor": 0.5,
        },
    }


def _trunk(config: Config, name: str, tensor: Any) -> Tensors:
    """What predicts the next token, and no layers behind that; q, k and v one under the other."""
    number = name.partition(".layers.")[2].partition(".")[0]
    further = number.isdigit() and int(number) >= config["num_hidden_layers"]
    return {} if further else _joined(config, name, tensor)


def _joined(config: Config, name: str, tensor: Any) -> Tensors:
    """q, k and v one under the other."""
    if "query_key_value" not in name:
        return {name: tensor}
    heads, pairs = config["num_attention_heads"], _common(config)["num_key_value_heads"]
    width = config["hidden_size"] // heads
    cut = tensor.split([heads * width, pairs * width, pairs * width])
    return {name.replace("query_key_value", f"{part}_proj"): t for part, t in zip("qkv", cut, strict=True)}


_QWEN = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "transformer.h.": "model.layers.",
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    ".attn.": ".self_attn.",
    "mlp.w2": "mlp.gate_proj",
    "mlp.w1": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def _qwen(config: Config) -> dict[str, Any]:
    return {
        "intermediate_size": config["intermediate_size"] // 2,
        "rms_norm_eps": config["layer_norm_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rotary_emb_base"]},
    }


def _thirds(config: Config, name: str, tensor: Any) -> Tensors:
    """q, k and v, each as wide as the model."""
    if "c_attn" not in name:
        return {name: tensor}
    return {name.replace("c_attn", f"{part}_proj"): t for part, t in zip("qkv", tensor.chunk(3), strict=True)}


def _orion(config: Config) -> dict[str, Any]:
    return {
        "intermediate_size": config["intermediate_size"],
        "layer_norm_eps": config["rms_norm_eps"],
        "use_parallel_residual": False,
        "use_qkv_bias": False,
        **_rope(config, partial_rotary_factor=1.0),
    }


_CODESHELL = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "transformer.h.": "model.layers.",
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    ".attn.": ".self_attn.",
}


def _codeshell(config: Config) -> dict[str, Any]:
    return {
        "intermediate_size": config["n_embd"] * 4,
        "norm_epsilon": config["layer_norm_epsilon"],
        "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }


def _grouped_at_the_end(config: Config, name: str, tensor: Any) -> Tensors:
    """CodeShell: all queries, all keys, all values."""
    if "c_attn" not in name:
        return {name: tensor}
    pairs = config["num_query_groups"] * config["n_embd"] // config["n_head"]
    cut = tensor.split([config["n_embd"], pairs, pairs])
    return {name.replace("c_attn", f"{part}_proj"): t for part, t in zip("qkv", cut, strict=True)}


_GPTJ = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.final_layernorm",
    "transformer.h.": "model.layers.",
    "ln_1": "input_layernorm",
    "attn.out_proj": "self_attn.dense",
    ".attn.": ".self_attn.",
    "fc_in": "fc1",
    "fc_out": "fc2",
}


def _gptj(config: Config) -> dict[str, Any]:
    return {
        "intermediate_size": config.get("n_inner") or config["n_embd"] * 4,
        "layer_norm_eps": config["layer_norm_epsilon"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": config["rotary_dim"] * config["n_head"] / config["n_embd"],
        },
    }


def _halved(config: Config, name: str, tensor: Any) -> Tensors:
    """GPT-J rotates neighbours, Phi-2 halves; Phi-2 adds a bias to what GPT-J adds none to."""
    if ".attn." not in name:
        return {name: tensor}
    part, rotated = name.removesuffix(".weight"), config["rotary_dim"]
    zeros = {f"{part}.bias": tensor.new_zeros(tensor.shape[0])}
    if not part.endswith(("q_proj", "k_proj")):
        return {name: tensor, **zeros}
    import torch

    heads = tensor.reshape(config["n_head"], -1, tensor.shape[1])
    turned = [row for head in heads for row in (*head[0:rotated:2], *head[1:rotated:2], *head[rotated:])]
    return {name: torch.stack(turned), **zeros}


def _normal(config: Config, name: str, tensor: Any) -> Tensors:
    """Baichuan: q, k and v one under the other; Baichuan 2 takes its output's rows at length 1 (NormHead)."""
    import torch

    if "W_pack" in name:
        return {name.replace("W_pack", f"{part}_proj"): t for part, t in zip("qkv", tensor.chunk(3), strict=True)}
    unit = name == "lm_head.weight" and "z_loss_weight" in config
    return {name: torch.nn.functional.normalize(tensor) if unit else tensor}


def _baichuan(config: Config) -> dict[str, Any]:
    return {"intermediate_size": config["intermediate_size"], "rms_norm_eps": config["rms_norm_eps"]}


def _with_alibi(model: Any) -> Any:
    """Baichuan 13B: a Llama that doesn't rotate and has linear biases, as its modeling_baichuan.py adds them
    (`_gen_alibi_mask`): a head's slope times the key's position. The slopes are those of the ALiBi paper for a power of
    two of heads."""
    import torch

    if model.config.num_hidden_layers != 40:
        return model

    heads, base = model.config.num_attention_heads, model.model
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])
    rotary, attend = base.rotary_emb.forward, base.forward

    def unrotated(*given: Any, **named: Any) -> Any:
        cos, sin = rotary(*given, **named)
        return torch.ones_like(cos), torch.zeros_like(sin)

    def biased(input_ids: Any = None, **named: Any) -> Any:
        length = input_ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1) + slopes[:, None, None] * torch.arange(length)
        return attend(input_ids=input_ids, **{**named, "attention_mask": mask[None]})

    base.rotary_emb.forward, base.forward = unrotated, biased
    return model


def _kimi(config: Config) -> dict[str, Any]:
    """What writes of a Kimi K2.5 is a DeepSeek V3."""
    apart = {*_WORDS, "vocab_size", "model_type", "tie_word_embeddings", "architectures"}
    return {key: value for key, value in config["text_config"].items() if key not in apart}


def _writing(config: Config, name: str, tensor: Any) -> Tensors:
    return {name: tensor} if name.startswith("language_model.") else {}


def _mimo(config: Config) -> dict[str, Any]:
    """MiMo-V2.5 and 2.6 are MiMo-V2 Flash in their publisher's words."""
    same = (
        "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_group",
        "topk_group", "norm_topk_prob", "head_dim", "v_head_dim", "sliding_window", "attention_value_scale",
    )  # fmt: skip
    share = {"rope_type": "default", "partial_rotary_factor": config["partial_rotary_factor"]}
    bases = {"full_attention": config["rope_theta"], "sliding_attention": config["swa_rope_theta"]}
    return {
        **{key: config[key] for key in same},
        "rms_norm_eps": config["layernorm_epsilon"],
        "layer_types": [[*bases][windowed] for windowed in config["hybrid_layer_pattern"]],
        "mlp_layer_types": [["dense", "sparse"][chosen] for chosen in config["moe_layer_freq"]],
        "rope_parameters": {kind: {**share, "rope_theta": base} for kind, base in bases.items()},
    }


def _in_three(config: Config, name: str, tensor: Any) -> Tensors:
    """Queries, keys and values of layers whose number of keys follows from the rows; no layers behind the others."""
    if ".mtp." in name or "qkv_proj" not in name:
        return {} if ".mtp." in name else {name: tensor}
    queries, width = config["num_attention_heads"] * config["head_dim"], config["head_dim"] + config["v_head_dim"]
    keys = (len(tensor) - queries) // width * config["head_dim"]
    cut = tensor.split([queries, keys, len(tensor) - queries - keys])
    return {name.replace("qkv_proj", f"{part}_proj"): t for part, t in zip("qkv", cut, strict=True)}


def _hunyuan4(config: Config) -> dict[str, Any]:
    apart = {*_WORDS, "vocab_size", "model_type", "tie_word_embeddings", "architectures", "torch_dtype", "rope_theta"}
    return {key: value for key, value in config.items() if key not in apart} | _rope(config)


_BITNET = {"inner_attn_ln": "attn_sub_norm", "ffn_layernorm": "ffn_sub_norm"}


def _bitnet(config: Config) -> dict[str, Any]:
    return {**_llama(config), "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}


def _rounded(config: Config, name: str, tensor: Any) -> Tensors:
    """BitNet: the matrices of its layers as the class rounds them when it runs."""
    if not name.endswith("_proj.weight"):
        return {name: tensor}
    mean = tensor.double().abs().mean().float()
    return {name: (tensor / mean).round().clamp(-1, 1) * mean}


def _in_halves(config: Config, name: str, tensor: Any) -> Tensors:
    """llama.cpp rotates neighbours, as DeepSeek V3 does; transformers 5.23 rotates the halves of the same rows."""
    import torch

    rotated, heads = config["qk_rope_head_dim"], config["num_attention_heads"]
    if not name.endswith(("q_b_proj.weight", "kv_a_proj_with_mqa.weight")):
        return {name: tensor}
    parts = tensor.chunk(heads if "q_b" in name else 1)
    turned = (torch.cat([p[:-rotated], p[-rotated::2], p[len(p) - rotated + 1 :: 2]]) for p in parts)
    return {name: torch.cat([*turned])}


TWINS: dict[str, Twin] = {
    "BitnetForCausalLM": Twin("BitNetConfig", _bitnet, _BITNET, _rounded),
    "HYV4ForCausalLM": Twin("HYV4Config", _hunyuan4, {}, _in_halves),
    "MiMoV2ForCausalLM": Twin("MiMoV2FlashConfig", _mimo, {"attention_sink_bias": "sinks"}, _in_three),
    "KimiK25ForConditionalGeneration": Twin("DeepseekV3Config", _kimi, {"language_model.": ""}, _writing),
    "InternLM2ForCausalLM": Twin("LlamaConfig", _llama, _INTERNLM2, _grouped),
    "MiniCPMForCausalLM": Twin("GraniteConfig", _minicpm, {}),
    "ExaoneForCausalLM": Twin("LlamaConfig", _llama, _EXAONE),
    "CodeShellForCausalLM": Twin("Starcoder2Config", _codeshell, _CODESHELL, _grouped_at_the_end),
    "QWenLMHeadModel": Twin("Qwen2Config", _qwen, _QWEN, _thirds),
    "OrionForCausalLM": Twin("StableLmConfig", _orion, {}),
    "ChatGLMModel": Twin("GlmConfig", _chatglm, _CHATGLM, _joined),
    "BaichuanForCausalLM": Twin("LlamaConfig", _baichuan, {}, _normal, finish=_with_alibi),
    "BailingMoeV2ForCausalLM": Twin("Glm4MoeConfig", _bailing, _BAILING, _trunk),
}


def _gemma2(config: Config) -> dict[str, Any]:
    words = ("head_dim", "query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    return {**_llama(config), **{word: config[word] for word in words}}


# What the reference is given in the place of a model that it doesn't convert.
STAND_INS: dict[str, Twin] = {
    "MERaLiON2ForConditionalGeneration": Twin("Gemma2Config", _gemma2, {"text_decoder.": ""}),
    "GPTJForCausalLM": Twin("PhiConfig", _gptj, _GPTJ, _halved, ("attn_q.bias", "attn_k.bias", "attn_v.bias")),
}
