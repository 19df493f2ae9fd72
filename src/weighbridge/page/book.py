"""The models that a page shows, and its questions about them: a table of endpoints, each a function of numbers and
short texts. A question names files and tensors by their numbers: no path and no name of a file comes from outside.

    with Book("model.gguf") as book:
        book.answer("summary", {"model": "0"})         -> JSON, as the page reads it
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base import malloc
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.plain import plain
from weighbridge.containers.base import Index
from weighbridge.io.source import Source
from weighbridge.models.checkpoint import Checkpoint, SourceOptions
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer import Vocab
from weighbridge.reports.chat.tokens import vocab_of
from weighbridge.reports.microscope.places import FileLens
from weighbridge.reports.statistics.tensor import CancelledError, Progress
from weighbridge.reports.view.layout import LayoutMap, layout_map
from weighbridge.reports.view.roles import Survey, survey

_TEXT: Final = 200  # characters of a search
_KEPT: Final = 256  # answers
#: What the page asks of each model before the reader does, the most urgent first.
_FIRST: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("tree", {"counted": "0"}), ("summary", {}), ("tensors", {}), ("tree", {"counted": "1"}), ("architecture", {}),
)  # fmt: skip
_Question = tuple[str, Mapping[str, str]]
_EXACT: Final = 1 << 53  # JavaScript's numbers are exact below


@dataclass(slots=True)
class Control:
    """How a slow answer gets on, and whether it is still wanted. `report`: called with the progress, too."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: int = 0
    total: int = 0
    report: Progress | None = None

    def cancelled(self) -> bool:
        return self.stop.is_set()

    def progress(self, done: int, total: int, what: str = "") -> None:
        """Notes the progress; raises CancelledError where the answer isn't wanted."""
        self.done, self.total = done, total
        if self.report is not None:
            self.report(done, total, what)
        if self.stop.is_set():
            raise CancelledError("cancelled")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A question of the page: what answers it, its parameters, whether the answer takes long (reads tensor data), and
    whether it is kept (a slow one always is). Those that are kept and not slow are answered one after the other."""

    answer: Callable[..., Any]
    params: tuple[str, ...] = ()
    slow: bool = False
    kept: bool = False


class Book(Closing):
    """One or two open models; of a damaged one what its headers tell, with the reason in `damage`. Errors: as
    `open_model`'s, where there is nothing to show."""

    def __init__(self, *paths: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> None:
        self.paths: tuple[str, ...] = tuple(os.fspath(path) for path in paths)
        self.options = options
        self.models: list[Checkpoint] = []
        self.damage: list[FormatError | None] = []
        self._lenses: dict[tuple[int, int], FileLens] = {}
        self._vocabs: dict[int, Vocab] = {}
        self._surveys: dict[int, Survey] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="page answers")
        self._headers: dict[tuple[str, ...], Future[bytes]] = {}
        self._closed = False
        self._answers: dict[tuple[str, ...], bytes] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._lock = threading.Lock()
        try:
            for path in paths:
                self._open(path)
        except BaseException:
            self.close()
            raise

    def _open(self, path: str | os.PathLike[str]) -> None:
        damage = None
        try:
            model = open_model(path, self.options)
        except FormatError as error:
            from weighbridge.reports.inspect.damaged import open_damaged  # late: few files are

            damage, model = error, open_damaged(resolve_path(path), error)
        self.models.append(model)
        self.damage.append(damage)

    @property
    def title(self) -> str:
        """The names of the models."""
        return " and ".join(Path(path).name or path for path in self.paths)

    def prepare(self) -> None:
        """Begin to answer what every page asks first; returns when there is enough to draw it. What is asked meanwhile
        goes before the rest."""
        models = [str(n) for n in range(len(self.models))]
        first = self._ahead([("start", {}), *((name, {"model": n, **given}) for n in models for name, given in _FIRST)])
        drawn = [first, self._kept_answer(_FIRST[0][0], {"model": "0", **_FIRST[0][1]})]
        futures.wait(filter(None, drawn))

    def _ahead(self, rest: Sequence[_Question]) -> Future[bytes] | None:
        """Have the first of some questions answered, then the others."""
        if not rest:
            return None
        (name, given), *rest = rest
        answer = self._kept_answer(name, given)
        if answer is not None:
            answer.add_done_callback(lambda _: self._next(given.get("model"), rest))
        return answer

    def _next(self, model: str | None, rest: Sequence[_Question]) -> None:
        if model is not None and (not rest or rest[0][1]["model"] != model):
            self._surveys.pop(int(model), None)  # large; what needs it is answered
        malloc.trim()
        self._ahead(rest)

    def _kept_answer(self, name: str, given: Mapping[str, str]) -> Future[bytes] | None:
        """The answer to a question that is kept, when it is there. None where the book is being closed."""
        found, values = self.question(name, given)
        return self._from_headers((name, *(given[key] for key in found.params)), lambda: found.answer(self, **values))

    def _from_headers(self, key: tuple[str, ...], answer: Callable[[], Any]) -> Future[bytes] | None:
        """What one thread after all others answers, once: what it takes of memory is there for the next. None where the
        book is being closed."""
        with self._lock:
            if key not in self._headers and not self._closed:
                self._headers[key] = self._worker.submit(lambda: encode(answer()))
            return self._headers.get(key)

    def surveyed(self, model: int) -> Survey:
        """The survey of a model, which several answers from headers share."""
        if model not in self._surveys:
            self._surveys[model] = survey(self.models[model])
        return self._surveys[model]

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._worker.shutdown(cancel_futures=True)
        for opened in (*self._lenses.values(), *self.models):
            opened.close()

    def question(self, name: str, given: Mapping[str, str]) -> tuple[Endpoint, dict[str, Any]]:
        """The endpoint of a name, and its parameters. UsageError for an unknown one, or others than it takes."""
        from weighbridge.page.endpoints import ENDPOINTS

        found = ENDPOINTS.get(name)
        if found is None:
            raise UsageError(f"the page has no {name[:_TEXT]!r}")
        if set(given) != set(found.params):
            raise UsageError(f"{name} takes {', '.join(found.params) or 'no parameter'}")
        return found, {key: self._value(key, given[key]) for key in found.params}

    def is_slow(self, name: str, given: Mapping[str, str]) -> bool:
        """Whether a question reads tensor data. Errors: as `question`'s."""
        return self.question(name, given)[0].slow

    def control(self) -> Control:
        """What a slow answer is watched and cancelled with."""
        return Control()

    def answer(self, name: str, given: Mapping[str, str], control: Control | None = None) -> bytes:
        """The answer as JSON. Two who wait for the same one that is kept share it. Errors: the endpoint's."""
        found, values = self.question(name, given)
        control = control or Control()
        key = (name, *(given[param] for param in found.params))
        if found.kept:
            kept = self._from_headers(key, lambda: found.answer(self, **values))
            if kept is None:
                raise CancelledError("the page is being closed")
            return _result(kept)
        if not found.slow:
            return encode(found.answer(self, **values))
        values["control"] = control
        with self._turn(key, control):
            if key not in self._answers:
                encoded = encode(found.answer(self, **values))
                malloc.trim()
                while len(self._answers) >= _KEPT:
                    self._answers.pop(next(iter(self._answers)))
                self._answers[key] = encoded
            return self._answers[key]

    @contextmanager
    def _turn(self, key: tuple[str, ...], control: Control) -> Iterator[None]:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=0.1):
            if control.cancelled():
                raise CancelledError("cancelled")
        try:
            yield
        finally:
            lock.release()

    def _value(self, key: str, text: str) -> Any:
        if key in _WORDS:
            return text[:_TEXT]
        if not (text.isascii() and text.isdecimal() and len(text) <= 19):
            raise UsageError(f"{key} is a number")
        number = int(text)
        if key == "model" and number >= len(self.models):
            raise UsageError(f"there is no model {number}")
        return number

    def source(self, model: int, file: int) -> Source:
        """A file of a model by its number. UsageError where there is none."""
        files = self.models[model].index.files
        if file >= len(files):
            raise UsageError(f"there is no file {file}")
        return files[file]

    def vocab(self, model: int) -> Vocab:
        """The tokenizer of a model, read once. Errors: as `vocab_of`'s."""
        with self._lock:
            if model not in self._vocabs:
                self._vocabs[model] = vocab_of(self.models[model])
            return self._vocabs[model]

    def layout(self, model: int, file: int) -> LayoutMap:
        """The map of a file. Errors: as `source`'s and `layout_map`'s."""
        return layout_map(self.source(model, file).name, self._index_of_file(model))

    def _index_of_file(self, model: int) -> Index | None:
        """The index of a model that is one file."""
        index = self.models[model].index
        return index if len(index.files) == 1 and not self.damage[model] else None

    def lens(self, model: int, file: int) -> FileLens:
        """The bytes of a file, whose regions are found once. Errors: as `source`'s."""
        path = self.source(model, file).name
        with self._lock:
            if (model, file) not in self._lenses:
                self._lenses[model, file] = FileLens(path, self._index_of_file(model))
            return self._lenses[model, file]

    def tensor(self, model: int, tensor: int) -> str:
        """The name of a stored tensor by its number. UsageError where there is none."""
        entries = self.models[model].index.entries
        if tensor >= len(entries):
            raise UsageError(f"there is no tensor {tensor}")
        return entries[tensor].name


def _result(answer: Future[bytes]) -> bytes:
    try:
        return answer.result()
    except futures.CancelledError:
        raise CancelledError("the page is being closed") from None


#: Parameters that are words; the others are numbers.
_WORDS: Final = frozenset({"text", "member", "conversation", "template"})


def encode(value: Any) -> bytes:
    """An answer as JSON."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):  # half a surrogate pair in a name, a type that only we know
        return json.dumps(plain(value)).encode()


def exact(column: tuple[int, ...]) -> tuple[int, ...] | tuple[str, ...]:
    """Integers as JavaScript reads them: as text where one is too large for its numbers."""
    return column if max(column, default=0) < _EXACT else tuple(map(str, column))


def front_coded(names: tuple[str, ...]) -> dict[str, list[int] | list[str]]:
    """Names as columns: of each the length of the prefix that it shares with the one before (`common`), in UTF-16
    units, and its `rest`. A character of two units is never cut."""
    common, rest, before = [], [], ""
    for name in names:
        length = _common(before, name)
        common.append(length + (0 if name.isascii() else sum(c > "\uffff" for c in name[:length])))
        rest.append(name[length:])
        before = name
    return {"common": common, "rest": rest}


def _common(a: str, b: str) -> int:
    """The length of the prefix that both have; by halves, as most of a long one is shared."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
