"""Recognises files of tensors that aren't a language model, such as adapters and image models, by their names."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.sniff.tensor_names import ADAPTERS, FAMILIES, distinct, first

_LORA: Final = (
    "a LoRA adapter, without its base model",
    "merge it: wb convert BASE DST --lora {path}; for llama.cpp's --lora: wb convert {path} DST.gguf --base BASE",
)
_CAST: Final = "its tensors convert to .safetensors or .npz, with --dtype too"
_IMAGES: Final = ("a part of an image model", f"{_CAST}; to .gguf if it is the denoiser")
# The kind of names -> a description of the file, and the next step.
_KINDS: Final = MappingProxyType(
    {
        "lora-peft": _LORA,
        "lora": _LORA,
        "lora-kohya": ("a LoRA for an image model (kohya)", f"{_CAST}; image programs load it"),
        "ldm": ("a Stable Diffusion checkpoint", f"{_CAST}; stable-diffusion.cpp reads it directly"),
        **dict.fromkeys(("flux", "dit", "unet"), _IMAGES),
        **dict.fromkeys(
            ("lokr", "loha", "ia3", "prompt", "control-vector", "textual-inversion"),
            ("an adapter that isn't a LoRA", f"{_CAST}; merge it with the library that trained it"),
        ),
    }
)


def check_names(path: Path, names: Collection[str]) -> None:
    """Raises UnsupportedError if the tensor names show that the file isn't a language model."""
    names = distinct(names)
    match = first(ADAPTERS, names) or first(FAMILIES, names)
    if match is not None and match.id in _KINDS:
        kind, hint = _KINDS[match.id]
        raise UnsupportedError(f"{path} is {kind}, not a language model", hint=hint.format(path=shlex.quote(str(path))))
