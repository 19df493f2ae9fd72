"""Reading: exact or an error that names the place, whatever kind of source."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.system import posix_only

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import BytesSource, FileSource, Source

DATA = bytes(range(256)) * 3


@pytest.fixture(params=["bytes", "file", "window", "window of a file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    path = tmp_path / "f"
    path.write_bytes(b"..." + DATA + b"...")
    kinds = {
        "bytes": lambda: BytesSource(DATA),
        "file": lambda: FileSource(_written(tmp_path / "g", DATA)),
        "window": lambda: BytesSource(b"..." + DATA + b"...").window(3, len(DATA)),
        "window of a file": lambda: FileSource(path).window(3, len(DATA)),
    }
    return kinds[request.param]()


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_every_range_reads_its_bytes(source: Source) -> None:
    for offset, length in ((0, 0), (0, 5), (100, 300), (len(DATA) - 1, 1), (len(DATA), 0)):
        assert source.read(offset, length) == DATA[offset : offset + length]
    assert source.head(10_000) == DATA


@pytest.mark.parametrize("place", [(-1, 1), (0, len(DATA) + 1), (len(DATA), 1), (0, -1), (0, 1 << 62), (1 << 62, 1)])
def test_a_range_outside_is_told_and_never_allocated(source: Source, place: tuple[int, int]) -> None:
    with traced_memory() as memory, pytest.raises(FormatError):
        source.read(*place)
    assert memory.peak < 100_000


def test_a_window_outside_is_told() -> None:
    with pytest.raises(FormatError):
        BytesSource(DATA).window(10, len(DATA))


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = _written(tmp_path / "f", DATA)
    source = FileSource(path)
    os.truncate(path, 100)
    with pytest.raises(FormatError, match="became shorter") as caught:
        source.read(50, 200)
    assert caught.value.offset == 100


@posix_only
def test_a_file_deleted_while_open_still_reads(tmp_path: Path) -> None:
    path = _written(tmp_path / "f", DATA)
    source = FileSource(path)
    path.unlink()
    assert source.read(0, 10) == DATA[:10]


def test_a_view_outlives_its_file(tmp_path: Path) -> None:
    source = FileSource(_written(tmp_path / "f", DATA))
    view = source.map()
    source.close()
    assert view.readonly
    assert bytes(view) == DATA
    with pytest.raises(UsageError):
        source.read(0, 1)


def test_a_private_view_changes_no_file(tmp_path: Path) -> None:
    source = FileSource(_written(tmp_path / "f", DATA))
    source.map(private=True)[0] = 99
    assert (tmp_path / "f").read_bytes() == DATA
    assert source.map()[0] == DATA[0]


@posix_only
def test_what_is_no_regular_file_is_refused_without_hanging(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        FileSource(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnsupportedError):
        FileSource(tmp_path / "fifo")


def test_an_empty_file_is_a_source(tmp_path: Path) -> None:
    source = FileSource(_written(tmp_path / "f", b""))
    assert source.size == 0
    assert source.head(5) == b""
    assert bytes(source.map()) == b""


def _step(cursor: Cursor, code: str, skip: int) -> int:
    cursor.skip(skip, "gap")
    return cursor.number(code, "number")


STEPS = st.lists(st.tuples(st.sampled_from("BHIQ"), st.integers(0, 40)), max_size=20)


@given(STEPS, st.integers(1, 64), st.booleans())
def test_a_cursor_reads_what_struct_reads_whatever_its_chunks(
    steps: list[tuple[str, int]], chunk: int, big: bool
) -> None:
    order = ">" if big else "<"
    cursor, at = Cursor(BytesSource(DATA), 0, order, chunk), 0  # type: ignore[arg-type]
    for code, skip in steps:
        size = struct.calcsize(code)
        if at + skip + size > len(DATA):
            with pytest.raises(FormatError):
                _step(cursor, code, skip)
            return
        assert _step(cursor, code, skip) == struct.unpack_from(order + code, DATA, at + skip)[0]
        at += skip + size
        assert (cursor.offset, cursor.left) == (at, len(DATA) - at)


def test_a_cursor_names_the_field_that_is_cut() -> None:
    cursor = Cursor(BytesSource(b"abc"))
    with pytest.raises(FormatError, match="tensor count") as caught:
        cursor.number("Q", "tensor count")
    assert caught.value.offset == 0
