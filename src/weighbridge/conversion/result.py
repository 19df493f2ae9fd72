"""Progress, losses and results of a conversion. Free of numpy, because `wb edit` is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Literal

from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding

Effect = Literal["results", "tokens", "metadata"]
#: (bytes done, total bytes, the current step)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Loss:
    """Something that the target can't store or that changes on the way, for one tensor or for the whole model.

    `effect`: "results" if the target computes other results for the same tokens, "tokens" if some texts are tokenized
    differently, otherwise "metadata".
    """

    message: str
    tensor: str | None = None
    effect: Effect = "metadata"


def results_first(losses: Iterable[Loss]) -> list[Loss]:
    """Sorts losses by effect, the gravest first."""
    return sorted(losses, key=lambda loss: ("results", "tokens", "metadata").index(loss.effect))


@dataclass(frozen=True)
class Move:
    """The move of a quantized tensor from a scheme to a type of the target.

    `kind`: "exact" (the same values), "near" (the same codes, scales rounded by at most `relative`) or "decoded" (the
    values as floats). `why`: the reason if the move isn't exact.
    """

    tensor: str
    source: str
    target: str
    kind: Literal["exact", "near", "decoded"]
    why: str = ""
    relative: float | None = None


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of a run.

    `bytes`: total size of `files`. `seconds`: duration. `overflow`, `underflow`: the number of values that a cast made
    infinite or zero, by tensor. `losses`, `moves`, `notes`: those of the plan. `bill`: the bill of materials, and its
    `findings` about licences.
    """

    target: str
    files: tuple[str, ...]
    bytes: int
    seconds: float
    overflow: dict[str, int] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    moves: tuple[Move, ...] = ()
    notes: tuple[str, ...] = ()
    bill: str | None = None
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        return f"<Result {self.target}: {plural(len(self.files), 'file')}, {self.bytes:,} bytes>"
