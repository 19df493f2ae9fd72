"""dots3-note's towers, whose settings a published config has under names of other models, and transformers 5 under
usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

#: Usual keys and the published ones (configuration_dots3_note.py, transformers 5.23).
_SEEING: Final = {
    "hidden_size": "embed_dim", "num_experts_per_tok": "capacity_factor", "router_scaling_factor": "router_scale",
}  # fmt: skip
_HEARING: Final = {
    "hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers",
    "intermediate_size": "encoder_ffn_dim", "feature_size": "num_mel_bins",
}  # fmt: skip
_COUNTS: Final = "pyramid_num_routed"


def complete(config: Config) -> dict[str, Any]:
    """Adds the usual keys to both towers, and `experts`: the number of each block, 0 for a dense one."""
    seeing, hearing = (dict(_object(config, part)) for part in ("vision_config", "audio_config"))
    whisper = _object(hearing, "whisper_config")
    seeing |= {usual: seeing[own] for usual, own in _SEEING.items() if own in seeing}
    hearing |= {usual: whisper[own] for usual, own in _HEARING.items() if own in whisper}
    hearing.setdefault("swiglu", hearing.get("hidden_act") == "silu" or whisper.get("activation_function") == "swiglu")
    return {"vision_config": seeing, "audio_config": hearing, "experts": _experts(seeing)}


def _object(config: Config, key: str) -> Config:
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise FormatError("is not an object", field=key, found=repr(value)[:80])
    return value


def _experts(seeing: Config) -> list[int]:
    if (listed := seeing.get(_COUNTS)) is None:
        kinds, by_layer = seeing.get("mlp_layer_types"), _object(seeing, "per_layer_config")
        if not isinstance(kinds, list | tuple):
            raise FormatError("must list the blocks' experts", field=f"vision_config.{_COUNTS}", found=kinds)
        key, usual = "num_local_experts", seeing.get("num_local_experts")
        own = ({key: usual, **_object(by_layer, str(n))}[key] for n in range(len(kinds)))
        listed = [count if kind == "sparse" else 0 for kind, count in zip(kinds, own, strict=True)]
    if not isinstance(listed, list | tuple):
        raise FormatError("must list the blocks' experts", field=f"vision_config.{_COUNTS}", found=repr(listed)[:80])
    return [max(0, integer(count, _COUNTS, -1)) for count in listed]


def restore(config: Config) -> dict[str, Any]:
    """The published keys, and the widths between the towers and the language model."""
    seeing, hearing = config["vision_config"], config["audio_config"]
    width, outer = seeing["hidden_size"], seeing["adapter_out_dim"]
    seeing = {key: value for key, value in seeing.items() if key not in _SEEING} | {
        own: seeing[usual] for usual, own in _SEEING.items() if usual in seeing
    }
    seeing |= {"hidden_size": outer, "adapter_in_dim": width, _COUNTS: [n or -1 for n in config["experts"]]}
    whisper = {own: hearing[usual] for usual, own in _HEARING.items()} | {"activation_function": "swiglu"}
    hearing = {key: value for key, value in hearing.items() if key not in _HEARING}
    inner = stated(whisper, "d_model")
    hearing |= {"whisper_adapter_in_dim": inner, "whisper_adapter_out_dim": outer, "whisper_config": whisper}
    return {"experts": None, "vision_config": seeing, "audio_config": hearing}
