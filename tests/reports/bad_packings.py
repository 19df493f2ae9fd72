"""Folders of packed weights, each with one thing wrong, and the rules of `verify` that must tell it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.packings import makers
from tests.reports import makers as m

from weighbridge.tensors.nodes import Node

Arrays = dict[str, NDArray[Any]]
_NAMES = {
    "uint32": "U32",
    "int32": "I32",
    "float16": "F16",
    "float32": "F32",
    "uint8": "U8",
    "int8": "I8",
    "int64": "I64",
}
P = "model.layers.0.mlp.up_proj"


def write(folder: Path, arrays: Mapping[str, NDArray[Any]], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    tensors = {f"{P}.{name}": (_NAMES[str(a.dtype)], a.shape, a.tobytes()) for name, a in arrays.items()}
    (folder / "model.safetensors").write_bytes(m.safetensors(tensors, {"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _arrays(tensors: Mapping[str, Node]) -> Arrays:
    kinds = {"I32": np.int32, "F16": np.float16}
    return {
        name.removeprefix("m."): node.read_all().view(kinds[node.spec.dtype.name]).reshape(node.spec.shape)
        for name, node in tensors.items()
    }


def positive(arrays: Arrays) -> Arrays:
    return arrays | {"scales": np.abs(arrays["scales"]) + np.float16(0.01)}


def mlx(bits: int = 4, group: int = 64, rows: int = 8, columns: int = 256) -> Arrays:
    rng = np.random.default_rng(1)
    scales, biases = rng.normal(size=(2, rows, columns // group)).astype(np.float16)
    words = rng.integers(0, 1 << 32, (rows, columns * bits // 32), np.uint32)
    return {"weight": words, "scales": scales, "biases": biases}


def nvfp4(mode: str = "mxfp4") -> Arrays:
    group = {"mxfp4": 32, "nvfp4": 16}[mode]
    words = np.random.default_rng(1).integers(0, 1 << 32, (8, 32), np.uint32)
    return {"weight": words, "scales": np.full((8, 256 // group), {"mxfp4": 127, "nvfp4": 0x38}[mode], np.uint8)}


def gptq(**how: Any) -> Arrays:
    return positive(_arrays(makers.gptq(4, **how).tensors))


def awq() -> Arrays:
    return positive(_arrays(makers.awq().tensors))


def int8(top: int = 127) -> Arrays:
    codes = np.random.default_rng(1).integers(-top - 1, top + 1, (8, 64)).astype(np.int8)
    return {"weight": codes, "weight_scale": np.full((8, 1), 0.5, np.float32)}


def hqq(compute_dtype: bytes = b"torch.float16") -> Arrays:
    rng = np.random.default_rng(1)
    scale, zero = rng.normal(size=(2, 64, 1)).astype(np.float32)
    return {
        "W_q": rng.integers(0, 256, (32, 32), np.uint8), "scale": scale, "zero": zero, "nbits": np.array(4),
        "shape": np.array([64, 32]), "compute_dtype": np.frombuffer(compute_dtype, np.uint8),
    }  # fmt: skip


MLX = {"quantization": {"bits": 4, "group_size": 64}}
GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}}
HQQ = {"quantization_config": {"quant_method": "hqq"}}


def _ct(bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}
    told = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    return {"quantization_config": told}


def _with(config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {key: {**table, **more} for key, table in config.items()}


def without(arrays: Arrays, *names: str) -> Arrays:
    return {name: a for name, a in arrays.items() if name not in names}


def changed(arrays: Arrays, name: str, change: Callable[[NDArray[Any]], Any]) -> Arrays:
    copy = arrays[name].copy()
    found = change(copy)
    return arrays | {name: copy if found is None else found}


def put(value: Any) -> Callable[[NDArray[Any]], None]:
    def change(a: NDArray[Any]) -> None:
        a.flat[3] = value

    return change


class Bad(NamedTuple):
    """What lies in the folder; all rules that must speak (of those that speak of packed weights), and some words."""

    arrays: Callable[[], Arrays]
    config: Mapping[str, Any]
    rules: set[str]
    words: str = ""


GOOD: dict[str, tuple[Callable[[], Arrays], Mapping[str, Any]]] = {
    "mlx": (mlx, MLX),
    "mlx of 8 bits, said for the module": (lambda: mlx(8), {"quantization": {**MLX["quantization"], P: {"bits": 8}}}),
    "mxfp4": (nvfp4, {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}),
    "nvfp4": (lambda: nvfp4("nvfp4"), {"quantization": {"bits": 4, "group_size": 16, "mode": "nvfp4"}}),
    "gptq": (gptq, GPTQ),
    "gptq of one group": (lambda: gptq(group=256), _with(GPTQ, group_size=-1)),
    "gptq of format 2": (lambda: gptq(stored_zero=0, symmetric=True), _with(GPTQ, checkpoint_format="gptq_v2")),
    "gptq in activation order": (lambda: gptq(order=True), _with(GPTQ, desc_act=True)),
    "awq": (awq, AWQ),
    "int8": (int8, _ct(8)),
    "hqq": (hqq, HQQ),
}

BAD: dict[str, Bad] = {
    "bits that the config has wrong": Bad(lambda: mlx(5), MLX, {"config/bits"}, "5 bits in groups of 64"),
    "groups that the config has wrong": Bad(
        lambda: mlx(8, 128), _with(MLX, bits=8), {"config/bits"}, "8 bits in groups of 128"),
    "an override that is wrong": Bad(
        lambda: mlx(5), {"quantization": {"bits": 5, "group_size": 64, P: {"bits": 3}}}, {"config/bits"}, "sets 3"),
    "bits that the shapes leave open and the config has wrong": Bad(
        lambda: mlx(8), MLX, {"config/packing"}, "bits and group size are ambiguous"),
    "groups of GPTQ that the config has wrong": Bad(
        gptq, _with(GPTQ, group_size=128), {"config/bits"}, "groups of 128"),
    "one group that are four": Bad(gptq, _with(GPTQ, group_size=-1), {"config/bits"}, "groups of 256"),
    "bits of AWQ": Bad(awq, _with(AWQ, bits=8), {"config/bits"}, "8 bits"),
    "no group size": Bad(mlx, _with(MLX, group_size=None), {"config/group-size"}, "null in quantization"),
    "no group size, and it isn't 64": Bad(
        lambda: mlx(8, 128), _with(MLX, bits=8, group_size=None), {"config/group-size", "config/bits"}, "groups of 64"),
    "no group size for a module": Bad(
        mlx, {"quantization": {**MLX["quantization"], P: {"bits": 4, "group_size": None}}}, {"config/group-size"}, P),
    "no group size in GPTQ": Bad(gptq, _with(GPTQ, group_size=None), {"config/group-size"}, "other loaders stop"),
    "format 2 that is called 1": Bad(
        lambda: gptq(stored_zero=0, symmetric=True), GPTQ, {"config/gptq-format"}, "zero points of gptq_v2"),
    "format 1 that is called 2": Bad(
        lambda: gptq(symmetric=True), _with(GPTQ, checkpoint_format="gptq_v2"), {"config/gptq-format"}, "off by one"),
    "a group that isn't there": Bad(
        lambda: changed(gptq(), "g_idx", put(4)), GPTQ, {"config/packing"}, "g_idx names a group"),
    "a negative group": Bad(lambda: changed(gptq(), "g_idx", put(-1)), GPTQ, {"config/packing"}, "g_idx"),
    "scales of integers": Bad(
        lambda: changed(gptq(), "scales", lambda a: a.view(np.uint8)[:, ::2].copy()), GPTQ, {"config/packing"},
        "scales of another type"),
    "scales of another shape": Bad(
        lambda: changed(mlx(), "scales", lambda a: a[:, :3].copy()), MLX, {"config/packing"}, "don't belong"),
    "zero points of another shape": Bad(
        lambda: changed(awq(), "qzeros", lambda a: a[:2].copy()), AWQ, {"config/packing"}, "don't belong"),
    "words that are no whole codes": Bad(
        lambda: changed(gptq(), "qweight", lambda a: a[:31].copy()), GPTQ, {"config/packing"}, "fill"),
    "MLX words without scales": Bad(
        lambda: without(mlx(), "scales"), MLX, {"config/packing-incomplete"}, "up_proj.scales"),
    "MLX words without biases": Bad(lambda: without(mlx(), "biases"), MLX, {"config/packing"}, "without biases"),
    "GPTQ words without scales": Bad(
        lambda: without(gptq(), "scales"), GPTQ, {"config/packing-incomplete"}, "qweight has no"),
    "scales without words": Bad(
        lambda: without(gptq(), "qweight"), GPTQ, {"config/packing-incomplete"}, "qzeros has no"),
    "HQQ words without settings": Bad(lambda: without(hqq(), "nbits"), HQQ, {"config/packing"}, "without bits"),
    "marlin": Bad(gptq, _with(GPTQ, checkpoint_format="marlin"), {"config/packing-unread"}, "plain GPTQ files"),
    "exllama": Bad(gptq, _with(GPTQ, checkpoint_format="exllamav2"), {"config/packing-unread"}, "plain GPTQ files"),
    "AWQ for one kernel": Bad(awq, _with(AWQ, version="gemv"), {"config/packing-unread"}, "GEMM files"),
    "Python in HQQ": Bad(
        lambda: hqq(b"__import__('os').system('true')"), HQQ, {"config/hqq-code"}, "__import__('os')"),
    "NaN in scales": Bad(lambda: changed(mlx(), "scales", put(np.nan)), MLX, {"values/nan"}, "1 value is NaN"),
    "Inf in scales": Bad(lambda: changed(gptq(), "scales", put(np.inf)), GPTQ, {"values/inf"}, "1 value is infinite"),
    "NaN in powers of two": Bad(
        lambda: changed(nvfp4(), "scales", put(255)), GOOD["mxfp4"][1], {"values/scale-nan"}, "1 of its 64 scales"),
    "NaN in E4M3": Bad(
        lambda: changed(nvfp4("nvfp4"), "scales", put(0x7F)), GOOD["nvfp4"][1], {"values/scale-nan"}, "1 of its 128"),
    "negative E4M3": Bad(
        lambda: changed(nvfp4("nvfp4"), "scales", put(0xB8)), GOOD["nvfp4"][1], {"values/scale-negative"}, "drop the"),
    "negative scales of GPTQ": Bad(
        lambda: changed(gptq(), "scales", put(-1)), GPTQ, {"values/scale-negative"}, "1 of its 384 scales is neg"),
    "a scale of zero": Bad(lambda: changed(awq(), "scales", put(0)), AWQ, {"values/scale-zero"}, "is zero"),
    "codes beyond their bits": Bad(lambda: int8(9), _ct(4), {"values/code-range"}, "exceed 4 bits"),
}  # fmt: skip
