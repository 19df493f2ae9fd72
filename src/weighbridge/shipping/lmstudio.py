"""Ships to LM Studio, which finds models in PUBLISHER/MODEL/ without an import (lms, src/modelsFolder.ts)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from weighbridge.adapters.remote import lmstudio
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.containers.gguf import container as gguf
from weighbridge.conversion.result import Progress
from weighbridge.io.sink import StoreWriter
from weighbridge.models.clients import LLAMA_CPP, MLX_LM, MLX_VLM, client_of, loads
from weighbridge.models.llamacpp.companions import find_towers, mmproj_name
from weighbridge.models.model import OpenModel
from weighbridge.models.open import open_headers
from weighbridge.shipping.model import as_gguf, in_place, refuse_modelfile
from weighbridge.shipping.plan import ShippedFile, ShipPlan, ShipReport, ShipRequest, check_writable
from weighbridge.shipping.targets import server_flags

_FORBIDDEN: Final = re.compile(r'[/<>:"\\|?*\x00-\x1f]')
_LONGEST: Final = 100
_PUBLISHER: Final = "local"
# The part of a file's name that LM Studio leaves out of the folder's name (lms, src/subcommands/importCmd.ts).
_TYPE: Final = re.compile(
    r"(?:[-.](?:Q\d|IQ\d|F16|BF16|F32|MXFP4)[^.]{0,8})?(?:-\d{5}-of-\d{5})?\.[^.]+\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Copy:
    source: Path
    target: Path
    part: str
    size: int


def prepare(request: ShipRequest) -> ShipPlan:
    """Plans to copy a GGUF, its shards, or an MLX folder; other models are converted to a GGUF."""
    options = request.options
    root = Path(options.store).expanduser() if options.store else lmstudio.models_folder()
    refuse_modelfile(request.path, "LM Studio")
    publisher, model = _parse_name(request)
    folder = root / publisher / model
    check_writable(root, "name a folder with --store")
    if folder.exists() and any(folder.iterdir()) and not options.overwrite:
        raise RefusedError(f"{folder} has files already", option="--overwrite")
    run = (f"lms load {publisher}/{model}",)
    report = ShipReport("lmstudio", str(request.path), f"{publisher}/{model}", run=run)
    with open_headers(request.path, request.source).model as source:
        if options.type is None and in_place(source) and client_of(source) in (LLAMA_CPP, MLX_LM, MLX_VLM):
            return _copy_plan(request, source, report, root, folder)
    staged = folder / f"{model}{f'-{options.type.upper()}' if options.type else ''}.gguf"
    parts = as_gguf(request, staged)
    if parts.plan is None:
        raise UnsupportedError(f"{request.path} can't be converted")
    made = [(parts.plan, ShippedFile(str(staged), parts.size, "model", "converted"))]
    copies = []
    if (towers := parts.towers) is not None and towers.plan is not None:
        made.append((towers.plan, ShippedFile(str(towers.path), towers.size, "projector", "converted")))
    elif towers is not None:
        copies.append(_projector(towers.path, folder))
    rows = tuple(row for _, row in made)

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        with StoreWriter(root) as writer:
            writer.folder(folder)
            for plan, _ in made:
                if not plan.target.exists():
                    writer.expect(plan.target)
                plan.run(progress)
            return (*rows, *(_add(writer, copy, request) for copy in copies))

    files = (*rows, *(ShippedFile(str(c.target), c.size, c.part, "copy") for c in copies))
    return ShipPlan(replace(report, files=files, notes=parts.notes), act, (parts.plan,))


def _projector(path: Path, folder: Path) -> _Copy:
    """Returns the copy of an mmproj file, under a name that LM Studio looks for."""
    return _Copy(path, folder / mmproj_name(path, folder.name), "projector", path.stat().st_size)


def _add(writer: StoreWriter, copy: _Copy, request: ShipRequest) -> ShippedFile:
    how = writer.add_file(copy.target, copy.source, link=request.options.hard_link, overwrite=True)
    return ShippedFile(str(copy.target), copy.size, copy.part, how)


def _copy_plan(request: ShipRequest, model: OpenModel, report: ShipReport, root: Path, folder: Path) -> ShipPlan:
    place = model.place
    copies = [_Copy(weight, folder / weight.name, "model", weight.stat().st_size) for weight in place.weights]
    if model.format == "gguf" and copies[0].source.suffix != gguf.SUFFIX:  # a blob of a store
        copies[0] = replace(copies[0], target=folder / f"{folder.name}{gguf.SUFFIX}")
    for path in sorted(place.folder.iterdir()) if model.format != "gguf" else ():
        if path.is_file() and path not in place.weights and not path.name.startswith("."):
            copies.append(_Copy(path, folder / path.name, "beside the weights", path.stat().st_size))
    notes: tuple[str, ...] = ()
    if model.format == "gguf":
        towers, notes = find_towers(request.path, model, request.options.mmproj)
        server_flags(request.path, model.metadata, place.weights[0], towers)  # it runs what llama-server runs
        copies += [_projector(towers, folder)] if towers else []
    if (verdict := loads(model)).why:
        report, notes = replace(report, run=()), (*notes, f"{verdict.client} won't load it: {verdict.why}")

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        total, done, rows = sum(c.size for c in copies), 0, []
        with StoreWriter(root) as writer:
            for copy in copies:
                rows.append(_add(writer, copy, request))
                done += copy.size
                if progress is not None:
                    progress(done, total, copy.target.name)
        return tuple(rows)

    files = tuple(ShippedFile(str(c.target), c.size, c.part, "copy") for c in copies)
    return ShipPlan(replace(report, files=files, notes=notes), act)


def _parse_name(request: ShipRequest) -> tuple[str, str]:
    """Returns publisher and model from NAME, else `local` and the name of the file or folder."""
    name = request.path.absolute().name
    text = request.name or f"{_PUBLISHER}/{_TYPE.sub('', name) if request.path.is_file() else name}"
    parts = text.split("/")
    if len(parts) == 1:
        parts = [_PUBLISHER, *parts]
    for part in parts:
        bad = not part or part.strip(" .") != part or len(part) > _LONGEST or _FORBIDDEN.search(part)
        if bad or len(parts) != 2:
            raise UsageError(f"{text!r} isn't a valid model name in LM Studio", hint="write [PUBLISHER/]MODEL")
    return parts[0], parts[1]
