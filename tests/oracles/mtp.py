"""The layer behind all others that predicts the next token but one, as GLM-4.5 is published (zai-org/GLM-4.5-Air):
transformers neither writes it nor reads it with the rest."""

from __future__ import annotations

import json
from pathlib import Path


def add(folder: Path) -> None:
    """A layer more, made as the last one is, with what joins the embedding and the last state in front and a head
    behind."""
    import torch
    from safetensors.torch import load_file, save_file

    path, generator = folder / "model.safetensors", torch.Generator().manual_seed(12)
    tensors, config = load_file(path), json.loads((folder / "config.json").read_text())
    layers, embedding = config["num_hidden_layers"], tensors["model.embed_tokens.weight"]
    last, new = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    shapes = {new + n.removeprefix(last): t.shape for n, t in tensors.items() if n.startswith(last)}
    width = embedding.shape[1]
    shapes |= {f"{new}eh_proj.weight": (width, 2 * width)}
    shapes |= {f"{new}{name}.weight": (width,) for name in ("enorm", "hnorm", "shared_head.norm")}
    shapes |= {f"{new}{name}.weight": embedding.shape for name in ("embed_tokens", "shared_head.head")}
    made = {n: (torch.randn(tuple(s), generator=generator) * 0.15).bfloat16().float() for n, s in shapes.items()}
    save_file(tensors | made, path, {"format": "pt"})
