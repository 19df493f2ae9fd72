"""What every target gives: a plan that says what will be there and how it is run, and carries it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from weighbridge.base.closeable import Closing
from weighbridge.conversion.result import Progress

SCHEMA: Final = "weighbridge/ship/1"


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file that the target gets. `what`: its part (model, template, params ...). `how`: copy, reflink, hard link,
    written, converted, uploaded, or "there already"; in a dry run what will be tried."""

    path: str
    bytes: int
    what: str
    how: str


@dataclass(frozen=True, slots=True)
class ShipCheck:
    """Something that the target needs. `message`: what was found, and the next step where it isn't `ok`."""

    need: str
    ok: bool
    message: str


@dataclass(frozen=True, slots=True)
class ShipReport:
    """`run`: the commands that use the model there. `text`: the Modelfile, unit, compose file or card. `notes`: what
    the target can't hold, and what to know."""

    target: str
    source: str
    name: str
    files: tuple[ShippedFile, ...] = ()
    run: tuple[str, ...] = ()
    text: str = ""
    checks: tuple[ShipCheck, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = True
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        """Whether everything that the target needs is there."""
        return all(check.ok for check in self.checks)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


#: Carries a plan out, and says what became of its files.
Act = Callable[[Progress | None], tuple[ShippedFile, ...]]


@dataclass(frozen=True)
class ShipPlan(Closing):
    """`report`: what will be. `act`: None where nothing is written. `opened`: what closes with the plan."""

    report: ShipReport
    act: Act | None = None
    opened: tuple[Closing, ...] = ()

    def run(self, progress: Progress | None = None) -> ShipReport:
        """Do it: all, or nothing. Errors: OSError, RefusedError, RemoteError."""
        files = self.report.files if self.act is None else self.act(progress)
        return replace(self.report, files=files, dry_run=False)

    def close(self) -> None:
        """Close the sources."""
        for one in self.opened:
            one.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShipOptions:
    """The keywords of `wb.ship`; each target takes some of them (`targets.py`)."""

    type: str | None = None
    template: str | None = None
    system: str | None = None
    modelfile: str | Path | None = None
    store: str | Path | None = None
    mmproj: str | Path | None = None
    hard_link: bool = False
    overwrite: bool = False
    device: str | None = None
    context: int | None = None
    parallel: int | None = None
    kv: str | None = None
    form: str | None = None
    output: str | Path | None = None
    base_model: str | None = None
    measured: Sequence[str | Path] = ()
    private: bool = False
    create_pr: bool = False
    revision: str | None = None


@dataclass(frozen=True)
class ShipRequest:
    """What a target is asked. `name`: "" where none was given."""

    path: Path
    name: str
    options: ShipOptions = field(default_factory=ShipOptions)
