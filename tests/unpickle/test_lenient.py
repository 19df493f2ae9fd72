"""The lenient machine accepts whatever an unpickler of CPython accepts: where it stops, each of them has stopped."""

from __future__ import annotations

import io
import pickle
import random
from contextlib import suppress
from typing import Any

import pytest

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.io.source import BytesSource
from weighbridge.unpickle.machine import Machine

LAX: dict[str, tuple[bytes, Any]] = {
    "hexadecimal": (b"I0x10\n.", 16),
    "octal": (b"I010\n.", 8),
    "underscore": (b"I1_0\n.", 10),
    "space": (b"I 12\n.", 12),
    "plus": (b"I+1\n.", 1),
    "no digits": (b"I\n.", 0),
    "NUL": (b"I1\0zz\n.", 1),
    "long in hexadecimal": (b"L0x10L\n.", 16),
    "float with an underscore": (b"F1_0\n.", 10.0),
    "float with a NUL": (b"F1\0x\n.", 1.0),
    "place in the memo": (b"Np01\n0g1\n.", None),
    "PROTO in the middle": (b"N\x80\x020K\x01.", 1),
    "frame in a frame": (b"\x80\x04\x95\x0b\0\0\0\0\0\0\0\x95\x01\0\0\0\0\0\0\0NN.", None),
    "opcode across a frame": (b"\x80\x04\x95\x01\0\0\0\0\0\0\0K\x07.", 7),
    "a frame longer than the file": (b"\x80\x04\x95\x40\0\0\0\0\0\0\0K\x07.", 7),
    "STOP in a frame": (b"\x80\x04\x95\x04\0\0\0\0\0\0\0K\x07...", 7),
}


@pytest.mark.parametrize(("data", "value"), LAX.values(), ids=LAX)
def test_what_readers_take_differently_is_recorded_and_read_on(data: bytes, value: Any) -> None:
    machine = Machine(BytesSource(data), strict=False)
    assert machine.run() == value
    assert any(e.kind == "disputed" for e in machine.events)
    with pytest.raises(FormatError):
        Machine(BytesSource(data)).run()


STOPS = {
    "no integer": (b"Ihello\n.", "not an integer"),
    "no float": (b"Fhello\n.", "not a float"),
    "arguments that can't be any": (b"cos\nsystem\nK\x01R.", "a tuple"),
    "a name that is a number": (b"K\x01K\x02\x93.", "must be strings"),
    "no opcode": (b"N\xff.", "not an opcode"),
}


@pytest.mark.parametrize(("data", "why"), STOPS.values(), ids=STOPS)
def test_it_stops_where_no_unpickler_goes_on(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        Machine(BytesSource(data), strict=False).run()


def test_a_computed_name_is_recorded() -> None:
    machine = Machine(BytesSource(b"ca\nb\n(tRU\x01x\x93."), strict=False)
    machine.run()
    assert [e.kind for e in machine.events] == ["import", "call", "computed-name"]


def test_a_name_before_the_end_without_a_newline_is_recorded() -> None:
    machine = Machine(BytesSource(b"cthis\nx"), strict=False)
    with pytest.raises(FormatError):
        machine.run()
    assert [str(e.what) for e in machine.events if e.kind == "import"] == ["this."]


@pytest.mark.parametrize("data", [b"I" + b"1" * 5000 + b"\n.", b"F" + b"1" * 5000 + b"\n."])
def test_a_limit_of_ours_is_no_fault_of_the_file(data: bytes) -> None:
    with pytest.raises(UnsupportedError):
        Machine(BytesSource(data), strict=False).run()


class _Imported(Exception):
    pass


def _imports(data: bytes, unpickler: Any) -> bool:
    """Whether an unpickler asks for a name before it stops."""

    class Asking(unpickler):  # type: ignore[misc]
        def find_class(self, module: str, name: str) -> Any:
            raise _Imported

    try:
        Asking(io.BytesIO(data)).load()
    except _Imported:
        return True
    except Exception:
        return False
    return False


_UNPICKLERS = (pickle.Unpickler, pickle._Unpickler)
_PIECES = [b"I0x1\n", b"I1\n", b"p0\n", b"g0\n", b"(", b"t", b"}", b"]", b"a", b"N", b"0", b"1", b"2", b"K\x01", b"s",
           b"\x80\x02", b"\x95\x05\0\0\0\0\0\0\0", b"S'x'\n", b"L1L\n", b"F1.\n", b"q\x00", b"h\x00", b"\x94", b"V\n",
           b"l", b"d", b"\x85", b"\x8c\x01a", b"e", b"u", b"p 1\n", b"I\0\n", b"\x90", b"\x8f", b"\x91"]  # fmt: skip


def test_a_name_that_some_unpickler_asks_for_is_recorded() -> None:
    rng = random.Random(7)
    asked = 0
    for _ in range(6000):
        data = b"".join(rng.choices(_PIECES, k=rng.randint(1, 8))) + b"cos\nsystem\n."
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))] + bytes([rng.randrange(256)]) + data[rng.randrange(len(data)) :]
        theirs = any(_imports(data, unpickler) for unpickler in _UNPICKLERS)
        machine = Machine(BytesSource(data), strict=False)
        with suppress(FormatError, UnsupportedError):
            machine.run()
        if theirs:
            asked += 1
            assert any(e.kind in ("import", "computed-name") for e in machine.events), data
    assert asked > 500
