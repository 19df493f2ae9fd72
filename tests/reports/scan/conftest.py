"""The verdicts are those of an installation without `weighbridge[archives]`, whatever is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from weighbridge.io import decompress

PACKAGES = ("compression.zstd", "backports.zstd", "lz4.frame", "py7zr")


@pytest.fixture(autouse=True)
def without_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    decompress._import.cache_clear()
    yield
    decompress._import.cache_clear()
