"""Small models packed as their publishers pack them: what a folder of floats becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]

DEEPSEEK_V4 = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}  # fmt: skip
# Matrices that stay in F32, of which ggml's graphs want some so, and those that stay in BF16; the others are in FP8.
_F32 = ("hc_attn_fn", "hc_ffn_fn", "hc_head_fn", ".ape", "compressor.wkv.weight", "compressor.wgate.weight")
_BF16 = (
    "embed.weight", "head.weight", "ffn.gate.weight", "weights_proj.weight", "markov_w1.weight", "markov_w2.weight",
    "confidence_head.proj.weight",
)  # fmt: skip


def deepseek_v4(folder: Path) -> None:
    """Experts in MXFP4 (I8) and the other matrices in FP8, each beside a `.scale` of E8M0; norms in BF16."""
    _repack(folder, _as_deepseek_v4, DEEPSEEK_V4)


KIMI_K3: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "dynamic": False, "group_size": 32, "num_bits": 4, "scale_dtype": "torch.uint8", "strategy": "group",
                "symmetric": True, "type": "float",
            },
        }
    },
    "format": "mxfp4-pack-quantized",
    "ignore": [
        "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
        "re:.*vision_tower.*", "re:.*mm_projector.*",
    ],
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}  # fmt: skip


def kimi_k3(folder: Path) -> None:
    """Experts in MXFP4 as compressed-tensors stores it; of the rest what stands in F32 stays so."""
    _repack(folder, _as_kimi_k3, {})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    config["text_config"]["quantization_config"] = KIMI_K3
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _as_kimi_k3(name: str, tensor: Any, generator: Any) -> Tensors:
    if ".experts." in name:
        codes, scales = mxfp4(tensor.shape, generator)
        return {f"{name}_packed": codes, f"{name}_scale": scales}
    kept = name.endswith(("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias"))
    return {name: tensor if kept else tensor.bfloat16()}


def _repack(folder: Path, pack: Callable[[str, Any, Any], Tensors], quantization: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path, generator = folder / "model.safetensors", torch.Generator().manual_seed(11)
    packed: Tensors = {}
    for name, tensor in load_file(path).items():
        packed |= pack(name, tensor, generator)
    save_file(packed, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}, indent=2))


def _as_deepseek_v4(name: str, tensor: Any, generator: Any) -> Tensors:
    import torch

    scale = name.removesuffix("weight") + "scale"
    if ".experts." in name:
        codes, scales = mxfp4(tensor.shape, generator)
        return {name: codes.view(torch.int8), scale: scales.view(torch.float8_e8m0fnu)}
    if tensor.ndim < 2 or name.endswith(_F32) or not tensor.is_floating_point():
        return {name: tensor.bfloat16() if name.endswith("norm.weight") else tensor}
    if name.endswith(_BF16):
        return {name: tensor.bfloat16()}
    grid = [-(-side // 128) for side in tensor.shape]
    scales = torch.randint(123, 126, grid, generator=generator, dtype=torch.uint8)  # 2^-4 to 2^-2
    return {name: (tensor * 8).to(torch.float8_e4m3fn), scale: scales.view(torch.float8_e8m0fnu)}


def mxfp4(shape: Any, generator: Any) -> tuple[Any, Any]:
    """Random codes, two a byte, and the powers of two that 32 neighbours share, as bytes."""
    import torch

    rows, columns = shape
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    return codes, torch.randint(120, 124, (rows, columns // 32), generator=generator, dtype=torch.uint8)
