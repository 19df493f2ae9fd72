"""Attacks on the table of what is allowed, by class: what a constructor may make, where names come from, arguments that
change behind a call. Each class is built from the table's own rows, so that a new row is attacked as well."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
from tests.reports.scan import vectors as v

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import ScanVerdict
from weighbridge.reports.scan.pickle.allowlist import CALLS, RECONSTRUCTORS, VALUES
from weighbridge.reports.scan.pickle.shapes import TENSOR_CLASSES

COPYING = [("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")]
NUMBERS = b"K\0K\x69K\1K\x6dK\2K\x70"


def verdict(data: bytes, name: str = "x.pkl") -> ScanVerdict:
    return scan_source(BytesSource(data), name).verdict


def is_loud(data: bytes) -> bool:
    return verdict(data).rank > ScanVerdict.DATA_ONLY.rank


# ---- what a constructor may make


def _classes() -> Iterator[tuple[str, str]]:
    """Every name that a pickle may import."""
    yield from sorted({*CALLS, *VALUES})


@pytest.mark.costly
@pytest.mark.parametrize("copying", COPYING, ids=".".join)
def test_only_proven_classes_are_reconstructed(copying: tuple[str, str]) -> None:
    """numpy.memmap, as base and as class, opens the file that its state names."""
    bases = ["object", "str", "dict", "list", "int", "bytes"]
    for path in _classes():
        for base in (("builtins", b) for b in bases):
            for state in (b"N", v.s("/tmp/x"), b"}", b"]"):
                proven = RECONSTRUCTORS.get(path) == base[1] and (state == b"N") is (base[1] == "object")
                if not proven or state in (b"}", b"]"):
                    data = v.p(v.call(*copying, v.g(*path), v.g(*base), state))
                    assert is_loud(data), (path, base, state)
        assert is_loud(v.p(v.call(*copying, v.g(*path), v.g(*path), v.s("victim.py")))), path


@pytest.mark.parametrize("tail", [b"(" + NUMBERS + b"u", b"(K\1K\2e", b"K\1a", b"}b", b"]b"], ids=repr)
def test_what_is_reconstructed_is_filled_as_its_class_allows(tail: bytes) -> None:
    for path, base in RECONSTRUCTORS.items():
        state = b"N" if base == "object" else v.s("1")
        made = v.call("copyreg", "_reconstructor", v.g(*path), v.g("builtins", base), state)
        row = CALLS[path]
        if tail != b"}b" or not row.state:
            assert is_loud(v.p(made + tail)), path
        assert not is_loud(v.p(made)), path


@pytest.mark.parametrize("path", sorted(VALUES), ids=".".join)
def test_a_value_is_made_by_nothing(path: tuple[str, str]) -> None:
    """By no opcode, and as the class of no tensor that isn't one."""
    name = v.g(*path)
    for made in (name + b")R", name + b")\x81", b"(" + name + b"o", name + b")}\x92", b"(i" + name[1:],
                 name + v.s("/tmp/x") + b"\x85R"):  # fmt: skip
        assert is_loud(v.p(made)), made
    if path not in TENSOR_CLASSES:
        subclass = v.call("torch._utils", "_rebuild_wrapper_subclass", name, v.g("torch", "float32"), b"K\3\x85",
                          b"K\1\x85", b"K\0", v.call("torch.serialization", "_get_layout", v.s("torch.strided")),
                          v.s("cpu"), b"\x89")  # fmt: skip
        typed = v.call("torch._tensor", "_rebuild_from_type_v2", v.g("torch._utils", "_rebuild_tensor_v2"), name, b")",
                       b"}")  # fmt: skip
        assert is_loud(v.p(subclass))
        assert is_loud(v.p(typed))


def test_every_callable_refuses_a_state_and_items_that_its_row_does_not_have() -> None:
    for path, row in CALLS.items():
        for tail, allowed in ((b"K\1a", row.items), (b"K\1K\2s", row.pairs)):
            if not allowed:
                assert is_loud(v.p(v.g(*path) + b")R" + tail)), path
        if not row.state:
            assert is_loud(v.p(v.g(*path) + b")R}b")), path


def test_a_defaultdict_calls_a_container_alone() -> None:
    for path in _classes():
        data = v.p(v.call("collections", "defaultdict", v.g(*path)))
        plain = path[0] in ("builtins", "__builtin__", "collections") or path == ("torch", "Size")
        assert plain or is_loud(data), path


# ---- where names come from


ODD = [("random", "_os.system"), ("evilmod", "x"), ("no-such-file", "x"), ("os", "system"), ("builtins", "eval"),
       ("torch", "hub.load"), ("numpy", "memmap"), ("collections", "_sys.modules"), ("my module", "x")]  # fmt: skip


def joblib(numbers: bytes, name: str = "NumpyArrayWrapper") -> bytes:
    """An array of bytes as joblib has it; the class may be spelled in letters that only unpickling shows."""
    dtype = v.call("numpy", "dtype", v.s("u1"), b"\x89", b"\x88") + (
        b"(K\3" + v.s("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb")  # fmt: skip
    state = b"}(" + v.s("subclass") + v.g("numpy", "ndarray") + v.s("shape") + b"M" + struct.pack("<H", len(numbers))
    state += b"\x85" + v.s("order") + v.s("C") + v.s("dtype") + dtype + v.s("allow_mmap") + b"\x89u"
    wrapper = b"Vjoblib.numpy_pickle\nV" + name.encode() + b"\n\x93"
    return b"\x80\x04" + wrapper + b")\x81" + state + b"b" + numbers + b"."


@pytest.mark.parametrize("module_and_name", ODD, ids=".".join)
@pytest.mark.parametrize("name", ["NumpyArrayWrapper", "NumpyArray\\u0057rapper"])
def test_numbers_of_an_array_are_judged_as_opcodes_everywhere_are(module_and_name: tuple[str, str], name: str) -> None:
    module, last = module_and_name
    texts = v.short(module) + v.short(last) + b"\x93"
    lines = b"c" + module.encode() + b"\n" + last.encode() + b"\n"
    for code, call in itertools.product((texts, lines), (b")R0", b"0" if last != "memmap" else b")\x810")):
        report = scan_source(BytesSource(joblib(b"0" + code + call + b"N" * 20, name)), "m.joblib")
        assert "pickle/array-opcodes" in {f.rule for f in report.findings}
    assert verdict(joblib(bytes(range(1, 255)), name), "m.joblib") is ScanVerdict.DATA_ONLY


def test_a_file_that_torch_would_load_from_the_numbers_is_scanned() -> None:
    evil = v.plain_zip(("x/data.pkl", v.EVIL), ("x/version", b"3\n"))
    loads = b"0ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(evil)) + evil + b"\x85R0"
    assert verdict(joblib(loads), "m.joblib") is ScanVerdict.DANGEROUS


def test_an_array_far_into_the_pickle_is_looked_at() -> None:
    evil = joblib(b"0crandom\n_os.system\n(X\1\0\0\0atR0")
    filler = b"B" + struct.pack("<I", 17 << 20) + bytes(17 << 20) + b"0"
    assert verdict(evil[:2] + filler + evil[2:], "m.joblib") is ScanVerdict.DANGEROUS


# ---- arguments that change


def changing() -> Iterator[tuple[str, bytes]]:
    """Calls with a list, dict, set or object of the memo, which is changed behind the call."""
    bytes_ = v.g("builtins", "bytes") + b"]q\0(K\1K\2e\x85R"
    yield "bytes", bytes_ + b"0h\0K\3a"
    yield "bytes, all at once", bytes_ + b"0h\0(K\3K\4e"
    yield "bytes of the pickle", v.call("torch.storage", "_load_from_bytes", bytes_) + b"0h\0K\3a"
    yield "a dict", v.g("builtins", "dict") + b"}q\0\x85R0h\0K\1K\2s"
    yield "a set", v.g("builtins", "list") + b"\x8fq\0\x85R0h\0(K\1\x90"
    dtype = v.call("numpy", "dtype", v.s("V8"), b"\x89", b"\x88")
    small = v.call("numpy", "dtype", v.s("i4"), b"\x89", b"\x88")
    fields = b"}q\1" + v.s("a") + small + b"K\0\x86s"
    state = b"(K\3" + v.s("|") + b"N" + v.s("a") + b"\x85" + fields + b"K\x08K\x01K\0t"
    yield "fields of a type", dtype + state + b"b0h\1" + v.s("a") + small + b"K\x70\x86s"
    code = v.call("_codecs", "encode", v.s("\0" * 8), v.s("latin1"))
    scalar = v.g("numpy._core.multiarray", "scalar") + dtype + b"q\2" + code + b"\x86R0h\2" + state + b"b"
    yield "a type that is built after it was used", scalar


@pytest.mark.parametrize(("name", "body"), list(changing()), ids=[n for n, _ in changing()])
def test_an_argument_does_not_change_behind_its_call(name: str, body: bytes) -> None:
    report = scan_source(BytesSource(v.p(body)), "x")
    assert "pickle/changed-argument" in {f.rule for f in report.findings}


def test_arguments_are_judged_when_they_are_given() -> None:
    """A shape is a tuple, and a list of scales has its length at the call."""
    size = b"]q\0K\3a"
    made = v.call("torch._utils", "_rebuild_tensor_v2", v.STORAGE, b"K\0", size, b"K\1\x85", b"\x89", v.HOOKS)
    assert is_loud(v.p(made))
    assert is_loud(v.p(v.call("torch", "Size", b"]K\3a")))


def test_a_field_of_arrays_lies_inside_its_type() -> None:
    inner = v.call("numpy", "dtype", v.s("f8"), b"\x89", b"\x88")
    for count, fits in ((1, True), (1000, False)):
        sub = inner + b"M" + struct.pack("<H", count) + b"\x85\x86"
        state = b"(K\3" + v.s("|") + sub + b"NNK\x08K\x01K\0t"
        data = v.p(v.call("numpy", "dtype", v.s("V8"), b"\x89", b"\x88") + state + b"b")
        assert is_loud(data) is not fits
