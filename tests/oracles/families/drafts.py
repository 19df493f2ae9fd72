"""Small draft models as they are published: EAGLE-3. Their tokenizers lie with the models that they draft for."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA

_DRAFTED = vocabularies.BPE_SIZE // 2
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_EAGLE: dict[str, Any] = GQA | BPE | {
    "model_type": "llama", "num_hidden_layers": 1, "head_dim": 24, "draft_vocab_size": _DRAFTED, "hidden_act": "silu",
    "rope_theta": 2000.0, "rope_scaling": _LLAMA3, "tie_word_embeddings": False,
}  # fmt: skip
# LlamaConfig's, which publishers' classes take theirs from
_LLAMA: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "num_key_value_heads": 32, "head_dim": 128, "target_hidden_size": 4096, "draft_vocab_size": 32000,
}  # fmt: skip
_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (64,),
    "hidden_norm.weight": (64,),
    "self_attn.q_proj.weight": (96, 128),
    "self_attn.k_proj.weight": (48, 128),
    "self_attn.v_proj.weight": (48, 128),
    "self_attn.o_proj.weight": (64, 96),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}


def _eagle(layer: str, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    layers = {f"{layer}{name}": shape for name, shape in (_LAYER | more).items()}
    return {**layers, "fc.weight": (64, 192), "norm.weight": (64,)}


_NARROW: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj.weight": (64, 128),
    "self_attn.k_proj.weight": (32, 128),
    "self_attn.v_proj.weight": (32, 128),
    "self_attn.o_proj.weight": (64, 64),
}
_OUT = {"d2t": (_DRAFTED,), "lm_head.weight": (_DRAFTED, 64)}
_EMBED = {"embed_tokens.weight": (vocabularies.BPE_SIZE, 64)}

#: The models that they draft for, by name.
TARGETS = table(
    Case("llama", "LlamaConfig", "bpe", GQA | BPE | {"num_hidden_layers": 8}),
)

CASES = table(
    # as SpecForge trains it: the embedding is the target's
    Case(
        "eagle3",
        "LlamaForCausalLMEagle3",
        "bpe",
        _EAGLE,
        shapes=_eagle("midlayer.") | _OUT,
        defaults=_LLAMA | {"num_hidden_layers": 1, "norm_before_residual": False, "norm_before_fc": False},
        head="LlamaForCausalLMEagle3",
        target="llama",
        older=("t2d",),
        alone=("d2t", "embed_tokens.weight"),
        unheld=frozenset({"target"}),
        guesses=(
            "assuming the class LlamaForCausalLMEagle3: a eagle3 GGUF of Eagle3Speculator is the same",
        ),
        runs=False,  # without its target
    ),
    # every token of the target, whose output it has, and a norm of its inputs
    like(
        "eagle3",
        "eagle3-wide",
        config="Eagle3LlamaForCausalLM",
        options={key: value for key, value in _EAGLE.items() if key != "head_dim"}
        | {"draft_vocab_size": vocabularies.BPE_SIZE, "rope_scaling": None, "norm_before_fc": True}
        | {"target_hidden_size": 64, "eagle_aux_hidden_state_layer_ids": [0, 1, 1]},
        shapes=_eagle("midlayer.", **_NARROW) | {"input_norm.weight": (192,)},
    ),
    # as speculators writes it
    like(
        "eagle3",
        "eagle3-speculator",
        config="Eagle3Speculator",
        options={
            "draft_vocab_size": _DRAFTED, "norm_before_residual": True, "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": None, "speculators_model_type": "eagle3",
            "model_type": "speculator_model",
            "transformer_layer_config": _EAGLE | {"vocab_size": vocabularies.BPE_SIZE, "draft_vocab_size": _DRAFTED},
        },
        shapes=_eagle("layers.0.") | _OUT | _EMBED,
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "eagle3": {"hidden_act": "gelu", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    | {"partial_rotary_factor": 0.5, "rope.rope_type": "dynamic", "num_hidden_layers": 2},
}
