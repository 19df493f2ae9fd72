"""NumPy's .npz: a zip of .npy members, one an array.

Stored members are read in place; deflated ones (`np.savez_compressed`) unpack as they are read, from the front. What is
written is stored, with each array's data at a multiple of 64 bytes, and the same input always gives the same bytes but
for the checksums, which are known when the data is: `Layout.fixups` makes the local headers and the directory of them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_records, zip_write
from weighbridge.containers.base import Entry, Finding, Index, Layout, Region, Rule, Severity, Slot
from weighbridge.containers.numpy import npy
from weighbridge.io.source import Source

NAME: Final = "npz"
RULES: Final = MappingProxyType(
    {
        "trailing-bytes": Rule(Severity.WARNING, "bytes after an array, inside its member"),
        "other-member": Rule(Severity.INFO, "member that isn't an array"),
        # Found by `check` alone, which reads every byte.
        "checksum": Rule(Severity.ERROR, "member whose bytes don't have its checksum, or don't unpack"),
    }
)
_AGAIN: Final = "download or copy it again"


def parse(source: Source) -> Index:
    """The arrays of a file in the order of their bytes. A deflated array has its own source in `Index.files`."""
    archive = zips.read(source)
    files: list[Source] = [source]
    starts = [0]
    entries: dict[str, Entry] = {}
    orders: set[str] = set()
    findings: list[Finding] = []
    for member in archive.members:
        if not member.name.endswith(npy.SUFFIX):
            words = f"member {member.name!r} is not an array"
            findings.append(_finding("other-member", words, source, member.at))
            continue
        inner = zips.open_member(source, member)
        header = npy.read_header(inner)
        inner.close()  # the decompressor of the header uses memory, and there may be many
        name = member.name.removesuffix(npy.SUFFIX)
        file, base = 0, member.start
        if inner.sequential:
            file, base = len(files), 0
            files.append(inner)
            starts.append(header.start)
        entries[name] = Entry(name, header.spec.dtype, header.spec.shape, base + header.start, header.spec.nbytes, file)
        if header.spec.dtype.word > 1:
            orders.add(header.order)
        if header.end < member.size:
            words = f"{member.size - header.end} bytes follow the array"
            findings.append(_finding("trailing-bytes", words, source, member.at, name))
    if len(orders) > 1:
        raise UnsupportedError(
            f"{source.name}: some arrays are big-endian and some little-endian",
            hint="save all with array.astype(array.dtype.newbyteorder('<'))",
        )
    return Index(
        NAME, tuple(files), tuple(entries.values()), data_start=tuple(starts), alignment=1,
        byte_order=">" if orders == {">"} else "<", findings=tuple(findings),
    )  # fmt: skip


def _finding(
    rule: str, words: str, source: Source, at: int, tensor: str | None = None, hint: str | None = None
) -> Finding:
    return Finding(f"npz/{rule}", RULES[rule].severity, words, source.name, at, tensor, hint)


def check(source: Source) -> tuple[Finding, ...]:
    """Problems beyond a file's structure: members whose bytes don't match their checksum. Reads them all."""
    found = []
    for member in zips.read(source).members:
        try:
            crc = zips.checksum(source, member)
        except FormatError as error:  # a deflated stream that is broken
            words = error.reason
        else:
            if crc == member.crc:
                continue
            words = f"CRC-32 is {crc:08x}, not {member.crc:08x}: the bytes are not those that were written"
        name = member.name.removesuffix(npy.SUFFIX)
        found.append(_finding("checksum", words, source, member.start, name, _AGAIN))
    return tuple(found)


def layout(
    tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any] | None = None, *, raw: bool = False
) -> Layout:
    """A file of stored arrays. `raw`: see `npy.layout`. The format has no metadata."""
    npy.check_names(name for name, _ in tensors)
    members: list[zip_write.NewMember] = []
    heads: list[bytes] = []
    slots: list[Slot] = []
    at = 0
    for name, spec in tensors:
        head = npy.header_bytes(name, spec, raw=raw)
        member = zip_write.place(_member_name(name), len(head) + spec.nbytes, at, npy.ALIGN)
        members.append(member)
        heads.append(head)
        slots.append(Slot(name, spec, member.start + len(head)))
        at = member.start + member.size

    def frame(crcs: Sequence[int]) -> list[tuple[int, bytes]]:
        local = [(m.at, zip_write.local_header(m, crc)) for m, crc in zip(members, crcs, strict=True)]
        directory = b"".join(zip_write.directory_entry(m, crc) for m, crc in zip(members, crcs, strict=True))
        return [*local, (at, directory + zip_write.end_records(len(members), at, len(directory)))]

    def fixups(digests: Mapping[str, int]) -> list[tuple[int, bytes]]:
        parts = zip(heads, slots, strict=True)
        return frame([zip_write.crc_joined(zlib.crc32(h), digests[s.name], s.spec.nbytes) for h, s in parts])

    pieces = frame([0] * len(members))
    pieces += [(m.start, head) for m, head in zip(members, heads, strict=True)]
    size = at + len(pieces[len(members)][1])
    return Layout(NAME, tuple(sorted(pieces)), tuple(slots), size, npy.no_metadata(metadata), fixups)


# A drive of Windows, where `C:x` is a path relative to that drive's own folder.
_DRIVE: Final = re.compile(r"[A-Za-z]:")


def _member_name(name: str) -> str:
    """The member's name, if tools that unpack archives can't be led astray by it: no path that begins at a root or a
    drive, or has steps of `.` and `..` (and `a/./b` would be `a/b`)."""
    member = name + npy.SUFFIX
    try:
        size = len(member.encode())
    except UnicodeEncodeError:
        raise UsageError(f"a tensor's name is not valid Unicode: {name!r}") from None
    steps = member.split("/")
    leads_away = not {"", ".", ".."}.isdisjoint(steps) or "\\" in name or _DRIVE.match(name)
    if not name or "\0" in name or leads_away or size > 0xFFFF:
        raise UsageError(f"no member of a zip should be called {member!r}", hint="rename the tensor")
    return member


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; what can't be read is named unknown."""
    return zips.regions(source, _member_regions)


def _member_regions(source: Source, m: zips.ZipMember) -> list[Region]:
    end = m.start + m.packed
    name = m.name.removesuffix(npy.SUFFIX)
    if m.method == zip_records.DEFLATED:
        return [Region(m.start, end, "tensor", name, f"deflated from {m.size} bytes")]
    try:
        header = npy.read_header(zips.open_member(source, m))
    except (FormatError, UnsupportedError, RefusedError):
        return [Region(m.start, end, "value" if not m.name.endswith(npy.SUFFIX) else "unknown", m.name)]
    out = npy.header_regions(header, m.start)
    if header.spec.nbytes:
        out.append(Region(m.start + header.start, m.start + header.end, "tensor", name, str(header.spec)))
    if m.start + header.end < end:
        out.append(Region(m.start + header.end, end, "unknown"))
    return out
