"""Tensors that hold data of every layer side by side (Gemma 3n's per-layer embedding, [vocabulary, layers * width]).
The family's table identifies them: their shapes contain the number of layers."""

from __future__ import annotations

from collections.abc import Sequence

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform.base import ResizedTensor, with_shapes


def slice_across_layers(
    model: Checkpoint, kept: Sequence[int], count: int
) -> tuple[Checkpoint, tuple[ResizedTensor, ...]]:
    """The model with these tensors cut to the given layers, and the cuts. UnsupportedError where one is quantized in
    a way that can't be cut there."""
    from weighbridge.tensors.slicing import take

    nodes = dict(model.stored) if (axes := _axes(model)) and list(kept) != list(range(count)) else {}
    resized = []
    for name, axis in axes.items() if nodes else ():
        if name not in nodes or nodes[name].spec.shape != model.logical[name].spec.shape:
            raise UnsupportedError(
                f"{name} spans all layers and is quantized across their boundaries",
                hint="decode it first: wb convert SRC DST --dtype bf16",
            )
        node = nodes[name]
        each = node.spec.shape[axis] // count
        nodes[name] = take(node, axis, [(n * each, (n + 1) * each) for n in kept])
        resized.append(ResizedTensor(name, node.spec.shape, nodes[name].spec.shape))
    return (with_shapes(model, nodes), tuple(resized)) if resized else (model, ())


def _axes(model: Checkpoint) -> dict[str, int]:
    """The axis along which a tensor spans the layers."""
    try:
        family, sizes = model.family, model.sizes
    except WeighbridgeError:
        return {}  # a model without a table
    symbol = family.index.get("l")
    roles = {n for n, row in family.rows.items() if any(symbol in dim.split("*")[:-1] for dim in row.shape)}
    if not roles:
        return {}
    dialect = model.dialect
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, model.logical, sizes)).places
    out = {}
    for name in model.logical:
        place = places.get(name)
        if place is None or not roles.intersection(place.roles):
            continue
        row = family.rows[place.roles[0]]
        axis = next(i for i, dim in enumerate(row.shape) if symbol in dim.split("*")[:-1])
        out[name] = len(place.shape) - len(row.shape) + (len(row.shape) - 1 - axis if row.transposed(dialect) else axis)
    return out
