"""A plan is everything a conversion will do, known before anything is written: files, header bytes, the place of every
tensor, peak memory, passes, losses. It is a pure function of headers, probes and options; it prints, it is JSON, it is
`--dry-run`, a test can assert on it. `run` does what it says and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import F32, Kind
from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB, SLAB
from weighbridge.containers.base import Layout, Slot
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan import run as running
from weighbridge.conversion.result import Progress, Result
from weighbridge.tensors.nodes import (
    Cast,
    CastReport,
    Decode,
    Encode,
    LowRank,
    Node,
    PackedMember,
    QuantizedTensor,
    Transcode,
    UpgradeBlocks,
    walk,
)

# Slabs that a node has to compute are smaller than copied ones: source, temporary and result then stay in the cache.
_COMPUTED_SLAB = MIB
_COMPUTED_COST = 4 * MIB
# Slabs looked at to find a node's peak: its cost repeats along the rows, so a few dozen tell it.
_SAMPLES = 32


@dataclass(frozen=True)
class PlannedFile:
    """One file to be written: its layout and the node that fills each slot."""

    name: str
    layout: Layout
    nodes: tuple[Node, ...]

    @property
    def slots(self) -> Iterator[tuple[Slot, Node]]:
        return zip(self.layout.slots, self.nodes, strict=True)

    @property
    def units(self) -> list[tuple[tuple[Slot, Node], ...]]:
        """The slots that are filled together: those that are made of one tensor, which is then read once."""
        units: dict[tuple[int, int, int], list[tuple[Slot, Node]]] = {}
        for slot, node in self.slots:
            key = (id(slot), 0, 0)
            if isinstance(node, PackedMember) and self.layout.fixups is None:
                key = (id(node.source), id(node.maker), node.spec.rows)
            units.setdefault(key, []).append((slot, node))
        return [tuple(unit) for unit in units.values()]


@dataclass(frozen=True)
class Loss:
    """Something the target can't hold or that changes on the way: of one tensor or, without one, of the model."""

    what: str
    tensor: str | None = None


@dataclass(frozen=True)
class Move:
    """What becomes of a quantized tensor: from a scheme to a type of the target. `kind`: exact (the very same values),
    near (the same codes, scales rounded by at most `relative`), decoded (its values as floats). `why` not exact."""

    tensor: str
    source: str
    target: str
    kind: Literal["exact", "near", "decoded"]
    why: str = ""
    relative: float | None = None


@dataclass(frozen=True)
class Plan(Closing):
    """See the module. `files` hold tensors, `texts` are small files written as they are."""

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
    #: what the result depends on besides the plan, as "name: state": the files that are read, as they were then
    sources: tuple[str, ...] = ()
    #: what is read; closed with the plan
    model: Closing | None = None

    def run(self, progress: Progress | None = None) -> Result:
        """Write what is planned, all or nothing. On an error or an interrupt nothing is left behind and the old target
        stays; with `resume` the finished part stays beside the target. RefusedError where the target exists and may not
        be overwritten, or what lies there to resume belongs to another plan. Errors: OSError."""
        return running.run(self, progress)

    def close(self) -> None:
        """Close the source."""
        if self.model is not None:
            self.model.close()

    @property
    def size(self) -> int:
        """Bytes that will be written."""
        return sum(f.layout.size for f in self.files) + sum(map(len, self.texts.values()))

    @property
    def slab_budget(self) -> int:
        """What one worker may hold at a time."""
        return self.write.memory // self.write.workers

    @cached_property
    def slabs(self) -> Mapping[int, int]:
        """Rows a slab for every node, by the node's id. RefusedError where one row needs more than the budget."""
        found: dict[int, int] = {}
        for unit in (unit for file in self.files for unit in file.units):
            nodes = tuple(node for _, node in unit)
            found |= dict.fromkeys(map(id, nodes), slab_rows(nodes, self.slab_budget, unit[0][0].name))
        return found

    @cached_property
    def memory(self) -> int:
        """Most bytes that slabs hold at one time, over all workers."""
        units = ([node for _, node in unit] for file in self.files for unit in file.units)
        return self.write.workers * max((slab_cost(nodes, self.slabs[id(nodes[0])]) for nodes in units), default=0)

    @cached_property
    def passes(self) -> int:
        """How often the most re-read source is read."""
        striped = (n for f in self.files for n in f.nodes if any(below.stripes for below in walk(n)))
        return max((-(-n.spec.rows // self.slabs[id(n)]) for n in striped), default=1)

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
            "losses": [{"tensor": x.tensor, "what": x.what} for x in self.losses],
            "moves": [asdict(move) for move in self.moves],
            "notes": list(self.notes),
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
    """What happens to a tensor, in one word: copy, move, cast, encode, decode, transcode."""
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
    Transcode: "transcode",
    UpgradeBlocks: "repack",
}


def slab_cost(nodes: Sequence[Node], rows: int) -> int:
    """Most bytes that reading any slab of `rows` rows of a unit takes, its results included."""
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
    """Rows of a unit to read at a time: a slab's worth, or as many as the budget holds where every slab costs a whole
    pass."""
    total, width = nodes[0].spec.rows, sum(node.spec.row_bytes for node in nodes)
    if total == 0 or width == 0:
        return max(total, 1)
    if any(below.stripes for node in nodes for below in walk(node)):
        rows, bound = total, budget
    elif nodes[0].sources:
        rows, bound = min(total, max(1, _COMPUTED_SLAB // width)), min(budget, _COMPUTED_COST)
    else:
        rows, bound = min(total, max(1, SLAB // width)), budget
    while rows > 1 and slab_cost(nodes, rows) > bound:
        rows = -(-rows // 2)
    cost = slab_cost(nodes, rows)
    if cost > budget:
        raise RefusedError(
            f"{name}: one row needs {cost} bytes of memory at a time, the budget of a worker is {budget}",
            hint="raise --max-memory or lower --jobs",
        )
    return rows


def losses_of(tensors: Mapping[str, Node], allow_requantize: bool = False) -> list[Loss]:
    """What quantized tensors lose: decoded on the way, or quantized a second time, which RefusedError forbids unless it
    is allowed."""
    computed = {name: [n for n in walk(root) if isinstance(n, _LOSSY)] for name, root in tensors.items()}
    again = [name for name, nodes in computed.items() if any(map(_requantizes, nodes))]
    if again and not allow_requantize:
        raise RefusedError(
            f"{len(again)} quantized tensor{'s' * (len(again) > 1)} would be quantized again, first {again[0]}",
            option="--allow-requantize",
        )
    decoded = [
        Loss(f"decoded to F32: {node.reason}", name)
        for name, nodes in computed.items()
        for node in nodes
        if isinstance(node, Decode) and node.reason
    ]
    return [*(Loss("quantized a second time", name) for name in again), *decoded]


_LOSSY: Final = (Decode, Encode, PackedMember)
# Packings in which models are released (DeepSeek V3, Kimi K2, Qwen3-FP8): quantizing them is quantizing the original.
RELEASED: Final = frozenset({"fp8"})


def is_quantized(node: Node) -> bool:
    """Whether a tensor's values were rounded by quantizing, and not released like that."""
    if isinstance(node, QuantizedTensor):
        return node.packing.name not in RELEASED
    return node.spec.dtype.kind is Kind.BLOCK


def _requantizes(node: Node) -> bool:
    if not (isinstance(node, Encode) or (isinstance(node, PackedMember) and node.maker.quantizes)):
        return False
    return any(map(is_quantized, walk(node.source)))


def check_lossless(tensors: Mapping[str, Node], moves: Iterable[Move]) -> None:
    """RefusedError where a tensor's values would change: quantized, or decoded into less than F32. Parts of a tensor
    whose move is known to be exact are."""
    exact = {move.tensor.removesuffix(".weight") for move in moves if move.kind == "exact"}
    for name, root in tensors.items():
        if name.rpartition(".")[0] in exact:
            continue
        below = {type(node) for node in walk(root)}
        if Encode in below or (Decode in below and root.spec.dtype is not F32):
            raise RefusedError(
                f"{name} would lose by becoming {root.spec.dtype}", option="--inexact float", hint="or --dtype f32"
            )
