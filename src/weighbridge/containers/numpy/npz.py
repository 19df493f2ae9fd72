"""NumPy's .npz: a zip of .npy members, one per array.

Stored members are read in place; deflated ones (`np.savez_compressed`) are unpacked while they are read, from the
front. Written members are stored, with each array's data at a multiple of 64 bytes. The same input always gives the
same bytes. Checksums are known after the data: `Layout.fixups` returns the headers that have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_records, zip_write
from weighbridge.containers.base import Entry, Finding, Index, Layout, Region, Rule, Severity
from weighbridge.containers.numpy import npy
from weighbridge.io.source import Source

NAME: Final = "npz"
RULES: Final = MappingProxyType(
    {
        "trailing-bytes": Rule(Severity.WARNING, "bytes after an array, inside its member"),
        "other-member": Rule(Severity.INFO, "member that isn't an array"),
        # Only `check` finds it, which reads every byte.
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
            message = f"member {member.name!r} is not an array"
            findings.append(_finding("other-member", message, source, member.at))
            continue
        inner = zips.open_member(source, member)
        header = npy.read_header(inner)
        inner.close()  # its decompressor uses memory, and there may be many members
        name = member.name.removesuffix(npy.SUFFIX)
        file, base = 0, member.start
        if inner.sequential:
            file, base = len(files), 0
            files.append(inner)
            starts.append(header.start)
        entries[name] = header.entry(name, base, file)
        if header.spec.dtype.word > 1:
            orders.add(header.order)
        if header.end < member.size:
            message = f"{member.size - header.end} bytes follow the array"
            findings.append(_finding("trailing-bytes", message, source, member.at, name))
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
    rule: str, message: str, source: Source, at: int, tensor: str | None = None, hint: str | None = None
) -> Finding:
    return Finding(f"npz/{rule}", RULES[rule].severity, message, source.name, at, tensor, hint)


def check(source: Source) -> tuple[Finding, ...]:
    """Problems beyond a file's structure: members whose bytes don't match their checksum. Reads them all."""
    findings = []
    for member in zips.read(source).members:
        try:
            crc = zips.checksum(source, member)
        except FormatError as error:  # a deflated stream that is broken
            message = error.reason
        else:
            if crc == member.crc:
                continue
            message = f"CRC-32 is {crc:08x}, not {member.crc:08x}: the bytes changed after they were written"
        name = member.name.removesuffix(npy.SUFFIX)
        findings.append(_finding("checksum", message, source, member.start, name, _AGAIN))
    return tuple(findings)


def layout(
    tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any] | None = None, *, raw: bool = False
) -> Layout:
    """A file of stored arrays. `raw`: see `npy.layout`. The format has no metadata."""
    npy.check_names(name for name, _ in tensors)
    files = []
    for name, spec in tensors:
        if not name:
            raise UsageError(f"no member of a zip should be called {npy.SUFFIX!r}", hint="rename the tensor")
        files.append(zip_write.NewMember(name + npy.SUFFIX, npy.header_bytes(name, spec, raw=raw), (name, spec)))
    return zip_write.archive_layout(NAME, files, npy.ALIGN, npy.no_metadata(metadata))


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; unreadable bytes are "unknown"."""
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
