"""The verdicts are those of an installation without `weighbridge[archives]`, whatever is installed."""

from __future__ import annotations

import sys

import pytest

PACKAGES = ("compression.zstd", "backports.zstd", "lz4.frame", "py7zr")


@pytest.fixture(autouse=True)
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
