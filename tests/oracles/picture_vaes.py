"""VAEs whose single file and diffusers have other names, in small sizes: names and shapes that `tests/models/
record_picture_vaes.py` recorded from the classes and functions of ComfyUI and diffusers. No code of ours takes part."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

_RECORD = Path(__file__).parents[1] / "models" / "golden" / "picture_vaes.json"
_MOST = 3  # of a size
MODELS = ("ltx-vae", "ltx-vae-0.9.1", "ltx-vae-0.9.5", "wan22-vae", "hunyuan-video-vae", "flux2-vae")


@cache
def record(model: str) -> dict[str, list[Any]]:
    """Name in the single file -> published shape, name in diffusers or None, shape there if it is another."""
    found: dict[str, list[Any]] = json.loads(_RECORD.read_text())[model]
    return found


def _small(shape: list[int]) -> tuple[int, ...]:
    return tuple(min(size, _MOST) for size in shape)


def single_file(model: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that diffusers has, too."""
    return {name: _small(row[0]) for name, row in record(model).items() if row[1] is not None}


def in_diffusers(model: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors as diffusers has them."""
    rows = {name: record(model)[name] for name in tensors}
    return {row[1]: tensors[name].reshape(_small(row[-1] if len(row) == 3 else row[0])) for name, row in rows.items()}


SHAPES: dict[str, Callable[[], dict[str, tuple[int, ...]]]] = {model: partial(single_file, model) for model in MODELS}
DIFFUSERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    model: partial(in_diffusers, model) for model in MODELS
}
