"""Plans `wb unpack`: the original bytes of packed files, compared with their digests, and of ZipNN's, which have none.
A plan like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.containers import BUILT_IN
from weighbridge.containers.formats import ZIPNN
from weighbridge.containers.wbpack.archive import is_packed, read_archive
from weighbridge.containers.wbpack.source import OriginalSource
from weighbridge.containers.zipnn.container import original
from weighbridge.containers.zipnn.stream import SIGN
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
    files: list[PlannedFile] = []
    packed = deltas = coded = 0
    for path in paths:
        name = path.relative_to(src).as_posix() if folder else target.name
        source = open_source(path)
        if is_packed(source):
            packed += 1
            deltas += bool(read_archive(source).bases)
            files.append(_original(name, source, bases, folder))
        elif source.head(len(SIGN)) == SIGN:
            coded += 1
            files.append(writers.raw(name.removesuffix(BUILT_IN[ZIPNN].suffix) if folder else name, original(source)))
        else:
            files.append(writers.raw(name, source))
    if not packed + coded:
        raise UsageError(f"{src} isn't packed", hint="wb pack SRC DST packs it")
    if twice := [name for name, count in Counter(file.name for file in files).items() if count > 1]:
        raise UsageError(f"two files of {src} would be called {twice[0]}", hint="remove or rename one of them")
    if bases and not deltas:
        raise UsageError(f"--base doesn't apply to {src}, which isn't a delta", hint="leave it out")
    others = len(files) - packed - coded
    notes = [f"{plural(others, 'other file')} copied"] if others else []
    notes += [f"{plural(coded, 'ZipNN file')} decoded, without a digest to compare with"] if coded else []
    return Plan(str(src), target, "files", folder, tuple(files), notes=tuple(notes), write=options,
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
