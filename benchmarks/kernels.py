"""The kernels beside llama.cpp's own, one core, as Markdown: `kernels.py ROUNDS`. Every type that is registered, on
every instruction-set level of this machine; contenders take turns in every round, a ratio is the median of the rounds'
own. Seconds are those that the processor spent, so that whatever else the machine does counts less.

Encoding reads normal numbers, decoding random bytes (all codes and signs alike likely, as in real weights). The limit
is what moving the floats costs: copying those that are encoded, filling those that are decoded.
"""

from __future__ import annotations

import ctypes as c
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.run import machine  # noqa: E402
from tests.kernels import ggml  # noqa: E402

from weighbridge.base.dtypes import BY_NAME, DType  # noqa: E402
from weighbridge.base.native import native  # noqa: E402

ENCODED, DECODED, COLUMNS = 1 << 18, 1 << 22, 4096  # weights; a row's
ENOUGH = 2e-3  # seconds of repetition of what is quick
WIDE, NARROW = "avx512", "avx2"

Seconds = list[float]
Contenders = Mapping[str, Callable[[], object]]  # llama.cpp first, then levels

# Times as fast as llama.cpp at least, with AVX-512 and with AVX2: without an importance matrix where the type has a
# search of its own, and with one.
SEARCHED = MappingProxyType(
    {
        **dict.fromkeys(("Q2_K", "Q4_K", "Q5_K"), (10, 7)),
        **dict.fromkeys(("Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS"), (8, 6)),
        **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (6, 4)),
    }
)
WEIGHTED = MappingProxyType({**SEARCHED, **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1"), (10, 7))})


def rounds_of(contenders: Contenders, rounds: int) -> dict[str, Seconds]:
    """Processor seconds of one call, round by round, after one that isn't counted."""
    out: dict[str, Seconds] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            calls, began = 0, time.process_time()
            while not calls or time.process_time() - began < ENOUGH:
                work()
                calls += 1
            if number:
                out[name].append((time.process_time() - began) / calls)
    return out


def on(level: str, work: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        native.set_level(level)
        work()

    return run


def encoders(dtype: DType, weighted: bool) -> Contenders:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 0.02, ENCODED).astype(np.float32)
    columns = rng.gamma(0.5, size=COLUMNS).astype(np.float32) if weighted else None
    out = np.empty(ENCODED // dtype.block * dtype.size, np.uint8)

    def ours() -> object:
        if columns is None:
            return native.encode(dtype.name, x, out)
        return native.encode_weighted(dtype.name, x, columns, out)

    return {"llama.cpp": lambda: ggml.quantize(dtype, x, columns), **{v: on(v, ours) for v in native.levels()}}


def decoders(dtype: DType) -> Contenders:
    data = np.random.default_rng(3).integers(0, 256, DECODED // dtype.block * dtype.size, np.uint8)
    out = np.empty(DECODED, np.float32)
    theirs = getattr(ggml.library(), f"dequantize_row_{dtype.name.lower().replace('_k', '_K')}")
    theirs.argtypes, theirs.restype = [c.c_void_p, c.c_void_p, c.c_int64], None

    def reference() -> object:
        return theirs(data.ctypes.data, out.ctypes.data, DECODED)

    return {"llama.cpp": reference, **{v: on(v, lambda: native.decode(dtype.name, data, out)) for v in native.levels()}}


def limit(count: int, copied: bool) -> Contenders:
    source, target = np.ones(count, np.float32), np.ones(count, np.float32)
    return {"limit": (lambda: np.copyto(target, source)) if copied else (lambda: target.fill(1))}


def median_ratio(measured: Mapping[str, Seconds], level: str) -> float:
    pairs = zip(measured["llama.cpp"], measured[level], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


def table(title: str, rows: Mapping[str, Mapping[str, Seconds]], count: int, bound: float) -> list[str]:
    """Nanoseconds per weight and times as fast as llama.cpp."""
    levels = native.levels()
    lines = [f"### {title}", "", f"| | llama.cpp | {' | '.join(levels)} |", "|---|" + "--:|" * (1 + len(levels))]
    for name, measured in rows.items():
        nanoseconds = {k: statistics.median(v) / count * 1e9 for k, v in measured.items()}
        ours = (f"{nanoseconds[v]:.3g} ({median_ratio(measured, v):.1f}x)" for v in levels)
        lines.append(f"| {name} | {nanoseconds['llama.cpp']:.3g} | {' | '.join(ours)} |")
    return [*lines, "", f"Limit: {bound:.2g} ns a weight.", ""]


def judged(what: str, missed: list[str]) -> str:
    return f"- **missed**: {what}: {', '.join(missed)}" if missed else f"- reached: {what}"


def short(rows: Mapping[str, Mapping[str, Seconds]], targets: Mapping[str, tuple[float, float]]) -> list[str]:
    """The types that miss their targets, and by what."""
    out = []
    for name, pair in targets.items():
        for level, least in zip((WIDE, NARROW), pair, strict=True):
            if name in rows and level in rows[name] and (ratio := median_ratio(rows[name], level)) < least:
                out.append(f"{name} {level} {ratio:.1f}x of {least:g}x")
    return out


def beyond(rows: Mapping[str, Mapping[str, Seconds]], count: int, bound: float) -> list[str]:
    """Types that cost more than twice what moving the floats does."""
    cost = {
        f"{name} {level}": statistics.median(m[level]) / count * 1e9
        for name, m in rows.items()
        for level in (WIDE, NARROW)
        if level in m
    }
    return [f"{name} {ns:.2g} ns" for name, ns in cost.items() if ns > 2 * bound]


def main() -> None:
    rounds = int(sys.argv[1])
    blocks = [name for name in native.formats() if BY_NAME[name].block > 1]
    plain = {n: rounds_of(encoders(BY_NAME[n], False), rounds) for n in blocks if n in native.formats("encode")}
    weighted = {n: rounds_of(encoders(BY_NAME[n], True), rounds) for n in blocks if n in native.formats("weighted")}
    decoded = {n: rounds_of(decoders(BY_NAME[n]), rounds) for n in blocks}
    copy, fill = (
        statistics.median(rounds_of(limit(n, copied), rounds)["limit"]) / n * 1e9
        for n, copied in ((ENCODED, True), (DECODED, False))
    )
    simple = {n: m for n, m in plain.items() if n not in SEARCHED}
    codebook = [n for n in decoded if n[:3] in ("IQ1", "IQ2", "IQ3")]
    slower = short(decoded, dict.fromkeys(decoded, (1, 1))) + short(simple, dict.fromkeys(simple, (1, 1)))
    print(f"## kernels\n\nMeasured on {date.today()}: {machine()}.\n")
    print("One core; nanoseconds a weight and, in brackets, how many times as fast as llama.cpp's own.\n")
    print("\n".join(table("encode", plain, ENCODED, copy)))
    print("\n".join(table("encode with an importance matrix", weighted, ENCODED, copy)))
    print("\n".join(table("decode", decoded, DECODED, fill)))
    print(judged("searched types encode 6 to 10 times as fast (AVX2: 4 to 7)", short(plain, SEARCHED)))
    print(judged("the same with an importance matrix", short(weighted, WEIGHTED)))
    print(judged("the others encode at half the speed of a copy", beyond(simple, ENCODED, copy)))
    print(judged("IQ1, IQ2, IQ3 decode 4 times as fast", short(decoded, dict.fromkeys(codebook, (4, 4)))))
    others = {n: m for n, m in decoded.items() if n not in codebook}
    print(judged("the others decode at half the speed of a fill", beyond(others, DECODED, fill)))
    print(judged("with AVX2 and AVX-512 nothing is slower than llama.cpp", slower))


if __name__ == "__main__":
    main()
