"""An abstract pickle machine: it runs the opcodes of any protocol over inert values. It imports nothing, calls nothing
and hashes nothing that the pickle says, so no input can make it run code; what a real unpickler would do is recorded.

    machine = Machine(source)
    value = machine.run()        FormatError where the pickle is broken; `machine.events` has what came before
    machine.end                  where the pickle ends: others may follow

Where CPython's unpicklers, its disassembler and torch's differ in what they make of the same bytes, the pickle is
refused: an integer in hex, a number with a NUL in it, an opcode across the end of its frame, PROTO in the middle.
Memory is bounded by an account of every opcode's cost (`limits.PICKLE_MEMORY`), time by the number of bytes.

Reference: CPython Lib/pickle.py (`_Unpickler`), Lib/pickletools.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_BLOB, PICKLE_MEMORY
from weighbridge.io.source import Source
from weighbridge.unpickle.opcodes import TABLE, Opcode
from weighbridge.unpickle.steps import DO
from weighbridge.unpickle.values import Blob, Dict, Global, Object, Outside, Persistent, Record, Set

_CHUNK: Final = 1 << 16
_FRAME_WORDS: Final = "an opcode reaches across the end of its frame"


class Event(NamedTuple):
    """Something that a real unpickler would do beyond making plain data. `kind`: import, call, build, persistent,
    extension, buffer, or odd (done to a value that has no such thing). `what`: the record it is about."""

    kind: str
    at: int
    op: str
    what: Any


class Machine:
    """One pickle of `source`, from `offset` on. `budget` bounds the memory of its values."""

    def __init__(self, source: Source, offset: int = 0, budget: int = PICKLE_MEMORY) -> None:
        self.source, self.budget = source, budget
        self.start: int = offset
        self.events: list[Event] = []
        self.protocol = 0
        self.steps = 0
        self.leftover = 0  # values on the stack when it stopped, besides the result
        self.at: int = offset  # of the opcode at work
        self._buffer, self._base, self._next = b"", offset, 0  # bytes from `base` on; the next is at `next`
        self._op: Opcode = TABLE[0x2E]
        self._frame_end: int | None = None
        self._spent = 0
        self._memo: dict[int, Any] = {}
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []

    @property
    def end(self) -> int:
        """The offset behind the last byte read."""
        return self._base + self._next

    def run(self) -> Any:
        """The value of the pickle."""
        while True:
            self.at = self._base + self._next
            code = self._take(1)[0]
            op = TABLE.get(code)
            if op is None:
                raise FormatError("no opcode of a pickle", path=self.source.name, offset=self.at, found=f"{code:#04x}")
            self._op = op
            self.steps += 1
            self.spend(op.cost)
            argument = _READ[op.form](self)
            if self._frame_end is not None and self.end >= self._frame_end:
                self._leave_frame()
            if op.code == 0x2E:
                return self._stop()
            DO[op.name](self, argument)

    # ---- bytes

    def fail(self, words: str, expected: Any = None, found: Any = None) -> NoReturn:
        raise FormatError(words, path=self.source.name, offset=self.at, field=self._op.name, expected=expected,
                          found=found)  # fmt: skip

    def spend(self, count: int) -> None:
        self._spent += count
        if self._spent > self.budget:
            raise UnsupportedError(
                f"{self.source.name}, byte {self.at}: the pickle's values take more than {self.budget} bytes",
                hint="checkpoints stay far below; what does this file hold?",
            )

    def _take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if self._next + count > len(self._buffer):
            self._refill(count)
        taken = self._buffer[self._next : self._next + count]
        self._next += count
        return taken

    def _refill(self, count: int) -> None:
        """Have `count` bytes from `next` on in the buffer."""
        at = self.end
        left = self.source.size - at
        if count > left:
            self._op = self._op if count > 1 or at != self.at else TABLE[0x2E]
            self.fail("the pickle ends too early", f"{count} bytes", f"{max(left, 0)} left")
        self._buffer, self._base, self._next = self.source.read(at, min(max(count, _CHUNK), left)), at, 0

    def take_line(self) -> bytes:
        """Bytes up to a newline, which is stepped over."""
        length = self._buffer.find(b"\n", self._next) - self._next
        looked = len(self._buffer) - self._next
        while length < 0:
            left = self.source.size - self.end
            self.spend(looked)
            if looked >= left:
                self.fail("a line has no end")
            self._refill(min(max(2 * looked, _CHUNK), left))
            length, looked = self._buffer.find(b"\n", self._next) - self._next, len(self._buffer) - self._next
        line = self._take(length + 1)[:-1]
        self.spend(length)
        return line

    def take_counted(self, form: str) -> bytes:
        size = self._length(form)
        self.spend(size)
        return self._take(size)

    def take_bytes(self, form: str) -> bytes | Blob:
        """A byte string; a long one stays in the source."""
        size = self._length(form)
        if size <= PICKLE_BLOB:
            self.spend(size)
            return self._take(size)
        blob = Blob(self.at, self.end, size)
        self._buffer, self._base, self._next = b"", self.end + size, 0
        return blob

    def _length(self, form: str) -> int:
        size = int(self.number(form))
        left = self.source.size - self.end
        if not 0 <= size <= left:
            self.fail("the pickle ends inside a value", f"{size} bytes", f"{left} left")
        return size

    def number(self, form: str) -> Any:
        codec = _NUMBERS[form]
        return codec.unpack(self._take(codec.size))[0]

    def _leave_frame(self) -> None:
        # CPython's C unpickler read on across a frame's end (#154848) where its Python one refuses.
        if self._frame_end is not None and self.end > self._frame_end:
            self.fail(_FRAME_WORDS, f"end at {self._frame_end}", self.end)
        self._frame_end = None

    def enter_frame(self, size: int) -> None:
        if self._frame_end is not None:
            self.fail("a frame begins inside a frame")
        if size > self.source.size - self.end:
            self.fail("the pickle ends inside a frame", f"{size} bytes", f"{self.source.size - self.end} left")
        self._frame_end = self.end + size if size else None

    # ---- stack and memo

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if not self._stack:
            self.fail("the stack is empty")
        return self._stack.pop()

    def top(self) -> Any:
        if not self._stack:
            self.fail("the stack is empty")
        return self._stack[-1]

    def mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def pop_mark(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self._marks:
            self.fail("no MARK on the stack")
        items, self._stack = self._stack, self._marks.pop()
        self._spent -= TABLE[0x28].cost  # the mark's own list is gone
        return items

    def drop(self) -> None:
        """POP: the value on top, or an empty mark."""
        if self._stack:
            self._stack.pop()
        else:
            self.pop_mark()

    def put(self, key: int) -> None:
        self._memo[key] = self.top()

    def memoize(self) -> None:
        self.put(len(self._memo))  # the memo's size, not a count of puts

    def get(self, key: int) -> None:
        if key not in self._memo:
            self.fail("the memo has no such entry", found=key)
        self.push(self._memo[key])

    def _stop(self) -> Any:
        value = self.pop()
        self.leftover = len(self._stack) + sum(map(len, self._marks))
        if self._frame_end is not None:
            self.fail("STOP inside a frame", f"end at {self._frame_end}", self.end)
        self._stack, self._marks, self._memo, self._buffer = [], [], {}, b""
        self._base, self._next = self.end, 0
        return value

    # ---- records

    def note(self, kind: str, what: Any) -> None:
        self.events.append(Event(kind, self.at, self._op.name, what))

    def name(self, module: Any, name: Any) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            self.fail("a module and a name must be strings")
        found = Global(self.at, module, name)
        self.note("import", found)
        return found

    def call(self, callee: Any, args: Any, kwargs: Any = None) -> None:
        """Push what calling would give. Plain data can't be called, and arguments are a tuple."""
        if not isinstance(callee, Record) or isinstance(callee, Dict | Set | Blob):
            self.fail("what is called is plain data")
        if not isinstance(args, tuple | Object | Persistent | Outside):
            self.fail("the arguments are no tuple")
        made = Object(self.at, self._op.name, callee, args, kwargs)
        self.note("call", made)
        self.push(made)

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Object):
            target.states.append(state)
            self.note("build", target)
        else:
            self.note("odd", target)

    # ---- filling lists, dicts and sets

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        self.spend(8 * len(items))
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Object):
            target.items.extend(items)
        else:
            self.note("odd", target)

    def add(self, items: list[Any]) -> None:
        target = self.top()
        self.spend(8 * len(items))
        if isinstance(target, Object) or (isinstance(target, Set) and not target.frozen):
            target.items.extend(items)
        else:
            self.note("odd", target)

    def set_pairs(self, items: list[Any]) -> None:
        pairs = self.pairs(items)
        target = self.top()
        if isinstance(target, Dict | Object):
            target.pairs.extend(pairs)
        else:
            self.note("odd", target)

    def pairs(self, items: list[Any]) -> list[tuple[Any, Any]]:
        if len(items) % 2:
            self.fail("a key without a value")
        self.spend(40 * len(items))
        return list(zip(items[::2], items[1::2], strict=True))


# ---- arguments ------------------------------------------------------------------------------------------------

_NUMBERS: Final = MappingProxyType(
    {code: struct.Struct(f"<{code}") for code in "BHiIQ"} | {"double": struct.Struct(">d")}
)


def _reader(form: str) -> Callable[[Machine], Any]:
    if form in _NUMBERS:
        return lambda m: m.number(form)
    take = Machine.take_counted if form[0] == "*" else Machine.take_bytes
    return lambda m: take(m, form[1:])


_READ: Final[Mapping[str, Callable[[Machine], Any]]] = MappingProxyType(
    {
        "": lambda m: None,
        "line": Machine.take_line,
        "lines": lambda m: (m.take_line(), m.take_line()),
        **{op.form: _reader(op.form) for op in TABLE.values() if op.form not in ("", "line", "lines")},
    }
)
