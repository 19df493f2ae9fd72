"""Files that hold pickles, for the fuzzer: zips, tars, arrays and compressed streams, with what some reader forgives
changed in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tests.fuzz.differential.pickles import Grammar
from tests.reports.scan import vectors as v

Made = tuple[bytes, str]
_EVIL: Final = (v.EVIL, v.EVIL0, b"cno_such_package\nThing\n(tR.", b"I0x1\n0cos\nsystem\n.")


def _inner(rng: random.Random, grammar: Grammar) -> bytes:
    return rng.choice(_EVIL) if rng.random() < 0.5 else grammar.pickle()


# ---- zip


def zipped(rng: random.Random, members: Sequence[tuple[str, bytes]]) -> bytes:
    """A zip whose fields some reader doesn't check are sometimes wrong."""
    odd = rng.random() < 0.5

    def maybe(value: int, *others: int) -> int:
        return rng.choice(others) if odd and rng.random() < 0.08 else value

    body, directory = bytearray(), bytearray()
    if odd and rng.random() < 0.1:
        body += rng.choice((b"junk", b"GGUF\3\0\0\0", b"\x80\x02N.", b"PK\3\4", b"MZ"))
    for name, data in members:
        raw, other = name.encode(), (name.upper() if odd and rng.random() < 0.05 else name).encode()
        method = rng.choice((0, 0, 0, 8))
        packed = data if not method else zlib.compress(data, 9)[2:-4]
        crc, at = maybe(zlib.crc32(data), 0, 1), len(body)
        flags = maybe(0, 1, 8, 0x800, 0x2000, 0x40)
        fields = struct.pack("<HHHHHIII", maybe(20, 0, 63), flags, maybe(method, 0, 8, 12, 99), 0, 33,
                             maybe(crc, 0), maybe(len(packed), 0, 1, 1 << 20), maybe(len(data), 0, 1))  # fmt: skip
        extra = rng.choice((b"", b"", b"FB\4\0ZZZZ", b"\1\0\4\0\0\0\0\0", b"up\5\0")) if odd else b""
        body += b"PK\3\4" + fields + struct.pack("<HH", len(other), len(extra)) + other + extra + packed
        central = struct.pack(
            "<HHHHHHIII",
            20,
            maybe(20, 63),
            maybe(0, 1, 8, 0x800, 0x2000),
            maybe(method, 0, 8),
            0,
            33,
            maybe(crc, 0),
            maybe(len(packed), 0),
            maybe(len(data), 0, 1),
        )
        directory += (
            b"PK\1\2"
            + central
            + struct.pack("<HHHHHII", len(raw), 0, 0, 0, 0, maybe(0, 0x10, 1 << 31), maybe(at, 0, at + 1))
            + raw
        )
    comment = rng.choice((b"", b"", b"x", b"PK\5\6" + bytes(18), b"\0" * 30)) if odd else b""
    start = len(body)
    end = struct.pack(
        "<HHHHIIH",
        0,
        0,
        maybe(len(members), 0, 1),
        maybe(len(members), 0, 1),
        maybe(len(directory), 0),
        maybe(start, 0, start + 4),
        maybe(len(comment), 0),
    )
    return bytes(body + directory + b"PK\5\6" + end + comment + (b"tail" if odd and rng.random() < 0.05 else b""))


def torch(rng: random.Random, seeds: Sequence[bytes]) -> Iterator[Made]:
    """Checkpoints: zips, the five pickles of before 1.6, bare pickles."""
    grammar = Grammar(rng, seeds)
    names = ("m.pt", "pytorch_model.bin", "m.ckpt", "m.pth", "m")
    while True:
        roll, code = rng.random(), _inner(rng, grammar)
        if roll < 0.6:
            root = rng.choice(("archive", "archive", "m", "x/y"))
            members = [
                (f"{root}/{rng.choice(('data.pkl', 'data.pkl', 'DATA.PKL'))}", code),
                (f"{root}/version", b"3\n"),
            ]
            members += [(f"{root}/byteorder", b"little"), (f"{root}/data/0", bytes(48))]
            if rng.random() < 0.2:
                members.append((f"{root}/data.pkl", _inner(rng, grammar)))
            if rng.random() < 0.2:
                members.append((f"{root}/{rng.choice(('constants.pkl', 'data/1', 'code/x.py'))}", code))
            if rng.random() < 0.2:
                rng.shuffle(members)
            data = zipped(rng, members)
        elif roll < 0.9:
            parts = [v.p(v.MAGIC), v.p(b"M\xe9\x03"), v.p(b"}"), v.GOOD, v.p(b"]")]
            parts[rng.randrange(5)] = code
            data = b"".join(parts) + rng.choice((b"", bytes(8), b"\x0c" + bytes(55)))
            data = grammar.damage(data) if rng.random() < 0.3 else data
        else:
            data = code
        yield data, rng.choice(names)


def zips(rng: random.Random, seeds: Sequence[bytes]) -> Iterator[Made]:
    """Archives of pickles and text."""
    grammar = Grammar(rng, seeds)
    while True:
        members = [(rng.choice(("a", "data.pkl", "x.bin", "m/0", "data/0", "a.txt", "m.npy")), _inner(rng, grammar))
                   for _ in range(rng.randint(1, 3))]  # fmt: skip
        data = zipped(rng, members)
        yield grammar.damage(data) if rng.random() < 0.3 else data, rng.choice(("m.zip", "m.pt", "m.npz", "m.mar", "m"))


# ---- tar


def tars(rng: random.Random, seeds: Sequence[bytes]) -> Iterator[Made]:
    """Archives as tarfile reads them, with wrong checksums, long names, sparse members and pax headers."""
    grammar = Grammar(rng, seeds)
    while True:
        out = io.BytesIO()
        form = rng.choice((tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT))
        with tarfile.open(fileobj=out, mode="w", format=form) as archive:
            for _ in range(rng.randint(1, 3)):
                data = _inner(rng, grammar)
                info = tarfile.TarInfo(
                    rng.choice(("a", "data.pkl", "pickle", "x/" * rng.choice((1, 60)) + "y", "\u00e9"))
                )
                info.size = len(data)
                info.type = rng.choice((b"0", b"0", b"\0", b"7", b"S", b"A", b"1", b"5", b"x"))
                if form == tarfile.PAX_FORMAT and rng.random() < 0.4:
                    info.pax_headers = {rng.choice(_PAX): rng.choice(("1", "0", str(len(data)), "0,4", "x"))}
                if info.type == b"1":
                    info.linkname = "a"
                archive.addfile(info, io.BytesIO(data))
        raw = bytearray(out.getvalue())
        for _ in range(rng.choice((0, 0, 1, 2))):
            _change_header(rng, raw)
        data = _compressed(rng, bytes(raw)) if rng.random() < 0.2 else bytes(raw)
        yield data, rng.choice(("m.tar", "m.nemo", "m.bin", "m.tar.gz", "m"))


_PAX: Final = ("size", "GNU.sparse.size", "GNU.sparse.map", "GNU.sparse.major", "GNU.sparse.realsize", "path",
               "GNU.sparse.name", "linkpath", "GNU.sparse.numblocks", "comment")  # fmt: skip


def _change_header(rng: random.Random, raw: bytearray) -> None:
    """A field of some header in another spelling, and mostly a checksum that fits."""
    at = rng.randrange(len(raw) // 512) * 512
    place, width = rng.choice(
        ((0, 100), (124, 12), (136, 12), (148, 8), (156, 1), (257, 8), (345, 155), (386, 24), (100, 8))
    )
    value = rng.choice((b"\0", b" ", b"+1", b"-1", b"0x1", b"\x80\0\0\0\0\0\0\0\0\0\0\1", b"\xff" * width, b"7" * width,
                        b"S", b"0", b"ustar\0" + b"00", b"1 2", b"\t1"))  # fmt: skip
    raw[at + place : at + place + width] = value[:width].ljust(width, b"\0")
    if rng.random() < 0.7:
        block = raw[at : at + 512]
        block[148:156] = b" " * 8
        total = sum(block)
        form = rng.choice((b"%06o\0 ", b"%06o\0 ", b"+%05o\0 ", b"%o", b" %o ", b"0%o\0"))
        raw[at + 148 : at + 156] = (form % total)[:8].ljust(8, b"\0")


# ---- streams, joblib, numpy


def _compressed(rng: random.Random, data: bytes) -> bytes:
    pack: Callable[[bytes], bytes] = rng.choice(
        (lambda d: zlib.compress(d, rng.choice((0, 1, 6, 9))), lambda d: gzip.compress(d, mtime=0), bz2.compress,
         lzma.compress, lambda d: lzma.compress(d, format=lzma.FORMAT_ALONE))
    )  # fmt: skip
    packed = pack(data)
    roll = rng.random()
    if roll < 0.02:
        return packed + pack(data)
    if roll < 0.1:
        return packed[: -rng.randint(1, 8)]
    return packed + rng.randbytes(rng.choice((0, 0, 0, 4)))


def _array(rng: random.Random, data: bytes) -> bytes:
    """joblib's wrapper of an array, and the array's bytes behind it."""
    code = rng.choice((b"f8", b"u1", b"O8", b"S4", b"V4", b"U2", b"<f4", b"b1", b"f4"))
    size = rng.choice((b"J\xff\xff\xff\xff", b"J\xff\xff\xff\xff", b"K\x04", b"K\x00", b"K\x08"))
    flags = rng.choice((b"K\0", b"K\0", b"K\x3f", b"K\x01"))
    dtype = v.g("numpy", "dtype") + v.s(code) + b"\x89\x88\x87R(K\x03" + v.s("|") + b"NNN" + size + size + flags + b"tb"
    shape = rng.choice((b"K%c\x85" % min(len(data), 255), b"K\x01\x85", b"K\x00\x85", b")", b"K\x02K\x02\x86"))
    order = rng.choice(("C", "F"))
    aligned = rng.choice((b"", v.s("numpy_array_alignment_bytes") + rng.choice((b"K\x10", b"N"))))
    made = rng.choice((b")\x81", b")R", b")\x81", b")\x81"))
    return (v.g("joblib.numpy_pickle", "NumpyArrayWrapper") + made + b"}(" + v.s("subclass") + v.g("numpy", "ndarray")
            + v.s("shape") + shape + v.s("order") + v.s(order) + v.s("dtype") + dtype + v.s("allow_mmap") + b"\x88"
            + aligned + b"ub" + (b"\x00" if aligned[-2:-1] == b"K" and rng.random() < 0.8 else b"") + data)  # fmt: skip


def joblib(rng: random.Random, seeds: Sequence[bytes]) -> Iterator[Made]:
    """Pickles with arrays in the middle, plain and compressed."""
    grammar = Grammar(rng, seeds)
    while True:
        code = _inner(rng, grammar)
        if rng.random() < 0.6:
            code = b"\x80\x04" + rng.choice((b"", b"]", b"}")) + _array(rng, code) + rng.choice((b".", b"0N.", code))
        code = grammar.damage(code) if rng.random() < 0.3 else code
        yield (
            (_compressed(rng, code) if rng.random() < 0.4 else code),
            rng.choice(("m.joblib", "m.pkl", "m.pkl.gz", "m")),
        )


_DESCR: Final = (
    "'|O'",
    "'O'",
    "'<f4'",
    "[('x', '|O')]",
    "('|V0', [('x', 'O')])",
    "[('a', '<f4'), ('b', 'O')]",
    "'object'",
    "('O', (1,))",
    "[('x', ('O', (1,)))]",
    "('|V8', {'x': ('O', 0)})",
    "{'names': ['x'], 'formats': ['O']}",
    "'|O8'",
    "'|O4'",
    "[('x', [('y', 'O')])]",
    "'<i8'",
    "'V8'",
    "[('', 'O')]",
    "(('O', 1))",
    "['O']",
    "'f4,O'",
    "'O,O'",
    "'2O'",
    "'(1,)O'",
    "'=O'",
    "'>O'",
    "b'O'",
    "'\\x4f'",
    "('<f8', 'O')",
    "[('x', '|O', (1,))]",
)


def numpy(rng: random.Random, seeds: Sequence[bytes]) -> Iterator[Made]:
    """Arrays of objects, and files that numpy.load takes for something else."""
    grammar = Grammar(rng, seeds)
    while True:
        roll, code = rng.random(), _inner(rng, grammar)
        data = _npy(rng, code)
        if roll < 0.3:
            data = zipped(rng, [(rng.choice(("a.npy", "b", "a.npy/", "c.NPY", "d.pkl")), rng.choice((data, code)))])
        elif roll < 0.4:
            data = code
        data = grammar.damage(data) if rng.random() < 0.2 else data
        yield data, rng.choice(("m.npy", "m.npz", "m.npy", "m.bin", "m.dat"))


def _npy(rng: random.Random, code: bytes) -> bytes:
    shape = rng.choice(("(1,)", "()", "(0,)", "(2,)", "(1, 1)", "(1,),", "(True,)", "(1L,)", "(-1,)"))
    fields = [
        "'descr': " + rng.choice(_DESCR),
        "'fortran_order': " + rng.choice(("False", "True", "0")),
        f"'shape': {shape}",
    ]
    if rng.random() < 0.1:
        fields.append(rng.choice(fields))
    if rng.random() < 0.2:
        rng.shuffle(fields)
    space = rng.choice(("", " ", "\n", "\t", " # x\n", "\\\n"))
    text = ("{" + f",{space}".join(fields) + rng.choice(("}", ", }", "}  \n", "} # end"))).encode("latin-1")
    text += rng.choice((b"", b"\n", b" " * 20, b" " * 11000)) + b"\n"
    version = rng.choice((1, 1, 2, 3, 9))
    size = struct.pack("<H" if version == 1 else "<I", len(text) + rng.choice((0, 0, 0, 1, -1)))
    return b"\x93NUMPY" + bytes([version, rng.choice((0, 0, 0, 1))]) + size + text + code
