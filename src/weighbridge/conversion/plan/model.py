"""A plan is everything that a conversion will do, known before anything is written.

It lists files, header bytes, the place of every tensor, peak memory, passes and losses. It is a pure function of
headers, probes and options: `--dry-run` prints it, `--json` dumps it, tests assert on it. `run` does exactly that.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from weighbridge.base.closeable import Closing
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding
from weighbridge.conversion.plan.contents import PlanContents
from weighbridge.conversion.result import Progress, Result, results_first
from weighbridge.io.sink import disk_needed, foreign_files, listed
from weighbridge.tensors.nodes import (
    Cast,
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


class Bill(Protocol):
    """A bill of materials that is written after the model."""

    @property
    def path(self) -> Path: ...
    def check(self) -> None: ...
    def write(self, progress: Progress | None = None) -> tuple[Finding, ...]: ...


@dataclass(frozen=True, repr=False)
class Plan(PlanContents, Closing):
    """A conversion that is ready to run."""

    #: open sources, closed with the plan
    model: Closing | None = None
    bill: Bill | None = None

    def __repr__(self) -> str:
        content = f"{self.format}, {plural(len(self.names), 'file')}, {self.size:,} bytes"
        return f"<{type(self).__name__} {self.source} -> {self.target}: {content}>"

    def run(self, progress: Progress | None = None) -> Result:
        """Writes the planned files, all or nothing.

        On an error or an interrupt, all new files are removed and the old target stays. With `resume`, the finished
        part stays next to the target. Raises RefusedError if the target exists and must not be overwritten, or if the
        part to resume belongs to another plan; OSError.
        """
        from weighbridge.conversion.plan import run as running  # late: a dry run doesn't need it, nor the sinks

        self.check()
        if self.bill is None:
            return running.run(self, progress)
        self.bill.check()
        result = running.run(self, progress)
        return replace(result, bill=str(self.bill.path), findings=self.bill.write(progress))

    def check(self) -> None:
        """Raises RefusedError or UnsupportedError if this plan must not be run."""

    def close(self) -> None:
        """Closes the sources."""
        if self.preparation is not None:
            self.preparation.close()
        if self.model is not None:
            self.model.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes, and the files of an existing folder that block the target or will be deleted."""
        foreign = foreign_files(self.target, self.names) if self.folder else []
        action = "will be deleted" if self.write.replace_folder else "are in the way (--replace-folder deletes them)"
        late = sum(f.layout.size for f in self.files if f.layout.fixups is not None)
        staged = disk_needed(self.target, self.size, late)
        return (
            *self.notes,
            *([f"files of {self.target} {action}: {listed(foreign)}"] if foreign else []),
            *([f"{staged:,} bytes of this machine's disk are needed while {self.target} is written"] if staged else []),
        )

    @property
    def memory(self) -> int:
        """The peak size of all slabs in bytes, over all workers, or of the computation before them."""
        slabs = self.workers * max((cost.memory for cost in self.slabs.values()), default=0)
        return slabs if self.preparation is None else max(slabs, self.preparation.memory)

    @property
    def passes(self) -> int:
        """How often the most re-read source is read."""
        costs = ((n.spec.rows, self.slabs[id(n)]) for f in self.files for n in f.nodes)
        return max((-(-rows // cost.rows) for rows, cost in costs if cost.striped), default=1)

    @property
    def computing(self) -> bool:
        """Whether a tensor's values are computed, not only copied or moved."""
        return any(operation(node) not in ("copy", "move") for file in self.files for node in file.nodes)

    def describe(self) -> dict[str, Any]:
        """The plan as plain data, for JSON and for people."""
        files = [
            {
                "name": file.name,
                "bytes": file.layout.size,
                "tensors": [
                    {"name": s.name, "dtype": s.spec.dtype.name, "shape": [*s.spec.shape], "offset": s.offset,
                     "how": operation(node)}
                    for s, node in file.slots
                ],
            }
            for file in self.files
        ]  # fmt: skip
        return {
            "schema": "weighbridge/plan/1",
            "source": self.source,
            "target": str(self.target),
            "format": self.format,
            "bytes": self.size,
            "memory": self.memory,
            "threads": self.threads.number,
            "threads_limit": self.threads.limit,
            "passes": self.passes,
            "files": files,
            "keys": {key: kv._asdict() for key, kv in self.keys.items()},
            "texts": {name: len(data) for name, data in self.texts.items()},
            "bill": None if self.bill is None else str(self.bill.path),
            "losses": [{"effect": x.effect, "tensor": x.tensor, "what": x.message} for x in results_first(self.losses)],
            "moves": [asdict(move) for move in self.moves],
            "notes": list(self.warnings),
        }


_OPERATIONS: Final = MappingProxyType(
    {
        Encode: "encode",
        LowRank: "merge",
        PackedMember: "pack",
        Cast: "cast",
        Decode: "decode",
        DecodePacked: "decode",
        Transcode: "transcode",
        UpgradeBlocks: "repack",
    }
)


def operation(node: Node) -> str:
    """The operation on a tensor in one word: copy, move, cast, encode, decode, transcode."""
    operations = (_OPERATIONS[type(below)] for below in walk(node) if type(below) in _OPERATIONS)
    return next(operations, "move" if node.sources else "copy")
