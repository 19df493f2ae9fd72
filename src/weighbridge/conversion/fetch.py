"""Plans `wb fetch`: copies remote files verbatim into a folder and compares each with the digest listed by the server.

It is a plan like any other, so it streams, resumes and is all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from weighbridge.base.errors import UsageError
from weighbridge.base.words import check_globs
from weighbridge.containers.numbered import numbered
from weighbridge.conversion.archive.options import FetchOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.location import RemotePath, walk
from weighbridge.models.locate import locate


def plan_fetch(src: Path, target: Path, options: FetchOptions) -> Plan:
    """Plans to fetch `src`, a remote folder or file, into the folder `target`.

    An index or a part of a split GGUF fetches the whole set. A single file is written to the path `target` if that has
    its suffix. Raises UsageError if `src` is on this machine, or no file is left.
    """
    if not isinstance(src, RemotePath):
        raise UsageError(
            f"{src} is on this machine", hint="fetch takes an address: hf://ORG/NAME, https://..., s3://..."
        )
    root = src if src.is_dir() else src.parent
    names = list(_set_of(src, root) if src.is_file() else ())
    for base, _, members in walk(src) if src.is_dir() else ():
        names += [(base / name).relative_to(src).as_posix() for name in members]
    check_globs(options.include, names, "--include", "file")
    check_globs(options.exclude, names, "--exclude", "file")

    def matches(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    include = options.include or ("*",)
    names = [name for name in names if matches(name, include) and not matches(name, options.exclude)]
    if not names:
        raise UsageError(f"{src} has no file that --include and --exclude leave", hint="wb fetch SRC DIR --dry-run")
    paths = [root / name for name in names]
    files = tuple(
        replace(writers.raw(name, path.open_source()), digest=path.digest)
        for name, path in zip(names, paths, strict=True)
    )
    folder = len(files) > 1 or target.is_dir() or target.suffix != Path(files[0].name).suffix or not target.suffix
    unchecked = [file.name for file in files if file.digest is None]
    some = f"{len(unchecked):,} {'file has' if len(unchecked) == 1 else 'files have'}"
    notes = (f"{some} no digest to compare with: {src} lists none",) if unchecked else ()
    return Plan(
        str(src), target, "files", folder, files, notes=notes, write=options,
        sources=tuple(map(state_of, paths)),
    )  # fmt: skip


def _set_of(src: RemotePath, root: RemotePath) -> Iterator[str]:
    """The names of a file and of the set that it belongs to, as an index or a part of a split GGUF."""
    yield src.name
    indexed = src.name.endswith(".index.json")
    if indexed or (src.name.endswith(".gguf") and numbered(src.name)):
        shards = (path.relative_to(root).as_posix() for path in locate(src).weights)
        yield from (name for name in shards if name != src.name)
    if indexed:
        from weighbridge.adapters.remote.web import SIDECARS  # late: loads http.client and ssl

        siblings = root.children()
        yield from (name for name in SIDECARS if name in siblings and name != src.name)
