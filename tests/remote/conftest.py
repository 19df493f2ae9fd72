"""No test here reaches the network, or leaves something for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.remote.servers import Hub

from weighbridge.adapters.remote import extra, http
from weighbridge.io import location, ranges


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of pages and places of its own, and little patience."""
    monkeypatch.setattr(extra, "_kept", {})
    monkeypatch.setattr(location, "_TREES", {})
    monkeypatch.setattr(ranges, "CACHED", ranges.RangeCache())
    monkeypatch.setattr(ranges.RangeSource.__init__, "__defaults__", (ranges.CACHED,))
    monkeypatch.setattr(http, "PATIENCE", replace(http.Patience(), connect=2.0, between_bytes=0.4, first_wait=0.01))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """A function that makes a running `Hub` the one that huggingface_hub talks to."""
    constants = pytest.importorskip("huggingface_hub.constants")
    pytest.importorskip("httpx2")

    def connect(hub: Hub, token: str | None = None, cache: Path | None = None) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache or tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)

    return connect


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server", reason="NOT CHECKED against S3: moto[server] isn't installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    boto3 = pytest.importorskip("boto3")
    for name, value in (("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_DEFAULT_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL", s3)):  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    yield client
    left = client.list_multipart_uploads(Bucket="models").get("Uploads", [])
    for row in left:
        client.abort_multipart_upload(Bucket="models", Key=row["Key"], UploadId=row["UploadId"])
    for row in client.list_objects_v2(Bucket="models").get("Contents", []):
        client.delete_object(Bucket="models", Key=row["Key"])
    client.delete_bucket(Bucket="models")
    client.close()
    assert not left, "an upload is left open"
