"""The state of the pickle machine: a window of the source, stack and memo, and the recorded actions. The steps of the
opcodes (`unpickle/steps.py`) change it by its methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_BLOB, PICKLE_MEMORY, PICKLE_STEPS, PICKLE_WINDOW
from weighbridge.io.source import Source
from weighbridge.unpickle.opcodes import COSTS, MARK, TABLE
from weighbridge.unpickle.values import Blob, Dict, Done, External, Global, Object, Persistent, PickleFault, Set, weight

_EVENT: Final = 152  # bytes of an Event and its slot
_MEMO: Final = 96  # bytes of a number and its slot in a growing dict, beyond a list's
_SLOTS: Final = 1 << 20  # memo slots that any pickle may use
_COPIES: Final = 4  # of a long line in memory: the window, its read buffer, the line, its text
_MAYBE_TEXT: Final = (str, Blob, Object, Persistent, External)
_ITERABLE: Final = (list, str, bytes, Blob, Dict, Set)  # accepted as arguments by Python's unpickler
_HASHED: Final = 1 << 28  # parts of all hashed keys, counted at each hash: some seconds
_FRAME: Final = "an opcode reaches across the end of its frame"


class Short(Exception):
    """The window ends inside an argument. `need`: the bytes needed, counted from the opcode."""

    def __init__(self, need: int) -> None:
        self.need = need


class Dispute(NamedTuple):
    """A place that unpicklers read differently."""

    code: PickleFault
    reason: str


class Event(NamedTuple):
    """An action of a real unpickler beyond creating plain data.

    kind     import, call, build, persistent, extension, buffer, computed-name, odd (an operation that the value
             doesn't have), bomb (a key that takes too long to hash, a memo slot far above the others) or disputed
    what     the record, key or slot; for disputed, a `Dispute`
    """

    kind: str
    at: int
    op: str
    what: Any


class MachineState:
    """See `machine.Machine`."""

    def __init__(
        self,
        source: Source,
        offset: int = 0,
        budget: int = PICKLE_MEMORY,
        *,
        strict: bool = True,
        watch: Callable[[Event], None] | None = None,
    ) -> None:
        self.source, self.budget, self.start, self.strict = source, budget, offset, strict
        self.watch = watch
        self.protocol = 0
        self.steps = 0
        self.leftover = 0  # values on the stack at STOP, besides the result
        self.done = self.disputes = False
        self.reframed = False  # frames overlap: CPython's C unpickler continues with other bytes
        self.spent = 0
        self.stack: list[Any] = []  # since the last mark
        self.marks: list[list[Any]] = []  # the stacks below the marks
        self.memo: list[Any] | dict[int, Any] = []  # a list while slots are filled in order
        self.base = offset  # the offset of the window
        self._data = b""
        self._here = self._next = 0  # positions in the window: the current opcode, the next one
        self._stop = 0  # the position in the window at which a burst ends
        self._frame_end: int | None = None
        self._hashed = 0  # parts of keys
        self._weights: dict[int, tuple[Any, int]] = {}  # tuples in keys, with their numbers of parts
        self._log: list[Done | Event] = []

    @property
    def at(self) -> int:
        """The offset of the current opcode."""
        return self.base + self._here

    @property
    def opcode(self) -> str:
        """The name of the current opcode."""
        return TABLE[self._data[self._here]].name

    @property
    def end(self) -> int:
        """The offset after the last opcode."""
        return self.base + self._next

    @property
    def events(self) -> Iterator[Event]:
        """The actions of a real unpickler, in order."""
        for entry in self._log:
            yield entry if isinstance(entry, Event) else Event(entry.kind, entry.at, entry.op, entry)

    # ---- bytes

    def _ready(self) -> None:
        """Makes sure that the window has an opcode, and sets the end of the burst."""
        if self._frame_end is not None and self.end >= self._frame_end:
            # CPython's C unpickler reads on across a frame's end (#154848); its Python one refuses.
            if self.end > self._frame_end:
                self.dispute(_FRAME, f"end at {self._frame_end}", self.end, code=PickleFault.FRAME)
                self.reframed = True
            self._frame_end = None
        if self._next >= len(self._data):
            self._load(PICKLE_WINDOW)
        self.spend(0)
        frame_end = len(self._data) if self._frame_end is None else self._frame_end - self.base
        self._stop = min(len(self._data), frame_end)

    def _load(self, size: int) -> None:
        """Loads a window of at most `size` bytes from the next opcode on."""
        at = self.end
        left = self.source.size - at
        if left <= 0:
            raise FormatError("the pickle ends too early", path=self.source.name, offset=at, expected="an opcode",
                              found="no byte", code=PickleFault.TRUNCATED)  # fmt: skip
        self._data, self.base, self._here, self._next = self.source.read(at, min(size, left)), at, 0, 0

    def _again(self, need: int) -> None:
        """Rewinds to the current opcode and extends the window to `need` bytes from there, because it was too short."""
        self._next = self._here
        kept = len(self._data) - self._here
        if need <= kept:
            self.fail("the stack is empty")
        left = self.source.size - self.at
        if kept >= left:
            self.fail("the pickle ends too early", f"{need - 1} bytes", f"{left - 1} left", code=PickleFault.TRUNCATED)
        if need > PICKLE_WINDOW:
            self.spend(_COPIES * need)
            self.spent -= _COPIES * need
        self._load(max(need, PICKLE_WINDOW))

    def fail(
        self, reason: str, expected: Any = None, found: Any = None, *, code: PickleFault = PickleFault.BROKEN
    ) -> NoReturn:
        op = TABLE.get(self._data[self._here]) if self._here < len(self._data) else None
        raise FormatError(reason, path=self.source.name, offset=self.at, field=op and op.name, expected=expected,
                          found=found, code=code)  # fmt: skip

    def dispute(
        self, reason: str, expected: Any = None, found: Any = None, *, code: PickleFault = PickleFault.BROKEN
    ) -> None:
        """Handles bytes that unpicklers read differently: a strict machine refuses them, a lenient one records them."""
        if self.strict:
            self.fail(reason, expected, found, code=code)
        self.disputes = True
        self.note("disputed", Dispute(code, f"{reason} ({found!r})" if isinstance(found, str | bytes) else reason))

    def over_limit(self, reason: str) -> NoReturn:
        """Raises an error for a limit of this machine, beyond which an unpickler may continue."""
        if self.strict:
            self.fail(reason)
        raise UnsupportedError(f"{self.source.name}, byte {self.at}: {reason}")

    def spend(self, count: int) -> None:
        self.spent += count
        if self.spent > self.budget:
            raise UnsupportedError(
                f"{self.source.name}, byte {self.at}: the pickle's values take more than {self.budget} bytes",
                hint="checkpoints stay far below this limit: check the contents of the file",
            )

    def line(self, at: int) -> int:
        """The end of the line that begins at `at`, before its newline."""
        end = self._data.find(b"\n", at)
        if end < 0:
            kept = len(self._data) - self._here
            if kept < self.source.size - self.at:
                raise Short(2 * kept)
            self.dispute("a line has no end", code=PickleFault.TRUNCATED)
            end = max(at, len(self._data) - 1)  # like Python's readline()[:-1]
        self.spent += end - at
        self._cross(end)
        return end

    def _cross(self, end: int) -> None:
        """Notes that an argument reaches to position `end` of the window."""
        if self._frame_end is not None and self.base + end > self._frame_end:
            self.reframed = True

    def counted(self, size: int, at: int) -> bytes | Blob:
        """`size` bytes from `at` on. A long run stays in the source, as a `Blob`."""
        end = at + size
        if end > len(self._data) or size < 0:
            self.need(size, at)
        self._cross(end)
        if size > PICKLE_BLOB:
            return Blob(self.at, self.source, self.base + at, size)
        if end > len(self._data):
            raise Short(end - self._here)
        self.spent += size
        return self._data[at:end]

    def need(self, size: int, at: int) -> None:
        """Raises FormatError unless the source has `size` bytes from `at` on."""
        left = self.source.size - self.base - at
        if not 0 <= size <= left:
            self.fail("the pickle ends inside a value", f"{size} bytes", f"{left} left", code=PickleFault.TRUNCATED)

    def enter_frame(self, size: int, at: int) -> None:
        if self._frame_end is not None:
            self.dispute("a frame begins inside a frame", code=PickleFault.FRAME)
            self.reframed = True
        start = self.base + at
        if size > self.source.size - start:
            left = f"{self.source.size - start} left"
            self.dispute("the pickle ends inside a frame", f"{size} bytes", left, code=PickleFault.FRAME)
        if size:
            self._frame_end = start + size
            self._stop = min(self._stop, at + size)

    # ---- stack and memo

    def pop_mark(self) -> list[Any]:
        """Removes the last mark and returns the values above it."""
        if not self.marks:
            self.fail("no MARK on the stack")
        items, self.stack = self.stack, self.marks.pop()
        self.spent -= COSTS[MARK]  # the mark's list is gone, or becomes a value with its own cost
        return items

    def put(self, key: int) -> None:
        """Stores the value on top in a memo slot. Slots that are filled in order cost least."""
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
            if key > max(self.at - self.start, _SLOTS):  # CPython's memo is an array
                self.note("bomb", key)
        memo[key] = top

    def get(self, key: int) -> None:
        """Pushes the value of a memo slot."""
        try:
            self.stack.append(self.memo[key])
        except LookupError:
            self.fail("the memo has no such entry", found=key)

    def halt(self, at: int) -> None:
        """Handles STOP: the value on top is the pickle's."""
        if not self.stack:
            self.fail("the stack is empty")
        if self._frame_end is not None and self.base + at < self._frame_end:
            self.dispute("STOP inside a frame", f"end at {self._frame_end}", self.base + at, code=PickleFault.FRAME)
        self.leftover = len(self.stack) - 1 + sum(map(len, self.marks))
        self.done, self._stop = True, 0

    # ---- records

    def log(self, record: Done) -> None:
        """Pushes a record of an action of a real unpickler."""
        self._log.append(record)
        self.stack.append(record)

    def note(self, kind: str, subject: Any) -> None:
        """Records an operation on a value."""
        self.spend(_EVENT)
        event = Event(kind, self.at, self.opcode, subject)
        self._log.append(event)
        if self.watch is not None and kind == "build":
            self.watch(event)

    def name(self, module: Any, name: Any) -> Global | External:
        if not self.strict:  # a Python 2 string that isn't UTF-8: readers with encoding="latin1" accept it
            module, name = (v.decode("latin-1") if isinstance(v, bytes) else v for v in (module, name))
        if not isinstance(module, str) or not isinstance(name, str):
            if self.strict or not all(isinstance(v, _MAYBE_TEXT) for v in (module, name)):
                self.fail("a module and a name must be strings")
            computed = External(self.at, self.opcode, "computed-name")
            self._log.append(computed)
            return computed
        named = Global(self.at, module, name, self.opcode)
        self._log.append(named)
        return named

    def call(self, callee: Any, args: Any, op: str, kwargs: Any = None) -> None:
        """Pushes a record of a call's result. Plain data can't be called, and arguments are a tuple."""
        if not isinstance(callee, Global | Object | Persistent | External):
            self.fail("plain data is called")
        if not isinstance(args, tuple | Object | Persistent | External):
            if self.strict or not isinstance(args, _ITERABLE):
                self.fail("the arguments aren't a tuple")
            self.dispute("the arguments aren't a tuple")
        result = Object(self.base + self._here, op, callee, args, kwargs)
        self._log.append(result)
        self.stack.append(result)
        if self.watch is not None:
            self.watch(Event("call", result.at, op, result))

    def _weigh(self, keys: list[Any]) -> None:
        """Notes a key whose hash takes exponential time (shared tuples of tuples), or keys that together take long."""
        if tuple not in set(map(type, keys)):
            return
        for key in keys:
            if type(key) is tuple:
                before = len(self._weights)
                parts = weight(key, self._weights)
                self.spend(_MEMO * (len(self._weights) - before))
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
