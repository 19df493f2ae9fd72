"""The effect of each opcode on the machine: one step per opcode, by name.

A step receives the machine, its window and the position after the opcode, and returns the position of the next opcode.
It reads its argument before it changes anything. If the window ends too early it raises (IndexError, struct.error,
Short) and runs again in a longer window; the machine turns an IndexError of an empty stack into an error.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PICKLE_LONG
from weighbridge.unpickle import text_numbers
from weighbridge.unpickle.opcodes import TABLE
from weighbridge.unpickle.state import MachineState
from weighbridge.unpickle.values import Blob, Dict, External, Object, Persistent, PickleFault, Set

HIGHEST: Final = 5
_INDEX: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<Q")

Step: TypeAlias = Callable[[MachineState, bytes, int], int]


# ---- numbers --------------------------------------------------------------------------------------------------


def _binary_long(form: str) -> Step:
    head = struct.Struct(f"<{form}")

    def step(m: MachineState, data: bytes, at: int) -> int:
        (size,) = head.unpack_from(data, at)
        if size > PICKLE_LONG:
            m.need(size, at + head.size)
            m.over_limit(f"an integer is longer than {PICKLE_LONG} bytes")
        raw = m.counted(size, at + head.size)
        m.stack.append(int.from_bytes(raw, "little", signed=True))  # type: ignore[arg-type]  # too short for a Blob
        return int(at + head.size + size)

    return step


# ---- text and bytes -------------------------------------------------------------------------------------------


def _old_text(m: MachineState, raw: bytes) -> Any:
    """A Python 2 string: text if it is UTF-8 (like torch.load), else bytes."""
    m.spent += 3 * len(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _unquote(m: MachineState, line: bytes) -> Any:
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b'"', b"'"):
        m.fail("a string is not in quotes", found=line[:40], code=PickleFault.TEXT)
    try:
        raw, _ = codecs.escape_decode(line[1:-1])  # as pickle does
    except ValueError as error:
        m.fail(f"a string's escapes are broken: {error}", code=PickleFault.TEXT)
    return _old_text(m, raw)


def _text(m: MachineState, raw: bytes, codec: str = "utf-8") -> str:
    if not raw.isascii():
        m.spent += 3 * len(raw)  # up to four bytes a character
    try:
        return raw.decode(codec, "surrogatepass" if codec == "utf-8" else "strict")
    except UnicodeDecodeError as error:
        m.fail(f"text is not {codec}: {error.reason}", code=PickleFault.TEXT)


def _raw_unicode(m: MachineState, line: bytes) -> str:
    m.spent += 3 * len(line)
    return _text(m, line, "raw-unicode-escape")


def _counted(form: str, make: Callable[[MachineState, bytes], Any], codec: str) -> Step:
    """An argument after its length. A long one stays in the source."""
    head = struct.Struct(f"<{form}")
    width = head.size

    def step(m: MachineState, data: bytes, at: int) -> int:
        (size,) = head.unpack_from(data, at)
        raw = m.counted(size, at + width)
        if isinstance(raw, Blob):
            raw.codec = codec
            m.stack.append(raw)
        else:
            m.stack.append(make(m, raw))
        return int(at + width + size)

    return step


def _short_text(m: MachineState, data: bytes, at: int) -> int:
    """SHORT_BINUNICODE, the most frequent opcode of protocol 4."""
    end = at + 1 + data[at]
    raw = data[at + 1 : end]
    if end > len(data):
        m.counted(data[at], at + 1)
    m.spent += end - at
    m.stack.append(_text(m, raw))
    return end


# ---- the forms of arguments -----------------------------------------------------------------------------------


def _push(value: Any) -> Step:
    def step(m: MachineState, data: bytes, at: int) -> int:
        m.stack.append(value)
        return at

    return step


def _number(form: str) -> Step:
    codec = struct.Struct(form)

    def step(m: MachineState, data: bytes, at: int) -> int:
        m.stack += codec.unpack_from(data, at)
        return at + codec.size

    return step


def _byte(m: MachineState, data: bytes, at: int) -> int:
    m.stack.append(data[at])
    return at + 1


def _line(make: Callable[[MachineState, bytes], Any]) -> Step:
    """Pushes the value parsed from a line."""

    def step(m: MachineState, data: bytes, at: int) -> int:
        end = m.line(at)
        m.stack.append(make(m, data[at:end]))
        return end + 1

    return step


def _plain(do: Callable[[MachineState], Any]) -> Step:
    """A step without an argument."""

    def step(m: MachineState, data: bytes, at: int) -> int:
        do(m)
        return at

    return step


def _with_number(form: str, do: Callable[[MachineState, Any], Any]) -> Step:
    """A step with one number as its argument."""
    codec = struct.Struct(f"<{form}")

    def step(m: MachineState, data: bytes, at: int) -> int:
        do(m, codec.unpack_from(data, at)[0])
        return at + codec.size

    return step


# ---- the memo -------------------------------------------------------------------------------------------------


def _get(m: MachineState, data: bytes, at: int) -> int:
    m.get(data[at])
    return at + 1


def _long_get(m: MachineState, data: bytes, at: int) -> int:
    m.get(_INDEX.unpack_from(data, at)[0])
    return at + 4


def _put(m: MachineState, data: bytes, at: int) -> int:
    m.put(data[at])
    return at + 1


def _long_put(m: MachineState, data: bytes, at: int) -> int:
    m.put(_INDEX.unpack_from(data, at)[0])
    return at + 4


def _slot_line(do: Callable[[MachineState, int], None]) -> Step:
    """A step with a memo slot written as a line."""

    def step(m: MachineState, data: bytes, at: int) -> int:
        end = m.line(at)
        do(m, text_numbers.index(m, data[at:end]))
        return end + 1

    return step


# ---- names, calls, objects ------------------------------------------------------------------------------------


def _names(m: MachineState, data: bytes, at: int) -> tuple[str, str, int]:
    middle = m.line(at)
    end = m.line(middle + 1)
    return _text(m, data[at:middle]), _text(m, data[middle + 1 : end]), end + 1


def _global(m: MachineState, data: bytes, at: int) -> int:
    module, name, end = _names(m, data, at)
    m.stack.append(m.name(module, name))
    return end


def _stack_global(m: MachineState) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.stack.append(m.name(module, name))


def _call(op: str) -> Step:
    def step(m: MachineState, data: bytes, at: int) -> int:
        args = m.stack.pop()
        m.call(m.stack.pop(), args, op)
        return at

    return step


def _instance(m: MachineState, data: bytes, at: int) -> int:
    module, name, end = _names(m, data, at)
    named = m.name(module, name)  # before looking for the mark, like Python's unpickler
    items = tuple(m.pop_mark())
    m.spent += 8 * len(items)
    m.call(named, items, "INST")
    return end


def _object(m: MachineState) -> None:
    items = m.pop_mark()
    if not items:
        m.fail("no class to make an object of")
    m.spent += 8 * len(items)
    m.call(items[0], tuple(items[1:]), "OBJ")


def _new_object_ex(m: MachineState) -> None:
    kwargs, args = m.stack.pop(), m.stack.pop()
    m.call(m.stack.pop(), args, "NEWOBJ_EX", kwargs)


def _build(m: MachineState) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if isinstance(target, Object):
        target.build(state)
        m.note("build", target)
    else:
        m.note("odd", target)


def _line_persistent(m: MachineState, data: bytes, at: int) -> int:
    end = m.line(at)
    m.log(Persistent(m.at, _text(m, data[at:end]), "PERSID"))
    return end + 1


def _extension(m: MachineState, code: int) -> None:
    if code <= 0:
        m.fail("an extension's code is not positive", found=code)
    m.log(External(m.at, m.opcode, "extension", code))


def _protocol(m: MachineState, number: int) -> None:
    if m.at != m.start:
        m.dispute("PROTO is not the first opcode", code=PickleFault.PROTOCOL)
    if number > HIGHEST and not m.strict:
        m.fail("PROTO of an unknown protocol", found=number, code=PickleFault.PROTOCOL)
    if number > HIGHEST:
        raise UnsupportedError(f"{m.source.name}: unknown pickle protocol {number}", hint="is it a pickle at all?")
    m.protocol = number


def _frame(m: MachineState, data: bytes, at: int) -> int:
    (size,) = _FRAME.unpack_from(data, at)
    m.enter_frame(size, at + 8)
    return at + 8


# ---- lists, tuples, dicts, sets -------------------------------------------------------------------------------


def _mark(m: MachineState, data: bytes, at: int) -> int:
    m.marks.append(m.stack)
    m.stack = []
    return at


def _marked(m: MachineState) -> list[Any]:
    """Removes the last mark and returns the values above it, which become part of a new value."""
    items = m.pop_mark()
    m.spent += 8 * len(items)
    return items


def _tuple(m: MachineState, data: bytes, at: int) -> int:
    items = tuple(_marked(m))
    m.stack.append(items)
    return at


def _tuple1(m: MachineState, data: bytes, at: int) -> int:
    m.stack[-1] = (m.stack[-1],)
    return at


def _tuple2(m: MachineState, data: bytes, at: int) -> int:
    last = m.stack.pop()
    m.stack[-1] = (m.stack[-1], last)
    return at


def _tuple3(m: MachineState, data: bytes, at: int) -> int:
    third, second = m.stack.pop(), m.stack.pop()
    m.stack[-1] = (m.stack[-1], second, third)
    return at


def _list(m: MachineState) -> None:
    items = _marked(m)  # replaces `m.stack`
    m.stack.append(items)


def _frozen(m: MachineState) -> None:
    frozen = Set(m.at, _marked(m), frozen=True)
    m.stack.append(frozen)


def _dict(m: MachineState) -> None:
    items = _marked(m)
    if len(items) % 2:
        m.fail("a key without a value")
    m.stack.append(Dict(m.at, items))


def _pair(m: MachineState) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.set_pairs([key, value])


def _drop(m: MachineState) -> None:
    """Removes the value on top, or the mark if nothing is above it."""
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()


def _stop(m: MachineState, data: bytes, at: int) -> int:
    m.halt(at)
    return at


def _unknown(m: MachineState, data: bytes, at: int) -> int:
    m.fail("not an opcode of a pickle", found=f"{data[at - 1]:#04x}", code=PickleFault.OPCODE)


DO: Final[Mapping[str, Step]] = MappingProxyType(
    {
        "INT": _line(text_numbers.integer),
        "BININT": _number("<i"),
        "BININT1": _byte,
        "BININT2": _number("<H"),
        "LONG": _line(text_numbers.long),
        "LONG1": _binary_long("B"),
        "LONG4": _binary_long("i"),
        "FLOAT": _line(text_numbers.real),
        "BINFLOAT": _number(">d"),
        "NONE": _push(None),
        "NEWTRUE": _push(True),
        "NEWFALSE": _push(False),
        "STRING": _line(_unquote),
        "BINSTRING": _counted("i", _old_text, "python 2"),
        "SHORT_BINSTRING": _counted("B", _old_text, "python 2"),
        "UNICODE": _line(_raw_unicode),
        "BINUNICODE": _counted("I", _text, "utf-8"),
        "SHORT_BINUNICODE": _short_text,
        "BINUNICODE8": _counted("Q", _text, "utf-8"),
        "SHORT_BINBYTES": _counted("B", lambda m, raw: raw, ""),
        "BINBYTES": _counted("I", lambda m, raw: raw, ""),
        "BINBYTES8": _counted("Q", lambda m, raw: raw, ""),
        "BYTEARRAY8": _counted("Q", lambda m, raw: raw, ""),
        "NEXT_BUFFER": _plain(lambda m: m.log(External(m.at, m.opcode, "buffer"))),
        "READONLY_BUFFER": _plain(lambda m: m.stack[-1]),
        "EMPTY_LIST": _plain(lambda m: m.stack.append([])),
        "APPEND": _plain(lambda m: m.extend([m.stack.pop()])),
        "APPENDS": _plain(lambda m: m.extend(_marked(m))),
        "LIST": _plain(_list),
        "EMPTY_TUPLE": _push(()),
        "TUPLE": _tuple,
        "TUPLE1": _tuple1,
        "TUPLE2": _tuple2,
        "TUPLE3": _tuple3,
        "EMPTY_DICT": _plain(lambda m: m.stack.append(Dict(m.at, []))),
        "DICT": _plain(_dict),
        "SETITEM": _plain(_pair),
        "SETITEMS": _plain(lambda m: m.set_pairs(_marked(m))),
        "EMPTY_SET": _plain(lambda m: m.stack.append(Set(m.at, []))),
        "ADDITEMS": _plain(lambda m: m.add(_marked(m))),
        "FROZENSET": _plain(_frozen),
        "MARK": _mark,
        "POP": _plain(_drop),
        "POP_MARK": _plain(lambda m: m.pop_mark()),
        "DUP": _plain(lambda m: m.stack.append(m.stack[-1])),
        "GET": _slot_line(lambda m, slot: m.get(slot)),
        "BINGET": _get,
        "LONG_BINGET": _long_get,
        "PUT": _slot_line(lambda m, slot: m.put(slot)),
        "BINPUT": _put,
        "LONG_BINPUT": _long_put,
        "MEMOIZE": _plain(lambda m: m.put(len(m.memo))),  # the memo's size, not a count of puts
        "GLOBAL": _global,
        "STACK_GLOBAL": _plain(_stack_global),
        "REDUCE": _call("REDUCE"),
        "INST": _instance,
        "OBJ": _plain(_object),
        "NEWOBJ": _call("NEWOBJ"),
        "NEWOBJ_EX": _plain(_new_object_ex),
        "BUILD": _plain(_build),
        "EXT1": _with_number("B", _extension),
        "EXT2": _with_number("H", _extension),
        "EXT4": _with_number("i", _extension),
        "PERSID": _line_persistent,
        "BINPERSID": _plain(lambda m: m.log(Persistent(m.at, m.stack.pop()))),
        "PROTO": _with_number("B", _protocol),
        "FRAME": _frame,
        "STOP": _stop,
    }
)

#: By code.
STEPS: Final = tuple(DO[TABLE[code].name] if code in TABLE else _unknown for code in range(256))
