"""A page in a cell of Jupyter, VS Code, Colab or marimo, through anywidget. The page's requests are messages of the
notebook, so it needs no server and no port.

A message from the page: `{"id", "question"}` with a question as in `/api/`, or `{"cancel": id}`. To it: `{"id",
"progress": [done, total]}`, then `{"id", "answer"}` or `{"id", "error", "hint"}`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import parse_qsl

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.serving.page_server import AnswerControl, Answers
from weighbridge.base.errors import WeighbridgeError, error_words

_AT_ONCE: Final = 2  # questions
_TICK: Final = 0.1  # seconds between two reports of progress
_LONGEST: Final = 4096  # characters of a question


def widget(answers: Answers, html: str, script: str, title: str, height: int, closed: Callable[[], None]) -> Any:
    """The widget that shows `html` in a frame. `script`: its front end, an ES module. `closed` is called once, when the
    widget is closed. UnsupportedError where anywidget isn't installed."""
    anywidget = package("anywidget", "a widget", "notebook")
    traitlets = package("traitlets", "a widget", "notebook")

    class PageWidget(anywidget.AnyWidget):  # type: ignore[misc, name-defined]
        _esm = script
        page = traitlets.Unicode(html).tag(sync=True)
        title = traitlets.Unicode("").tag(sync=True)
        height = traitlets.Int(640).tag(sync=True)

        def close(self) -> None:
            desk.close()
            super().close()

    made = PageWidget(title=title, height=height)
    desk = MessageDesk(answers, made.send, closed)
    made.on_msg(lambda _, message, __: desk.receive(message))
    return made


class MessageDesk:
    """Answers the page's messages by `send`, two at a time."""

    def __init__(self, answers: Answers, send: Callable[[Any], object], closed: Callable[[], None]) -> None:
        self._answers, self._send, self._closed = answers, send, closed
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="widget answers")
        self._running: dict[str, AnswerControl] = {}
        self._lock = threading.Lock()

    def receive(self, message: object) -> None:
        """A message of the page. What isn't one is ignored: it comes from a browser."""
        if not isinstance(message, Mapping):
            return
        if isinstance(message.get("cancel"), str):
            with self._lock:
                control = self._running.pop(message["cancel"], None)
            if control is not None:
                control.stop.set()
            return
        number, question = message.get("id"), message.get("question")
        if isinstance(number, str) and isinstance(question, str) and len(question) <= _LONGEST:
            self._begin(number, question)

    def _begin(self, number: str, question: str) -> None:
        control = self._answers.control()
        with self._lock:
            if self._pool is None or number in self._running:
                return
            self._running[number] = control
            self._pool.submit(self._answer, number, question, control)

    def _answer(self, number: str, question: str, control: AnswerControl) -> None:
        done = threading.Event()
        reporter = threading.Thread(target=self._report, args=(number, control, done), daemon=True)
        reporter.start()
        name, _, given = question.partition("?")
        message: dict[str, Any]
        try:
            found = self._answers.answer(name, dict(parse_qsl(given, keep_blank_values=True)), control)
            message = {"answer": json.loads(found)}
        except (WeighbridgeError, OSError, MemoryError) as error:
            message = error_words(error)
        finally:
            done.set()
            reporter.join()
        with self._lock:
            wanted = self._running.pop(number, None) is not None
        if wanted:
            self._send({"id": number, **message})

    def _report(self, number: str, control: AnswerControl, done: threading.Event) -> None:
        seen = 0
        while not done.wait(_TICK):
            if control.done != seen and not control.stop.is_set():
                seen = control.done
                self._send({"id": number, "progress": [seen, control.total]})

    def close(self) -> None:
        """Cancel what runs, then call `closed`; once."""
        with self._lock:
            pool, self._pool = self._pool, None
            for control in self._running.values():
                control.stop.set()
            self._running.clear()
        if pool is not None:
            pool.shutdown(cancel_futures=True)
            self._closed()
