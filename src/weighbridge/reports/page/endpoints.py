"""The questions that the page asks, and the reports that answer them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from weighbridge import __version__
from weighbridge.base.errors import UsageError
from weighbridge.base.plain import plain
from weighbridge.reports.page.book import Book, Control, Endpoint, exact, front_coded

_SHOWN: Final = 200  # findings of a report
_LONG: Final = 20_000  # characters of a metadata value


def start(book: Book) -> dict[str, Any]:
    """What the page is about."""
    models = [
        {
            "path": path,
            "name": Path(path).name or path,
            "format": model.format,
            "files": [{"name": Path(source.name).name, "size": source.size} for source in model.index.files],
        }
        for path, model in zip(book.paths, book.models, strict=True)
    ]
    return {"version": __version__, "models": models}


def summary(book: Book, model: int) -> Any:
    from weighbridge.reports.view.summary import summary

    return summary(book.models[model])


def findings(book: Book, model: int, control: Control) -> Any:
    """What verify and scan say."""
    from weighbridge.reports.scan.engine import scan
    from weighbridge.reports.verify.report import verify

    path = book.paths[model]
    checked = plain(verify(path))
    scanned = plain(scan(path))
    return {
        "verify": {**checked, "findings": checked["findings"][:_SHOWN], "verdicts": []},
        "scan": {**scanned, "files": [f for f in scanned["files"] if f["findings"] or f["skipped"]][:_SHOWN]},
    }


def tensors(book: Book, model: int) -> Any:
    """The columns of the list, names front-coded."""
    from weighbridge.reports.view.tensors import tensor_columns

    columns = tensor_columns(book.models[model])
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
    from weighbridge.reports.view.layout import layout_map

    found = layout_map(book.source(model, file).name)
    numbers = {e.name: i for i, e in enumerate(book.models[model].index.entries) if e.file == file}
    kinds = tuple(found.kinds)
    labels = [
        numbers.get(label, label) if kinds[kind] == "tensor" else label
        for label, kind in zip(found.labels, found.kind, strict=True)
    ]
    return {"size": found.size, "format": found.format, "kinds": kinds, "kind": found.kind,
            "start": exact(found.start), "labels": labels}  # fmt: skip


def moves(book: Book, file: int) -> Any:
    """What lies elsewhere in the same file of two models."""
    from weighbridge.reports.view.layout import layout_map, moves

    if len(book.models) < 2:
        raise UsageError("there is one model only")
    found = moves(*[layout_map(book.source(model, file).name) for model in (0, 1)])
    return {"total": len(found), "rows": found[:_SHOWN]}


#: What the page can ask, by name.
ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        "start": Endpoint(start),
        "summary": Endpoint(summary, ("model",)),
        "findings": Endpoint(findings, ("model",), slow=True),
        "tensors": Endpoint(tensors, ("model",)),
        "metadata": Endpoint(metadata, ("model",)),
        "layout": Endpoint(layout, ("model", "file")),
        "moves": Endpoint(moves, ("file",)),
    }
)
