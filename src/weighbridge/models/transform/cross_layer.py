"""Tensors with data for every layer side by side (Gemma 3n's per-layer embedding, [vocabulary, layers * width]). The
family's table identifies them: their shapes contain the number of layers."""

from __future__ import annotations

from collections.abc import Sequence

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import ResizedTensor, slots, with_shapes


def slice_across_layers(
    model: OpenModel, kept: Sequence[int], count: int
) -> tuple[OpenModel, tuple[ResizedTensor, ...]]:
    """Returns the model with these tensors cut to the given layers, and the cuts. Raises UnsupportedError if one is
    quantized across layers."""
    from weighbridge.tensors.slicing import take

    if list(kept) == list(range(count)) or not (places := slots(model)):
        return model, ()
    symbol = model.family.index.get("l")
    nodes, resized = dict(model.stored), []
    for name in model.logical:
        place = places.get(name)
        # The first role that spans the layers; a row of the table has one such axis.
        rows = [model.family.rows[role] for role in place.roles] if place else []
        if place is None or not any(symbol in dim.split("*")[:-1] for row in rows for dim in row.shape):
            continue
        row = rows[0]
        if name not in nodes or nodes[name].spec.shape != model.logical[name].spec.shape:
            raise UnsupportedError(
                f"{name} spans all layers and is quantized across their boundaries",
                hint="decode it first: wb convert SRC DST --dtype bf16",
            )
        axis = next(i for i, dim in enumerate(row.shape) if symbol in dim.split("*")[:-1])
        axis = len(row.shape) - 1 - axis if row.transposed(model.dialect) else axis
        axis += len(place.shape) - len(row.shape)
        node = nodes[name]
        each = node.spec.shape[axis] // count
        nodes[name] = take(node, axis, [(n * each, (n + 1) * each) for n in kept])
        resized.append(ResizedTensor(name, node.spec.shape, nodes[name].spec.shape))
    return (with_shapes(model, nodes), tuple(resized)) if resized else (model, ())
