"""The page as a single file that needs no server: the same document, with the answers to its questions embedded.
Tensor values are read only if requested."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any, Final
from urllib.parse import urlencode

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.models.lora.forms import adapter_form
from weighbridge.page.assemble import page
from weighbridge.page.control import Control
from weighbridge.page.data import PageData
from weighbridge.page.views.pickle_trace import STEPS
from weighbridge.reports.statistics.tensor import Progress

_PLAIN: Final = 64 << 10  # bytes of answers that stay readable; more are compressed
#: Characters that could close the element, open another, or end a line of JavaScript.
_ESCAPED: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

_TENSORS: Final = 4096  # whose values can be exported: each takes about 2 kB of the page
_WINDOWS: Final = 8  # of a pickle's steps, with the calls that the verdict is about
_PER_MODEL: Final = ("summary", "tensors", "architecture", "graph", "metadata", "vocabulary", "findings")

Question = tuple[str, Mapping[str, int | str]]


def export(data: PageData, *, findings: bool = True, values: bool = False, progress: Progress | None = None) -> str:
    """Returns the document. `values`: includes statistics and differences of tensor data, which is read up to four
    times; raises UsageError for models with more than 4,096 tensors, since browsers couldn't open the page."""
    questions = [*header_questions(data, findings), *(_value_questions(data) if values else ())]
    text = json.dumps(dict(_answers(data, questions, progress)), separators=(",", ":"))
    if len(text) <= _PLAIN:
        element = f'<script type="application/json" id="answers">{text.translate(_ESCAPED)}</script>\n'
    else:
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        element = f'<script type="text/plain" id="answers" data-encoding="gzip">{packed}</script>\n'
    return page(data.title, element).html


def framed(data: PageData) -> str:
    """Returns the document for a frame in a notebook, which answers it by messages."""
    return page(data.title, '<script type="application/json" id="framed"></script>\n').html


def notebook_html(data: PageData, height: int = 640) -> str:
    """Returns the page in a sandboxed frame of a notebook."""
    text = escape(export(data, findings=False))
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{text}" title="{escape(data.title)}" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def key(question: Question) -> str:
    """Returns a question as text, for example `layout?file=0&model=0`."""
    name, params = question
    return f"{name}?{urlencode(sorted((k, str(v)) for k, v in params.items()))}"


def header_questions(data: PageData, findings: bool) -> Iterator[Question]:
    """Yields the questions that headers answer, and the family tree of more than two models, which needs samples."""
    yield "start", {}
    yield from (("token_pair", pair) for pair in _pairs(data))
    if len(data.models) > 2:
        yield "lineage", {}
    if data.measured:
        yield "measured", {}
    names = [name for name in _PER_MODEL if findings or name != "findings"]
    for number, model in enumerate(data.models):
        yield from ((name, {"model": number}) for name in names)
        if model.format != "gguf" and model.place.path.is_dir():
            yield "folder", {"model": number}
        if data.is_imatrix(number):
            yield "importance", {"model": number}
        yield "tree", {"model": number, "counted": 1}
        if findings:
            yield from _pickle_questions(data, number)
        for file in range(len(model.index.files)):
            yield "layout", {"model": number, "file": file}


def _pickle_questions(data: PageData, model: int) -> Iterator[Question]:
    """Yields the windows of steps that the page opens from the verdict."""
    rows: list[dict[str, Any]] = []
    with suppress(WeighbridgeError):
        verdict = json.loads(data.answer("findings", {"model": str(model)}))
        rows = [*verdict["banners"], *verdict["findings"]]
    steps = [row["step"] for row in rows if row["step"]]
    windows = {
        (s["file"], s["member"], s["number"] - s["number"] % STEPS): None for s in steps if s["file"] is not None
    }
    for file, member, start in list(windows)[:_WINDOWS]:
        yield "pickle", {"model": model, "file": file, "member": member, "start": start}


def _value_questions(data: PageData) -> Iterator[Question]:
    for number, model in enumerate(data.models):
        if len(model.index) > _TENSORS:
            raise UsageError(
                f"{data.paths[number]} has {plural(len(model.index), 'tensor')}, too many for a page with statistics",
                hint=f"leave out --values, which takes at most {_TENSORS:,} tensors",
            )
        yield "heat", {"model": number}
        if adapter_form(model) is not None:
            yield "adapter", {"model": number}
        for tensor, entry in enumerate(model.index.entries):
            yield "statistics", {"model": number, "tensor": tensor}
            if len(entry.shape) > 1:
                yield "channels", {"model": number, "tensor": tensor}
    yield from (("diff", pair) for pair in _pairs(data))
    if len(data.models) == 2:
        yield "lineage", {}


def _pairs(data: PageData) -> Iterator[Mapping[str, int]]:
    """Yields the first model with each of the others."""
    yield from ({"a": 0, "b": number} for number in range(1, len(data.models)))


def _weight(data: PageData, question: Question) -> int:
    """Returns approximately how many bytes of tensor data a question reads."""
    name, params = question
    if name == "diff":
        return sum(data.models[int(params[side])].index.nbytes for side in "ab")
    if name not in ("heat", "statistics", "channels"):
        return 0
    index = data.models[int(params["model"])].index
    return index.entries[int(params["tensor"])].nbytes if "tensor" in params else index.nbytes


def _answers(data: PageData, questions: Sequence[Question], progress: Progress | None) -> Iterator[tuple[str, object]]:
    """Yields each question with its answer, or with the error that a server would send."""
    weights = [_weight(data, question) for question in questions]
    before, total = 0, sum(weights)
    for question, weight in zip(questions, weights, strict=True):
        name, params = question
        answer: dict[str, object]
        try:
            encoded = data.answer(
                name, {k: str(v) for k, v in params.items()}, _control(before, weight, total, progress)
            )
            answer = {"answer": json.loads(encoded)}
        except WeighbridgeError as error:
            answer = {"error": error.message, "hint": error.hint}
        yield key(question), answer
        before += weight


def _control(before: int, weight: int, total: int, progress: Progress | None) -> Control:
    """Returns a control that reports the progress of one answer as a part of the total."""
    if progress is None or not weight:
        return Control()
    return Control(report=lambda done, of, label: progress(before + done * weight // max(of, 1), total, label))
