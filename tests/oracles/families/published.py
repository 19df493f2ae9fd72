"""Small decoders of classes that came with their models' own code, and the parts that write of some that see, under
their published names. See __init__.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, LN, theta
from tests.oracles.families.wrapped import Shapes, decoder, whole

PUBLISHED: dict[str, Any] = (
    GQA
    | BPE
    | {
        "vocab_size": vocabularies.BPE_SIZE,
        "rope_theta": 5000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
)
_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2, 1]}}
PLAIN = frozenset({"architectures", "model_type"})
_TEXT_ONLY = PLAIN | {"rope", "rope_dim"}


def renamed(shapes: Shapes, names: dict[str, str]) -> Shapes:
    """The shapes under other names: parts of names and what stands in their place."""
    out = {}
    for name, shape in shapes.items():
        for old, new in names.items():
            name = name.replace(old, new)
        out[name] = shape
    return out


def _glm(front: str) -> Shapes:
    """A GLM-4: norms around each block, gate and up in one tensor."""
    plain = decoder(biases=True, front=front)
    rest = {name: shape for name, shape in plain.items() if "gate_proj" not in name and "up_proj" not in name}
    for i in (0, 1):
        rest[f"{front}layers.{i}.mlp.gate_up_proj.weight"] = (192, 64)
        rest |= {f"{front}layers.{i}.post_{part}_layernorm.weight": (64,) for part in ("self_attn", "mlp")}
    return rest


def _glm_moe(front: str) -> Shapes:
    """A GLM-4.5 with one dense layer and one of four experts."""
    plain = {n: s for n, s in decoder(biases=True, front=front).items() if "layers.1.mlp" not in n}
    at = f"{front}layers.1.mlp."
    small: Shapes = {"gate_proj.weight": (32, 64), "up_proj.weight": (32, 64), "down_proj.weight": (64, 32)}
    for where in (*(f"experts.{e}." for e in range(4)), "shared_experts."):
        plain |= {f"{at}{where}{name}": shape for name, shape in small.items()}
    return plain | {f"{at}gate.weight": (4, 64), f"{at}gate.e_score_correction_bias": (4,)}


def lfm(front: str, head: str = "") -> Shapes:
    """An LFM2 of a layer that attends and one that convolves."""
    plain = decoder(front=front, head=head, head_norms=True)
    plain[f"{front}embedding_norm.weight"] = plain.pop(f"{front}norm.weight")
    names = {
        "input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm", "q_norm": "q_layernorm",
        "k_norm": "k_layernorm", "o_proj": "out_proj", "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
    }  # fmt: skip
    out = renamed({n: s for n, s in plain.items() if "layers.1.self_attn" not in n}, names)
    at = f"{front}layers.1.conv."
    conv: Shapes = {f"{at}in_proj.weight": (192, 64), f"{at}conv.weight": (64, 1, 3), f"{at}out_proj.weight": (64, 64)}
    return out | conv


def _omni() -> Shapes:
    """An LFM2 and a head of two blocks, next to a tensor of each tower."""
    trunk = {n: s for n, s in lfm("encoder.").items() if "lm_head" not in n}
    out = trunk | {"vision.x.weight": (8,), "audio.x.weight": (8,), "head.type_emb.weight": (3, 64)}
    out |= {"head.scorer.0.weight": (64,), "head.scorer.0.bias": (64,), "head.scorer.1.weight": (64, 64)}
    out |= {"head.scorer.1.bias": (64,), "head.scorer.3.weight": (1, 64), "head.scorer.3.bias": (1,)}
    for i in range(2):
        at = f"head.head.layers.{i}."
        out |= {f"{at}norm{n}.{end}": (64,) for n in (1, 2) for end in ("weight", "bias")}
        out |= {f"{at}self_attn.in_proj_weight": (192, 64), f"{at}self_attn.in_proj_bias": (192,)}
        out |= {f"{at}self_attn.out_proj.weight": (64, 64), f"{at}self_attn.out_proj.bias": (64,)}
        out |= {f"{at}linear1.weight": (256, 64), f"{at}linear1.bias": (256,)}
        out |= {f"{at}linear2.weight": (64, 256), f"{at}linear2.bias": (64,)}
    return out


LFM: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "norm_eps": 3e-3, "vocab_size": vocabularies.BPE_SIZE,
    "layer_types": ["full_attention", "conv"], "conv_L_cache": 3, "conv_bias": False, "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False, "rope_theta": 5000.0,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LFM_UNHELD = PLAIN | {
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
    "tie_embedding",
    "block_multiple_of",
    "block_ffn_dim_multiplier",
}
_GLM_MOE: dict[str, Any] = PUBLISHED | {
    "model_type": "glm4v_moe_text", "attention_bias": True, "moe_intermediate_size": 32, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "norm_topk_prob": True, "partial_rotary_factor": 0.5,
}  # fmt: skip

_PANGU: dict[str, Any] = {
    "vocab_size": 153376, "hidden_size": 4096, "intermediate_size": 12800, "num_hidden_layers": 34,
    "num_attention_heads": 32, "num_key_value_heads": 8, "bias": True, "hidden_act": "silu",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_theta": 16000000.0,
}  # fmt: skip

_RECORDED = json.loads((Path(__file__).parents[2] / "models/golden/families/qwen35.json").read_text("utf-8"))
_QWEN35: dict[str, Any] = {k: v for k, v in _RECORDED["config"].items() if k != "transformers_version"}
_QWEN35_SHAPES: Shapes = {name: tuple(shape) for name, shape in _RECORDED["hf"].items()}
_QWEN35_UNHELD = PLAIN | {"mtp_num_hidden_layers", "dtype", "tie_word_embeddings"}


def _glm_ocr(front: str) -> Shapes:
    """A GLM-4V of two layers with a third that predicts the next token but one."""
    plain = _glm(front)
    last = {n.replace("layers.1.", "layers.2."): shape for n, shape in plain.items() if "layers.1." in n}
    at, rows = f"{front}layers.2.", (vocabularies.BPE_SIZE, 64)
    norms: Shapes = {f"{at}{name}.weight": (64,) for name in ("enorm", "hnorm", "shared_head.norm")}
    ends: Shapes = {f"{at}{name}.weight": rows for name in ("embed_tokens", "shared_head.head")}
    return plain | last | norms | ends | {f"{at}eh_proj.weight": (64, 128)}


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        whole(
            "glm4v",
            "Glm4vForConditionalGeneration",
            {
                "model_type": "glm4v",
                "text_config": PUBLISHED | _MROPE | {"model_type": "glm4v_text", "partial_rotary_factor": 0.5},
            },
            _glm("model.language_model."),
            ("model.visual.",),
            taken="glm4",
            unheld=_TEXT_ONLY,
            defaults={"partial_rotary_factor": 0.5},
        ),
        whole(
            "glm-ocr",
            "GlmOcrForConditionalGeneration",
            {
                "model_type": "glm_ocr",
                "text_config": PUBLISHED
                | _MROPE
                | {"model_type": "glm_ocr_text", "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1},
            },
            _glm_ocr("model.language_model."),
            ("model.visual.",),
            taken="glm4",
            unheld=_TEXT_ONLY,
            defaults={"partial_rotary_factor": 0.5},
        ),
        whole(
            "glm4v-moe",
            "Glm4vMoeForConditionalGeneration",
            {"model_type": "glm4v_moe", "text_config": _GLM_MOE | _MROPE},
            _glm_moe("model.language_model."),
            ("model.visual.",),
            taken="glm4_moe",
            unheld=_TEXT_ONLY,
        ),
        Case(
            "olmo",
            "OlmoConfig",
            "bpe",
            {k: v for k, v in GQA.items() if k != "rms_norm_eps"} | BPE | theta(5000.0) | {"clip_qkv": 1.5},
        ),
        whole(
            "minicpm-v-4.6",
            "MiniCPMV4_6ForConditionalGeneration",
            {"model_type": "minicpmv4_6", "text_config": {k: v for k, v in _QWEN35.items() if k != "architectures"}},
            renamed(_QWEN35_SHAPES, {"model.": "model.language_model."}),
            ("model.vision_tower.", "model.merger."),
            unheld=_QWEN35_UNHELD,
            flags=("--no-mtp",),
        ),
        Case(
            "qwen35-bare",
            "Qwen3_5TextModel",
            "none",
            _QWEN35 | {"architectures": ["Qwen3_5TextModel"]},
            shapes={n.removeprefix("model."): s for n, s in _QWEN35_SHAPES.items() if n != "lm_head.weight"},
            head="Qwen3_5TextModel",
            runs=False,
            unheld=_QWEN35_UNHELD,
            flags=("--no-mtp",),
        ),
        Case("olmo-plain", "OlmoConfig", "none", {k: v for k, v in GQA.items() if k != "rms_norm_eps"} | BPE),
        Case(
            "xverse",
            "XverseForCausalLM",
            "none",
            {k: v for k, v in PUBLISHED.items() if k != "num_key_value_heads"} | {"model_type": "xverse"},
            shapes={
                n: (64, 64) if n.endswith(("k_proj.weight", "v_proj.weight")) else s for n, s in decoder().items()
            },
            defaults={
                "vocab_size": 100278, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
                "bos_token_id": 2, "eos_token_id": 3, "tie_word_embeddings": False,
            },
            runs=False,
            recorded=("mlx",),
        ),
        Case(
            "pangu",
            "PanguEmbeddedForCausalLM",
            "none",
            PUBLISHED | {"model_type": "PanguEmbedded", "bias": True},
            shapes=decoder(biases=True) | {f"model.layers.{i}.self_attn.o_proj.bias": (64,) for i in (0, 1)},
            defaults=_PANGU,
            runs=False,
        ),
        Case(
            "pangu-plain",
            "PanguEmbeddedForCausalLM",
            "none",
            PUBLISHED | {"model_type": "PanguEmbedded", "bias": False},
            shapes=decoder(),
            defaults=_PANGU,
            runs=False,
        ),
        Case(
            "maincoder",
            "MaincoderForCausalLM",
            "none",
            PUBLISHED | {"model_type": "maincoder", "head_dim": 16},
            shapes=decoder(head_norms=True),
            defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "tie_word_embeddings": True},
            runs=False,
        ),
        Case(
            "dream",
            "DreamModel",
            "none",
            PUBLISHED | {"model_type": "Dream", "mask_token_id": 7, "use_sliding_window": False},
            shapes=decoder(biases=True),
            defaults={
                "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
                "use_sliding_window": False,
            },
            runs=False,
        ),
        Case(
            "granite-moe-shared",
            "GraniteMoeSharedConfig",
            "bpe",
            GQA | BPE | theta(5000.0) | {
                "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
                "attention_multiplier": 0.1, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
                "logits_scaling": 8.0,
            },
            said={"head_dim": 16},
            unheld=frozenset({"head_dim"}),
        ),
        Case("jais2", "Jais2Config", "bpe", LN | BPE | {"layer_norm_eps": 5e-2} | theta(5000.0)),
        whole(
            "lfm2-vl",
            "Lfm2VlForConditionalGeneration",
            {"model_type": "lfm2_vl", "text_config": LFM | {"architectures": ["Lfm2ForCausalLM"]}},
            lfm("model.language_model."),
            ("model.vision_tower.", "model.multi_modal_projector."),
            unheld=LFM_UNHELD,
        ),
        whole(
            "lfm2-audio",
            "Lfm2AudioForConditionalGeneration",
            {"model_type": "lfm2_audio", "lfm": LFM | {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2"}},
            {name: shape for name, shape in lfm("lfm.").items() if name != "lm_head.weight"},
            ("conformer.", "audio_adapter.", "audio_embedding.", "depthformer.", "depth_linear.", "depth_embeddings."),
            part_type="lfm2", unheld=LFM_UNHELD,
        ),
        Case(
            "d1-omni", "D1OmniModel", "none",
            {
                "model_type": "d1_omni", "text_config": LFM | {"intermediate_size": 144}, "head_layers": 2,
                "temperatures": {"choice:3-5": 1.5, "choice:11+": 0.5, "noul": 2.0}, "max_length": 16384,
                "image_text_length": 896, "audio_text_length": 15360,
            },
            shapes=_omni(), apart=("vision.", "audio."), runs=False, unheld=LFM_UNHELD | {"max_length", "temperatures"},
            defaults={"model_type": "d1_omni"}, taken="d1_omni",
        ),
        Case("lfm2-bare", "Lfm2Model", "none", LFM, shapes=lfm(""), head="Lfm2Model", runs=False, unheld=LFM_UNHELD),
        Case(
            "lfm2-encoder", "Lfm2BidirectionalModel", "none", LFM, shapes=lfm(""), head="Lfm2BidirectionalModel",
            runs=False, unheld=LFM_UNHELD, part_type="lfm2", taken="lfm2",
        ),
        Case(
            "lfm2-masked", "Lfm2BidirectionalForMaskedLM", "none", LFM, shapes=lfm("lfm2."),
            beside=("lm_head.weight",), head="Lfm2BidirectionalForMaskedLM", runs=False,
            unheld=LFM_UNHELD, part_type="lfm2", taken="lfm2",
        ),
        whole(
            "paddleocr-vl",
            "PaddleOCRVLForConditionalGeneration",
            PUBLISHED | {"model_type": "paddleocr_vl", "head_dim": 16, "use_bias": False,
                      "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}},
            decoder(),
            ("visual.", "mlp_AR."),
            taken="ernie4_5",
            unheld=_TEXT_ONLY,
            part_type="paddleocr_vl_text",
        ),
    )
}  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "glm4v": {"hidden_act": "relu", "rope.rope_type": "dynamic"},
    "glm-ocr": {"hidden_act": "relu", "rope.rope_type": "dynamic"},
    "glm4vmoe": {"hidden_act": "relu", "rope.rope_type": "dynamic", "scoring_func": "softmax", "n_group": 2},
    "olmo": {"hidden_act": "relu", "rope.rope_type": "dynamic", "attention_bias": True},
    "xverse": {"hidden_act": "relu"},
    "pangu-embedded": {"hidden_act": "relu", "rope.rope_type": "dynamic"},
    "maincoder": {"hidden_act": "relu", "rope.rope_type": "dynamic"},
    "dream": {"hidden_act": "relu", "rope.rope_type": "dynamic", "use_sliding_window": True},
    "granitemoeshared": {"hidden_act": "relu", "rope.rope_type": "dynamic", "attention_bias": True},
    "jais2": {"hidden_act": "relu", "rope.rope_type": "dynamic", "attention_bias": False, "mlp_bias": False},
    "lfm2-decision": {
        "conv_bias": True,
        "rope.rope_type": "dynamic",
        "max_length": 8192,
        "image_text_length": 1,
        "audio_text_length": 1,
    },
    "lfm2-encoder": {"conv_bias": True, "rope.rope_type": "dynamic", "block_auto_adjust_ff_dim": True},
    "paddleocr": {"hidden_act": "relu", "rope.rope_type": "dynamic", "use_bias": True},
}
