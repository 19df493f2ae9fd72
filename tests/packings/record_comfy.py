"""Records the stored tensors and the values of matrices that comfy-kitchen quantizes: golden/comfy.npz.

    python tests/packings/record_comfy.py FOLDER

FOLDER has the package comfy_kitchen (0.2.31 of 2026-08-21; 0.2.40 gives the same; torch without CUDA suffices). Values
are those of its own functions in F32. Matrices are small, with a row of zeros and groups of extreme magnitudes. The
formats without a quantizer there (awq_w4a16, int8_blockwise, svdquant_w4a4) have random codes. The values of
svdquant_w4a4 are its kernel's for the identity matrix, with all parameters in F32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "comfy.npz"
#: Format -> rows and columns.
SHAPES = {
    "nvfp4": (48, 256), "nvfp4-padded": (20, 72), "nvfp4-smooth": (16, 64), "mxfp8": (160, 160),
    "mxfp8-padded": (40, 96), "int8_tensorwise": (24, 256), "int8_tensorwise-one": (24, 64),
    "int8_tensorwise-rotated": (16, 512), "int8_tensorwise-rotated16": (16, 48), "convrot_w4a4": (16, 256),
    "awq_w4a16": (16, 128), "asym_w4a8_int8": (16, 256), "asym_w4a8_int8-even": (16, 256),
    "svdquant_w4a4": (20, 192), "svdquant_w4a4-none": (12, 64), "svdquant_w4a4-tiles": (256, 128),
}  # fmt: skip


def source(name: str) -> Any:
    """A matrix with magnitudes from 1e-20 to 1e3, and one row of zeros."""
    rows, columns = SHAPES[name]
    rng = np.random.default_rng(len(name) * 1000 + rows)
    matrix = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 2, (rows, 1))
    matrix[1] = 0
    matrix[2] *= 1e-20
    matrix[3, :16] *= 1e3
    return matrix.astype(np.float32)


def quantized(name: str, weight: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The stored tensors, the settings and the values of a matrix."""
    import torch
    from comfy_kitchen import tensor as layouts  # type: ignore[import-not-found]
    from comfy_kitchen.tensor import w4a8_int8  # type: ignore[import-not-found]

    kind, _, variant = name.partition("-")
    settings: dict[str, Any] = {"format": kind}
    if kind == "awq_w4a16":
        rng = np.random.default_rng(1)
        rows, columns = weight.shape
        codes = torch.from_numpy(rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8)).view(torch.int8)
        scale, zeros = (torch.from_numpy(rng.normal(size=(columns // 64, rows)).astype(np.float32)) for _ in range(2))
        layout = layouts.TensorCoreAWQW4A16Layout
        params = layout.Params(scale=scale, orig_dtype=torch.float32, orig_shape=(rows, columns), zeros=zeros)
        return (
            {"weight": codes, "weight_scale": scale, "weight_zeros": zeros},
            settings,
            layout.dequantize(codes, params),
        )
    if kind == "svdquant_w4a4":
        return svdquant(variant, *weight.shape)
    if kind == "asym_w4a8_int8":
        packed, rel, channel, correction, book = w4a8_int8.quantize_w4a8_int8_weight(weight, codebook=variant != "even")
        assert correction is None
        parts = {"weight": packed, "weight_s_rel": rel, "weight_s_channel": channel}
        parts |= {} if book is None else {"weight_codebook": book}
        values = w4a8_int8.dequantize_w4a8_int8_weight(packed, rel, channel, book, output_dtype=torch.float32)
        return parts, {**settings, "group_size": 16}, values
    options: dict[str, Any] = {}
    if variant.startswith("rotated"):
        size = int(variant.removeprefix("rotated") or 256)
        settings |= {"convrot": True, "convrot_groupsize": size}
        options = {"per_channel": True, "convrot": True, "convrot_groupsize": size}
    elif kind == "int8_tensorwise":
        options = {"per_channel": variant != "one"}
    layout = {
        "nvfp4": layouts.TensorCoreNVFP4Layout, "mxfp8": layouts.TensorCoreMXFP8Layout,
        "int8_tensorwise": layouts.TensorWiseINT8Layout, "convrot_w4a4": layouts.TensorCoreConvRotW4A4Layout,
    }[kind]  # fmt: skip
    codes, params = layout.quantize(weight, **options)
    parts = {f"weight{ending}": value for ending, value in layout.state_dict_tensors(codes, params).items()}
    values = layout.dequantize(codes, params)
    if variant == "smooth":
        parts["pre_quant_scale"] = torch.linspace(0.5, 2, weight.shape[1])
        values = values * parts["pre_quant_scale"]
    return parts, settings, values


def svdquant(variant: str, rows: int, columns: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Random parameters: of rank 5 in BF16, without a low-rank product ("none"), and in tiles, with the names and
    settings of comfy-quants. Columns are divided by 0.25 to 4."""
    import torch
    from comfy_kitchen import tensor as layouts

    rng, groups, tiles = np.random.default_rng(rows), columns // 64, rows // 128
    rank, dtype = {"": (5, torch.bfloat16), "none": (0, torch.float16), "tiles": (3, torch.float16)}[variant]
    shapes: dict[str, tuple[int, ...]] = {"scale": (groups, rows), "proj_up": (rows, rank)}
    packed: tuple[int, ...] = (rows, columns // 2)
    settings: dict[str, Any] = {"format": "svdquant_w4a4", "group_size": 64, "rank": rank, "act_unsigned": False}
    if variant == "tiles":
        shapes, packed = {"scale": (tiles, groups, 128), "proj_up": (tiles, rank, 128)}, (tiles, groups, 32, 128)
        settings = {"format": "svdquant_w4a4", "layout": "kitchen_tile_packed_w4a4",
                    "lowrank_branch_input_basis": "raw", "proj_down_smooth_folded": True}  # fmt: skip
    parts = {
        role: torch.from_numpy(rng.normal(size=shape)).to(dtype)
        for role, shape in {**shapes, "proj_down": (columns, rank)}.items()
    }
    parts["smooth_factor"] = torch.from_numpy(2 ** rng.uniform(-2, 2, columns)).to(dtype)
    codes = torch.from_numpy(rng.integers(-128, 128, packed).astype(np.int8))
    layout = layouts.TensorCoreSVDQuantW4A4Layout
    params = layout.Params(
        **{role: value.float() for role, value in parts.items()}, orig_dtype=torch.float32, orig_shape=(rows, columns)
    )
    names = {role: role if role != "scale" and variant == "tiles" else f"weight_{role}" for role in parts}
    stored = {"weight": codes, **{names[role]: value for role, value in parts.items()}}
    return stored, settings, layout.dequantize(codes, params)


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import torch

    recorded: dict[str, Any] = {}
    for name in SHAPES:
        parts, settings, values = quantized(name, torch.from_numpy(source(name)))
        recorded[f"{name}/settings"] = np.array(json.dumps(settings))
        recorded[f"{name}/values"] = values.numpy()
        for part, value in parts.items():
            data = value.contiguous()
            kind = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0", torch.uint8: "U8",
                    torch.int8: "I8", torch.float32: "F32", torch.bfloat16: "BF16",
                    torch.float16: "F16"}[data.dtype]  # fmt: skip
            raw = (
                data.reshape(-1).view(torch.uint8).numpy().reshape(*data.shape[:-1], -1) if data.dim() else data.numpy()
            )
            recorded[f"{name}/{part}:{kind}"] = raw
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(GOLDEN, **recorded)


if __name__ == "__main__":
    main()
