"""A plan is everything a conversion will do, known before anything is written: files, header bytes, the place of every
tensor, peak memory, passes, losses. It is a pure function of headers, probes and options; it prints, it is JSON, it is
`--dry-run`, a test can assert on it. `run` does what it says and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from weighbridge.base.closeable import Closing
from weighbridge.containers.base import Layout, Slot
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan import run as running
from weighbridge.conversion.plan.memory import SlabCost, SlabCosts
from weighbridge.conversion.plan.read_ahead import reads_elsewhere, room
from weighbridge.conversion.result import Progress, Result
from weighbridge.io.location import RemotePath
from weighbridge.io.sink import disk_needed, foreign_files, listed
from weighbridge.tensors.nodes import (
    Cast,
    CastReport,
    Decode,
    DecodePacked,
    Encode,
    LowRank,
    Node,
    PackedMember,
    Transcode,
    UpgradeBlocks,
    walk,
)


@dataclass(frozen=True)
class PlannedFile:
    """One file to be written: its layout and the node that fills each slot."""

    name: str
    layout: Layout
    nodes: tuple[Node, ...]
    #: what the file's bytes must have: "sha256" or "git", and the digest in hex
    digest: tuple[str, str] | None = None

    @property
    def slots(self) -> Iterator[tuple[Slot, Node]]:
        return zip(self.layout.slots, self.nodes, strict=True)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The (offset, length) ranges that are written, each once; the bytes between are zero."""
        pieces = [(offset, len(data)) for offset, data in self.layout.pieces]
        return pieces + [(slot.offset, slot.spec.nbytes) for slot in self.layout.slots]

    @property
    def units(self) -> list[tuple[tuple[Slot, Node], ...]]:
        """The slots that are filled together: those that are made of one tensor, which is then read once."""
        units: dict[tuple[int, int, int], list[tuple[Slot, Node]]] = {}
        for slot, node in self.slots:
            key = (id(slot), 0, 0)
            if isinstance(node, PackedMember) and self.layout.fixups is None:
                key = (id(node.source), id(node.packer), node.spec.rows)
            units.setdefault(key, []).append((slot, node))
        return [tuple(unit) for unit in units.values()]


@dataclass(frozen=True)
class Loss:
    """Something that the target can't store or that changes on the way: for one tensor or, without one, for the
    model."""

    message: str
    tensor: str | None = None


@dataclass(frozen=True)
class Move:
    """The move of a quantized tensor from a scheme to a type of the target. `kind`: exact (exactly the same values),
    near (the same codes, scales rounded by at most `relative`), decoded (its values as floats). `why`: the reason if
    not exact."""

    tensor: str
    source: str
    target: str
    kind: Literal["exact", "near", "decoded"]
    why: str = ""
    relative: float | None = None


@dataclass(frozen=True, repr=False)
class Plan(Closing):
    """See the module's docstring. `files` contain tensors, `texts` are small files written verbatim."""

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
    #: everything else that the result depends on, as "name: state": the files that are read, as they were then
    sources: tuple[str, ...] = ()
    #: open sources, closed with the plan
    model: Closing | None = None

    def __repr__(self) -> str:
        what = f"{self.format}, {len(self.names):,} files, {self.size:,} bytes"
        return f"<{type(self).__name__} {self.source} -> {self.target}: {what}>"

    def run(self, progress: Progress | None = None) -> Result:
        """Write what is planned, all or nothing. On an error or an interrupt nothing is left behind and the old target
        stays; with `resume` the finished part stays beside the target. RefusedError where the target exists and may not
        be overwritten, or what lies there to resume belongs to another plan. Errors: OSError."""
        self.check()
        return running.run(self, progress)

    def check(self) -> None:
        """RefusedError or UnsupportedError where nothing may be written."""

    def close(self) -> None:
        """Close the source."""
        if self.model is not None:
            self.model.close()

    @property
    def size(self) -> int:
        """Bytes that will be written."""
        return sum(f.layout.size for f in self.files) + sum(map(len, self.texts.values()))

    @property
    def names(self) -> frozenset[str]:
        """The files that will be written, as paths inside a folder."""
        return frozenset((*(f.name for f in self.files), *self.texts))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes, and the files of an existing folder that block the target or will be deleted."""
        foreign = foreign_files(self.target, self.names) if self.folder else []
        words = "will be deleted" if self.write.replace_folder else "are in the way (--replace-folder deletes them)"
        late = sum(f.layout.size for f in self.files if f.layout.fixups is not None)
        staged = disk_needed(self.target, self.size, late)
        return (
            *self.notes,
            *([f"files of {self.target} {words}: {listed(foreign)}"] if foreign else []),
            *([f"{staged:,} bytes of this machine's disk are needed while {self.target} is written"] if staged else []),
        )

    @property
    def slab_budget(self) -> int:
        """The memory budget of one worker: its share of what reading ahead, and parts on their way to a target
        elsewhere, leave over."""
        memory = self.write.memory
        far = reads_elsewhere(node for file in self.files for node in file.nodes)
        return (memory - far * room(memory) - isinstance(self.target, RemotePath) * (memory // 4)) // self.write.workers

    @cached_property
    def slabs(self) -> Mapping[int, SlabCost]:
        """The slabs of every node, by the node's id. RefusedError if one row needs more than the budget."""
        found: dict[int, SlabCost] = {}
        costs = SlabCosts(self.slab_budget)
        for unit in (unit for file in self.files for unit in file.units):
            nodes = [node for _, node in unit]
            found |= dict.fromkeys(map(id, nodes), costs.of(nodes, unit[0][0].name))
        return found

    @property
    def memory(self) -> int:
        """The most bytes in slabs at one time, over all workers."""
        return self.write.workers * max((cost.memory for cost in self.slabs.values()), default=0)

    @property
    def passes(self) -> int:
        """How often the most re-read source is read."""
        costs = ((n.spec.rows, self.slabs[id(n)]) for f in self.files for n in f.nodes)
        return max((-(-rows // cost.rows) for rows, cost in costs if cost.striped), default=1)

    def describe(self) -> dict[str, Any]:
        """The plan as plain data, for JSON and for people."""
        return {
            "schema": "weighbridge/plan/1",
            "source": self.source,
            "target": str(self.target),
            "format": self.format,
            "bytes": self.size,
            "memory": self.memory,
            "passes": self.passes,
            "files": [_describe_file(f) for f in self.files],
            "texts": {name: len(data) for name, data in self.texts.items()},
            "losses": [{"tensor": x.tensor, "what": x.message} for x in self.losses],
            "moves": [asdict(move) for move in self.moves],
            "notes": list(self.warnings),
        }


def _describe_file(file: PlannedFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "bytes": file.layout.size,
        "tensors": [
            {"name": s.name, "dtype": s.spec.dtype.name, "shape": list(s.spec.shape), "offset": s.offset, "how": how(n)}
            for s, n in file.slots
        ],
    }


def how(node: Node) -> str:
    """The operation on a tensor in one word: copy, move, cast, encode, decode, transcode."""
    for below in walk(node):
        word = _WORDS.get(type(below))
        if word:
            return word
    return "copy" if not node.sources else "move"


_WORDS: Mapping[type[Node], str] = {
    Encode: "encode",
    LowRank: "merge",
    PackedMember: "pack",
    Cast: "cast",
    Decode: "decode",
    DecodePacked: "decode",
    Transcode: "transcode",
    UpgradeBlocks: "repack",
}
