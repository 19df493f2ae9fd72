"""The page as one file that needs no server: the same document, with the answers to what it would ask."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Final
from urllib.parse import urlencode

from weighbridge.base.errors import WeighbridgeError
from weighbridge.page.assemble import page
from weighbridge.page.book import Book, Control

_PLAIN: Final = 64 << 10  # bytes of answers that stay readable; more are compressed
#: Characters that could end the element, begin another, or end a line of JavaScript.
_ESCAPED: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

_OF_A_MODEL: Final = ("summary", "tensors", "architecture", "metadata", "vocabulary", "findings")

Question = tuple[str, Mapping[str, int | str]]


def export(book: Book, *, findings: bool = True) -> str:
    """The document for `book`. What needs tensor data isn't in it."""
    return page(book.title, _element(dict(_answers(book, _questions(book, findings))))).html


def framed(book: Book) -> str:
    """The document for a frame of a notebook that answers it by messages."""
    return page(book.title, '<script type="application/json" id="framed"></script>\n').html


def notebook_html(book: Book, height: int = 640) -> str:
    """The page in a frame of a notebook, where it can reach nothing."""
    text = escape(export(book, findings=False))
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{text}" title="{escape(book.title)}" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def key(question: Question) -> str:
    """A question as one text: `layout?file=0&model=0`."""
    name, given = question
    return f"{name}?{urlencode(sorted((k, str(v)) for k, v in given.items()))}"


def _questions(book: Book, findings: bool) -> Iterator[Question]:
    yield "start", {}
    for number, model in enumerate(book.models):
        for name in _OF_A_MODEL:
            if findings or name != "findings":
                yield name, {"model": number}
        yield "tree", {"model": number, "counted": 1}
        for file in range(len(model.index.files)):
            yield "layout", {"model": number, "file": file}


def _answers(book: Book, questions: Iterator[Question]) -> Iterator[tuple[str, object]]:
    """Answers by question; what can't be answered is an error there, as a server would say it."""
    for question in questions:
        name, given = question
        try:
            answer = json.loads(book.answer(name, {k: str(v) for k, v in given.items()}, Control()))
        except WeighbridgeError as error:
            yield key(question), {"error": error.message, "hint": error.hint}
        else:
            yield key(question), {"answer": answer}


def _element(answers: Mapping[str, object]) -> str:
    """The answers as an element that is no script: JSON, or gzip in base64 where that is long."""
    text = json.dumps(answers, separators=(",", ":"))
    if len(text) <= _PLAIN:
        return f'<script type="application/json" id="answers">{text.translate(_ESCAPED)}</script>\n'
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="text/plain" id="answers" data-encoding="gzip">{packed}</script>\n'
