"""Every opcode of pickle protocols 0 to 5: one row each, with the form of its argument and the first protocol that has
it (CPython Lib/pickletools.py).

    form        argument
    ""          none
    "I" "H" ..  one little-endian number of that struct code
    "line"      text up to a newline
    "lines"     two of them
    "*B" ..     a length of that struct code (lower case: signed), then so many bytes
    "=Q" ..     the same, but the bytes may stay in the source (long byte strings)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple


class Opcode(NamedTuple):
    """`cost`: bytes of memory that it may take, besides its argument's (CPython's sizes, rounded up)."""

    code: int
    name: str
    form: str
    protocol: int
    cost: int


_SLOT: Final = 8
_NUMBER: Final = 40
_TEXT: Final = 64
_LIST: Final = 152  # a list and its first allocation
_DICT: Final = 208  # a record with a list
_TUPLE: Final = 64
_MEMO: Final = 104  # an int and its place in a dict that grows
_OBJECT: Final = 480  # a record with three lists, an event
_NAME: Final = 240  # a record, two strings, an event

_ROWS: Final = (
    # numbers and constants
    ("I", "INT", "line", 0, _NUMBER),
    ("J", "BININT", "i", 1, _NUMBER),
    ("K", "BININT1", "B", 1, _SLOT),
    ("M", "BININT2", "H", 1, _NUMBER),
    ("L", "LONG", "line", 0, _NUMBER),
    ("\x8a", "LONG1", "*B", 2, _NUMBER),
    ("\x8b", "LONG4", "*i", 2, _NUMBER),
    ("F", "FLOAT", "line", 0, _NUMBER),
    ("G", "BINFLOAT", "double", 1, _NUMBER),
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
    ("B", "BINBYTES", "=I", 3, _TEXT),
    ("\x8e", "BINBYTES8", "=Q", 4, _TEXT),
    ("\x96", "BYTEARRAY8", "=Q", 5, _TEXT),
    ("\x97", "NEXT_BUFFER", "", 5, _NAME),
    ("\x98", "READONLY_BUFFER", "", 5, 0),
    # lists, tuples, dicts, sets
    ("]", "EMPTY_LIST", "", 1, _LIST),
    ("a", "APPEND", "", 0, _SLOT),
    ("e", "APPENDS", "", 1, 0),
    ("l", "LIST", "", 0, _LIST),
    (")", "EMPTY_TUPLE", "", 1, _SLOT),
    ("t", "TUPLE", "", 0, _TUPLE),
    ("\x85", "TUPLE1", "", 2, _TUPLE),
    ("\x86", "TUPLE2", "", 2, _TUPLE),
    ("\x87", "TUPLE3", "", 2, _TUPLE),
    ("}", "EMPTY_DICT", "", 1, _DICT),
    ("d", "DICT", "", 0, _DICT),
    ("s", "SETITEM", "", 0, _TUPLE),
    ("u", "SETITEMS", "", 1, 0),
    ("\x8f", "EMPTY_SET", "", 4, _DICT),
    ("\x90", "ADDITEMS", "", 4, 0),
    ("\x91", "FROZENSET", "", 4, _DICT),
    # the stack and the memo
    ("(", "MARK", "", 0, _LIST),
    ("0", "POP", "", 0, 0),
    ("1", "POP_MARK", "", 1, 0),
    ("2", "DUP", "", 0, _SLOT),
    ("g", "GET", "line", 0, _SLOT),
    ("h", "BINGET", "B", 1, _SLOT),
    ("j", "LONG_BINGET", "I", 1, _SLOT),
    ("p", "PUT", "line", 0, _MEMO),
    ("q", "BINPUT", "B", 1, _MEMO),
    ("r", "LONG_BINPUT", "I", 1, _MEMO),
    ("\x94", "MEMOIZE", "", 4, _MEMO),
    # names, calls, objects
    ("c", "GLOBAL", "lines", 0, _NAME),
    ("\x93", "STACK_GLOBAL", "", 4, _NAME),
    ("R", "REDUCE", "", 0, _OBJECT),
    ("i", "INST", "lines", 0, _OBJECT + _NAME),
    ("o", "OBJ", "", 1, _OBJECT),
    ("\x81", "NEWOBJ", "", 2, _OBJECT),
    ("\x92", "NEWOBJ_EX", "", 4, _OBJECT),
    ("b", "BUILD", "", 0, _TUPLE + _TEXT),
    ("\x82", "EXT1", "B", 2, _NAME),
    ("\x83", "EXT2", "H", 2, _NAME),
    ("\x84", "EXT4", "i", 2, _NAME),
    ("P", "PERSID", "line", 0, _NAME),
    ("Q", "BINPERSID", "", 1, _NAME),
    # the stream itself
    ("\x80", "PROTO", "B", 2, 0),
    ("\x95", "FRAME", "Q", 4, 0),
    (".", "STOP", "", 0, 0),
)  # fmt: skip

TABLE: Final = MappingProxyType({ord(row[0]): Opcode(ord(row[0]), *row[1:]) for row in _ROWS})
