"""Pickles written: plain values, and three records for what a pickle says beyond them. Nothing is looked up or called.

Protocol 2, opcode by opcode and memo slot by memo slot as CPython's own pickler writes it (`Modules/_pickle.c`), so
that a state dict's `data.pkl` has the bytes that torch.save gives it. Texts are remembered by value, all else by
identity.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weighbridge.base.errors import UsageError

_BATCH: Final = 1000  # items that one SETITEMS or APPENDS takes
_SMALL_TUPLES: Final = (b")", b"\x85", b"\x86", b"\x87")
_CONSTANTS: Final = {None: b"N", True: b"\x88", False: b"\x89"}


@dataclass(frozen=True)
class Name:
    """What a loader imports."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """What a loader calls, with what; then each pair is set in the result."""

    callee: Name
    args: tuple[Any, ...]
    pairs: Sequence[tuple[Any, Any]] = ()


@dataclass(frozen=True, eq=False)
class PersistentId:
    """What lies outside the pickle, by its id."""

    id: tuple[Any, ...]


class _Put:
    """To be done after what came before it: the top of the stack gets the memo's next slot."""

    def __init__(self, key: Any) -> None:
        self.key = key


class _Op:
    """An opcode to be written as it is."""

    def __init__(self, code: bytes) -> None:
        self.code = code


_MARK: Final = _Op(b"(")


def dumps(value: Any) -> bytes:
    """`value` as a pickle. UsageError for what is neither plain nor one of the records."""
    return _Writer().run(value)


class _Writer:
    def __init__(self) -> None:
        self.out = [b"\x80\x02"]
        self.memo: dict[Any, int] = {}
        self.kept: list[Any] = []  # a remembered id is an object's own only while the object lives

    def run(self, root: Any) -> bytes:
        """Iterative: depth is the data's, and data may come from a stranger."""
        todo: list[Any] = [root]
        while todo:
            item = todo.pop()
            if isinstance(item, _Op):
                self.out.append(item.code)
            elif isinstance(item, _Put):
                self.put(item.key)
            elif (slot := self.memo.get(_key(item))) is not None:
                self.out.append(_slot(b"h", b"j", slot))
            else:
                todo += reversed([*_steps(item)])
        return b"".join((*self.out, b"."))

    def put(self, value: Any) -> None:
        slot = self.memo[_key(value)] = len(self.memo)
        self.kept.append(value)
        self.out.append(_slot(b"q", b"r", slot))


def _steps(value: Any) -> Iterator[Any]:
    """What writes `value`: opcodes, values inside it, memo slots, in their order."""
    match value:
        case None | bool():
            yield _Op(_CONSTANTS[value])
        case int():
            yield _Op(_integer(value))
        case float():
            yield _Op(struct.pack(">cd", b"G", value))
        case str():
            raw = value.encode("utf-8", "surrogatepass")
            yield from (_Op(struct.pack("<cI", b"X", len(raw)) + raw), _Put(value))
        case bytes():  # protocol 2 has none: text, and the call that makes bytes of it
            yield from _call(value, Name("_codecs", "encode"), (value.decode("latin-1"), "latin1"))
        case tuple():
            yield from _tuple(value)
        case list():
            yield from (_Op(b"]"), _Put(value), *_items(value))
        case dict():
            yield from (_Op(b"}"), _Put(value), *_pairs([*value.items()], dict_=True))
        case Name():
            yield from (_Op(f"c{value.module}\n{value.name}\n".encode()), _Put(value))
        case PersistentId():
            yield from (value.id, _Op(b"Q"))
        case Call():
            yield from _call(value, value.callee, value.args)
            yield from _pairs(value.pairs, dict_=False)
        case _:
            raise UsageError(f"a {type(value).__name__} has no place in a pickle of plain data")


def _call(value: Any, callee: Any, args: Any) -> Iterator[Any]:
    yield from (callee, args, _Op(b"R"), _Put(value))


def _key(value: Any) -> Any:
    return value if isinstance(value, str | Name) else id(value)


def _slot(short: bytes, long: bytes, slot: int) -> bytes:
    return short + bytes((slot,)) if slot < 256 else struct.pack("<cI", long, slot)


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return struct.pack("<cB", b"K", value)
    if 0 <= value < 1 << 16:
        return struct.pack("<cH", b"M", value)
    if -(1 << 31) <= value < 1 << 31:
        return struct.pack("<ci", b"J", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if value < 0 and len(raw) > 1 and raw[-1] == 0xFF and raw[-2] & 0x80:
        raw = raw[:-1]  # the sign fits the byte before
    return (struct.pack("<cB", b"\x8a", len(raw)) if len(raw) < 256 else struct.pack("<cI", b"\x8b", len(raw))) + raw


def _tuple(value: tuple[Any, ...]) -> Iterator[Any]:
    if len(value) < len(_SMALL_TUPLES):
        yield from (*value, _Op(_SMALL_TUPLES[len(value)]))
    else:
        yield from (_MARK, *value, _Op(b"t"))
    if value:  # the empty one is never remembered
        yield _Put(value)


def _items(items: Sequence[Any]) -> Iterator[Any]:
    if len(items) == 1:
        yield from (items[0], _Op(b"a"))
        return
    for at in range(0, len(items), _BATCH):
        yield from (_MARK, *items[at : at + _BATCH], _Op(b"e"))


def _pairs(pairs: Sequence[tuple[Any, Any]], *, dict_: bool) -> Iterator[Any]:
    """Of a dict one pair alone is set by itself, and whole batches are followed by an empty one; of other things (an
    OrderedDict) one that remains at the end is set by itself."""
    for at in range(0, len(pairs), _BATCH):
        batch = pairs[at : at + _BATCH]
        flat = [part for pair in batch for part in pair]
        alone = len(batch) == 1 and not (dict_ and at)
        yield from (*flat, _Op(b"s")) if alone else (_MARK, *flat, _Op(b"u"))
    if dict_ and pairs and len(pairs) % _BATCH == 0:
        yield from (_MARK, _Op(b"u"))
