"""The questions that the page asks, and the reports that answer them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge import __version__
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.plain import plain
from weighbridge.page.book import Book, Control, Endpoint, exact, front_coded

if TYPE_CHECKING:
    from weighbridge.reports.chat.template import RenderedTemplate

_SHOWN: Final = 200  # findings of a report
_LONG: Final = 20_000  # characters of a metadata value


def start(book: Book) -> dict[str, Any]:
    """What the page is about, and how the models describe themselves: enough for a first look."""
    from weighbridge.reports.inspect.report import model_facts

    models = [
        {
            "path": path,
            "name": Path(path).name or path,
            "format": model.format,
            "tensors": len(model.index),
            "files": [{"name": Path(source.name).name, "size": source.size} for source in model.index.files],
            "damage": {"error": damage.message, "hint": damage.hint} if damage else None,
            "facts": model_facts(model),
        }
        for path, model, damage in zip(book.paths, book.models, book.damage, strict=True)
    ]
    return {"version": __version__, "models": models}


def summary(book: Book, model: int) -> Any:
    from weighbridge.reports.view.summary import summary

    return summary(book.models[model], book.surveyed(model))


def tree(book: Book, model: int, counted: int) -> Any:
    """The names of the tensors, equal layers folded: some dozens of nodes. Without parameters it is there at once."""
    from weighbridge.reports.view.tree import tensor_tree

    return tensor_tree(book.models[model], book.surveyed(model).counted if counted else None)


def architecture(book: Book, model: int) -> Any:
    """The drawing of the model, and what a token of context costs; or why that isn't known."""
    from weighbridge.fitting.per_token import cache_per_token
    from weighbridge.reports.view.architecture import architecture

    opened = book.models[model]
    drawn = architecture(opened, book.surveyed(model))
    try:
        return {"drawing": drawn, "cache": cache_per_token(opened)}
    except WeighbridgeError as error:
        return {"drawing": drawn, "cache": None, "reason": error.message}


def findings(book: Book, model: int, control: Control) -> Any:
    """What verify and scan say."""
    from weighbridge.page.findings import findings

    return findings(book.paths[model], len(book.models[model].index), control)


def tensors(book: Book, model: int) -> Any:
    """The columns of the list, names front-coded."""
    from weighbridge.reports.view.tensors import tensor_columns

    columns = tensor_columns(book.models[model], book.surveyed(model))
    found = {f.name: getattr(columns, f.name) for f in fields(columns)}
    wide = {name: exact(found[name]) for name in ("offset", "nbytes", "parameters")}
    return {**found, **wide, "names": front_coded(columns.names)}


def metadata(book: Book, model: int) -> Any:
    """The file's own keys, arrays by length and first elements, long texts cut."""
    from weighbridge.reports.inspect.report import short

    found = book.models[model].metadata
    return {key: _cut(short(value)) for key, value in found.items()}


def _cut(value: Any) -> Any:
    value = plain(value)
    return value[:_LONG] if isinstance(value, str) else value


def layout(book: Book, model: int, file: int) -> Any:
    """The regions of a file as columns; the label of a tensor's region is its number."""
    found = book.layout(model, file)
    numbers = {e.name: i for i, e in enumerate(book.models[model].index.entries) if e.file == file}
    kinds = tuple(found.kinds)
    labels = [
        numbers.get(label, label) if kinds[kind] == "tensor" else label
        for label, kind in zip(found.labels, found.kind, strict=True)
    ]
    return {"size": found.size, "format": found.format, "kinds": kinds, "kind": found.kind,
            "start": exact(found.start), "labels": labels}  # fmt: skip


def vocabulary(book: Book, model: int) -> Any:
    """The special tokens and templates of a model, and the example conversations; or why there is no tokenizer."""
    from weighbridge.reports.chat.conversations import CONVERSATIONS
    from weighbridge.reports.chat.tokens import vocabulary

    try:
        return {"vocabulary": vocabulary(book.vocab(model)), "conversations": tuple(CONVERSATIONS)}
    except WeighbridgeError as error:
        return {"vocabulary": None, "reason": error.message}


def tokens(book: Book, model: int, text: str) -> Any:
    """The tokens that a search finds."""
    from weighbridge.reports.chat.tokens import search

    return search(book.vocab(model), text)


def rendered(book: Book, model: int, template: str, conversation: str, prompt: int, control: Control) -> Any:
    """A template's rendering in pieces: texts, and special tokens with their numbers."""
    from weighbridge.reports.chat.template import render

    return _pieces(render(book.vocab(model), conversation, template=template, add_generation_prompt=bool(prompt)))


def _pieces(found: RenderedTemplate) -> dict[str, Any]:
    pieces, at = [], 0
    for span in found.spans:
        pieces += [(found.text[at : span.start], None), (found.text[span.start : span.end], span.id)]
        at = span.end
    shown = [(text, token) for text, token in (*pieces, (found.text[at:], None)) if text]
    return {"pieces": shown, "error": found.error, "stopped": found.stopped}


def reference(book: Book, model: int, template: str, conversation: str, prompt: int, control: Control) -> Any:
    """What transformers makes of the same, and where that differs from ours."""
    from weighbridge.reports.chat.template import render_both

    found = render_both(book.vocab(model), conversation, template=template, add_generation_prompt=bool(prompt))
    if found.reference is None:
        return {"rendered": None, "reason": found.reason}
    return {"rendered": _pieces(found.reference), "same": found.same, "lines": found.lines}


def statistics(book: Book, model: int, tensor: int, control: Control) -> Any:
    """The statistics of all values of a tensor."""
    from weighbridge.reports.statistics.tensor import tensor_statistics

    name = book.tensor(model, tensor)
    return tensor_statistics(book.models[model], name, cancelled=control.cancelled, progress=control.progress)


def channels(book: Book, model: int, tensor: int, control: Control) -> Any:
    """The outlier columns of a matrix."""
    from weighbridge.reports.statistics.tensor import channel_report

    name = book.tensor(model, tensor)
    return channel_report(book.models[model], name, cancelled=control.cancelled, progress=control.progress)


def heat(book: Book, model: int, control: Control) -> Any:
    """The statistics of values of every role of every layer, by name."""
    from weighbridge.reports.statistics.heat import heat_maps

    return heat_maps(book.models[model], cancelled=control.cancelled, progress=control.progress)


def diff(book: Book, control: Control) -> Any:
    """What differs between two models, values included; the errors by layer and role; templates side by side."""
    from weighbridge.reports.diff.errors import ERRORS, error_map
    from weighbridge.reports.diff.report import diff_models
    from weighbridge.reports.side_by_side import side_by_side

    if len(book.models) < 2:
        raise UsageError("there is one model only")
    found = diff_models(*book.models, progress=control.progress)
    return {
        "report": found,
        "errors": {name: error_map(found, name) for name in ERRORS},
        "template": side_by_side(*found.templates) if found.templates else None,
    }


def bytes_of(book: Book, model: int, file: int, offset: int, length: int) -> Any:
    """Bytes of a file with their meaning."""
    return book.lens(model, file).bytes(offset, length)


def block(book: Book, model: int, tensor: int, number: int) -> Any:
    """One block of a tensor, with its formula."""
    from weighbridge.reports.microscope.blocks import block

    return block(book.models[model], book.tensor(model, tensor), number)


def pickle(book: Book, model: int, file: int, member: str, start: int) -> Any:
    """Steps of a pickle; the first one of the file where `member` is empty."""
    from weighbridge.reports.microscope.pickles import pickle_trace

    return pickle_trace(book.source(model, file).name, member=member or None, start=start)


def moves(book: Book, file: int) -> Any:
    """What lies elsewhere in the same file of two models."""
    from weighbridge.reports.view.layout import moves

    if len(book.models) < 2:
        raise UsageError("there is one model only")
    found = moves(*[book.layout(model, file) for model in (0, 1)])
    return {"total": len(found), "rows": found[:_SHOWN]}


#: What the page can ask, by name.
ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        "start": Endpoint(start, kept=True),
        "summary": Endpoint(summary, ("model",), kept=True),
        "findings": Endpoint(findings, ("model",), slow=True),
        "tree": Endpoint(tree, ("model", "counted"), kept=True),
        "architecture": Endpoint(architecture, ("model",), kept=True),
        "tensors": Endpoint(tensors, ("model",), kept=True),
        "metadata": Endpoint(metadata, ("model",)),
        "layout": Endpoint(layout, ("model", "file"), kept=True),
        "moves": Endpoint(moves, ("file",)),
        "vocabulary": Endpoint(vocabulary, ("model",), kept=True),
        "tokens": Endpoint(tokens, ("model", "text")),
        "rendered": Endpoint(rendered, ("model", "template", "conversation", "prompt"), slow=True),
        "reference": Endpoint(reference, ("model", "template", "conversation", "prompt"), slow=True),
        "statistics": Endpoint(statistics, ("model", "tensor"), slow=True),
        "channels": Endpoint(channels, ("model", "tensor"), slow=True),
        "heat": Endpoint(heat, ("model",), slow=True),
        "diff": Endpoint(diff, slow=True),
        "bytes": Endpoint(bytes_of, ("model", "file", "offset", "length")),
        "block": Endpoint(block, ("model", "tensor", "number")),
        "pickle": Endpoint(pickle, ("model", "file", "member", "start")),
    }
)
