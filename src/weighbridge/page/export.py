"""The page as one file that needs no server: the same document, with the answers to what it would ask. The values of
tensors are read for it only if that is asked for."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import urlencode

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.page.assemble import page
from weighbridge.page.book import Book, Control
from weighbridge.reports.statistics.tensor import Progress

_PLAIN: Final = 64 << 10  # bytes of answers that stay readable; more are compressed
#: Characters that could end the element, begin another, or end a line of JavaScript.
_ESCAPED: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

_TENSORS: Final = 4096  # of a model whose values are exported: each takes some 2 kB of the page
_OF_A_MODEL: Final = ("summary", "tensors", "architecture", "metadata", "vocabulary", "findings")

Question = tuple[str, Mapping[str, int | str]]


def export(book: Book, *, findings: bool = True, values: bool = False, progress: Progress | None = None) -> str:
    """The document for `book`. `values`: with what the panels of numbers and differences show of tensor data, which is
    read for it up to four times; UsageError for models of so many tensors that nobody could open the page."""
    questions = list(_questions(book, findings))
    if values:
        questions += _of_values(book)
    return page(book.title, _element(dict(_answers(book, questions, progress)))).html


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


def _of_values(book: Book) -> Iterator[Question]:
    """The questions that read tensor data."""
    for number, model in enumerate(book.models):
        if len(model.index) > _TENSORS:
            raise UsageError(
                f"{book.paths[number]} has {len(model.index):,} tensors: their statistics make too large a page",
                hint=f"leave out --values, which takes at most {_TENSORS:,} tensors",
            )
        yield "heat", {"model": number}
        for tensor, entry in enumerate(model.index.entries):
            yield "statistics", {"model": number, "tensor": tensor}
            if len(entry.shape) > 1:
                yield "channels", {"model": number, "tensor": tensor}
    if len(book.models) > 1:
        yield "diff", {}


def _weight(book: Book, question: Question) -> int:
    """About how many bytes of tensors a question reads."""
    name, given = question
    if name == "diff":
        return sum(model.index.nbytes for model in book.models)
    if name not in ("heat", "statistics", "channels"):
        return 0
    index = book.models[int(given["model"])].index
    return index.entries[int(given["tensor"])].nbytes if "tensor" in given else index.nbytes


def _answers(book: Book, questions: Sequence[Question], progress: Progress | None) -> Iterator[tuple[str, object]]:
    """Answers by question; what can't be answered is an error there, as a server would say it."""
    weights = [_weight(book, question) for question in questions]
    before, total = 0, sum(weights)
    for question, weight in zip(questions, weights, strict=True):
        yield key(question), _answer(book, question, _control(before, weight, total, progress))
        before += weight


def _control(before: int, weight: int, total: int, progress: Progress | None) -> Control:
    """Reports the progress of one answer as a part of that of all."""
    if progress is None or not weight:
        return Control()
    return Control(report=lambda done, of, label: progress(before + done * weight // max(of, 1), total, label))


def _answer(book: Book, question: Question, control: Control) -> dict[str, object]:
    name, given = question
    try:
        return {"answer": json.loads(book.answer(name, {k: str(v) for k, v in given.items()}, control))}
    except WeighbridgeError as error:
        return {"error": error.message, "hint": error.hint}


def _element(answers: Mapping[str, object]) -> str:
    """The answers as an element that is no script: JSON, or gzip in base64 where that is long."""
    text = json.dumps(answers, separators=(",", ":"))
    if len(text) <= _PLAIN:
        return f'<script type="application/json" id="answers">{text.translate(_ESCAPED)}</script>\n'
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="text/plain" id="answers" data-encoding="gzip">{packed}</script>\n'
