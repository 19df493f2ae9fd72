"""Pickles that try the table of what is allowed: every callable in it, really executed, with arguments that no writer
gives it. Each argument, class and state comes from the whole table, so that a new row is tried with all others."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Final

from tests.reports.scan import vectors as v
from tests.reports.scan.test_allowed import SAMPLES, arguments

from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES

Made = tuple[bytes, str]
_CALLABLE: Final = sorted(CALLS)
_NAMED: Final = sorted({*CALLS, *VALUES})
_TEXTS: Final = (
    "", "victim", "/etc/passwd", "r+", "w+", "O", "O8", "f8", "V8", "<", "|", "cpu", "b", "latin1", "zip", "1",
    "1e999999", "__class__", "data", "shape", "strides", "dtype", "_metadata", "subclass", "torch.sparse_coo", "\0",
)  # fmt: skip
_NUMBERS: Final = (
    b"K\0", b"K\1", b"K\3", b"K\xff", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x06\0\0\0\0\0\1",
    b"\x8a\x08\0\0\0\0\0\0\0\x80", b"G?\xf0\0\0\0\0\0\0", b"N", b"\x88", b"\x89",
)  # fmt: skip
_STATES: Final = sorted({row.state for row in CALLS.values() if row.state})


class _Program:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.kept = rng, 0

    def text(self) -> bytes:
        return v.s(self.rng.choice(_TEXTS))

    def keep(self, code: bytes) -> bytes:
        """A value that later opcodes come back to."""
        if self.rng.random() > 0.3 or self.kept > 200:
            return code
        self.kept += 1
        return code + b"q" + bytes([self.kept - 1])

    def value(self, depth: int) -> bytes:
        rng = self.rng
        roll = rng.random()
        if self.kept and roll < 0.1:
            return b"h" + bytes([rng.randrange(self.kept)])
        if depth <= 0 or roll < 0.35:
            return rng.choice(
                (lambda: rng.choice(_NUMBERS), self.text, lambda: v.g(*rng.choice(_NAMED)), lambda: b")")
            )()
        if roll < 0.45:
            return rng.choice(list(SAMPLES.values()))[0]
        if roll < 0.7:
            items = b"".join(self.value(depth - 1) for _ in range(rng.randint(0, 3)))
            form = rng.choice((b"t", b"l"))
            return self.keep(b"(" + items + form if form == b"t" else b"](" + items + b"e")
        if roll < 0.8:
            pairs = b"".join(self.text() + self.value(depth - 1) for _ in range(rng.randint(0, 3)))
            return self.keep(b"}(" + pairs + b"u")
        if roll < 0.85:
            data = rng.randbytes(rng.choice((0, 1, 8, 64)))
            return b"C" + bytes([len(data)]) + data
        return self.call(depth - 1)

    def call(self, depth: int) -> bytes:
        """A call of what may be called, mostly with arguments that nearly fit."""
        rng = self.rng
        path = rng.choice(_CALLABLE if rng.random() < 0.9 else _NAMED)
        row = CALLS.get(path)
        args = list(arguments(path, row)) if row is not None and rng.random() < 0.85 else []
        for _ in range(rng.choice((0, 1, 1, 2))):
            if args and rng.random() < 0.8:
                args[rng.randrange(len(args))] = self.value(depth)
            else:
                args.insert(rng.randint(0, len(args)), self.value(depth))
        if args and rng.random() < 0.1:
            del args[rng.randrange(len(args))]
        inside, name = b"".join(args), v.g(*path)
        made = rng.choice((
            name + b"(" + inside + b"tR", name + b"(" + inside + b"tR", name + b"(" + inside + b"t\x81",
            b"(" + name + inside + b"o", b"(" + inside + b"i" + name[1:], name + b"(" + inside + b"t}\x92",
        ))  # fmt: skip
        return self.keep(made) + self.tail(depth, row.state if row else "")

    def tail(self, depth: int, state: str) -> bytes:
        """What is done to what was made."""
        rng, out = self.rng, b""
        while rng.random() < 0.45:
            out += rng.choice((
                lambda: (SAMPLES[state or rng.choice(_STATES)][0] if rng.random() < 0.6 else self.value(depth)) + b"b",
                lambda: self.value(depth) + b"a",
                lambda: b"(" + self.value(depth) + self.value(depth) + b"e",
                lambda: rng.choice(_NUMBERS) + rng.choice(_NUMBERS) + b"s",
                lambda: b"(" + rng.choice(_NUMBERS) + self.value(depth) + b"u",
                lambda: b"(" + rng.choice(_NUMBERS) + b"\x90",
            ))()  # fmt: skip
        return out

    def later(self) -> bytes:
        """A kept value that is changed after it was used."""
        if not self.kept:
            return b""
        return b"h" + bytes([self.rng.randrange(self.kept)]) + self.tail(1, "") + b"0"

    def pickle(self) -> bytes:
        rng = self.rng
        parts = []
        for _ in range(rng.randint(1, 3)):
            parts += [self.call(2), b"0", *(self.later() for _ in range(rng.randint(0, 2)))]
        return bytes((0x80, rng.choice((2, 2, 3, 4)))) + b"".join(parts) + self.value(2) + b"."


def programs(rng: random.Random) -> Iterator[Made]:
    """Each a pickle, or one in the numbers of a joblib array."""
    from tests.reports.scan.test_policy import joblib

    while True:
        data = _Program(rng).pickle()
        if rng.random() < 0.1 and len(data) < 60_000:
            yield joblib(rng.choice((b"0", b"", b"N")) + data[2:]), "m.joblib"
        else:
            yield data, rng.choice(("pytorch_model.bin", "data.pkl", "m.pt", "m.joblib"))


def offsets(rng: random.Random) -> Iterator[Made]:
    """A file of one kind in a file of another one, where a loader may look for it."""
    from tests.reports.scan.file_vectors import tarred
    from tests.reports.scan.test_offsets import GUESTS, HOSTS

    while True:
        make, at = rng.choice(list(GUESTS.values()))
        offset = rng.choice((*at, rng.randrange(8, 9000), 512 << rng.randrange(9)))
        guest = make(offset) if rng.random() < 0.9 else tarred({"x/data.pkl": v.EVIL})
        data = rng.choice(list(HOSTS.values()))(offset, guest)
        if data is None:
            continue
        if rng.random() < 0.2:
            data = (
                data[: rng.randrange(len(data))] + rng.randbytes(rng.randint(0, 2)) + data[rng.randrange(len(data)) :]
            )
        if rng.random() < 0.1:
            data = struct.pack("<Q", len(data)) + data
        yield data, rng.choice(("model.h5", "model.pkl", "model.keras", "model.gguf", "model.safetensors", "m"))
