"""Small model folders with towers, whose conversion by the reference converter is recorded in golden/projectors.

`names` come from the classes of transformers (`record_projectors.py`); the weights follow from the names, so that the
record has only shapes, keys and digests. Towers have at least three blocks: the reference's table of names has the
numbers of blocks, and needs 2 for `mm.2`, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from weighbridge.models.arch.registry import family_of_hf, projector_of_hf
from weighbridge.models.llamacpp.batch_norms import EXTRA, starts

GOLDEN: Final = Path(__file__).parent / "golden" / "projectors"
OUTTYPES: Final = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
PREPROCESSOR: Final = {"image_mean": [0.5, 0.25, 0.5], "image_std": [0.5, 0.5, 0.75]}

_TEXT: Final = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32,
}  # fmt: skip
_GEMMA: Final = {**_TEXT, "head_dim": 16, "query_pre_attn_scalar": 16}
_GEMMA4: Final = {
    **_TEXT, "num_hidden_layers": 2, "head_dim": 16, "global_head_dim": 16, "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0, "pad_token_id": 0,
}  # fmt: skip
_GEMMA4_VISION: Final = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "patch_size": 14, "position_embedding_size": 16,
}  # fmt: skip
_SECTIONS: Final = {
    **_TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
}  # fmt: skip
_HALF: Final = {
    **_TEXT,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5
    },
}  # fmt: skip
_EXPERTS: Final = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
_LINEAR: Final = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
_VISION: Final = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
_SIGLIP2: Final = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_patches": 16,
    "patch_size": 16, "vision_use_head": False,
}  # fmt: skip
_VQ: Final = {
    "embed_dim": 8, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32, "channel_multiplier": [1],
    "num_res_blocks": 1, "num_patches": 4, "projection_dim": 64, "image_token_embed_dim": 64, "hidden_size": 64,
}  # fmt: skip
_YOUTU: Final = {
    **_TEXT, "architectures": ["YoutuVLForConditionalGeneration"], "model_type": "youtu_vl", "num_key_value_heads": 4,
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 256, "hidden_act": "silu",
    "tie_word_embeddings": False, "rope_interleave": True, "attention_bias": False,
}  # fmt: skip
_M3: Final = {
    "n_shared_experts": 1, "scoring_func": "sigmoid", "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {
        "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_topk_blocks": 8, "sparse_block_size": 16,
        "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 1],
    },
}  # fmt: skip
_LFM2: Final = {"block_ff_dim": 96, "block_auto_adjust_ff_dim": False}
_QWEN: Final = {"hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64}
_GLM: Final = {**_QWEN, "depth": 3, "image_size": 56, "patch_size": 14}
_AUDIO: Final = {"num_mel_bins": 16, "max_source_positions": 1500}
_WHISPER: Final = {
    "d_model": 64, "encoder_ffn_dim": 128, "encoder_layers": 3, "encoder_attention_heads": 4, **_AUDIO,
}  # fmt: skip

#: Names of folders, whose default file names are recorded.
FOLDERS: Final = ("tiny-model", "Qwen2.5-VL-3B-Instruct", "gemma-3-4b-it-v1.5", "a b")

#: Name -> class of transformers, the arguments of its config, and preprocessor_config.json.
CASES: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "gemma3": (
        "Gemma3",
        {"text_config": _GEMMA, "vision_config": _VISION, "mm_tokens_per_image": 1},
        {**PREPROCESSOR, "image_seq_length": 1},
    ),
    "gemma3-tokens": (
        "Gemma3",
        {"text_config": _GEMMA, "vision_config": _VISION, "mm_tokens_per_image": 4},
        {**PREPROCESSOR, "image_seq_length": 4},
    ),
    "qwen2-vl": (
        "Qwen2VL",
        {"text_config": _SECTIONS, "vision_config": {**_QWEN, "depth": 3, "embed_dim": 32}},
        PREPROCESSOR,
    ),
    "sarashina2-vision": (
        "",
        {
            "architectures": ["Sarashina2VisionForCausalLM"], "model_type": "sarashina2_vision",
            "text_config": {
                **_TEXT, "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4,
                "max_position_embeddings": 256, "tie_word_embeddings": False,
            },
            "vision_config": {
                "model_type": "qwen2_vl", "depth": 3, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 4,
                "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2,
            },
        },
        PREPROCESSOR,
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VL",
        {"text_config": _SECTIONS, "vision_config": {**_QWEN, "depth": 4, "fullatt_block_indexes": [1, 3]}},
        PREPROCESSOR,
    ),
    "qwen2-audio": ("Qwen2Audio", {"text_config": {**_TEXT, "model_type": "qwen2"}, "audio_config": _WHISPER}, {}),
    "qwen3-vl": (
        "Qwen3VL",
        {
            "text_config": {**_SECTIONS, "head_dim": 16, "rms_norm_eps": 1e-5},
            "vision_config": {**_QWEN, "depth": 4, "deepstack_visual_indexes": [1, 2], "num_position_embeddings": 16},
        },
        PREPROCESSOR,
    ),
    "qwen3.5": (
        "Qwen3_5",
        {
            "text_config": {**_TEXT, "head_dim": 16, "num_hidden_layers": 4, **_LINEAR},
            "vision_config": {**_QWEN, "depth": 3, "num_position_embeddings": 16},
        },
        PREPROCESSOR,
    ),
    "glm-4v": (
        "Glm4v",
        {"text_config": _HALF, "vision_config": {**_GLM, "rms_norm_eps": 1e-4}},
        PREPROCESSOR,
    ),
    "glm-4v-gelu": ("Glm4v", {"text_config": _HALF, "vision_config": {**_GLM, "hidden_act": "gelu"}}, PREPROCESSOR),
    "qwen3-vl-moe": (
        "Qwen3VLMoe",
        {
            "text_config": {**_SECTIONS, "head_dim": 16, **_EXPERTS},
            "vision_config": {**_QWEN, "depth": 3, "deepstack_visual_indexes": [1], "num_position_embeddings": 16},
        },
        PREPROCESSOR,
    ),
    "qwen3.5-moe": (
        "Qwen3_5Moe",
        {
            "text_config": {**_TEXT, "head_dim": 16, "num_hidden_layers": 4, **_LINEAR, **_EXPERTS},
            "vision_config": {**_QWEN, "depth": 3, "num_position_embeddings": 16},
        },
        PREPROCESSOR,
    ),
    "qwen4-exp": (
        "Qwen4Exp",
        {
            "text_config": {
                **_TEXT, "head_dim": 16, "num_hidden_layers": 4, **_LINEAR, **_EXPERTS, "hc_lowrank": 8,
                "shared_expert_intermediate_size": 32, "indexer_n_heads": 2, "indexer_kv_heads": 1,
                "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4, "output_gate_type": "sigmoid",
            },
            "vision_config": {**_QWEN, "depth": 3, "num_position_embeddings": 16},
        },
        PREPROCESSOR,
    ),
    "glm-ocr": (
        "GlmOcr",
        {"text_config": {**_HALF, "num_hidden_layers": 16}, "vision_config": {**_GLM, "rms_norm_eps": 1e-4}},
        PREPROCESSOR,
    ),
    "glm-ocr-gelu": ("GlmOcr", {"text_config": _HALF, "vision_config": {**_GLM, "hidden_act": "gelu"}}, PREPROCESSOR),
    "glm-5.3": (
        "Glm5Next",
        {
            "text_config": {
                **_TEXT, "num_hidden_layers": 4, "num_key_value_heads": 4, "moe_intermediate_size": 32,
                "n_routed_experts": 2, "num_experts_per_tok": 1, "linear_head_dim": 16, "linear_num_heads": 4,
                "index_n_heads": 2, "index_head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
                "v_head_dim": 16, "pad_token_id": 0,
            },
            "vision_config": {
                **_GLM, "rms_norm_eps": 1e-4, "out_hidden_size": 64, "projection_intermediate_size": 160,
                "swiglu_limit": 7.0,
            },
        },
        {**PREPROCESSOR, "min_image_tokens": 4, "max_image_tokens": 64, "patch_size": 14, "merge_size": 2},
    ),
    "exaone-4.5": (
        "Exaone4_5_",
        {
            "text_config": {**_TEXT, "model_type": "exaone4"},
            "vision_config": {**_QWEN, "depth": 4, "fullatt_block_indexes": [1, 3], "num_key_value_heads": 2},
        },
        {**PREPROCESSOR, "min_pixels": 3136, "max_pixels": 12544},
    ),
    "dots-ocr": (
        "",
        {
            "architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr", **_TEXT, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 256, "tie_word_embeddings": False,
            "vision_config": {
                "model_type": "dots_vit", "embed_dim": 64, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 14, "rms_norm_eps": 1e-4,
                "spatial_merge_size": 2,
            },
        },
        {**PREPROCESSOR, "min_pixels": 3136, "max_pixels": 12544},
    ),
    "minicpm-v-4.6": (
        "MiniCPMV4_6",
        {
            "text_config": {**_TEXT, "head_dim": 16, "num_hidden_layers": 4, **_LINEAR},
            "vision_config": {**_VISION, "insert_layer_id": 1}, "insert_layer_id": 1,
        },
        {**PREPROCESSOR, "scale_resolution": 112},
    ),
    "hunyuan-vl": (
        "HunYuanVL",
        {
            "text_config": {
                **_TEXT, "head_dim": 16,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]},
            },
            "vision_config": {
                **{key: value for key, value in _VISION.items() if key != "image_size"}, "max_image_size": 56,
                "rms_norm_eps": 1e-4,
            },
        },
        {**PREPROCESSOR, "min_pixels": 3136, "max_pixels": 12544},
    ),
    "qwen2.5-omni": (
        "Qwen2_5OmniThinker",
        {
            "text_config": _SECTIONS, "audio_config": {**_WHISPER, "output_dim": 64},
            "vision_config": {**_QWEN, "depth": 4, "fullatt_block_indexes": [1, 3]},
        },
        PREPROCESSOR,
    ),
    "qwen3-asr": (
        "Qwen3ASR",
        {
            "text_config": {**_TEXT, "head_dim": 16},
            "audio_config": {**_WHISPER, "encoder_layers": 4, "output_dim": 64, "downsample_hidden_size": 32},
        },
        {},
    ),
    "glm-4v-moe": (
        "Glm4vMoe",
        {"text_config": {**_HALF, **_EXPERTS, "n_routed_experts": 2}, "vision_config": _GLM},
        PREPROCESSOR,
    ),
    "idefics3": (
        "Idefics3",
        {"text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _VISION, "scale_factor": 4},
        {**PREPROCESSOR, "size": {"longest_edge": 112}},
    ),
    "smolvlm": (
        "SmolVLM",
        {"text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _VISION, "scale_factor": 2},
        PREPROCESSOR,
    ),
    "cohere2-vision": (
        "Cohere2Vision",
        {
            "text_config": {**_TEXT, "model_type": "cohere2"}, "vision_config": {**_VISION, "vision_use_head": False},
            "alignment_intermediate_size": 96, "downsample_factor": 4,
        },
        {**PREPROCESSOR, "max_patches": 12},
    ),
    "janus": (
        "Janus",
        {
            "text_config": {**_TEXT, "model_type": "llama"}, "vq_config": _VQ,
            "vision_config": {**_VISION, "mlp_ratio": 2.0, "projection_dim": 64, "layer_norm_eps": 1e-5},
        },
        PREPROCESSOR,
    ),
    "janus-silu": (
        "Janus",
        {
            "text_config": {**_TEXT, "model_type": "llama"}, "vq_config": _VQ,
            "vision_config": {**_VISION, "mlp_ratio": 2.0, "projection_dim": 64, "hidden_act": "silu"},
        },
        PREPROCESSOR,
    ),
    "internvl": (
        "InternVL",
        {
            "text_config": {**_TEXT, "model_type": "qwen2"}, "downsample_ratio": 0.25,
            "vision_config": {**_VISION, "num_hidden_layers": 4, "layer_norm_eps": 1e-5, "attention_bias": True},
        },
        PREPROCESSOR,
    ),
    "internvl-silu": (
        "InternVL",
        {
            "text_config": {**_TEXT, "model_type": "qwen3", "head_dim": 16},
            "vision_config": {
                **_VISION, "num_hidden_layers": 4, "hidden_act": "silu", "norm_type": "rms_norm", "use_qk_norm": True,
            },
        },
        PREPROCESSOR,
    ),
    "internvl-chat": (
        "",
        {
            "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5,
            "min_dynamic_patch": 2, "max_dynamic_patch": 6,
            "llm_config": {
                **_TEXT, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
                "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 256, "tie_word_embeddings": False,
            },
            "vision_config": {
                **_VISION, "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b", "hidden_act": "gelu",
                "num_hidden_layers": 4, "layer_norm_eps": 1e-5, "qkv_bias": True, "qk_normalization": True,
                "norm_type": "layer_norm",
            },
        },
        PREPROCESSOR,
    ),
    "paddleocr-vl": (
        "PaddleOCRVL",
        {"text_config": {**_SECTIONS, "head_dim": 16}, "vision_config": {**_VISION, "spatial_merge_size": 2}},
        {**PREPROCESSOR, "min_pixels": 3136, "max_pixels": 12600},
    ),
    "lfm2-vl": (
        "Lfm2Vl",
        {
            "text_config": {**_TEXT, "model_type": "lfm2", "layer_types": ["full_attention"], **_LFM2},
            "vision_config": {**_SIGLIP2, "layer_norm_eps": 1e-5}, "downsample_factor": 4, "projector_hidden_size": 96,
        },
        {**PREPROCESSOR, "resample": 2},
    ),
    "lfm2-vl-plain": (
        "Lfm2Vl",
        {
            "text_config": {**_TEXT, "model_type": "lfm2", "layer_types": ["full_attention"], **_LFM2},
            "vision_config": _SIGLIP2, "projector_hidden_size": 96, "projector_use_layernorm": False,
        },
        {**PREPROCESSOR, "resample": 3},
    ),
    "audio-flamingo": (
        "AudioFlamingo3",
        {
            "text_config": {**_TEXT, "model_type": "qwen2"},
            "audio_config": {
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, **_AUDIO
            },
        },
        {},
    ),
    "voxtral": (
        "Voxtral",
        {
            "text_config": {**_TEXT, "model_type": "llama"},
            "audio_config": {
                "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, **_AUDIO
            },
        },
        {},
    ),
    "pixtral": (
        "Llava",
        {
            "text_config": {**_TEXT, "model_type": "mistral", "head_dim": 16}, "image_token_index": 5,
            "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 16, "hidden_act": "silu"},
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        },
        PREPROCESSOR,
    ),
    "mistral3": (
        "Mistral3",
        {
            "text_config": {**_TEXT, "model_type": "mistral", "head_dim": 16}, "image_token_index": 5,
            "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 16}, "spatial_merge_size": 2,
        },
        PREPROCESSOR,
    ),
    "gemma4": (
        "Gemma4",
        {"text_config": _GEMMA4, "vision_config": _GEMMA4_VISION, "audio_config": None},
        PREPROCESSOR,
    ),
    "gemma4-clipped": (
        "Gemma4",
        {
            "text_config": _GEMMA4, "audio_config": None,
            "vision_config": {**_GEMMA4_VISION, "use_clipped_linears": True, "standardize": True},
        },
        PREPROCESSOR,
    ),
    "gemma4-audio": (
        "Gemma4",
        {
            "text_config": _GEMMA4,
            "vision_config": {**_GEMMA4_VISION, "use_clipped_linears": True, "standardize": True},
            "audio_config": {
                "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "output_proj_dims": 48,
                "subsampling_conv_channels": [64, 8],
            },
        },
        PREPROCESSOR,
    ),
    "kimi-vl": (
        "",
        {
            "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl",
            "text_config": {
                **_TEXT, "model_type": "deepseek_v3", "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
                "num_hidden_layers": 2,
                "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4, "n_routed_experts": 2,
                "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 1, "n_group": 1,
                "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": True,
                "scoring_func": "sigmoid", "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
                "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": False,
            },
            "vision_config": {
                "model_type": "moonvit", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
                "num_attention_heads": 4, "patch_size": 14, "merge_kernel_size": [2, 2], "init_pos_emb_height": 64,
                "init_pos_emb_width": 64, "layer_norm_eps": 1e-4,
            },
        },
        PREPROCESSOR,
    ),
    "youtu-vl": (
        "",
        {
            **_YOUTU,
            "vision_config": {
                **_SIGLIP2, "layer_norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh", "window_size": 64,
                "fullatt_block_indexes": [0, 2], "spatial_merge_size": 2, "image_size": 64,
            },
        },
        PREPROCESSOR,
    ),
    "youtu-vl-silu": (
        "",
        {
            **_YOUTU,
            "vision_config": {
                **_SIGLIP2, "layer_norm_eps": 1e-6, "hidden_act": "silu", "window_size": 32,
                "fullatt_block_indexes": [1], "spatial_merge_size": 2,
            },
        },
        PREPROCESSOR,
    ),
    "phi4-vision": (
        "",
        {
            "architectures": ["Phi4ForCausalLMV"], "model_type": "phi4-siglip", **_TEXT, "rms_norm_eps": 1e-6,
            "rope_theta": 1e4, "max_position_embeddings": 256, "original_max_position_embeddings": 256,
            "hidden_act": "silu", "tie_word_embeddings": False, "partial_rotary_factor": 1.0,
            "vision_config": {
                "model_type": "siglip2_vision_model", "hidden_size": 64, "intermediate_size": 128,
                "num_hidden_layers": 4, "num_attention_heads": 4, "num_patches": 16, "patch_size": 16,
                "layer_norm_eps": 1e-5,
            },
        },
        {**PREPROCESSOR, "patch_size": 16, "min_num_patches": 4, "max_num_patches": 64},
    ),
    "minimax-m3": (
        "MiniMaxM3Sparse",
        {
            "text_config": {
                **_TEXT, **_M3, "head_dim": 32, "rotary_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1,
                "num_hidden_layers": 3, "shared_intermediate_size": 32, "dense_intermediate_size": 96,
                "intermediate_size": 32, "use_qk_norm": True,
            },
            "vision_config": {
                "hidden_size": 320, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                "image_size": 56, "patch_size": 14,
            },
            "projector_hidden_size": 96,
        },
        PREPROCESSOR,
    ),
    "llava-siglip": (
        "Llava",
        {
            "text_config": {**_TEXT, "model_type": "llama"}, "image_token_index": 30, "vision_feature_layer": -2,
            "vision_feature_select_strategy": "full", "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
        },
        PREPROCESSOR,
    ),
    "llava-siglip-layers": (
        "Llava",
        {
            "text_config": {**_TEXT, "model_type": "llama"}, "image_token_index": 30, "vision_feature_layer": [1, -1],
            "vision_feature_select_strategy": "full", "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
        },
        PREPROCESSOR,
    ),
    "lightonocr": (
        "LightOnOcr",
        {
            "text_config": {**_TEXT, "head_dim": 16}, "image_token_id": 5,
            "vision_config": {**_VISION, "head_dim": 16, "hidden_act": "silu"},
        },
        PREPROCESSOR,
    ),
    "lightonocr-gelu": (
        "LightOnOcr",
        {
            "text_config": {**_TEXT, "head_dim": 16}, "image_token_id": 5, "spatial_merge_size": 4,
            "vision_config": {**_VISION, "head_dim": 16},
        },
        PREPROCESSOR,
    ),
}  # fmt: skip


_CONFORMER: Final = {
    "hidden_dim": 64, "num_layers": 3, "num_heads": 4, "feedforward_mult": 2, "input_dim": 32, "output_dim": 24,
    "dim_head": 16, "context_size": 20, "conv_kernel_size": 5, "conv_expansion_factor": 2, "max_pos_emb": 32,
}  # fmt: skip
_QFORMER: Final = {
    "model_type": "blip_2_qformer", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "cross_attention_frequency": 1, "vocab_size": 8,
}  # fmt: skip

_STEP: Final = {
    "model_type": "perception_encoder", "width": 64, "layers": 3, "heads": 4, "image_size": 56, "patch_size": 14,
    "hidden_act": "quick_gelu",
}  # fmt: skip


def recorded_config(family: str) -> dict[str, Any]:
    """The config of a recorded language model."""
    return dict(json.loads((GOLDEN.parent / "families" / f"{family}.json").read_text())["config"])


def _ocr_text() -> dict[str, Any]:
    return {**recorded_config("deepseek2-ocr"), "vocab_size": 32}


def _ocr_towers(image: int) -> dict[str, Any]:
    """DeepSeek-OCR's towers. The reference's table of names needs four blocks for `neck.3`."""
    clip = {"heads": 4, "image_size": image, "layers": 4, "patch_size": 14, "width": 64}
    sam = {"heads": 4, "layers": 3, "width": 48, "global_attn_indexes": [2], "downsample_channels": [32, 64]}
    widths = {"clip-l-14-224": clip, "sam_vit_b": sam}
    return {"model_type": "vision", "model_name": "deeplip_b_l", "image_size": 64, "width": widths}


CASES.update({
    "llama4": (
        "Llama4",
        {
            "text_config": {
                **_TEXT, "num_hidden_layers": 2, "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 2,
                "pad_token_id": 0,
            },
            "vision_config": {
                **_VISION, "intermediate_size": 256, "vision_output_dim": 80, "projector_input_dim": 80,
                "projector_output_dim": 80, "pixel_shuffle_ratio": 0.5,
            },
        },
        PREPROCESSOR,
    ),
    "granite-speech": (
        "GraniteSpeech",
        {
            "text_config": {**_TEXT, "model_type": "granite"}, "encoder_config": _CONFORMER,
            "projector_config": {**_QFORMER, "encoder_hidden_size": 64}, "window_size": 15, "downsample_rate": 5,
            "has_lora_adapter": False,
        },
        {},
    ),
    "granite-speech-plus": (
        "GraniteSpeechPlus",
        {
            "text_config": {**_TEXT, "model_type": "granite"},
            "encoder_config": {**_CONFORMER, "cat_hidden_layers": [1]},
            "projector_config": {**_QFORMER, "encoder_hidden_size": 128}, "window_size": 15, "downsample_rate": 5,
            "has_lora_adapter": False,
        },
        {},
    ),
    "gemma4-unified": (
        "Gemma4Unified",
        {
            "text_config": {**_GEMMA4, "attention_k_eq_v": False},
            "vision_config": {
                "patch_size": 4, "pooling_kernel_size": 3, "mm_embed_dim": 48, "mm_posemb_size": 20,
                "output_proj_dims": 48,
            },
            "audio_config": {"audio_embed_dim": 640},
        },
        PREPROCESSOR,
    ),
    "embedding-gemma2": (
        "EmbeddingGemma2Model",
        {
            "text_config": {
                **_TEXT, "num_hidden_layers": 2, "head_dim": 16, "hidden_size_per_layer_input": 32, "embedding_dim": 96,
                "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0, "sliding_window": 12,
                "per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}},
            },
            "vision_config": {**_GEMMA4_VISION, "model_type": "gemma4_vision"}, "audio_config": None,
        },
        PREPROCESSOR,
    ),
    "embedding-gemma2-audio": (
        "EmbeddingGemma2Model",
        {
            "text_config": {
                **_TEXT, "num_hidden_layers": 2, "head_dim": 16, "hidden_size_per_layer_input": 32, "embedding_dim": 96,
                "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0, "sliding_window": 12,
                "per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}},
            },
            "vision_config": {**_GEMMA4_VISION, "model_type": "gemma4_vision"},
            "audio_config": {**CASES["gemma4-audio"][1]["audio_config"], "model_type": "gemma4_audio"},
        },
        PREPROCESSOR,
    ),
    "step3-vl": (
        "",
        {
            "architectures": ["StepVLForConditionalGeneration"], "model_type": "step_robotics",
            "understand_projector_stride": 2,
            "text_config": {
                **_TEXT, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 256,
                "hidden_act": "silu", "tie_word_embeddings": False, "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
            },
            "vision_config": {**_STEP, "mlp_ratio": 1.5, "layer_norm_eps": 1e-4},
        },
        PREPROCESSOR,
    ),
    "step3.7": (
        "",
        {
            "architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7",
            "text_config": recorded_config("step3.7")["text_config"],
            "understand_projector_stride": 2, "vision_config": {
                **_STEP, "width": 32, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                "mlp_ratio": 2.0, "intermediate_size": 64, "layer_norm_eps": 1e-5,
            },
        },
        {},
    ),
    "deepseek-ocr": (
        "",
        {**_ocr_text(), "vision_config": _ocr_towers(224)},
        {**PREPROCESSOR, "image_seq_length": 64},
    ),
    "deepseek-ocr2": (
        "",
        {
            **_ocr_text(), "architectures": ["DeepseekOCR2ForCausalLM"],
            "language_config": {"architectures": ["DeepseekV2ForCausalLM"]},
            "vision_config": {
                "model_type": "vision", "model_name": "deepencoderv2", "image_size": 96, "patch_size": 16, "layers": 4,
                "num_attention_heads": 4, "intermediate_size": 96, "layer_norm_eps": 1e-5, "window_size": 12,
                "width": {"qwen2-0-5b": {"dim": 64}, "sam_vit_b": _ocr_towers(56)["width"]["sam_vit_b"]},
            },
        },
        {**PREPROCESSOR, "image_seq_length": 4},
    ),
    "unlimited-ocr": (
        "",
        {
            **_ocr_text(), "architectures": ["UnlimitedOCRForCausalLM"], "model_type": "unlimited-ocr",
            "sliding_window_size": 16, "vision_config": {**_ocr_towers(56), "window_size": 12, "layer_norm_eps": 1e-5},
        },
        PREPROCESSOR,
    ),
    "ultravox": (
        "",
        {
            "architectures": ["UltravoxModel"], "model_type": "ultravox", "hidden_size": 96, "stack_factor": 2,
            "projector_act": "swiglu", "projector_ln_mid": True, "text_config": {**_TEXT, "model_type": "llama"},
            "audio_config": {**_WHISPER, "model_type": "whisper", "layer_norm_eps": 1e-6},
        },
        {},
    ),
    "kimi-k2.5": (
        "",
        {
            "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
            "text_config": CASES["kimi-vl"][1]["text_config"],
            "vision_config": {
                "vt_hidden_size": 64, "vt_intermediate_size": 96, "vt_num_hidden_layers": 3,
                "vt_num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
                "num_attention_heads": 4, "patch_size": 14, "merge_kernel_size": [2, 2], "projector_ln_eps": 1e-4,
                "init_pos_emb_height": 4, "init_pos_emb_width": 6, "init_pos_emb_time": 2,
                "projector_hidden_act": "gelu", "model_type": "kimi_k25",
            },
        },
        {"media_proc_cfg": {**PREPROCESSOR, "in_patch_limit": 64}},
    ),
})  # fmt: skip


#: More blocks than projectors: the reference has one table for the numbers of both.
CASES["granite4-vision"] = (
    "Granite4Vision",
    {
        "text_config": {**_TEXT, "num_hidden_layers": 6, "pad_token_id": 0},
        "vision_config": {**_VISION, "model_type": "siglip_vision_model", "hidden_size": 128, "num_hidden_layers": 7},
        "qformer_config": {
            **_QFORMER, "num_hidden_layers": 1, "hidden_size": 128, "num_attention_heads": 2,
            "use_qformer_text_input": False,
        },
        "downsample_rate": "1/2", "deepstack_layer_map": [[-6, 3], [-3, 0]], "spatial_target_layers": [4, 1, 5, 2],
        "spatial_vision_layer": -2, "image_grid_pinpoints": [[56, 56], [56, 112], [112, 56]],
        "vision_feature_select_strategy": "full",
    },
    PREPROCESSOR,
)  # fmt: skip
CASES["cogvlm"] = (
    "",
    {
        **{key: value for key, value in _TEXT.items() if key != "num_key_value_heads"},
        "architectures": ["CogVLMForCausalLM"],
        "model_type": "cogvlm",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_heads": 4,
            "image_size": 56,
            "patch_size": 14,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "num_positions": 17,
            "in_channels": 3,
            "dropout_prob": 0.0,
        },
    },
    PREPROCESSOR,
)


CASES["lfm2-audio"] = (
    "",
    {
        "architectures": ["Lfm2AudioForConditionalGeneration"], "codebooks": 1, "tie_audio_embeddings": False,
        "lfm": {
            **_TEXT, **_LFM2, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "norm_eps": 1e-5,
            "layer_types": ["full_attention"], "intermediate_size": 96, "max_position_embeddings": 256,
            "rope_theta": 1e6, "conv_bias": False, "conv_L_cache": 3, "tie_word_embeddings": True,
        },
        "encoder": {
            "feat_in": 128, "n_layers": 7, "d_model": 64, "n_heads": 4, "ff_expansion_factor": 2,
            "subsampling_conv_channels": 10, "conv_kernel_size": 9, "conv_norm_type": "batch_norm",
            "subsampling": "dw_striding", "subsampling_factor": 8, "self_attention_model": "rel_pos",
        },
        "depthformer": {"layers": 1, "dim": 32, "tie": True},
    },
    {},
)  # fmt: skip

CASES["gemma3n"] = (
    "",
    {
        "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n",
        "text_config": {
            **recorded_config("gemma3n-seeing")["text_config"], "hidden_size": 64, "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 0,
            "vocab_size": 32, "vocab_size_per_layer_input": 32,
        },
        "vision_config": {
            "model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc", "hidden_size": 64, "vocab_size": 4,
        },
        "audio_config": {
            "model_type": "gemma3n_audio", "hidden_size": 32, "conf_num_hidden_layers": 2,
            "conf_num_attention_heads": 4,
            "conf_conv_kernel_size": 5, "input_feat_size": 32, "sscp_conv_channel_size": [8, 4], "vocab_size": 4,
        },
    },
    {**PREPROCESSOR, "size": {"height": 256, "width": 256}, "image_seq_length": 64},
)  # fmt: skip
CASES["meralion2"] = (
    "",
    {
        "architectures": ["MERaLiON2ForConditionalGeneration"], "model_type": "meralion2", "speech_mlp_scale_factor": 5,
        "text_config": {
            **_GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "sliding_window": 64, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e4,
            "tie_word_embeddings": True,
        },
        "speech_config": {**_WHISPER, "model_type": "whisper", "num_hidden_layers": 3, "layer_norm_eps": 1e-6},
    },
    {},
)  # fmt: skip
CASES["deepseek-v4-vision"] = (
    "",
    {
        **recorded_config("deepseek4-vision"),
        "vocab_size": 32,
        "vision_n_layers": 3,
        "vision_dim": 48,
        "vision_n_heads": 4,
        "vision_inter_dim": 32,
        "vision_patch_size": 14,
        "vision_rope_theta": 10000.0,
        "vision_downsample_ratio": 3,
        "vision_max_n_token": 384,
        "vision_min_pixels": 3136,
        "vision_max_wh_ratio": 8,
    },
    {},
)


CASES["glm-asr"] = (
    "",
    {
        "architectures": ["GlmasrModel"], "model_type": "Glmasr", "merge_factor": 4, "use_rope": False,
        "adapter_type": "mlp", "lm_config": {**_TEXT, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        "whisper_config": {**_WHISPER, "model_type": "whisper", "num_hidden_layers": 3, "layer_norm_eps": 1e-6},
    },
    {},
)  # fmt: skip
# transformers' model without an output, whose names begin elsewhere
CASES["qwen2-vl-model"] = ("Qwen2VLModel", CASES["qwen2-vl"][1], PREPROCESSOR)
CASES["ling3-vl"] = (
    "",
    {
        **recorded_config("ling3-vl"),
        "vision_config": {
            **_QWEN, "depth": 3, "patch_size": 14, "num_position_embeddings": 16, "spatial_merge_size": 2,
            "out_hidden_size": 256, "disable_merger_proj": True,
        },
    },
    PREPROCESSOR,
)  # fmt: skip


CASES["muse-glimmer"] = (
    "MuseGlimmer",
    {
        "text_config": {**_TEXT, "num_hidden_layers": 2, "head_dim": 16},
        "vision_config": {
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
            "pos_emb_height": 6, "pos_emb_width": 6,
        },
        "out_hidden_size": 256, "projector_hidden_size": 48,
    },
    PREPROCESSOR,
)  # fmt: skip


_NEMOTRON_H: Final = {
    **_TEXT, "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hybrid_override_pattern": "M-*",
    "num_hidden_layers": 3, "head_dim": 16, "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "n_groups": 2, "conv_kernel": 4, "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5, "rms_norm_eps": 1e-5,
}  # fmt: skip
#: RADIO's sizes are constants of the reference, which `record_projectors.py` changes to these.
RADIO: Final = {"_vit_hidden_size": 64, "_vit_intermediate_size": 128, "_vit_num_layers": 7, "_vit_num_heads": 4}
CASES["nemotron-vl"] = (
    "",
    {
        "architectures": ["NemotronH_Nano_VL_V2"], "model_type": "NemotronH_Nano_VL_V2", "llm_config": _NEMOTRON_H,
        "force_image_size": 64, "downsample_ratio": 0.5, "projector_hidden_size": 48, "patch_size": 16,
        "vision_config": {
            "architectures": ["RADIOModel"], "model_type": "radio", "patch_size": 16, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 7, "num_attention_heads": 4,
        },
    },
    PREPROCESSOR,
)  # fmt: skip
CASES["nemotron-omni"] = (
    "",
    {
        **CASES["nemotron-vl"][1], "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"],
        "model_type": "NemotronH_Nano_Omni_Reasoning_V3",
        "sound_config": {
            "model_type": "parakeet", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_mel_bins": 128, "subsampling_factor": 8, "subsampling_conv_channels": 8,
            "conv_kernel_size": 9,
        },
    },
    {},
)  # fmt: skip


CASES["dots3-note"] = (
    "Dots3Note",
    {
        **recorded_config("dots3-note-seeing"), "vocab_size": 32,
        "vision_config": {
            "adapter_type": "patch_merger", "pre_pixel_shuffle": True, "embed_dim": 64, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "patch_size": 14,
            "moe_intermediate_size": 32, "pyramid_num_routed": [-1, 2, -1, 4], "capacity_factor": 2,
            "router_scoring_func": "sigmoid", "router_scale": 1.0, "temporal_patch_size": 1, "use_bias": False,
            "use_qk_norm": True, "spatial_merge_size": 2, "rms_norm_eps": 1e-4, "adapter_in_dim": 64,
            "adapter_out_dim": 64, "adapter_merge_size": 2,
        },
        "audio_config": {
            "use_conv2d_stem": True, "use_rope": True, "use_rms_norm": True, "use_causal": False, "merge_factor": 1,
            "chunk_seconds": 60, "downsample_hidden_size": 24, "whisper_adapter_in_dim": 64,
            "whisper_adapter_out_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
            "whisper_config": {
                "d_model": 64, "encoder_ffn_dim": 96, "encoder_layers": 4, "encoder_attention_heads": 4,
                "num_mel_bins": 16, "activation_function": "swiglu",
            },
        },
    },
    {"vision_config": {**PREPROCESSOR, "min_pixels": 3136, "max_pixels": 12544}},
)  # fmt: skip


_TOKENIZER: Final = {
    "d_model": 64, "encoder_ffn_dim": 96, "encoder_attention_heads": 4, "encoder_layers": 4, "n_mels": 16,
    "num_quantizers": 3, "codebook_size": [12, 20, 8], "swa_per_block": 2, "hybrid_attention": True,
    "encoder_attn_window_size": [24, 0], "encoder_skip_layer_id": 3, "avg_pooler": 2, "kernel_size": 3,
    "stride_size": 2, "layer_norm_eps": 1e-6,
}  # fmt: skip
CASES["mimo-v2.5"] = (
    "",
    {
        **recorded_config("mimo2-qkv"), "vocab_size": 32,
        "vision_config": {
            "hidden_size": 64, "intermediate_size": 96, "depth": 4, "num_heads": 4, "num_key_value_heads": 2,
            "qk_channels": 24, "patch_size": 14, "spatial_merge_size": 2, "use_sink": True, "rms_norm_eps": 1e-5,
            "fullatt_block_indexes": [0, 3], "vit_window_attn_types": [-1, 0, 1, -1], "visual_token_window_size": 8,
        },
        "audio_config": {
            "audio_channels": 3, "input_local_layers": 2, "input_local_dim": 64, "group_size": 4, "rope_theta": 640000,
        },
    },
    {**PREPROCESSOR, "min_pixels": 3136, "max_pixels": 12544},
)  # fmt: skip


CASES["d1-omni"] = (
    "",
    {
        "architectures": ["D1OmniModel"], "model_type": "d1_omni", "downsample_factor": 2, "head_layers": 1,
        "text_config": {**_TEXT, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 32},
        "vision_config": {
            "model_type": "siglip2_vision_model", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
            "num_attention_heads": 4, "patch_size": 16, "layer_norm_eps": 1e-6,
        },
        "audio_config": {"feat_in": 128, "n_layers": 2, "d_model": 64, "n_heads": 4, "ff_expansion_factor": 2},
    },
    {},
)  # fmt: skip
CASES["openjev"] = CASES["clef"] = CASES["qwen3.5"]
CASES["pplx-decider"] = (
    *CASES["qwen3.5"][:2],
    {**PREPROCESSOR, "size": {"shortest_edge": 3136, "longest_edge": 401408}},
)
CASES["qwen3-omni"] = (
    "",
    {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
        "thinker_config": {
            "text_config": {
                **_TEXT, **_EXPERTS, "model_type": "qwen3_omni_moe_text", "head_dim": 16, "rms_norm_eps": 1e-6,
                "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True},
            },
            "audio_config": {
                **_WHISPER, "model_type": "qwen3_omni_moe_audio_encoder", "encoder_layers": 4, "output_dim": 64,
                "downsample_hidden_size": 32, "layer_norm_eps": 1e-6,
            },
            "vision_config": {**_QWEN, "model_type": "qwen3_omni_moe_vision_encoder", "depth": 3},
        },
    },
    {},
)  # fmt: skip
CASES["glm-5.2-vision"] = (
    "",
    {
        **CASES["kimi-k2.5"][1], "architectures": ["Glm5vForConditionalGeneration"], "model_type": "glm5v",
        "text_config": {**recorded_config("glm5"), "vocab_size": 32},
    },
    CASES["kimi-k2.5"][2],
)  # fmt: skip
CASES["glm-5.2-vision-joined"] = CASES["glm-5.2-vision"]


_TALKER: Final = {
    **_TEXT, "model_type": "qwen3_tts_talker", "head_dim": 16, "vocab_size": 64, "text_vocab_size": 32,
    "text_hidden_size": 48, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
    "num_code_groups": 16, "codec_bos_id": 61, "codec_eos_token_id": 62, "codec_pad_id": 60,
    "rope_scaling": {"interleaved": True, "mrope_section": [3, 3, 2], "rope_type": "default"},
    "code_predictor_config": {
        "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 40, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
        "num_code_groups": 16,
    },
}  # fmt: skip
CASES["qwen3-tts"] = (
    "",
    {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts", "talker_config": _TALKER,
        "speaker_encoder_config": {"enc_dim": 64, "sample_rate": 24000},
    },
    {},
)  # fmt: skip
CASES["pocket-tts"] = (  # the config is that of the tensors' shapes: the folder has none
    "",
    {
        "architectures": ["PocketTTSModel"], "model_type": "pockettts", "vocab_size": 34, "text_rows": 32,
        "hidden_size": 64, "max_position_embeddings": 4096, "rope_theta": 10000.0, "layer_norm_eps": 1e-5,
        "latent_size": 16, "num_hidden_layers": 1, "intermediate_size": 96, "num_attention_heads": 1,
        "input_names": ["<|pad|>", "<|bos_before_voice|>", "<|audio_bos|>"],
    },
    {},
)  # fmt: skip


#: Values of a config that its class of transformers doesn't write, or not at this place.
ADDED: Final[dict[str, dict[str, Any]]] = {
    "gemma3": {"vision_config": {"layer_norm_eps": 1e-5}},
    "qwen2-vl": {"rms_norm_eps": 1e-5, "vision_config": {"image_size": 280}},
    "qwen2.5-vl": {"rms_norm_eps": 1e-5, "vision_config": {"image_size": 280}},
    "glm-ocr": {"text_config": {"num_nextn_predict_layers": 1}},
    "exaone-4.5": {"vision_config": {"image_size": 280, "rms_norm_eps": 1e-5}},
    "minicpm-v-4.6": {"vision_config": {"layer_norm_eps": 1e-5}},
    "qwen2.5-omni": {
        "rms_norm_eps": 1e-5,
        "thinker_config": {"audio_config": {"layer_norm_eps": 1e-6}, "vision_config": {"image_size": 280}},
    },
    "qwen3-asr": {"thinker_config": {"audio_config": {"layer_norm_eps": 1e-6}}},
    "qwen2-audio": {"audio_config": {"layer_norm_eps": 1e-6}},
    "voxtral": {"audio_config": {"layer_norm_eps": 1e-6}},
    "audio-flamingo": {"audio_config": {"layer_norm_eps": 1e-6}},
    "idefics3": {"vision_config": {"layer_norm_eps": 1e-4}},
    "cohere2-vision": {"vision_config": {"layer_norm_eps": 1e-4}},
    "internvl": {"vision_config": {"architectures": ["InternVisionModel"]}},
    "internvl-silu": {"vision_config": {"architectures": ["InternVisionModel"]}},
    "janus-silu": {"vision_config": {"intermediate_size": None}},
    "paddleocr-vl": {"vision_config": {"architectures": ["PaddleOCRVisionModel"], "rms_norm_eps": 1e-5}},
    "mistral3": {"vision_config": {"layer_norm_eps": 1e-4}},
    "minimax-m3": {
        "text_config": _M3,
        "vision_config": {"layer_norm_eps": 1e-4},
    },
    "gemma4": {"vision_config": {"layer_norm_eps": 1e-4}},
    "llava-siglip": {"vision_config": {"layer_norm_eps": 1e-4}},
    "embedding-gemma2-audio": {"audio_config": {"input_feat_size": 64}},
    "gemma4-unified": {
        "vision_config": {"layer_norm_eps": 1e-4},
        "audio_config": {"layer_norm_eps": 1e-5, "input_feat_size": 64},
    },
    "gemma4-audio": {
        "vision_config": {"layer_norm_eps": 1e-4},
        "audio_config": {"layer_norm_eps": 1e-5, "input_feat_size": 64},
    },
    "lightonocr": {"architectures": ["LightOnOCRForConditionalGeneration"], "vision_config": {"layer_norm_eps": 1e-4}},
    "lightonocr-gelu": {"architectures": ["LightOnOCRForConditionalGeneration"]},
}


#: Models for which the reference converter has no class: llama.cpp and transformers compute the same
#: (test_images_in_llamacpp.py).
WITHOUT_REFERENCE: Final = ("llava-siglip", "llava-siglip-layers")


#: Folders without a language model that converts: it is in another folder, or has no output.
WITHOUT_TEXT: Final = ("d1-omni", "glm-asr", "qwen2-vl-model", "ultravox")


#: Models whose published config the reference is given, since transformers 5 reads it as one with other keys.
AS_PUBLISHED: Final = ("dots3-note",)


#: Classes of the reference that read a folder, if not that of its config, and tensors that it gets no further.
READ_BY: Final[dict[str, tuple[str, str]]] = {
    "qwen3-omni": ("Qwen3ASRForConditionalGeneration", "thinker.visual."),
    "openjev": ("OpenJevModel", "/"),
    "clef": ("ClefModel", "/"),
    "pplx-decider": ("PplxDeciderModel", "/"),
}


_VOCODER: Final = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "decoder_config": {
        "codebook_dim": 64, "codebook_size": 24, "decoder_dim": 64, "head_dim": 4, "hidden_size": 32,
        "intermediate_size": 96, "latent_dim": 32, "num_attention_heads": 16, "num_hidden_layers": 8,
        "num_key_value_heads": 16, "num_quantizers": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000,
        "sliding_window": 72, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
    },
}  # fmt: skip


#: Further files of a folder. A `config.json` in a folder is that of tensors whose names begin with the folder's. None:
#: the folder doesn't have this one.
FILES: Final[dict[str, dict[str, Any]]] = {
    "qwen3-tts": {"speech_tokenizer/config.json": _VOCODER},
    "pocket-tts": {"config.json": None},
    "mimo-v2.5": {"audio_tokenizer/config.json": _TOKENIZER},
    "openjev": {"helper/shim.py": ""},
    "clef": {"joint_head_config.json": {"routing_layers": 1, "layers": 1, "heads": 4}},
    "pplx-decider": {"decision_config.json": {"temperature": 1.5}},
    "pixtral": {"tokenizer_config.json": {"added_tokens_decoder": {"12": {"content": "[IMG_BREAK]"}}}},
    "mistral3": {
        "tokenizer_config.json": {},
        "tokenizer.json": {"model": {}, "added_tokens": [{"id": 13, "content": "[IMG_BREAK]"}]},
    },
}


#: Models whose config has another around it, and whose names have a prefix: class and `model_type` of the whole.
THINKERS: Final = {
    "Qwen2_5OmniThinker": ("Qwen2_5OmniModel", "qwen2_5_omni"),
    "Qwen3ASR": ("Qwen3ASRForConditionalGeneration", "qwen3_asr"),
}


def _llama(start: str, head: str, biases: Collection[str] = ()) -> dict[str, list[int]]:
    """The tensors of a language model of one layer, with biases of these modules."""
    layer = {
        "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64], "self_attn.v_proj": [32, 64],
        "self_attn.o_proj": [64, 64], "mlp.gate_proj": [96, 64], "mlp.up_proj": [96, 64], "mlp.down_proj": [64, 96],
        "input_layernorm": [64], "post_attention_layernorm": [64],
    }  # fmt: skip
    weights = {f"{start}layers.0.{name}.weight": shape for name, shape in layer.items()}
    weights |= {f"{start}layers.0.{name}.bias": layer[name][:1] for name in biases}
    return {**weights, f"{start}embed_tokens.weight": [32, 64], f"{start}norm.weight": [64], f"{head}weight": [32, 64]}


_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def _both(modules: Mapping[str, list[int]], start: str = "") -> dict[str, list[int]]:
    """Weights and biases of modules."""
    return {
        f"{start}{name}.{part}": shape if part == "weight" else shape[:1]
        for name, shape in modules.items()
        for part in ("weight", "bias")
    }


def _internvl_chat() -> dict[str, list[int]]:
    """The tensors of InternVL as published."""
    block = {
        "attn.qkv": [192, 64], "attn.proj": [64, 64], "mlp.fc1": [128, 64], "mlp.fc2": [64, 128], "norm1": [64],
        "norm2": [64],
    }  # fmt: skip
    plain = {"ls1": [64], "ls2": [64], "attn.q_norm.weight": [64], "attn.k_norm.weight": [64]}
    tower: dict[str, list[int]] = {}
    for layer in (f"vision_model.encoder.layers.{n}." for n in range(4)):
        tower |= {**_both(block, layer), **{f"{layer}{name}": shape for name, shape in plain.items()}}
    embeddings = "vision_model.embeddings."
    tower |= {f"{embeddings}class_embedding": [1, 1, 64], f"{embeddings}position_embedding": [1, 17, 64]}
    tower |= _both({"patch_embedding": [64, 3, 14, 14]}, embeddings)
    tower |= _both({"0": [256], "1": [64, 256], "3": [64, 64]}, "mlp1.")
    return dict(sorted({**tower, **_llama("language_model.model.", "language_model.lm_head.", _QKV)}.items()))


def _dots_ocr() -> dict[str, list[int]]:
    """The tensors of dots.ocr, of which transformers has no class."""
    tower = "vision_tower."
    block = {
        "norm1": [64], "norm2": [64], "attn.qkv": [192, 64], "attn.proj": [64, 64], "mlp.fc1": [96, 64],
        "mlp.fc2": [64, 96], "mlp.fc3": [96, 64],
    }  # fmt: skip
    weights = {f"{tower}blocks.{n}.{name}.weight": shape for n in range(3) for name, shape in block.items()}
    weights |= {f"{tower}patch_embed.patchifier.norm.weight": [64], f"{tower}post_trunk_norm.weight": [64]}
    both = {
        "patch_embed.patchifier.proj": [64, 3, 14, 14], "merger.ln_q": [64], "merger.mlp.0": [256, 256],
        "merger.mlp.2": [64, 256],
    }  # fmt: skip
    return dict(sorted({**weights, **_both(both, tower), **_llama("model.", "lm_head.", _QKV)}.items()))


def _sarashina() -> dict[str, list[int]]:
    """The tensors of Sarashina 2.2 Vision: those of Qwen2-VL's tower, a norm, and a Llama."""
    block = {
        "attn.qkv": [96, 32], "attn.proj": [32, 32], "mlp.fc1": [128, 32], "mlp.fc2": [32, 128], "norm1": [32],
        "norm2": [32],
    }  # fmt: skip
    ends = {"visual.merger.ln_q": [32], "visual.merger.mlp.0": [128, 128], "visual.merger.mlp.2": [64, 128]}
    blocks = {f"visual.blocks.{n}.{name}": shape for n in range(3) for name, shape in block.items()}
    patch = {"visual.patch_embed.proj.weight": [32, 3, 2, 14, 14]}
    return dict(
        sorted({**_both({**blocks, **ends, "norm": [64]}), **patch, **_llama("llm.model.", "llm.lm_head.")}.items())
    )


def _language_model(name: str) -> dict[str, list[int]]:
    """The tensors of a case's language model, by its family's table."""
    config = CASES[name][1]
    family = family_of_hf(config)
    sizes, prefix = family.sizes_from_hf(config), family.architectures[config["architectures"][0]].prefix
    places = family.expansion("hf", sizes, prefix).places.values()
    needs = (None,) if family.effective(config).get("tie_word_embeddings") else (None, "only head")
    return {place.name: [*place.shape] for place in places if place.need in needs}


#: The sizes of a case that its config doesn't have.
_DIMENSIONS: Final = {
    "mimo-v2.5": {
        "#speech_embeddings.0.weight": 20, "#audio_encoder.input_local_transformer.layers.0.mlp.gate_proj.weight": 32,
        "#audio_encoder.projection.mlp.0.weight": 48,
    },
    "d1-omni": {
        "#vision.tower.vision_model.embeddings.position_embedding.weight": 16, "#vision.projector.linear_1.weight": 48,
        "#audio.encoder.pre_encode.conv.0.weight": 10, "#audio.residual.down.weight": 24,
    },
    "qwen3-tts": {
        "#speaker_encoder.blocks.0.conv.weight": 64, "#speaker_encoder.blocks.1.se_block.conv1.weight": 16,
        "#speaker_encoder.asp.tdnn.conv.weight": 24,
    },
    "pocket-tts": {
        "*mimi.encoder_transformer.transformer.layers.{n}.norm1.weight": 3,
        "*flow_lm.flow_net.res_blocks.{n}.in_ln.weight": 2, "#flow_lm.flow_net.time_embed.0.freqs": 24,
        "#mimi.encoder_transformer.transformer.layers.0.norm1.weight": 128, "#flow_lm.flow_net.input_proj.weight": 32,
        "#mimi.encoder_transformer.transformer.layers.0.linear1.weight": 96, "#mimi.encoder.model.0.conv.weight": 8,
        "#mimi.decoder.model.0.conv.weight": 128,
    },
}  # fmt: skip


def _by_tables(name: str) -> dict[str, list[int]]:
    """The tensors of a case by the tables of its projector and language model. The reference judges the names."""
    files = {path.removesuffix("/config.json"): content for path, content in FILES.get(name, {}).items()}
    config = {**CASES[name][1], **_DIMENSIONS.get(name, {}), **files}
    table = projector_of_hf(config)
    assert table is not None
    prepared = CASES[name][2]
    prefix = table.architectures[config["architectures"][0]].prefix
    expansion = table.expansion("hf", table.sizes_from_hf({**config, "preprocessor": prepared}), prefix)
    places = expansion.places.values()
    norms = {f"{start}{part}": [64] for start in starts(table, expansion) for part in EXTRA}
    text = {} if name in WITHOUT_TEXT else _language_model(name)
    return dict(sorted({**{place.name: [*place.shape] for place in places}, **norms, **text}.items()))


def _kimi_vl() -> dict[str, list[int]]:
    """The tensors of Kimi-VL's tower, and of what joins patches."""
    block = {
        "wqkv": [192, 64], "wo": [64, 64], "mlp.fc0": [128, 64], "mlp.fc1": [64, 128], "norm0": [64], "norm1": [64],
    }  # fmt: skip
    tower = {f"vision_tower.encoder.blocks.{n}.{name}": shape for n in range(3) for name, shape in block.items()}
    tower |= {"vision_tower.patch_embed.proj": [64, 3, 14, 14], "vision_tower.encoder.final_layernorm": [64]}
    projector = "multi_modal_projector."
    tower |= {f"{projector}pre_norm": [64], f"{projector}linear_1": [256, 256], f"{projector}linear_2": [64, 256]}
    position = {"vision_tower.patch_embed.pos_emb.weight": [64, 64, 64]}
    return dict(sorted({**_both(tower), **position, **_language_model("kimi-vl")}.items()))


def _siglip2(start: str, blocks: int, position: list[int]) -> dict[str, list[int]]:
    """The tensors of SigLIP 2."""
    block = {
        "layer_norm1": [64], "layer_norm2": [64], "mlp.fc1": [128, 64], "mlp.fc2": [64, 128],
        **{f"self_attn.{name}_proj": [64, 64] for name in ("q", "k", "v", "out")},
    }  # fmt: skip
    tower = {f"encoder.layers.{n}.{name}": shape for n in range(blocks) for name, shape in block.items()}
    tower |= {"embeddings.patch_embedding": [64, 768], "post_layernorm": [64]}
    return {**_both(tower, start), **({f"{start}embeddings.position_embedding.weight": position} if position else {})}


def _youtu_vl(name: str) -> dict[str, list[int]]:
    """The tensors of Youtu-VL."""
    joined = {**_both({"merger.mlp.0": [256, 256], "merger.mlp.2": [64, 256]}), "merger.ln_q.weight": [64]}
    return dict(sorted({**_siglip2("siglip2.vision_model.", 3, []), **joined, **_language_model(name)}.items()))


def _phi4_vision() -> dict[str, list[int]]:
    """The tensors of Phi-4 that sees, with the head and the last block, of which it makes no use."""
    start = "model.vision_tower.vision_tower.vision_model."
    joined = {**_both({"0": [64, 64], "2": [64, 64]}, "model.mm_projector."), f"{start}head.probe": [1, 1, 64]}
    return dict(sorted({**_siglip2(start, 4, [16, 64]), **joined, **_language_model("phi4-vision")}.items()))


def _joined(names: dict[str, list[int]]) -> dict[str, list[int]]:
    """The tensors with the other names of the two matrices behind MoonViT."""
    numbers = {"mm_projector.proj.0.": "mm_projector.linear_1.", "mm_projector.proj.2.": "mm_projector.linear_2."}
    return dict(
        sorted((reduce(lambda n, pair: n.replace(*pair), numbers.items(), name), s) for name, s in names.items())
    )


def _nemotron_vl(name: str) -> dict[str, list[int]]:
    """The tensors of Nemotron Nano VL as published, with those that llama.cpp doesn't read."""
    start = "vision_model.radio_model."
    block = {
        "norm1": [64], "norm2": [64], "attn.qkv": [192, 64], "attn.proj": [64, 64], "mlp.fc1": [128, 64],
        "mlp.fc2": [64, 128],
    }  # fmt: skip
    names = {f"{start}model.blocks.{n}.{key}": shape for n in range(7) for key, shape in block.items()}
    generator = f"{start}model.patch_generator."
    plain = {
        f"{generator}cls_token.token": [10, 64], f"{generator}embedder.weight": [64, 768],
        f"{generator}pos_embed": [1, 49, 64], f"{generator}video_embedder.weight": [64, 1536],
        f"{start}input_conditioner.norm_mean": [3, 1, 1], f"{start}input_conditioner.norm_std": [3, 1, 1],
        f"{start}summary_idxs": [2], "mlp1.0.weight": [256], "mlp1.1.weight": [48, 256], "mlp1.3.weight": [64, 48],
    }  # fmt: skip
    return dict(sorted({**_both(names), **plain, **_language_model(name)}.items()))


def _parakeet() -> dict[str, list[int]]:
    """The tensors of Parakeet in Nemotron Nano Omni."""
    start = "sound_encoder.encoder."
    tensors: dict[str, list[int]] = {}
    for n in (0, 2, 3, 5, 6):
        shape = [8, 8, 1, 1] if n in (3, 6) else [8, 1, 3, 3]
        tensors |= _both({f"{start}subsampling.layers.{n}": shape})
    norms = ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out", "conv.norm")
    matrices = {
        "feed_forward1.linear1": [96, 64], "feed_forward1.linear2": [64, 96], "feed_forward2.linear1": [96, 64],
        "feed_forward2.linear2": [64, 96], "conv.pointwise_conv1": [128, 64, 1], "conv.depthwise_conv": [64, 1, 9],
        "conv.pointwise_conv2": [64, 64, 1],
        **{f"self_attn.{name}_proj": [64, 64] for name in ("q", "k", "v", "o", "relative_k")},
    }  # fmt: skip
    plain = {
        **{f"{name}.weight": shape for name, shape in matrices.items()}, "self_attn.bias_u": [4, 16],
        "self_attn.bias_v": [4, 16], "conv.norm.running_mean": [64], "conv.norm.running_var": [64],
        "conv.norm.num_batches_tracked": [1],
    }  # fmt: skip
    layers = {f"{start}layers.{n}.": {**_both({norm: [64] for norm in norms}), **plain} for n in range(3)}
    tensors |= {f"{layer}{name}": shape for layer, inside in layers.items() for name, shape in inside.items()}
    features = f"{start}feature_extractor.featurizer."
    return {
        **tensors, **_both({f"{start}subsampling.linear": [64, 128]}), f"{features}fb": [1, 128, 257],
        f"{features}window": [400], "sound_projection.norm.weight": [64], "sound_projection.linear1.weight": [80, 64],
        "sound_projection.linear2.weight": [64, 80],
    }  # fmt: skip


#: The tensors of models of which transformers has no class.
WITHOUT_CLASS: Final = {
    "dots-ocr": _dots_ocr(), "internvl-chat": _internvl_chat(), "sarashina2-vision": _sarashina(),
    "kimi-vl": _kimi_vl(), "youtu-vl": _youtu_vl("youtu-vl"), "youtu-vl-silu": _youtu_vl("youtu-vl-silu"),
    "phi4-vision": _phi4_vision(), "kimi-k2.5": _by_tables("kimi-k2.5"),
    "glm-5.2-vision-joined": _joined(_by_tables("glm-5.2-vision-joined")),
    "nemotron-vl": _nemotron_vl("nemotron-vl"),
    "qwen3-omni": {
        **_by_tables("qwen3-omni"), "code2wav.x.weight": [8], "talker.x.weight": [8], "thinker.visual.x.weight": [8],
    },
    "mimo-v2.5": {
        **_by_tables("mimo-v2.5"), "audio_tokenizer.decoder.x.weight": [8],
        "audio_tokenizer.encoder.quantizer.vq.layers.0._codebook.cluster_size": [12],
        "audio_tokenizer.encoder.quantizer.vq.layers.1._codebook.embed_avg": [20, 64],
        "audio_tokenizer.encoder.quantizer.vq.layers.2._codebook.inited": [1],
    },
    "nemotron-omni": dict(sorted({**_nemotron_vl("nemotron-omni"), **_parakeet()}.items())),
    **{name: _by_tables(name) for name in (
        "cogvlm", "gemma3n", "glm-asr",
        "lfm2-audio", "ling3-vl", "meralion2", "deepseek-v4-vision", "deepseek-ocr2", "ultravox", "step3-vl",
        "step3.7", "deepseek-ocr", "unlimited-ocr", "glm-5.2-vision", "d1-omni", "dots3-note",
    )},
    "pocket-tts": _by_tables("pocket-tts"),
    "qwen3-tts": {**_by_tables("qwen3-tts"), "speech_tokenizer.encoder.x.weight": [8]},
}  # fmt: skip

_PUBLISHED: Final = {
    "model.language_model.": "model.", "model.audio_tower.": "audio_tower.",
    "model.multi_modal_projector.linear_": "audio_tower.proj",
}  # fmt: skip


def published(name: str) -> str:
    """The name that Qwen 3-ASR's tensor has on the Hub; transformers saves another."""
    start = next((start for start in _PUBLISHED if name.startswith(start)), "")
    return _PUBLISHED[start] + name.removeprefix(start) if start else name


def saved_by_transformers(name: str) -> str:
    """The inverse of `published`."""
    starts = sorted(_PUBLISHED.items(), key=lambda pair: -len(pair[1]))
    return next((new + name.removeprefix(old) for new, old in starts if name.startswith(old)), name)


_GLM_OCR: Final = "model.language_model.layers.{}."
_NEXT: Final = {
    "eh_proj": [64, 128], "enorm": [64], "hnorm": [64], "embed_tokens": [32, 64], "shared_head.head": [32, 64],
    "shared_head.norm": [64],
}  # fmt: skip


def with_unread(name: str, names: dict[str, list[int]]) -> dict[str, list[int]]:
    """The tensors of a case with those that transformers ignores: a head, or the layer that predicts a further
    token."""
    if name == "paddleocr-vl":
        return {**names, "visual.vision_model.head.probe": [1, 1, 64]}
    if name != "glm-ocr":
        return names
    last, added = _GLM_OCR.format(15), _GLM_OCR.format(16)
    layer = {added + key.removeprefix(last): shape for key, shape in names.items() if key.startswith(last)}
    return {**names, **layer, **{f"{added}{key}.weight": shape for key, shape in _NEXT.items()}}


#: Parts of names that the reference has wrong, so that llama.cpp computes something else or refuses the file, and ours.
_WRONG: Final = {
    "llama4": ("attn_post_norm.", "ln2."),
    "granite_speech": ("conv_norm_var.", "conv_norm."),
    "granite_speech_plus": ("conv_norm_var.", "conv_norm."),
}


def expected(case: dict[str, Any], outtype: str) -> list[list[Any]]:
    """The reference's tensors, under the names and in the shapes that llama.cpp reads."""
    wrong = _WRONG.get(case["config"].get("model_type", ""), ("", ""))
    return [
        [name.replace(*wrong), kind, [1, *shape, 1, 1] if name.endswith("layer_scale.gamma") else shape, digest]
        for name, kind, shape, digest in case["reference"][outtype]["tensors"]
    ]


@cache
def golden() -> dict[str, Any]:
    return {name: json.loads((GOLDEN / f"{name}.json").read_text()) for name in CASES}


def referenced() -> dict[str, Any]:
    """The cases with what the reference converter makes of them."""
    return {name: case for name, case in golden().items() if name not in WITHOUT_REFERENCE}


def weights(names: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """A tensor of each name and shape, of numbers that follow from the name. A variance isn't negative, and a table of
    experts has integers."""
    drawn = {name: np.random.default_rng(crc32(name.encode())).normal(0, 0.25, shape) for name, shape in names.items()}
    found = {
        name: np.array(np.abs(values) if name.endswith("_var") else values, np.float32)
        for name, values in drawn.items()
    }
    return found | {
        name: np.array(np.abs(values) * 4, np.int64) for name, values in drawn.items() if name.endswith("tid2eid")
    }


def write_folder(record: dict[str, Any], folder: Path, *, bf16: bool = False) -> Path:
    """The folder of a record: its config, how images are prepared, and weights."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(record["config"], indent=2))
    if record["preprocessor"]:
        (folder / "preprocessor_config.json").write_text(json.dumps(record["preprocessor"]))
    for name, content in record.get("files", {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(json.dumps(content))
    tensors, parts = weights(record["names"]), (Path(name) for name in record.get("files", {}))
    for start in (part.parent.name for part in parts if part.match("*/config.json")):
        inside = {
            name.removeprefix(f"{start}."): tensors.pop(name) for name in [*tensors] if name.startswith(f"{start}.")
        }
        save_file(inside, folder / start / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def digests(path: Path) -> list[list[Any]]:
    """Name, type, shape and SHA-256 of the bytes of each tensor of a GGUF, in order, by gguf-py."""
    import gguf

    return [
        [t.name, t.tensor_type.name, [int(n) for n in reversed(t.shape)], hashlib.sha256(t.data.tobytes()).hexdigest()]
        for t in gguf.GGUFReader(path).tensors
    ]
