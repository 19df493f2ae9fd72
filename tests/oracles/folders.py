"""Tensors of a Hugging Face folder as safetensors' own reader gives them, and their comparison."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any


def tensors(folder: Path) -> dict[str, Any]:
    """Every tensor of a folder (as torch's, since numpy knows no bf16)."""
    from safetensors import safe_open

    out: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            out |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    return out


def assert_same(found: dict[str, Any], expected: dict[str, Any], lost: Collection[str] = ()) -> None:
    """The same names (but `lost`), types and values."""
    import torch

    assert sorted(found) == sorted(set(expected) - set(lost))
    assert [name for name, t in found.items() if t.dtype != expected[name].dtype] == []
    assert [name for name, t in found.items() if not torch.equal(t, expected[name])] == []
