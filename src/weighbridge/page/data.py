"""Answers to the questions of a page about its models. A question is the name of an endpoint with parameters, which are
numbers and short texts. Files and tensors are named by number, so no path comes from outside.

    with PageData("model.gguf") as data:
        data.answer("summary", {"model": "0"})         -> JSON, as the page reads it
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from weighbridge.base.errors import UsageError
from weighbridge.base.plain import plain
from weighbridge.io.workers import Workers
from weighbridge.models.model import SourceOptions
from weighbridge.page import endpoints, malloc
from weighbridge.page.control import Control
from weighbridge.page.endpoints import Endpoint
from weighbridge.page.models import PageModels
from weighbridge.reports.statistics.tensor import CancelledError

_TEXT: Final = 200  # characters of a search
_CACHED: Final = 256  # slow answers
#: The questions that the page asks about each model before its reader asks any, most urgent first.
_FIRST: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("tree", {"counted": "0"}), ("summary", {}), ("tensors", {}), ("tree", {"counted": "1"}), ("architecture", {}),
)  # fmt: skip
#: Parameters that are text; the rest are numbers.
_TEXTS: Final = frozenset({"text", "member", "conversation", "template"})
_MODELS: Final = frozenset({"model", "a", "b"})  # numbers of models
_Question = tuple[str, Mapping[str, str]]


class PageData(PageModels):
    """Open models, and the answers to a page's questions about them."""

    def __init__(
        self, *paths: str | os.PathLike[str], options: SourceOptions = SourceOptions(), measured: Sequence[str] = ()
    ) -> None:
        self._worker = Workers(1, "page")
        self._header_answers: dict[tuple[str, ...], Future[bytes]] = {}
        self._slow_answers: dict[tuple[str, ...], bytes] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._closed = False
        super().__init__(*paths, options=options, measured=measured)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._worker.shutdown(cancel_futures=True)
        super().close()

    def prepare(self) -> None:
        """Starts to answer the page's first questions, and returns once the page can be drawn. Questions that arrive in
        the meantime are answered before the remaining ones."""
        models = [str(n) for n in range(len(self.models))]
        first = self._prefetch(
            [("start", {}), *((name, {"model": n, **params}) for n in models for name, params in _FIRST)]
        )
        futures.wait(filter(None, (first, self._cached(_FIRST[0][0], {"model": "0", **_FIRST[0][1]}))))

    def _prefetch(self, questions: Sequence[_Question]) -> Future[bytes] | None:
        """Has the first of the questions answered, then the rest, one after another."""
        if not questions:
            return None
        (name, params), *later = questions

        def proceed(_: object) -> None:
            model = params.get("model")
            if model is not None and (not later or later[0][1]["model"] != model):
                self._surveys.pop(int(model), None)  # large, and the answers that share it are ready
            malloc.trim()
            self._prefetch(later)

        answer = self._cached(name, params)
        if answer is not None:
            answer.add_done_callback(proceed)
        return answer

    def _cached(self, name: str, params: Mapping[str, str]) -> Future[bytes] | None:
        """Returns the answer to a question about headers. It is computed once, on the single worker thread, so that its
        memory is free for the next one. Returns None while closing."""
        endpoint, values = self.question(name, params)
        key = (name, *(params[param] for param in endpoint.params))
        with self._lock:
            if key not in self._header_answers and not self._closed:
                self._header_answers[key] = self._worker.submit(lambda: encode(endpoint.answer(self, **values)))
            return self._header_answers.get(key)

    def question(self, name: str, params: Mapping[str, str]) -> tuple[Endpoint, dict[str, Any]]:
        """Returns the endpoint and its parsed parameters. Raises UsageError if the name or a parameter is unknown,
        missing or out of range."""
        endpoint = endpoints.ENDPOINTS.get(name)
        if endpoint is None:
            raise UsageError(f"unknown question {name[:_TEXT]!r}")
        if set(params) != set(endpoint.params):
            raise UsageError(f"{name} takes {', '.join(endpoint.params) or 'no parameter'}")
        return endpoint, {key: self._parse(key, params[key]) for key in endpoint.params}

    def _parse(self, key: str, text: str) -> Any:
        if key in _TEXTS:
            return text[:_TEXT]
        if not (text.isascii() and text.isdecimal() and len(text) <= 19):
            raise UsageError(f"{key} is a number")
        number = int(text)
        if key in _MODELS and number >= len(self.models):
            raise UsageError(f"unknown model {number}")
        return number

    def is_slow(self, name: str, params: Mapping[str, str]) -> bool:
        """Returns whether a question reads tensor data. Raises the errors of `question`."""
        return self.question(name, params)[0].slow

    def control(self) -> Control:
        """Returns a control to watch and cancel a slow answer."""
        return Control()

    def answer(self, name: str, params: Mapping[str, str], control: Control | None = None) -> bytes:
        """Returns the answer as JSON. Concurrent requests for the same cached answer share it. Raises the errors of
        `question` and of the endpoint."""
        endpoint, values = self.question(name, params)
        if endpoint.cached:
            answer = self._cached(name, params)
            try:
                if answer is not None:
                    return answer.result()
            except futures.CancelledError:
                pass
            raise CancelledError("the page is being closed")
        if not endpoint.slow:
            return encode(endpoint.answer(self, **values))
        control = control or Control()
        key = (name, *(params[param] for param in endpoint.params))
        with self._turn(key, control):
            if key not in self._slow_answers:
                encoded = encode(endpoint.answer(self, **values, control=control))
                malloc.trim()
                while len(self._slow_answers) >= _CACHED:
                    self._slow_answers.pop(next(iter(self._slow_answers)))
                self._slow_answers[key] = encoded
            return self._slow_answers[key]

    @contextmanager
    def _turn(self, key: tuple[str, ...], control: Control) -> Iterator[None]:
        """Lets one thread at a time work on the answer `key`. Raises CancelledError if cancelled while waiting."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=0.1):
            if control.cancelled():
                raise CancelledError("cancelled")
        try:
            yield
        finally:
            lock.release()


def encode(value: Any) -> bytes:
    """Encodes an answer as JSON."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError):  # a lone surrogate in a name, or a type that msgspec doesn't know
        return json.dumps(plain(value)).encode()
