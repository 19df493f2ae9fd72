"""A low-rank change of a tensor, and its conversion to another dialect's names and layout through the model's table.

The change of W [out, in] is B @ A, with A [rank, in] and B [out, rank]. Moving rows of W moves rows of B: a rotary
order, a part of a fused tensor, a join. If W is transposed, A and B are transposed and exchanged. Experts in a stack
are stacks of A and of B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.arch.expand import Instance, Sizes, TensorSlot, shape_of
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingError, MappingReport

if TYPE_CHECKING:
    from weighbridge.tensors.layouts import TensorLayout
    from weighbridge.tensors.nodes import Node

_MERGE: Final = "merge it with PEFT (merge_and_unload), and convert the model"
# Dialects whose adapters always refer to linear layers, however a model file stores their weights (GPT-2).
_LINEAR: Final = frozenset({"hf", "hf5", "mlx", "canonical"})


@dataclass(frozen=True)
class LoraPair:
    """A [..., rank, in] and B [..., out, rank]. `lengths` [out, 1]: the Euclidean lengths of the changed tensor's rows,
    for DoRA."""

    a: Node
    b: Node
    lengths: Node | None = None

    @property
    def rank(self) -> int:
        return self.b.spec.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that it changes."""
        return (*self.b.spec.shape[:-1], self.a.spec.shape[-1])

    def turned(self) -> LoraPair:
        """Returns the change of the transposed tensor."""
        from weighbridge.tensors.nodes import transpose

        if self.lengths is not None:
            raise UnsupportedError("a DoRA of a transposed tensor has lengths of columns", hint=_MERGE)
        return LoraPair(transpose(self.b), transpose(self.a))

    def moved(self, move: Callable[[Node], Node]) -> LoraPair:
        """Returns the change of a tensor with its rows moved."""
        lengths = None if self.lengths is None else move(self.lengths)
        return LoraPair(self.a, move(self.b), lengths)


Roles = Mapping[Instance, LoraPair]


def load(family: Family, dialect: str, sizes: Sizes, pairs: Mapping[str, LoraPair], prefix: str | None = None) -> Roles:
    """Converts a dialect's pairs, keyed by the tensors they change, to changes of logical tensors. Raises MappingError
    unless all fit, and UnsupportedError for a tensor whose layout allows no pair."""
    places = family.expansion(dialect, sizes, prefix).places
    shapes = {name: linear_shape(family, dialect, places[name]) for name in pairs if name in places}
    misshapen = [(name, shape, pairs[name].shape) for name, shape in shapes.items() if pairs[name].shape != shape]
    report = MappingReport(unmapped=tuple(n for n in pairs if n not in places), misshapen=tuple(misshapen))
    if not report.ok:
        raise MappingError(family.name, dialect, report)
    roles: dict[Instance, LoraPair] = {}
    for name, pair in pairs.items():
        place = places[name]
        _check(family, name, place, dialect)
        for instance, part in zip(place.instances, _parts(family, sizes, place, pair), strict=True):
            roles[instance] = _convert(family, dialect, sizes, instance[0], part, undo=True)
    return roles


def save(family: Family, dialect: str, sizes: Sizes, roles: Roles, prefix: str | None = None) -> dict[str, LoraPair]:
    """Converts changes of logical tensors to a dialect's pairs, in the order of its table. Raises FormatError if a part
    of a stack or of a fused tensor is missing, and UnsupportedError if its parts don't share one A."""
    out: dict[str, LoraPair] = {}
    saved: set[Instance] = set()
    for name, place in family.expansion(dialect, sizes, prefix).places.items():
        missing = [instance for instance in place.instances if instance not in roles]
        if len(missing) == len(place.instances):
            continue
        _check(family, name, place, dialect)
        if missing:
            raise FormatError(
                "an adapter must change all parts of this tensor or none",
                field=name,
                expected=plural(len(place.instances), "part"),
                found=f"no {_label(missing[0])}",
            )
        parts = [_convert(family, dialect, sizes, i[0], roles[i], undo=False) for i in place.instances]
        out[name] = _join(name, place, parts)
        saved.update(place.instances)
    if unsaved := next((i for i in roles if i not in saved), None):
        raise UnsupportedError(f"a {dialect} adapter has no place for {_label(unsaved)}")
    return out


def with_whole_stacks(family: Family, dialect: str, sizes: Sizes, roles: Roles) -> Roles:
    """Returns the same changes for a dialect that stacks experts: all experts of a stack have a pair, of one rank."""
    filled = dict(roles)
    for place in family.expansion(dialect, sizes).places.values():
        changed = [roles[instance] for instance in place.instances if instance in roles]
        if len(place.shape) == 3 and changed and len(place.roles) == 1:
            rank = max(pair.rank for pair in changed)
            filled |= {i: _padded(roles.get(i), rank, changed[0].shape) for i in place.instances}
    return filled


def _padded(pair: LoraPair | None, rank: int, shape: tuple[int, ...]) -> LoraPair:
    """A pair of a higher rank with the same change, which is scaled by alpha/rank; zeros for None."""
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast, concat, scaled, zeros

    rows, columns = shape
    if pair is None:
        return LoraPair(zeros((rank, columns), F32), zeros((rows, rank), F32))
    if pair.rank == rank:
        return pair
    further = rank - pair.rank
    b = concat([scaled(cast(pair.b, F32), rank / pair.rank), zeros((rows, further), F32)], -1)
    return LoraPair(concat([cast(pair.a, F32), zeros((further, columns), F32)]), b)


def _label(instance: Instance) -> str:
    return ".".join((instance[0], *map(str, instance[1])))


def linear_shape(family: Family, dialect: str, place: TensorSlot) -> tuple[int, ...]:
    """Returns the shape of the linear layer, or stack of linear layers, that a tensor represents."""
    *lead, rows, columns = place.shape if len(place.shape) > 1 else (1, *place.shape)
    linear = dialect in _LINEAR and is_turned(family, dialect, place)
    return (*lead, columns, rows) if linear else place.shape


def is_turned(family: Family, dialect: str, place: TensorSlot) -> bool:
    """Whether a tensor stores its matrices transposed, single or fused."""
    joined = sum(via.row.transposes for via, _ in place.plan.layouts)
    return bool((family.rows[place.roles[0]].transposed(dialect) + joined) % 2)


def is_linear(family: Family, place: TensorSlot) -> bool:
    """Whether a tensor is a linear layer, or a stack of them. The weights of several norms may be a matrix, too."""
    return 2 <= len(place.shape) <= 3 and len(family.rows[place.roles[0]].shape) > 1


def divides(place: TensorSlot, dialect: str) -> bool:
    """Whether a pair of a tensor consists of pairs of its roles: not if it has a layout of the fused tensor, which
    applies to no single part."""
    stacked = place.indices[len(place.named) :]
    fused = any(not via.row.transposes or dialect not in _LINEAR for via, _ in place.plan.layouts)
    return not fused and stacked in ((), ("e",))


def _check(family: Family, name: str, place: TensorSlot, dialect: str) -> None:
    """Raises UnsupportedError for a tensor that can't have a pair."""
    if not is_linear(family, place) or not divides(place, dialect):
        raise UnsupportedError(
            f"{name} has a layout that a LoRA can't change under these names",
            hint="merge the adapter into the folder that it was trained on: wb convert DIR DST --lora LORA",
        )


def _parts(family: Family, sizes: Sizes, place: TensorSlot, pair: LoraPair) -> Sequence[LoraPair]:
    """Returns the part of a pair for each instance of a slot: experts of a stack, and roles that are stacked in a
    matrix or interleaved row by row."""
    from weighbridge.tensors.layouts import interleave
    from weighbridge.tensors.nodes import slice_rows

    if len(place.instances) == 1:
        return [pair]
    matrices = [pair]
    if len(place.shape) == 3:
        count, rank = len(place.instances) // len(place.roles), pair.rank
        width, height = pair.a.spec.shape[-1], pair.b.spec.shape[-2]
        matrices = [
            LoraPair(slice_rows(pair.a, n * rank, (rank, width)), slice_rows(pair.b, n * height, (height, rank)))
            for n in range(count)
        ]
    heights = [shape_of(family.rows[role], sizes.at(place.named))[0] for role in place.roles]
    parts = []
    for matrix in matrices:
        rows = matrix.moved(interleave(place.plan.interleave, tuple(heights)).undo) if place.plan.interleave else matrix
        start = 0
        for height in heights:
            parts.append(rows.moved(partial(_rows, slice_rows, start, height)))
            start += height
    return parts


def _rows(cut: Callable[..., Node], start: int, height: int, node: Node) -> Node:
    return cut(node, start, (height, node.spec.shape[-1]))


def _join(name: str, place: TensorSlot, parts: Sequence[LoraPair]) -> LoraPair:
    """Joins the parts of a slot to one pair: a stack of experts, or stacked roles that share their A."""
    from weighbridge.tensors.layouts import interleave
    from weighbridge.tensors.nodes import concat, stack

    if len(parts) == 1:
        return parts[0]
    if len(place.shape) == 3 and len(place.roles) == 1:
        if len({part.rank for part in parts}) > 1:
            raise UnsupportedError(f"{name}: the experts' changes have different ranks, and a stack has one")
        return LoraPair(stack([p.a for p in parts]), stack([p.b for p in parts]))
    if len(place.shape) == 3 or any(part.a is not parts[0].a for part in parts[1:]):
        raise UnsupportedError(
            f"{name} fuses tensors that each have a separate A in the adapter",
            hint="merge the adapter into the model: wb convert BASE DST --lora ADAPTER",
        )
    b = concat([part.b for part in parts])
    return LoraPair(
        parts[0].a, interleave(place.plan.interleave, place.heights).apply(b) if place.plan.interleave else b
    )


def _convert(family: Family, dialect: str, sizes: Sizes, role: str, pair: LoraPair, *, undo: bool) -> LoraPair:
    """Converts a pair to a role's layout (`undo`), or to a dialect's."""
    via = family.rows[role].layouts.get(dialect)
    layout: TensorLayout | None = None if via is None else family.layout_of(dialect, role, sizes)
    if via is None or layout is None or (via.layout == "transpose" and dialect in _LINEAR):
        return pair
    if via.layout == "transpose":
        return pair.turned()
    if not via.row.lora:
        raise UnsupportedError(
            f"{role} has a different layout in {dialect} ({via.layout}), so its LoRA can't be converted"
        )
    return pair.moved(layout.undo if undo else layout.apply)
