"""Anatomy: parts cover what was asked for, a byte is told to the element, the strip is the file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.reports import makers as m

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.base import Entry, Region
from weighbridge.reports.anatomy import anatomy, hexdump, place, strip

TENSORS = {"model.norm.weight": ("F32", (4,)), "w": ("F16", (3, 5))}
KEYS = {"general.architecture": ("str", "llama"), "llama.block_count": ("u32", 7)}


@pytest.fixture(params=["safetensors", "gguf"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"x.{request.param}"
    data = m.safetensors(TENSORS, {"format": "pt"}) if request.param == "safetensors" else m.gguf(KEYS, TENSORS)
    path.write_bytes(data)
    return path


def test_parts_cover_the_file_and_carry_its_bytes(file: Path) -> None:
    report = anatomy(file, head=1 << 20)
    data = file.read_bytes()
    assert b"".join(bytes.fromhex(p.head) for p in report.parts) == data
    assert sum(s.nbytes for s in report.shares) == report.nbytes == len(data)
    assert sum(s.regions for s in report.shares) == report.region_count == len(report.parts)
    assert "unknown" not in {p.kind for p in report.parts}
    assert all(p.length == p.end - p.start for p in report.parts)


def test_every_byte_has_one_part(file: Path) -> None:
    for at in range(0, file.stat().st_size, 7):
        (part,) = anatomy(file, at=at).parts
        assert part.start <= at < part.end


def test_a_byte_of_a_tensor_is_told_to_the_element(file: Path) -> None:
    (part,) = anatomy(f"{file}::w", kind=["tensor"]).parts
    found = anatomy(file, at=part.start + 2 * 13 + 1).place
    assert found is not None
    assert (found.tensor, found.element, found.index, found.byte) == ("w", 13, (2, 3), 1)
    assert "[2, 3]" in found.words


@pytest.mark.parametrize(
    ("dtype", "shape"), [("F32", (3, 4, 5)), ("Q4_K", (4, 512)), ("F4", (2, 6)), ("U8", (7,)), ("F32", ())]
)
def test_places_are_numpys(dtype: str, shape: tuple[int, ...]) -> None:
    row = BY_NAME[dtype]
    n = int(np.prod(shape, dtype=int)) // row.block
    entry = Entry("t", row, shape, 100, n * row.size)
    for byte in range(0, n * row.size, 3):
        found = place(entry, 100 + byte)
        element = byte // row.size * row.block
        assert (found.element, found.byte) == (element, byte % row.size)
        assert found.index == tuple(int(i) for i in np.unravel_index(element, shape)) if shape else found.index == ()


def test_selection(file: Path) -> None:
    size = file.stat().st_size
    assert {p.kind for p in anatomy(file, kind=["tensor"]).parts} == {"tensor"}
    assert all(p.start < 40 and p.end > 8 for p in anatomy(file, start=8, end=40).parts)
    assert len(anatomy(file, limit=2).parts) == 2
    assert anatomy(file, start=size, end=size).parts == ()
    assert all(len(p.head) <= 8 for p in anatomy(file, head=4).parts)


@pytest.mark.parametrize("wanted", [{"at": 10**9}, {"at": -1}, {"start": 10**9}, {"start": 5, "end": 2}])
def test_no_such_bytes(file: Path, wanted: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        anatomy(file, **wanted)  # type: ignore[arg-type]


def test_what_has_no_anatomy(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UsageError, match="folder"):
        anatomy(tmp_path)
    (tmp_path / "p.gguf").write_bytes(m.POINTER)
    with pytest.raises(UnsupportedError, match="LFS"):
        anatomy(tmp_path / "p.gguf")
    with pytest.raises(UsageError, match="no tensor"):
        anatomy(f"{file}::nothing")


def test_a_broken_file_is_named_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(m.safetensors({"a": ("F32", (4,))}) + b"junk")
    last = anatomy(file).parts[-1]
    assert (last.kind, last.length) == ("unknown", 4)
    file.write_bytes(m.safetensors({"a": ("F32", (4,))})[:-8])
    assert sum(p.length for p in anatomy(file).parts) == file.stat().st_size


@pytest.mark.parametrize("cells", [1, 7, 64, 1000])
def test_the_strip_shows_what_prevails(cells: int) -> None:
    regions = [Region(0, 10, "header"), Region(10, 12, "padding"), Region(12, 100, "tensor")]
    owner = ["header"] * 10 + ["padding"] * 2 + ["tensor"] * 88
    found = list(strip(regions, 100, cells))
    assert len(found) == min(cells, 100)
    for i, kind in enumerate(found):
        piece = owner[100 * i // len(found) : 100 * (i + 1) // len(found)]
        assert piece.count(kind) == max(map(piece.count, piece))
    assert list(strip([], 0, cells)) == []


def test_hexdump_lines() -> None:
    rows = list(hexdump((b"GGUF" + struct.pack("<I", 3) + bytes(range(10, 20))).hex(), 0x100))
    assert rows[0][0] == 0x100
    assert rows[0][1].startswith("47 47 55 46 03 00 00 00")
    assert rows[0][2].startswith("GGUF....")
    assert rows[1][0] == 0x110
