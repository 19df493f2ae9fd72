"""Detects the kind of a file or member, as far as a scan needs it: `sniff`'s answer, with shortcuts for archives whose
members are mostly numbers. Detection is by content; a name never makes a pickle into something else.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.containers import BUILT_IN
from weighbridge.containers.archive.zip_records import LOCAL
from weighbridge.containers.formats import OCDBT_FILE
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.decompress import BROKEN, CODECS, WITH_MAGIC, codec_of
from weighbridge.io.source import FileSource, Source
from weighbridge.reports.scan.model import MemberPath

if TYPE_CHECKING:
    from weighbridge.containers.zarr.arrays import ZarrArray

#: The kind of a torch storage, unless its bytes start like another format.
STORAGE: Final = "storage"
_STORED: Final = re.compile(r"(.*/)?(data|constants|tensors|weights)/(weight_|param_|constant_|tensor_)?\d+\Z")
_DATA_FILE: Final = re.compile(r"(.*[/\\])d[/\\][0-9a-f]{32}")
# The name of a chunk of zarr, or of a folder of them.
_CHUNK: Final = re.compile(r"\d+(\.\d+)*", re.ASCII)
#: Contents of the small members of a torch archive: versions, the byte order.
_MARK: Final = re.compile(rb"\d{1,64}\n?|little|big")
_HEAD: Final = 262  # up to the magic of a tar
# First bytes of files that contain more than numbers. All have at least three, so storages rarely start with them.
_MAGICS: Final = (*(m.sign for f in BUILT_IN.values() for m in f.magics if m.offset == 0), b"\x7fELF")
_TRIED: Final = 4096
#: The first bytes of pickles of protocols 2 to 5.
PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def kind_of(source: Source, place: MemberPath) -> str:
    """The kind of a source: a key of `sniff.TITLES`, a codec of `io/decompress.py`, or STORAGE."""
    head = source.head(_HEAD)
    if place.members and is_storage(place.members[-1], head):
        return STORAGE  # one in 16,384 starts like a pickle: the probe distinguishes them
    if not head.startswith(_MAGICS) and is_chunk(place, head):
        return STORAGE
    if _MARK.fullmatch(head):
        return "text"
    # Other formats may start with a small number that looks like PROTO: the length of a safetensors header, the count
    # of an imatrix. No opcode has a code below 40.
    if head.startswith(PICKLES) and head[2:3] >= b"(" and head[8:].lstrip()[:1] != b"{":
        return "pickle"
    try:
        kind = sniff(source).format
    except FormatError:  # the file shrank
        return "unknown"
    codec = codec_of(head)
    if kind == "nemo":
        return codec or ("torch-zip" if head.startswith(LOCAL) else "tar")
    if kind != "unknown":
        return kind
    with suppress(UnicodeDecodeError):
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and source.size <= CONFIG_JSON:
            source.read(0, source.size).decode("utf-16")
            return "text"
    with suppress(*BROKEN):  # zlib's two bytes are a weak sign: some of it must unpack
        if codec is not None and CODECS[codec].decoder().decompress(source.head(_TRIED), 1):
            return codec
    return kind


def is_chunk(place: MemberPath, head: bytes) -> bool:
    """Whether a file, or the stream in it, holds only chunks of an array: it is a data file of an Orbax database, or a
    chunk of zarr. A chunk that is one compressed stream is that stream, so that its content is scanned; so is a shard,
    which has several, unless they are of zstd, which no loader of pickles unpacks."""
    if not place.members and (match := _DATA_FILE.fullmatch(place.path)):
        return (Path(match[1]) / OCDBT_FILE).is_file()
    array = array_around(Path(place.path))
    if array is None or place.members:
        return array is not None
    return codec_of(head) not in WITH_MAGIC or (array.inner is not None and array.codec == codec_of(head) == "zstd")


def array_around(path: Path) -> ZarrArray | None:
    """The zarr array of which a file is a chunk, by its name and the metadata above it."""
    if not _CHUNK.fullmatch(path.name):
        return None
    from weighbridge.containers.zarr.arrays import ARRAYS  # late: few files are named as chunks

    for folder in path.parents:
        for name in ARRAYS:
            if (metadata := folder / name.lstrip("/")).is_file():
                return _read(metadata, metadata.stat().st_mtime_ns)
        if not _CHUNK.fullmatch(folder.name) and folder.name != "c":
            break
    return None


@lru_cache(maxsize=64)
def _read(metadata: Path, time: int) -> ZarrArray | None:
    """The array that a file describes; None if it can't be read. Kept for the array's next chunk."""
    from weighbridge.containers.zarr.arrays import read_array

    with suppress(WeighbridgeError, OSError), FileSource(metadata) as source:
        return read_array(metadata.parent.name, source.read(0, min(source.size, CONFIG_JSON)), str(metadata))
    return None


def is_storage(name: str, head: bytes) -> bool:
    """Whether a member called `name` that starts with `head` holds the bytes of a storage."""
    if not _STORED.match(name) or head.startswith(_MAGICS):
        return False
    return codec_of(head) not in WITH_MAGIC and head[257:262] != b"ustar"
