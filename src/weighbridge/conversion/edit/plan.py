"""Plans edits of the metadata of a safetensors or GGUF file: what changes, and whether it fits.

If the new header fits into the old one's space and the file isn't shared, it is edited in place: the old bytes are
saved in a journal next to the file (`.NAME.journal`), then the bytes that differ are written. If the machine stops in
between, the next edit restores them (`recover`). Otherwise the file is rewritten through the sink: temporary sibling,
fsync, rename. A hard link is always rewritten, so that the file's other names keep their content. A blob of a
content-addressed store is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.options import accepting
from weighbridge.base.words import suggest
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.edit.apply import EditPlan, MetadataChange, stamp_of
from weighbridge.conversion.edit.headers import Edited, Header, changed_span, check, frozen, open_header
from weighbridge.conversion.edit.options import EditOptions
from weighbridge.conversion.edit.values import Edit, edits_of, typed, why_guarded
from weighbridge.conversion.gguf.loadable import refuse_new
from weighbridge.io.source import FileSource
from weighbridge.models.llamacpp.rules import faults

CHAT_TEMPLATE: Final = "tokenizer.chat_template"


def read_metadata(path: str | os.PathLike[str]) -> dict[str, KV]:
    """The typed metadata of a safetensors or GGUF file; arrays are decoded on access."""
    # An array that wasn't accessed yet keeps the source open.
    return open_header(FileSource(path)).metadata


@accepting(EditOptions)
def plan_edit(path: str | os.PathLike[str], options: EditOptions) -> EditPlan:
    """Plans to change the metadata of the GGUF or safetensors file at `path`, in place if that is safe."""
    output, force = options.output, options.allow_guarded
    rewrite = options.rewrite or options.backup or bool(options.reserve)
    with closing(FileSource(path)) as file:
        source = frozen(file)
        header = open_header(source)
        metadata = _edit(header, _edits(options), force)
        values = ((key, header.metadata.get(key), metadata.get(key)) for key in {**header.metadata, **metadata})
        changes = tuple(MetadataChange(key, old, new) for key, old, new in values if old is not new)
        fitting = header.fit(metadata) if header.start <= source.size else None
        reason = ""
        if changes or output or rewrite:
            reason = _why_rewrite(Path(path), output, fitting is not None, rewrite, force)
        rendered = header.render(metadata, options.reserve) if reason or fitting is None else fitting
        edited = Edited(source, header.start, rendered)
        check(source, edited, metadata)
        if changes and header.format == "gguf" and not force:
            after, before = (faults([gguf.parse(s, level="lenient")]) for s in (edited, source))
            refuse_new(after, before, option="--allow-guarded")
        span = range(0) if reason or not changes else changed_span(source.header, rendered)
        return EditPlan(
            path=os.fspath(path),
            target=os.fspath(output or path),
            format=header.format,
            changes=changes,
            in_place=not reason,
            reason=reason or ("it fits into the header's space" if changes else "nothing changes"),
            written=len(span) if not reason else len(rendered) + max(source.size - header.start, 0),
            header=rendered,
            start=header.start,
            stamp=stamp_of(file, source.header),
            overwrite=options.overwrite,
            backup=options.backup,
        )


def _edits(options: EditOptions) -> Iterator[Edit]:
    """Removals first, then values, then the template."""
    yield from (Edit(key, remove=True) for key in options.remove)
    yield from edits_of(options.set)
    if options.chat_template is not None:
        yield Edit(CHAT_TEMPLATE, options.chat_template, "str")


# ---- changes


def _edit(header: Header, edits: Iterable[Edit], force: bool) -> dict[str, KV]:
    """Applies `edits` to the metadata: new keys are appended, changed keys keep their position."""
    metadata = dict(header.metadata)
    for edit in edits:
        guard = why_guarded(edit.key)
        if header.format == "safetensors":
            guard = "transformers refuses a file without it" if edit.key == "format" and edit.remove else None
        if guard and not force:
            raise RefusedError(f"{edit.key} is protected: {guard}", option="--allow-guarded")
        if edit.remove:
            if edit.key not in metadata:
                raise UsageError(
                    f"there is no key {edit.key!r}", hint=str(suggest(edit.key, metadata, "see them with --list"))
                )
            del metadata[edit.key]
        else:
            kv = typed(edit, metadata.get(edit.key), text_only=header.format == "safetensors", force=force)
            if kv != metadata.get(edit.key):
                metadata[edit.key] = kv
    return metadata


# ---- shared files


def store_of(path: Path) -> str | None:
    """The content-addressed store whose blob `path` is, or links to."""
    real = path.resolve()
    if real.parent.name != "blobs":
        return None
    if re.fullmatch(r"sha256[-:][0-9a-f]{64}", real.name):
        return "Ollama"
    return "the Hugging Face cache" if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", real.name) else None


def _why_rewrite(path: Path, output: str | os.PathLike[str] | None, fits: bool, rewrite: bool, force: bool) -> str:
    """Why the file can't be changed in place; empty if it can."""
    if output is not None:
        return f"the result is written to {os.fspath(output)}"
    store = store_of(path)
    if store and not force:
        raise RefusedError(
            f"{path} is a blob of {store}, which is shared and named by its hash",
            hint="write a copy: --output FILE (or use --allow-guarded)",
        )
    if rewrite:
        return "requested"
    if path.stat().st_nlink > 1 and not force:
        return "the file is a hard link; its other names keep the old content"
    return "" if fits else "the new header doesn't fit into the old one's space"
