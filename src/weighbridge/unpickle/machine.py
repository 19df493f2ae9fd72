"""An abstract pickle machine: it runs the opcodes of any protocol over inert values. It imports nothing, calls nothing
and hashes nothing that the pickle says, so no input can make it run code; what a real unpickler would do is recorded.

    machine = Machine(source)
    value = machine.run()        FormatError where the pickle is broken; `machine.events` has what came before
    machine.end                  where the pickle ends: others may follow
    for step in Machine(source).trace():    one opcode at a time, with the stack in between

CPython's unpicklers, its disassembler and torch's differ in what they make of some bytes: an integer in hex, a number
with a NUL in it, an opcode across the end of its frame, PROTO in the middle. A strict machine refuses them. A lenient
one (`strict=False`) records a `disputed` event and goes on as the most permissive unpickler would, so that where it
raises FormatError every unpickler has stopped too. UnsupportedError is a limit of ours: an unpickler may go on.
Memory is bounded by an account of every opcode's cost (`limits.PICKLE_MEMORY`), time by the number of bytes.

Opcodes are run in bursts over a window of the source, which begins at offset `base`. An opcode whose argument isn't
whole in the window raises before it has changed anything, and is run again in a longer one.

Reference: CPython Lib/pickle.py (`_Unpickler`), Lib/pickletools.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn

from weighbridge.base import gc_pause
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_BLOB, PICKLE_MEMORY, PICKLE_STEPS, PICKLE_WINDOW
from weighbridge.io.source import Source
from weighbridge.unpickle.opcodes import COSTS, MARK, TABLE, WIDTHS, Opcode
from weighbridge.unpickle.steps import STEPS, Short
from weighbridge.unpickle.values import Blob, Dict, Done, External, Global, Object, Persistent, Set, weight

_EVENT: Final = 152  # bytes that an Event and its place take
_MEMO: Final = 96  # a number and its place in a dict that grows, beyond a list's
_PLACES: Final = 1 << 20  # places of the memo that any pickle may take
_RETAINED: Final = 4  # bytes in memory for each of a long line: the window, what it is read into, the line, its text
_MAYBE_TEXT: Final = (str, Blob, Object, Persistent, External)
_ITERABLE: Final = (list, str, bytes, Blob, Dict, Set)  # what Python's unpickler takes as arguments
_HASHED: Final = 1 << 28  # parts of all keys, each time that they are hashed: some seconds
_FRAME: Final = "an opcode reaches across the end of its frame"


class Event(NamedTuple):
    """Something that a real unpickler would do beyond making plain data. `kind`: import, call, build, persistent,
    extension, buffer, computed-name, odd (done to a value that has no such thing), bomb (a key that takes too long to
    hash, a place of the memo far behind all others), or disputed (`what`: the reason, as text). `what` is otherwise the
    record, key or place it is about."""

    kind: str
    at: int
    op: str
    what: Any


class Machine:
    """One pickle of `source`, from `offset` on. `budget` bounds the memory of its values."""

    def __init__(self, source: Source, offset: int = 0, budget: int = PICKLE_MEMORY, *, strict: bool = True) -> None:
        self.source, self.budget, self.start, self.strict = source, budget, offset, strict
        self.protocol = 0
        self.steps = 0
        self.leftover = 0  # values on the stack when it stopped, besides the result
        self.done = self.disputes = False
        self.reframed = False  # frames overlap: CPython's C unpickler goes on with other bytes
        self.spent = 0
        self.stack: list[Any] = []  # since the last mark
        self.marks: list[list[Any]] = []  # the stacks below the marks
        self.memo: list[Any] | dict[int, Any] = []  # a list as long as its places are taken in order
        self.base = offset  # where the window begins
        self._data = b""
        self._here = self._next = 0  # in the window: the opcode at work, the next one
        self._stop = 0  # in the window: where a burst ends
        self._frame_end: int | None = None
        self._hashed = 0  # parts of keys
        self._weights: dict[int, tuple[Any, int]] = {}  # tuples of keys, with their parts
        self._log: list[Done | Event] = []

    @property
    def at(self) -> int:
        """The offset of the opcode at work."""
        return self.base + self._here

    @property
    def opcode(self) -> str:
        """The name of the opcode at work."""
        return TABLE[self._data[self._here]].name

    @property
    def end(self) -> int:
        """The offset behind what was run."""
        return self.base + self._next

    @property
    def events(self) -> Iterator[Event]:
        """What a real unpickler would do, in its order."""
        for made in self._log:
            yield made if isinstance(made, Event) else Event(made.kind, made.at, made.how, made)

    def run(self) -> Any:
        """The value of the pickle."""
        with gc_pause.paused():
            while not self.done:
                self._ready()
                self._burst()
        return self._finish()

    def trace(self) -> Iterator[Opcode | None]:
        """Run one opcode at a time. Each is given before it is run (None where it is none): its place is `end`, and
        `stack` is what it finds."""
        while not self.done:
            self._ready()
            yield TABLE.get(self._data[self._next])
            steps = self.steps
            while self.steps == steps:  # again in a longer window where its argument isn't whole
                self._ready()
                self._stop = self._next + 1
                self._burst()

    def _burst(self) -> None:
        """Run opcodes while they begin before `stop`."""
        data, run, costs = self._data, STEPS, COSTS
        count = spent = 0
        here = self._next
        try:
            while here < self._stop:
                self._here = here
                code = data[here]
                spent += costs[code]
                here = run[code](self, data, here + 1)
                count += 1
            self._next = here
        except Short as short:
            self._again(short.need)
        except (IndexError, struct.error):  # of the window, or of the stack
            self._again(1 + WIDTHS[data[self._here]])
        finally:
            self.steps += count
            self.spent += spent

    # ---- bytes

    def _ready(self) -> None:
        """Have an opcode in the window, and know where a burst has to stop."""
        if self._frame_end is not None and self.end >= self._frame_end:
            # CPython's C unpickler read on across a frame's end (#154848) where its Python one refuses.
            if self.end > self._frame_end:
                self.dispute(_FRAME, f"end at {self._frame_end}", self.end)
                self.reframed = True
            self._frame_end = None
        if self._next >= len(self._data):
            self._load(PICKLE_WINDOW)
        self.spend(0)
        inside = len(self._data) if self._frame_end is None else self._frame_end - self.base
        self._stop = min(len(self._data), inside)

    def _load(self, size: int) -> None:
        """A window of at most `size` bytes from the next opcode on."""
        at = self.end
        left = self.source.size - at
        if left <= 0:
            raise FormatError("the pickle ends too early", path=self.source.name, offset=at, expected="an opcode",
                              found="no byte")  # fmt: skip
        self._data, self.base, self._here, self._next = self.source.read(at, min(size, left)), at, 0, 0

    def _again(self, need: int) -> None:
        """Run the opcode at work again with `need` bytes from it on in the window, of which it lacked some."""
        self._next = self._here
        kept = len(self._data) - self._here
        if need <= kept:
            self.fail("the stack is empty")
        left = self.source.size - self.at
        if kept >= left:
            self.fail("the pickle ends too early", f"{need - 1} bytes", f"{left - 1} left")
        if need > PICKLE_WINDOW:
            self.spend(_RETAINED * need)
            self.spent -= _RETAINED * need
        self._load(max(need, PICKLE_WINDOW))

    def fail(self, words: str, expected: Any = None, found: Any = None) -> NoReturn:
        op = TABLE.get(self._data[self._here]) if self._here < len(self._data) else None
        raise FormatError(words, path=self.source.name, offset=self.at, field=op and op.name, expected=expected,
                          found=found)  # fmt: skip

    def dispute(self, words: str, expected: Any = None, found: Any = None) -> None:
        """Unpicklers differ here: refused by a strict machine, recorded by a lenient one."""
        if self.strict:
            self.fail(words, expected, found)
        self.disputes = True
        self.note("disputed", f"{words} ({found!r})" if isinstance(found, str | bytes) else words)

    def over_limit(self, words: str) -> NoReturn:
        """A limit of ours, beyond which an unpickler may go on."""
        if self.strict:
            self.fail(words)
        raise UnsupportedError(f"{self.source.name}, byte {self.at}: {words}")

    def spend(self, count: int) -> None:
        self.spent += count
        if self.spent > self.budget:
            raise UnsupportedError(
                f"{self.source.name}, byte {self.at}: the pickle's values take more than {self.budget} bytes",
                hint="checkpoints stay far below; what does this file hold?",
            )

    def line(self, here: int) -> int:
        """Where the line that begins at `here` ends; a newline follows."""
        end = self._data.find(b"\n", here)
        if end < 0:
            kept = len(self._data) - self._here
            if kept < self.source.size - self.at:
                raise Short(2 * kept)
            self.dispute("a line has no end")
            end = max(here, len(self._data) - 1)  # as Python's readline()[:-1] takes it
        self.spent += end - here
        self._cross(end)
        return end

    def _cross(self, end: int) -> None:
        """An argument reaches to `end`, in the window."""
        if self._frame_end is not None and self.base + end > self._frame_end:
            self.reframed = True

    def counted(self, size: int, here: int) -> bytes | Blob:
        """`size` bytes from `here` on: a long run of them stays in the source."""
        end = here + size
        if end > len(self._data) or size < 0:
            left = self.source.size - self.base - here
            if not 0 <= size <= left:
                self.fail("the pickle ends inside a value", f"{size} bytes", f"{left} left")
        self._cross(end)
        if size > PICKLE_BLOB:
            return Blob(self.at, self.source, self.base + here, size)
        if end > len(self._data):
            raise Short(end - self._here)
        self.spent += size
        return self._data[here:end]

    def enter_frame(self, size: int, here: int) -> None:
        if self._frame_end is not None:
            self.dispute("a frame begins inside a frame")
            self.reframed = True
        at = self.base + here
        if size > self.source.size - at:
            self.dispute("the pickle ends inside a frame", f"{size} bytes", f"{self.source.size - at} left")
        if size:
            self._frame_end = at + size
            self._stop = min(self._stop, here + size)

    # ---- stack and memo

    def pop_mark(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self.marks:
            self.fail("no MARK on the stack")
        items, self.stack = self.stack, self.marks.pop()
        self.spent -= COSTS[MARK]  # the mark's own list is gone, or is a value that has its own cost
        return items

    def put(self, key: int) -> None:
        """Remember the value on top. Places that are taken in their order cost least."""
        memo, top = self.memo, self.stack[-1]
        if isinstance(memo, list):
            if key == len(memo):
                memo.append(top)
                return
            if key > len(memo):
                self.spend(_MEMO * (len(memo) + 1))
                memo = self.memo = dict(enumerate(memo))
        if isinstance(memo, dict) and key not in memo:
            self.spend(_MEMO)
            if key > max(self.at - self.start, _PLACES):  # CPython's memo is an array
                self.note("bomb", key)
        memo[key] = top

    def get(self, key: int) -> None:
        """Push what is remembered."""
        try:
            self.stack.append(self.memo[key])
        except LookupError:
            self.fail("the memo has no such entry", found=key)

    def halt(self, here: int) -> None:
        """STOP: the value on top is the pickle's."""
        if not self.stack:
            self.fail("the stack is empty")
        if self._frame_end is not None and self.base + here < self._frame_end:
            self.dispute("STOP inside a frame", f"end at {self._frame_end}", self.base + here)
        self.leftover = len(self.stack) - 1 + sum(map(len, self.marks))
        self.done, self._stop = True, 0

    def _finish(self) -> Any:
        value = self.stack[-1]
        self.stack, self.marks, self.memo = [], [], []
        self.base, self._data, self._here, self._next = self.end, b"", 0, 0
        return value

    # ---- records

    def log(self, record: Done) -> None:
        """Push a record of something that a real unpickler would do."""
        self._log.append(record)
        self.stack.append(record)

    def note(self, kind: str, what: Any) -> None:
        """Remember what is done to a value."""
        self.spend(_EVENT)
        self._log.append(Event(kind, self.at, self.opcode, what))

    def name(self, module: Any, name: Any) -> Global | External:
        if not self.strict:  # a string of Python 2 that is no UTF-8: readers with encoding="latin1" take it
            module, name = (v.decode("latin-1") if isinstance(v, bytes) else v for v in (module, name))
        if not isinstance(module, str) or not isinstance(name, str):
            if self.strict or not all(isinstance(v, _MAYBE_TEXT) for v in (module, name)):
                self.fail("a module and a name must be strings")
            computed = External(self.at, self.opcode, "computed-name")
            self._log.append(computed)
            return computed
        found = Global(self.at, module, name, self.opcode)
        self._log.append(found)
        return found

    def call(self, callee: Any, args: Any, how: str, kwargs: Any = None) -> None:
        """Push what calling would give. Plain data can't be called, and arguments are a tuple."""
        if not isinstance(callee, Global | Object | Persistent | External):
            self.fail("what is called is plain data")
        if not isinstance(args, tuple | Object | Persistent | External):
            if self.strict or not isinstance(args, _ITERABLE):
                self.fail("the arguments are no tuple")
            self.dispute("the arguments are no tuple")
        made = Object(self.base + self._here, how, callee, args, kwargs)
        self._log.append(made)
        self.stack.append(made)

    def _weigh(self, keys: list[Any]) -> None:
        """Note a key whose hash takes exponential time (tuples of tuples, shared), or many that together take long."""
        if tuple not in set(map(type, keys)):
            return
        for key in keys:
            if type(key) is tuple:
                known = len(self._weights)
                parts = weight(key, self._weights)
                self.spend(_MEMO * (len(self._weights) - known))
                self._hashed += parts
                if parts > PICKLE_STEPS or self._hashed > _HASHED:
                    self.note("bomb", key)
                    self._hashed = 0

    # ---- filling lists, dicts and sets

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Object):
            target.add(items)
        else:
            self.note("odd", target)

    def add(self, items: list[Any]) -> None:
        self._weigh(items)
        target = self.stack[-1]
        if isinstance(target, Object) or (isinstance(target, Set) and not target.frozen):
            target.add(items)
        else:
            self.note("odd", target)

    def set_pairs(self, items: list[Any]) -> None:
        if len(items) % 2:
            self.fail("a key without a value")
        self._weigh(items[::2])
        target = self.stack[-1]
        if isinstance(target, Dict | Object):
            target.set(items)
        else:
            self.note("odd", target)
