"""Plans `wb unpack`: the original bytes of packed files, compared with their digests. A plan like any other."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.containers.wbpack.archive import is_packed, read_archive
from weighbridge.containers.wbpack.source import OriginalSource
from weighbridge.conversion.archive.options import UnpackOptions
from weighbridge.conversion.archive.records import files_of
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.bases import open_base
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.models.locate import locate


def plan_unpack(src: Path, target: Path, options: UnpackOptions) -> Plan:
    """Plans to unpack a file, or all packed files of a folder; its other files are copied. UsageError if none is
    packed."""
    folder = src.is_dir()
    paths = files_of(src)
    weights = () if options.base is None else locate(resolve_path(options.base)).weights
    bases = {(path.name, path.stat().st_size): path for path in weights}
    files, packed, deltas = [], 0, 0
    for path in paths:
        name = path.relative_to(src).as_posix() if folder else target.name
        source = open_source(path)
        whole = not is_packed(source)
        packed += not whole
        deltas += not whole and bool(read_archive(source).bases)
        files.append(writers.raw(name, source) if whole else _original(name, source, bases, folder))
    if not packed:
        raise UsageError(f"{src} isn't packed", hint="wb pack SRC DST packs it")
    if bases and not deltas:
        raise UsageError(f"--base doesn't apply to {src}, which isn't a delta", hint="leave it out")
    note = (f"{plural(len(files) - packed, 'other file')} copied",) if len(files) > packed else ()
    return Plan(str(src), target, "files", folder, tuple(files), notes=note, write=options,
                sources=tuple(map(state_of, paths)))  # fmt: skip


def _original(name: str, source: Source, bases: Mapping[tuple[str, int], Path], folder: bool) -> PlannedFile:
    """The original of a packed file, under its old name."""
    archive = read_archive(source)
    if folder and archive.name and Path(archive.name).name == archive.name:
        name = (Path(name).parent / archive.name).as_posix()
    opened: list[Source] | None = [] if bases else None
    if opened is not None:
        with ExitStack() as stack:
            for file in archive.bases:
                path = bases.get((file.name, file.size))
                base = open_source(path) if path is not None else open_base(source.name, file.name, file.size)
                opened.append(stack.enter_context(base))
            stack.pop_all()
    return replace(writers.raw(name, OriginalSource(source, archive, opened)), digest=("sha256", archive.sha256))
