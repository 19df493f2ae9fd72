"""Writes pickles of plain values and three records: names, calls and persistent ids. Nothing is looked up or called.

Protocol 2, opcode by opcode and memo slot by memo slot like CPython's own pickler (`Modules/_pickle.c`), so that a
state dict's `data.pkl` has the bytes of torch.save. Text is memoized by value, everything else by identity.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass

_BATCH: Final = 1000  # items per SETITEMS or APPENDS
_SMALL_TUPLES: Final = (b")", b"\x85", b"\x86", b"\x87")
_CONSTANTS: Final = {None: b"N", True: b"\x88", False: b"\x89"}


@dataclass(frozen=True)
class Name:
    """A name that a loader imports."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """A call by a loader, after which each pair is set in its result."""

    callee: Name
    args: tuple[Any, ...]
    pairs: Sequence[tuple[Any, Any]] = ()


@dataclass(frozen=True, eq=False)
class PersistentId:
    """An object outside the pickle, by its id."""

    id: tuple[Any, ...]


class _Put(NamedTuple):
    """Gives the value on top of the stack the memo's next slot."""

    value: Any


class _Op(NamedTuple):
    """A raw opcode with its argument."""

    code: bytes


_MARK: Final = _Op(b"(")


def dumps(value: Any) -> bytes:
    """Pickles `value`. UsageError for anything that is neither plain nor one of the records."""
    return _Writer().run(value)


class _Writer:
    def __init__(self) -> None:
        self.out = [b"\x80\x02"]
        self.memo: dict[Any, int] = {}
        self.kept: list[Any] = []  # memoized objects stay alive, so that their ids stay unique

    def run(self, root: Any) -> bytes:
        """Iterative, because untrusted data may be nested deeply."""
        todo: list[Any] = [root]
        while todo:
            item = todo.pop()
            if isinstance(item, _Op):
                self.out.append(item.code)
            elif isinstance(item, _Put):
                new = self.memo[_key(item.value)] = len(self.memo)
                self.kept.append(item.value)
                self.out.append(_slot(b"q", b"r", new))
            elif (slot := self.memo.get(_key(item))) is not None:
                self.out.append(_slot(b"h", b"j", slot))
            else:
                todo += reversed([*_steps(item)])
        return b"".join((*self.out, b"."))


def _steps(value: Any) -> Iterator[Any]:
    """The opcodes, inner values and memo slots that write `value`, in order."""
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
        case bytes():  # protocol 2 has no bytes: text and a call that encodes it
            yield from _call(value, Name("_codecs", "encode"), (value.decode("latin-1"), "latin1"))
        case tuple():
            if len(value) < len(_SMALL_TUPLES):
                yield from (*value, _Op(_SMALL_TUPLES[len(value)]))
            else:
                yield from (_MARK, *value, _Op(b"t"))
            if value:  # the empty tuple is never memoized
                yield _Put(value)
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


def _items(items: Sequence[Any]) -> Iterator[Any]:
    if len(items) == 1:
        yield from (items[0], _Op(b"a"))
        return
    for at in range(0, len(items), _BATCH):
        yield from (_MARK, *items[at : at + _BATCH], _Op(b"e"))


def _pairs(pairs: Sequence[tuple[Any, Any]], *, dict_: bool) -> Iterator[Any]:
    """Sets pairs in batches. A dict's single pair uses SETITEM, and full batches are followed by an empty one. For
    other objects (an OrderedDict) SETITEM also writes a single pair that remains at the end."""
    for at in range(0, len(pairs), _BATCH):
        batch = pairs[at : at + _BATCH]
        flat = [part for pair in batch for part in pair]
        single = len(batch) == 1 and not (dict_ and at)
        yield from (*flat, _Op(b"s")) if single else (_MARK, *flat, _Op(b"u"))
    if dict_ and pairs and len(pairs) % _BATCH == 0:
        yield from (_MARK, _Op(b"u"))
