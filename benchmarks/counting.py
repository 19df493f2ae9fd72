"""All values of a tensor counted by bit pattern, one core, as Markdown: `counting.py ROUNDS`. Processor seconds for 200
million weights, and how many times faster than numpy's bincount over as many 16-bit patterns."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from weighbridge.base.dtypes import BY_NAME, F32
from weighbridge.tensors import kernels
from weighbridge.tensors.counting import ValueCounts, is_half

WEIGHTS, MEASURED, RUN = 200_000_000, 1 << 25, 1 << 18
TYPES = ("BF16", "F16", "F32", "F8_E4M3", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS")
LIMIT, LIMITED = 0.5, ("BF16", "F16", "Q4_K")  # seconds


def stored(name: str) -> Any:
    """Weights as a quantizer has them: a normal distribution, repeated."""
    x = (np.random.default_rng(0).standard_normal(1 << 20) * 0.02).astype(np.float32)
    dtype = BY_NAME[name]
    data = np.empty(x.size // dtype.block * dtype.size, np.uint8)
    kernels.encode(dtype, x, data)
    return np.tile(data, MEASURED // x.size)


def counted(name: str, data: Any) -> ValueCounts:
    dtype = BY_NAME[name]
    counts = ValueCounts(dtype if is_half(dtype) else F32)
    step, values = RUN // dtype.block * dtype.size, np.empty(RUN, np.float32)
    for at in range(0, data.size, step):
        if dtype.name in ("BF16", "F16", "F32"):
            counts.add(data[at : at + step])
        else:
            kernels.decode(dtype, data[at : at + step], values)
            counts.add(values.view(np.uint8))
    return counts


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of the rounds, for `WEIGHTS` weights."""
    out = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        out.append(time.process_time() - began)
    return statistics.median(out) * WEIGHTS / MEASURED


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    patterns = stored("BF16").view(np.uint16)
    plain = seconds(lambda: np.bincount(patterns, minlength=1 << 16), rounds)
    print(
        "## counting\n\nAll values of 200 million weights counted by bit pattern, one core, seconds of the processor.\n"
    )
    print(f"| type | seconds | times numpy's bincount ({plain:.2f} s) |\n|---|--:|--:|")
    reached = True
    for name in TYPES:
        data = stored(name)
        found = seconds(lambda name=name, data=data: counted(name, data), rounds)  # type: ignore[misc]
        print(f"| {name} | {found:.2f} | {plain / found:.1f} |")
        reached &= found < LIMIT or name not in LIMITED
    print(f"\n- {'reached' if reached else '**missed**'}: {', '.join(LIMITED)} under {LIMIT} s\n")


if __name__ == "__main__":
    main()
