"""Zeros at the end of a file: where they begin, and how little is read to tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weighbridge as wb
from weighbridge.base.limits import MIB, ZERO_SCAN
from weighbridge.io.source import FileSource, Source
from weighbridge.reports.verify.zeros import ZeroTail, zero_tail_of


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
