"""The checks of `verify` on files and sets: one function per rule, one row per function. Rules within a container
(bounds, overlaps, alignment ...) belong to the containers; the rules here cover relations between files, and files that
aren't containers.

A rule yields `Flaw`s; their id and severity are those of its row.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.base.limits import FOLDER_FILES, SHARDS, ZERO_RUN
from weighbridge.base.words import plural
from weighbridge.containers import MISNAMED_UNLESS, PICKLED, sharded
from weighbridge.containers.base import Finding, Severity, Stage
from weighbridge.containers.formats import POINTERS
from weighbridge.containers.numbered import sets
from weighbridge.containers.zero_tail import unwritten
from weighbridge.io.location import StoredPath, TreePath
from weighbridge.io.source import FileSource, ReopenedFile
from weighbridge.models.modelfile import is_modelfile, read_modelfile, referred
from weighbridge.models.open import open_headers
from weighbridge.reports import sidecars
from weighbridge.reports.identify import name_lies
from weighbridge.reports.lenient import broken
from weighbridge.reports.verify.repo import LEFTOVER, Repo, RepoFile


class Flaw(NamedTuple):
    """A violation of a rule: the message, and the place."""

    message: str
    path: str | Path | None = None
    tensor: str | None = None
    hint: str | None = None
    offset: int | None = None


class Check(NamedTuple):
    """`check` yields the violations of the rule. `text`: its requirement, for the docs."""

    id: str
    severity: Severity
    text: str
    check: Callable[[Repo], Iterator[Flaw]]


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
_AGAIN: Final = "download it again"

# Suffixes whose files matter: a README in HTML is fine.
_MATTERS: Final = frozenset(MISNAMED_UNLESS) | {".jinja", ".txt"}
_WITH_OWN_RULE: Final = POINTERS | {"html", "error-text", "empty", "zeros"}


def _matters(file: RepoFile) -> bool:
    return PurePosixPath(file.name).suffix.lower() in _MATTERS


# ---- single files ----


def modelfile(repo: Repo) -> Iterator[Flaw]:
    for path in [repo.modelfile] if repo.modelfile else [f.path for f in repo.files if is_modelfile(f.path)]:
        try:
            file = read_modelfile(path)
            _ = file.parameters
            targets = [referred(file, value, path.parent) for key in ("FROM", "ADAPTER") for value in file.values(key)]
            names = [target for target in targets if isinstance(target, str)]
            for name in names:
                ollama.parse_name(name.partition("://")[2])
            if repo.modelfile and not names:
                from weighbridge.models.lora.merge import check_adapter

                with open_headers(path).model as model:
                    for adapter in model.place.adapters:
                        check_adapter(model, adapter)
        except WeighbridgeError as error:
            yield Flaw(error.message, path, hint=error.hint)


def unreadable(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.trouble:
            yield Flaw(f"it can't be opened: {file.trouble}", file.path)


def pointer(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.identity and file.format in POINTERS:
            size = file.identity.detail.get("size")
            target = f" to a file of {size:,} bytes" if isinstance(size, int) else ""
            message = f"a {file.identity.title}{target}, not the file itself"
            yield Flaw(message, file.path, hint=file.identity.advice)


def page(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.identity and file.format in ("html", "error-text") and _matters(file):
            message = f"{file.identity.title} instead of the file: {file.identity.evidence[-1]}"
            yield Flaw(message, file.path, hint=file.identity.advice)


def empty(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.format == "empty" and _matters(file):
            yield Flaw("the file is empty", file.path, hint=_AGAIN)


def zeros(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.format == "zeros" and _matters(file):
            yield Flaw(f"all of its {file.size:,} bytes are zero", file.path, hint=_AGAIN)


def wrong_format(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.identity and file.format not in _WITH_OWN_RULE and (lie := name_lies(file.base, file.identity)):
            yield Flaw(lie, file.path, hint=file.identity.advice)


def damaged(repo: Repo) -> Iterator[Flaw]:
    """Damage that is visible without a parser (a zip without its directory, a truncated pickle)."""
    for file in repo.files:
        unparsed = file.index is None and not file.findings and file.format not in (*_WITH_OWN_RULE, "json", "text")
        if file.identity and unparsed and _matters(file):
            for damage in file.identity.damage:
                yield Flaw(f"{file.identity.title}: {damage}", file.path, hint=_AGAIN)


# Suffixes that download tools give to unfinished files.
_LEFTOVERS: Final = (
    ".incomplete", ".partial", ".part", ".crdownload", ".aria2", ".download", ".downloading", ".tmp", ".temp",
    ".lock", "~",
)  # fmt: skip
# What `wb edit` (journal) and `io.sink` leave if they are killed: kind -> message, hint.
_OURS: Final = {
    "journal": ("an unfinished edit of {}: its header may be half written",
                "run wb edit on it again; it first restores the old bytes"),
    "partial": ("an unfinished write of {}", "delete it; the next write of {} does so, too"),
    "old": ("{} before it was replaced", "rename it to {} if that is missing, delete it otherwise"),
}  # fmt: skip


def journal(repo: Repo) -> Iterator[Flaw]:
    return _our_leftovers(repo, "journal")


def leftover(repo: Repo) -> Iterator[Flaw]:
    yield from _our_leftovers(repo, "partial", "old")
    for file in repo.files:
        end = next((e for e in _LEFTOVERS if file.base.endswith(e)), None)
        if end and not LEFTOVER.fullmatch(file.base) and ".cache" not in PurePosixPath(file.name).parts:
            message = f"a leftover of an unfinished download or write ({end})"
            yield Flaw(message, file.path, hint="delete it, or finish it")


def _our_leftovers(repo: Repo, *kinds: str) -> Iterator[Flaw]:
    """Unfinished files and folders of Weighbridge by their names. They are next to their target: in the folder, or next
    to the folder or single file that is checked."""
    paths: dict[Path, str | None] = {}  # each with the name of its target, if that matters
    target = repo.path.absolute()
    with contextlib.suppress(PermissionError):
        paths = {path: target.name for path in target.parent.iterdir()}
    if not repo.single:
        paths |= dict.fromkeys([*repo.root.iterdir(), *(repo.root / name for name in repo.names)])
    for path, owner in sorted(paths.items()):
        match = LEFTOVER.fullmatch(path.name)
        if match and owner in (None, match["name"]) and (kind := match["kind"] or "journal") in kinds:
            message, hint = (text.format(match["name"]) for text in _OURS[kind])
            yield Flaw(message, path, hint=hint)


def zero_tail(repo: Repo) -> Iterator[Flaw]:
    """A download into reserved space that stopped leaves zeros up to the final size; a model may have zeros, too."""
    return (flaw for flaw, reason in _zero_tails(repo) if reason is None)


def unwritten_tail(repo: Repo) -> Iterator[Flaw]:
    """Zeros at the end of a file that no model has."""
    for flaw, reason in _zero_tails(repo):
        if reason is not None:
            hint = "its download was interrupted: download it again"
            yield flaw._replace(message=f"{flaw.message} ({reason})", hint=hint)


def _zero_tails(repo: Repo) -> Iterator[tuple[Flaw, str | None]]:
    """The files that end in zeros, and why these can't be weights."""
    for file in repo.weights:
        source, index = file.parsed
        tail = file.zeros
        plain = [e for e in index if e.nbytes and not e.file]  # compressed tensors are elsewhere in the file
        cut = [e.name for e in plain if e.offset + e.nbytes > tail.start]
        whole = [e for e in plain if e.offset >= tail.start]
        if file.size - tail.start >= ZERO_RUN and cut:
            sampled = ", by samples" if tail.sampled else ""
            tensors = f"{plural(len(whole), 'whole tensor')}, of {len(index)}"
            message = f"its last {file.size - tail.start:,} bytes are zero{sampled}: {tensors}"
            hint = "an interrupted download? compare its checksum"
            yield Flaw(message, file.path, cut[0], hint, tail.start), unwritten(source, plain, tail)


def hole(repo: Repo) -> Iterator[Flaw]:
    """Holes of a sparse file: bytes that were never written and read as zeros."""
    for file in repo.weights:
        source, index = file.parsed
        if not isinstance(source, FileSource | ReopenedFile):  # the holes of a remote file are unknown
            continue
        with FileSource(source.name) as opened:
            holes = list(_holes(opened.fileno(), file.size))
        for at, end in holes:
            # A vocabulary may have as many zeros, and some tools make holes of zeros: only tensors count.
            inside = [e.name for e in index if not e.file and e.offset < end and e.offset + e.nbytes > at]
            if inside and end - at >= ZERO_RUN:
                tensors = f"{plural(len(inside), 'tensor', 'reach')} into them"
                message = f"bytes {at:,} to {end:,} were never written ({tensors})"
                yield Flaw(message, file.path, inside[0], "copy or download it again", at)


_HOLES: Final = 100


def _holes(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Byte ranges without blocks, on systems that report them (Linux, macOS). Reads are positioned, so `fd` may be
    moved."""
    at = 0
    for _ in range(_HOLES if hasattr(os, "SEEK_HOLE") else 0):
        try:
            at = os.lseek(fd, at, os.SEEK_HOLE)
        except OSError:  # the file system doesn't report holes, or the file has no data after `at`
            return
        if at >= size:
            return
        try:
            end = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # the hole extends to the end of the file
            end = size
        yield at, end
        at = end


# ---- sets ----


def index_broken(repo: Repo) -> Iterator[Flaw]:
    for listed in repo.listed:
        if listed.error:
            yield Flaw(listed.error, listed.file.path, hint=_AGAIN)


def traversal(repo: Repo) -> Iterator[Flaw]:
    for listed in repo.listed:
        for tensor, name in listed.outside.items():
            yield Flaw(f"the index points outside its folder: {name!r}"[:200], listed.file.path, tensor,
                       "a loader that follows it accesses other files: don't use this file")  # fmt: skip


def _numbered(repo: Repo) -> Iterator[tuple[str, str, set[int], int]]:
    """Sets of numbered files without an index (GGUF splits don't need one): folder, name, numbers, total."""
    for folder, files in repo.folders.items():
        if repo.single or any(sharded.is_index(f.base) for f in files):
            continue
        for name, members in sets(f.base for f in files if not f.base.endswith(".gguf")).items():
            yield folder, name, {m.number for m in members}, members[0].total


def no_index(repo: Repo) -> Iterator[Flaw]:
    """transformers finds shards only by their index."""
    for folder, name, numbers, total in _numbered(repo):
        if total > 1:
            message = f"{plural(len(numbers), 'shard')} {name} without an index"
            yield Flaw(message, repo.root / folder, hint="download the index, or rewrite the set with wb convert")


def gaps(repo: Repo) -> Iterator[Flaw]:
    for folder, name, numbers, total in _numbered(repo):
        absent = [n for n in range(1, min(total, SHARDS) + 1) if n not in numbers]
        if absent:
            some = ", ".join(map(str, absent[:10])) + (" ..." if len(absent) > 10 else "")
            message = f"{len(absent)} of {plural(total, 'shard')} {name} are missing: {some}"
            yield Flaw(message, repo.root / folder, hint=_AGAIN)


# ---- the folder ----


def too_many(repo: Repo) -> Iterator[Flaw]:
    if len(repo.names) >= FOLDER_FILES:
        yield Flaw(f"only {FOLDER_FILES:,} of its files were checked", repo.root, hint="name a folder inside it")


def case_clash(repo: Repo) -> Iterator[Flaw]:
    seen: dict[str, str] = {}
    for name in repo.names:
        twin = seen.setdefault(name.casefold(), name)
        if twin != name:
            message = f"{name} and {twin} are the same name on case-insensitive systems (macOS, Windows)"
            yield Flaw(message, repo.root / name)


def link_outside(repo: Repo) -> Iterator[Flaw]:
    """Links that leave the folder, to files or to folders. In the Hugging Face cache they lead to the blobs, two levels
    up or more."""
    root = repo.root.resolve()
    here = not repo.single and not isinstance(repo.root, (TreePath, StoredPath))  # elsewhere nothing is a link
    names = repo.names if here else ()
    folders = {repo.root / parent for name in names for parent in PurePosixPath(name).parents}
    linked = (path for folder in sorted(folders) for path in sorted(folder.iterdir()) if path.is_dir())
    for path in (*(repo.root / name for name in names), *linked):
        if not path.is_symlink() or not path.exists():
            continue
        target = path.resolve()
        cached = any(up.name == "snapshots" and target.parent == up.parent / "blobs" for up in root.parents)
        if not target.is_relative_to(root) and not cached:
            message = f"a link that leaves the folder: {os.readlink(path)}"
            yield Flaw(message, path, hint="copy the file in its place")


def two_formats(repo: Repo) -> Iterator[Flaw]:
    for folder, files in repo.folders.items():
        pickles = [f for f in files if f.format in PICKLED]
        if pickles and any(f.format == "safetensors" for f in files):
            size = sum(f.size for f in pickles)
            message = f"pickles next to safetensors: {', '.join(f.base for f in pickles[:3])}, {size:,} bytes"
            hint = "loaders prefer the safetensors; the pickles may be deleted"
            yield Flaw(message, repo.root / folder, hint=hint)


def pipeline(repo: Repo) -> Iterator[Flaw]:
    """The parts that the index of a diffusers pipeline lists."""
    index = repo.root / "model_index.json"
    if repo.single or index.name not in repo.names:
        return
    for name, listed in sidecars.json(index).items():
        if not isinstance(listed, list) or len(listed) != 2 or not isinstance(listed[1], str):
            continue  # null: a part that the pipeline goes without
        files = repo.folders.get(name, ())
        if not files:
            yield Flaw(f"the part {name} ({listed[1]}) is missing", index, hint=_AGAIN)
        elif any(f.base == "config.json" for f in files) and all(f.path.suffix in _TEXTS for f in files):
            yield Flaw(f"the part {name} ({listed[1]}) has a config and no weights", repo.root / name, hint=_AGAIN)


# Suffixes of files that aren't weights.
_TEXTS: Final = frozenset({"", ".json", ".txt", ".md", ".model", ".py"})

RULES: Final = (
    Check("file/unreadable", _E, "every file can be opened", unreadable),
    Check("file/lfs-pointer", _E, "no file is the text of a Git LFS, git-annex or Xet pointer", pointer),
    Check("file/web-page", _E, "no file is a web page or a server's error message", page),
    Check("file/empty", _E, "no file is empty", empty),
    Check("file/zeros", _E, "no file is all zeros", zeros),
    Check("file/wrong-format", _E, "a file has the format of its suffix", wrong_format),
    Check("file/modelfile", _E, "a Modelfile is valid for Ollama, and the files that it names exist", modelfile),
    Check("file/damaged", _E, "files of formats that aren't parsed look intact", damaged),
    Check("file/journal", _E, "no file has an unfinished edit", journal),
    Check("file/leftover", _W, "no leftovers of unfinished downloads and writes", leftover),
    Check("file/unwritten-tail", _E, "no file ends in zeros that can't be weights", unwritten_tail),
    Check("file/zero-tail", _W, "no file ends in a long run of zeros", zero_tail),
    Check("file/hole", _W, "every part of a file was written", hole),
    Check("index/broken", _E, "an index is JSON with a weight_map", index_broken),
    Check("index/traversal", _E, "an index names only files in its folder", traversal),
    Check("index/none", _W, "numbered shards have an index", no_index),
    Check("index/gaps", _E, "a numbered set without an index is complete", gaps),
    Check("folder/too-many", _W, "a folder is small enough to be checked completely", too_many),
    Check("folder/case-clash", _W, "no two names differ only in case", case_clash),
    Check("folder/link-outside", _W, "links stay inside the folder", link_outside),
    Check("folder/pipeline", _E, "a diffusers pipeline has all parts that its index lists", pipeline),
    Check("folder/two-formats", _I, "a folder has weights in one format", two_formats),
)


# ---- findings of the containers and of the loaders' rules ----


def contained(repo: Repo) -> Iterator[Finding]:
    """All findings of the parsers."""
    for file in repo.files:
        yield from file.findings


def shards(repo: Repo) -> Iterator[Finding]:
    """Compares an index with its shards, both ways."""
    for listed in repo.listed:
        if listed.map:
            names = [f.base for f in repo.folders[repo.folder(listed.file.name)]]
            yield from sharded.check(listed.map, repo.shards(listed), names)


def splits(repo: Repo) -> Iterator[Finding]:
    """Compares the splits of a GGUF with each other."""
    from weighbridge.containers.gguf import container as gguf

    for files in repo.splits.values():
        try:
            merged = gguf.merge([f.index for f in files if f.index])
        except FormatError as error:
            yield broken("gguf/split", error, str(files[0].path))
            continue
        yield from (f for f in merged.findings if f.rule.startswith("gguf/split"))


def loadable(repo: Repo) -> Iterator[Finding]:
    """Why llama.cpp wouldn't load a GGUF as a model; for a split set, at its first file. Incomplete files and sets have
    no such findings."""
    from weighbridge.containers.gguf.container import refused_at
    from weighbridge.models.llamacpp.rules import findings

    sets = [files for (_, _, count), files in repo.splits.items() if len(files) == count]
    parts = {f.name for files in repo.splits.values() for f in files}
    sets += [(f,) for f in repo.weights if f.format == "gguf" and f.name not in parts]
    for files in sets:
        if not any(refused_at(f.findings) is Stage.HEADER for f in files):
            shapes = {e.name: e.shape for f in files for e in f.parsed[1]}
            yield from findings(files[0].parsed[1].metadata, shapes, str(files[0].path))


def mlx_loadable(repo: Repo) -> Iterator[Finding]:
    """Why mlx-lm wouldn't load a folder that is for it, if the folder is complete."""
    from weighbridge.models.clients import is_for_mlx_lm
    from weighbridge.models.mlxlm.rules import findings

    if repo.config and repo.model is not None and is_for_mlx_lm(repo.config, repo.model):
        shapes = {entry.name: entry.shape for entry in repo.model}
        yield from findings(repo.config, shapes, str(repo.root))


#: Checks whose findings already have rules: name -> function.
PASSED_ON: Final[dict[str, Callable[[Repo], Iterator[Finding]]]] = {
    "container": contained,
    "shards": shards,
    "splits": splits,
    "loadable": loadable,
    "mlx": mlx_loadable,
}
