"""Tar archives: the members that Python's tarfile finds, in all of its formats; what is broken is refused."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.archive import tar as tars
from weighbridge.io.source import BytesSource

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
KINDS = {
    tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.CONTTYPE: "file", tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link", tarfile.DIRTYPE: "folder", tarfile.FIFOTYPE: "pipe",
    tarfile.CHRTYPE: "character device", tarfile.BLKTYPE: "block device",
}  # fmt: skip


def made(members: list[tuple[str, bytes, bytes, str]], form: int) -> bytes:
    """An archive of (name, type, data, link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, kind, data, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def theirs(data: bytes) -> list[tuple[str, str, int, int, str]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [
            (
                m.name,
                KINDS[m.type],
                m.offset_data,
                m.size if m.isreg() else 0,
                m.linkname if m.issym() or m.islnk() else "",
            )
            for m in archive
        ]


def ours(data: bytes) -> list[tuple[str, str, int, int, str]]:
    return [(m.name.rstrip("/"), m.kind, m.start, m.size, m.link) for m in tars.members(BytesSource(data))]


MEMBERS = [
    ("a", tarfile.REGTYPE, b"12345", ""), ("b/" + "c" * 90 + "/" + "d" * 90, tarfile.REGTYPE, b"x" * 512, ""),
    ("e", tarfile.SYMTYPE, b"", "../f"), ("g", tarfile.LNKTYPE, b"", "a"), ("h", tarfile.DIRTYPE, b"", ""),
    ("i", tarfile.FIFOTYPE, b"", ""), ("j", tarfile.CHRTYPE, b"", ""), ("k\u00e9", tarfile.REGTYPE, b"", ""),
    ("l", tarfile.CONTTYPE, b"22", ""),
]  # fmt: skip


@FORMAT
def test_the_members_are_those_of_tarfile(form: int) -> None:
    data = made(MEMBERS, form)
    assert ours(data) == theirs(data)
    assert len(ours(data)) == len(MEMBERS)
    assert tars.begins(BytesSource(data))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_links(form: int) -> None:
    data = made([("n" * 300, tarfile.SYMTYPE, b"", "l" * 300), ("z", tarfile.REGTYPE, b"1", "")], form)
    assert ours(data) == theirs(data)


NAMES = st.text(alphabet="ab/.é\u4e2d", min_size=1, max_size=150).filter(lambda n: n.strip("/."))


@given(
    st.lists(
        st.tuples(NAMES, st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE]), st.binary(max_size=600)), max_size=4
    ),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@examples(150)
def test_any_members_are_those_of_tarfile(drawn: list[tuple[str, bytes, bytes]], form: int) -> None:
    members = [(n, k, d if k == tarfile.REGTYPE else b"", "t" if k == tarfile.SYMTYPE else "") for n, k, d in drawn]
    data = made(members, form)
    assert [(n.rstrip("/"), *rest) for n, *rest in ours(data)] == [(n.rstrip("/"), *rest) for n, *rest in theirs(data)]


GOOD = made([("a", tarfile.REGTYPE, b"12345", "")], tarfile.USTAR_FORMAT)


def changed(at: int, new: bytes) -> bytes:
    """The archive with other bytes in its header, and the sum made right."""
    data = bytearray(GOOD)
    data[at : at + len(new)] = new
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


PAX = made([("a" * 200, tarfile.REGTYPE, b"1", "")], tarfile.PAX_FORMAT)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x" * 512, "checksum"),
        (GOOD[:1024] + b"x" * 512, "checksum"),
        (GOOD[:300], "ends inside a header"),
        (changed(124, b"99999999999\0"), "isn't an octal number"),
        (changed(124, b"77777777777\0"), "extends beyond the file"),
        (changed(124, b"\x80" + b"\xff" * 11), "extends beyond the file"),
        (PAX[:512] + b"\0" * 512 + PAX[1024:], "extended header is damaged"),
        (PAX[:512] + b"999 path=x\n".ljust(512, b"\0") + PAX[1024:], "extended header is damaged"),
        (PAX[:512] + b"11 size=-1\n".ljust(512, b"\0") + PAX[1024:], "isn't a number"),
    ],
    ids=range(9),
)
def test_what_is_broken_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        list(tars.members(BytesSource(data)))


def test_an_absurd_extended_header_is_not_read() -> None:
    block = bytearray(changed(124, b"00077777777\0"))
    block[156:157] = b"x"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    with pytest.raises(UnsupportedError):
        list(tars.members(BytesSource(bytes(block) + bytes(1 << 24))))


def test_a_sparse_file_is_called_one() -> None:
    assert [m.kind for m in tars.members(BytesSource(changed(156, b"S")))] == ["sparse file"]


@given(st.integers(0, 511), st.integers(0, 255))
@examples(300)
def test_any_byte_changed_is_refused_or_read(at: int, value: int) -> None:
    data = bytearray(GOOD)
    data[at] = value
    try:
        found = list(tars.members(BytesSource(bytes(data))))
    except (FormatError, UnsupportedError):
        return
    assert all(m.start + m.size <= len(data) for m in found)
