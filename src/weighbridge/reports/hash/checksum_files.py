"""Checks files and tensors against lists of digests from other tools.

    SHA256SUMS              `<hex>  <file>`, and BSD's `SHA256 (<file>) = <hex>`; other algorithms by their length
    llama-gguf-hash         `<algorithm>  <hex>  <file>[:<tensor>]`
    weighbridge             what `wb hash --json` printed
    Git LFS pointer         `oid sha256:<hex>` and a size, of the file that it stands for
    Ollama                  a manifest's layers, in the blobs of its store
    the Hub's .metadata     of a file in a local folder: its etag is a SHA-256, or git's id of a blob

A store that calls a file by its digest (the Hub's cache, Ollama's blobs) needs no list: `named`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import INDEX_JSON
from weighbridge.io.digest import GIT
from weighbridge.io.location import open_source
from weighbridge.models.jsonfile import decode
from weighbridge.reports.hash.digests import ALGORITHMS, files_of, gguf_hash, hash_file, hash_model

_BY_LENGTH: Final = MappingProxyType({32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"})
_SUM: Final = re.compile(r"(\\?)([0-9a-fA-F]{32,128}) [ *](.+)\Z")
_BSD: Final = re.compile(r"([A-Za-z0-9-]+) \((.+)\) = ([0-9a-fA-F]{16,128})\Z")
_GGUF: Final = re.compile(r"(xxh64|sha1|sha256|uuid) +([0-9a-f-]{16,64}) +(.+)\Z")
_OID: Final = re.compile(r"oid sha256:([0-9a-f]{64})\Z")
_HEX64: Final = re.compile(r"[0-9a-f]{64}\Z")
_HEX40: Final = re.compile(r"[0-9a-f]{40}\Z")
_OLLAMA: Final = re.compile(r"sha256[-:]([0-9a-f]{64})\Z")


class Wanted(NamedTuple):
    """An entry of a list: for a file, for a tensor in it, or (`weights`) for all its tensors."""

    file: str
    algo: str
    digest: str
    tensor: str | None = None
    weights: bool = False
    gguf: bool = False  # of bytes alone, as llama-gguf-hash computes them


@dataclass(frozen=True)
class Compared:
    """One result: `ok`, `mismatch`, or `missing` if there is no such file or tensor."""

    name: str
    algo: str
    status: str
    expected: str
    found: str | None = None


@dataclass(frozen=True)
class CheckReport:
    manifest: str
    form: str
    ok: int
    mismatched: int
    missing: int
    results: tuple[Compared, ...]
    schema: str = "weighbridge/hash-check/1"


# ------------------------------------------------------------------------------------------------ the forms


def _json(text: str, path: Path) -> Any:
    return decode(text.encode(), str(path)) if text.lstrip()[:1] == "{" else None


def _of_weighbridge(text: str, path: Path) -> Iterator[Wanted]:
    body = _json(text, path)
    if not isinstance(body, dict) or body.get("schema") != "weighbridge/hash/1":
        return
    for file in body.get("files", ()):
        yield Wanted(file["path"], file["algo"], file["digest"])
    for model in body.get("models", ()):
        for tensor in model["tensors"]:
            yield Wanted(model["path"], model["algo"], tensor["digest"], tensor["name"])
        yield Wanted(model["path"], model["algo"], model["digest"], weights=True)


def _of_ollama(text: str, path: Path) -> Iterator[Wanted]:
    body = _json(text, path)
    layers = [*body.get("layers", ()), body.get("config")] if isinstance(body, dict) and "layers" in body else []
    store = next((p / "blobs" for p in path.resolve().parents if (p / "blobs").is_dir()), path.parent)
    for layer in layers:
        digest = layer.get("digest") if isinstance(layer, dict) else None
        if isinstance(digest, str) and (match := _OLLAMA.match(digest)):
            yield Wanted(str(store / f"sha256-{match[1]}"), "sha256", match[1])


def _of_pointer(text: str, path: Path) -> Iterator[Wanted]:
    if text.startswith("version https://git-lfs.github.com/spec/"):
        for line in text.splitlines():
            if match := _OID.match(line):
                yield Wanted(".", "sha256", match[1])


def _of_hub(text: str, path: Path) -> Iterator[Wanted]:
    """.cache/huggingface/download/NAME.metadata in a local folder: commit, etag, time."""
    lines = text.splitlines()
    if path.suffix == ".metadata" and len(lines) == 3 and (algo := _etag(lines[1])):
        folder = next((p.parent for p in path.resolve().parents if p.name == ".cache"), path.parent)
        inside = path.resolve().relative_to(folder).parts[3:] if folder != path.parent else (path.name,)
        yield Wanted(str(folder.joinpath(*inside)).removesuffix(".metadata"), algo, lines[1])


def _of_lines(pattern: re.Pattern[str], make: Callable[[re.Match[str]], Wanted]) -> Callable[..., Iterator[Wanted]]:
    def read(text: str, path: Path) -> Iterator[Wanted]:
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        found = [pattern.match(line.rstrip()) for line in lines]
        if lines and all(found):
            yield from (make(match) for match in found if match)

    return read


def _sum(match: re.Match[str]) -> Wanted:
    digest, name = match[2].lower(), match[3]
    if match[1]:  # sha256sum escapes a name with a backslash or a line break, and begins the line with one
        name = re.sub(r"\\([\\nr])", lambda m: {"\\": "\\", "n": "\n", "r": "\r"}[m[1]], name)
    algo = _BY_LENGTH.get(len(digest))
    if algo is None:
        raise FormatError("a digest of no known length", found=digest)
    return Wanted(name, algo, digest)


def _bsd(match: re.Match[str]) -> Wanted:
    algo = match[1].lower().replace("-", "")
    if algo not in ALGORITHMS:
        raise FormatError("a digest of no known kind", found=match[1])
    return Wanted(match[2], algo, match[3].lower())


def _gguf(match: re.Match[str]) -> Wanted:
    file, colon, tensor = match[3].rpartition(":")
    # A Windows drive has a colon, too, and what follows isn't a tensor's name.
    whole = not colon or "/" in tensor or "\\" in tensor
    return Wanted(match[3] if whole else file, match[1], match[2], None if whole else tensor, weights=whole, gguf=True)


FORMS: Final[tuple[tuple[str, Callable[[str, Path], Iterator[Wanted]]], ...]] = (
    ("weighbridge", _of_weighbridge),
    ("ollama", _of_ollama),
    ("git-lfs pointer", _of_pointer),
    ("hub metadata", _of_hub),
    ("llama-gguf-hash", _of_lines(_GGUF, _gguf)),
    ("checksums", _of_lines(_SUM, _sum)),
    ("checksums (BSD)", _of_lines(_BSD, _bsd)),
)


def read_manifest(path: Path) -> tuple[str, list[Wanted]]:
    """The format of a list and its entries. FormatError if it is unknown."""
    with open_source(path) as source:
        if source.size > INDEX_JSON:
            raise FormatError("the file is too large", path=source.name, expected=f"at most {INDEX_JSON} bytes")
        raw = source.read(0, source.size)
    try:
        text = raw.decode("utf-8", "surrogateescape")
        for form, read in FORMS:
            if found := list(read(text, path)):
                return form, found
    except (UnicodeError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"no list of digests: {error!r}", path=str(path)) from None
    raise FormatError("no list of digests of a known form", path=str(path), expected=", ".join(f for f, _ in FORMS))


# ------------------------------------------------------------------------------------------------ comparing


def _etag(text: str) -> str | None:
    return "sha256" if _HEX64.match(text) else GIT if _HEX40.match(text) else None


def digest_in_name(file: Path) -> tuple[str, str] | None:
    """Algorithm and digest that a file is named by, at its real path."""
    real = file.resolve().name
    if match := _OLLAMA.match(real):
        return "sha256", match[1]
    return (algo, real) if (algo := _etag(real)) else None


def named(paths: Sequence[Path]) -> list[Wanted]:
    """The digests in a store's own file names. UsageError if there are none."""
    found = []
    for file in (f for path in paths for f in files_of(path)):
        if digest := digest_in_name(file):
            found.append(Wanted(str(file), *digest))
    if not found:
        raise UsageError("no name here is a digest", hint="name a list: --check SHA256SUMS")
    return found


def check(manifest: Path, paths: Sequence[Path] = ()) -> CheckReport:
    """Compares with a list. Its names are resolved next to it, or in the folder (as the file) that `paths` names."""
    form, wanted = read_manifest(manifest)
    return _report(str(manifest), form, wanted, manifest.parent, paths)


def check_names(paths: Sequence[Path]) -> CheckReport:
    """Compares with the digests in a store's file names."""
    return _report(", ".join(map(str, paths)), "names", named(paths), Path(), ())


def _report(manifest: str, form: str, wanted: list[Wanted], base: Path, paths: Sequence[Path]) -> CheckReport:
    if len(paths) > 1:
        raise UsageError("one list is checked against one file or folder")
    results: list[Compared] = []
    found = _Found()
    for one in wanted:
        file = _place(one.file, base, paths)
        digest = found.digest(file, one)
        status = "missing" if digest is None else "ok" if digest == one.digest else "mismatch"
        name = one.file if one.tensor is None else f"{one.file}:{one.tensor}"
        results.append(Compared(name, one.algo, status, one.digest, digest))
    counts = {s: sum(r.status == s for r in results) for s in ("ok", "mismatch", "missing")}
    return CheckReport(manifest, form, counts["ok"], counts["mismatch"], counts["missing"], tuple(results))


def _place(name: str, base: Path, paths: Sequence[Path]) -> Path:
    """The path of a name in a list: next to the list, or from the current folder, since authors of lists mean
    either."""
    if not paths:
        return base / name if (base / name).exists() else Path(name)
    return paths[0] / PurePosixPath(name).name if paths[0].is_dir() else paths[0]


class _Found:
    """Digests on demand; a model is read once for all its tensors."""

    def __init__(self) -> None:
        self.models: dict[tuple[Path, str, bool], dict[str | None, str]] = {}

    def digest(self, file: Path, wanted: Wanted) -> str | None:
        if not file.exists():
            return None
        if wanted.tensor is None and not wanted.weights:
            return hash_file(file, wanted.algo).digest if file.is_file() else None
        key = (file, wanted.algo, wanted.gguf)
        if key not in self.models:
            self.models[key] = _of_gguf(file, wanted.algo) if wanted.gguf else _of_model(file, wanted.algo)
        return self.models[key].get(wanted.tensor)


def _of_model(file: Path, algo: str) -> dict[str | None, str]:
    model = hash_model(file, algo=algo)
    return {None: model.digest, **{t.name: t.digest for t in model.tensors}}


def _of_gguf(file: Path, algo: str) -> dict[str | None, str]:
    lines = gguf_hash(file, [algo])
    front = f"{file}:"
    return {line.name.removeprefix(front) if line.name.startswith(front) else None: line.digest for line in lines}
