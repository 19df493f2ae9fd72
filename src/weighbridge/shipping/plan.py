"""The plan that every target returns: the files that it will have, and the commands that run the model there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import RefusedError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.conversion.result import Progress
from weighbridge.fitting.options import DeviceOptions
from weighbridge.io.options import OverwriteOptions
from weighbridge.io.sink import StoreWriter, write_file
from weighbridge.models.model import FamilyOptions, SourceOptions

SCHEMA: Final = "weighbridge/ship/1"
_STORES: Final = "Stores"


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file of the target. `what`: its part (model, template, params ...). `how`: copy, reflink, hard link, written,
    converted, uploaded, or "there already"; before the run, the method that will be tried."""

    path: str
    bytes: int
    what: str
    how: str


@dataclass(frozen=True, slots=True)
class ShipCheck:
    """A requirement of the target. `message`: the finding, with the next step unless `ok`."""

    need: str
    ok: bool
    message: str


@dataclass(frozen=True, slots=True)
class ShipReport:
    """`run`: the commands that use the model there. `text`: the Modelfile, unit, compose file or card. `notes`: losses
    and advice."""

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
        """Whether all requirements of the target are met."""
        return all(check.ok for check in self.checks)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


#: Ships the files of a plan, and returns them with the method that was used.
Act = Callable[[Progress | None], tuple[ShippedFile, ...]]


@dataclass(frozen=True)
class ShipPlan(Closing):
    """`report`: the planned files. `act`: None if nothing is written. `opened`: closed with the plan."""

    report: ShipReport
    act: Act | None = None
    opened: tuple[Closing, ...] = ()

    def run(self, progress: Progress | None = None) -> ShipReport:
        """Ships all files or none. Raises OSError, RefusedError and RemoteError."""
        files = self.report.files if self.act is None else self.act(progress)
        return replace(self.report, files=files, dry_run=False)

    def close(self) -> None:
        """Closes the sources."""
        for source in self.opened:
            source.close()


@dataclass(frozen=True, kw_only=True)
class ShipOptions(OverwriteOptions, DeviceOptions, FamilyOptions):
    """The options of `wb ship`. Each target takes some of them (`targets.py`)."""

    name: str = field(default="", kw_only=False)
    type: str | None = option("Quantize to this type of wb quantize on the way.", metavar="TYPE", section=_STORES)
    store: str | Path | None = option(
        "Folder of the models [Ollama's or LM Studio's own].", metavar="DIR", kind="path", section=_STORES
    )
    mmproj: str | Path | None = option(
        "Projector of a vision or audio model, a GGUF [the model's own].", metavar="FILE", kind="path", section=_STORES
    )
    hard_link: bool = option(
        "If the file in the store can't share the blocks of MODEL, make it a hard link.", False, section=_STORES
    )
    template: str | None = option(
        "Chat template: translated to Go [default], none (the model's own is used), or a Go template.",
        metavar="go|none|FILE", section="Ollama",
    )  # fmt: skip
    system: str | None = option("System message.", metavar="TEXT", section="Ollama")
    modelfile: str | Path | None = option(
        "Write a Modelfile for ollama create, and nothing into the store.", metavar="FILE", kind="file",
        section="Ollama",
    )  # fmt: skip
    launcher: str | None = option(
        "How llama-server's command is written [command].", choices=("command", "systemd", "compose"),
        section="llama-server, vLLM, MLX",
    )  # fmt: skip
    output: str | Path | None = option(
        "File for the command, unit, compose file or model card.", metavar="FILE", kind="file",
        letter="o", section="Output",
    )  # fmt: skip
    base_model: str | None = option(
        "The model that this one was made of [from its keys].", metavar="ORG/NAME", section="Hub"
    )
    measured: Sequence[str | Path] = option(
        "Report of wb prove --json, whose measurements go into the model card. Repeatable.", (), metavar="FILE",
        kind="file", section="Hub",
    )  # fmt: skip
    private: bool = option("Make the repository private.", False, section="Hub")
    create_pr: bool = option("Upload as a pull request.", False, section="Hub")
    revision: str | None = option("Branch to upload to [main].", metavar="NAME", section="Hub")
    allow_dangerous: bool = option("Upload files that wb scan calls dangerous or malformed.", False, section="Hub")


@dataclass(frozen=True)
class ShipRequest:
    """The model to ship. `name`: empty if none was given."""

    path: Path
    name: str
    options: ShipOptions = field(default_factory=ShipOptions)

    @property
    def source(self) -> SourceOptions:
        """How the model is opened."""
        return SourceOptions(arch_file=self.options.arch_file)


def text_plan(
    report: ShipReport, output: str | Path, what: str, overwrite: bool, opened: tuple[Closing, ...] = ()
) -> ShipPlan:
    """Returns a plan that only writes the report's text to the file `output`."""
    target, data = Path(output), report.text.encode()
    file = ShippedFile(str(target), len(data), what, "written")

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        write_file(target, data, overwrite=overwrite)
        return (file,)

    return ShipPlan(replace(report, files=(file,)), act, opened)


def check_writable(root: Path, hint: str) -> None:
    """Raises RefusedError, with the hint, if the user can't write to a store."""
    try:
        StoreWriter(root)
    except PermissionError as error:
        raise RefusedError(f"no permission to write {error.filename}", hint=hint) from None
