"""Invariant: any bytes give an index or a FormatError; regions cover every byte; what is parsed lies in the file."""

from __future__ import annotations

import sys

import harness
from tests.containers.regions import check_regions
from tests.containers.safetensors_cases import CASES

from weighbridge.base.dtypes import RANK, dtype
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    source = BytesSource(data)
    check_regions(safetensors.regions(source), len(data))
    saved, findings = safetensors.examine(source)
    assert all(e.offset + e.nbytes <= len(data) and e.spec.nbytes == e.nbytes for e in saved)
    try:
        index = safetensors.parse(source)
    except FormatError:
        assert any(f.severity == "error" for f in findings)
        raise
    assert index.entries == saved.entries
    assert not any(f.severity == "error" for f in findings)
    assert sum(e.nbytes for e in index) == len(data) - index.data_start[0]


def seeds() -> list[bytes]:
    every = [(name, Spec((dtype(name).block, 3), dtype(name))) for name in RANK]
    layout = safetensors.layout(every, {"format": "pt", "k": "v"}, align=8)
    return [layout.pieces[0][1].ljust(layout.size, b"\1"), *(c.data for c in CASES if len(c.data) < 1000)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
