"""Edit the metadata of a safetensors or GGUF file: plan it (what changes, whether it fits), then apply it.

In place, where the new header fits in the old one's room and the file is nobody else's: the bytes that differ are
written at once, after the old ones were put in a journal beside the file (`.NAME.journal`); should the machine stop in
between, the next edit puts them back (`recover`). Otherwise the file is written anew through the sink: a temporary
sibling, fsync, rename. A hard link is always written anew, so that the file's other names keep their content; a blob of
a store, which is named by the hash of its content, is refused.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.containers.gguf.values import IDS, KV, RANGES, SCALARS, check_type, element_type, infer
from weighbridge.conversion.edit.headers import Edited, Header, check, open_header
from weighbridge.io.sink import InPlace, OutFile, Sink, alive, write_file
from weighbridge.io.source import FileSource

Progress = Callable[[int, int, str], None]
CHAT_TEMPLATE: Final = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class Edit:
    """One wish: set `key` to `value` (as `type`; None: the type it has, or the one that fits), or remove it."""

    key: str
    value: Any = None
    type: str | None = None
    remove: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What an edit does to one key; None: the key isn't there."""

    key: str
    before: KV | None
    after: KV | None


@dataclass(frozen=True)
class EditPlan:
    """All that applying it will do. `in_place`: only the bytes that differ are written; else the whole file is."""

    path: str
    target: str
    format: str
    changes: tuple[Change, ...]
    in_place: bool
    reason: str
    written: int
    header: bytes = field(repr=False)
    start: int = field(repr=False)
    stamp: tuple[int, int] = field(repr=False)

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
    """The metadata of a safetensors or GGUF file with its types; arrays are decoded when looked at."""
    # The source stays open as long as an array that was not looked at yet needs it.
    return open_header(FileSource(path)).metadata


def plan_edit(
    path: str | os.PathLike[str],
    edits: Iterable[Edit],
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    rewrite: bool = False,
    reserve: int = 0,
) -> EditPlan:
    """What `edits` do to the file at `path`. `output`: write the result there and leave the file alone. `force`: also
    change what is guarded (a store's blob, a key's type, keys that describe the file itself). `rewrite`: never in
    place. `reserve`: bytes of room for later edits, where the file is written anew."""
    with closing(FileSource(path)) as source:
        header = open_header(source)
        metadata = _edited(header, edits, force)
        changes = _changes(header.metadata, metadata)
        fitting = header.fit(metadata) if header.start <= source.size else None
        wanted = bool(changes or output or rewrite or reserve)
        why = _why_rewrite(Path(path), output, fitting is not None, rewrite or bool(reserve), force) if wanted else ""
        rendered = header.render(metadata, reserve) if why or fitting is None else fitting
        check(source, Edited(source, header.start, rendered), metadata)
        span = range(0) if why or not changes else _span(source.read(0, header.start), rendered)
        stat = os.fstat(source.fileno())
        return EditPlan(
            path=os.fspath(path),
            target=os.fspath(output or path),
            format=header.format,
            changes=changes,
            in_place=not why,
            reason=why or ("it fits in the header's room" if changes else "nothing changes"),
            written=len(span) if not why else len(rendered) + max(source.size - header.start, 0),
            header=rendered,
            start=header.start,
            stamp=(stat.st_size, stat.st_mtime_ns),
        )


def apply_edit(
    plan: EditPlan, *, backup: bool = False, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Do what the plan says. `backup` keeps the old file as `NAME.bak` (then the plan must be one that rewrites)."""
    if plan.in_place and not plan.changes:
        return
    if plan.path == plan.target and not os.access(plan.path, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", plan.path)
    with closing(FileSource(plan.path)) as source:
        stat = os.fstat(source.fileno())
        if (stat.st_size, stat.st_mtime_ns) != plan.stamp:
            raise FormatError("the file was changed since the edit was planned", path=plan.path, hint="try again")
        if plan.in_place:
            _in_place(plan, source)
        else:
            if backup:
                _keep(plan.path)
            _rewrite(plan, source, overwrite or plan.path == plan.target, progress)


# What changes


# Keys that say how the file itself is built: changing them breaks it, or what reads it.
_GUARDED: Final = (
    (re.compile(r"split\.(no|count|tensors\.count)"), "it ties the shards of a set together"),
    (re.compile(r"general\.architecture"), "every other key is named after it"),
    (re.compile(r"tokenizer\.ggml\.(tokens|token_type|scores|merges)"), "the model's token ids depend on it"),
)


def _edited(header: Header, edits: Iterable[Edit], force: bool) -> dict[str, KV]:
    """The metadata after `edits`: new keys last, changed ones in their place."""
    metadata = dict(header.metadata)
    for edit in edits:
        guard = next((why for keys, why in _GUARDED if keys.fullmatch(edit.key)), None)
        if header.format == "safetensors":
            guard = "transformers refuses a file without it" if edit.key == "format" and edit.remove else None
        if guard and not force:
            raise RefusedError(f"{edit.key} is guarded: {guard}", option="--force")
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


def _changes(before: Mapping[str, KV], after: Mapping[str, KV]) -> tuple[Change, ...]:
    keys = dict.fromkeys([*before, *after])
    found = (Change(key, before.get(key), after.get(key)) for key in keys)
    return tuple(c for c in found if c.before is not c.after)


def typed(edit: Edit, old: KV | None, *, text_only: bool = False, force: bool = False) -> KV:
    """The value of an edit with its GGUF type: the one stated, else the one the key has, else the one that fits."""
    if not edit.key:
        raise UsageError("a key can't be empty")
    if text_only and edit.type in (None, "str"):
        return KV("str", edit.value if isinstance(edit.value, str) else json.dumps(edit.value))
    kind = edit.type or (old.type if old else None)
    if old is not None and kind != old.type and not force:
        raise RefusedError(
            f"{edit.key} has the type {old.type}, not {kind}; readers look for exactly one type", option="--force"
        )
    if kind is None:
        fitting = infer(guess(edit.value) if isinstance(edit.value, str) else edit.value)
        return KV(fitting.type, coerce(edit.key, fitting.type, fitting.value))
    return KV(check_type(kind), coerce(edit.key, kind, edit.value))


# At most 20 digits fit into 64 bits; longer ones are text, not work for a big-integer parser.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT: Final = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,4})?")


def guess(text: str) -> Any:
    """An untyped value of a new key: true/false, a number, or text."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def coerce(key: str, kind: str, value: Any) -> Any:
    """`value`, which may be text, as the GGUF type `kind`; UsageError where it is no such thing."""
    inner = element_type(kind)
    if inner is not None:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise UsageError(f"{key} is an array, {kind}", hint="give its elements: --set-array KEY=TYPE:[...]")
        return [coerce(key, inner, element) for element in value]
    if kind == "str":
        if not isinstance(value, str):
            raise UsageError(f"{key}: {value!r} is not text")
        return value
    return _number(key, kind, guess(value) if isinstance(value, str) else value)


def _number(key: str, kind: str, value: Any) -> Any:
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise UsageError(f"{key}: {value!r} is neither true nor false")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{key}: {value!r} is not a number")
    if kind in RANGES:
        low, high = RANGES[kind]
        if not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"{key}: {value} is not a {kind} ({low} to {high})")
        return value
    try:  # the value that the file will hold, which may have fewer digits
        stored: float = struct.unpack("<" + SCALARS[kind], struct.pack("<" + SCALARS[kind], value))[0]
    except OverflowError:
        raise UsageError(f"{key}: {value} is too large for {kind}") from None
    return stored


# What people write for a type: llama.cpp's --override-kv has int, float, bool and str.
_ALIASES: Final = {"string": "str", "float": "f32", "int": "i32", "float32": "f32", "uint32": "u32", "int32": "i32"}


def parse_assignment(text: str) -> Edit:
    """`KEY=VALUE`, or `KEY=TYPE:VALUE` where TYPE is a GGUF type (`KEY=str:i32:5` for a text that looks like one)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no assignment", hint="write KEY=VALUE or KEY=TYPE:VALUE")
    kind, colon, rest = value.partition(":")
    kind = _ALIASES.get(kind, kind)
    return Edit(key, rest, kind) if colon and kind in IDS and kind != "arr" else Edit(key, value)


def parse_array(text: str, read: Callable[[str], str]) -> Edit:
    """`KEY=TYPE:[...]` with the elements as JSON, or `KEY=TYPE:@FILE` with a file of that JSON, which `read` gives."""
    key, _, value = text.partition("=")
    kind, colon, elements = value.partition(":")
    kind = _ALIASES.get(kind, kind)
    if not colon or kind not in IDS or kind == "arr":
        raise UsageError(f"{text[:80]!r} is no array", hint='write KEY=TYPE:[...], such as general.tags=str:["a","b"]')
    try:
        found = json.loads(read(elements[1:]) if elements.startswith("@") else elements)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{key}: the elements are not JSON: {error}") from None
    if not isinstance(found, list):
        raise UsageError(f"{key}: the JSON is not an array")
    return Edit(key, found, f"arr[{kind}]")


# Whose file it is


def store_of(path: Path) -> str | None:
    """The store that `path` is, or points to, a blob of: named by the hash of its content, shared by whoever has it."""
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
            f"{path} is a blob of {store}, named by its content", hint="write a copy: --output FILE (or use --force)"
        )
    if rewrite:
        return "asked for"
    if path.stat().st_nlink > 1 and not force:
        return "the file is a hard link; its other names keep the old content"
    return "" if fits else "the new header doesn't fit in the old one's room"


# Writing


def _span(old: bytes, new: bytes) -> range:
    """The bytes of `new` that must be written over `old`: from the first that differs to the last."""
    if old == new:
        return range(0)
    first = next((i for i in range(0, len(new), MIB) if old[i : i + MIB] != new[i : i + MIB]), 0)
    while old[first] == new[first]:
        first += 1
    last = len(new)
    while old[last - 1] == new[last - 1]:
        last -= 1
    return range(first, last)


def journal_of(path: str | os.PathLike[str]) -> Path:
    """Where the bytes that an edit in place replaces are kept while it writes."""
    real = Path(path).resolve()
    return real.with_name(f".{real.name}.journal")


def _in_place(plan: EditPlan, source: FileSource) -> None:
    old = source.read(0, plan.start)
    span = _span(old, plan.header)
    journal = journal_of(plan.path)
    head = {"weighbridge": "journal", "offset": span.start, "size": source.size, "pid": os.getpid()}
    with InPlace(plan.path) as out:  # opened first: a file that can't be written gets no journal
        write_file(journal, json.dumps(head).encode() + b"\n" + old[span.start : span.stop])
        out.write(span.start, plan.header[span.start : span.stop])
    journal.unlink()


def recover(path: str | os.PathLike[str]) -> bool:
    """Undo an edit in place that was cut off halfway; True if there was one."""
    journal = journal_of(path)
    if not journal.exists():
        return False
    line, _, old = journal.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        offset, size, pid = int(head["offset"]), int(head["size"]), int(head["pid"])
    except (ValueError, KeyError, TypeError):
        raise FormatError("this is not a journal of weighbridge", path=str(journal)) from None
    if pid != os.getpid() and alive(pid):
        raise RefusedError(f"{os.fspath(path)} is being edited by process {pid}", hint="wait for it to end")
    if offset < 0 or offset + len(old) > size or Path(path).stat().st_size != size:
        raise FormatError("the journal belongs to another file", path=str(journal), hint="remove it if you are sure")
    with InPlace(path) as out:
        out.write(offset, old)
    journal.unlink()
    return True


def _keep(path: str) -> None:
    """The old content under another name: a second link to it, which the rename of the new file leaves alone."""
    backup = f"{path}.bak"
    if os.path.lexists(backup):
        raise RefusedError(f"{backup} exists already", hint="move it away")
    os.link(os.path.realpath(path), backup)


def _rewrite(plan: EditPlan, source: FileSource, overwrite: bool, progress: Progress | None) -> None:
    header, data = plan.header, max(source.size - plan.start, 0)
    size = len(header) + data
    with Sink(plan.target, folder=False, size=size, overwrite=overwrite) as sink:
        out = sink.create("", size)
        out.write(0, header)
        for at in range(0, data, 64 * MIB):
            part = min(64 * MIB, data - at)
            if not out.copy(source, plan.start + at, len(header) + at, part):
                _copy(source, out, plan.start + at, len(header) + at, part)
            if progress is not None:
                progress(at + part, data, "writing")


def _copy(source: FileSource, out: OutFile, start: int, offset: int, size: int) -> None:
    buffer = memoryview(bytearray(min(size, MIB)))
    for at in range(0, size, MIB):
        part = buffer[: min(MIB, size - at)]
        source.readinto(start + at, part)
        out.write(offset + at, part)
