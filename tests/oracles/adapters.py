"""LoRA adapters as PEFT writes them, and what a model becomes with one: made and merged by hand with torch."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from tests.oracles import folders

PREFIX = "base_model.model."


def make(base: Path, folder: Path, targets: str, *, rank: int = 4, whole: str = "", **said: Any) -> Path:
    """An adapter for the modules of `base` whose names fit the pattern `targets`, PEFT's files and names. `whole`: a
    pattern of tensors that it holds whole, with other values."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(9)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 6,
        "base_model_name_or_path": str(base),
        "bias": "none",
    } | said
    patterns = config.get("rank_pattern") or {}
    turned = bool(config.get("fan_in_fan_out"))
    tensors = {}
    for name, weight in folders.tensors(base).items():
        module = name.removesuffix(".weight")
        if whole and re.search(whole, name):
            tensors[f"{PREFIX}{name}"] = torch.randn(weight.shape, generator=generator) * 0.3 + 1
        if not re.search(targets, module) or weight.ndim != 2:
            continue
        r = patterns.get(module, rank)
        rows, columns = reversed(weight.shape) if turned and "embed" not in module else weight.shape
        if "embed" in module or module.endswith("wte"):
            tensors[f"{PREFIX}{module}.lora_embedding_A"] = torch.randn((r, rows), generator=generator) * 0.3
            tensors[f"{PREFIX}{module}.lora_embedding_B"] = torch.randn((columns, r), generator=generator) * 0.3
        else:
            tensors[f"{PREFIX}{module}.lora_A.weight"] = torch.randn((r, columns), generator=generator) * 0.3
            tensors[f"{PREFIX}{module}.lora_B.weight"] = torch.randn((rows, r), generator=generator) * 0.3
    folder.mkdir(parents=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return folder


def merged(base: Path, adapter: Path, folder: Path) -> Path:
    """`base` with the adapter in its weights: peft's `get_delta_weight` and `merge`, written out."""
    from safetensors.torch import load_file, save_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    pairs = load_file(adapter / "adapter_model.safetensors")
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    tensors = folders.tensors(base)
    for name in tensors:
        module = f"{PREFIX}{name.removesuffix('.weight')}"
        if f"{PREFIX}{name}" in pairs:
            tensors[name] = pairs[f"{PREFIX}{name}"]
        if (a := pairs.get(f"{module}.lora_A.weight")) is not None:
            delta = pairs[f"{module}.lora_B.weight"] @ a
            tensors[name] = tensors[name] + _scale(config, a, name) * (
                delta.T if config.get("fan_in_fan_out") else delta
            )
        if (a := pairs.get(f"{module}.lora_embedding_A")) is not None:
            tensors[name] = tensors[name] + _scale(config, a, name) * (pairs[f"{module}.lora_embedding_B"] @ a).T
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def _scale(config: dict[str, Any], a: Any, name: str) -> float:
    module, patterns = name.removesuffix(".weight"), config.get("alpha_pattern") or {}
    alpha = next((v for key, v in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), config["lora_alpha"])
    return float(alpha / (math.sqrt(a.shape[0]) if config.get("use_rslora") else a.shape[0]))
