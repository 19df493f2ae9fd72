"""The abstract machine against CPython: its opcode table is pickletools', plain values are those that `pickle.loads`
gives, and no pickle makes it import or call. Broken and ambiguous pickles are refused where they go wrong."""

from __future__ import annotations

import collections
import pickle
import pickletools
import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_BLOB, PICKLE_LONG
from weighbridge.io.source import BytesSource
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.opcodes import TABLE
from weighbridge.unpickle.steps import DO
from weighbridge.unpickle.values import Blob, Dict, External, Global, Object, Persistent, Set, preview

PROTOCOLS = range(6)


def run(data: bytes) -> Any:
    return Machine(BytesSource(data)).run()


def plain(value: Any, source: bytes = b"") -> Any:
    """Records as the Python values that they stand for (for data only)."""
    match value:
        case list():
            return [plain(v, source) for v in value]
        case tuple():
            return tuple(plain(v, source) for v in value)
        case Dict():
            return {plain(k, source): plain(v, source) for k, v in value.pairs}
        case Set():
            return (frozenset if value.frozen else set)(plain(v, source) for v in value.items)
        case Blob():
            return source[value.start : value.start + value.size]
        case Object(callee=Global(module=m, name=n), args=args):
            return CALLS[m, n](*plain(args, source))
    return value


CALLS: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): lambda text, codec: text.encode(codec),
    **{
        (m, t.__name__): t
        for m in ("builtins", "__builtin__")
        for t in (set, frozenset, bytearray, bytes)  # protocols below 4
    },
}


def test_the_table_is_that_of_pickletools() -> None:
    theirs = {ord(op.code): (op.name, op.proto) for op in pickletools.opcodes}
    assert {op.code: (op.name, op.protocol) for op in TABLE.values()} == theirs
    assert {op.name for op in TABLE.values()} == {*DO, "STOP"}


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(),
    st.binary(max_size=300),
)  # fmt: skip
keys = st.one_of(st.text(), st.integers(), st.binary(max_size=9), st.tuples(st.integers(), st.text()))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.tuples(inner), st.tuples(inner, inner, inner, inner),
        st.dictionaries(keys, inner, max_size=4), st.sets(keys, max_size=4), st.frozensets(keys, max_size=4),
    ),
    max_leaves=20,
)  # fmt: skip


@examples(300)
@given(trees, st.sampled_from(PROTOCOLS))
def test_plain_data_is_what_pickle_loads(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    machine = Machine(BytesSource(b"xx" + data + b"rest"), 2)
    assert plain(machine.run()) == pickle.loads(data) == value
    assert machine.end == 2 + len(data)
    assert machine.steps == sum(1 for _ in pickletools.genops(data))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_parts_stay_shared_and_cycles_are_kept(protocol: int) -> None:
    part = ["x"]
    value: list[Any] = [part, part]
    value.append(value)
    got = run(pickle.dumps(value, protocol))
    assert got[0] is got[1]
    assert got[2] is got


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_long_byte_strings_stay_in_the_source(protocol: int) -> None:
    big = bytes(range(256)) * (PICKLE_BLOB // 256 + 1)
    data = pickle.dumps([big, "after", bytearray(big) if protocol == 5 else 1], protocol)
    got = run(data)
    assert isinstance(got[0], Blob)
    assert plain(got, data) == pickle.loads(data)


class Reduces:
    """What `__reduce_ex__` gives is what is pickled."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.parts


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_names_and_calls_are_recorded_and_not_done(protocol: int) -> None:
    data = pickle.dumps(Reduces(sys.setrecursionlimit, (7,), {"a": 1}, iter([2]), iter([("k", 3)])), protocol)
    before = sys.getrecursionlimit()
    machine = Machine(BytesSource(data))
    made = machine.run()
    assert sys.getrecursionlimit() == before
    assert (str(made.callee), made.args) == ("sys.setrecursionlimit", (7,))
    assert (made.items, made.pairs, made.states[0].pairs) == ([2], [("k", 3)], [("a", 1)])
    assert [e.kind for e in machine.events] == ["import", "call", "build"]
    ops = {pos: op.name for op, _, pos in pickletools.genops(data)}
    assert all(ops[e.at] == e.op for e in machine.events)


def test_objects_of_classes_are_records() -> None:
    data = pickle.dumps(collections.OrderedDict(a=1), 2)
    made = run(data)
    assert (made.callee.path, made.pairs) == (("collections", "OrderedDict"), [("a", 1)])
    assert run(b"(icollections\nOrderedDict\n.").op == "INST"
    assert run(b"(ccollections\nOrderedDict\nI1\no.").args == (1,)
    assert run(b"\x80\x04cbuiltins\nx\n)}\x92.").kwargs.pairs == []


def test_what_lies_outside_is_a_record() -> None:
    assert isinstance(run(b"Pabc\n."), Persistent)
    assert run(b"\x80\x02U\x01xQ.").id == "x"
    assert [run(b"\x80\x02" + op + b".").code for op in (b"\x82\x07", b"\x83\x07\x00", b"\x84\x07\0\0\0")] == [7] * 3
    assert isinstance(run(b"\x80\x05\x97\x98."), External)


def test_the_memo_and_the_stack() -> None:
    assert run(b"K\x01q\x05K\x020h\x05.") == 1
    assert run(b"K\x01\x94K\x02\x940g1\n.") == 2  # an index is the memo's size
    assert run(b"K\x01(K\x02K\x031.") == 1
    assert run(b"K\x012\x86.") == (1, 1)
    assert run(b"((0K\x01t.") == (1,)  # POP takes an empty mark


ODD = {
    "append to a tuple": b")K\x01a.",
    "set an item of a list": b"]K\x01K\x02s.",
    "set an item of a name": b"cm\nn\nK\x01K\x02s.",
    "add to a list": b"](K\x01\x90.",
    "add to a frozenset": b"(\x91(K\x01\x90.",
    "state of a dict": b"}}b.",
    "state of a class": b"cm\nn\n}b.",
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_what_a_value_does_not_have_is_not_done_but_recorded(data: bytes) -> None:
    machine = Machine(BytesSource(data))
    machine.run()
    assert [e.kind for e in machine.events if e.kind != "import"] == ["odd"]


def frame(body: bytes, size: int | None = None) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", len(body) if size is None else size) + body


BROKEN = {
    "nothing": (b"", "too early"),
    "no stop": (b"K\x01", "too early"),
    "no opcode": (b"\xff.", "not an opcode"),
    "cut number": (b"J\x01\x02", "too early"),
    "text past the end": (b"X\xff\xff\xff\x7fabc.", "inside a value"),
    "bytes past the end": (b"\x8e" + b"\xff" * 7 + b"\x7fabc.", "inside a value"),
    "negative length": (b"T\xff\xff\xff\xffabc.", "inside a value"),
    "line without end": (b"I12", "no end"),
    "hex integer": (b"I0x1\n.", "not a decimal"),
    "octal integer": (b"I0o7\n.", "not a decimal"),
    "leading zero": (b"I007\n.", "not a decimal"),
    "underscore": (b"I1_0\n.", "not a decimal"),
    "plus": (b"I+1\n.", "not a decimal"),
    "NUL in an integer": (b"I1\0zz\n.", "not a decimal"),
    "NUL in a long": (b"L1\0L\n.", "not a decimal"),
    "many digits": (b"I" + b"1" * 5000 + b"\n.", "digits"),
    "long of many bytes": (b"\x8b" + struct.pack("<i", PICKLE_LONG + 1) + bytes(PICKLE_LONG + 1) + b".", "longer"),
    "no float": (b"F1_0\n.", "not a float"),
    "string without quotes": (b"Sabc\n.", "quotes"),
    "string of one quote": (b"S'\n.", "quotes"),
    "string's escapes": (b"S'\\x1'\n.", "escapes"),
    "text not UTF-8": (b"X\x01\0\0\0\xff.", "utf-8"),
    "raw text": (b"V\\u12\n.", "raw-unicode"),
    "empty stack": (b".", "stack is empty"),
    "empty stack, top": (b"2.", "stack is empty"),
    "no mark": (b"K\x01t.", "no MARK"),
    "pop of nothing": (b"0.", "no MARK"),
    "memo": (b"h\x07.", "memo"),
    "negative memo": (b"K\x01p-1\n.", "negative"),
    "odd pairs": (b"(K\x01d.", "without a value"),
    "call of data": (b"K\x01)R.", "plain data"),
    "call of a dict": (b"})R.", "plain data"),
    "arguments no tuple": (b"cm\nn\n]R.", "a tuple"),
    "name of numbers": (b"K\x01K\x02\x93.", "strings"),
    "object of nothing": (b"(o.", "no class"),
    "extension zero": (b"\x82\0.", "not positive"),
    "PROTO in the middle": (b"K\x01\x80\x02.", "not the first"),
    "frame past the end": (frame(b"N.", 99), "inside a frame"),
    "frame in a frame": (frame(b"\x95" + bytes(8) + b"N."), "inside a frame"),
    "opcode across a frame": (frame(b"J\1\0\0\0N.", 3), "across the end"),
    "stop inside a frame": (frame(b"N.N."), "STOP inside"),
}


@pytest.mark.parametrize(("data", "why"), BROKEN.values(), ids=BROKEN)
def test_broken_and_ambiguous_pickles_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        run(data)


def test_unknown_protocols_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="protocol 6"):
        run(b"\x80\x06N.")
    with pytest.raises(FormatError, match="unknown protocol"):  # none goes on, so that a lenient machine stops as well
        Machine(BytesSource(b"\x80\x06N."), strict=False).run()


def test_what_came_before_an_error_is_kept() -> None:
    machine = Machine(BytesSource(b"cos\nsystem\n(U\x02idtR\xff"))
    with pytest.raises(FormatError):
        machine.run()
    assert [e.kind for e in machine.events] == ["import", "call"]


# What a hostile pickle may repeat: each unit leaves something behind.
STORMS = {
    "dicts": (b"", b"}"), "lists": (b"", b"]"), "marks": (b"", b"("), "sets": (b"", b"\x8f"),
    "frozen sets": (b"", b"(N\x91"), "dup": (b"N", b"2"), "gets": (b"Nq\0", b"h\0"), "memo": (b"N", b"\x94"),
    "sparse memo": (b"Nr\0\0\1\0", b"N\x94"), "numbers": (b"", b"M\xff\xff"), "floats": (b"", b"G\0\0\0\0\0\0\0\1"),
    "longs": (b"", b"\x8a\x09" + b"\1" * 9), "text": (b"", b"X\x10\0\0\0" + b"x" * 16),
    "wide text": (b"", b"X\x04\0\0\0\xf0\x9f\x98\x80"), "raw text": (b"", b"V\\u1234\n"),
    "bytes": (b"", b"C\x10" + bytes(16)),
    "python 2 text": (b"", b"U\x02\xff\xfe"), "tuples": (b"N", b"2\x86"), "tuples of three": (b"N", b"22\x87"),
    "long tuples": (b"", b"(" + b"N" * 50 + b"t"), "appended lists": (b"", b"]Na"), "filled dicts": (b"", b"}NNs"),
    "long dicts": (b"", b"(" + b"N" * 50 + b"d"), "one list": (b"]", b"Na"), "one dict": (b"}", b"(NNu"),
    "names": (b"", b"ca\nb\n"),
    "calls": (b"cm\nf\nq\0", b"h\0)R"), "popped calls": (b"cm\nf\nq\0", b"h\0)R0"), "states": (b"cm\nf\n)R", b"Nb"),
    "objects filled": (b"cm\nf\nq\0", b"h\0)RNaNNsNb"), "INST": (b"", b"(ia\nb\n"), "OBJ": (b"cm\nf\nq\0", b"(h\0NNo"),
    "NEWOBJ_EX": (b"cm\nf\nq\0", b"h\0)}\x92"), "odd": (b"]", b"Nb"), "ids": (b"", b"NQ"), "text ids": (b"", b"P1\n"),
    "extensions": (b"", b"\x82\1"), "buffers": (b"", b"\x97"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "unit"), STORMS.values(), ids=STORMS)
def test_the_account_is_no_less_than_what_values_take(first: bytes, unit: bytes) -> None:
    budget = 2 << 20
    machine = Machine(BytesSource(first + unit * ((8 << 20) // len(unit))), budget=budget)
    with traced_memory() as memory, pytest.raises(UnsupportedError, match="take more than"):
        machine.run()
    assert budget <= machine.spent
    assert memory.held < 1.05 * machine.spent + (64 << 10)
    assert machine.spent - budget < (3 << 20)  # overdrawn by one window at most


def test_marks_that_are_taken_back_cost_nothing() -> None:
    machine = Machine(BytesSource(b"(1" * 60_000 + b"N."), budget=3 << 20)
    assert machine.run() is None


@pytest.mark.parametrize("op", [b"I", b"V", b"S'", b"F", b"cos\n"])
def test_a_line_without_end_is_not_held(op: bytes) -> None:
    machine = Machine(BytesSource(op + b"1" * (8 << 20)), budget=4 << 20)
    with traced_memory() as memory, pytest.raises(UnsupportedError, match="take more than"):
        machine.run()
    assert memory.peak < 5 << 20


@examples(60)
@given(trees, st.sampled_from(PROTOCOLS), st.integers(1, 40))
def test_the_window_is_no_limit(value: Any, protocol: int, window: int) -> None:
    """The smallest windows: every argument is cut somewhere."""
    data = pickle.dumps([value, 1 << 300, "long text " * 20, b"long bytes" * 20], protocol)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weighbridge.unpickle.state.PICKLE_WINDOW", window)
        machine = Machine(BytesSource(data))
        assert plain(machine.run()) == pickle.loads(data)
        assert (machine.end, machine.steps) == (len(data), sum(1 for _ in pickletools.genops(data)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_trace_is_what_the_disassembler_says(protocol: int) -> None:
    data = pickle.dumps([1.5, {"a": (1, 2, b"x" * 300)}, {3}, 1 << 70, "t" * 40_000], protocol)
    machine = Machine(BytesSource(data))
    seen = [(machine.end, op.name) for op in machine.trace() if op]
    assert seen == [(pos, op.name) for op, _, pos in pickletools.genops(data)]
    assert (machine.end, machine.done) == (len(data), True)
    cut = Machine(BytesSource(data[:-2]))
    with pytest.raises(FormatError):
        list(cut.trace())


def test_a_long_text_stays_in_the_source() -> None:
    text = "é" * PICKLE_BLOB
    for protocol in (1, 2, 4):
        got = run(pickle.dumps([text, "after"], protocol))
        assert (got[0].size, got[0].codec, got[1]) == (2 * PICKLE_BLOB, "utf-8", "after")
    assert run(b"T" + struct.pack("<i", PICKLE_BLOB + 1) + bytes(PICKLE_BLOB + 1) + b".").codec == "python 2"


def test_billion_laughs_stay_small_and_are_not_printed() -> None:
    data = b"\x80\x02]q\0" + b"".join(b"(" + b"h\0" * 9 + b"lq\0" for _ in range(50)) + b"."
    assert preview(run(data)) == "list of 9"
    tuples = b"\x80\x02)q\0" + b"".join(b"(" + b"h\0" * 9 + b"tq\0" for _ in range(50)) + b"}h\0K\x01s."
    run(tuples)  # as a dict's key: never hashed


def test_keys_that_together_take_long_to_hash_are_a_bomb() -> None:
    """Each is small, and all share their parts, which are walked through once."""
    chain = b"\x80\x02)" + b"\x85" * 50 + b"q\0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weighbridge.unpickle.state._HASHED", 1000)
        for keys, bombs in ((9, 0), (10, 1), (25, 2)):
            machine = Machine(BytesSource(chain + b"}" + b"h\0Ns" * keys + b"."))
            machine.run()
            assert [e.kind for e in machine.events].count("bomb") == bombs
            assert len(machine._weights) == 51


def test_deep_nesting_is_no_recursion() -> None:
    value = run(b"]" * 100_000 + b"a" * 99_999 + b".")
    assert preview(value) == "list of 1"
    assert preview(run(b"\x8b\x00\x10\0\0" + b"\x7f" * 4096 + b".")) == "integer of 32767 bits"
