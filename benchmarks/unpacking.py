"""Packed weights to bf16, ours beside each scheme's own library, one core, as Markdown: `unpacking.py ROUNDS`.

The library packs a matrix where it can on a CPU; both then make bf16 of all of it, from memory to memory, ours in the
slabs that a conversion reads. Contenders take turns in every round, a ratio is the median of the rounds' own; seconds
are those that the processor spent. GPTQ and AWQ, whose libraries need a GPU to be installed, are unpacked by the loops
of AutoGPTQ's and AutoAWQ's own torch code.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.packings import makers  # noqa: E402
from tests.packings.stored import members, of_numpy, of_torch  # noqa: E402
from tests.unpacked import unpack  # noqa: E402

from weighbridge.base.dtypes import BF16  # noqa: E402
from weighbridge.conversion.plan.contents import slab_rows  # noqa: E402
from weighbridge.tensors import nodes as n  # noqa: E402
from weighbridge.tensors.nodes import Node  # noqa: E402

ROWS, COLUMNS = 2048, 4096
BUDGET = 64 << 20

Work = Callable[[], object]
Pair = tuple[Work, Work]  # ours, the library's


def ours(tensors: Mapping[str, Node], config: Mapping[str, Any] | None = None) -> Work:
    (found,) = unpack(tensors, config or {}).values()
    node = n.cast(found, BF16)
    rows, width = slab_rows([node], BUDGET), node.spec.row_bytes
    out = np.empty(node.spec.nbytes, np.uint8)

    def work() -> None:
        for lo in range(0, node.spec.rows, rows):
            hi = min(lo + rows, node.spec.rows)
            node.read(lo, hi, out[lo * width : hi * width])

    return work


def bitsandbytes(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    from bitsandbytes import functional as bnb

    for kind in ("nf4", "fp4"):
        codes, state = bnb.quantize_4bit(weight, quant_type=kind, compress_statistics=True, blocksize=64)
        stored = {"weight": codes} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        yield f"bitsandbytes {kind}", (
            ours(members("m", stored)), lambda c=codes, s=state: bnb.dequantize_4bit(c, s).bfloat16()
        )  # fmt: skip
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    yield (
        "bitsandbytes int8",
        (
            ours(members("m", {"weight": codes, "SCB": scales})),
            lambda: bnb.int8_vectorwise_dequant(codes, scales).bfloat16(),
        ),
    )


def hqq(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    from hqq.core.quantize import Quantizer

    for bits, axis in ((4, 1), (4, 0), (3, 1), (2, 1)):
        packed, meta = Quantizer.quantize(
            weight.clone(), nbits=bits, group_size=64, axis=axis, device="cpu", compute_dtype=torch.float32
        )
        stored = {"W_q": packed, "scale": meta["scale"], "zero": meta["zero"], "axis": torch.tensor(axis)}
        stored |= {"nbits": torch.tensor(meta["nbits"]), "shape": torch.tensor(list(meta["shape"]))}
        theirs = lambda p=packed, m=meta: Quantizer.dequantize(p, m).bfloat16()  # noqa: E731
        yield f"HQQ {bits} bits, axis {axis}", (ours(members("m", stored)), theirs)


def _scales(groups: int) -> torch.Tensor:
    return torch.rand(ROWS, groups) * 0.2 + 0.01


# form, its settings, scales, what else the library is given
_COMPRESSED: Mapping[str, tuple[str, dict[str, Any], Callable[[], torch.Tensor], dict[str, torch.Tensor]]] = {
    **{
        f"{bits} bits in words": (
            "pack-quantized", {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 128},
            lambda: _scales(COLUMNS // 128).bfloat16(), {},
        )
        for bits in (4, 3, 8)
    },
    "int8 a row": ("naive-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, lambda: _scales(1), {}),
    "FP8 a row": ("naive-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, lambda: _scales(1), {}),
    "FP8 in blocks": (
        "naive-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
        lambda: torch.rand(ROWS // 128, COLUMNS // 128) + 0.01, {},
    ),
    "MXFP8": (
        "mxfp8-quantized", {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32},
        lambda: 2.0 ** torch.randint(-6, 3, (ROWS, COLUMNS // 32)), {},
    ),
    "MXFP4": (
        "mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
        lambda: 2.0 ** torch.randint(-6, 3, (ROWS, COLUMNS // 32)), {},
    ),
    "NVFP4": (
        "nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        lambda: (_scales(COLUMNS // 16) * 400).to(torch.float8_e4m3fn).float(),
        {"weight_global_scale": torch.tensor([731.5])},
    ),
}  # fmt: skip


def compressed(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    for name, (form, settings, scales, more) in _COMPRESSED.items():
        settings = settings | {"symmetric": True}
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**settings))
        compressor = BaseCompressor.get_value_from_registry(form)
        made = compressor.compress({"weight": weight.clone(), "weight_scale": scales(), **more}, scheme)
        stored = {k: v for k, v in made.items() if v is not None}
        told = {"quantization_config": {"config_groups": {"group_0": {"weights": settings}}}}
        theirs = lambda c=compressor, s=stored, h=scheme: c.decompress(dict(s), h)["weight"].bfloat16()  # noqa: E731
        yield f"compressed-tensors {name}", (ours(members("m", stored), told), theirs)


def mlx(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    array = mx.array(weight.numpy()).astype(mx.bfloat16)
    for mode, group, bits in (
        *(("affine", 64, bits) for bits in (2, 3, 4, 5, 6, 8)), ("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)
    ):  # fmt: skip
        parts = mx.quantize(array, group_size=group, bits=bits, mode=mode)
        stored = {"m.weight": of_numpy(np.array(parts[0]), "U32")}
        if mode == "affine":
            for name, part in zip(("scales", "biases"), parts[1:], strict=True):
                stored[f"m.{name}"] = of_numpy(np.array(part.view(mx.uint16)), "BF16")
        else:
            stored["m.scales"] = of_numpy(np.array(parts[1]), "U8")
        how = {"group_size": group, "bits": bits, "mode": mode, "dtype": mx.bfloat16}
        theirs = lambda p=parts, h=how: mx.eval(mx.dequantize(*p, **h))  # noqa: E731
        yield f"MLX {mode} {bits} bits", (
            ours(stored, {"quantization": {"bits": bits, "group_size": group}}), theirs
        )  # fmt: skip


def gpt_oss(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (4, ROWS // 4, COLUMNS // 32, 16), dtype=torch.uint8)
    scales = torch.randint(118, 132, (4, ROWS // 4, COLUMNS // 32), dtype=torch.uint8)
    yield (
        "gpt-oss MXFP4",
        (
            ours({"m_blocks": of_torch(blocks), "m_scales": of_torch(scales)}),
            lambda: convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16),
        ),
    )


def _arrays(made: makers.Made) -> dict[str, torch.Tensor]:
    kinds = {"I32": np.int32, "F16": np.float16}
    return {
        name.removeprefix("m."): torch.from_numpy(
            node.read_all().view(kinds[node.spec.dtype.name]).reshape(node.spec.shape).copy()
        )
        for name, node in made.tensors.items()
    }


def gptq(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    for order in (False, True):
        made = makers.gptq(4, inner=COLUMNS, outer=ROWS, group=128, order=order)
        part = _arrays(made)

        def theirs(part: dict[str, torch.Tensor] = part) -> torch.Tensor:
            zeros = (part["qzeros"].unsqueeze(2) >> shifts.view(1, 1, -1)).to(torch.int8) & 15
            codes = (part["qweight"].unsqueeze(1) >> shifts.view(1, -1, 1)).to(torch.int8) & 15
            index, scales = part["g_idx"].long(), part["scales"]
            levels = codes.reshape(COLUMNS, ROWS) - (zeros.reshape(scales.shape) + 1)[index]
            return (scales[index] * levels).T.contiguous().bfloat16()

        yield f"GPTQ 4 bits{', activation order' * order}", (ours(made.tensors), theirs)


def awq(weight: torch.Tensor) -> Iterator[tuple[str, Pair]]:
    made = makers.awq(inner=COLUMNS, outer=ROWS, group=128)
    part, shifts = _arrays(made), torch.arange(0, 32, 4)
    order = torch.arange(ROWS).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1)

    def codes(words: torch.Tensor) -> torch.Tensor:
        return (words[:, :, None] >> shifts).to(torch.int8).view(len(words), -1)[:, order] & 15

    def theirs() -> torch.Tensor:
        levels = codes(part["qweight"]) - codes(part["qzeros"]).repeat_interleave(128, 0)
        return (levels * part["scales"].repeat_interleave(128, 0)).T.contiguous().bfloat16()

    yield "AWQ 4 bits", (ours(made.tensors), theirs)


def measured(pair: Pair, rounds: int) -> tuple[list[float], list[float]]:
    """Processor seconds of each, round by round, after one that isn't counted."""
    out: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for seconds, work in zip(out, pair, strict=True):
            began = time.process_time()
            work()
            if number:
                seconds.append(time.process_time() - began)
    return out


def main() -> None:
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    print("## unpack\n\nPacked weights to bf16, one core; nanoseconds a weight.\n")
    print("| | weighbridge | its library | times as fast |\n|---|--:|--:|--:|")
    slower = []
    for scheme in (mlx, gptq, awq, compressed, gpt_oss, bitsandbytes, hqq):
        for name, pair in scheme(weight):
            mine, theirs = measured(pair, rounds)
            ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
            ns = [statistics.median(seconds) / (ROWS * COLUMNS) * 1e9 for seconds in (mine, theirs)]
            print(f"| {name} | {ns[0]:.3g} | {ns[1]:.3g} | {ratio:.1f} |", flush=True)
            slower += [f"{name} {ratio:.2f}x"] if ratio < 1 else []
    words = "each scheme at least as fast as its own library"
    print(f"\n- **missed**: {words}: {', '.join(slower)}" if slower else f"\n- reached: {words}")


if __name__ == "__main__":
    main()
