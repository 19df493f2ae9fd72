"""Matrices rounded to nearest and packed by compressed-tensors itself: what llm-compressor's min-max observer (0.14,
`observers.min_max`, `observers.helpers._flatten_weight`) makes of a weight, in the library's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tensor = Any
Arguments = dict[str, Any]


def scheme_of(arguments: Mapping[str, Any]) -> Any:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))


def _observed(weight: Tensor, arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The least and largest value of each group, row or block."""
    import torch

    strategy = arguments["strategy"]
    if strategy == "channel":
        groups = weight.unsqueeze(-2)
    elif strategy == "tensor":
        groups = weight.reshape(1, -1)
    elif strategy == "block":
        height, width = arguments["block_structure"]
        rows, columns = weight.shape
        padded = torch.nn.functional.pad(weight, (0, -columns % width, 0, -rows % height))
        groups = padded.unflatten(0, (-1, height)).unflatten(2, (-1, width)).transpose(1, 2).flatten(-2, -1)
    else:
        groups = weight.unflatten(-1, (-1, arguments["group_size"]))
    return groups.amin(dim=-1), groups.amax(dim=-1)


def compressed(
    form: str, arguments: Arguments, weight: Tensor, together: list[Tensor] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """(stored tensors, the library's float weight). `together`: matrices that share a global scale with it."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = scheme_of(arguments)
    overall = None
    if arguments["strategy"] == "tensor_group":
        peak = torch.stack([w.abs().max() for w in (together or [weight])]).max().reshape(1)
        overall = generate_gparam(-peak, peak)
    low, high = _observed(weight, arguments)
    scale, zero = calculate_qparams(low, high, scheme.weights, overall)
    held = {"weight": weight, "weight_scale": scale.to(weight.dtype), "weight_zero_point": zero}
    if overall is not None:
        held["weight_global_scale"] = overall
    if scheme.weights.symmetric:
        del held["weight_zero_point"]
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = {k: v for k, v in compressor.compress(held, scheme).items() if v is not None}
    return stored, compressor.decompress(stored, scheme)["weight"]
