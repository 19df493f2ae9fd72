"""The checks of `verify` on files and sets: one function a rule, one row a function. The rules of the containers
themselves (bounds, overlaps, alignment ...) are theirs; here is what lies between files, and what isn't a container.

A rule yields `Flaw`s; the id and severity are its row's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import FOLDER_FILES, SHARDS, ZERO_RUN
from weighbridge.containers import MISNAMED_UNLESS, PICKLED, sharded
from weighbridge.containers.base import Finding, Severity, Stage
from weighbridge.containers.formats import POINTERS
from weighbridge.containers.numbered import sets
from weighbridge.models.modelfile import is_modelfile, read_modelfile, referred
from weighbridge.models.open import open_headers
from weighbridge.reports.identify import name_lies
from weighbridge.reports.verify.repo import LEFTOVER, Repo, RepoFile
from weighbridge.reports.verify.zeros import unwritten


class Flaw(NamedTuple):
    """What a rule found: words, and the place."""

    message: str
    path: str | None = None
    tensor: str | None = None
    hint: str | None = None
    offset: int | None = None


class Check(NamedTuple):
    """`check` yields what breaks the rule. `text` says what the rule asks (docs are made from it)."""

    id: str
    severity: Severity
    text: str
    check: Callable[[Repo], Iterator[Flaw]]


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
_AGAIN: Final = "download it again"

# Suffixes whose files matter: a README that is HTML is nobody's problem.
_MATTERS: Final = frozenset(MISNAMED_UNLESS) | {".jinja", ".txt"}


def _matters(file: RepoFile) -> bool:
    return PurePosixPath(file.name).suffix.lower() in _MATTERS


# ---- single files ----


def modelfile(repo: Repo) -> Iterator[Flaw]:
    named = [repo.modelfile] if repo.modelfile else [f.path for f in repo.files if is_modelfile(f.path)]
    for path in named:
        try:
            file = read_modelfile(path)
            _ = file.parameters
            values = (*file.values("FROM"), *file.values("ADAPTER"))
            found = [referred(file, value, path.parent) for value in values]
            for name in (name for name in found if isinstance(name, str)):
                ollama.parse_name(name.partition("://")[2])
            if repo.modelfile and not any(isinstance(name, str) for name in found):
                _check_adapters(path)
        except WeighbridgeError as error:
            yield Flaw(error.message, str(path), hint=error.hint)


def _check_adapters(modelfile: Path) -> None:
    """An error where an adapter isn't one of the Modelfile's model."""
    from weighbridge.models.lora.merge import check_adapter

    with open_headers(modelfile).model as model:
        for adapter in model.place.adapters:
            check_adapter(model, adapter)


def unreadable(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.trouble:
            yield Flaw(f"it can't be opened: {file.trouble}", str(file.path))


def pointer(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.identity and file.format in POINTERS:
            size = file.identity.detail.get("size")
            reported = f" of a file of {size:,} bytes" if isinstance(size, int) else ""
            words = f"a {file.identity.title}{reported}, not the file itself"
            yield Flaw(words, str(file.path), hint=file.identity.advice)


def page(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.identity and file.format in ("html", "error-text") and _matters(file):
            words = f"{file.identity.title} in place of the file: {file.identity.evidence[-1]}"
            yield Flaw(words, str(file.path), hint=file.identity.advice)


def empty(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.format == "empty" and _matters(file):
            yield Flaw("the file is empty", str(file.path), hint=_AGAIN)


def zeros(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        if file.format == "zeros" and _matters(file):
            yield Flaw(f"all of its {file.size:,} bytes are zero", str(file.path), hint=_AGAIN)


_OWN_RULE: Final = POINTERS | {"html", "error-text", "empty", "zeros"}


def wrong_format(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files:
        lie = name_lies(file.base, file.format) if file.identity and file.format not in _OWN_RULE else None
        if lie:
            yield Flaw(lie, str(file.path), hint=file.identity.advice if file.identity else None)


def damaged(repo: Repo) -> Iterator[Flaw]:
    """What shows in files that no container of ours parses (a zip without its directory, a cut pickle)."""
    for file in repo.files:
        if (
            file.identity
            and file.index is None
            and not file.findings
            and file.format not in (*_OWN_RULE, "json", "text")
        ):
            for words in file.identity.damage if _matters(file) else ():
                yield Flaw(f"{file.identity.title}: {words}", str(file.path), hint=_AGAIN)


def journal(repo: Repo) -> Iterator[Flaw]:
    """What `wb edit` keeps while it writes a header in place: still there, the header may be half written."""
    for path, name, kind in _our_leftovers(repo):
        if kind == "journal":
            words, hint = f"an edit of {name} has not ended: its header may be half written", "run wb edit on it again"
            yield Flaw(words, str(path), hint=f"{hint}; it first puts the old bytes back")


# Ends of names that download tools give to what isn't finished.
_LEFTOVERS: Final = (
    ".incomplete", ".partial", ".part", ".crdownload", ".aria2", ".download", ".downloading", ".tmp", ".temp",
    ".lock", "~",
)  # fmt: skip


# What `io.sink` leaves where it is killed: kind -> words, the next step.
_OURS: Final = {
    "partial": ("a write of {} that has not ended", "delete it; the next write of {} does so, too"),
    "old": ("{} as it was before it was replaced", "rename it to {} if that is missing, delete it otherwise"),
}


def leftover(repo: Repo) -> Iterator[Flaw]:
    for path, name, kind in _our_leftovers(repo):
        if kind in _OURS:
            words, hint = _OURS[kind]
            yield Flaw(words.format(name), str(path), hint=hint.format(name))
    for file in repo.files:
        end = next((e for e in _LEFTOVERS if file.base.endswith(e)), None)
        if end and not LEFTOVER.fullmatch(file.base) and ".cache" not in PurePosixPath(file.name).parts:
            yield Flaw(
                f"a leftover of an unfinished download or write ({end})", str(file.path), hint="delete it, or finish it"
            )


def _our_leftovers(repo: Repo) -> Iterator[tuple[Path, str, str]]:
    """Files and folders by the names that we give to what is under way: path, whose it is, kind. They lie beside what
    they belong to: in the folder, or beside the folder or the one file that is checked."""
    mine: list[tuple[Path, str | None]] = [(repo.root / name, None) for name in repo.names if not repo.single]
    mine += [(path, None) for path in repo.root.iterdir() if not repo.single]
    whole = repo.path.absolute()
    with contextlib.suppress(PermissionError):
        mine += [(path, whole.name) for path in whole.parent.iterdir()]
    for path, owner in sorted(dict(reversed(mine)).items()):
        match = LEFTOVER.fullmatch(path.name)
        if match and owner in (None, match["name"]):
            yield path, match["name"], match["kind"] or "journal"


def zero_tail(repo: Repo) -> Iterator[Flaw]:
    """A download into reserved space that stopped leaves zeros up to the right size; so may a model."""
    for flaw, why in _zero_tails(repo):
        if why is None:
            yield flaw


def unwritten_tail(repo: Repo) -> Iterator[Flaw]:
    """Zeros up to the end that no model has."""
    for flaw, why in _zero_tails(repo):
        if why is not None:
            words, hint = f"{flaw.message} ({why})", "its download was interrupted: download it again"
            yield flaw._replace(message=words, hint=hint)


def _zero_tails(repo: Repo) -> Iterator[tuple[Flaw, str | None]]:
    """The files that end in zeros, and why these can't be weights."""
    for file in repo.weights:
        source, index = file.parsed
        tail = file.zeros
        plain = [e for e in index if e.nbytes and not e.file]  # compressed tensors lie elsewhere in the file
        lost = [e.name for e in plain if e.offset + e.nbytes > tail.start]
        whole = [e for e in plain if e.offset >= tail.start]
        if file.size - tail.start >= ZERO_RUN and lost:
            zero = "are zero, by samples" if tail.sampled else "are zero"
            words = f"its last {file.size - tail.start:,} bytes {zero}: {len(whole)} whole tensors, of {len(index)}"
            hint = "an interrupted download? compare its checksum"
            yield Flaw(words, str(file.path), lost[0], hint, tail.start), unwritten(source, plain, tail)


def hole(repo: Repo) -> Iterator[Flaw]:
    """Holes of a sparse file: bytes that nobody ever wrote (they read as zeros)."""
    for file in repo.weights:
        source, index = file.parsed
        place = source.location(0)  # of a file elsewhere nothing is known about holes
        for at, end in _holes(place[0].fileno(), file.size) if place else ():
            # A vocabulary may hold as many zeros, and some copying tools make holes of zeros: tensors only.
            inside = [e.name for e in index if not e.file and e.offset < end and e.offset + e.nbytes > at]
            if inside and end - at >= ZERO_RUN:
                words = f"bytes {at:,} to {end:,} were never written ({len(inside)} tensors reach into them)"
                yield Flaw(words, str(file.path), inside[0], "copy or download it again", at)


_HOLES: Final = 100


def _holes(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges without blocks, where the system tells (Linux, macOS). Reads are positioned: moving `fd` is harmless."""
    at = 0
    for _ in range(_HOLES if hasattr(os, "SEEK_HOLE") else 0):
        try:
            at = os.lseek(fd, at, os.SEEK_HOLE)
        except OSError:  # the file system doesn't tell, or there is no data after `at`
            return
        if at >= size:
            return
        try:
            end = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # the hole is the rest of the file
            end = size
        yield at, end
        at = end


# ---- sets ----


def index_broken(repo: Repo) -> Iterator[Flaw]:
    for listed in repo.listed:
        if listed.why:
            yield Flaw(listed.why, str(listed.file.path), hint=_AGAIN)


def traversal(repo: Repo) -> Iterator[Flaw]:
    for listed in repo.listed:
        for tensor, name in listed.outside.items():
            yield Flaw(f"the index points outside its folder: {name!r}"[:200], str(listed.file.path), tensor,
                        "a loader that follows it reads or writes elsewhere: don't use this file")  # fmt: skip


def _numbered(repo: Repo) -> Iterator[tuple[str, str, set[int], int]]:
    """Sets of numbered files without an index (GGUF's splits need none): folder, name, their numbers, how many there
    should be."""
    for folder, files in repo.folders.items():
        if repo.single or any(sharded.is_index(f.base) for f in files):
            continue
        for name, members in sets(f.base for f in files if not f.base.endswith(".gguf")).items():
            yield folder, name, {m.number for m in members}, members[0].total


def no_index(repo: Repo) -> Iterator[Flaw]:
    """transformers finds shards by their index only."""
    for folder, name, numbers, count in _numbered(repo):
        if count > 1:
            words = f"{len(numbers)} shards {name}, but no index beside them"
            yield Flaw(words, str(repo.root / folder), hint="download the index, or write the set anew with wb convert")


def gaps(repo: Repo) -> Iterator[Flaw]:
    for folder, name, numbers, count in _numbered(repo):
        absent = [n for n in range(1, min(count, SHARDS) + 1) if n not in numbers]
        if absent:
            some = ", ".join(map(str, absent[:10])) + (" ..." if len(absent) > 10 else "")
            yield Flaw(
                f"{len(absent)} of {count} shards {name} are missing: {some}", str(repo.root / folder), hint=_AGAIN
            )


# ---- the folder ----


def too_many(repo: Repo) -> Iterator[Flaw]:
    if len(repo.names) >= FOLDER_FILES:
        yield Flaw(f"only {FOLDER_FILES:,} of its files were checked", str(repo.root), hint="name a folder inside it")


def case_clash(repo: Repo) -> Iterator[Flaw]:
    seen: dict[str, str] = {}
    for name in repo.names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            yield Flaw(
                f"{name} and {other} are one name where case doesn't count (macOS, Windows)", str(repo.root / name)
            )


def link_outside(repo: Repo) -> Iterator[Flaw]:
    """Links that leave the folder. Those of the Hugging Face cache go to its blobs, two floors up or more."""
    root = repo.root.resolve()
    for name in repo.names if not repo.single else ():
        path = repo.root / name
        if path.is_symlink() and path.exists():
            goal = path.resolve()
            if not goal.is_relative_to(root) and not _in_cache(root, goal):
                yield Flaw(
                    f"a link that leaves the folder: {os.readlink(path)}", str(path), hint="copy the file in its place"
                )


def _in_cache(root: Path, goal: Path) -> bool:
    return any(up.name == "snapshots" and goal.parent == up.parent / "blobs" for up in root.parents)


def two_formats(repo: Repo) -> Iterator[Flaw]:
    for folder, files in repo.folders.items():
        pickles = [f for f in files if f.format in PICKLED]
        tensors = [f for f in files if f.format == "safetensors"]
        if pickles and tensors:
            size = sum(f.size for f in pickles)
            words = f"pickles beside safetensors: {', '.join(f.base for f in pickles[:3])}, {size:,} bytes"
            yield Flaw(
                words, str(repo.root / folder), hint="loaders prefer the safetensors; the pickles may be deleted"
            )


RULES: Final = (
    Check("file/unreadable", _E, "every file can be opened", unreadable),
    Check("file/lfs-pointer", _E, "no file is the text of a Git LFS, git-annex or Xet pointer", pointer),
    Check("file/web-page", _E, "no file is a web page or a server's error message", page),
    Check("file/empty", _E, "no file is empty", empty),
    Check("file/zeros", _E, "no file is all zeros", zeros),
    Check("file/wrong-format", _E, "a file is what its name says", wrong_format),
    Check(
        "file/modelfile", _E, "a Modelfile is one that Ollama reads, and the files that it names are there", modelfile
    ),
    Check("file/damaged", _E, "files of formats that aren't parsed look whole", damaged),
    Check("file/journal", _E, "no file is in the middle of an edit", journal),
    Check("file/leftover", _W, "no leftovers of unfinished downloads and writes", leftover),
    Check("file/unwritten-tail", _E, "no file ends in zeros that can't be weights", unwritten_tail),
    Check("file/zero-tail", _W, "no file ends in a long run of zeros", zero_tail),
    Check("file/hole", _W, "no part of a file was never written", hole),
    Check("index/broken", _E, "an index is JSON with a weight_map", index_broken),
    Check("index/traversal", _E, "an index names files of its own folder only", traversal),
    Check("index/none", _W, "numbered shards have an index", no_index),
    Check("index/gaps", _E, "a numbered set without an index is whole", gaps),
    Check("folder/too-many", _W, "a folder is small enough to be checked as a whole", too_many),
    Check("folder/case-clash", _W, "no two names differ in case only", case_clash),
    Check("folder/link-outside", _W, "links stay inside the folder", link_outside),
    Check("folder/two-formats", _I, "weights lie there in one format", two_formats),
)


# ---- what the containers and the sharded module find ----


def contained(repo: Repo) -> Iterator[Finding]:
    """All findings of the parsers."""
    for file in repo.files:
        yield from file.findings


def shards(repo: Repo) -> Iterator[Finding]:
    """An index against its shards, both ways."""
    for listed in repo.listed:
        if listed.map:
            names = [f.base for f in repo.folders[repo.folder(listed.file.name)]]
            yield from sharded.check(listed.map, repo.shards(listed), names)


def splits(repo: Repo) -> Iterator[Finding]:
    """GGUF splits among themselves."""
    from weighbridge.base.errors import FormatError
    from weighbridge.containers.gguf import container as gguf
    from weighbridge.reports.lenient import broken

    for files in repo.splits.values():
        try:
            merged = gguf.merge([f.index for f in files if f.index])
        except FormatError as error:
            yield broken("gguf/split", error, str(files[0].path))
            continue
        yield from (f for f in merged.findings if f.rule.startswith("gguf/split"))


def loadable(repo: Repo) -> Iterator[Finding]:
    """Why llama.cpp wouldn't load a GGUF as a model; of a set the whole of it, at its first file. Nothing of a file or
    set that isn't whole."""
    from weighbridge.containers.gguf.container import refused_at
    from weighbridge.models.llamacpp.rules import findings

    sets = [files for (_, _, count), files in repo.splits.items() if len(files) == count]
    parts = {f.name for files in repo.splits.values() for f in files}
    sets += [(f,) for f in repo.weights if f.format == "gguf" and f.name not in parts]
    for files in sets:
        if not any(refused_at(f.findings) is Stage.HEADER for f in files):
            shapes = {e.name: e.shape for f in files for e in f.parsed[1]}
            yield from findings(files[0].parsed[1].metadata, shapes, str(files[0].path))


#: Checks that bring rules of their own with them: name -> function.
PASSED_ON: Final[dict[str, Callable[[Repo], Iterator[Finding]]]] = {
    "container": contained,
    "shards": shards,
    "splits": splits,
    "loadable": loadable,
}
