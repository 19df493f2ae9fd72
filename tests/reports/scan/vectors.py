"""Pickles and zips made by hand, opcode by opcode: each technique on record by which a file hides what it does, with
the verdict and the rules that it must get. Nothing here is ever unpickled.

`cmd` stands for a payload: a file that really did harm would do it here.
"""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from weighbridge.reports.scan.model import ScanVerdict

_D, _M, _U, _OK = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE, ScanVerdict.DATA_ONLY


class Case(NamedTuple):
    """`rules`: all rules of its findings, notes left out."""

    id: str
    data: bytes
    verdict: ScanVerdict
    rules: frozenset[str]


def case(id: str, data: bytes, verdict: ScanVerdict, *rules: str) -> Case:
    return Case(id, data, verdict, frozenset(rules))


# ---- pieces of pickles ----


def g(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def s(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return b"X" + struct.pack("<I", len(raw)) + raw


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def sg(module: str, name: str) -> bytes:
    """STACK_GLOBAL, as protocol 4 has it."""
    return short(module) + short(name) + b"\x93"


def call(module: str, name: str, *args: bytes) -> bytes:
    return g(module, name) + b"(" + b"".join(args) + b"tR"


def p(body: bytes, protocol: int = 2) -> bytes:
    return bytes((0x80, protocol)) + body + b"."


def frame(body: bytes) -> bytes:
    return b"\x95" + struct.pack("<Q", len(body)) + body


CMD = s("cmd")
SYSTEM = call("os", "system", CMD)
EVIL = p(SYSTEM)
EVIL0 = b"cos\nsystem\n(S'cmd'\ntR."
GOOD = p(b"}" + s("a") + b"K\x01s")
STORAGE = b"(" + s("storage") + g("torch", "FloatStorage") + s("0") + s("cpu") + b"K\x0ctQ"
HOOKS = call("collections", "OrderedDict")
TENSOR = call(
    "torch._utils", "_rebuild_tensor_v2", STORAGE, b"K\x00", b"K\x03K\x04\x86", b"K\x04K\x01\x86", b"\x89", HOOKS
)
MAGIC = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"


def legacy(
    obj: bytes,
    magic: bytes = MAGIC,
    protocol: int = 1001,
    keys: bytes = b"]" + s("0") + b"a",
    data: bytes = b"\x0c" + bytes(7 + 48),
) -> bytes:
    return p(magic) + p(b"M" + struct.pack("<H", protocol)) + p(b"}") + p(obj) + p(keys) + data


# ---- names ----

PICKLES = [
    case("system", EVIL, _D, "pickle/dangerous-call"),
    case("system, protocol 0", EVIL0, _D, "pickle/dangerous-call"),
    case("system, protocol 4", p(frame(sg("os", "system") + short("cmd") + b"\x85R"), 4), _D, "pickle/dangerous-call"),
    case(
        "INST without a mark", b"ios\nsystem\n.", _D, "pickle/broken", "pickle/dangerous-import", "pickle/hidden-name"
    ),
    case("a module whose file's name is no identifier", b"cno such\nx\n.", _M, "pickle/odd-name"),
    case("a name in the encoding of Python 2", b"S'P\xcdosix'\nU\x06system\x93.", _U, "pickle/unknown-import"),
    case("names across the end of a frame", frame(b"cml_dtypes\nfloat8(\x97")[:-1] + b"\x97b\nb\n.", _M, "pickle/text"),
    case("a memo as long as a place in it says", p(b")r\0\0\0\x7f"), _M, "pickle/bomb"),
    case("imported and never called", p(g("os", "system")), _D, "pickle/dangerous-import"),
    case("imported and dropped", p(g("os", "system") + b"0N"), _D, "pickle/dangerous-import"),
    case("called and dropped", p(SYSTEM + b"0N"), _D, "pickle/dangerous-call"),
    case(
        "names from the memo",
        p(short("system") + b"\x940" + short("os") + b"\x940h\x01h\x00\x93" + short("cmd") + b"\x85R", 4),
        _D,
        "pickle/dangerous-call",
    ),
    case(
        "STACK_GLOBAL of the first operand",
        b"\x8c\x02os\x8c\x06system\x93\x8c\x03cmd\x85R.",
        _D,
        "pickle/dangerous-call",
    ),
    case(
        "DUP and POP before STACK_GLOBAL",
        p(short("os") + b"2" + b"0" + short("system") + short("x") + b"0\x93" + short("cmd") + b"\x85R", 4),
        _D,
        "pickle/dangerous-call",
    ),
    case(
        "memo place set twice",
        p(
            short("json")
            + b"q\x000"
            + short("os")
            + b"q\x000h\x00"
            + short("system")
            + b"\x93"
            + short("cmd")
            + b"\x85R",
            4,
        ),
        _D,
        "pickle/dangerous-call",
    ),
    case("INST", b"(S'cmd'\nios\nsystem\n.", _D, "pickle/dangerous-call"),
    case("OBJ", b"(" + g("os", "system") + CMD + b"o.", _D, "pickle/dangerous-call"),
    case("OBJ, result dropped", b"(" + g("os", "system") + CMD + b"o0N.", _D, "pickle/dangerous-call"),
    case("NEWOBJ", p(g("subprocess", "Popen") + b"(" + CMD + b"t\x81"), _D, "pickle/dangerous-call"),
    case("NEWOBJ_EX", p(g("subprocess", "Popen") + b")}" + s("args") + CMD + b"s\x92", 4), _D, "pickle/dangerous-call"),
    case("REDUCE and BUILD", p(call("builtins", "eval", CMD) + b"}b"), _D, "pickle/dangerous-call"),
    case("Python 2's name", b"c__builtin__\neval\n(S'cmd'\ntR.", _D, "pickle/dangerous-call"),
    case(
        "dotted name", p(sg("torch", "serialization.os.system") + short("cmd") + b"\x85R", 4), _D, "pickle/dotted-name"
    ),
    case("dotted walk to sys.modules", p(sg("collections", "_sys.modules"), 4), _D, "pickle/dotted-name"),
    case("dotted name of a class", p(sg("my.module", "Outer.Inner") + b")\x81", 4), _U, "pickle/dotted-name"),
    case(
        "an item of sys.modules set",
        p(sg("collections", "_sys.modules") + short("x") + b"Ns", 4),
        _D,
        "pickle/dotted-name",
        "pickle/patched",
    ),
    case("a class patched", p(g("collections", "OrderedDict") + b"N}" + s("get") + b"Ns\x86b"), _D, "pickle/patched"),
    case("appended to a name", p(g("collections", "OrderedDict") + b"K\x01a"), _D, "pickle/patched"),
    case("unknown class", p(g("my.models", "Net") + b")\x81}" + s("w") + TENSOR + b"sb"), _U, "pickle/unknown-call"),
    case("unknown function", p(call("my.models", "make")), _U, "pickle/unknown-call"),
    case("unknown import", p(g("my.models", "Net")), _U, "pickle/unknown-import"),
    case("a name with a space", p(b"cos \nsystem\n)R"), _M, "pickle/odd-name"),
    case("a name of nothing", p(b"c\n\n"), _M, "pickle/odd-name"),
    case("a name with an escape", p(b"cm\x1b[2J\nf\n"), _M, "pickle/odd-name"),
    case("a name with a NUL", p(b"cos\0x\nsystem\n"), _M, "pickle/odd-name"),
    case("extension", p(b"\x82\x01)R"), _D, "pickle/computed-call", "pickle/extension"),
    case("extension, imported only", p(b"\x84\x01\x02\x03\x04"), _D, "pickle/extension"),
    case(
        "getattr of an import",
        p(call("builtins", "getattr", call("importlib", "import_module", s("os")), s("system")) + b"(" + CMD + b"tR"),
        _D,
        "pickle/dangerous-call",
        "pickle/computed-call",
    ),
    case(
        "the result of an allowed call is called",
        p(call("collections", "OrderedDict") + b")R"),
        _D,
        "pickle/computed-call",
    ),
    case("a value is called", p(call("torch", "FloatStorage", b"K\x01")), _U, "pickle/value-called"),
    case(
        "partial",
        p(call("functools", "partial", g("os", "system"), CMD) + b")R"),
        _D,
        "pickle/unknown-call",
        "pickle/dangerous-import",
        "pickle/computed-call",
    ),
    case(
        "a list that grows behind its call",
        p(g("builtins", "bytes") + b"]q\0\x85R0h\0K\x01a"),
        _M,
        "pickle/changed-argument",
    ),
    case(
        "default factory",
        p(call("collections", "defaultdict", g("os", "getlogin"))),
        _D,
        "pickle/dangerous-import",
        "pickle/odd-arguments",
    ),
    case(
        "payload in a persistent id",
        p(b"(" + s("storage") + SYSTEM + s("0") + s("cpu") + b"K\x01tQ"),
        _D,
        "pickle/dangerous-call",
        "pickle/persistent-id",
    ),
    case(
        "class in a persistent id",
        p(b"(" + s("storage") + g("os", "system") + s("0") + s("cpu") + b"K\x01tQ"),
        _D,
        "pickle/dangerous-import",
        "pickle/persistent-id",
    ),
    case("other persistent id", p(s("key") + b"Q"), _U, "pickle/persistent-id"),
    case(
        "module with its source, before 1.6",
        p(b"(" + s("module") + g("my", "Net") + s("f.py") + s("import os") + b"tQ)\x81"),
        _U,
        "pickle/unknown-call",
    ),
    case(
        "a module's name is computed",
        p(call("torch.jit._pickle", "restore_type_tag", s("os"), s("")) + s("system") + b"\x93"),
        _D,
        "pickle/computed-name",
    ),
    case("payload in a dict's key", p(b"}" + SYSTEM + b"Ns"), _D, "pickle/dangerous-call"),
    case("scanner turned off", p(call("picklescan.scanner", "scan_bytes")), _D, "pickle/dangerous-call"),
    # ---- allowed calls, misused
    case(
        "rebuild called with a command", p(call("torch._utils", "_rebuild_tensor_v2", CMD)), _M, "pickle/odd-arguments"
    ),
    case(
        "rebuild of a function",
        p(
            call(
                "torch._tensor",
                "_rebuild_from_type_v2",
                g("os", "system"),
                g("torch", "Tensor"),
                b"(" + CMD + b"t",
                b"}",
            )
        ),
        _D,
        "pickle/dangerous-import",
        "pickle/odd-arguments",
    ),
    case(
        "rebuild calls another allowed one",
        p(
            call(
                "torch._tensor",
                "_rebuild_from_type_v2",
                g("_codecs", "encode"),
                g("torch", "Tensor"),
                b"(" + CMD + s("zip") + b"t",
                b"}",
            )
        ),
        _M,
        "pickle/odd-arguments",
    ),
    case("a codec is imported", p(call("_codecs", "encode", CMD, s("evil"))), _M, "pickle/odd-arguments"),
    case("a huge bytearray", p(call("builtins", "bytearray", b"\x8a\x05\0\0\0\0\x10")), _M, "pickle/odd-arguments"),
    case(
        "keyword arguments",
        p(g("collections", "OrderedDict") + b")}" + s("a") + b"Ns\x92", 4),
        _M,
        "pickle/odd-arguments",
    ),
    case("a function made by NEWOBJ", p(g("torch", "Size") + b")\x81"), _M, "pickle/odd-arguments"),
    case("items set on a tensor", p(TENSOR + b"K\x00K\x01s"), _D, "pickle/filled"),
    case("items appended to a tensor", p(TENSOR + b"K\x00a"), _D, "pickle/filled"),
    case("items set on a storage", p(STORAGE + b"K\x00K\x01s"), _D, "pickle/filled"),
    case("a tensor is given a state", p(TENSOR + b"}b"), _M, "pickle/odd-state"),
    case("attributes on a dict", p(HOOKS + b"}" + s("items") + b"Nsb"), _M, "pickle/odd-state"),
    case(
        "an array of pointers",
        p(
            call("numpy", "dtype", s("O8"), b"\x89", b"\x88")
            + b"(K\x03"
            + s("|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        ),
        _M,
        "pickle/odd-state",
    ),
    case(
        "a number of another size",
        p(call("numpy", "dtype", s("f8"), b"\x89", b"\x88") + b"(K\x03" + s("<") + b"NNNK\x40K\x08K\x00tb"),
        _M,
        "pickle/odd-state",
    ),
    case(
        "an array of objects in fields",
        p(
            call("numpy", "dtype", s("V8"), b"\x89", b"\x88")
            + b"(K\x03"
            + s("|")
            + b"N("
            + s("a")
            + b"t}"
            + s("a")
            + b"("
            + call("numpy", "dtype", s("O8"), b"\x89", b"\x88")
            + b"K\x00tsK\x08K\x01K\x10tb"
        ),
        _M,
        "pickle/odd-arguments",
        "pickle/odd-state",
    ),
    case("BUILD on a list", p(b"]}b"), _M, "pickle/odd"),
    case("SETITEM on a tuple", p(b")K\x00K\x01s"), _M, "pickle/odd"),
    case("a buffer from outside", p(b"\x97", 5), _M, "pickle/buffer"),
    # ---- how it is written
    case("payload, then rubbish", EVIL[:-1] + b"\xff\xff", _D, "pickle/dangerous-call", "pickle/opcode"),
    case("payload, then cut", EVIL[:-1], _D, "pickle/dangerous-call", "pickle/truncated"),
    case("data, cut", GOOD[:-1], _M, "pickle/truncated"),
    case("data, cut inside a value", GOOD[:6], _M, "pickle/truncated"),
    case("one byte", b"\x80\x04", _M, "pickle/truncated"),
    case("rubbish behind a protocol", b"\x80\x02\xff", _M, "pickle/opcode"),
    case(
        "hexadecimal before the payload",
        b"\x80\x02I0x1\n0" + SYSTEM + b".",
        _D,
        "pickle/number",
        "pickle/dangerous-call",
    ),
    case("octal", b"\x80\x02I0o7\n.", _M, "pickle/number"),
    case("a NUL in a number", b"\x80\x02I1\0zz\n0" + SYSTEM + b".", _D, "pickle/number", "pickle/dangerous-call"),
    case("a NUL in a long", b"\x80\x02L1\0L\n.", _M, "pickle/number"),
    case("underscores", b"\x80\x02I1_0\n.", _M, "pickle/number"),
    case("not UTF-8", p(s(b"\xff\xfe")), _M, "pickle/text"),
    case("no quotes", b"\x80\x02Sabc\n.", _M, "pickle/text"),
    case("no FLOAT", b"\x80\x02F0x1p3\n.", _M, "pickle/number"),
    case(
        "frame straddled",
        b"\x80\x04\x95" + struct.pack("<Q", 6) + b"N0" + s(b"0" + EVIL0),
        _D,
        "pickle/frame",
        "pickle/truncated",
        "pickle/hidden-name",
    ),
    case("frame in a frame", p(frame(frame(b"N")), 4), _M, "pickle/frame"),
    case("STOP inside a frame", b"\x80\x04" + frame(b"N.N"), _M, "pickle/frame", "pickle/trailing-bytes"),
    case("PROTO in the middle", p(b"N0\x80\x02N"), _M, "pickle/protocol"),
    case("PROTO in the middle of a payload", p(b"N0\x80\x02" + SYSTEM), _D, "pickle/protocol", "pickle/dangerous-call"),
    case("a protocol to come", b"\x80\x05\x80\x09N.", _M, "pickle/protocol"),
    case("an unknown place in the memo", p(b"h\x07"), _M, "pickle/broken"),
    case("an empty stack", p(b"0"), _M, "pickle/broken"),
    case("no MARK", p(b"t"), _M, "pickle/broken"),
    case("STACK_GLOBAL of numbers", p(b"K\x01K\x02\x93", 4), _M, "pickle/broken"),
    case(
        "the payload's arguments are a list",
        p(g("os", "system") + b"]" + CMD + b"aR"),
        _D,
        "pickle/dangerous-call",
        "pickle/broken",
    ),
    case("a second pickle", GOOD + EVIL, _D, "pickle/another-pickle", "pickle/dangerous-call"),
    case("a second pickle of data", GOOD + GOOD, _M, "pickle/another-pickle"),
    case(
        "a second pickle, broken",
        GOOD + EVIL[:-1] + b"\xff",
        _D,
        "pickle/trailing-bytes",
        "pickle/dangerous-call",
        "pickle/opcode",
    ),
    case("bytes behind the end", GOOD + b"\0\0\0", _M, "pickle/trailing-bytes"),
    case("a memory bomb of marks", p(b"(" * 3_000_000), ScanVerdict.UNPROVEN, "pickle/limit"),
    case("a key that takes forever to hash", p(b"}" + b")" + b"2\x86" * 60 + b"Ns"), _M, "pickle/bomb"),
    case("a bomb of tuples", p(b")" + b"2\x86" * 60), _OK),  # shared, never copied
    # ---- torch before 1.6
    case("fourth pickle", legacy(SYSTEM, keys=b"]", data=b""), _D, "pickle/dangerous-call"),
    case("fifth pickle", legacy(TENSOR, keys=SYSTEM), _D, "pickle/dangerous-call", "pickle/legacy"),
    case(
        "the magic number is computed",
        legacy(TENSOR, magic=call("builtins", "eval", s("0x1950a86a20f9469cfc6c"))),
        _D,
        "pickle/dangerous-call",
        "pickle/another-pickle",
        "pickle/trailing-bytes",
    ),
    case("another protocol", legacy(TENSOR, protocol=1002), _M, "pickle/legacy"),
    case("keys that the object lacks", legacy(TENSOR, keys=b"]" + s("7") + b"a"), _M, "pickle/legacy"),
    case("storages cut off", legacy(TENSOR)[:-1], _M, "pickle/legacy"),
    case("bytes behind the storages", legacy(TENSOR) + b"\0", _M, "pickle/trailing-bytes"),
    case("only two of five pickles", p(MAGIC) + p(b"M\xe9\x03"), _M, "pickle/truncated"),
    # ---- pickles in pickles
    case("carried as bytes", p(b"]C" + bytes([len(EVIL)]) + EVIL + b"a", 3), _U, "pickle/carried"),
    case("carried as long bytes", p(b"]B" + struct.pack("<I", len(EVIL)) + EVIL + b"a", 3), _U, "pickle/carried"),
    case("carried as base64", p(s(base64.b64encode(EVIL))), _U, "pickle/carried"),
    case("carried as hexadecimal", p(s(EVIL.hex())), _U, "pickle/carried"),
    case("carried and broken", p(b"C" + bytes([len(EVIL)]) + EVIL[:-1] + b"\xff", 3), _U, "pickle/carried"),
    case("data carried", p(b"]C" + bytes([len(GOOD)]) + GOOD + b"a" + s(base64.b64encode(GOOD)) + b"a", 3), _OK),
    case(
        "loaded from bytes",
        p(call("torch.storage", "_load_from_bytes", b"B" + struct.pack("<I", len(EVIL)) + EVIL), 3),
        _D,
        "pickle/dangerous-call",
        "pickle/carried",
    ),
    case(
        "loaded from text",
        p(call("torch.storage", "_load_from_bytes", call("_codecs", "encode", s(EVIL0.decode()), s("latin1")))),
        _D,
        "pickle/dangerous-call",
    ),
    case(
        "loaded from bytes that a call makes",
        p(call("torch.storage", "_load_from_bytes", call("builtins", "bytes", call("builtins", "list", b"]")))),
        _D,
        "pickle/odd-arguments",
        "pickle/unresolved-bytes",
    ),
    case(
        "a sparse tensor of nothing",
        p(
            call(
                "torch._utils",
                "_rebuild_sparse_tensor",
                call("torch.serialization", "_get_layout", s("torch.sparse_coo")),
                b"(NNN)t",
            )
        ),
        ScanVerdict.UNPROVEN,
        "pickle/indices",
    ),
    case(
        "loaded from long bytes",
        p(
            call(
                "torch.storage",
                "_load_from_bytes",
                b"B" + struct.pack("<I", 70_000 + len(EVIL0)) + b"N0" * 35_000 + EVIL0,
            ),
            3,
        ),
        _D,
        "pickle/dangerous-call",
    ),
]


# ---- zips ----


class Part(NamedTuple):
    """A member as its writer likes to tell of it: what differs in the local header, what in the directory. `ghost`: it
    is in the directory only."""

    name: str
    data: bytes = GOOD
    method: int = 0
    local: Mapping[str, Any] = {}
    central: Mapping[str, Any] = {}
    ghost: bool = False


def zipped(
    *parts: Part,
    prefix: bytes = b"",
    comment: bytes = b"",
    count: int | None = None,
    listed: int | None = None,
    absolute: bool = False,
) -> bytes:
    """A zip, byte by byte. The first `listed` members are in the directory, which says that there are `count`.
    `absolute`: its offsets count the prefix."""
    out, directory, base = bytearray(prefix), bytearray(), 0 if absolute else len(prefix)
    for number, part in enumerate(parts):
        packed = zlib.compress(part.data)[2:-4] if part.method == 8 else part.data
        facts: dict[str, Any] = {
            "flags": 0, "method": part.method, "crc": zlib.crc32(part.data), "packed": len(packed),
            "size": len(part.data), "name": part.name.encode(), "at": len(out) - base, "bits": 0,
        }  # fmt: skip
        here, there = {**facts, **part.local}, {**facts, **part.central}
        if not part.ghost:
            out += struct.pack("<4s5H3I2H", b"PK\3\4", 20, *_told(here), len(here["name"]), 0) + here["name"] + packed
        if listed is None or number < listed:
            lengths = (len(there["name"]), 0, 0, 0, 0, there["bits"], there["at"])
            directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, *_told(there), *lengths) + there["name"]
    number = count if count is not None else len(parts) if listed is None else listed
    numbers = (0, 0, number, number, len(directory), len(out) - base, len(comment))
    return bytes(out + directory + struct.pack("<4s4H2IH", b"PK\5\6", *numbers) + comment)


def _told(facts: Mapping[str, Any]) -> tuple[int, ...]:
    return facts["flags"], facts["method"], 0, 0x21, facts["crc"], facts["packed"], facts["size"]


def plain_zip(*members: tuple[str, bytes], method: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def linked(name: str, target: str) -> bytes:
    """A zip of one symbolic link."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, target)
    return out.getvalue()


MAIN = Part("x/data.pkl")
_END_IN_COMMENT = zipped(Part("x/data.pkl", EVIL))

ZIPS = [
    case("payload", plain_zip(("x/data.pkl", EVIL)), _D, "pickle/dangerous-call"),
    case("payload, deflated", plain_zip(("x/data.pkl", EVIL), method=8), _D, "pickle/dangerous-call"),
    case("payload in another member", plain_zip(("x/data.pkl", GOOD), ("x/data/0", EVIL)), _D, "pickle/dangerous-call"),
    case(
        "a broken payload in a storage",
        plain_zip(("x/data.pkl", GOOD), ("x/data/0", b"\x80\x02I0x1\n0" + SYSTEM + b".")),
        _D,
        "pickle/number",
        "pickle/dangerous-call",
    ),
    case(
        "a storage that begins as a pickle", plain_zip(("x/data.pkl", GOOD), ("x/data/0", b"\x80\x02\x00\x80" * 9)), _OK
    ),
    case("protocol 0 in a storage", plain_zip(("x/data.pkl", GOOD), ("x/data/0", EVIL0)), _D, "pickle/dangerous-call"),
    case(
        "protocol 0 in a member of any name",
        plain_zip(("x/data.pkl", GOOD), ("x/README", EVIL0)),
        _D,
        "pickle/dangerous-call",
    ),
    case("only DATA.PKL, protocol 0", plain_zip(("x/DATA.PKL", EVIL0)), _D, "pickle/dangerous-call"),
    case(
        "zip in a zip",
        plain_zip(("x/data.pkl", GOOD), ("x/y", plain_zip(("z/data.pkl", EVIL)))),
        _D,
        "pickle/dangerous-call",
    ),
    case("two of one name", zipped(MAIN, MAIN), _M, "zip/duplicate"),
    case(
        "three of one name, payload in the middle",
        zipped(MAIN, Part("x/data.pkl", EVIL), MAIN),
        _D,
        "zip/duplicate",
        "pickle/dangerous-call",
    ),
    case("case variants", zipped(MAIN, Part("x/DATA.PKL", EVIL)), _D, "zip/case", "pickle/dangerous-call"),
    case("case variants of data", zipped(Part("x/a", b""), Part("x/A", b"")), _M, "zip/case"),
    case("local name differs", zipped(Part("x/data.pkl", local={"name": b"x/other.pk"})), _M, "zip/local-header"),
    case("local method differs", zipped(Part("x/data.pkl", local={"method": 8})), _M, "zip/local-header"),
    case(
        "local sizes differ",
        zipped(Part("x/data.pkl", local={"size": 3, "packed": 3})),
        _M,
        "zip/local-header",
        "pickle/truncated",
    ),
    case("local sum differs", zipped(Part("x/data.pkl", local={"crc": 1})), _M, "zip/local-header"),
    case(
        "encrypted, so says the directory",
        zipped(Part("x/data.pkl", EVIL, central={"flags": 1})),
        _D,
        "zip/encrypted",
        "pickle/dangerous-call",
    ),
    case(
        "encrypted, so says the local header",
        zipped(Part("x/data.pkl", EVIL, local={"flags": 1})),
        _D,
        "zip/local-header",
        "pickle/dangerous-call",
    ),
    case("strong encryption", zipped(Part("x/data.pkl", central={"flags": 0x40})), _M, "zip/encrypted"),
    case("a patch", zipped(Part("x/data.pkl", central={"flags": 0x20})), _M, "zip/encrypted"),
    case("masked headers", zipped(Part("x/data.pkl", central={"flags": 0x2000})), _M, "zip/encrypted"),
    case(
        "wrong sum", zipped(Part("x/data.pkl", EVIL, local={"crc": 1}, central={"crc": 1})), _D, "pickle/dangerous-call"
    ),
    case(
        "bytes in front",
        zipped(Part("x/data.pkl", EVIL), prefix=b"junk" * 4),
        _D,
        "zip/directory",
        "zip/prefix",
        "pickle/dangerous-call",
    ),
    case("bytes in front, counted", zipped(MAIN, prefix=b"junk", absolute=True), _M, "zip/prefix"),
    case("directory damaged", zipped(MAIN).replace(b"PK\1\2", b"PK\1\3"), _M, "zip/directory"),
    case(
        "an archive in the comment",
        zipped(MAIN, comment=_END_IN_COMMENT),
        _D,
        "zip/directory",
        "zip/hidden-member",
        "pickle/dangerous-call",
    ),
    case("an end record in the comment", zipped(MAIN, comment=b"PK\5\6" + bytes(18) + b"x"), _M, "zip/several-ends"),
    case(
        "count too small",
        zipped(MAIN, Part("x/b", EVIL), count=1),
        _D,
        "zip/count",
        "pickle/dangerous-call",
    ),
    case("count too large", zipped(MAIN, count=2), _M, "zip/count"),
    case(
        "not in the directory",
        zipped(MAIN, Part("x/b", EVIL), listed=1),
        _D,
        "zip/hidden-member",
        "pickle/dangerous-call",
    ),
    case("not in the directory, data", zipped(MAIN, Part("x/b", b"\0"), listed=1), _M, "zip/hidden-member"),
    case("no end", zipped(Part("x/data.pkl", EVIL))[:-30], _D, "zip/no-end", "pickle/dangerous-call"),
    case("directory cut off", zipped(MAIN)[:-10], _M, "zip/no-end"),
    case("overlapping", zipped(MAIN, MAIN._replace(ghost=True, central={"at": 0})), _M, "zip/overlap"),
    case(
        "outside",
        zipped(Part("x/data.pkl", central={"packed": 9999, "size": 9999})),
        _M,
        "zip/outside",
        "pickle/trailing-bytes",
    ),
    case("outside, data", zipped(Part("x/a", b"\0", central={"packed": 9999, "size": 9999})), _M, "zip/outside"),
    case("a folder that holds bytes", zipped(Part("x/data.pkl", central={"bits": 0x10})), _M, "zip/folder"),
    case("a link out of the folder", linked("a/b", "../../etc/passwd"), _M, "zip/link"),
    case("a link in the folder", linked("a/b", "../c"), _OK),
    case("out of the folder", zipped(MAIN, Part("../../etc/x", b"\0")), _M, "zip/name"),
    case("absolute", zipped(Part("/etc/x", b"\0")), _M, "zip/name"),
    case("a drive", zipped(Part("C:x", b"\0")), _M, "zip/name"),
    case("backslash", zipped(Part("x\\data.pkl")), _M, "zip/name"),
    case("a NUL", zipped(Part("x/data.pkl\0.txt", EVIL)), _D, "zip/name", "file/odd-name", "pickle/dangerous-call"),
    case("a dot", zipped(Part("x/./data.pkl")), _M, "zip/name"),
    case("two roots", zipped(MAIN, Part("y/data.pkl")), _M, "zip/several-checkpoints"),
    case("bzip2", plain_zip(("x/data.pkl", EVIL), method=12), _D, "zip/method", "pickle/dangerous-call"),
    case(
        "a method that is not known",
        zipped(Part("x/data.pkl", local={"method": 97}, central={"method": 97})),
        _M,
        "zip/method",
    ),
    case("an end record of a second volume", zipped(MAIN)[:-18] + b"\1\0" + zipped(MAIN)[-16:], _M, "zip/volumes"),
    case(
        "saturated without zip64",
        zipped(Part("x/data.pkl", central={"packed": 0xFFFFFFFF})),
        _M,
        "zip/zip64",
        "pickle/trailing-bytes",
    ),
    case("saturated without zip64, data", zipped(Part("x/a", b"\0", central={"packed": 0xFFFFFFFF})), _M, "zip/zip64"),
]
