"""Pickles for the fuzzer: made by the grammar of the opcodes, with numbers, text and memo places in every spelling that
some unpickler takes, and mutated by opcodes and by bytes."""

from __future__ import annotations

import contextlib
import itertools
import pickletools
import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES

#: Names that do harm, or that no table has, in every spelling of a name.
PAYLOADS: Final = (
    ("os", "system"),
    ("posix", "system"),
    ("builtins", "eval"),
    ("__builtin__", "eval"),
    ("this", "x"),
    ("no_such_package", "Thing"),
    ("no-such-file", "x"),
    ("no such", "x"),
    ("torch", "load"),
    ("torch.hub", "load"),
    ("collections", "_sys.modules"),
    ("numpy", "load"),
    ("joblib", "load"),
    ("os", ""),
    ("b", "b"),
    ("torch._utils", "x"),
    ("subprocess", "Popen"),
    ("\u00e9t\u00e9", "x"),
    ("os.path", "os.system"),
    ("\u1d52s", "system"),
    ("nt", "system"),
)
_ALLOWED: Final = sorted(CALLS) + sorted(VALUES)
_CODES: Final = bytes(ord(o.code) for o in pickletools.opcodes)
_NUMBERS: Final = (
    b"0",
    b"1",
    b"01",
    b"00",
    b"-1",
    b"7",
    b"0x1",
    b"0o7",
    b"010",
    b"1_0",
    b" 1",
    b"1 ",
    b"+1",
    b"1\0z",
    b"",
    b"1.",
    b"\x0c1",
    b"1L",
    b"1e3",
    b"nan",
    b"inf",
    b"1_0.0",
    b"\xb2",
    b"256",
    b"99999999999999999999",
    "\u0661".encode(),
    b"0x",
    b"- 1",
    b"\r1",
    b"1\r",
    b"0b1",
    b"01L",
    b"True",
)
_HIGH: Final = (b"\0\0", b"\xff\xff")
_TEXTS: Final = (
    b"",
    b"a",
    b"os",
    b"system",
    b"\xff",
    b"\xc3\xa9",
    b"\0",
    b"latin1",
    b"utf-8",
    b"_metadata",
    b"__class__",
    b"storage",
    b"cpu",
    b"0",
    b"rot13",
    b"f4",
    b"O8",
    b"<",
    b"|",
    b"V8",
    b"\xed\xa0\x80",
)

Op = bytes


def _quoted(raw: bytes) -> bytes:
    return b"S'" + raw.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"'", b"\\'") + b"'\n"


_TEXT_FORMS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    _quoted,
    lambda raw: b"V" + raw.replace(b"\n", b"") + b"\n",
    lambda raw: b"X" + struct.pack("<I", len(raw)) + raw,
    lambda raw: b"\x8c" + bytes([len(raw)]) + raw,
    lambda raw: b"\x8d" + struct.pack("<Q", len(raw)) + raw,
    lambda raw: b"U" + bytes([len(raw)]) + raw,
    lambda raw: b"T" + struct.pack("<i", len(raw)) + raw,
    lambda raw: b"C" + bytes([len(raw)]) + raw,
    lambda raw: b"B" + struct.pack("<I", len(raw)) + raw,
    lambda raw: b"\x8e" + struct.pack("<Q", len(raw)) + raw,
    lambda raw: b"\x96" + struct.pack("<Q", len(raw)) + raw,
)
_NAME_TEXTS: Final = (_TEXT_FORMS[0], _TEXT_FORMS[1], _TEXT_FORMS[2], _TEXT_FORMS[3])
_STEPS: Final = (b"(", b"0", b"1", b"2", b"\x94", b"q\0", b"h\0", b"p1\n", b"g1\n", b"r\1\0\0\0", b"j\1\0\0\0",
                 b"\x80\2", b"\x80\4", b"a", b"e", b"s", b"u", b"b", b"t", b"\x85", b"\x86", b"R", b"\x90",
                 b"r\0\0\1\0", b"p99999\n")  # fmt: skip


class Grammar:
    """Pickles by one source of chance. `seeds`: pickles that are mutated."""

    def __init__(self, rng: random.Random, seeds: Sequence[bytes]) -> None:
        self.rng, self.seeds = rng, [ops(s) for s in seeds]

    def pickle(self) -> bytes:
        """One pickle."""
        roll = self.rng.random()
        if roll < 0.45:
            code = self.program()
        elif roll < 0.9:
            code = list(self.rng.choice(self.seeds))
        else:
            one, two = self.rng.choice(self.seeds), self.rng.choice(self.seeds)
            code = one[: self.rng.randint(0, len(one))] + two[self.rng.randint(0, len(two)) :]
        for _ in range(int(self.rng.expovariate(0.6))):
            self.mutate(code)
        return self.damage(b"".join(code))

    def program(self) -> list[Op]:
        """Opcodes that make something, an attack among them most of the time."""
        rng = self.rng
        code: list[Op] = []
        for _ in range(rng.randint(0, 5)):
            code += rng.choice((self.value, self.noise, self.value))(2)
            if rng.random() < 0.6:
                code.append(b"0")
        if rng.random() < 0.85:
            code += self.attack()
        code += self.noise(1) if rng.random() < 0.2 else []
        if rng.random() < 0.5:
            code.insert(0, b"\x80" + bytes([rng.choice((0, 1, 2, 2, 3, 4, 4, 5))]))
        if rng.random() < 0.15:
            code.insert(rng.randint(0, len(code)), self.frame(code))
        return [*code, b"."]

    # ---- pieces

    def number(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice((b"I", b"L", b"F", b"p", b"g")) + rng.choice(_NUMBERS) + b"\n"
        forms: tuple[Callable[[], bytes], ...] = (
            lambda: b"K" + rng.randbytes(1),
            lambda: b"M" + rng.randbytes(2),
            lambda: b"J" + rng.randbytes(2) + rng.choice(_HIGH),
            lambda: b"\x8a\x01" + rng.randbytes(1),
            lambda: b"\x8a\x00",
            lambda: b"\x8b\x01\0\0\0" + rng.randbytes(1),
            lambda: b"\x8b\xff\xff\xff\xff",
            lambda: b"G" + rng.randbytes(8),
            lambda: b"I01\n",
            lambda: b"\x88",
        )
        return rng.choice(forms)()

    def text(self, raw: bytes | None = None) -> bytes:
        raw = self.rng.choice(_TEXTS) if raw is None else raw
        return self.rng.choice(_TEXT_FORMS)(raw)

    def name(self, module: str, name: str) -> list[Op]:
        """A name in one of the ways to write it."""
        m, n, rng = module.encode(), name.encode(), self.rng
        way = rng.random()
        if way < 0.45:
            return [b"c" + m + b"\n" + n + b"\n"]
        if way < 0.55:
            return [b"c" + m + b"\n" + n]  # the line has no end, unless something follows
        texts = [rng.choice(_NAME_TEXTS)(t) for t in (m, n)]
        if way < 0.8:
            return [*texts, b"\x93"]
        key = bytes([rng.randint(0, 3)])
        return [texts[0], b"q" + key, b"0", texts[1], b"\x94", b"0", b"h" + key, texts[1], b"\x93"]

    def attack(self) -> list[Op]:
        """Something outside the table is named, and mostly called."""
        rng = self.rng
        name = self.name(*rng.choice(PAYLOADS))
        arguments = rng.choice(([b"(", self.text(), b"t"], [b")"], [b"]"], [self.text(), b"\x85"], [b"N"]))
        match rng.randrange(10):
            case 0 | 1:
                return [*name, *arguments, b"R"]
            case 2:
                return [*name, *arguments, b"\x81"]
            case 3:
                return [b"(", *name, self.text(), b"o"]
            case 4 if name[0][:1] == b"c":
                return [b"(", self.text(), b"i" + name[0][1:]]
            case 5:
                return [*name, *arguments, b"}", b"\x92"]
            case 6:
                return [*name, *self.value(1), b"b"]
            case 7:
                return [*name, b"0"]
            case 8:
                return [b"N", *name, b"R"]
        return name

    def value(self, depth: int) -> list[Op]:
        rng = self.rng
        if depth <= 0 or rng.random() < 0.4:
            return [rng.choice((self.number(), self.text(), b"N", b")", b"]", b"}", b"\x8f"))]
        match rng.randrange(14):
            case 0 | 1:
                return [b"(", *self.several(depth, 3), rng.choice((b"t", b"l", b"d", b"\x91"))]
            case 2:
                return [b"]", b"(", *self.several(depth, 3), b"e"]
            case 3:
                return [b"}", *self.value(depth - 1), *self.value(depth - 1), b"s"]
            case 4:
                return [b"\x8f", b"(", *self.several(depth, 3), b"\x90"]
            case 5:
                return [*self.value(depth - 1), *self.value(depth - 1), b"\x86"]
            case 6:
                return [*self.value(0), b"\x85"]
            case 7:
                return [*self.value(0), rng.choice((b"Q", b"\x98"))]
            case 8:
                return [b"P" + rng.choice(_TEXTS).replace(b"\n", b"") + b"\n"]
            case 9:
                return [b"\x97"]
        return self.allowed(depth)

    def several(self, depth: int, most: int) -> list[Op]:
        return [op for _ in range(self.rng.randint(0, most)) for op in self.value(depth - 1)]

    def allowed(self, depth: int) -> list[Op]:
        """A call of something in the table, with some arguments or those of another one."""
        rng = self.rng
        name = self.name(*rng.choice(_ALLOWED))
        inner = self.several(depth, 4)
        match rng.randrange(4):
            case 0:
                made = name
            case 1:
                made = [b"(", *name, *inner, b"o"]
            case 2:
                made = [*name, b"(", *inner, b"t", b"\x81"]
            case _:
                made = [*name, b"(", *inner, b"t", b"R"]
        if rng.random() < 0.4:
            made += [*self.value(depth - 1), rng.choice((b"b", b"a"))]
        return made

    def noise(self, depth: int) -> list[Op]:
        roll = self.rng.random()
        return [
            self.rng.choice(_STEPS) if roll < 0.8 else self.number() if roll < 0.9 else bytes([self.rng.choice(_CODES)])
        ]

    def frame(self, code: list[Op]) -> bytes:
        size = len(b"".join(code)) + self.rng.choice((0, 0, 1, -1, 2, 64, -8))
        return b"\x95" + struct.pack("<Q", max(size, 0))

    # ---- mutations

    def mutate(self, code: list[Op]) -> None:
        """One change of the opcodes, in place."""
        rng, at = self.rng, self.rng.randint(0, len(code))
        roll = rng.random()
        if roll < 0.35 or not code:
            code[at:at] = rng.choice((self.noise, self.value, lambda depth: self.attack()))(1)
        elif roll < 0.5:
            del code[at : at + rng.randint(1, 2)]
        elif roll < 0.6:
            code[at:at] = code[rng.randint(0, len(code)) :][: rng.randint(1, 4)]
        elif roll < 0.7 and code[0][:1] == b"\x80":
            code[0] = rng.choice((b"", b"\x80" + bytes([rng.randint(0, 5)])))
        elif roll < 0.8:
            code[at : at + 1] = [self.number()]
        elif roll < 0.9:
            code[at : at + 1] = [self.text()]
        else:
            code.insert(at, self.frame(code[at:]))

    def damage(self, data: bytes) -> bytes:
        """A few bytes changed, in a few inputs."""
        rng = self.rng
        if rng.random() > 0.3 or not data:
            return data
        out = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            at = rng.randint(0, len(out))
            out[at : at + rng.randint(0, 2)] = rng.choice(
                (rng.randbytes(rng.randint(0, 2)), bytes([rng.choice(_CODES)]))
            )
        return bytes(out)


def ops(data: bytes) -> list[Op]:
    """A pickle cut at its opcodes, as far as the disassembler follows it."""
    at: list[int] = []
    with contextlib.suppress(Exception):
        at += [place for *_, place in pickletools.genops(data) if place is not None]
    bounds = [*at, len(data)] if at else [0, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]
