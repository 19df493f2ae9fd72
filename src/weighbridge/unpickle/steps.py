"""What each opcode does to the machine: one function or lambda an opcode, by name."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PICKLE_DIGITS, PICKLE_LONG
from weighbridge.unpickle.values import Dict, Global, Outside, Persistent, Set

if TYPE_CHECKING:
    from weighbridge.unpickle.machine import Machine

HIGHEST: Final = 5

# As pickle writes them. Readers differ on the rest: C and Python read 0x1f and 0o7, the disassembler does not, and C
# stops at a NUL (CPython #126992, #126996).
_INTEGER: Final = re.compile(rb"-?(0|[1-9][0-9]*)\Z")
_FLOAT: Final = re.compile(rb"[-+]?([0-9]+\.?[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|inf|nan)\Z")


def _decimal(m: Machine, digits: bytes) -> int:
    if len(digits) > PICKLE_DIGITS:
        m.fail("an integer has too many digits", f"<= {PICKLE_DIGITS}", len(digits))
    if not _INTEGER.match(digits):
        m.fail("no decimal integer, or one that readers take differently", found=digits[:40])
    return int(digits)


def _int(m: Machine, line: bytes) -> None:
    m.push(line == b"01" if line in (b"00", b"01") else _decimal(m, line))


def _long(m: Machine, line: bytes) -> None:
    m.push(_decimal(m, line.removesuffix(b"L")))


def _binary_long(m: Machine, raw: bytes) -> None:
    if len(raw) > PICKLE_LONG:
        m.fail("an integer is too long", f"<= {PICKLE_LONG} bytes", len(raw))
    m.push(int.from_bytes(raw, "little", signed=True))


def _float(m: Machine, line: bytes) -> None:
    if len(line) > PICKLE_DIGITS or not _FLOAT.match(line):
        m.fail("no float", found=line[:40])
    m.push(float(line))


def _index(m: Machine, line: bytes) -> int:
    index = _decimal(m, line)
    if index < 0:
        m.fail("a place in the memo is negative", found=index)
    return index


def _old_text(m: Machine, raw: bytes) -> None:
    """A string of Python 2: text where it is UTF-8 (as torch.load reads it), else bytes."""
    try:
        m.push(raw.decode())
    except UnicodeDecodeError:
        m.push(raw)


def _quoted(m: Machine, line: bytes) -> None:
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b'"', b"'"):
        m.fail("a string is not in quotes", found=line[:40])
    try:
        raw, _ = codecs.escape_decode(line[1:-1])  # as pickle does
    except ValueError as error:
        m.fail(f"a string's escapes are broken: {error}")
    _old_text(m, raw)


def _text(m: Machine, raw: bytes, codec: str = "utf-8") -> str:
    m.spend(3 * len(raw) if not raw.isascii() else 0)  # up to four bytes a character
    try:
        return raw.decode(codec, "surrogatepass" if codec == "utf-8" else "strict")
    except UnicodeDecodeError as error:
        m.fail(f"text is not {codec}: {error.reason}")


def _raw_unicode(m: Machine, line: bytes) -> None:
    m.spend(3 * len(line))
    m.push(_text(m, line, "raw-unicode-escape"))


def _global(m: Machine, lines: tuple[bytes, bytes]) -> Global:
    return m.name(_text(m, lines[0]), _text(m, lines[1]))


def _stack_global(m: Machine, _: None) -> None:
    name, module = m.pop(), m.pop()
    m.push(m.name(module, name))


def _reduce(m: Machine, _: None) -> None:
    args, callee = m.pop(), m.pop()
    m.call(callee, args)


def _instance(m: Machine, lines: tuple[bytes, bytes]) -> None:
    items = m.pop_mark()
    m.call(_global(m, lines), tuple(items))


def _object(m: Machine, _: None) -> None:
    items = m.pop_mark()
    if not items:
        m.fail("no class to make an object of")
    m.call(items[0], tuple(items[1:]))


def _new_object_ex(m: Machine, _: None) -> None:
    kwargs, args, callee = m.pop(), m.pop(), m.pop()
    m.call(callee, args, kwargs)


def _extension(m: Machine, code: int) -> None:
    if code <= 0:
        m.fail("an extension's code is not positive", found=code)
    m.push(Outside(m.at, code))
    m.note("extension", m.top())


def _persistent(m: Machine, id: Any) -> None:
    m.push(Persistent(m.at, id))
    m.note("persistent", m.top())


def _buffer(m: Machine, _: None) -> None:
    m.push(Outside(m.at))
    m.note("buffer", m.top())


def _protocol(m: Machine, number: int) -> None:
    if m.steps > 1:
        m.fail("PROTO is not the first opcode")
    if number > HIGHEST:
        raise UnsupportedError(f"{m.source.name}: pickle protocol {number} is not known", hint="is it a pickle at all?")
    m.protocol = number


def _pair(m: Machine, _: None) -> None:
    value, key = m.pop(), m.pop()
    m.set_pairs([key, value])


def _last(m: Machine, count: int) -> tuple[Any, ...]:
    items = [m.pop() for _ in range(count)]
    return tuple(reversed(items))


def _marked(m: Machine) -> list[Any]:
    items = m.pop_mark()
    m.spend(8 * len(items))
    return items


def _push(value: Any) -> Callable[[Machine, Any], None]:
    return lambda m, _: m.push(value)


def _identity(m: Machine, argument: Any) -> None:
    m.push(argument)


DO: Final[Mapping[str, Callable[[Machine, Any], None]]] = MappingProxyType(
    {
        "INT": _int,
        "BININT": _identity,
        "BININT1": _identity,
        "BININT2": _identity,
        "LONG": _long,
        "LONG1": _binary_long,
        "LONG4": _binary_long,
        "FLOAT": _float,
        "BINFLOAT": _identity,
        "NONE": _push(None),
        "NEWTRUE": _push(True),
        "NEWFALSE": _push(False),
        "STRING": _quoted,
        "BINSTRING": _old_text,
        "SHORT_BINSTRING": _old_text,
        "UNICODE": _raw_unicode,
        "BINUNICODE": lambda m, raw: m.push(_text(m, raw)),
        "SHORT_BINUNICODE": lambda m, raw: m.push(_text(m, raw)),
        "BINUNICODE8": lambda m, raw: m.push(_text(m, raw)),
        "SHORT_BINBYTES": _identity,
        "BINBYTES": _identity,
        "BINBYTES8": _identity,
        "BYTEARRAY8": _identity,
        "NEXT_BUFFER": _buffer,
        "READONLY_BUFFER": lambda m, _: m.push(m.pop()),
        "EMPTY_LIST": lambda m, _: m.push([]),
        "APPEND": lambda m, _: m.extend([m.pop()]),
        "APPENDS": lambda m, _: m.extend(m.pop_mark()),
        "LIST": lambda m, _: m.push(_marked(m)),
        "EMPTY_TUPLE": _push(()),
        "TUPLE": lambda m, _: m.push(tuple(_marked(m))),
        "TUPLE1": lambda m, _: m.push(_last(m, 1)),
        "TUPLE2": lambda m, _: m.push(_last(m, 2)),
        "TUPLE3": lambda m, _: m.push(_last(m, 3)),
        "EMPTY_DICT": lambda m, _: m.push(Dict(m.at, [])),
        "DICT": lambda m, _: m.push(Dict(m.at, m.pairs(m.pop_mark()))),
        "SETITEM": _pair,
        "SETITEMS": lambda m, _: m.set_pairs(m.pop_mark()),
        "EMPTY_SET": lambda m, _: m.push(Set(m.at, [])),
        "ADDITEMS": lambda m, _: m.add(m.pop_mark()),
        "FROZENSET": lambda m, _: m.push(Set(m.at, _marked(m), frozen=True)),
        "MARK": lambda m, _: m.mark(),
        "POP": lambda m, _: m.drop(),
        "POP_MARK": lambda m, _: (m.pop_mark(), None)[1],
        "DUP": lambda m, _: m.push(m.top()),
        "GET": lambda m, line: m.get(_index(m, line)),
        "BINGET": lambda m, key: m.get(key),
        "LONG_BINGET": lambda m, key: m.get(key),
        "PUT": lambda m, line: m.put(_index(m, line)),
        "BINPUT": lambda m, key: m.put(key),
        "LONG_BINPUT": lambda m, key: m.put(key),
        "MEMOIZE": lambda m, _: m.memoize(),
        "GLOBAL": lambda m, lines: m.push(_global(m, lines)),
        "STACK_GLOBAL": _stack_global,
        "REDUCE": _reduce,
        "INST": _instance,
        "OBJ": _object,
        "NEWOBJ": _reduce,
        "NEWOBJ_EX": _new_object_ex,
        "BUILD": lambda m, _: m.build(),
        "EXT1": _extension,
        "EXT2": _extension,
        "EXT4": _extension,
        "PERSID": lambda m, line: _persistent(m, _text(m, line)),
        "BINPERSID": lambda m, _: _persistent(m, m.pop()),
        "PROTO": _protocol,
        "FRAME": lambda m, size: m.enter_frame(size),
    }
)
