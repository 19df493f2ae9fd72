"""What an unpickler of CPython would import from bytes, `wb scan` never calls data.

A sandboxed child gives each input to the C and to the Python unpickler. An audit hook stops every import that the
pickle asks for before it happens, and every file, process and socket; limits bound memory and time. Where a name
outside the scanner's table was asked for, of a package that could exist, the parent's scan must be loud.

    python tests/fuzz/differential_pickle.py --seconds 60 --seed 1
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.reports.scan import vectors as v
from tests.unpickle.test_lenient import _PIECES

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import ScanVerdict
from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES

_BATCH = 100
_FORBIDDEN = ("open", "os.", "subprocess.", "socket.", "ctypes.", "exec", "compile", "shutil.", "pty.")
_NAMES = (
    b"cos\nsystem\n",
    b"cposix\nsystem\n",
    b"\x8c\x02os\x8c\x06system\x93",
    b"(S'x'\nios\nsystem\n",
    b"cthis\nx\n",
)


class _StoppedError(Exception):
    pass


def _child(inputs: list[bytes], out: int) -> None:
    """Write one byte an input: whether an unpickler asks for a name that isn't in the table."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (3, 3))
    asked: list[bool] = [False]
    active = [False]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not active[0]:
            return
        if event == "pickle.find_class" and args not in CALLS and args not in VALUES:
            asked[0] |= str(args[0]).partition(".")[0].isidentifier()
            raise _StoppedError
        if event.startswith(_FORBIDDEN):
            raise _StoppedError

    def late(*_: Any) -> None:
        raise _StoppedError

    signal.signal(signal.SIGALRM, late)
    sys.addaudithook(hook)
    for data in inputs:
        asked[0] = False
        for unpickler in (pickle.Unpickler, pickle._Unpickler):
            active[0] = True
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                unpickler(io.BytesIO(data)).load()
            except Exception:
                pass
            finally:
                active[0] = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(out, b"1" if asked[0] else b"0")


def acts(inputs: list[bytes]) -> list[bool]:
    """Whether each input acts; False for those behind one that killed the child."""
    back, out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _child(inputs, out)
        finally:
            os._exit(0)
    os.close(out)
    with os.fdopen(back, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return [i < len(answer) and answer[i : i + 1] == b"1" for i in range(len(inputs))]


def inputs(rng: random.Random, seeds: list[bytes]) -> list[bytes]:
    return [_mutated(rng, seeds) if rng.random() < 0.5 else _made(rng) for _ in range(_BATCH)]


def _made(rng: random.Random) -> bytes:
    """Opcodes in a row, lax numbers among them, with a name somewhere."""
    parts = rng.choices(_PIECES, k=rng.randint(0, 10))
    parts.insert(rng.randint(0, len(parts)), rng.choice(_NAMES))
    return b"".join(parts) + b"."


def _mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    if data[:1] == b"\x80" and rng.random() < 0.5:
        del data[:2]
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 2)] = (
            rng.choice(_PIECES) if rng.random() < 0.5 else rng.randbytes(rng.randint(0, 2))
        )
    return bytes(data)


def run(seconds: float, seed: int) -> tuple[int, int, list[bytes]]:
    """Executions, those that act, and those of these that the scan calls data."""
    rng = random.Random(seed)
    seeds = [c.data for c in v.PICKLES if len(c.data) < 1000]
    until, count, acting = time.monotonic() + seconds, 0, 0
    silent: list[bytes] = []
    while time.monotonic() < until:
        batch = inputs(rng, seeds)
        count += len(batch)
        for data, acted in zip(batch, acts(batch), strict=True):
            if acted:
                acting += 1
                verdict = scan_source(BytesSource(data, "pytorch_model.bin"), "pytorch_model.bin").verdict
                if verdict in (ScanVerdict.DATA_ONLY, ScanVerdict.NOT_SCANNED):
                    silent.append(data)
    return count, acting, silent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    count, acting, silent = run(options.seconds, options.seed)
    print(f"{count} inputs, {acting} that act, {len(silent)} of them called data")
    for data in silent[:10]:
        print(repr(data))
    return bool(silent)


if __name__ == "__main__":
    sys.exit(main())
