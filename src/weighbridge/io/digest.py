"""Digests of whole files, as those who list files give them: SHA-256, or git's id of a blob; and the manifests of
registries and of layouts on disk, which list the blobs of a model by digest. OCI, Docker and Ollama write the
same JSON.

Reference: opencontainers/image-spec 1.1, descriptor.md, manifest.md and image-index.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

GIT: Final = "git"
_CHUNK: Final = 4 * MIB
#: The hex digits of each supported digest.
ALGORITHMS: Final = {"sha256": 64, "sha512": 128}
_DIGEST: Final = re.compile(r"([a-z0-9]+(?:[+._-][a-z0-9]+)*?)[:-]([a-zA-Z0-9=_-]+)")


def git_hasher(size: int) -> Any:
    """SHA-1 over git's header of a blob, then its bytes."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def update(made: Any, source: Source, read: Callable[[int], object] | None = None) -> None:
    """Feed a hasher the whole source, read once. `read` is called with the bytes that have been."""
    buffer = memoryview(bytearray(min(_CHUNK, max(source.size, 1))))
    for at in range(0, source.size, _CHUNK):
        part = buffer[: min(_CHUNK, source.size - at)]
        source.readinto(at, part)
        made.update(part)
        if read is not None:
            read(at + len(part))


def digest_of(source: Source, algo: str, read: Callable[[int], object] | None = None) -> str:
    """The digest of a source's bytes by "sha256", "sha512" or "git", in hex."""
    made = git_hasher(source.size) if algo == GIT else hashlib.new(algo)
    update(made, source, read)
    return str(made.hexdigest())


# ---- manifests ----


class Descriptor(NamedTuple):
    """A blob: its media type, the algorithm and the hex digits of its digest, its bytes. `platform`: of an image, such
    as linux-arm64."""

    media: str
    algo: str
    hex: str
    size: int
    annotations: Mapping[str, str]
    platform: str = ""

    @property
    def digest(self) -> str:
        return f"{self.algo}:{self.hex}"

    @property
    def short(self) -> str:
        """A name for reports and paths."""
        return f"{self.algo}-{self.hex[:12]}"


class BlobManifest(NamedTuple):
    """The blobs of a model. `kind`: the artifact's type, else the config's. `is_attached`: whether it belongs to
    another manifest, as signatures do."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    kind: str
    is_attached: bool


def parse_manifest(raw: bytes, where: str) -> BlobManifest:
    """Parses a manifest. Raises FormatError if it is invalid, UnsupportedError for digests of other algorithms."""
    data = decode(raw, where)
    rows = data.get("layers")
    config = parse_descriptor(data.get("config"), where)
    if not isinstance(rows, list):
        raise FormatError("no manifest of a model", path=where, field="layers", found=repr(rows)[:80])
    layers = tuple(parse_descriptor(row, where) for row in rows)
    return BlobManifest(config, layers, str(data.get("artifactType") or config.media), data.get("subject") is not None)


def parse_index(raw: bytes, where: str) -> Sequence[Descriptor]:
    """Parses an index: the descriptors of manifests and of other indexes. Raises the errors of `parse_manifest`."""
    rows = decode(raw, where).get("manifests")
    if not isinstance(rows, list):
        raise FormatError("no index of manifests", path=where, field="manifests", found=repr(rows)[:80])
    return [parse_descriptor(row, where) for row in rows]


def parse_descriptor(row: Any, where: str) -> Descriptor:
    """Parses a descriptor. Raises the errors of `parse_manifest`."""
    row = row if isinstance(row, dict) else {}
    size, text = row.get("size"), str(row.get("digest"))
    algo, hex = parse_digest(text, where)
    if type(size) is not int or size < 0:
        raise FormatError("a layer without digest and size", path=where, field=text, found=repr(size)[:80])
    annotations, platform = row.get("annotations"), row.get("platform")
    texts = {k: v for k, v in annotations.items() if isinstance(v, str)} if isinstance(annotations, dict) else {}
    parts = [platform.get(key) for key in ("os", "architecture", "variant")] if isinstance(platform, dict) else []
    return Descriptor(
        str(row.get("mediaType")), algo, hex, size, texts, "-".join(part for part in parts if isinstance(part, str))
    )


def parse_digest(text: str, where: str) -> tuple[str, str]:
    """Returns the algorithm and the lower-case hex digits of a digest. Raises the errors of `parse_manifest`."""
    match = _DIGEST.fullmatch(text)
    algo, hex = (match[1], match[2].lower()) if match else ("", "")
    if match and algo not in ALGORITHMS:
        raise UnsupportedError(f"{where}: a digest by {algo}", hint=f"supported: {', '.join(ALGORITHMS)}")
    if not re.fullmatch(f"[0-9a-f]{{{ALGORITHMS.get(algo, 0)}}}", hex) or not hex:
        raise FormatError("a layer without digest and size", path=where, found=repr(text)[:80])
    return algo, hex


def decode(raw: bytes, where: str) -> dict[str, Any]:
    """Decodes a JSON object. Raises FormatError if it isn't one."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError("no manifest of a model", path=where, found=repr(error)) from None
    if not isinstance(data, dict):
        raise FormatError("no manifest of a model", path=where, found=repr(data)[:80])
    return data
