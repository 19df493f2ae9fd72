"""Progress and cancellation of a slow answer."""

from __future__ import annotations

import threading
from dataclasses import field

from weighbridge.base.records import dataclass
from weighbridge.reports.statistics.tensor import CancelledError, Progress


@dataclass(slots=True)
class Control:
    """The progress of a slow answer; setting `stop` cancels it. `report` is called with each progress update."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: int = 0
    total: int = 0
    report: Progress | None = None

    def cancelled(self) -> bool:
        return self.stop.is_set()

    def progress(self, done: int, total: int, label: str = "") -> None:
        """Records the progress. Raises CancelledError if the answer was cancelled."""
        self.done, self.total = done, total
        if self.report is not None:
            self.report(done, total, label)
        if self.stop.is_set():
            raise CancelledError("cancelled")
