"""Plans an existing ONNX or CTranslate2 model with the weights of another: tensors get the data of the source's tensors
with the same names. All other bytes are repeated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.dtypes import BY_NAME, F32, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import PROTOBUF_MESSAGE
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers import reader
from weighbridge.containers.base import Layout
from weighbridge.containers.formats import GRAPHS
from weighbridge.containers.rewritten import relaid, tensor_parts
from weighbridge.conversion.options import GraphOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.losses.shared_storage import is_same
from weighbridge.conversion.plan.side_files import copied, side_files
from weighbridge.conversion.result import Loss
from weighbridge.io.sink import listed
from weighbridge.io.source import BytesSource
from weighbridge.models.ctranslate2_roles import to_ctranslate2
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.whisper import ctranslate2 as whisper
from weighbridge.models.whisper.forms import form_of
from weighbridge.models.whisper.source import read
from weighbridge.models.wrapped import unwrapped
from weighbridge.packings.write.ctranslate2 import Int8RowsOf
from weighbridge.tensors.nodes import Node, pack, reshape

_FLOATS = (Kind.FLOAT, Kind.BLOCK)


def format_of_graph(path: str | os.PathLike[str], to: str | None) -> str:
    """The format of an existing model. Raises UsageError if its weights can't be replaced, or if `to` is another."""
    with open_weights(resolve_path(path)) as graph:
        if to not in (None, graph.format):
            raise UsageError(f"--to {to} was given, but {path} is {graph.format}", hint="leave --to out")
        if graph.format in GRAPHS:
            return graph.format
    hint = f"--graph accepts {' and '.join(reader(name).title for name in GRAPHS)}"
    raise UsageError(f"{path}: the weights of a {graph.format} file can't be replaced", hint=hint)


def to_graph(model: OpenModel, options: GraphOptions) -> PlanBuilder:
    """Plans the weights of `model` in the graph, which stays open with the plan. Raises UsageError for a tensor that
    doesn't fit, and if no tensor has the name of one in the graph."""
    if not options.graph:
        raise UsageError("no graph was given for the weights", hint="--graph MODEL, an existing model of the format")
    graph = open_weights(resolve_path(options.graph))
    try:
        draft = PlanBuilder({}, sources=graph.place.files)
        fill(draft, weights_for(graph, model), graph)
        draft.metadata = {"layouts": _layouts(draft, graph)}
        folder = graph.place.folder
        draft.extra_files += copied(side_files(folder), folder) if graph.place.path == folder else []
        return draft
    except BaseException:
        graph.close()
        raise


def weights_for(graph: OpenModel, model: OpenModel) -> Mapping[str, Node]:
    """The weights of `model` under their own names, or under those that their roles have in a graph of CTranslate2."""
    if graph.format == "ctranslate2" and model.stored.keys().isdisjoint(graph.index.by_name):
        if (form := form_of(model)) is not None:
            return whisper.to_ctranslate2(read(model, form, tokenizer=False))
        with suppress(UnsupportedError):  # no table: `fill` says which names the graph has
            return to_ctranslate2(unwrapped(model)[0], graph.index.by_name)
    return model.stored


def fill(draft: PlanBuilder, weights: Mapping[str, Node], graph: OpenModel) -> None:
    """Adds the tensors of the graph to the draft, and lists those that only one side has."""
    kept: list[str] = []
    places: dict[tuple[int, int, Spec], list[str]] = {}
    for name, entry in graph.index.by_name.items():
        places.setdefault((entry.file, entry.offset, entry.spec), []).append(name)
    packed = _in_int8(weights, graph, places.values(), draft)
    given = {**weights, **packed}
    for names in places.values():
        have = [name for name in names if name in given]
        existing = graph.stored[names[0]]
        draft.tensors[names[0]] = _fitted(have[0], given[have[0]], existing.spec, draft) if have else existing
        kept += [] if have else names
        draft.losses += [
            Loss(f"left out: in the graph it shares the bytes of {have[0]}", name)
            for name in have[1:] if name in weights and not is_same(weights[name], weights.get(have[0], given[have[0]]))
        ]  # fmt: skip
    if len(kept) == len(graph.index):
        hint = f"the graph's names: {listed(list(graph.index.by_name))}; wb rename changes names"
        raise UsageError(f"no tensor has the name of one in {graph.place.path}", hint=hint)
    draft.losses += [Loss("left out: the graph has no tensor of this name", n) for n in weights if n not in graph.index]
    if kept:
        draft.notes.append(
            f"kept from the graph, since the source lacks them: {plural(len(kept), 'tensor')}: {listed(kept)}"
        )


def _in_int8(
    weights: Mapping[str, Node], graph: OpenModel, places: Iterable[list[str]], draft: PlanBuilder
) -> dict[str, Node]:
    """The float weights whose place in an int8 model of CTranslate2 has codes, as codes and scales by name."""
    packed: dict[str, Node] = {}
    for names in places if graph.format == "ctranslate2" else ():
        name = next((name for name in names if name in weights), "")
        entry, scales = graph.index.by_name.get(name), graph.index.by_name.get(scale := f"{name}_scale")
        if not entry or not scales or scale in weights or len(entry.shape) < 2 or entry.dtype != BY_NAME["I8"]:
            continue
        node, rows = weights[name], entry.shape[0]
        if node.spec.dtype.kind in _FLOATS and node.spec.shape == entry.shape and scales.spec == Spec((rows,), F32):
            matrix = reshape(cast_to(name, node, F32, draft), (rows, entry.spec.elements // max(rows, 1)))
            parts = pack(matrix, Int8RowsOf(matrix.spec.shape[1], name))
            packed |= {name: reshape(parts[""], entry.shape), scale: parts["_scale"]}
    if packed:
        quantized = [name for name in packed if name in weights]
        draft.notes.append(
            f"quantized to int8 with a scale for each row, as CTranslate2 does: {plural(len(quantized), 'tensor')}"
        )
    return packed


def _fitted(name: str, node: Node, spec: Spec, draft: PlanBuilder) -> Node:
    """The tensor in the graph's type. Raises UsageError if its shape is another, or if a value would become another
    kind of number."""
    if node.spec.shape != spec.shape:
        hint = "the graph's tensor is the transpose" if node.spec.shape == spec.shape[::-1] else None
        raise UsageError(f"{name} is {list(node.spec.shape)}, in the graph {list(spec.shape)}", hint=hint)
    if node.spec.dtype != spec.dtype and not (spec.dtype.is_float and node.spec.dtype.kind in _FLOATS):
        raise UsageError(f"{name} is {node.spec.dtype}, in the graph {spec.dtype}", hint="only floats are cast")
    return cast_to(name, node, spec.dtype, draft)


def _layouts(draft: PlanBuilder, graph: OpenModel) -> dict[str, Layout]:
    """The files of the graph with slots for its tensors: the model's, and those with external data. Numbers that are
    written as text or varints stay as they are if the values are the same."""
    index = graph.index
    coded = {n for n, entry in index.by_name.items() if isinstance(index.files[entry.file], BytesSource)}
    recoded = {
        n for n in coded & draft.tensors.keys() if (draft.tensors[n].read_all() != graph.stored[n].read_all()).any()
    }
    for name in coded - recoded:
        draft.tensors.pop(name, None)
    main = graph.place.weights[0]
    layouts = {main.name: relaid(index.format, index.files[0], reader(index.format).parts(index, recoded))}
    if index.format == "onnx" and layouts[main.name].size > PROTOBUF_MESSAGE:
        raise UnsupportedError(
            f"{main.name} would have more than {PROTOBUF_MESSAGE:,} bytes", hint="keep data in other files"
        )
    numbers = [n for n, file in enumerate(index.files) if n and not isinstance(file, BytesSource)]
    for number, path in zip(numbers, graph.place.data, strict=True):
        data = tensor_parts(entry for entry in index if entry.file == number)
        layouts[path.relative_to(main.parent).as_posix()] = relaid(index.format, index.files[number], data)
    return layouts
