"""Every opcode of pickle protocols 0 to 5: one row each, with the form of its argument and the first protocol that has
it (CPython Lib/pickletools.py). A test compares the codes and widths in `native/pickles.cpp` with this table.

    form        argument
    ""          none
    "I" "H" ..  one number of that struct code, little-endian (BINFLOAT's is big-endian)
    "line"      text up to a newline
    "lines"     two of them
    "*B" ..     a length of that struct code (lower case: signed), then bytes of that number
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Final, NamedTuple


class Opcode(NamedTuple):
    """`cost`: the bytes of memory that it may take in addition to its argument's (CPython's sizes, rounded up)."""

    code: int
    name: str
    form: str
    protocol: int
    cost: int


_SLOT: Final = 9  # a slot in a list that grows by an eighth
_INT: Final = 48 + _SLOT
_TEXT: Final = 80 + _SLOT
_LIST: Final = 88 + _SLOT  # with its first four slots
_TUPLE: Final = 64 + _SLOT  # with one item or two
_DICT: Final = 168 + _SLOT  # a record with a list
_NAME: Final = 240  # a record with two strings, in the log
_OBJECT: Final = 176  # a record in the log
_STATE: Final = 160  # a list of states, an event

_ROWS: Final = (
    # numbers and constants
    ("I", "INT", "line", 0, _INT),
    ("J", "BININT", "i", 1, _INT),
    ("K", "BININT1", "B", 1, _SLOT),
    ("M", "BININT2", "H", 1, _INT),
    ("L", "LONG", "line", 0, _INT),
    ("\x8a", "LONG1", "*B", 2, _INT),
    ("\x8b", "LONG4", "*i", 2, _INT),
    ("F", "FLOAT", "line", 0, _INT),
    ("G", "BINFLOAT", "d", 1, _INT),
    ("N", "NONE", "", 0, _SLOT),
    ("\x88", "NEWTRUE", "", 2, _SLOT),
    ("\x89", "NEWFALSE", "", 2, _SLOT),
    # text and bytes
    ("S", "STRING", "line", 0, _TEXT),
    ("T", "BINSTRING", "*i", 1, _TEXT),
    ("U", "SHORT_BINSTRING", "*B", 1, _TEXT),
    ("V", "UNICODE", "line", 0, _TEXT),
    ("X", "BINUNICODE", "*I", 1, _TEXT),
    ("\x8c", "SHORT_BINUNICODE", "*B", 4, _TEXT),
    ("\x8d", "BINUNICODE8", "*Q", 4, _TEXT),
    ("C", "SHORT_BINBYTES", "*B", 3, _TEXT),
    ("B", "BINBYTES", "*I", 3, _TEXT),
    ("\x8e", "BINBYTES8", "*Q", 4, _TEXT),
    ("\x96", "BYTEARRAY8", "*Q", 5, _TEXT),
    ("\x97", "NEXT_BUFFER", "", 5, _OBJECT),
    ("\x98", "READONLY_BUFFER", "", 5, 0),
    # lists, tuples, dicts, sets
    ("]", "EMPTY_LIST", "", 1, _LIST),
    ("a", "APPEND", "", 0, 4 * _SLOT),
    ("e", "APPENDS", "", 1, 4 * _SLOT),
    ("l", "LIST", "", 0, _LIST),
    (")", "EMPTY_TUPLE", "", 1, _SLOT),
    ("t", "TUPLE", "", 0, _TUPLE),
    ("\x85", "TUPLE1", "", 2, _TUPLE),
    ("\x86", "TUPLE2", "", 2, _TUPLE),
    ("\x87", "TUPLE3", "", 2, _TUPLE),
    ("}", "EMPTY_DICT", "", 1, _DICT),
    ("d", "DICT", "", 0, _DICT),
    ("s", "SETITEM", "", 0, 4 * _SLOT),
    ("u", "SETITEMS", "", 1, 4 * _SLOT),
    ("\x8f", "EMPTY_SET", "", 4, _DICT),
    ("\x90", "ADDITEMS", "", 4, 4 * _SLOT),
    ("\x91", "FROZENSET", "", 4, _DICT + 4 * _SLOT),
    # the stack and the memo
    ("(", "MARK", "", 0, _LIST + 2 * _SLOT),
    ("0", "POP", "", 0, 0),
    ("1", "POP_MARK", "", 1, 0),
    ("2", "DUP", "", 0, _SLOT),
    ("g", "GET", "line", 0, _SLOT),
    ("h", "BINGET", "B", 1, _SLOT),
    ("j", "LONG_BINGET", "I", 1, _SLOT),
    ("p", "PUT", "line", 0, _SLOT),
    ("q", "BINPUT", "B", 1, _SLOT),
    ("r", "LONG_BINPUT", "I", 1, _SLOT),
    ("\x94", "MEMOIZE", "", 4, _SLOT),
    # names, calls, objects
    ("c", "GLOBAL", "lines", 0, _NAME),
    ("\x93", "STACK_GLOBAL", "", 4, _NAME),
    ("R", "REDUCE", "", 0, _OBJECT),
    ("i", "INST", "lines", 0, _OBJECT + _NAME),
    ("o", "OBJ", "", 1, _OBJECT),
    ("\x81", "NEWOBJ", "", 2, _OBJECT),
    ("\x92", "NEWOBJ_EX", "", 4, _OBJECT),
    ("b", "BUILD", "", 0, _STATE),
    ("\x82", "EXT1", "B", 2, _OBJECT),
    ("\x83", "EXT2", "H", 2, _OBJECT),
    ("\x84", "EXT4", "i", 2, _OBJECT),
    ("P", "PERSID", "line", 0, _OBJECT + _TEXT),
    ("Q", "BINPERSID", "", 1, _OBJECT),
    # the stream itself
    ("\x80", "PROTO", "B", 2, 0),
    ("\x95", "FRAME", "Q", 4, 0),
    (".", "STOP", "", 0, 0),
)  # fmt: skip


TABLE: Final = MappingProxyType({ord(row[0]): Opcode(ord(row[0]), *row[1:]) for row in _ROWS})

#: By code: the cost, and the bytes of a number that follows the opcode (0 for none).
COSTS: Final = tuple(TABLE[code].cost if code in TABLE else 0 for code in range(256))
WIDTHS: Final = tuple(
    struct.calcsize("<" + TABLE[code].form.lstrip("*")) if code in TABLE and "line" not in TABLE[code].form else 0
    for code in range(256)
)
MARK: Final = ord("(")
