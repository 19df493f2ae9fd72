"""A format in a zip: `crate.json` lists the tensors, `data/NAME` has the bytes of each, stored and aligned to 64."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive.zip_records import STORED
from weighbridge.containers.archive.zip_write import NewMember, archive_layout
from weighbridge.containers.base import Entry, Index, Layout, Region
from weighbridge.containers.format import Format, Rank, Recogniser
from weighbridge.containers.sniff.archive import member_names
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source

FORMAT = Format(
    "crate", "Toy crate", (".crate",), (".zip",), module=__name__, target="crate",
    recognisers=(Recogniser(f"{__name__}:recognise", Rank.MEMBERS),),
    dtypes=frozenset({"F64", "F32", "F16", "I64", "U8"}),
)  # fmt: skip
LIST, DATA = "crate.json", "data/"
LONGEST = 1 << 24  # bytes of the list


def recognise(probe: Probe) -> Hit | None:
    if LIST not in member_names(probe):
        return None
    return Hit("crate", evidence=(f"zip with {LIST}",))


def parse(source: Source) -> Index:
    members = {member.name: member for member in zips.read(source).members}
    if LIST not in members or members[LIST].size > LONGEST:
        raise FormatError(f"no {LIST} of at most {LONGEST} bytes", path=source.name)
    with zips.open_member(source, members[LIST]) as inner:
        raw = inner.read(0, inner.size)
    try:
        header = json.loads(raw)
        rows = [(str(name), dtype(str(kind)), tuple(shape)) for name, (kind, shape) in header["tensors"].items()]
        metadata = {str(key): str(value) for key, value in header["metadata"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise FormatError(f"bad {LIST}: {error}", path=source.name, offset=members[LIST].start) from None
    entries = []
    for name, kind, shape in rows:
        member = members.get(DATA + name)
        if member is None or member.method != STORED:
            raise FormatError(f"no stored member {DATA}{name}", path=source.name, field=name)
        if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            raise FormatError("an impossible shape", path=source.name, field=name, found=shape)
        spec = Spec(shape, kind)
        if spec.nbytes != member.size:
            raise FormatError("another size", path=source.name, field=name, expected=spec.nbytes, found=member.size)
        entries.append(Entry(name, kind, shape, member.start, member.size))
    return Index("crate", (source,), tuple(entries), metadata, (0,), alignment=64)


def regions(source: Source) -> list[Region]:
    def inside(_: Source, member: zips.ZipMember) -> list[Region]:
        kind = "tensor" if member.name.startswith(DATA) else "json"
        return [Region(member.start, member.start + member.packed, kind, member.name.removeprefix(DATA))]

    return zips.regions(source, inside)


def layout(tensors: Sequence[tuple[str, Spec]], metadata: Mapping[str, Any]) -> Layout:
    header = {
        "tensors": {name: [spec.dtype.name, spec.shape] for name, spec in tensors},
        "metadata": {key: str(value) for key, value in metadata.items()},
    }
    first = NewMember(LIST, json.dumps(header).encode())
    return archive_layout("crate", [first, *(NewMember(DATA + name, b"", (name, spec)) for name, spec in tensors)], 64)
