"""What a file or member is, as far as a scan must know: `sniff`'s answer, taken by a shorter way where most members are
numbers. By content; a name never makes a pickle into something else.
"""

from __future__ import annotations

import re
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.containers import BUILT_IN
from weighbridge.containers.archive.zip_records import LOCAL
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.decompress import BROKEN, CODECS, WITH_MAGIC, codec_of
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import MemberPath

#: The bytes of a torch storage, where nothing in them says that they are more.
STORAGE: Final = "storage"
_STORED: Final = re.compile(r"(.*/)?(data|constants|tensors|weights)/(weight_|param_|constant_)?\d+\Z")
#: What the small members of a torch archive hold: versions, the order of bytes.
_MARK: Final = re.compile(rb"\d{1,64}\n?|little|big")
_HEAD: Final = 262  # up to the magic of a tar
# First bytes of files that contain more than numbers. All have at least three, so storages rarely start with them.
_MAGICS: Final = (*(m.sign for f in BUILT_IN.values() for m in f.magics if m.offset == 0), b"\x7fELF")
_TRIED: Final = 4096
#: How pickles of protocols 2 to 5 begin.
PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def kind_of(source: Source, place: MemberPath) -> str:
    """A word of `sniff.TITLES`, a codec of `io/decompress.py`, or STORAGE."""
    head = source.head(_HEAD)
    if place.members and is_storage(place.members[-1], head):
        return STORAGE  # one in 16,384 begins as a pickle does: the probe tells them apart
    if _MARK.fullmatch(head):
        return "text"
    if head.startswith(PICKLES):  # what sniff would find out more slowly; torch's format of before 1.6 is one
        return "pickle"
    try:
        kind = sniff(source).format
    except FormatError:  # it shrank
        return "unknown"
    if kind == "nemo":
        return codec_of(head) or ("torch-zip" if head.startswith(LOCAL) else "tar")
    return _streamed(source, head) or kind if kind == "unknown" else kind


def is_storage(name: str, head: bytes) -> bool:
    """Whether a member of this name, which begins with `head`, is the bytes of a storage."""
    if not _STORED.match(name) or head.startswith(_MAGICS):
        return False
    return codec_of(head) not in WITH_MAGIC and head[257:262] != b"ustar"


def _streamed(source: Source, head: bytes) -> str | None:
    """The codec of a stream with a weak sign (zlib's two bytes): it must unpack, a little at least."""
    codec = codec_of(head)
    if codec is None:
        return None
    try:
        start = CODECS[codec].decoder().decompress(source.head(_TRIED), 1)
    except BROKEN:
        return None
    return codec if start else None
