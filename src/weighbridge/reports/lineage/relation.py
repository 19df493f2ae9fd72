"""How two models are related, by their sampled weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.layer_map import LayerMap, map_layers, spread
from weighbridge.reports.lineage.model import LineagePair
from weighbridge.reports.lineage.sampling import Place, Sampler, is_lossy
from weighbridge.reports.lineage.values import SampledValues, compare_values
from weighbridge.reports.prove.bounds import float_type, type_of

if TYPE_CHECKING:
    from weighbridge.tensors.likeness import Rows

_WEIGHTS: Final = "weights"
_ROUNDED: Final = "up to rounding"
_ORDER: Final = "columns in another order: "


def relate(a: Sampler, b: Sampler) -> LineagePair:
    """Returns the relation of two models. Names a parent only if the weights prove it."""
    layers = map_layers(a, b)
    pair = LineagePair(a.name, b.name, "unrelated")
    if not layers.comparable:
        return _of_other_shapes(a, b, pair)
    if not layers.to_a:
        return relate_apart(a, b, layers, pair)
    values = compare_values(a, b, layers)
    pair = replace(pair, cosine=values.cosine, distance=values.distance)
    if values.reshaped:
        return relate_widths(a, b, values, pair)
    if not layers.identical:
        return relate_layers(layers, values, pair)
    return relate_values(a, b, values, pair)


def _of_other_shapes(a: Sampler, b: Sampler, pair: LineagePair) -> LineagePair:
    """Models without a layer of one shape: one may be the other with columns removed."""
    kept = columns_kept(a, b)
    if kept is None:
        return replace(pair, relation="different-shapes")
    side, role, wide, narrow = kept
    parent = a.name if side == "a" else b.name
    detail = f"columns removed: {role} has {narrow:,} of {wide:,}"
    return replace(pair, relation="pruned", parent=parent, evidence=_WEIGHTS, exact=True, detail=detail)


def relate_widths(a: Sampler, b: Sampler, values: SampledValues, pair: LineagePair) -> LineagePair:
    """Models with some matrices of different shapes."""
    cut = _of_other_shapes(a, b, pair)
    if cut.relation == "pruned" and values.state == "equal" and not values.extras:
        return cut
    detail = cut.detail or f"other shapes: {_short(values.reshaped)}"
    return replace(
        cut, relation="pruned" if cut.detail else "related", parent=None, evidence=None, exact=False, detail=detail
    )


def columns_kept(a: Sampler, b: Sampler) -> tuple[str, str, int, int] | None:
    """Returns the larger model ("a" or "b"), a role whose rows have some of its columns there, and both widths."""
    from weighbridge.tensors.likeness import share_kept

    places = [place for place in a.matrices if place in b.matrices]
    for place in spread(places, len(places)):
        x, y = a.node(place).spec, b.node(place).spec
        if x.rows != y.rows or x.shape[-1] == y.shape[-1] or place[0] not in (a.layers[0], a.layers[-1]):
            continue
        wide, narrow = (a, b) if x.shape[-1] > y.shape[-1] else (b, a)
        count = max(1, thresholds.ANCHOR_ELEMENTS // max(x.shape[-1], y.shape[-1]))
        for model in (wide, narrow):
            model.read([(place, count * model.node(place).spec.shape[-1])])
        rows = [model.rows(place, count * model.node(place).spec.shape[-1]) for model in (narrow, wide)]
        if rows[0] is None or rows[1] is None or len(rows[0]) != len(rows[1]):
            continue
        if share_kept(rows[0], rows[1]) >= thresholds.PERMUTED:
            return ("a" if wide is a else "b"), place[1], rows[1].shape[1], rows[0].shape[1]
    return None


def relate_apart(a: Sampler, b: Sampler, layers: LayerMap, pair: LineagePair) -> LineagePair:
    """Models of one shape without matching layers."""
    if permuted := _permuted(a, b, [place for place in a.matrices if place[0] == a.layers[0]]):
        return replace(pair, relation="permuted", detail=_ORDER + _short(permuted))
    cosines = [value for value in layers.cosines.values() if value > -1]
    cosine = sum(cosines) / len(cosines) if cosines else None
    related = cosine is not None and cosine >= thresholds.RELATED
    detail = "partly the same weights: a long training in between, or the same initial ones" if related else ""
    return replace(pair, relation="related" if related else "unrelated", cosine=cosine, detail=detail)


def _permuted(a: Sampler, b: Sampler, places: Sequence[Place]) -> Sequence[str]:
    """Returns the roles of matrices, at the same places, whose rows have the same values in another order. Values that
    only changed in their last bit hardly change the order."""
    from weighbridge.tensors.likeness import rounding_energy, share_of_permuted

    places = [p for p in places if p in b.matrices and a.node(p).spec.shape == b.node(p).spec.shape]
    result = {}
    for model in (a, b):
        model.read((place, thresholds.MATRIX_ELEMENTS) for place in places)
    for place in places:
        x, y = (model.rows(place, thresholds.MATRIX_ELEMENTS) for model in (a, b))
        if x is not None and y is not None and share_of_permuted(x, y) >= thresholds.PERMUTED:
            dtype = float_type(type_of(a.node(place)))
            noise = rounding_energy(x, dtype) if dtype is not None else 0.0
            result[place[1]] = float(((x - y) ** 2).sum()) > thresholds.LOUD * noise
    return [role for role, moved in result.items() if moved]


def relate_layers(layers: LayerMap, values: SampledValues, pair: LineagePair) -> LineagePair:
    """Models with layers in common in another number or order. The parent is known if the values follow from it, and if
    everything outside of the layers is also the parent's: a model stacked from two has another head."""
    relation, side, detail = layers.structure
    state = values.state
    exact = state in ("equal", "to a", "to b") and not values.extras
    is_certain = side and exact and state in ("equal", "to b" if side == "a" else "to a")
    if not exact:
        detail += "; changed since, or made from a relative"
    return replace(
        pair, relation=relation or "slices", detail=detail, exact=exact, evidence=_WEIGHTS if is_certain else None,
        parent=(pair.a if side == "a" else pair.b) if is_certain else None,
    )  # fmt: skip


def relate_values(a: Sampler, b: Sampler, values: SampledValues, pair: LineagePair) -> LineagePair:
    state, roles = values.state, tuple(sorted({row.role for row in values.changed}))
    if state == "equal" and not values.extras:
        if scales := _other_scales(a, b):
            return replace(pair, relation="related", detail=scales)
        return replace(pair, relation="same", exact=not values.distance, detail=_ROUNDED if values.distance else "")
    if state == "equal":
        return replace(pair, relation="fine-tuned", targets=tuple(values.extras), detail="no matrix changed")
    if state in ("to a", "to b") and not values.extras:
        parent, child = (a, b) if state == "to b" else (b, a)
        return replace(
            pair, relation="quantized", parent=parent.name, evidence=_WEIGHTS, exact=True,
            detail=f"{parent.type} to {child.type}",
        )  # fmt: skip
    if state != "changed":
        types = f"{a.type} and {b.type}"
        detail = f"{types}: within the error of the types, so a small fine-tune may lie between them"
        return replace(pair, relation="quantized", detail=detail)
    if permuted := _permuted(a, b, [row.place_a for row in values.changed]):
        return replace(pair, relation="permuted", targets=roles, detail=_ORDER + _short(permuted))
    if replaced := tuple(role for role in roles if values.cosine_of(role) < thresholds.SAME_LAYER):
        detail = f"nothing in common in {_short(replaced)}: replaced, or in another order and changed"
        return replace(pair, relation="related", targets=replaced, detail=detail)
    rank = None if any_lossy(a, b, values) else rank_of_pair(a, b, values)
    if rank is not None:
        return replace(pair, relation="lora-merged", rank=rank, targets=roles, detail=f"rank {rank} in {_short(roles)}")
    everything = len(roles) == len({row.role for row in values.matrices})
    types = f"; {a.type} and {b.type}" if a.type != b.type else ""
    detail = f"{'all matrices' if everything else _short(roles)} changed{types}"
    return replace(pair, relation="fine-tuned", targets=roles, detail=detail)


def _other_scales(a: Sampler, b: Sampler) -> str:
    """Returns by which numbers two adapters with the same pairs are scaled; "" if by one, and for other models."""
    from weighbridge.models.lora.forms import adapter_form  # late: few models are adapters

    forms = [(model, adapter_form(model)) for model in (a.model, b.model)]
    with suppress(WeighbridgeError):  # adapters of other kinds than LoRA
        adapters = [form.read(model) for model, form in forms if form is not None]
        scales = [(adapter.alpha, adapter.root, dict(adapter.alphas)) for adapter in adapters]
        if len(scales) == len(forms) and scales[0] != scales[1]:
            words = (f"alpha {adapter.alpha:g}{' (rsLoRA)' if adapter.root else ''}" for adapter in adapters)
            return f"the same pairs of matrices, scaled by {' and '.join(words)}"
    return ""


def _short(roles: Sequence[str]) -> str:
    names = [role.removesuffix(".weight") for role in roles]
    return ", ".join(names[:8]) + (f" and {plural(len(names) - 8, 'other role')}" if len(names) > 8 else "")


def any_lossy(a: Sampler, b: Sampler, values: SampledValues) -> bool:
    return any(
        is_lossy(type_of(model.node(place)))
        for row in values.matrices for model, place in ((a, row.place_a), (b, row.place_b))
    )  # fmt: skip


def rank_of_pair(a: Sampler, b: Sampler, values: SampledValues) -> int | None:
    """Returns the rank of the change, from the cheapest matrix of attention and of the rest of a layer; None if it
    isn't low in both."""
    cheapest: dict[str, tuple[int, Place]] = {}
    for row in values.changed:
        part, width = row.role.partition(".")[0], a.node(row.place_a).spec.shape[-1]
        cheapest[part] = min(cheapest.get(part, (width, row.place_a)), (width, row.place_a))
    highest = 0
    for _, place in cheapest.values():
        if (rank := rank_of_matrix(a, b, place)) is None:
            return None
        highest = max(highest, rank)
    return highest or None


def rank_of_matrix(a: Sampler, b: Sampler, place: Place) -> int | None:
    """Returns the rank of a matrix's change, counted in a few rows, then in more; None if it isn't low."""
    width = a.node(place).spec.shape[-1]
    for count in thresholds.RANK_ROWS:
        for model in (a, b):
            model.read([(place, count * width)])
        x, y = a.rows(place, count * width), b.rows(place, count * width)
        if x is None or y is None:
            return None
        rank = rank_of_change(x, y, [type_of(model.node(place)) for model in (a, b)])
        if rank is not None or len(x) < count:
            return rank
    return None


def rank_of_change(x: Rows, y: Rows, types: Sequence[str]) -> int | None:
    """Returns the rank of the difference of two float matrices' rows, except for rounding; None if it isn't low, or
    hidden in the rounding."""
    import numpy as np

    from weighbridge.tensors.likeness import rounding_energy, spectrum

    difference = y.astype(np.float64) - x
    noise = max((rounding_energy(y, dtype) for name in types if (dtype := float_type(name)) is not None), default=0.0)
    energy = float(np.square(difference).sum())
    if energy < thresholds.LOUD * noise:
        return None
    result = spectrum(difference, noise)
    rank = int((result.values > thresholds.EDGE * result.edge).sum())
    residual = float(np.square(result.values[rank:]).sum())
    quiet = residual <= thresholds.TAIL * noise + energy * 1e-9
    if not quiet or not 0 < rank <= thresholds.LOW_RANK * min(difference.shape):
        return None
    return rank if result.values[rank - 1] >= thresholds.GAP * result.values[rank] else None
