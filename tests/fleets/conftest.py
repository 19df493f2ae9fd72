"""Fleets write to folders and to buckets."""

from __future__ import annotations

import pytest
from tests.oracles.buckets import bucket, s3

from weighbridge.adapters.remote import extra
from weighbridge.io import location


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place of an earlier test is known, and the bucket of the tests may be reached."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(extra, "_kept", {})
    monkeypatch.setattr(location, "_TREES", {})


__all__ = ["bucket", "s3"]
