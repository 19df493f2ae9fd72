"""The operator graph of a model, from its family's table, its tensors and its settings.

Reads headers only. Connections come from the graph that Weighbridge computes (`forward/graphs.toml`), or from the table
of flows. Without either the tensors are listed and not connected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.base.words import plural
from weighbridge.forward.graph import FamilyGraph, Graph, graph_of, table
from weighbridge.forward.operators import flow as flows
from weighbridge.forward.operators.description import LayerFacts
from weighbridge.forward.operators.model import GraphStage, LayerKind, OperatorGraph, Wiring
from weighbridge.forward.operators.wiring import StageEnds, listed, stage
from weighbridge.models.model import OpenModel
from weighbridge.providers.config import ModelConfig, config_of

_LAYER: Final = re.compile(r"(?:(\w+)\.)?layers\.(\d+)\.(.+)")
_MIXERS: Final = ("attention", "ssm", "delta", "conv")
_UNKNOWN: Final = (
    "How the operators of a layer are connected isn't known for {family} models, so they are listed without "
    "connections."
)


def operator_graph(model: OpenModel, tensors: Mapping[str, Shape]) -> OperatorGraph:
    """Returns the operator graph of an open model. `tensors`: their logical shapes, packed weights by logical names.
    Raises UnsupportedError if no family's table knows the model."""
    family = model.family
    return build_graph(family.name, config_of(model), canonical_shapes(model, tensors), family.effective(model.config))


def canonical_shapes(model: OpenModel, tensors: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns the shapes of the model's tensors in the canonical layout, by their canonical names. The file decides
    which tensors there are, the table their shapes."""
    family, sizes = model.family, model.sizes
    dialect, prefix = family.dialect_and_prefix(tensors, sizes)
    places = family.expansion(dialect, sizes, prefix).places
    present = {instance for name in tensors if name in places for instance in places[name].instances}
    canonical = family.expansion("canonical", sizes, "").places
    return {name: place.shape for name, place in canonical.items() if not present.isdisjoint(place.instances)}


@dataclass(frozen=True)
class _Layer:
    """Layer `number` of a stack, with the shapes of its tensors by role."""

    stack: str
    number: int
    shapes: dict[str, Shape]


def build_graph(
    family: str, config: ModelConfig, shapes: Mapping[str, Shape], facts: Mapping[str, Any]
) -> OperatorGraph:
    """Returns the operator graph of a model. `shapes`: of its tensors, by canonical name. `facts`: the effective
    config."""
    graph, flow, wiring = _graph_and_flow(family, config, shapes, facts)
    layers, outside = _layers(shapes)
    kinds: dict[tuple[object, ...], list[_Layer]] = {}
    for layer in layers:
        likeness: tuple[object, ...] = (layer.stack, tuple(sorted(layer.shapes.items())))
        if any(role.startswith("attention.") for role in layer.shapes):
            number = layer.number
            likeness += (graph.is_sliding(number), _rotates(graph, flow, layer), graph.heads(number))
        kinds.setdefault(likeness, []).append(layer)
    built = [(group, _layer_stage(graph, flow, group[0], wiring)) for group in kinds.values()]
    firsts = [group[0] for group, _ in built]
    features = [_features(graph, flow, layer) for layer in firsts]
    varying = [
        key for key in (features[0] if features else ())
        if len({feature[key] for feature in features if feature[key] or key in _MARKS}) > 1
    ]  # fmt: skip
    titles = [", ".join(filter(None, (feature[key] for key in varying))) or "all layers" for feature in features]
    titles = [  # how kinds of layers differ from each other
        title if titles.count(title) == 1 else f"{title}, {plural(len(layer.shapes), 'tensor')}"
        for title, layer in zip(titles, firsts, strict=True)
    ]
    before, after, unused = _outer(graph, outside, wiring)
    notes = [] if flow is not None else [_UNKNOWN.format(family=family)]
    if unused:
        notes.append(f"Outside of the drawing: {', '.join(unused)}.")
    return OperatorGraph(
        family=family,
        architecture=config.architecture,
        before=before,
        kinds=tuple(
            LayerKind(title, tuple(layer.number for layer in group), layer_stage, group[0].stack)
            for title, (group, layer_stage) in zip(titles, built, strict=True)
        ),
        after=after,
        notes=tuple(notes),
    )


def _graph_and_flow(
    family: str, config: ModelConfig, shapes: Mapping[str, Shape], facts: Mapping[str, Any]
) -> tuple[Graph, flows.FamilyFlow | None, Wiring]:
    """Returns the graph's rules, the flow of its layers (None if unknown) and how that is known."""
    declared = flows.flows().family.get(family)
    try:
        graph = graph_of(family, config, shapes, facts)
        return graph, flows.FamilyFlow("parallel" if graph.parallel else "sequential", graph.row), "computed"
    except UnsupportedError:
        row = table().graph.get(family)
    if row is not None:  # of a family that is computed, with a setting or tensor that isn't
        declared = flows.FamilyFlow("parallel" if row.parallel else "sequential", row)
    graph = Graph(config, declared.graph if declared else FamilyGraph(), shapes, facts)
    return graph, declared, "declared" if declared else "unknown"


def _layers(shapes: Mapping[str, Shape]) -> tuple[list[_Layer], dict[str, Shape]]:
    """Returns the layers in their order, and the tensors outside of them."""
    layers: dict[tuple[str, int], dict[str, Shape]] = {}
    outside: dict[str, Shape] = {}
    for name, shape in shapes.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            outside[name] = shape
        else:
            layers.setdefault((match[1] or "", int(match[2])), {})[match[3]] = shape
    stacks = {stack: i for i, stack in enumerate(dict.fromkeys(stack for stack, _ in layers))}
    ordered = sorted(layers, key=lambda key: (stacks[key[0]], key[1]))
    return [_Layer(*key, layers[key]) for key in ordered], outside


def _rotates(graph: Graph, flow: flows.FamilyFlow | None, layer: _Layer) -> bool:
    stated = graph.facts.get("position_embedding_type") == "rope"
    if flow is None or ("rope_if_stated" in flow.flags and not stated):
        return False
    return graph.is_rotated(layer.number)


def _layer_stage(graph: Graph, flow: flows.FamilyFlow | None, layer: _Layer, wiring: Wiring) -> GraphStage:
    facts = LayerFacts(graph, layer.shapes, layer.number)
    if flow is None:
        return listed(list(layer.shapes), facts)
    rotates, texts = _rotates(graph, flow, layer), flows.flows().layer
    flags = frozenset((*flow.flags, *(("late",) if graph.row.norm_after_rope else ())))
    bare = frozenset(("attention.norm", "mlp.norm") if graph.row.plain_norms else ())
    present = flows.Present(layer.shapes, flags, bare, lambda word: rotates or not word.startswith("rope"))
    name = "parallel_norms" if flow.flow == "parallel" and present.has("mlp.norm") else flow.flow
    parts = [flows.flow(texts[part], present) for part in ("before", "before_further", name, "after", "after_further")]
    series = flows.Series(tuple(part for part in parts if part is not None))
    left = set(layer.shapes) - {role for word in flows.words(series) for role in word.roles}
    if left:  # a part that the flows lack
        return listed(list(layer.shapes), facts)
    if any(layer.shapes) and layer.number >= graph.layers and wiring == "computed":
        wiring = "declared"  # a layer for further tokens, which isn't computed
    ends = StageEnds("states", "next layer" if not parts[3:] or not any(parts[3:]) else "")
    return stage(series, facts, ends, wiring)


def _features(graph: Graph, flow: flows.FamilyFlow | None, layer: _Layer) -> dict[str, str]:
    frames = flows.functions().frame
    starts = {role.partition(".")[0] for role in layer.shapes}
    attends = "attention.o.weight" in layer.shapes and "ssm.conv.q.weight" not in layer.shapes
    mixers = [frames[name].lower() for name in _MIXERS if name in starts and (name != "attention" or attends)]
    if "attention.linear.weight" in layer.shapes:
        mixers = ["linear"]
    feed_forward = [
        word for name, word in (("mlp", "feed forward"), ("moe", "experts")) if f"{name}.{_INNER[name]}" in layer.shapes
    ]
    window = graph.window if attends and graph.is_sliding(layer.number) else None
    up = layer.shapes.get("mlp.up.weight")
    return {
        "stack": layer.stack,
        "mixer": " and ".join(mixers) or "no attention",
        "window": (f"window of {window:,}" if window else "whole context") if attends else "",
        "rotation": ("rotated" if _rotates(graph, flow, layer) else "not rotated") if attends and flow else "",
        "rest": " and ".join(feed_forward) or "no feed forward",
        "heads": plural(graph.heads(layer.number)[0], "head") if attends else "",
        "inner": f"{up[0]:,} wide" if up else "",
        "index": "with an index of positions" if "attention.indexer.q.weight" in layer.shapes else "",
        "further": "for a further token" if {"next", "further"} & starts else "",
    }


#: Features that a kind of layers has or hasn't: their absence, "", is a difference too.
_MARKS: Final = ("index", "further")
_INNER: Final = {"mlp": "down.weight", "moe": "router.weight"}


def _outer(graph: Graph, outside: Mapping[str, Shape], wiring: Wiring) -> tuple[GraphStage, GraphStage, list[str]]:
    """Returns the stages before and after the layers, and the tensors of neither."""
    facts, texts = LayerFacts(graph, outside, -1), flows.flows().outside
    bare = frozenset(("norm",) if graph.row.plain_norms else ())
    capped = graph.config.logit_softcap
    generates = wiring == "computed" or graph.config.tied_embeddings
    if generates and "embed.weight" in outside and "head.weight" not in outside:
        bare |= {"head"}  # the embeddings again
    present = flows.Present(outside, frozenset(), bare, lambda word: word != "softcap" or bool(capped))
    before, after = flows.flow(texts["before"], present), flows.flow(texts["after"], present)
    used = {role for part in (before, after) if part for word in flows.words(part) for role in word.roles}
    return (
        stage(before, facts, StageEnds("", "first layer"), "declared"),
        stage(after, facts, StageEnds("last layer", ""), "declared"),
        sorted(set(outside) - used),
    )
