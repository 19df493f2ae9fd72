"""Zeros at the end of a file: where they begin, and how little is read to tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weighbridge as wb
from weighbridge.base.dtypes import BF16
from weighbridge.base.limits import MIB, ZERO_SCAN
from weighbridge.containers.base import Entry
from weighbridge.containers.zero_tail import ZeroTail, unwritten, zero_tail_of
from weighbridge.io.source import FileSource, Source


class Sparse(Source):
    """`size` bytes, ones up to `end` and zeros behind; `taken` counts what is read."""

    name = "sparse"

    def __init__(self, size: int, end: int) -> None:
        self.size, self.end, self.taken = size, end, 0

    def _readinto(self, offset: int, out: memoryview) -> int:
        ones = min(max(self.end - offset, 0), len(out))
        out[:] = b"\1" * ones + bytes(len(out) - ones)
        self.taken += len(out)
        return len(out)


@pytest.mark.parametrize("size", [0, 1, MIB + 3, ZERO_SCAN, ZERO_SCAN + 1, 7 << 30, 1 << 40])
@pytest.mark.parametrize("share", [0.0, 1e-7, 0.31, 0.999, 1.0])
def test_the_zeros_begin_where_they_do(size: int, share: float) -> None:
    end = int(size * share)
    source = Sparse(size, end)
    assert zero_tail_of(source) == ZeroTail(end, size - end >= ZERO_SCAN and size > ZERO_SCAN)
    assert source.taken <= ZERO_SCAN + 4 * MIB


@pytest.mark.parametrize("format", ["safetensors", "gguf"])
def test_seven_gigabytes_of_zeros_are_judged_by_samples(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / f"model.{format}", 7 << 30
    _sparse(path, format, size)
    taken = 0
    read = FileSource._readinto

    def counted(self: FileSource, offset: int, out: memoryview) -> int:
        nonlocal taken
        taken += len(out)
        return read(self, offset, out)

    monkeypatch.setattr(FileSource, "_readinto", counted)
    report = wb.verify(path)
    assert "file/zero-tail" in {f.rule for f in report.findings}
    assert taken < 2 * ZERO_SCAN


def _sparse(path: Path, format: str, size: int) -> None:
    """A file of one tensor of zeros that takes no space on the disk."""
    if format == "gguf":
        from tests.containers._gguf import File, Tensor

        header = File(tensors=[Tensor("t", [size // 4])], data=b"").bytes()
    else:
        text = json.dumps({"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
        header = len(text).to_bytes(8, "little") + text
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)


ROW, ROWS = 4096, 64  # bytes of a row, rows of a matrix


def matrices(*names: str) -> list[Entry]:
    size = ROW * ROWS
    return [Entry(name, BF16, (ROWS, ROW // 2), n * size, size) for n, name in enumerate(names)]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("row", "into", "certain"),
    [
        (3, 2048, True),  # inside a row, with rows behind it
        (3, 0, False),  # rows of padding begin where a row does
        (3, ROW - 100, False),  # and columns of padding before its end
        (ROWS - 1, 2048, False),  # the last row may end in anything
        (ROWS, 0, False),  # whole matrices: layers that were added and never trained
    ],
)
def test_zeros_that_no_model_ends_in(row: int, into: int, certain: bool, sampled: bool) -> None:
    entries = matrices("a", "b", "c")
    start = row * ROW + into
    why = unwritten(Sparse(3 * ROWS * ROW, start), entries, ZeroTail(start, sampled))
    assert (why is not None) == certain
    assert unwritten(Sparse(ROWS * ROW, start), entries[:1], ZeroTail(start, sampled)) is None  # nothing whole


def test_a_model_of_zeros_alone_and_one_that_was_never_trained() -> None:
    size = 2 * ROWS * ROW
    assert unwritten(Sparse(size, 0), matrices("a", "b"), ZeroTail(0, False)) == "all 2 matrices are zero"
    fresh = matrices("q.lora_A.weight", "q.lora_B.weight")
    assert unwritten(Sparse(size, size // 4 + 10), fresh, ZeroTail(size // 4 + 10, False)) is None


def test_samples_that_are_not_zero_end_the_certainty() -> None:
    """What looked like zeros by samples may have values between them."""
    size, start = 3 * ROWS * ROW, 3 * ROW + 2048
    assert unwritten(Sparse(size, size), matrices("a", "b", "c"), ZeroTail(start, True)) is None
