"""The page's endpoints: one function per question, which returns data that can be encoded as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge import __version__
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.plain import plain
from weighbridge.base.records import dataclass
from weighbridge.page.control import Control
from weighbridge.page.models import PageModels

if TYPE_CHECKING:
    from weighbridge.io.source import Source
    from weighbridge.models.model import OpenModel
    from weighbridge.page.chat.template import RenderedTemplate

_SHOWN: Final = 200  # moved regions
_LONG: Final = 20_000  # characters of a metadata value
_DIRECTORY: Final = "directory"  # of a zip
_EXACT: Final = 1 << 53  # JavaScript's numbers are exact below


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`answer`: the function, with the names of its `params`. `slow`: it reads tensor data, takes a `control`, and its
    answers are cached. `cached`: it reads headers only, its answers are cached, and one is computed at a time."""

    answer: Callable[..., Any]
    params: tuple[str, ...] = ()
    slow: bool = False
    cached: bool = False


def bytes_fetched(model: OpenModel) -> int | None:
    """Returns the bytes that were fetched to open a model; None for one on this machine."""
    files = model.index.files
    return sum(file.fetched for file in files) if any(file.remote for file in files) else None


def _files(sources: Sequence[Source]) -> Iterator[dict[str, Any]]:
    """Yields the files of a model. `inside`: one is a part of the file before it, a member or decoded data."""
    owner = ""
    for source in sources:
        inside = bool(owner) and source.name.startswith(f"{owner}::")
        owner = owner if inside else source.name
        yield {"name": Path(source.name).name, "size": source.stored, "inside": inside}


def start(data: PageModels) -> dict[str, Any]:
    """The models and their descriptions, enough for a first look."""
    from weighbridge.models.llamacpp.towers import is_mmproj
    from weighbridge.models.lora.forms import adapter_form
    from weighbridge.reports.inspect.report import model_facts

    models = [
        {
            "path": path, "name": Path(path).name or path, "format": model.format, "tensors": len(model.index),
            "adapter": adapter_form(model) is not None,
            "imatrix": data.is_imatrix(number),
            "projector": is_mmproj(model),
            "folder": model.format != "gguf" and model.place.path.is_dir(),
            "fetched": bytes_fetched(model) if data.read_here else None,
            "files": list(_files(model.index.files)),
            "damage": {"error": damage.message, "hint": damage.hint} if damage else None,
            "facts": model_facts(model),
        }
        for number, (path, model, damage) in enumerate(zip(data.paths, data.models, data.damage, strict=True))
    ]  # fmt: skip
    return {"version": __version__, "models": models, "measured": len(data.measured)}


def summary(data: PageModels, model: int) -> Any:
    from weighbridge.reports.summary import summary

    return summary(data.models[model], data.survey(model))


def tree(data: PageModels, model: int, counted: int) -> Any:
    """The tensor names as a folded tree of a few dozen nodes. It is much faster without parameter counts."""
    from weighbridge.page.views.tree import tensor_tree

    return tensor_tree(data.models[model], data.survey(model).counted if counted else None)


def architecture(data: PageModels, model: int) -> Any:
    """The drawing of the model, and its cache size per token or the reason why that is unknown."""
    from weighbridge.fitting.per_token import cache_per_token
    from weighbridge.page.views.architecture import architecture

    drawing = architecture(data.models[model], data.survey(model))
    try:
        return {"drawing": drawing, "cache": cache_per_token(data.models[model])}
    except WeighbridgeError as error:
        return {"drawing": drawing, "cache": None, "reason": error.message}


def folder(data: PageModels, model: int) -> Any:
    """The settings, card and files of a model's folder."""
    from weighbridge.page.views.folder import folder_view

    return folder_view(data.models[model])


def graph(data: PageModels, model: int) -> Any:
    """The operators of a layer as a drawing, or the reason why they are unknown."""
    from weighbridge.page.views.graph import graph_view

    try:
        return {"graph": graph_view(data.models[model], data.survey(model))}
    except WeighbridgeError as error:
        return {"graph": None, "reason": error.message}


def findings(data: PageModels, model: int, control: Control) -> Any:
    """The verdict on a model: the answers on top of the page, its banners, and the findings of verify and scan."""
    from weighbridge.page.findings import findings
    from weighbridge.page.verdict import OF_THIS_MACHINE

    index = data.models[model].index
    verdict = findings(data.paths[model], len(index), control)
    if not data.read_here:
        verdict["answers"] = [row for row in verdict["answers"] if row["question"] != OF_THIS_MACHINE]
    numbers = {os.path.abspath(source.name): number for number, source in enumerate(index.files)}
    for row in (*verdict["banners"], *verdict["findings"]):
        if row["step"]:
            row["step"]["file"] = numbers.get(os.path.abspath(row["step"].pop("path")))
    return verdict


def tensors(data: PageModels, model: int) -> Any:
    """The columns of the tensor list, with front-coded names."""
    from weighbridge.page.views.tensor_columns import tensor_columns

    columns = tensor_columns(data.models[model], data.survey(model))
    values = {f.name: getattr(columns, f.name) for f in fields(columns)}
    wide = {name: exact(values[name]) for name in ("offset", "nbytes", "parameters")}
    return {**values, **wide, "names": front_coded(columns.names)}


def metadata(data: PageModels, model: int) -> Any:
    """The metadata of the file. Long arrays and texts are shortened."""
    from weighbridge.reports.inspect.report import short

    values = {key: plain(short(value)) for key, value in data.models[model].metadata.items()}
    return {key: value[:_LONG] if isinstance(value, str) else value for key, value in values.items()}


def layout(data: PageModels, model: int, file: int) -> Any:
    """The regions of a file as columns. The label of a tensor's region is the tensor's number."""
    from weighbridge.containers.archive.zip import LOCAL_HEADER

    regions = data.layout(model, file)
    numbers = {e.name: i for i, e in enumerate(data.models[model].index.entries) if e.file == file}
    kinds = regions.kinds
    rows = list(zip(regions.labels, regions.kind, strict=True))
    labels = [numbers.get(label, label) if kinds[kind] == "tensor" else label for label, kind in rows]
    members: list[tuple[int, str]] = []  # first region and name of each member of a zip, its directory included
    for number, (label, kind) in enumerate(rows):
        if kinds[kind] == "header" and label.startswith(LOCAL_HEADER):
            members.append((number, label.removeprefix(LOCAL_HEADER)))
        elif kinds[kind] == "header" and members and members[-1][1] != _DIRECTORY:
            members.append((number, _DIRECTORY))
    return {"size": regions.size, "format": regions.format, "kinds": kinds, "kind": regions.kind,
            "start": exact(regions.start), "labels": labels, "members": members}  # fmt: skip


def vocabulary(data: PageModels, model: int) -> Any:
    """The special tokens and templates of a model with the example conversations, or the reason why it has none."""
    from weighbridge.page.chat.conversations import CONVERSATIONS
    from weighbridge.page.chat.tokens import vocabulary

    try:
        return {"vocabulary": vocabulary(data.vocab(model)), "conversations": tuple(CONVERSATIONS)}
    except WeighbridgeError as error:
        return {"vocabulary": None, "reason": error.message}


def tokens(data: PageModels, model: int, text: str) -> Any:
    """The tokens that match a search."""
    from weighbridge.page.chat.tokens import search

    return search(data.vocab(model), text)


def rendered(data: PageModels, model: int, template: str, conversation: str, prompt: int, control: Control) -> Any:
    """A rendered template in pieces."""
    from weighbridge.page.chat.template import render

    return _pieces(render(data.vocab(model), conversation, template=template, add_generation_prompt=bool(prompt)))


def _pieces(rendering: RenderedTemplate) -> dict[str, Any]:
    """Splits a rendering into texts, and special tokens with their ids."""
    pieces, at, text = [], 0, rendering.text
    for span in rendering.spans:
        pieces += [(text[at : span.start], None), (text[span.start : span.end], span.id)]
        at = span.end
    nonempty = [(piece, token) for piece, token in (*pieces, (text[at:], None)) if piece]
    return {"pieces": nonempty, "error": rendering.error, "stopped": rendering.stopped}


def reference(data: PageModels, model: int, template: str, conversation: str, prompt: int, control: Control) -> Any:
    """The same template rendered by transformers, and its differences from ours."""
    from weighbridge.page.chat.template import render_both

    compared = render_both(data.vocab(model), conversation, template=template, add_generation_prompt=bool(prompt))
    if compared.reference is None:
        return {"rendered": None, "reason": compared.reason}
    return {"rendered": _pieces(compared.reference), "same": compared.same, "lines": compared.lines}


def statistics(data: PageModels, model: int, tensor: int, control: Control) -> Any:
    """The statistics of all values of a tensor."""
    from weighbridge.reports.statistics.tensor import tensor_statistics

    name = data.tensor(model, tensor)
    return tensor_statistics(data.models[model], name, cancelled=control.cancelled, progress=control.progress)


def channels(data: PageModels, model: int, tensor: int, control: Control) -> Any:
    """The outlier columns of a matrix."""
    from weighbridge.reports.statistics.tensor import channel_report

    name = data.tensor(model, tensor)
    return channel_report(data.models[model], name, cancelled=control.cancelled, progress=control.progress)


def heat(data: PageModels, model: int, control: Control) -> Any:
    """The heat map of each statistic by name."""
    from weighbridge.reports.statistics.heat import heat_maps

    return heat_maps(data.models[model], cancelled=control.cancelled, progress=control.progress)


def diff(data: PageModels, a: int, b: int, control: Control) -> Any:
    """The differences between two models, values included: the report, errors by layer and role, templates."""
    from weighbridge.page.side_by_side import side_by_side
    from weighbridge.reports.diff.errors import ERRORS, error_map
    from weighbridge.reports.diff.report import diff_models

    report = diff_models(data.models[a], data.models[b], progress=control.progress)
    return {
        "report": report,
        "errors": {name: error_map(report, name) for name in ERRORS},
        "template": side_by_side(*report.templates) if report.templates else None,
    }


def token_pair(data: PageModels, a: int, b: int) -> Any:
    """The tokens of both models, or the reason why they can't be compared."""
    from weighbridge.page.several.pair import token_pair

    try:
        return {"pair": token_pair(data.vocab(a), data.vocab(b))}
    except WeighbridgeError as error:
        return {"pair": None, "reason": error.message}


def lineage(data: PageModels, control: Control) -> Any:
    """The family tree of all models, by samples of their weights."""
    from weighbridge.page.several.family import family

    if len(data.models) < 2:
        raise UsageError("there is only one model")
    return family(data.models, data.paths, control.progress)


def adapter(data: PageModels, model: int, control: Control) -> Any:
    """The changes of an adapter, against the other model if that isn't one too."""
    from weighbridge.models.lora.forms import adapter_form
    from weighbridge.page.views.adapter import adapter_view

    bases = [base for n, base in enumerate(data.models) if n != model and adapter_form(base) is None]
    return adapter_view(data.models[model], bases[0] if bases else None, control)


def importance(data: PageModels, model: int, control: Control) -> Any:
    """The entries of an importance matrix."""
    from weighbridge.page.views.importance import importance

    return importance(data.source(model, 0), control)


def measured(data: PageModels, control: Control) -> Any:
    """The saved measurements of the page."""
    from weighbridge.page.views.measured import read_measured

    sizes = {
        Path(path).name: sum(source.size for source in model.index.files)
        for path, model in zip(data.paths, data.models, strict=True)
    }
    return read_measured(data.measured, sizes)


def bytes_of(data: PageModels, model: int, file: int, offset: int, length: int) -> Any:
    """Bytes of a file and the regions that contain them."""
    return data.file_view(model, file).bytes(offset, length)


def block(data: PageModels, model: int, tensor: int, number: int) -> Any:
    """One block of a tensor, with its formula."""
    from weighbridge.reports.microscope.blocks import block

    return block(data.models[model], data.tensor(model, tensor), number)


def weights(data: PageModels, a: int, b: int, tensor: int, row: int, column: int) -> Any:
    """Weights of a tensor of model `a`, and the same weights of model `b`."""
    return data.shared_weights(a, b).at(tensor, row, column)


def pickle(data: PageModels, model: int, file: int, member: str, start: int) -> Any:
    """Steps of a pickle, by default of the file's first one."""
    from weighbridge.page.views.pickle_trace import pickle_trace

    return pickle_trace(data.source(model, file).name, member=member or None, start=start)


def moves(data: PageModels, a: int, b: int, file: int) -> Any:
    """The regions at other places in the same file of two models, tensors first."""
    from weighbridge.page.views.layout import moves

    rows = sorted(moves(data.layout(a, file), data.layout(b, file)), key=lambda move: move.kind != "tensor")
    return {"total": len(rows), "rows": rows[:_SHOWN]}


def exact(column: tuple[int, ...]) -> tuple[int, ...] | tuple[str, ...]:
    """Returns integers that JavaScript reads exactly: as text if one of them is too large for its numbers."""
    return column if max(column, default=0) < _EXACT else tuple(map(str, column))


def front_coded(names: tuple[str, ...]) -> dict[str, list[int] | list[str]]:
    """Returns the names as two columns: `common`, the length in UTF-16 units of the prefix shared with the previous
    name, and `rest`, the remainder. A surrogate pair is never split."""
    common, remainders, previous = [], [], ""
    for name in names:
        low, high = 0, min(len(previous), len(name))
        while low < high:  # bisects, since most of a long name is shared
            middle = (low + high + 1) // 2
            low, high = (middle, high) if previous[:middle] == name[:middle] else (low, middle - 1)
        common.append(low + (0 if name.isascii() else sum(c > "\uffff" for c in name[:low])))
        remainders.append(name[low:])
        previous = name
    return {"common": common, "rest": remainders}


#: Endpoints by name.
ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(
    {
        "start": Endpoint(start, cached=True),
        "summary": Endpoint(summary, ("model",), cached=True),
        "findings": Endpoint(findings, ("model",), slow=True),
        "tree": Endpoint(tree, ("model", "counted"), cached=True),
        "architecture": Endpoint(architecture, ("model",), cached=True),
        "folder": Endpoint(folder, ("model",), cached=True),
        "graph": Endpoint(graph, ("model",), cached=True),
        "tensors": Endpoint(tensors, ("model",), cached=True),
        "metadata": Endpoint(metadata, ("model",)),
        "layout": Endpoint(layout, ("model", "file"), cached=True),
        "moves": Endpoint(moves, ("a", "b", "file")),
        "weights": Endpoint(weights, ("a", "b", "tensor", "row", "column")),
        "vocabulary": Endpoint(vocabulary, ("model",), cached=True),
        "tokens": Endpoint(tokens, ("model", "text")),
        "rendered": Endpoint(rendered, ("model", "template", "conversation", "prompt"), slow=True),
        "reference": Endpoint(reference, ("model", "template", "conversation", "prompt"), slow=True),
        "statistics": Endpoint(statistics, ("model", "tensor"), slow=True),
        "channels": Endpoint(channels, ("model", "tensor"), slow=True),
        "heat": Endpoint(heat, ("model",), slow=True),
        "diff": Endpoint(diff, ("a", "b"), slow=True),
        "token_pair": Endpoint(token_pair, ("a", "b"), cached=True),
        "lineage": Endpoint(lineage, slow=True),
        "adapter": Endpoint(adapter, ("model",), slow=True),
        "importance": Endpoint(importance, ("model",), slow=True),
        "measured": Endpoint(measured, slow=True),
        "bytes": Endpoint(bytes_of, ("model", "file", "offset", "length")),
        "block": Endpoint(block, ("model", "tensor", "number")),
        "pickle": Endpoint(pickle, ("model", "file", "member", "start")),
    }
)
