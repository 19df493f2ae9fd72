"""Cuts the roles out of one physical tensor, and joins them again.

A tensor may hold several roles and, for each, one tensor per value of the indices that its name leaves out: expert by
expert, the roles in order. The layout of a fuse applies to the joined roles of one such value: it is undone before they
are cut apart, and applied after they are joined. Members of a stack are cut out on request, and a stack that the other
dialect has, too, is passed on whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Instance, RoleSlice, TensorSlot, height
from weighbridge.models.arch.tables.spec import LayoutCall

if TYPE_CHECKING:
    from weighbridge.tensors.layouts import TensorLayout
    from weighbridge.tensors.nodes import LogicalTensor


@dataclass(frozen=True, slots=True, eq=False)
class RoleStack:
    """All logical tensors of one role in a physical one. `node`: their rows, one tensor after the other; `shape`:
    that of each tensor."""

    node: LogicalTensor
    count: int
    shape: Shape

    def __getitem__(self, number: int) -> LogicalTensor:
        from weighbridge.tensors.nodes import slice_rows

        return slice_rows(self.node, number * height(self.shape), self.shape)


class StackMember(NamedTuple):
    """One logical tensor of a stack."""

    stack: RoleStack
    number: int


class Roles(Mapping[Instance, "LogicalTensor"]):
    """The logical tensors of a model by role and index. Those in stacks aren't cut apart yet."""

    def __init__(self, entries: Mapping[Instance, LogicalTensor | StackMember]) -> None:
        self._entries = entries

    def __getitem__(self, instance: Instance) -> LogicalTensor:
        entry = self._entries[instance]
        return entry.stack[entry.number] if isinstance(entry, StackMember) else entry

    def __contains__(self, instance: object) -> bool:
        return instance in self._entries

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def behind(self, others: Mapping[Instance, LogicalTensor]) -> Roles:
        """The others followed by these, which win if both have an instance."""
        return Roles({**others, **self._entries}) if others else self

    def stack_of(self, instances: Sequence[Instance]) -> RoleStack | None:
        """The stack of exactly these instances in this order, if any."""
        first = self._entries.get(instances[0])
        if not isinstance(first, StackMember) or first.stack.count != len(instances):
            return None
        whole = all(self._entries.get(i) == (first.stack, n) for n, i in enumerate(instances))
        return first.stack if whole else None


#: The layout change of a logical tensor to a dialect, and its own shape.
LayoutMap = Callable[[Instance], "tuple[TensorLayout | None, Shape]"]


@lru_cache(maxsize=256)
def layout_of(call: LayoutCall, arguments: tuple[float, ...]) -> TensorLayout:
    """The layout that a table names, with these arguments."""
    from weighbridge.tensors.layouts import layout

    return layout(call.layout, *arguments)


def cut(
    place: TensorSlot, node: LogicalTensor, known: LayoutMap
) -> Iterator[tuple[Instance, LogicalTensor | StackMember]]:
    """The logical tensors in a physical one."""
    from weighbridge.tensors.layouts import RowMove
    from weighbridge.tensors.nodes import reshape, slice_rows

    if stacks := _stacks(place, node, known):
        for n, instance in enumerate(place.instances):
            number, role = divmod(n, len(stacks))
            yield instance, StackMember(stacks[role], number)
        return
    node, layouts = _in_rows(place, node), _layouts(place)
    for block, cells in _laid_out(place, node, layouts) if layouts else ((node, place.cells),):
        for instance, start, shape in cells:
            part = block if block.spec.shape == shape else slice_rows(block, start, shape)
            layout, own_shape = known(instance)
            part = reshape(part, own_shape) if isinstance(layout, RowMove) else part  # moves the rows of its own shape
            yield instance, reshape(layout.undo(part) if layout else part, own_shape)


def _stacks(place: TensorSlot, node: LogicalTensor, known: LayoutMap) -> Sequence[RoleStack]:
    """The stack of each role; none if a layout is undone tensor by tensor, or if whole runs of rows alternate, which
    are copied one by one."""
    from weighbridge.tensors.layouts import separate_stack
    from weighbridge.tensors.nodes import slice_rows

    plan, roles = place.plan, len(place.plan.parts)
    if not plan.stacked or plan.layouts or (roles > 1) != (place.plan.interleave > 0):
        return ()
    if any(known(instance)[0] for instance in place.instances[:roles]):
        return ()
    node, count = _in_rows(place, node), plan.depth
    if roles == 1:
        return (RoleStack(node, count, plan.parts[0][1]),)
    node = separate_stack(node, count, place.plan.interleave, place.heights)
    stacks, start = [], 0
    for _, shape in plan.parts:
        rows = count * height(shape)
        stacks.append(RoleStack(slice_rows(node, start, (rows, *shape[1:][-1:])), count, shape))
        start += rows
    return stacks


def check_unpacked(name: str, node: LogicalTensor) -> None:
    """UnsupportedError if a tensor stored rank by rank is packed, since blocks start anew at each rank."""
    from weighbridge.tensors.nodes import Node, storage_name

    if not isinstance(node, Node):
        raise UnsupportedError(
            f"{name} is packed ({storage_name(node)}), and such files have its rows rank by rank",
            hint="use a copy of the model in BF16",
        )


def join(place: TensorSlot, parts: Sequence[LogicalTensor]) -> LogicalTensor:
    """Joins the parts, in the order of the cells and in the dialect's layouts, to the physical tensor."""
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast, concat, decode, reshape

    if len({part.spec.dtype for part in parts}) > 1:  # a Q4_K_M has values in Q6_K, next to queries and keys in Q4_K
        parts = [cast(decode(part, "its parts are stored in different types"), F32) for part in parts]
    shapes = cycle([shape for _, shape in place.plan.parts])
    parts = [part if part.spec.shape == shape else reshape(part, shape) for part, shape in zip(parts, shapes)]  # noqa: B905
    layouts, roles = _layouts(place), len(place.roles)
    if not layouts:
        return reshape(concat(parts), place.shape)
    blocks = []
    for first in range(0, len(parts), roles):
        block = reshape(concat(parts[first : first + roles]), place.plan.joined)
        for layout in layouts:
            block = layout.apply(block)
        blocks.append(block)
    return reshape(concat(blocks), place.shape)


def join_stack(place: TensorSlot, stack: RoleStack) -> LogicalTensor:
    """The physical tensor of a whole stack."""
    from weighbridge.tensors.nodes import reshape

    return reshape(stack.node, place.shape)


def _layouts(place: TensorSlot) -> Sequence[TensorLayout]:
    """The layout changes of the fused tensor: interleaving, then those of the table."""
    if not place.plan.interleave and not place.plan.layouts:
        return ()
    from weighbridge.tensors.layouts import interleave

    interleaved = [interleave(place.plan.interleave, place.heights)] if place.plan.interleave else []
    return [*interleaved, *(layout_of(call, arguments) for call, arguments in place.plan.layouts)]


def _laid_out(
    place: TensorSlot, node: LogicalTensor, layouts: Sequence[TensorLayout]
) -> Iterator[tuple[LogicalTensor, Sequence[RoleSlice]]]:
    """The joined roles of each value of the stacked indices, their layouts undone, with the rows of each role."""
    from weighbridge.tensors.nodes import slice_rows

    plan = place.plan
    roles, rows = len(plan.parts), height(plan.joined)
    cells = place.cells
    for i in range(len(cells) // roles):
        block = slice_rows(node, i * height(plan.block), plan.block)
        for layout in reversed(layouts):
            block = layout.undo(block)
        inside = cells[i * roles : (i + 1) * roles]
        yield block, [cell._replace(start=cell.start - i * rows) for cell in inside]


def _in_rows(place: TensorSlot, node: LogicalTensor) -> LogicalTensor:
    """Stacked vectors as one vector, so that each is a run of rows. Quantized ones are decoded, since a block may span
    two vectors."""
    from weighbridge.tensors.nodes import decode, reshape

    if len(place.plan.joined) > 1 or len(node.spec.shape) == 1:
        return node
    return reshape(decode(node, "its vectors are parted"), (node.spec.elements,))
