"""A small gpt-oss as openai publishes it: its experts in MXFP4, each [out, in], codes and scales as tensors of their
own (transformers.integrations.mxfp4). Codes and scales are random; every value is exact in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

QUANTIZED = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def pack(folder: Path) -> None:
    """The folder's float experts replaced."""
    import torch
    from safetensors.torch import load_file, save_file

    path, random = folder / "model.safetensors", np.random.default_rng(11)
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        lead = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = torch.from_numpy(random.integers(0, 256, (*lead, 16), np.uint8))
        tensors[f"{name}_scales"] = torch.from_numpy(random.integers(120, 124, lead, np.uint8))  # 2^-7 to 2^-4
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZED}, indent=2))
