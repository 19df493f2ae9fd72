"""Small models that speak: vocoders, which turn codes into spectra. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import GQA
from tests.oracles.families.published import LFM, LFM_UNHELD, lfm
from tests.oracles.families.wrapped import Shapes, decoder


def _wavtokenizer() -> Shapes:
    """WavTokenizer's decoder as llama.cpp's script lays it out: 16 features, 32 channels, 2 blocks, 48 numbers out."""
    shapes: Shapes = {
        "backbone.embedding.weight": (80, 16), "backbone.embed.weight": (32, 16, 7), "backbone.embed.bias": (32, 1),
        "backbone.norm.weight": (32,), "backbone.norm.bias": (32,), "backbone.final_layer_norm.weight": (32,),
        "backbone.final_layer_norm.bias": (32,), "head.out.weight": (48, 32), "head.out.bias": (48,),
    }  # fmt: skip
    for i in (0, 1, 3, 4):
        for part in ("1", "2"):
            at = f"backbone.posnet.{i}."
            shapes |= {f"{at}norm{part}.{end}": (32, 1) for end in ("weight", "bias")}
            shapes |= {f"{at}conv{part}.weight": (32, 32, 3), f"{at}conv{part}.bias": (32, 1)}
    for name in ("q", "k", "v", "proj_out"):
        shapes |= {f"backbone.posnet.2.{name}.weight": (32, 32, 1), f"backbone.posnet.2.{name}.bias": (32, 1)}
    shapes |= {f"backbone.posnet.{i}.norm.{end}": (32, 1) for i in (2, 5) for end in ("weight", "bias")}
    for i in range(6):
        at = f"backbone.convnext.{i}."
        shapes |= {f"{at}dwconv.weight": (32, 1, 7), f"{at}dwconv.bias": (32, 1), f"{at}gamma.weight": (32,)}
        shapes |= {f"{at}norm.weight": (32,), f"{at}norm.bias": (32,)}
        shapes |= {f"{at}pwconv1.weight": (96, 32), f"{at}pwconv1.bias": (96,)}
        shapes |= {f"{at}pwconv2.weight": (32, 96), f"{at}pwconv2.bias": (32,)}
    return shapes


_WAVTOKENIZER: dict[str, Any] = {
    "model_type": "wavtokenizer_dec", "hidden_size": 48,
    "n_embd_features": 16, "n_ff": 96, "vocab_size": 80, "n_head": 1, "layer_norm_epsilon": 1e-6,
    "group_norm_epsilon": 1e-5, "group_norm_groups": 4, "max_position_embeddings": 8192, "n_layer": 6,
    "posnet": {"n_embd": 32, "n_layer": 6}, "convnext": {"n_embd": 32, "n_layer": 6},
}  # fmt: skip

_CODES = 3072  # llama.cpp knows no other number
_TALKER: dict[str, Any] = GQA | {
    "model_type": "qwen3_tts_talker", "head_dim": 16, "hidden_act": "silu", "attention_bias": False,
    "rope_theta": 5000.0, "rope_scaling": {"interleaved": True, "mrope_section": [3, 3, 2], "rope_type": "default"},
    "text_vocab_size": vocabularies.QWEN_SIZE, "text_hidden_size": 48, "vocab_size": _CODES, "num_code_groups": 16,
    "use_sliding_window": False, "sliding_window": None, "codec_bos_id": 2149, "codec_eos_token_id": 2150,
    "codec_language_id": {"chinese": 2055, "english": 2050}, "codec_pad_id": 2148, "spk_id": {"vivian": 3065},
}  # fmt: skip


_TALKER_DEFAULTS: dict[str, Any] = {
    "attention_bias": False, "hidden_act": "silu", "use_sliding_window": False, "rope_theta": 10000.0,
}  # fmt: skip


def _talker() -> Shapes:
    """The part of Qwen3-TTS that llama.cpp runs as a language model."""
    text, hidden = vocabularies.QWEN_SIZE, 64
    front = "talker.model."
    plain = decoder(front=front, head="", head_norms=True)
    del plain[f"{front}embed_tokens.weight"]
    return plain | {
        f"{front}text_embedding.weight": (text, 48), f"{front}codec_embedding.weight": (_CODES, hidden),
        "talker.text_projection.linear_fc1.weight": (48, 48), "talker.text_projection.linear_fc1.bias": (48,),
        "talker.text_projection.linear_fc2.weight": (hidden, 48), "talker.text_projection.linear_fc2.bias": (hidden,),
        "talker.codec_head.weight": (_CODES, hidden),
    }  # fmt: skip


_PIECES, _LATENT = vocabularies.UNIGRAM_PIECES + 1, 32  # the last row pads
_POCKET: dict[str, Any] = {
    "model_type": "pockettts", "vocab_size": _PIECES + 2, "text_rows": _PIECES, "hidden_size": 128,
    "max_position_embeddings": 4096, "rope_theta": 10000.0, "layer_norm_eps": 1e-5, "latent_size": _LATENT,
    "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 2,
}  # fmt: skip


_POCKET_DEFAULTS: dict[str, Any] = {"layer_norm_eps": 1e-5, "rope_theta": 10000.0}


def _pocket(*, voice: bool = True) -> Shapes:
    """Pocket TTS under its publisher's names: the backbone, and the layer of the encoder that tells its sizes."""
    front = "flow_lm.transformer.layers."
    one: Shapes = {
        "norm1.weight": (128,), "norm1.bias": (128,), "norm2.weight": (128,), "norm2.bias": (128,),
        "self_attn.in_proj.weight": (384, 128), "self_attn.out_proj.weight": (128, 128), "linear1.weight": (96, 128),
        "linear2.weight": (128, 96),
    }  # fmt: skip
    encoder = "mimi.encoder_transformer.transformer.layers.0."
    return {
        **{f"{front}{i}.{name}": shape for i in (0, 1) for name, shape in one.items()},
        **{f"{encoder}{name}": one[name] for name in ("norm1.weight", "linear1.weight")},
        "flow_lm.conditioner.embed.weight": (_PIECES, 128), "flow_lm.input_linear.weight": (128, _LATENT),
        "flow_lm.bos_emb": (_LATENT,), "flow_lm.out_norm.weight": (128,), "flow_lm.out_norm.bias": (128,),
        **({"flow_lm.bos_before_voice": (1, 1, 128)} if voice else {}),
    }  # fmt: skip


CASES = table(
    Case(
        "pocket-tts", "PocketTTSModel", "none", _POCKET, shapes=_pocket(), runs=False, computed=("token_embd.weight",),
        apart=("mimi.",), defaults=_POCKET_DEFAULTS, alone=("flow_lm.bos_before_voice",),
        unheld=frozenset({"latent_size", "text_rows"}),
        beside=("flow_lm.flow_net.x.weight", "flow_lm.out_eos.weight", "flow_lm.emb_mean", "flow_lm.emb_std",
                "flow_lm.speaker_proj_weight"),
    ),
    Case(
        "pocket-tts-mute", "PocketTTSModel", "none", _POCKET | {"vocab_size": _PIECES + 1}, shapes=_pocket(voice=False),
        runs=False, computed=("token_embd.weight",), apart=("mimi.",), defaults=_POCKET_DEFAULTS,
        unheld=frozenset({"latent_size", "text_rows"}),
    ),
    Case(
        "qwen3-tts", "Qwen3TTSForConditionalGeneration", "qwen",
        {"model_type": "qwen3_tts", "talker_config": _TALKER}, shapes=_talker(),
        beside=("talker.code_predictor.x.weight", "speaker_encoder.x.weight"), computed=("token_embd.weight",),
        defaults=_TALKER_DEFAULTS,
        unheld=frozenset({"model_type", "talker_config", "code_names", "vocab_size", "text_vocab_size",
                          "text_hidden_size",
                          *(key for key in _TALKER if "codec" in key),
                          "spk_id", "num_code_groups"}),
        vocabulary={"tokenizer.ggml.tokens": ["x"] * (vocabularies.QWEN_SIZE + _CODES)},
    ),
    Case(
        "wavtokenizer", "WavTokenizerDec", "none", _WAVTOKENIZER, shapes=_wavtokenizer(), runs=False,
    ),
    Case(
        "lfm2-vocoder", "Lfm25AudioTokenizer", "none",
        LFM | {
            "layer_types": ["sliding_attention", "conv"], "sliding_window": 12, "output_size": 48,
        },
        shapes={name: shape for name, shape in lfm("lfm.").items() if "lm_head" not in name}
        | {"lin.weight": (48, 64), "lin.bias": (48,)},
        beside=("emb.emb.weight", "istft.window"), runs=False,
        unheld=LFM_UNHELD, part_type="lfm2",
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "qwen3tts": {"codes": 3000, "hidden_act": "relu", "attention_bias": True, "rope.rope_type": "dynamic"},
    "wavtokenizer-dec": {"posnet.n_layer": 5, "convnext.n_embd": 64},
    "lfm2-vocoder": {"conv_bias": True, "rope.rope_type": "dynamic", "block_auto_adjust_ff_dim": True},
}
