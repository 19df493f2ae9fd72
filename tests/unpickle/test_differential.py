"""The stack and the memo of the abstract machine against `pickletools.dis` and CPython's unpickler, on random sequences
of opcodes that are well-formed one by one: who accepts them, what is left on the stack, which places of the memo are
taken. Only opcodes that make data: CPython runs these pickles."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from weighbridge.base.errors import FormatError
from weighbridge.io.source import BytesSource
from weighbridge.unpickle.machine import Machine

# By what they do to the stack: each kind is drawn as often as another.
PUSH = (b"N", b"\x88", b"\x89", b"K\1", b"M\1\2", b"J\1\2\3\xff", b"I7\n", b"I01\n", b"L8L\n", b"\x8a\1\5", b"F1.5\n",
        b"G" + struct.pack(">d", 2.5), b"S'a'\n", b"Vb\n", b"U\1c", b"X\1\0\0\0d", b"\x8c\1e", b"C\1f",
        b"B\1\0\0\0g", b"T\1\0\0\0h", b"\x8e" + struct.pack("<Q", 1) + b"i", b"\x96" + struct.pack("<Q", 1) + b"j",
        b"\x8d" + struct.pack("<Q", 1) + b"k", b"]", b"}", b")", b"\x8f", b"\x8b\1\0\0\0\7")  # fmt: skip
MARK = (b"(",)
TAKE = (b"t", b"l", b"d", b"e", b"u", b"\x90", b"\x91", b"1")
POP = (b"0", b"2", b"\x85", b"\x86", b"\x87", b"a", b"s")
MEMO = (b"\x94", b"q\0", b"q\1", b"q\3", b"r\2\0\0\0", b"p4\n", b"h\0", b"h\1", b"h\2", b"j\2\0\0\0", b"g4\n", b"h\3")
KINDS = (PUSH, PUSH, MARK, TAKE, POP, MEMO)
OPCODES = st.sampled_from(KINDS).flatmap(st.sampled_from)
PICKLES = st.lists(OPCODES, max_size=30).map(lambda ops: b"\x80\4" + b"".join(ops) + b".")
# What `dis` alone complains of: the memo's places may be taken again, values may be left.
DIS_ONLY = re.compile(r"memo key .* already defined|stack not empty after STOP")
LEFT = re.compile(r"stack not empty after STOP: \[(.*)\]")


def ours(data: bytes) -> tuple[Machine, set[int]] | None:
    """The machine at its end, and the places of its memo that are taken; None where it refuses."""
    machine = Machine(BytesSource(data))
    memo: set[int] = set()
    try:
        for _ in machine.trace():
            memo = set(machine.memo if isinstance(machine.memo, dict) else range(len(machine.memo)))
        same = Machine(BytesSource(data))
        same.run()
    except FormatError:
        return None
    assert (same.leftover, same.end) == (machine.leftover, machine.end)
    return machine, memo


def disassembled(data: bytes) -> tuple[str, set[int]]:
    """What `dis` complains of ("": of nothing), and the places of the memo that are taken."""
    memo: dict[int, object] = {}
    try:
        pickletools.dis(data, io.StringIO(), memo)
    except ValueError as error:
        return str(error), set(memo)
    except IndexError:  # a mark was popped or doubled as if it were a value
        return "it breaks", set(memo)
    return "", set(memo)


def loads(data: bytes) -> bool:
    """Whether CPython's unpickler takes it."""
    try:
        pickle._Unpickler(io.BytesIO(data)).load()
    except Exception:  # whatever it is, it does not take it
        return False
    return True


def agree(data: bytes) -> str:
    """Assert that all agree; who took it, in a word."""
    found, (complaint, memo) = ours(data), disassembled(data)
    if found is None:
        assert complaint or not loads(data), "a real unpickler and the disassembler take it"
        return "refused"
    assert not complaint or DIS_ONLY.match(complaint), complaint
    machine, taken = found
    assert machine.end == len(data)
    if not complaint:
        assert (machine.leftover, taken) == (0, memo)
    elif left := LEFT.match(complaint):
        assert machine.leftover == sum(word != "mark" for word in left[1].split(", "))  # marks are no values
        assert taken == memo
    return "left over" if complaint else "taken"


@examples(500)
@given(PICKLES)
@example(b"\x80\4N\x94N\x940.")
@example(b"\x80\4(((N.")
@example(b"\x80\4(N0t.")
@example(b"\x80\4](a.")
@example(b"\x80\4(0N.")
def test_stack_and_memo_are_those_of_the_disassembler(data: bytes) -> None:
    agree(data)


@examples(500)
@given(PICKLES)
def test_what_a_real_unpickler_takes_is_taken(data: bytes) -> None:
    assert not loads(data) or ours(data) is not None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"N.", "taken"),
        (b"(K\1K\2t.", "taken"),
        (b"NN.", "left over"),
        (b"(N.", "left over"),
        (b".", "refused"),
        (b"t.", "refused"),
        (b"a.", "refused"),
        (b"h\0.", "refused"),
        (b"(\x94.", "refused"),
        (b"(Na.", "refused"),
    ],
)
def test_known_ones(data: bytes, said: str) -> None:
    assert agree(b"\x80\4" + data) == said


def test_random_sequences_are_of_every_kind() -> None:
    """Else the laws above would hold of nothing."""
    seen: set[str] = set()

    @settings(max_examples=300, database=None, derandomize=True)
    @given(PICKLES)
    def look(data: bytes) -> None:
        seen.add(agree(data))

    look()
    assert seen == {"taken", "left over", "refused"}


def test_every_opcode_that_makes_data_is_drawn() -> None:
    drawn = {op[0] for kind in KINDS for op in kind}
    running = b"cio\x82\x83\x84R\x81\x92\x93bPQ\x97\x98"  # they import, call, build or ask for what is outside
    framing = b"\x80\x95."
    assert drawn | {*running, *framing} == {ord(op.code) for op in pickletools.opcodes}
