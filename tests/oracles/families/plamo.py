"""Small models of PLaMo 1 to 3. See __init__.py, and oracles/plain_plamo.py for what they compute."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import SPM, WINDOW
from tests.oracles.families.wrapped import Shapes

_ROWS, _SPM_ROWS = vocabularies.PLAMO_SIZE, vocabularies.SPM_SIZE
_NORMS = ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")


def _ends(rows: int, width: int, *, tied: bool) -> Shapes:
    head: Shapes = {} if tied else {"lm_head.weight": (rows, width)}
    return {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,), **head}


def _mixed(i: int, mixer: Shapes) -> Shapes:
    """A layer of PLaMo 2 or 3."""
    at = f"model.layers.layers.{i}"
    mlp: Shapes = {f"{at}.mlp.gate_up_proj.weight": (192, 64), f"{at}.mlp.down_proj.weight": (64, 96)}
    own = {f"{at}.mixer.{name}": shape for name, shape in mixer.items()}
    return own | mlp | {f"{at}.{name}.weight": (64,) for name in _NORMS}


_ATTENTION: Shapes = {"qkv_proj.weight": (128, 64), "o_proj.weight": (64, 64)}
_PLAMO3: Shapes = {"q_norm.weight": (16,), "k_norm.weight": (16,)} | _ATTENTION
_PLAMO2: Shapes = {"q_weight": (4, 16), "k_weight": (2, 16)} | _ATTENTION
_MAMBA: Shapes = {
    "in_proj.weight": (192, 64), "conv1d.weight": (96, 1, 4), "bcdt_proj.weight": (112, 96), "dt_proj.weight": (6, 64),
    "dt_bias": (6,), "A_log": (6,), "D": (6,), "dt_norm_weight": (64,), "B_norm_weight": (24,), "C_norm_weight": (24,),
    "out_proj.weight": (64, 96),
}  # fmt: skip


def _plamo1() -> Shapes:
    """Two layers of 40 heads, of which each eighth shares a key and a value: what the reference is written for."""
    layer: Shapes = {
        **{f"self_attn.{part}_proj.weight": (160, 160) for part in "qo"}, "norm.weight": (160,),
        **{f"self_attn.{part}_proj.weight": (20, 160) for part in "kv"}, "mlp.down_proj.weight": (160, 96),
        **{f"mlp.{part}_proj.weight": (96, 160) for part in ("gate", "up")},
    }  # fmt: skip
    layers = {f"model.layers.layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    return layers | _ends(_SPM_ROWS, 160, tied=False)


_COMMON: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": _ROWS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3, "max_position_embeddings": 256,
}  # fmt: skip
_SAID3: dict[str, Any] = _COMMON | {
    "model_type": "plamo3", "num_hidden_layers": 4, "rms_norm_eps": 3e-3, "head_dim": 16, "window_size": WINDOW,
    "sliding_window_pattern": 2, "rope_theta": 5000, "rope_local_theta": 700, "rope_scaling_factor": 1,
    "initial_context_length": None, "tie_word_embeddings": True,
}  # fmt: skip
_SAID2: dict[str, Any] = _COMMON | {
    "model_type": "plamo2", "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "hidden_size_per_head": 16,
    "attention_window_size": 256, "mamba_d_state": 24, "mamba_d_conv": 4, "mamba_num_heads": 6, "mamba_step": 2,
    "mamba_chunk_size": 256, "mamba_enabled": True, "tie_word_embeddings": True,
}  # fmt: skip
_SAID1: dict[str, Any] = SPM | {
    "model_type": "plamo", "hidden_size": 160, "num_hidden_layers": 2, "num_attention_heads": 40, "n_shared_head": 8,
    "num_key_value_heads": 40, "intermediate_size": 96, "rms_norm_eps": 3e-3, "vocab_size": _SPM_ROWS,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096, "num_hidden_layers": 32, "rms_norm_eps": 1e-6, "num_attention_heads": 32,
    "intermediate_size": 13312, "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
    "max_position_embeddings": 2048, "use_cache": True,
}  # fmt: skip
_DEFAULTS23: dict[str, Any] = _DEFAULTS | {"num_key_value_heads": 4, "tie_word_embeddings": True}
_DEFAULTS3: dict[str, Any] = _DEFAULTS23 | {
    "head_dim": 128, "window_size": 2048, "sliding_window_pattern": 8, "rope_theta": 1000000,
    "rope_local_theta": 10000, "rope_scaling_factor": 1, "initial_context_length": None,
    "layer_types": (["sliding_attention"] * 7 + ["full_attention"]) * 4,
}  # fmt: skip
_DEFAULTS2: dict[str, Any] = _DEFAULTS23 | {
    "hidden_size_per_head": 128, "attention_window_size": 2048, "mamba_d_state": 64, "mamba_d_conv": 4,
    "mamba_num_heads": 64, "mamba_step": 2, "mamba_chunk_size": 256, "mamba_enabled": True, "rope_theta": 10000.0,
    "rope_local_theta": 10000.0,
}  # fmt: skip
_DEFAULTS1: dict[str, Any] = _DEFAULTS | {"n_shared_head": 8, "rope_theta": 10000.0}
_DEFAULTS1 |= {"tie_word_embeddings": False}
_WIDER = ("config.json: window_size = 24: llama.cpp's window includes the token itself",)

CASES = table(
    Case(
        "plamo3",
        "Plamo3ForCausalLM",
        "plamo3",
        _SAID3,
        shapes={k: v for i in range(4) for k, v in _mixed(i, _PLAMO3).items()} | _ends(_ROWS, 64, tied=True),
        defaults=_DEFAULTS3,
        recorded=("mlx",),
        told=_WIDER,
        settings={"window_size": WINDOW - 1},
        words={"rope_local_theta": 10000},
    ),
    # ... with positions stretched, and an output matrix of its own
    Case(
        "plamo3-yarn",
        "Plamo3ForCausalLM",
        "none",
        _SAID3 | {"rope_scaling_factor": 4.0, "initial_context_length": 64, "tie_word_embeddings": False},
        shapes={k: v for i in range(4) for k, v in _mixed(i, _PLAMO3).items()} | _ends(_ROWS, 64, tied=False),
        defaults=_DEFAULTS3,
        words={"rope_local_theta": 10000},
        told=(*_WIDER, "config.json: rope.truncate = False: llama.cpp always rounds the bounds"),
    ),
    Case(
        "plamo2",
        "Plamo2ForCausalLM",
        "plamo2",
        _SAID2,
        shapes={k: v for i in range(4) for k, v in _mixed(i, _PLAMO2 if i % 2 else _MAMBA).items()}
        | _ends(_ROWS, 64, tied=True),
        defaults=_DEFAULTS2,
        recorded=("mlx",),
        words={"rope_local_theta": 10000.0},
        ours={"plamo2.attention.head_count": [4, 4, 4, 4]},
        unheld=frozenset({"attention_window_size", "mamba_chunk_size"}),
    ),
    Case(
        "plamo",
        "PlamoForCausalLM",
        "spm",
        _SAID1,
        shapes=_plamo1(),
        defaults=_DEFAULTS1,
        recorded=("mlx",),
        unheld=frozenset({"num_key_value_heads"}),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "plamo": {"rope.rope_type": "yarn", "rope.rope_theta": 5000.0, "tie_word_embeddings": True},
    "plamo2": {"mamba_enabled": False, "rope.rope_type": "yarn", "rope_local_theta": 700.0, "rms_norm_eps": 1e-5}
    | {"attention_window_size": 8},
    "plamo3": {"hidden_activation": "gelu", "attention_bias": True, "scale_embedding": True}
    | {"rope.rope_type": "longrope"},
}
