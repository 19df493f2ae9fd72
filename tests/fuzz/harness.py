"""A small mutation fuzzer: seeds are damaged at random and handed to a parser that must keep its invariant.

`target(data)` holds the invariant of one parser and raises AssertionError where it breaks. `run` adds what is true of
every parser of ours: it returns or raises one of `allowed` (no other kind of exception), within `SLOW` seconds of CPU
time (so a busy machine makes no difference), and its
peak of Python memory is bounded by the input (`budget`). Runs are reproducible: same seeds, same `seed`, same inputs.

A harness is a file `fuzz_<parser>.py` beside this one: its docstring's first line states the invariant, `target(data)`
holds it, `seeds()` gives good files to start from, and it begins with `import harness` and ends with
`sys.exit(harness.main(target, seeds))`. A harness that iterates over a registry sets `context = all_toys`, so that
plug-ins are fuzzed too. `test_fuzz.py` runs each for a few hundred inputs, this file all of them:

    python tests/fuzz/harness.py --seconds 60
    python tests/fuzz/fuzz_npz.py --seconds 5 --seed 1
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import random
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
# A harness runs as a file of its own, from any folder: make `tests.` and this module's name importable.
for _folder in (HERE, HERE.parents[1]):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError  # noqa: E402

Target = Callable[[bytes], object]
Seeds = Sequence[bytes] | Callable[[], Sequence[bytes]]
Context = Callable[[], AbstractContextManager[None]]
Mutator = Callable[[random.Random, bytearray], None]

ALLOWED: Final = (FormatError, UnsupportedError, RefusedError)
SLOW: Final = 2.0
# Numbers at which counts, lengths and offsets go wrong: signs, powers, wrap-arounds.
EDGES: Final = (
    *(0, 1, 7, 8, 127, 128, 255, 256, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1),
)
# What text headers trip over: JSON and Python literals.
TOKENS: Final = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"1e999"),
    *(b"-0", b"-1", b"0.0", b"18446744073709551615", b"9223372036854775808", b"\x00", b"\xff", b"\xef\xbb\xbf"),
    *(b"{}", b"[]", b'""', b" ", b"\n", b"(", b")", b"'", b"__metadata__", b"dtype", b"shape", b"data_offsets"),
)


class Broken(AssertionError):
    """The invariant does not hold; `data` is the input that shows it."""

    def __init__(self, why: str, data: bytes) -> None:
        super().__init__(f"{why}\n  input ({len(data)} bytes): {data[:400].hex()}{'...' if len(data) > 400 else ''}")
        self.data = data


def budget(length: int) -> int:
    """How much Python memory a parser may hold at its peak for `length` bytes of input: linear, plus a fixed floor."""
    return (8 << 20) + 256 * length


def _place(rng: random.Random, data: bytearray) -> int:
    # Headers are at the front, zip directories at the end; the middle is mostly tensor data.
    kind = rng.random()
    if kind < 0.5:
        return rng.randrange(min(len(data), 256) + 1)
    return max(len(data) - rng.randrange(128), 0) if kind < 0.7 else rng.randrange(len(data) + 1)


def _flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[min(_place(rng, data), len(data) - 1)] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray) -> None:
    if data:
        data[min(_place(rng, data), len(data) - 1)] = rng.choice((0, 1, 32, 48, 57, 127, 128, 255, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray) -> None:
    at, size = _place(rng, data), rng.choice((2, 4, 8))
    value = (rng.choice(EDGES) + rng.choice((0, 0, 1, -1))) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "little", "big")))


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _delete(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    del data[at : at + rng.choice((1, 2, 8, rng.randrange(64) + 1))]


def _insert(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 8, 64)))


def _token(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at : at + rng.choice((0, 0, 1, 4))] = rng.choice(TOKENS)


def _repeat(rng: random.Random, data: bytearray) -> None:
    at, size = _place(rng, data), rng.randrange(48) + 1
    data[at:at] = data[at : at + size] * rng.choice((1, 2, 8))


def _move(rng: random.Random, data: bytearray) -> None:
    size = rng.randrange(48) + 1
    source, to = _place(rng, data), _place(rng, data)
    data[to : to + size] = data[source : source + size]


MUTATORS: Final[Sequence[Mutator]] = (
    *(_flip, _byte, _number, _number, _cut, _delete),
    *(_insert, _token, _token, _repeat, _move),
)


# What a JSON value may be that a reader didn't expect.
ODD: Final[Sequence[Any]] = (
    *(None, True, False, 0, 1, -1, 3, 70_000, 2**31 - 1, 2**31, 2**63, 2**64, 0.5, 1e308, -0.0),
    *("", "x", "auto", "\u0000", [], [0], ["x"], [[]], [None], [1, 2, 3], {}, {"": 0}, {"x": []}),
)


def odd(document: Any, count: int) -> list[bytes]:
    """A JSON document `count` times, each with one to three of its values odd, or gone, or under another's key."""
    out = []
    for number in range(count):
        rng, changed = random.Random(number), copy.deepcopy(document)
        for _ in range(rng.choice((1, 1, 2, 3))):
            _make_odd(rng, changed)
        out.append(json.dumps(changed, separators=(",", ":")).encode())
    return out


def _make_odd(rng: random.Random, at: Any) -> None:
    """One value somewhere inside, the deeper ones as likely as the others."""
    places = [at]
    for place in places:
        places += [
            v for v in (place.values() if isinstance(place, dict) else place) if isinstance(v, dict | list) and v
        ]
    at = rng.choice(places)
    if not at:
        return
    key = rng.choice([*at] if isinstance(at, dict) else range(len(at)))
    kind = rng.random()
    if kind < 0.15:
        del at[key]
    elif kind < 0.25:
        at[key] = copy.deepcopy(at[rng.choice([*at] if isinstance(at, dict) else range(len(at)))])
    else:
        at[key] = copy.deepcopy(rng.choice(ODD))


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One seed with one to six wounds; now and then the front of one and the back of another."""
    data = bytearray(rng.choice(seeds))
    if rng.random() < 0.05:
        other = rng.choice(seeds)
        data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(MUTATORS)(rng, data)
    return bytes(data)


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """TimeoutError inside the block when it takes longer; only the main thread of a Unix can interrupt itself."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def bite(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, bite)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(target: Target, data: bytes, allowed: tuple[type[BaseException], ...] = ALLOWED) -> None:
    """Hand `data` to `target` once; Broken unless it keeps every promise. tracemalloc must be running."""
    tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.process_time()
    try:
        with _watchdog(SLOW * 30):  # a busy machine costs a factor; the verdict below, in CPU time, is the strict one
            target(data)
    except allowed:
        pass
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}", data) from error
    taken, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1] - before
    if taken > SLOW:
        raise Broken(f"took {taken:.1f} s", data)
    if peak > budget(len(data)):
        raise Broken(f"held {peak} bytes at its peak, more than {budget(len(data))}", data)


def run(
    target: Target,
    seeds: Seeds,
    seconds: float = 0.0,
    *,
    iterations: int = 0,
    seed: int = 0,
    allowed: tuple[type[BaseException], ...] = ALLOWED,
    context: Context = nullcontext,
) -> int:
    """Fuzz for `seconds` or `iterations`, whichever is later; the number of inputs tried. Broken at the first failure.

    The seeds themselves come first, whole and then cut at a few places, so even a short run sees those. `context` is
    entered meanwhile.
    """
    with context():
        given = seeds() if callable(seeds) else seeds
        return _run(target, given, seconds, iterations, seed, allowed)


def _run(
    target: Target, seeds: Sequence[bytes], seconds: float, iterations: int, seed: int,
    allowed: tuple[type[BaseException], ...],
) -> int:  # fmt: skip
    rng, count, end = random.Random(seed), 0, time.monotonic() + seconds
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start(1)
    try:
        for data in seeds:
            for size in (len(data), 0, 1, len(data) // 2, max(len(data) - 1, 0)):
                check(target, data[:size], allowed)
                count += 1
        while count < iterations or time.monotonic() < end:
            check(target, mutated(rng, seeds), allowed)
            count += 1
    finally:
        if not was_tracing:
            tracemalloc.stop()
    return count


def run_module(module: ModuleType, seconds: float = 0.0, *, iterations: int = 0, seed: int = 0) -> int:
    """`run` a harness file, in its `context` if it has one."""
    context = getattr(module, "context", nullcontext)
    return run(module.target, module.seeds, seconds, iterations=iterations, seed=seed, context=context)


def harnesses() -> list[Path]:
    return sorted(HERE.glob("fuzz_*.py"))


def load(path: Path) -> ModuleType:
    """The module of a harness file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long, in all")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other inputs")
    parser.add_argument("--save", type=Path, help="write the input that breaks the invariant here")
    return parser


def _report(name: str, save: Path | None, fuzz: Callable[[], int]) -> int:
    try:
        print(f"{name}: {fuzz()} inputs, invariant holds", flush=True)
    except Broken as broken:
        if save:
            save.write_bytes(broken.data)
        print(f"{name}: BROKEN: {broken}", file=sys.stderr)
        return 1
    return 0


def main(target: Target, seeds: Seeds, argv: Sequence[str] | None = None, *, context: Context = nullcontext) -> int:
    """The command line of one harness: random inputs for a while, or files to try again. 1 where it broke."""
    parser = _options("fuzz one parser")
    parser.add_argument("inputs", nargs="*", type=Path, help="try these files instead of random ones")
    args = parser.parse_args(argv)

    def fuzz() -> int:
        if args.inputs:
            return run(target, [p.read_bytes() for p in args.inputs], context=context)
        return run(target, seeds, args.seconds, seed=args.seed, context=context)

    return _report(target.__module__, args.save, fuzz)


def every(argv: Sequence[str] | None = None) -> int:
    """All harnesses of this folder, each for its share of the time."""
    args = _options("fuzz every parser").parse_args(argv)
    worst, share = 0, args.seconds / max(len(harnesses()), 1)
    for path in harnesses():
        module = load(path)
        worst |= _report(path.stem, args.save, lambda m=module: run_module(m, share, seed=args.seed))  # type: ignore[misc]
    return worst


if __name__ == "__main__":
    sys.exit(load(Path(__file__).resolve()).every())
