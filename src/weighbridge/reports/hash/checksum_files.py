"""Checks files and tensors against digests from other tools.

    SHA256SUMS              `<hex>  <file>`, and BSD's `SHA256 (<file>) = <hex>`; the length identifies the algorithm
    llama-gguf-hash         `<algorithm>  <hex>  <file>[:<tensor>]`
    weighbridge             the output of `wb hash --json`
    Git LFS pointer         `oid sha256:<hex>` and the size of the file that it replaces
    Ollama                  the layers of a manifest, in the blobs of its store
    the Hub's .metadata     of a file in a local folder; its etag is a SHA-256, or git's id of a blob

Stores that name files by digest (the Hub's cache, Ollama's blobs) need no list: `digests_in_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import INDEX_JSON
from weighbridge.base.records import dataclass
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


class ChecksumEntry(NamedTuple):
    """An entry of a list: for a file, for a tensor in it, or (`weights`) for all its tensors."""

    file: str
    algo: str
    digest: str
    tensor: str | None = None
    weights: bool = False
    gguf: bool = False  # of the bytes only, as in llama-gguf-hash


@dataclass(frozen=True)
class Compared:
    """One result. `status`: `ok`, `mismatch`, or `missing` if the file or tensor doesn't exist."""

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


def _parse_weighbridge(text: str, path: Path) -> Iterator[ChecksumEntry]:
    body = _json(text, path)
    if not isinstance(body, dict) or body.get("schema") != "weighbridge/hash/1":
        return
    for file in body.get("files", ()):
        yield ChecksumEntry(file["path"], file["algo"], file["digest"])
    for model in body.get("models", ()):
        for tensor in model["tensors"]:
            yield ChecksumEntry(model["path"], model["algo"], tensor["digest"], tensor["name"])
        yield ChecksumEntry(model["path"], model["algo"], model["digest"], weights=True)


def _parse_ollama(text: str, path: Path) -> Iterator[ChecksumEntry]:
    body = _json(text, path)
    layers = [*body.get("layers", ()), body.get("config")] if isinstance(body, dict) and "layers" in body else []
    store = next((p / "blobs" for p in path.resolve().parents if (p / "blobs").is_dir()), path.parent)
    for layer in layers:
        digest = layer.get("digest") if isinstance(layer, dict) else None
        if isinstance(digest, str) and (match := _OLLAMA.match(digest)):
            yield ChecksumEntry(str(store / f"sha256-{match[1]}"), "sha256", match[1])


def _parse_pointer(text: str, path: Path) -> Iterator[ChecksumEntry]:
    if text.startswith("version https://git-lfs.github.com/spec/"):
        for line in text.splitlines():
            if match := _OID.match(line):
                yield ChecksumEntry(".", "sha256", match[1])


def _parse_hub_metadata(text: str, path: Path) -> Iterator[ChecksumEntry]:
    """Parses .cache/huggingface/download/NAME.metadata in a local folder: commit, etag, time."""
    lines = text.splitlines()
    if path.suffix == ".metadata" and len(lines) == 3 and (algo := _etag_algorithm(lines[1])):
        folder = next((p.parent for p in path.resolve().parents if p.name == ".cache"), path.parent)
        inside = path.resolve().relative_to(folder).parts[3:] if folder != path.parent else (path.name,)
        yield ChecksumEntry(str(folder.joinpath(*inside)).removesuffix(".metadata"), algo, lines[1])


def _parse_lines(
    pattern: re.Pattern[str], parse: Callable[[re.Match[str]], ChecksumEntry], text: str, path: Path
) -> Iterator[ChecksumEntry]:
    """Parses a list if all of its lines, except empty ones and comments, match the pattern."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    matches = [pattern.match(line.rstrip()) for line in lines]
    if lines and all(matches):
        yield from (parse(match) for match in matches if match)


def _parse_sum(match: re.Match[str]) -> ChecksumEntry:
    digest, name = match[2].lower(), match[3]
    if match[1]:  # sha256sum escapes backslashes and line breaks in a name, and then starts the line with a backslash
        name = re.sub(r"\\([\\nr])", lambda m: {"\\": "\\", "n": "\n", "r": "\r"}[m[1]], name)
    algo = _BY_LENGTH.get(len(digest))
    if algo is None:
        raise FormatError("a digest of unknown length", found=digest)
    return ChecksumEntry(name, algo, digest)


def _parse_bsd(match: re.Match[str]) -> ChecksumEntry:
    algo = match[1].lower().replace("-", "")
    if algo not in ALGORITHMS:
        raise FormatError("unknown digest algorithm", found=match[1])
    return ChecksumEntry(match[2], algo, match[3].lower())


def _parse_gguf_hash(match: re.Match[str]) -> ChecksumEntry:
    file, colon, tensor = match[3].rpartition(":")
    # A Windows drive has a colon too, followed by a path instead of a tensor's name.
    whole = not colon or "/" in tensor or "\\" in tensor
    name = match[3] if whole else file
    return ChecksumEntry(name, match[1], match[2], None if whole else tensor, weights=whole, gguf=True)


FORMS: Final[tuple[tuple[str, Callable[[str, Path], Iterator[ChecksumEntry]]], ...]] = (
    ("weighbridge", _parse_weighbridge),
    ("ollama", _parse_ollama),
    ("git-lfs pointer", _parse_pointer),
    ("hub metadata", _parse_hub_metadata),
    ("llama-gguf-hash", partial(_parse_lines, _GGUF, _parse_gguf_hash)),
    ("checksums", partial(_parse_lines, _SUM, _parse_sum)),
    ("checksums (BSD)", partial(_parse_lines, _BSD, _parse_bsd)),
)


def read_manifest(path: Path) -> tuple[str, list[ChecksumEntry]]:
    """Returns the format of a list and its entries. Raises FormatError if the format is unknown."""
    with open_source(path) as source:
        if source.size > INDEX_JSON:
            raise FormatError("the file is too large", path=source.name, expected=f"at most {INDEX_JSON} bytes")
        raw = source.read(0, source.size)
    try:
        text = raw.decode("utf-8", "surrogateescape")
        for form, parse in FORMS:
            if entries := list(parse(text, path)):
                return form, entries
    except (UnicodeError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"not a list of digests: {error!r}", path=str(path)) from None
    raise FormatError(
        "not a list of digests in a known format", path=str(path), expected=", ".join(f for f, _ in FORMS)
    )


# ------------------------------------------------------------------------------------------------ comparing


def _etag_algorithm(text: str) -> str | None:
    return "sha256" if _HEX64.match(text) else GIT if _HEX40.match(text) else None


def digest_in_name(file: Path) -> tuple[str, str] | None:
    """Returns the algorithm and the digest in the name of a file, after resolving links."""
    name = file.resolve().name
    if match := _OLLAMA.match(name):
        return "sha256", match[1]
    return (algo, name) if (algo := _etag_algorithm(name)) else None


def digests_in_names(paths: Sequence[Path]) -> list[ChecksumEntry]:
    """Returns the digests in a store's file names. Raises UsageError if there are none."""
    entries = []
    for file in (f for path in paths for f in files_of(path)):
        if digest := digest_in_name(file):
            entries.append(ChecksumEntry(str(file), *digest))
    if not entries:
        raise UsageError("no file name contains a digest", hint="name a list: --check SHA256SUMS")
    return entries


def check(manifest: Path, paths: Sequence[Path] = ()) -> CheckReport:
    """Compares files with a list. Names are relative to the list, or to the folder in `paths`, which can also be the
    file to compare."""
    form, entries = read_manifest(manifest)
    return _compare(str(manifest), form, entries, manifest.parent, paths)


def check_names(paths: Sequence[Path]) -> CheckReport:
    """Compares files with the digests in their names."""
    return _compare(", ".join(map(str, paths)), "names", digests_in_names(paths), Path(), ())


def _compare(manifest: str, form: str, entries: list[ChecksumEntry], base: Path, paths: Sequence[Path]) -> CheckReport:
    if len(paths) > 1:
        raise UsageError("a list applies to a single file or folder")
    results: list[Compared] = []
    models: dict[tuple[Path, str, bool], dict[str | None, str]] = {}
    for entry in entries:
        # Both are in use: names relative to the list, and to the current folder.
        file = base / entry.file if (base / entry.file).exists() else Path(entry.file)
        if paths:
            file = paths[0] / PurePosixPath(entry.file).name if paths[0].is_dir() else paths[0]
        digest = _digest(file, entry, models)
        status = "missing" if digest is None else "ok" if digest == entry.digest else "mismatch"
        name = entry.file if entry.tensor is None else f"{entry.file}:{entry.tensor}"
        results.append(Compared(name, entry.algo, status, entry.digest, digest))
    counts = {s: sum(r.status == s for r in results) for s in ("ok", "mismatch", "missing")}
    return CheckReport(manifest, form, counts["ok"], counts["mismatch"], counts["missing"], tuple(results))


def _digest(
    file: Path, entry: ChecksumEntry, models: dict[tuple[Path, str, bool], dict[str | None, str]]
) -> str | None:
    """Returns the digest of a file, a tensor or the weights; None if it doesn't exist. `models` caches the digests of
    each model by tensor, with None for the weights."""
    if not file.exists():
        return None
    if entry.tensor is None and not entry.weights:
        return hash_file(file, entry.algo).digest if file.is_file() else None
    key = (file, entry.algo, entry.gguf)
    if key not in models and entry.gguf:
        prefix = f"{file}:"
        lines = gguf_hash(file, [entry.algo])
        models[key] = {x.name.removeprefix(prefix) if x.name.startswith(prefix) else None: x.digest for x in lines}
    elif key not in models:
        model = hash_model(file, algo=entry.algo)
        models[key] = {None: model.digest, **{t.name: t.digest for t in model.tensors}}
    return models[key].get(entry.tensor)
