"""Configs of small models that mlx-vlm reads and no projector's table has. Names come from transformers' classes, or
from mlx-vlm's, whose loader has to take them (`record_mlx_vlm.py`)."""

from __future__ import annotations

from typing import Any, Final

_TOWER: Final = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "image_size": 56, "patch_size": 14, "projection_dim": 64}  # fmt: skip
_TEXT: Final = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 32, "rms_norm_eps": 1e-6, "rope_theta": 1e4}  # fmt: skip
_EVEN: Final = {**_TEXT, "num_key_value_heads": 4}


def _pair(class_: str, kind: str, tower: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [class_], "model_type": kind, "image_token_index": 5, **more,
        "vision_config": {"model_type": tower, "vision_use_head": False, **_TOWER},
        "text_config": {"model_type": text, "head_dim": 16, **_TEXT},
    }  # fmt: skip


def _with(config: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    """A config with further keys in its parts."""
    return {**config, **{name: {**config[name], **added} for name, added in parts.items()}}


#: Models that no projector's table has: their configs.
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "llava": _pair("LlavaForConditionalGeneration", "llava", "clip_vision_model", "llama"),
    "llava-next": _pair(
        "LlavaNextForConditionalGeneration",
        "llava_next",
        "clip_vision_model",
        "llama",
        image_grid_pinpoints=[[56, 112]],
    ),
    "paligemma": _pair(
        "PaliGemmaForConditionalGeneration",
        "paligemma",
        "siglip_vision_model",
        "gemma",
        projection_dim=64,
        hidden_size=64,
    ),
    "aya-vision": _pair(
        "AyaVisionForConditionalGeneration",
        "aya_vision",
        "siglip_vision_model",
        "cohere2",
        alignment_intermediate_size=128,
    ),
}
_ROPE: Final = {"rope_theta": 1e6, "max_position_embeddings": 256, "rms_norm_eps": 1e-6}
_OMNI_TEXT: Final = {**_TEXT, **_ROPE, "head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1,
                     "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
_OMNI_SECTIONS: Final = {
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
}
CONFIGS["qwen3-omni"] = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
    "enable_audio_output": True,
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": {"model_type": "qwen3_omni_moe_text", **_OMNI_TEXT, **_OMNI_SECTIONS},
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder", "d_model": 64, "encoder_ffn_dim": 128, "encoder_layers": 2,
            "encoder_attention_heads": 4, "num_mel_bins": 16, "max_source_positions": 64, "output_dim": 64,
            "downsample_hidden_size": 32,
        },
        "vision_config": {
            "model_type": "qwen3_omni_moe_vision_encoder", "hidden_size": 64, "intermediate_size": 128, "num_heads": 4,
            "out_hidden_size": 64, "depth": 2, "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        },
    },
    "talker_config": {
        "model_type": "qwen3_omni_moe_talker", "num_code_groups": 3, "thinker_hidden_size": 64, "spatial_merge_size": 2,
        "accept_hidden_layer": 0,
        "text_config": {
            "model_type": "qwen3_omni_moe_talker_text", **_OMNI_TEXT, "shared_expert_intermediate_size": 64,
            **_OMNI_SECTIONS,
        },
        "code_predictor_config": {
            "model_type": "qwen3_omni_moe_talker_code_predictor", **_TEXT, **_ROPE, "head_dim": 16,
            "num_code_groups": 3, "layer_types": ["full_attention"],
        },
    },
    "code2wav_config": {
        "model_type": "qwen3_omni_moe_code2wav", **_TEXT, **_ROPE, "num_key_value_heads": 4, "decoder_dim": 64,
        "codebook_size": 16, "num_quantizers": 3, "upsample_rates": [2, 2, 2, 2], "upsampling_ratios": [2, 2],
    },
}  # fmt: skip

CONFIGS["ernie-4.5-vl"] = {
    **_TEXT, "num_hidden_layers": 2, "architectures": ["Ernie4_5_VLMoeForConditionalGeneration"],
    "model_type": "ernie4_5_moe_vl", "moe_num_experts": [2, 2], "moe_layer_start_index": [1, 1],
    "moe_layer_end_index": [1, 1], "moe_intermediate_size": [64, 32], "moe_k": 1, "moe_num_shared_experts": 1,
    "pixel_hidden_size": 64, "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "DFNRope_vision_transformer", "depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4,
        "mlp_ratio": 2,
    },
}  # fmt: skip
CONFIGS["kimi-k3"] = {
    "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
    "text_config": {
        **_EVEN, "model_type": "kimi_linear", "num_hidden_layers": 3, "hidden_act": "situ", "attn_res_block_size": 2,
        "activation_situ_beta": 3.0, "activation_situ_linear_beta": 20.0, "q_lora_rank": 32, "kv_lora_rank": 32,
        "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 24, "mla_use_output_gate": True,
        "first_k_dense_replace": 1, "moe_intermediate_size": 96, "num_experts": 2, "num_experts_per_token": 1,
        "num_shared_experts": 1, "routed_expert_hidden_size": 32, "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 32, "num_heads": 4, "gate_lower_bound": -5.0,
            "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
    },
    "vision_config": {
        "model_type": "moonvit3d", "init_pos_emb_height": 4, "init_pos_emb_width": 4, "vt_num_attention_heads": 4,
        "vt_num_hidden_layers": 2, "vt_hidden_size": 64, "vt_intermediate_size": 128, "qkv_hidden_size": 96,
        "mm_hidden_size": 64, "text_hidden_size": 64,
    },
}  # fmt: skip
CONFIGS["llama-3.2-vision"] = _with(
    _pair("MllamaForConditionalGeneration", "mllama", "mllama_vision_model", "mllama_text_model"),
    text_config={"num_hidden_layers": 2, "cross_attention_layers": [1], "pad_token_id": 0},
    vision_config={
        "num_global_layers": 1, "vision_output_dim": 192, "intermediate_layers_indices": [0, 1],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    },
)  # fmt: skip
CONFIGS["idefics2"] = {
    **_pair("Idefics2ForConditionalGeneration", "idefics2", "idefics2", "mistral"),
    "perceiver_config": {
        "model_type": "idefics2", "num_key_value_heads": 2, "resampler_depth": 1, "resampler_head_dim": 16,
        "resampler_n_heads": 4, "resampler_n_latents": 8, "hidden_size": 64,
    },
}  # fmt: skip
CONFIGS["idefics2"]["vision_config"]["num_key_value_heads"] = 4
CONFIGS["llava-onevision"] = _pair(
    "LlavaOnevisionForConditionalGeneration", "llava_onevision", "siglip_vision_model", "qwen2",
    image_grid_pinpoints=[[56, 112]],
)  # fmt: skip
CONFIGS["granite-vision"] = _pair(
    "LlavaNextForConditionalGeneration", "llava_next", "siglip_vision_model", "granite",
    image_grid_pinpoints=[[56, 112]],
)  # fmt: skip
CONFIGS["granite-vision"]["vision_config"]["vision_use_head"] = True
CONFIGS["deepseek-vl2"] = {
    "architectures": ["DeepseekVLV2ForCausalLM"], "model_type": "deepseek_vl_v2",
    "language_config": {
        **_EVEN, "model_type": "deepseek_v2", "num_hidden_layers": 2, "moe_intermediate_size": 32,
        "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "first_k_dense_replace": 1,
        "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    },
    "vision_config": {
        "model_type": "vision", "layers": 2, "width": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "image_size": 56, "patch_size": 14, "mlp_ratio": 2.0,
    },
    "projector_config": {
        "model_type": "mlp_projector", "projector_type": "downsample_mlp_gelu", "input_dim": 64, "n_embed": 64,
        "depth": 2, "mlp_ratio": 1,
    },
}  # fmt: skip
CONFIGS["molmo"] = {
    **_EVEN, "architectures": ["MolmoForCausalLM"], "model_type": "molmo", "intermediate_size": 192,
    "num_key_value_heads": 2, "embedding_size": 32, "additional_vocab_size": 8, "layer_norm_eps": 1e-6,
    "text_config": {
        "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "n_layers": 1, "mlp_hidden_size": 192, "vocab_size": 32,
        "embedding_size": 32, "additional_vocab_size": 8, "layer_norm_eps": 1e-6, "rope_theta": 1e4,
    },
    "vision_config": {
        "hidden_size": 96, "image_emb_dim": 64, "image_num_heads": 4, "image_num_key_value_heads": 4,
        "image_num_layers": 2, "image_head_dim": 16, "image_mlp_dim": 128, "image_num_pos": 17, "d_model": 64,
        "vit_layers": [-1, -2], "image_default_input_size": [56, 56],
    },
}  # fmt: skip
CONFIGS["phi-3.5-vision"] = {
    **_EVEN, "architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v",
    "img_processor": {"name": "clip_vision_model", "image_dim_out": 64},
}  # fmt: skip
CONFIGS["florence2"] = {
    "architectures": ["Florence2ForConditionalGeneration"], "model_type": "florence2", "projection_dim": 64,
    "text_config": {
        "model_type": "florence2_language", "d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 32, "encoder_layers": 1, "decoder_layers": 1,
        "max_position_embeddings": 32,
    },
    "vision_config": {
        "model_type": "davit", "depths": [1, 1, 1, 1], "dim_embed": [16, 32, 32, 64], "num_heads": [2, 2, 2, 4],
        "num_groups": [2, 2, 2, 4], "hidden_size": 64, "projection_dim": 64, "image_size": [64, 64],
    },
}  # fmt: skip
CONFIGS["moondream2"] = {
    "architectures": ["HfMoondream"], "model_type": "moondream1", "text_config": dict(_EVEN),
    "vision_config": {**_TOWER, "crop_size": 56, "proj_inner_dim": 96, "proj_out_dim": 64},
}  # fmt: skip
CONFIGS["nanollava"] = {
    **_TEXT, "architectures": ["BunnyQwenForCausalLM"], "model_type": "llava-qwen2", "mm_hidden_size": 64,
    "auto_map": {"AutoModelForCausalLM": "modeling_llava_qwen2.LlavaQwen2ForCausalLM"},
    "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "num_hidden_layers": 1},
}  # fmt: skip
CONFIGS["molmo2"] = {
    "architectures": ["Molmo2ForConditionalGeneration"], "model_type": "molmo2",
    "text_config": {
        **_TEXT, "model_type": "molmo2_text", "head_dim": 16, "additional_vocab_size": 8, "layer_norm_eps": 1e-6,
    },
    "vit_config": {
        "model_type": "molmo2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "image_default_input_size": [56, 56],
        "image_num_pos": 16,
    },
    "adapter_config": {
        "model_type": "molmo2", "hidden_size": 64, "intermediate_size": 96, "text_hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vit_layers": [-1, -2],
    },
}  # fmt: skip
CONFIGS["got-ocr2"] = {
    **_TEXT, "architectures": ["GOTQwenForCausalLM"], "model_type": "GOT", "tie_word_embeddings": True,
    "vision_config": {
        "img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4, "out_chans": 32, "out_dim": 64,
        "global_attn_indexes": [1],
    },
}  # fmt: skip
CONFIGS["locate-anything"] = {
    "architectures": ["LocateAnythingForConditionalGeneration"], "model_type": "locateanything",
    "image_token_index": 5, "text_config": {**_TEXT, "model_type": "qwen2"},
    "vision_config": {
        **_TOWER, "model_type": "moonvit", "init_pos_emb_height": 4, "init_pos_emb_width": 4,
        "merge_kernel_size": [2, 2],
    },
}  # fmt: skip
CONFIGS["mage-vl"] = {
    "architectures": ["MageVLForConditionalGeneration"], "model_type": "mage_vl",
    "text_config": {
        **{key: value for key, value in _TEXT.items() if key != "rope_theta"}, "model_type": "qwen3", "head_dim": 16,
        "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}, "tie_word_embeddings": False,
    },
    "vision_config": {
        **_TOWER, "model_type": "mage_vl_vision", "num_attention_heads": 2, "num_hidden_layers": 1,
        "out_hidden_size": 64, "text_hidden_size": 64,
    },
}  # fmt: skip
CONFIGS["llm-jp-vl"] = {
    "architectures": ["LLMjpVLModel"], "model_type": "llmjpvl", "img_context_token_id": 5, "downsample_ratio": 0.5,
    "select_layer": -1, "llm_config": {**_TEXT, "model_type": "llama", "tie_word_embeddings": False},
    "vision_config": {**_TOWER, "model_type": "siglip_vision_model"},
}  # fmt: skip
CONFIGS["jagle-vl"] = _with(
    CONFIGS["llm-jp-vl"], llm_config={"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}
)
CONFIGS["diffusion-gemma"] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "canvas_length": 8,
    "text_config": {
        **{key: value for key, value in _TEXT.items() if key != "rope_theta"}, "model_type": "diffusion_gemma_text",
        "num_hidden_layers": 2, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1,
        "layer_types": ["sliding_attention", "full_attention"], "num_experts": 2, "top_k_experts": 1,
        "moe_intermediate_size": 32,
    },
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "global_head_dim": 16, "patch_size": 4,
        "position_embedding_size": 16, "pooling_kernel_size": 3,
    },
}  # fmt: skip
CONFIGS["falcon-ocr"] = {
    "architectures": ["FalconOCRForCausalLM"], "model_type": "falcon_ocr", "dim": 64, "n_layers": 1, "n_heads": 4,
    "head_dim": 16, "n_kv_heads": 2, "vocab_size": 32, "ffn_dim": 96, "norm_eps": 1e-5, "max_seq_len": 32,
    "rope_theta": 10000, "spatial_patch_size": 8, "temporal_patch_size": 1, "channel_size": 3, "img_id": 5,
}  # fmt: skip
CONFIGS["falcon-perception"] = {
    **CONFIGS["falcon-ocr"], "architectures": ["FalconPerceptionForSegmentation"], "model_type": "falcon_perception",
    "coord_enc_dim": 64, "coord_dec_dim": 64, "coord_out_dim": 32, "size_enc_dim": 64, "size_dec_dim": 64,
    "size_out_dim": 32, "do_segmentation": True, "segm_out_dim": 16, "num_segm_layers": 2,
}  # fmt: skip
CONFIGS["north-micro-vision"] = {
    "architectures": ["CohereCompassForConditionalGeneration"], "model_type": "cohere_compass",
    "tie_word_embeddings": True,
    "text_config": {
        **_TEXT, "model_type": "cohere_compass_text", "num_hidden_layers": 2, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4096,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
            "full_attention": None,
        },
    },
    "vision_config": {
        "model_type": "cohere_compass_vision", "hidden_size": 64, "intermediate_size": 128, "num_heads": 4,
        "out_hidden_size": 64, "depth": 2, "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
    },
}  # fmt: skip
CONFIGS["zaya1-vl"] = {
    "architectures": ["Zaya1VLForConditionalGeneration"], "model_type": "zaya1_vl", "vocab_size": 32,
    "hidden_size": 64, "ffn_hidden_size": 128, "num_hidden_layers": 2, "num_experts": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_query_groups": 2, "head_dim": 16, "zaya_mlp_expansion": 32,
    "vision_lora_rank_attn": 8, "vision_lora_rank_mlp": 32, "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "depth": 2,
        "out_hidden_size": 64, "fullatt_block_indexes": [1],
    },
}  # fmt: skip
CONFIGS["plamo2-vl"] = {
    "architectures": ["Plamo2VLForConditionalGeneration"], "model_type": "plamo2vl",
    "text_config": {
        "model_type": "plamo2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_size_per_head": 16, "mamba_d_state": 32, "mamba_num_heads": 4,
        "intermediate_size": 96, "vocab_size": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
    "vision_config": {
        "model_type": "", "image_feature_size": 64, "image_proj_hidden_size": 96,
        **{f"vision_encoder_{key}": value for key, value in _TOWER.items() if key != "projection_dim"},
    },
}  # fmt: skip
CONFIGS["nemotron-parse"] = {
    "architectures": ["NemotronParseForConditionalGeneration"], "model_type": "nemotron_parse",
    "tie_word_embeddings": True, "decoder_start_token_id": 2, "image_size": [64, 64],
    "encoder": {"patch_size": 16, "preferred_resolution": [768, 768]},
    "decoder": {
        "d_model": 64, "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "decoder_layers": 1, "vocab_size": 32,
        "decoder_start_token_id": None,
    },
}  # fmt: skip
CONFIGS["nemotron-parse-1.2"] = {**CONFIGS["nemotron-parse"], "tie_word_embeddings": False}
CONFIGS["north-micro-vision-untied"] = _with(CONFIGS["north-micro-vision"], text_config={"tie_word_embeddings": False})
CONFIGS["plamo2-vl-untied"] = _with(CONFIGS["plamo2-vl"], text_config={"tie_word_embeddings": False})
CONFIGS["zaya1-vl-untied"] = {**CONFIGS["zaya1-vl"], "tie_word_embeddings": False}
CONFIGS["deepseek-v4.1"] = {
    "architectures": ["DeepseekV41ForConditionalGeneration"], "model_type": "deepseek_v41",
    "text_config": {
        "model_type": "deepseek_v41_text", "vocab_size": 32, "hidden_size": 64, "moe_intermediate_size": 32,
        "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32, "qk_rope_head_dim": 16, "q_lora_rank": 32,
        "o_lora_rank": 32, "o_groups": 2, "n_routed_experts": 2, "num_experts_per_tok": 1,
        "compress_ratios": [0, 2, 2, 1, 0], "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 2, 3],
        "candidate_source_layer_id": 2, "index_n_heads": 2, "index_head_dim": 32, "hc_mult": 2,
        "engram_layer_ids": [1], "engram_num_embeddings": [64], "engram_vocab_size": 8, "engram_n_heads": 2,
        "engram_head_dim": 32, "engram_max_ngram_size": 3,
    },
    "vision_config": {
        "model_type": "deepseek_v41_vision", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "patch_size": 4,
    },
}  # fmt: skip
CONFIGS["inkling"] = {
    "architectures": ["InklingForConditionalGeneration"], "model_type": "inkling_mm_model",
    "text_config": {
        "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 16,
        "sliding_window_size": 8, "local_layer_ids": [0, 1], "d_rel": 8, "rel_extent": 16, "dense_mlp_idx": 1,
        "intermediate_size": 32, "dense_intermediate_size": 96, "n_routed_experts": 3, "num_experts_per_tok": 1,
        "n_shared_experts": 2, "logits_mup_width_multiplier": 24.0, "sconv_kernel_size": 4,
    },
    "vision_config": {"patch_size": 8, "temporal_patch_size": 2, "n_layers": 4},
    "audio_config": {"n_mel_bins": 4, "mel_vocab_size": 16},
}  # fmt: skip
CONFIGS["minicpm-v-4.7"] = {
    "architectures": ["MiniCPMV4_7ForConditionalGeneration"], "model_type": "minicpmv4_7", "insert_layer_id": 1,
    "image_size": 448, "patch_size": 14, "tie_word_embeddings": False,
    "text_config": {
        **_TEXT, "model_type": "qwen3_5_text", "num_hidden_layers": 2, "head_dim": 16, "tie_word_embeddings": False,
        "layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_theta": 1e4, "rope_type": "default", "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
        },
    },
    "vision_config": {**_TOWER, "model_type": "minicpmv4_7_vision", "insert_layer_id": 1},
}  # fmt: skip
CONFIGS["minicpm-v-4.7-moe"] = _with(
    CONFIGS["minicpm-v-4.7"],
    text_config={
        "model_type": "qwen3_5_moe_text", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64, "linear_conv_kernel_dim": 4, "max_position_embeddings": 256,
    },
)  # fmt: skip
CONFIGS["moondream3"] = {
    "architectures": ["HfMoondream"], "model_type": "moondream3",
    "text_config": {
        **_EVEN, "num_hidden_layers": 2, "head_dim": 16, "rope_dim": 8, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 32, "moe_start_layer": 1,
    },
    "vision_config": {**_TOWER, "num_hidden_layers": 1, "crop_size": 56, "proj_inner_dim": 96, "proj_out_dim": 64},
}  # fmt: skip
CONFIGS["molmo-point"] = {
    **CONFIGS["molmo2"], "architectures": ["MolmoPointForConditionalGeneration"], "model_type": "molmo_point",
    "patch_embed_dim": 32,
}  # fmt: skip
CONFIGS["molmo-point"] |= {
    "adapter_config": {**CONFIGS["molmo2"]["adapter_config"], "positional_embeddings": 9},
    "vision_config": CONFIGS["molmo2"]["vit_config"],  # mlx-vlm's loader replaces the tower's settings by these
}  # fmt: skip
CONFIGS["fastvlm"] = {
    **_TEXT, "architectures": ["LlavaQwen2ForCausalLM"], "model_type": "llava_qwen2", "mm_hidden_size": 128,
    "mm_projector_type": "mlp2x_gelu", "tie_word_embeddings": True,
}  # fmt: skip
CONFIGS["fastvlm-untied"] = {**CONFIGS["fastvlm"], "tie_word_embeddings": False}
CONFIGS["minicpm-o"] = {
    **_TEXT, "architectures": ["MiniCPMO"], "model_type": "minicpmo", "head_dim": 16, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "query_num": 8,
    "vision_config": {**_TOWER, "model_type": "siglip_vision_model"},
    "audio_config": {
        "model_type": "whisper", "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128, "num_mel_bins": 16, "max_source_positions": 64,
    },
    "tts_config": {
        "model_type": "minicpmtts", "llm_dim": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_hidden_layers": 1, "num_audio_tokens": 8, "num_text_tokens": 32,
        "backbone_vocab_size": 32,
    },
}  # fmt: skip
