"""ComfyUI's folders with a file per part of a pipeline, opened as one model: the tensors have the name of their file
in front, such as `vae/ae.decoder.conv_in.weight`.

    diffusion_models/ or unet/     the denoiser, or two
    vae/
    text_encoders/ or clip/
    clip_vision/                   the image encoder of a model that continues a picture
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

#: The kinds of parts; the folder of each, and its older name.
DENOISERS: Final = "diffusion_models"
ENCODERS: Final = "text_encoders"
VAES: Final = "vae"
CLIP_VISION: Final = "clip_vision"
KINDS: Final = MappingProxyType(
    {
        DENOISERS: DENOISERS,
        "unet": DENOISERS,
        VAES: VAES,
        ENCODERS: ENCODERS,
        "clip": ENCODERS,
        CLIP_VISION: CLIP_VISION,
    }
)
_SUFFIXES: Final = (".safetensors", ".sft", ".gguf")
_CONFIG: Final = "config.json"


def files_of_set(folder: Path) -> tuple[Path, ...]:
    """The files of all parts in ComfyUI's folders below `folder`; empty without a denoiser, and if a folder is a part
    of diffusers."""
    folders = [folder / name for name in KINDS if (folder / name).is_dir()]
    if not any(KINDS[path.name] == DENOISERS for path in folders) or any((p / _CONFIG).is_file() for p in folders):
        return ()
    files = tuple(sorted(p for path in folders for p in path.iterdir() if p.is_file() and p.suffix in _SUFFIXES))
    return files if any(KINDS[file.parent.name] == DENOISERS for file in files) else ()
