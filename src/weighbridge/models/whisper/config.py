"""Whisper's sizes in config.json, and the small files of a transformers folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.whisper import mel
from weighbridge.models.whisper.tokens import END, LANGUAGES, MULTILINGUAL, NO_TIMESTAMPS, START, TASKS

#: A size in the header of a whisper.cpp file, and in OpenAI's `dims` -> its key in config.json.
KEYS: Final = MappingProxyType({
    "n_vocab": "vocab_size",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
    "n_mels": "num_mel_bins",
})  # fmt: skip
# Settings whose other values whisper.cpp can't compute.
_FIXED: Final = MappingProxyType({"activation_function": "gelu", "scale_embedding": False})
_FEED_FORWARD: Final = ("encoder_ffn_dim", "decoder_ffn_dim")
_SPECTRUM: Final = MappingProxyType({"n_fft": mel.WINDOW, "hop_length": mel.HOP, "sampling_rate": mel.SAMPLE_RATE})
_LARGEST: Final = 1 << 31  # the header's numbers are i32
#: Settings of generation that a whisper.cpp file can't hold.
GENERATION: Final = ("alignment_heads", "begin_suppress_tokens", "forced_decoder_ids", "suppress_tokens")
_FRAMES_PER_POSITION: Final = 2  # the second convolution has a stride of 2


def sizes_of(config: Mapping[str, Any], path: str, keys: Mapping[str, str]) -> dict[str, int]:
    """Returns the sizes under `keys` (`KEYS` in config.json). Raises FormatError for a missing or invalid one."""
    sizes = {}
    for name, key in keys.items():
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
            raise FormatError("not a size", path=path, field=key, expected=f"1..{_LARGEST - 1}", found=value)
        sizes[name] = value
    return sizes


def check_config(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedError for a setting that whisper.cpp can't compute."""
    wide = {key: 4 * int(config["d_model"]) for key in _FEED_FORWARD}
    for key, value in {**_FIXED, **wide}.items():
        if config.get(key, value) != value:
            raise UnsupportedError(f"{key} is {config[key]!r}; whisper.cpp computes only {value!r}")


def filters_of(preprocessor: Mapping[str, Any], bands: int) -> bytes:
    """Returns the mel filters in preprocessor_config.json, or the computed ones if it has none. Raises UnsupportedError
    for a spectrum that whisper.cpp can't compute, FormatError if the filters have the wrong shape."""
    for key, value in _SPECTRUM.items():
        if preprocessor.get(key, value) != value:
            raise UnsupportedError(f"{key} is {preprocessor[key]!r}; whisper.cpp computes only {value!r}")
    stored = preprocessor.get("mel_filters")
    if stored is None:
        return mel.filters(bands)
    import numpy as np

    expected = f"{bands} x {mel.BINS} numbers"
    try:
        rows = np.array(stored, dtype="<f4")
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.shape == (mel.BINS, bands):
        rows = np.ascontiguousarray(rows.T)
    if rows.shape != (bands, mel.BINS):
        raise FormatError("no mel filters", path="preprocessor_config.json", field="mel_filters", expected=expected)
    return rows.tobytes()


def folder_files(
    sizes: Mapping[str, int], special: Mapping[str, int], space: int | None, dtype: str | None
) -> dict[str, bytes]:
    """Returns config.json, generation_config.json and preprocessor_config.json. `special`: the special tokens; `space`:
    the token of a space. Raises UnsupportedError for sizes that config.json can't express."""
    config: dict[str, Any] = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
    for name, key in KEYS.items():
        if config.setdefault(key, sizes[name]) != sizes[name]:
            raise UnsupportedError(f"encoder and decoder have different sizes, but config.json has one {key}")
    config |= dict.fromkeys(_FEED_FORWARD, 4 * sizes["n_text_state"]) | _FIXED
    config |= {"is_encoder_decoder": True, "tie_word_embeddings": True, "num_hidden_layers": sizes["n_audio_layer"]}
    config |= {"dtype": dtype} if dtype else {}
    ids: dict[str, Any] = {}
    if special:
        end = special[END]
        ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": special[START]}
        ids |= {"begin_suppress_tokens": [space, end]} if space is not None else {}
    texts = {"config.json": {**config, **ids}, "generation_config.json": _generation(sizes, special, ids)}
    if not special:
        del texts["generation_config.json"]
    frames = _FRAMES_PER_POSITION * sizes["n_audio_ctx"]
    texts["preprocessor_config.json"] = {
        "chunk_length": frames * mel.HOP // mel.SAMPLE_RATE, "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": sizes["n_mels"], **_SPECTRUM, "n_samples": frames * mel.HOP, "nb_max_frames": frames,
        "padding_side": "right", "padding_value": 0.0, "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
    }  # fmt: skip
    return {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in texts.items()}


def _generation(sizes: Mapping[str, int], special: Mapping[str, int], ids: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' `generate` needs and the tokens determine."""
    languages = {f"<|{name}|>": special[f"<|{name}|>"] for name in LANGUAGES if f"<|{name}|>" in special}
    tasks = {task: special[f"<|{task}|>"] for task in TASKS if special}
    multilingual = sizes["n_vocab"] >= MULTILINGUAL
    spoken = {"lang_to_id": languages, "task_to_id": tasks} if multilingual else {}
    return {
        **ids, "is_multilingual": multilingual, **spoken, "max_initial_timestamp_index": 50,
        "max_length": sizes["n_text_ctx"], "no_timestamps_token_id": special.get(NO_TIMESTAMPS),
        "prev_sot_token_id": special.get("<|startofprev|>"), "return_timestamps": False,
    }  # fmt: skip
