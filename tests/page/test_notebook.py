"""The page in a notebook: the kernel answers what the page asks by messages, with the answers of the server."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.page.conftest import WAIT

import weighbridge as wb
from weighbridge.adapters.serving.notebook import MessageDesk
from weighbridge.base.errors import UnsupportedError
from weighbridge.page.assemble import widget_script
from weighbridge.page.data import PageData

pytestmark = pytest.mark.costly

Sent = queue.Queue[dict[str, Any]]


@pytest.fixture
def desk(models: Path) -> Iterator[tuple[MessageDesk, Sent, PageData]]:
    sent: Sent = queue.Queue()
    data = PageData(models / "q4.gguf")
    made = MessageDesk(data, sent.put, data.close)
    yield made, sent, data
    made.close()


def answered(sent: Sent, number: str) -> dict[str, Any]:
    """The last message to a question."""
    while True:
        message = sent.get(timeout=60)
        assert message["id"] == number
        if "progress" not in message:
            return message


@pytest.mark.parametrize(
    "question", ["start?", "summary?model=0", "statistics?model=0&tensor=1", "tokens?model=0&text="]
)
def test_answers_are_those_of_the_server(desk: tuple[MessageDesk, Sent, PageData], question: str) -> None:
    made, sent, data = desk
    made.receive({"id": "a", "question": question})
    found = answered(sent, "a")
    name, _, given = question.partition("?")
    try:
        want = {"answer": json.loads(data.answer(name, dict(p.split("=") for p in given.split("&") if p)))}
    except wb.errors.WeighbridgeError as error:
        want = {"error": error.message, "hint": error.hint}
    assert found == {"id": "a", **want}


@pytest.mark.parametrize(
    "message", [None, "x", {}, {"id": 1, "question": "start?"}, {"id": "a"}, {"cancel": "none"}, {"cancel": 3},
                {"id": "a", "question": "start?" + "x" * 5000}],
)  # fmt: skip
def test_what_is_no_message_is_ignored(desk: tuple[MessageDesk, Sent, PageData], message: object) -> None:
    made, sent, _ = desk
    made.receive(message)
    made.receive({"id": "after", "question": "start?"})
    assert answered(sent, "after")["answer"]


def test_no_question_names_a_file(desk: tuple[MessageDesk, Sent, PageData]) -> None:
    made, sent, _ = desk
    for question in ("summary?model=../x", "nothing?", "summary?path=/etc/passwd", "layout?model=0&file=9"):
        made.receive({"id": question, "question": question})
        assert "error" in answered(sent, question)


def test_a_question_is_cancelled(models: Path) -> None:
    """A slow answer that nobody wants ends, and is never sent."""
    import threading

    begun, ended = threading.Event(), threading.Event()

    class Slow(PageData):
        def answer(self, name: str, given: Any, control: Any = None) -> bytes:
            if name == "start":
                return b"1"
            begun.set()
            control.done, control.total = 1, 2
            control.stop.wait(60)
            ended.set()
            return b"2"

    sent: Sent = queue.Queue()
    with Slow(models / "q4.gguf") as data:
        desk = MessageDesk(data, sent.put, lambda: None)
        desk.receive({"id": "slow", "question": "diff?a=0&b=1"})
        assert begun.wait(60)
        assert sent.get(timeout=60) == {"id": "slow", "progress": [1, 2]}
        desk.receive({"cancel": "slow"})
        assert ended.wait(60)
        desk.receive({"id": "next", "question": "start?"})
        assert sent.get(timeout=60) == {"id": "next", "answer": 1}
        desk.close()
        assert sent.empty()


def test_closing_closes_the_files_once() -> None:
    class Nothing:
        def is_slow(self, name: str, given: Any) -> bool:
            return False

        def control(self) -> Any:
            raise AssertionError

        def answer(self, name: str, given: Any, control: Any = None) -> bytes:
            raise AssertionError

    closed: list[int] = []
    desk = MessageDesk(Nothing(), lambda _: None, lambda: closed.append(1))
    desk.close()
    desk.close()
    assert closed == [1]


def test_without_anywidget_it_says_what_to_install(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(UnsupportedError) as error:
        wb.widget(models / "q4.gguf")
    assert "weighbridge[notebook]" in (error.value.hint or "")


HARNESS = """<!doctype html><meta charset=utf-8><title>a notebook</title><div id=cell>Out[1]:</div>"""
#: What a notebook does for a widget: traits, and custom messages in both directions.
NOTEBOOK = """async ([script, traits]) => {
  const listeners = new Set();
  window.down = (message) => listeners.forEach((listener) => listener(message));
  const model = { get: (name) => traits[name], send: (message) => window.kernel(message),
                  on: (_, listener) => listeners.add(listener), off: (_, listener) => listeners.delete(listener) };
  const module = await import("data:text/javascript;base64," + btoa(script));
  window.unmount = module.default.render({ model, el: document.getElementById("cell") });
}"""


def test_the_widget_shows_the_page(visit: Callable[..., Any], models: Path, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The real widget and its front end, with a browser in place of the notebook."""
    anywidget = pytest.importorskip("anywidget")
    sent: Sent = queue.Queue()
    monkeypatch.setattr(anywidget.AnyWidget, "send", lambda self, content, buffers=None: sent.put(content))
    (tmp_path / "notebook.html").write_text(HARNESS, "utf-8")
    page = visit((tmp_path / "notebook.html").as_uri(), wait="#cell")
    widget = wb.widget(models / "q4.gguf", height=700)
    page.expose_function("kernel", lambda message: widget._handle_custom_msg(message, []))
    traits = {name: getattr(widget, name) for name in ("page", "title", "height")}
    page.evaluate(NOTEBOOK, [widget_script(), traits])
    frame = page.frame_locator("iframe")
    end = time.monotonic() + WAIT / 1000
    shown = [(".figures b", None), (".box li", "Architecture"), (".u-wrap canvas", "Numbers")]
    while shown:
        assert time.monotonic() < end, frame.locator("body").inner_text()
        while not sent.empty():
            page.evaluate("message => window.down(message)", sent.get())
        if frame.locator(shown[0][0]).count():
            shown.pop(0)
            if shown:
                frame.get_by_role("button", name=shown[0][1]).click()
        page.wait_for_timeout(20)
    page.evaluate("window.unmount()")
    widget.close()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
