"""The layer behind all others that predicts the next token but one, as models are published with it
(zai-org/GLM-4.5-Air, Qwen/Qwen3-Next-80B-A3B-Instruct, Qwen/Qwen3.5-9B): transformers neither
writes it nor reads it with the rest."""

from __future__ import annotations

import json
from pathlib import Path

# What joins the embedding and the last state in front, and the norm behind; a head of its own or none.
_GLM = {
    "joined": "eh_proj",
    "norms": ("enorm", "hnorm", "shared_head.norm"),
    "heads": ("embed_tokens", "shared_head.head"),
}
_QWEN = {"joined": "fc", "norms": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), "heads": ()}


def add(folder: Path) -> None:
    """A layer more, made as the last one that attends is, with its own norms."""
    import torch
    from safetensors.torch import load_file, save_file

    path, generator = folder / "model.safetensors", torch.Generator().manual_seed(12)
    tensors, config = load_file(path), json.loads((folder / "config.json").read_text())
    qwen = config["model_type"].startswith("qwen3")
    begun, last = next(n.split(".layers.")[0] for n in tensors if ".layers." in n), _last_attending(tensors)
    embedding = tensors[f"{begun}.embed_tokens.weight"]
    new, kind = (f"{begun}.layers.{_layers(tensors)}.", _GLM) if not qwen else ("mtp.", _QWEN)
    layer = f"{new}layers.0." if qwen else new
    old = f"{begun}.layers.{last}."
    shapes = {layer + n.removeprefix(old): t.shape for n, t in tensors.items() if n.startswith(old)}
    width = embedding.shape[1]
    shapes |= {f"{new}{kind['joined']}.weight": (width, 2 * width)}
    shapes |= {f"{new}{name}.weight": (width,) for name in kind["norms"]}
    shapes |= {f"{new}{name}.weight": embedding.shape for name in kind["heads"]}
    made = {n: (torch.randn(tuple(s), generator=generator) * 0.15).bfloat16().float() for n, s in shapes.items()}
    save_file(tensors | made, path, {"format": "pt"})


def _numbers(names: object) -> list[int]:
    return [int(str(name).split(".layers.")[1].split(".")[0]) for name in names]  # type: ignore[attr-defined]


def _layers(tensors: dict[str, object]) -> int:
    return 1 + max(_numbers(n for n in tensors if ".layers." in n))


def _last_attending(tensors: dict[str, object]) -> int:
    return max(_numbers(n for n in tensors if ".layers." in n and ".self_attn." in n))
