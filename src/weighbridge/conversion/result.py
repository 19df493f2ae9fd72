"""What a run reports, while it writes and afterwards. Free of numpy, as `wb edit` is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Loss, Move

#: (bytes done, bytes in all, what is being done)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, repr=False)
class Result:
    """What was written. `bytes` of all `files`; `seconds` it took; `overflow`, `underflow`: how many values of which
    tensor a cast made infinite or zero; `losses`, `moves` and `notes` of the plan."""

    target: str
    files: tuple[str, ...]
    bytes: int
    seconds: float
    overflow: dict[str, int] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    moves: tuple[Move, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Result {self.target}: {len(self.files):,} files, {self.bytes:,} bytes>"
