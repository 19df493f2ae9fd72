"""The three forms of a Whisper: OpenAI's checkpoint, a transformers folder, a whisper.cpp file.

Every plan asks for the form of its source; `source.py` and what it imports are only for a Whisper.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.formats import PYTORCH
from weighbridge.models.model import OpenModel

# A tensor that only OpenAI's and whisper.cpp's Whisper has under this name.
_OPENAI: Final = "decoder.blocks.0.cross_attn.query.weight"


class WhisperForm(StrEnum):
    GGML = "ggml"
    OPENAI = "openai"
    HF = "hf"


def form_of(model: OpenModel) -> WhisperForm | None:
    """The form of a Whisper; None for other models."""
    if model.format == "ggml":
        return WhisperForm.GGML if model.metadata.get("model") == "whisper" else None
    if _OPENAI in model.index:
        return WhisperForm.OPENAI if model.format in PYTORCH else None
    with suppress(WeighbridgeError):
        if model.format in ("safetensors", *PYTORCH) and model.config.get("model_type") == "whisper":
            return WhisperForm.HF
    return None
