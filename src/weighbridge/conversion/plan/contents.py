"""The contents of a plan: the files that it writes, the place of each tensor in them, and the memory this takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from weighbridge.containers.base import Layout, Slot
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.memory import SlabCost, SlabCosts
from weighbridge.conversion.plan.read_ahead import reads_remote, room
from weighbridge.conversion.result import Loss, Move
from weighbridge.io.location import RemotePath
from weighbridge.tensors.nodes import CastReport, Node, PackedMember
from weighbridge.tensors.nodes.packed import make
from weighbridge.tensors.scratch import Bytes, scratch_buffers


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
        # One worker's budget, after reading ahead and parts being uploaded got their share.
        memory = self.write.memory
        remote = reads_remote(node for file in self.files for node in file.nodes)
        shared = remote * room(memory) + isinstance(self.target, RemotePath) * (memory // 4)
        costs = SlabCosts((memory - shared) // self.write.workers)
        for unit in (unit for file in self.files for unit in file.units):
            nodes = [node for _, node in unit]
            slabs |= dict.fromkeys(map(id, nodes), costs.of(nodes, unit[0][0].name))
        return slabs
