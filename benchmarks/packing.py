"""What `wb pack` costs a core, in memory: ratio and speed of chunks beside zstd and ZipNN where they are installed.

    python benchmarks/packing.py [ROUNDS]

Times are of the processor, one thread, without reading or writing files. The weights are normal, in bf16, f32 and FP8,
and a fine-tune of the bf16 ones (steps of 2e-5) as a delta to them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from weighbridge.base.dtypes import BF16, BY_NAME, F32, DType
from weighbridge.containers.wbpack.codec import unpack_chunk
from weighbridge.conversion.archive.records import pack_best

CHUNK, CHUNKS = 1 << 20, 32
Row = tuple[str, float, float, float]


def weights() -> dict[str, tuple[DType, bytes, bytes | None]]:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.02, CHUNK * CHUNKS // 2)
    base = values.astype(ml_dtypes.bfloat16).tobytes()
    tuned = (values + rng.normal(0, 2e-5, values.size)).astype(ml_dtypes.bfloat16).tobytes()
    scaled = np.concatenate([values, values]) * 1000
    return {
        "bf16": (BF16, base, None),
        "f32": (F32, values[: values.size // 2].astype(np.float32).tobytes(), None),
        "FP8 E4M3": (BY_NAME["F8_E4M3"], scaled.astype(ml_dtypes.float8_e4m3fn).tobytes(), None),
        "FP8 E5M2": (BY_NAME["F8_E5M2"], scaled.astype(ml_dtypes.float8_e5m2).tobytes(), None),
        "bf16, a delta": (BF16, tuned, base),
    }


def timed(act: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """The least processor time of several calls, and the result."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        result = act()
        best = min(best, time.process_time() - start)
    return best, result


def ours(dtype: DType, data: bytes, base: bytes | None, rounds: int) -> Row:
    parts = [(memoryview(data)[i : i + CHUNK], None if base is None else memoryview(base)[i : i + CHUNK])
             for i in range(0, len(data), CHUNK)]  # fmt: skip
    pack_time, packed = timed(lambda: [pack_best(dtype, *part) for part in parts], rounds)
    out = memoryview(bytearray(CHUNK))
    unpack_time, _ = timed(
        lambda: [unpack_chunk(p, b"" if old is None else old, out[: len(new)])
                 for p, (new, old) in zip(packed, parts, strict=True)], rounds,
    )  # fmt: skip
    return "weighbridge", sum(map(len, packed)) / len(data), len(data) / pack_time, len(data) / unpack_time


def others(name: str, data: bytes, rounds: int) -> list[Row]:
    rows: list[Row] = []
    try:
        import zstandard

        pack_time, packed = timed(lambda: zstandard.ZstdCompressor(3).compress(data), rounds)
        unpack_time, _ = timed(lambda: zstandard.ZstdDecompressor().decompress(packed), rounds)
        rows.append(("zstd -3", len(packed) / len(data), len(data) / pack_time, len(data) / unpack_time))
    except ImportError:
        pass
    kinds = {"bf16": "bfloat16", "f32": "float32"}
    try:
        from zipnn import ZipNN
    except ImportError:
        return rows
    if name in kinds:
        coder = ZipNN(bytearray_dtype=kinds[name], threads=1)
        pack_time, packed = timed(lambda: coder.compress(bytearray(data)), rounds)
        unpack_time, _ = timed(lambda: coder.decompress(packed), rounds)
        rows.append(("ZipNN", len(packed) / len(data), len(data) / pack_time, len(data) / unpack_time))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    rounds = parser.parse_args().rounds
    print("| weights | coder | ratio | pack, GB/s | unpack, GB/s |\n|---|---|--:|--:|--:|")
    for name, (dtype, data, base) in weights().items():
        for coder, ratio, packing, unpacking in [ours(dtype, data, base, rounds), *others(name, data, rounds)]:
            print(f"| {name} | {coder} | {ratio:.4f} | {packing / 1e9:.2f} | {unpacking / 1e9:.2f} |")


if __name__ == "__main__":
    main()
