"""Edit the metadata of a safetensors or GGUF file: plan it (what changes, whether it fits), then apply it.

If the new header fits into the old one's space and the file isn't shared, it is edited in place: the old bytes go to a
journal next to the file (`.NAME.journal`), then the bytes that differ are written. If the machine stops in between, the
next edit restores them (`recover`). Otherwise the file is rewritten through the sink: temporary sibling, fsync, rename.
A hard link is always rewritten, so that the file's other names keep their content. A blob of a content-addressed store
is refused.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.edit.apply import apply_edit, stamp_of
from weighbridge.conversion.edit.headers import Edited, Header, changed_span, check, frozen, open_header
from weighbridge.conversion.edit.values import Edit, typed
from weighbridge.conversion.gguf.loadable import refuse_new
from weighbridge.conversion.result import Progress, Result
from weighbridge.io.source import FileSource
from weighbridge.models.llamacpp.verdict import refusals

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Loss

CHAT_TEMPLATE: Final = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """What an edit does to one key; None: the key is absent."""

    key: str
    before: KV | None
    after: KV | None


@dataclass(frozen=True)
class EditPlan:
    """Everything that applying the edit does. `in_place`: only the bytes that differ are written; otherwise the
    whole file."""

    path: str
    target: str
    format: str
    changes: tuple[MetadataChange, ...]
    in_place: bool
    reason: str
    written: int
    header: bytes = field(repr=False)
    start: int = field(repr=False)
    stamp: tuple[int, int, int, str] = field(repr=False)
    overwrite: bool = False
    backup: bool = False
    losses: tuple[Loss, ...] = ()  # an edit loses nothing

    def run(self, progress: Progress | None = None) -> Result:
        """Applies the edit. Errors: RefusedError, FormatError if the file changed meanwhile, OSError."""
        began = time.monotonic()
        apply_edit(self, progress)
        return Result(self.target, (self.target,), self.written, time.monotonic() - began)

    def describe(self) -> dict[str, Any]:
        """The plan as plain data."""
        changes = [
            {"key": c.key, "before": c.before and c.before._asdict(), "after": c.after and c.after._asdict()}
            for c in self.changes
        ]
        return {
            "schema": "weighbridge/edit/1",
            "path": self.path,
            "target": self.target,
            "format": self.format,
            "in_place": self.in_place,
            "reason": self.reason,
            "bytes": self.written,
            "changes": changes,
        }


def read_metadata(path: str | os.PathLike[str]) -> dict[str, KV]:
    """The typed metadata of a safetensors or GGUF file; arrays are decoded on access."""
    # The source stays open as long as an array that wasn't accessed yet needs it.
    return open_header(FileSource(path)).metadata


def plan_edit(
    path: str | os.PathLike[str],
    edits: Iterable[Edit],
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    rewrite: bool = False,
    reserve: int = 0,
    backup: bool = False,
    overwrite: bool = False,
) -> EditPlan:
    """Plans `edits` of the file at `path`. `output`: write the result there and keep the file. `overwrite`: replace
    an existing `output`. `force`: also change what is protected (a store's blob, a key's type, keys that describe
    the file itself). `rewrite`: never in place. `reserve`: spare bytes for later edits in a rewritten file.
    `backup`: rewrite, and keep the old file as NAME.bak."""
    rewrite = rewrite or backup
    with closing(FileSource(path)) as file:
        source = frozen(file)
        header = open_header(source)
        metadata = _edited(header, edits, force)
        changes = _changes(header.metadata, metadata)
        fitting = header.fit(metadata) if header.start <= source.size else None
        wanted = bool(changes or output or rewrite or reserve)
        why = _why_rewrite(Path(path), output, fitting is not None, rewrite or bool(reserve), force) if wanted else ""
        rendered = header.render(metadata, reserve) if why or fitting is None else fitting
        edited = Edited(source, header.start, rendered)
        check(source, edited, metadata)
        if changes and header.format == "gguf" and not force:
            after, before = (refusals([gguf.parse(s, level="lenient")]) for s in (edited, source))
            refuse_new(after, before, option="--force")
        span = range(0) if why or not changes else changed_span(source.header, rendered)
        return EditPlan(
            path=os.fspath(path),
            target=os.fspath(output or path),
            format=header.format,
            changes=changes,
            in_place=not why,
            reason=why or ("it fits into the header's space" if changes else "nothing changes"),
            written=len(span) if not why else len(rendered) + max(source.size - header.start, 0),
            header=rendered,
            start=header.start,
            stamp=stamp_of(file, source.header),
            overwrite=overwrite,
            backup=backup,
        )


# ---- changes


# Keys that describe how the file itself is built: changing one breaks the file, or its readers.
_GUARDED: Final = (
    (re.compile(r"split\.(no|count|tensors\.count)"), "it ties the shards of a set together"),
    (re.compile(r"general\.architecture"), "every other key is named after it"),
    (re.compile(r"tokenizer\.ggml\.(tokens|token_type|scores|merges)"), "the model's token ids depend on it"),
)


def _edited(header: Header, edits: Iterable[Edit], force: bool) -> dict[str, KV]:
    """The metadata after `edits`: new keys come last, changed keys keep their position."""
    metadata = dict(header.metadata)
    for edit in edits:
        guard = next((why for keys, why in _GUARDED if keys.fullmatch(edit.key)), None)
        if header.format == "safetensors":
            guard = "transformers refuses a file without it" if edit.key == "format" and edit.remove else None
        if guard and not force:
            raise RefusedError(f"{edit.key} is protected: {guard}", option="--force")
        if edit.remove:
            if edit.key not in metadata:
                raise UsageError(f"there is no key {edit.key!r}", hint=_similar(edit.key, metadata))
            del metadata[edit.key]
        else:
            kv = typed(edit, metadata.get(edit.key), text_only=header.format == "safetensors", force=force)
            if kv != metadata.get(edit.key):
                metadata[edit.key] = kv
    return metadata


def _similar(key: str, metadata: Mapping[str, KV]) -> str:
    near = difflib.get_close_matches(key, metadata, 1)
    return f"did you mean {near[0]!r}?" if near else "see them with --list"


def _changes(before: Mapping[str, KV], after: Mapping[str, KV]) -> tuple[MetadataChange, ...]:
    keys = dict.fromkeys([*before, *after])
    found = (MetadataChange(key, before.get(key), after.get(key)) for key in keys)
    return tuple(c for c in found if c.before is not c.after)


# ---- shared files


def store_of(path: Path) -> str | None:
    """The content-addressed store that `path` is a blob of, or links to."""
    real = path.resolve()
    if real.parent.name != "blobs":
        return None
    if re.fullmatch(r"sha256[-:][0-9a-f]{64}", real.name):
        return "Ollama"
    return "the Hugging Face cache" if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", real.name) else None


def _why_rewrite(path: Path, output: str | os.PathLike[str] | None, fits: bool, rewrite: bool, force: bool) -> str:
    """Why the file can't be changed in place; empty if it can."""
    if output is not None:
        return f"the result goes to {os.fspath(output)}"
    store = store_of(path)
    if store and not force:
        raise RefusedError(
            f"{path} is a blob of {store}, which is shared and named by its hash",
            hint="write a copy: --output FILE (or use --force)",
        )
    if rewrite:
        return "requested"
    if path.stat().st_nlink > 1 and not force:
        return "the file is a hard link; its other names keep the old content"
    return "" if fits else "the new header doesn't fit into the old one's space"
