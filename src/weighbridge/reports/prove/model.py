"""The report of a proof: checks with verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final, Literal

from weighbridge.base.records import dataclass

SCHEMA: Final = "weighbridge/prove/1"
Verdict = Literal["same", "different", "not-checked"]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class ProveCheck:
    """One check. `details`: the differences, or the reason why it wasn't possible. `measures`: numbers with
    `bounds`."""

    name: str
    verdict: Verdict
    message: str
    details: tuple[str, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProveReport:
    """All checks in order. `verdict`: "different" if one is, "incomplete" if one wasn't checked, else "same". `notes`:
    deliberate omissions."""

    src: str
    dst: str
    verdict: Literal["same", "different", "incomplete"]
    checks: tuple[ProveCheck, ...]
    notes: tuple[str, ...] = ()
    schema: str = field(default=SCHEMA)

    def __bool__(self) -> bool:
        return self.verdict == "same"
