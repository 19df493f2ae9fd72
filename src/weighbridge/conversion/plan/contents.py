"""The contents of a plan: the files that it writes, the place of each tensor in them, and the memory this takes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB, SLAB
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout, Slot
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.read_ahead import reads_remote, room
from weighbridge.conversion.result import Loss, Move, Progress
from weighbridge.io.location import RemotePath
from weighbridge.io.options import cores
from weighbridge.tensors.nodes import CastReport, Const, Encode, Node, PackedMember, QuantizedTensor, Stored, walk
from weighbridge.tensors.nodes.packed import make
from weighbridge.tensors.scratch import Bytes, scratch_buffers

# Computed slabs are smaller than copied ones, so that source, temporary and result stay in the cache.
_COMPUTED_SLAB = MIB
_COMPUTED_COST = 4 * MIB
# A slab is halved if the half needs at most this share of its memory.
_WORTH = 0.75
# Slabs that are examined to find a node's peak. Costs repeat along the rows, so a few dozen suffice.
_SAMPLES = 32
# Python itself takes 37 us for a slab whose kernel takes 1.8 ms (Q4_K with AVX-512, half a million weights), under one
# lock: more threads would wait for it.
_MOST_WORKERS = 48
_SMALL_BLOCK = 32
_PLAIN = frozenset((int, bool, str, type(None), Spec, DType))  # types of fields that are compared by value


def slab_cost(nodes: Sequence[Node], rows: int) -> int:
    """The peak bytes of reading any slab of `rows` rows of a unit, including its results."""
    total = nodes[0].spec.rows
    count = -(-total // rows) if rows else 0
    picks = range(count) if count <= _SAMPLES else {round(i * (count - 1) / (_SAMPLES - 1)) for i in range(_SAMPLES)}
    width = sum(node.spec.row_bytes for node in nodes)
    costs = (
        (hi - lo) * width + max(node.scratch(lo, hi) for node in nodes)
        for lo, hi in ((i * rows, min((i + 1) * rows, total)) for i in picks)
    )
    return max(costs, default=0)


def slab_rows(nodes: Sequence[Node], budget: int, name: str = "a tensor") -> int:
    """The rows of a unit to read at a time: a slab, or as many as fit in `budget` bytes if each read is a whole pass.

    Raises RefusedError if one row exceeds the budget.
    """
    total, width = nodes[0].spec.rows, sum(node.spec.row_bytes for node in nodes)
    if total == 0 or width == 0:
        return max(total, 1)
    if any(below.stripes for node in nodes for below in walk(node)):
        rows, bound = total, budget
    elif nodes[0].sources:
        rows, bound = min(total, max(1, _COMPUTED_SLAB // width)), min(budget, _COMPUTED_COST)
    else:
        rows, bound = min(total, max(1, SLAB // width)), budget
    cost = slab_cost(nodes, rows)
    while rows > 1 and cost > bound:
        half = -(-rows // 2)
        less = slab_cost(nodes, half)
        if cost <= budget and less > cost * _WORTH:
            break  # a row needs almost as much, such as a tile of scales, which each smaller slab would compute again
        rows, cost = half, less
    if cost > budget:
        raise RefusedError(
            f"{name}: one row needs {cost} bytes of memory at a time, the budget of a worker is {budget}",
            hint="raise --max-memory or lower --jobs",
        )
    return rows


class SlabCost(NamedTuple):
    """The rows of a unit's slabs, their peak bytes, and whether each slab takes a whole pass over a source."""

    rows: int
    memory: int
    striped: bool


class Threads(NamedTuple):
    """The number of threads, and what limits it."""

    number: int
    limit: str

    def __str__(self) -> str:
        return f"{self.number} ({self.limit})"


class SlabCosts:
    """Slabs within a budget of bytes.

    Costs are cached: layers and experts are alike, so a model of 100,000 tensors has a few dozen distinct costs.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._numbers: dict[Hashable, int] = {}  # of nodes; equal if everything that affects the cost is equal
        self._numbers_by_id: dict[int, int] = {}  # of values that aren't nodes
        self._costs: dict[Hashable, SlabCost] = {}  # by the numbers of a unit's nodes

    def of(self, nodes: Sequence[Node], name: str) -> SlabCost:
        """Returns the slabs of a unit. Raises RefusedError if one row exceeds the budget."""
        key = tuple(map(self._number, nodes))
        if key not in self._costs:
            rows = slab_rows(nodes, self._budget, name)
            striped = any(below.stripes for node in nodes for below in walk(node))
            self._costs[key] = SlabCost(rows, slab_cost(nodes, rows), striped)
        return self._costs[key]

    def _number(self, value: Any) -> Hashable:
        """Returns a key that is equal for values of the same cost, wherever their bytes are."""
        kind: object = type(value)
        if kind in _PLAIN:
            return value  # type: ignore[no-any-return]
        if isinstance(value, Stored):
            return value.spec
        if isinstance(value, Const):
            return kind, value.spec
        if kind is tuple:
            return tuple([self._number(each) for each in value])
        if isinstance(value, Node | QuantizedTensor):
            key = kind, *[self._number(getattr(value, name)) for name in kind.__dataclass_fields__]  # type: ignore[attr-defined]
            return self._numbers.setdefault(key, len(self._numbers))
        if isinstance(value, Mapping):
            return tuple(value), self._number(tuple(value.values()))
        if kind is CastReport:
            return None
        if id(value) not in self._numbers_by_id:  # equal packings have one number; arrays are compared by identity
            try:
                number = self._numbers.setdefault((kind, value), len(self._numbers))
            except (TypeError, ValueError):  # unhashable; a memoryview raises ValueError
                number = -id(value)
            self._numbers_by_id[id(value)] = number
        return self._numbers_by_id[id(value)]


@dataclass(frozen=True)
class PlannedFile:
    """One file to be written: its layout, and the node that fills each slot."""

    name: str
    layout: Layout
    nodes: tuple[Node, ...]
    #: the required digest of the file's bytes: "sha256" or "git", and the digest in hex
    digest: tuple[str, str] | None = None

    @property
    def slots(self) -> Iterator[tuple[Slot, Node]]:
        return zip(self.layout.slots, self.nodes, strict=True)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The (offset, length) ranges that are written, each once. The bytes between them are zero."""
        pieces = [(offset, len(data)) for offset, data in self.layout.pieces]
        return pieces + [(slot.offset, slot.spec.nbytes) for slot in self.layout.slots]

    @property
    def units(self) -> list[tuple[tuple[Slot, Node], ...]]:
        """The slots that are filled together, because they are computed from one tensor, which is then read once."""
        units: dict[tuple[int, int, int], list[tuple[Slot, Node]]] = {}
        for slot, node in self.slots:
            key = (id(slot), 0, 0)
            if isinstance(node, PackedMember) and self.layout.fixups is None:
                key = (id(node.source), id(node.packer), node.spec.rows)
            units.setdefault(key, []).append((slot, node))
        return [tuple(unit) for unit in units.values()]


@contextmanager
def unit_rows(unit: Sequence[tuple[Slot, Node]], lo: int, hi: int) -> Iterator[tuple[Bytes, ...]]:
    """Rows lo..hi of slots that are filled together, in scratch buffers."""
    with scratch_buffers(*((hi - lo) * slot.spec.row_bytes for slot, _ in unit)) as buffers:
        if len(unit) == 1:
            unit[0][1].read(lo, hi, buffers[0])
        else:
            make([node for _, node in unit if isinstance(node, PackedMember)], lo, hi, buffers)
        yield buffers


class Preparation(Protocol):
    """Computes bytes that nodes of a plan read. `memory`: bytes that this takes. `notes`: its results."""

    @property
    def memory(self) -> int: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def prepare(self, progress: Progress | None = None) -> None:
        """Computes them, once. `progress` counts layers."""

    def close(self) -> None:
        """Frees them."""


@dataclass(frozen=True, repr=False)
class PlanContents:
    """Everything that a run needs. `files` contain tensors, `texts` are small files written verbatim."""

    source: str
    target: Path
    format: str
    folder: bool
    files: tuple[PlannedFile, ...]
    texts: Mapping[str, bytes] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    moves: tuple[Move, ...] = ()
    notes: tuple[str, ...] = ()
    write: WriteOptions = field(default_factory=WriteOptions)
    #: casts that are counted while running, by tensor
    reports: Mapping[str, CastReport] = field(default_factory=dict)
    #: the state of each source file at planning time, as "name: state"
    sources: tuple[str, ...] = ()
    #: done before anything is read
    preparation: Preparation | None = None
    #: the keys of a GGUF that an option sets
    keys: Mapping[str, KV] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Total bytes to be written."""
        return sum(f.layout.size for f in self.files) + sum(map(len, self.texts.values()))

    @property
    def names(self) -> frozenset[str]:
        """The files to be written, as paths inside a folder."""
        return frozenset((*(f.name for f in self.files), *self.texts))

    @cached_property
    def slabs(self) -> Mapping[int, SlabCost]:
        """The slabs of every node, by the node's id. Raises RefusedError if one row exceeds the budget."""
        slabs: dict[int, SlabCost] = {}
        costs = SlabCosts(self._slab_memory // self.write.workers)
        for unit in (unit for file in self.files for unit in file.units):
            nodes = [node for _, node in unit]
            slabs |= dict.fromkeys(map(id, nodes), costs.of(nodes, unit[0][0].name))
        return slabs

    @cached_property
    def _slab_memory(self) -> int:
        """The bytes for the slabs of all workers, after reading ahead and parts being uploaded got their share."""
        memory = self.write.memory
        remote = reads_remote(node for file in self.files for node in file.nodes)
        return memory - (room(memory) if remote else 0) - isinstance(self.target, RemotePath) * (memory // 4)

    @property
    def searches(self) -> bool:
        """Whether scales are searched for, which takes far longer than reading and writing: those of large blocks, and
        of any with an importance matrix. Others are rounded in about the time of a copy."""
        encoded = (node for file in self.files for node in file.nodes if isinstance(node, Encode))
        return any(node.spec.dtype.block > _SMALL_BLOCK or node.importance is not None for node in encoded)

    @property
    def workers(self) -> int:
        return self.threads.number

    @cached_property
    def threads(self) -> Threads:
        """The threads of a run: `jobs`, or as many as are of use. Few write as fast as a disk; a search keeps all cores
        busy that the memory has slabs for, up to `_MOST_WORKERS`."""
        few, costs = self.write.workers, self.slabs.values()
        if self.write.jobs:
            return Threads(few, "--jobs")
        all_cores = Threads(cores(), "all cores")
        if not self.searches or any(cost.striped for cost in costs):
            return min(all_cores, Threads(few, "enough for a disk"))
        slabs = self._slab_memory // max(1, *(cost.memory for cost in costs))
        lock = Threads(_MOST_WORKERS, "more would wait for Python's lock")
        return min(all_cores, lock, Threads(max(few, slabs), "as many as fit in --max-memory"))
