"""Small models of Apertus, GPT-J, Baichuan, InternLM 3, Kimi K2.5 and Kimi-VL. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA, SMALL, SPM, theta

# The class's own buffers are the same in every layer; published models may have others.
_XIELU: dict[str, tuple[int, ...]] = {
    f"model.layers.{i}.mlp.act_fn.{name}": () for i in (0, 1) for name in ("beta", "eps")
}
_XIELU_SPREADS = (((".alpha_p", ".alpha_n"), (0.5, 0.5)), ((".beta",), (0.5, 0.2)), ((".eps",), (-0.3, 0.1)))
_PUBLISHED = {"post_norm": False, "qk_norm": True, "mlp_bias": False}
_LLAMA3: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 2000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
# norms of q and k hide a smaller epsilon
_APERTUS: dict[str, Any] = GQA | BPE | {"rms_norm_eps": 1e-2}
_GPTJ: dict[str, Any] = BPE | {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 8, "layer_norm_epsilon": 5e-2,
}  # fmt: skip
_GPTJ_SPREADS = (((".wte.weight",), (0.0, 0.5)), ((".ln_1.weight", ".ln_f.weight"), (1.0, 0.25)))


def _baichuan(layers: int) -> dict[str, Any]:
    said = {"model_type": "baichuan", "num_hidden_layers": layers, "rms_norm_eps": 3e-3, "hidden_act": "silu"}
    return SMALL | SPM | said | {"tie_word_embeddings": False}


def _baichuan_shapes(layers: int, tokens: int) -> dict[str, tuple[int, ...]]:
    one = {
        "self_attn.W_pack.weight": (192, 64),
        "self_attn.o_proj.weight": (64, 64),
        "input_layernorm.weight": (64,),
        "mlp.gate_proj.weight": (96, 64),
        "mlp.up_proj.weight": (96, 64),
        "mlp.down_proj.weight": (64, 96),
        "post_attention_layernorm.weight": (64,),
    }
    whole = {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in one.items()}
    ends = {"model.embed_tokens.weight": (tokens, 64), "model.norm.weight": (64,), "lm_head.weight": (tokens, 64)}
    return {**whole, **ends}


_BAICHUAN_DEFAULTS: dict[str, Any] = {
    "vocab_size": 64000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip

_A_LLAMA = ("assuming the class LlamaForCausalLM: a llama GGUF of MistralForCausalLM is the same",)
_INTERNLM3_UNHELD = frozenset({"model_type", "architectures", "qkv_bias", "bias", "pad_token_id"})

_KIMI: dict[str, Any] = SMALL | BPE | {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": vocabularies.BPE_SIZE,
    "num_hidden_layers": 3, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 6,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 32,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "moe_layer_freq": 1, "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "hidden_act": "silu", "attention_bias": False,
    "tie_word_embeddings": False, "num_nextn_predict_layers": 0, "rope_scaling": None, "head_dim": 8,
}  # fmt: skip


def _kimi_shapes() -> dict[str, tuple[int, ...]]:
    layer = {
        "input_layernorm.weight": (64,),
        "post_attention_layernorm.weight": (64,),
        "self_attn.q_a_proj.weight": (32, 64),
        "self_attn.q_a_layernorm.weight": (32,),
        "self_attn.q_b_proj.weight": (96, 32),
        "self_attn.kv_a_proj_with_mqa.weight": (40, 64),
        "self_attn.kv_a_layernorm.weight": (32,),
        "self_attn.kv_b_proj.weight": (160, 32),
        "self_attn.o_proj.weight": (64, 96),
    }
    dense = {"mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64), "mlp.down_proj.weight": (64, 96)}
    small = {"gate_proj.weight": (32, 64), "up_proj.weight": (32, 64), "down_proj.weight": (64, 32)}
    chosen = {
        "mlp.gate.weight": (6, 64),
        "mlp.gate.e_score_correction_bias": (6,),
        **{f"mlp.experts.{e}.{name}": shape for e in range(6) for name, shape in small.items()},
        **{f"mlp.shared_experts.{name}": shape for name, shape in small.items()},
    }
    rows = {f"model.layers.{i}.{n}": s for i in range(3) for n, s in (layer | (chosen if i else dense)).items()}
    ends: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabularies.BPE_SIZE, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (vocabularies.BPE_SIZE, 64),
    }
    seeing: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (32, 3, 14, 14),
        "mm_projector.pre_norm.weight": (32,),
    }
    return {f"language_model.{name}": shape for name, shape in (rows | ends).items()} | seeing


CASES = table(
    # Apertus: an activation with four numbers of its own in each layer
    Case(
        "apertus",
        "ApertusConfig",
        "bpe",
        _APERTUS | theta(5000.0),
        v4=True,
        said=_PUBLISHED,
        further=_XIELU,
        spreads=_XIELU_SPREADS,
        recorded=("mlx",),
        told=("config.json: rope_theta",),  # the class's own rope_parameters win, to the reference too
    ),
    Case(
        "apertus-long",
        "ApertusConfig",
        "bpe",
        _APERTUS | _LLAMA3 | {"attention_bias": True, "head_dim": 32},
        further=_XIELU,
        spreads=_XIELU_SPREADS,
    ),
    # GPT-J: a Phi-2 without biases of its attention, whose pairs of a rotation are neighbours
    Case(
        "gptj",
        "GPTJConfig",
        "bpe",
        _GPTJ,
        spreads=_GPTJ_SPREADS,
        recorded=("mlx",),
        twin=True,
        judged=False,
        gelu=True,
        unheld=frozenset({"n_inner"}),
        older=("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"),
    ),
    Case(
        "gptj-wide",
        "GPTJConfig",
        "none",
        _GPTJ | {"n_inner": 96},
        twin=True,
        ours={"phi2.feed_forward_length": 96},
    ),
    Case(
        "apertus-bias",
        "ApertusConfig",
        "none",
        _APERTUS | _LLAMA3 | {"attention_bias": True},
        said=_PUBLISHED,
        recorded=("mlx",),
    ),
    # Baichuan: a Llama with q, k and v in one tensor. llama.cpp rotates 32 layers, and biases 40
    Case(
        "baichuan",
        "BaichuanForCausalLM",
        "none",
        _baichuan(2) | {"max_position_embeddings": 256},
        shapes=_baichuan_shapes(2, vocabularies.BPE_SIZE),
        defaults=_BAICHUAN_DEFAULTS,
        told=("config.json: num_hidden_layers",),
        older=("model.layers.0.self_attn.rotary_emb.inv_freq",),
    ),
    # Baichuan 2: the output's rows at length 1
    like(
        "baichuan",
        "baichuan2",
        more={"model_max_length": 256, "z_loss_weight": 0},
        unheld=frozenset({"z_loss_weight"}),
        unit=True,
        older=(),
    ),
    Case(
        "baichuan-7b",
        "BaichuanForCausalLM",
        "spm",
        _baichuan(32) | {"max_position_embeddings": 256},
        shapes=_baichuan_shapes(32, vocabularies.SPM_SIZE),
        judged=False,
        golden=False,
    ),
    like(
        "baichuan-7b",
        "baichuan2-13b",
        more=_baichuan(40) | {"model_max_length": 256, "z_loss_weight": 0},
        shapes=_baichuan_shapes(40, vocabularies.SPM_SIZE),
        unheld=frozenset({"z_loss_weight"}),
        unit=True,
    ),
    # InternLM 3: a Llama by another name
    Case(
        "internlm3",
        "InternLM3Config",
        "spm",
        GQA | SPM | theta(5000.0) | {"head_dim": 16, "attention_bias": True, "mlp_bias": True},
        said={"architectures": ["InternLM3ForCausalLM"], "qkv_bias": True, "bias": True},
        recorded=("mlx",),
        taken="llama",
        guesses=_A_LLAMA,
        unheld=_INTERNLM3_UNHELD,
    ),
    Case(
        "internlm3-wide",
        "InternLM3Config",
        "none",
        GQA | SPM | theta(5000.0) | {"head_dim": 32},
        said={"architectures": ["InternLM3ForCausalLM"]},
        taken="llama",
        guesses=_A_LLAMA,
        unheld=_INTERNLM3_UNHELD,
    ),
    # Kimi K2.5: what writes is a DeepSeek V3
    Case(
        "kimi-k2.5",
        "KimiK25ForConditionalGeneration",
        "bpe",
        {
            "model_type": "kimi_k25",
            "text_config": _KIMI,
            "vision_config": {"model_type": "kimi_k25_vision", "hidden_size": 32, "num_hidden_layers": 1},
        },
        shapes=_kimi_shapes(),
        head="Kimi_K25ForConditionalGeneration",
        beside=("vision_tower.encoder.blocks.0.norm0.weight", "mm_projector.proj.0.weight"),
        spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
        unheld=frozenset({"scoring_func", "topk_method", "moe_layer_freq", "num_nextn_predict_layers"}),
        recorded=("mlx",),
    ),
    # Kimi-VL, whose tower's tensors have other names
    Case(
        "kimi-vl",
        "KimiVLForConditionalGeneration",
        "none",
        {"model_type": "kimi_vl", "text_config": _KIMI, "vision_config": {"model_type": "moonvit"}},
        shapes={name.replace("mm_projector", "multi_modal_projector"): shape for name, shape in _kimi_shapes().items()},
        head="KimiVLForConditionalGeneration",
        spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
        unheld=frozenset({"scoring_func", "topk_method", "moe_layer_freq", "num_nextn_predict_layers"}),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "baichuan": {"hidden_act": "gelu", "tie_word_embeddings": True},
    "gptj": {"activation_function": "relu"},
    "apertus": {
        "hidden_act": "gelu",
        "qk_norm": False,
        "post_norm": True,
        "mlp_bias": True,
        "rope.rope_type": "longrope",
    },
}
