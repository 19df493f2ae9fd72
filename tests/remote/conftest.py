"""No test here reaches the network, or leaves something for the next one."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.oracles.buckets import bucket, s3
from tests.remote.servers import Hub
from tests.remote.uploads import expected, source

from weighbridge.adapters.remote import credentials, extra, http
from weighbridge.io import location, ranges


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A separate cache of pages and places, and short retries."""
    kept: dict[Hashable, tuple[float, Any]] = {}
    monkeypatch.setattr(extra, "_kept", kept)
    monkeypatch.setattr(location, "_TREES", {})
    monkeypatch.setattr(credentials, "_given", {})
    monkeypatch.setattr(ranges, "CACHED", ranges.RangeCache())
    monkeypatch.setattr(ranges.RangeSource.__init__, "__defaults__", (ranges.CACHED,))
    monkeypatch.setattr(
        http, "RETRY_POLICY", replace(http.RetryPolicy(), connect=2.0, between_bytes=0.4, first_wait=0.01)
    )
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if constants := sys.modules.get("huggingface_hub.constants"):  # read at import, and others' tests are offline
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    yield
    for _, tree in kept.values():
        if client := getattr(tree, "client", None):
            client.close()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """A function that makes a running `Hub` the one that huggingface_hub talks to."""
    constants = pytest.importorskip("huggingface_hub.constants")
    pytest.importorskip("httpx2")

    def connect(hub: Hub, token: str | None = None, cache: Path | None = None) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # others' tests are offline
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache or tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)

    return connect


__all__ = ["bucket", "connect", "expected", "s3", "source"]
