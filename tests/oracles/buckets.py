"""Buckets of servers that aren't ours (moto's S3, an emulator of Google Cloud Storage, Azurite), as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


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
