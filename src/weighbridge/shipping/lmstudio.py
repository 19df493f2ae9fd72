"""LM Studio's folder of models: PUBLISHER/MODEL/files, found there without an import (lms, src/modelsFolder.ts)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weighbridge.adapters.remote import lmstudio
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.conversion.result import Progress
from weighbridge.io.sink import StoreWriter
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.locate import locate
from weighbridge.shipping.model import as_gguf, in_place, opened, refuse_modelfile
from weighbridge.shipping.plan import ShippedFile, ShipPlan, ShipReport, ShipRequest

_FORBIDDEN: Final = re.compile(r'[/<>:"\\|?*\x00-\x1f]')
_LONGEST: Final = 100
_PUBLISHER: Final = "local"
# What LM Studio makes of a file's name where it names the folder itself (lms, src/subcommands/importCmd.ts).
_TYPE: Final = re.compile(
    r"(?:[-.](?:Q\d|IQ\d|F16|BF16|F32|MXFP4)[^.]{0,8})?(?:-\d{5}-of-\d{5})?\.[^.]+\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Copied:
    source: Path
    target: Path
    part: str
    size: int


def prepare(request: ShipRequest) -> ShipPlan:
    """The plan of shipping to LM Studio: a GGUF, its shards, or an MLX folder; others are converted to a GGUF."""
    options = request.options
    root = Path(options.store).expanduser() if options.store else lmstudio.models_folder()
    refuse_modelfile(request.path, "LM Studio")
    publisher, model = _named(request)
    folder = root / publisher / model
    _check(root, folder, options.overwrite)
    run = (f"lms load {publisher}/{model}",)
    with opened(request.path) as found:
        ready = options.type is None and in_place(found) and (found.format == "gguf" or _is_mlx(found))
        files = [*_files(found, folder), *_projector(request, folder)] if ready else []
    if ready:
        rows = tuple(ShippedFile(str(f.target), f.size, f.part, "copy") for f in files)
        report = ShipReport("lmstudio", str(request.path), f"{publisher}/{model}", rows, run)
        return ShipPlan(report, _Copying(root, tuple(files), options.hard_link).run)
    staged = folder / f"{model}{f'-{options.type.upper()}' if options.type else ''}.gguf"
    parts = as_gguf(request.path, options.type, staged)
    row = ShippedFile(str(staged), parts.size, "model", "converted")
    report = ShipReport("lmstudio", str(request.path), f"{publisher}/{model}", (row,), run, notes=parts.notes)
    plan = parts.plan
    if plan is None:
        raise UnsupportedError(f"{request.path} can't be converted")

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        with StoreWriter(root) as writer:
            writer.folder(folder)
            plan.run(progress)
        return (row,)

    return ShipPlan(report, act, (plan,))


def _named(request: ShipRequest) -> tuple[str, str]:
    """Publisher and model: from NAME, else `local` and the file's or folder's name."""
    text = request.name or f"{_PUBLISHER}/{_stem(request.path)}"
    parts = text.split("/")
    if len(parts) == 1:
        parts = [_PUBLISHER, *parts]
    for part in parts:
        bad = not part or part.strip(" .") != part or len(part) > _LONGEST or _FORBIDDEN.search(part)
        if bad or len(parts) != 2:
            raise UsageError(f"{text!r} is no name of a model in LM Studio", hint="write [PUBLISHER/]MODEL")
    return parts[0], parts[1]


def _stem(path: Path) -> str:
    name = path.absolute().name
    return _TYPE.sub("", name) if path.is_file() else name


def _check(root: Path, folder: Path, overwrite: bool) -> None:
    try:
        StoreWriter(root)
    except PermissionError as error:
        raise RefusedError(f"{error.filename} can't be written by you", hint="name a folder with --store") from None
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise RefusedError(f"{folder} has files already", option="--overwrite")


def _is_mlx(model: Checkpoint) -> bool:
    """Whether mlx-lm reads the folder as it is: its own quantization, or none."""
    config = model.json("config.json") or {}
    return model.format == "safetensors" and ("quantization" in config or model.metadata.get("format") == "mlx")


def _files(model: Checkpoint, folder: Path) -> Iterator[_Copied]:
    place = model.place
    for weight in place.weights:
        yield _Copied(weight, folder / weight.name, "model", weight.stat().st_size)
    if model.format == "gguf":
        return
    for path in sorted(place.folder.iterdir()):
        if path.is_file() and path not in place.weights and not path.name.startswith("."):
            yield _Copied(path, folder / path.name, "beside the weights", path.stat().st_size)


def _projector(request: ShipRequest, folder: Path) -> Iterator[_Copied]:
    if (named := request.options.mmproj) is not None:
        path = locate(Path(named)).weights[0]
        name = path.name if "mmproj" in path.name else f"mmproj-{path.name}"
        yield _Copied(path, folder / name, "projector", path.stat().st_size)


@dataclass(frozen=True)
class _Copying:
    root: Path
    files: tuple[_Copied, ...]
    link: bool

    def run(self, progress: Progress | None) -> tuple[ShippedFile, ...]:
        total, done = sum(f.size for f in self.files), 0
        rows = []
        with StoreWriter(self.root) as writer:
            for file in self.files:
                how = writer.add_file(file.target, file.source, link=self.link, overwrite=True)
                rows.append(ShippedFile(str(file.target), file.size, file.part, how))
                done += file.size
                if progress is not None:
                    progress(done, total, file.target.name)
        return tuple(rows)
