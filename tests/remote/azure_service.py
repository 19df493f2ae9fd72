"""Azure's Blob service on loopback, by its documented requests (learn.microsoft.com/rest/api/storageservices): blobs,
blocks, lists of both, ranges, If-None-Match, If-Match. A list has ETags without quotes (list-blobs), the header of an
answer has them with quotes (get-blob). Azurite is the judge where it is installed; this one needs nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT = "devstoreaccount1"
#: Properties of every blob in a list.
ALWAYS = (
    "<Content-Type>application/octet-stream</Content-Type><Last-Modified>Sun, 22 Nov 2026 00:00:00 GMT</Last-Modified>"
)
XML = {"content-type": "application/xml"}
KEY = base64.b64encode(b"no secret: the fake's key").decode()


class BlobService:
    """Containers of one account. `blobs`: (container, name) -> bytes and metadata; `blocks`: what isn't committed."""

    def __init__(self) -> None:
        self.containers: set[str] = set()
        self.blobs: dict[tuple[str, str], tuple[bytes, dict[str, str]]] = {}
        self.blocks: dict[tuple[str, str], dict[str, bytes]] = {}
        self.lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[str]:
        """The endpoint."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/{ACCOUNT}"
        finally:
            server.shutdown()
            server.server_close()


def _handler(service: BlobService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: Any) -> None:
            pass

        def _act(self) -> None:
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            _, account, container, *rest = unquote(parts.path).split("/", 3)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if account != ACCOUNT or "authorization" not in self.headers:
                self._fail(403, "AuthenticationFailed")
            elif asked.get("restype") == "container" and self.command == "PUT":
                service.containers.add(container)
                self._reply(201)
            elif container not in service.containers:
                self._fail(404, "ContainerNotFound")
            elif not rest or not rest[0]:
                self._list(container, asked)
            else:
                kind = f"{self.command} {asked.get('comp', '')}".strip()
                with service.lock:
                    ACTS[kind](self, (container, rest[0]), asked, body)

        do_GET = do_PUT = do_HEAD = do_DELETE = _act

        def _reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})) -> None:
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), "x-ms-version": "2021-12-02", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _fail(self, status: int, code: str) -> None:
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self._reply(status, body, {"x-ms-error-code": code, **XML})

        def _list(self, container: str, asked: dict[str, str]) -> None:
            prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
            blobs, folders = "", set()
            for (where, name), (data, _) in sorted(service.blobs.items()):
                if where != container or not name.startswith(prefix):
                    continue
                if delimiter and delimiter in name[len(prefix) :]:
                    folders.add(prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter)
                    continue
                etag = _etag(data).strip('"')  # as documented: only headers have quotes
                about = f"<Content-Length>{len(data)}</Content-Length><Etag>{etag}</Etag>{ALWAYS}"
                blobs += f"<Blob><Name>{escape(name)}</Name><Properties>{about}</Properties></Blob>"
            blobs += "".join(f"<BlobPrefix><Name>{escape(f)}</Name></BlobPrefix>" for f in sorted(folders))
            body = f"<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/>\
</EnumerationResults>"
            self._reply(200, body.encode(), XML)

        def _taken(self, key: tuple[str, str]) -> bool:
            if self.headers.get("if-none-match") == "*" and key in service.blobs:
                self._fail(409, "BlobAlreadyExists")
                return True
            return False

        def _metadata(self) -> dict[str, str]:
            return {k[10:].lower(): v for k, v in self.headers.items() if k.lower().startswith("x-ms-meta-")}

        def put(self, key: tuple[str, str], asked: dict[str, str], body: bytes) -> None:
            if not self._taken(key):
                service.blobs[key] = body, self._metadata()
                self._reply(201, headers={"etag": _etag(body)})

        def put_block(self, key: tuple[str, str], asked: dict[str, str], body: bytes) -> None:
            there = service.blocks.setdefault(key, {})
            if any(len(one) != len(asked["blockid"]) for one in there):
                self._fail(400, "InvalidBlobOrBlock")
                return
            there[asked["blockid"]] = body
            self._reply(201)

        def put_list(self, key: tuple[str, str], asked: dict[str, str], body: bytes) -> None:
            names = re.findall(r"<(?:Latest|Uncommitted)>([^<]+)<", body.decode())
            there = service.blocks.get(key, {})
            if self._taken(key):
                return
            if any(name not in there for name in names):
                self._fail(400, "InvalidBlockList")
                return
            service.blobs[key] = b"".join(there[name] for name in names), self._metadata()
            service.blocks.pop(key, None)
            self._reply(201, headers={"etag": _etag(service.blobs[key][0])})

        def get_list(self, key: tuple[str, str], asked: dict[str, str], body: bytes) -> None:
            if key not in service.blobs and key not in service.blocks:
                self._fail(404, "BlobNotFound")
                return
            rows = "".join(f"<Block><Name>{name}</Name><Size>{len(data)}</Size></Block>"
                           for name, data in service.blocks.get(key, {}).items())  # fmt: skip
            text = f"<?xml version='1.0' encoding='utf-8'?><BlockList><UncommittedBlocks>{rows}</UncommittedBlocks>\
</BlockList>"
            self._reply(200, text.encode(), XML)

        def get(self, key: tuple[str, str], asked: dict[str, str], body: bytes) -> None:
            if key not in service.blobs:
                self._fail(404, "BlobNotFound")
                return
            data, metadata = service.blobs[key]
            if self.headers.get("if-match", _etag(data)) not in (_etag(data), "*"):
                self._fail(412, "ConditionNotMet")
                return
            headers = {f"x-ms-meta-{name}": value for name, value in metadata.items()}
            headers |= {"etag": _etag(data), "last-modified": "Sun, 22 Nov 2026 00:00:00 GMT",
                        "x-ms-blob-type": "BlockBlob"}  # fmt: skip
            found = re.fullmatch(
                r"bytes=(\d+)-(\d+)", self.headers.get("x-ms-range") or self.headers.get("range") or ""
            )
            if self.command == "HEAD" or not found:
                self._reply(200, data, headers) if self.command == "GET" else self._head(data, headers)
                return
            start, end = int(found[1]), min(int(found[2]) + 1, len(data))
            headers["content-range"] = f"bytes {start}-{end - 1}/{len(data)}"
            self._reply(206, data[start:end], headers)

        def _head(self, data: bytes, headers: dict[str, str]) -> None:
            self._reply(200, b"", {**headers, "content-length": str(len(data))})

        def delete(self, key: tuple[str, str], asked: dict[str, str], body: bytes) -> None:
            if service.blobs.pop(key, None) is None:
                self._fail(404, "BlobNotFound")
            else:
                self._reply(202)

    ACTS = {
        "PUT": Handler.put,
        "PUT block": Handler.put_block,
        "PUT blocklist": Handler.put_list,
        "GET blocklist": Handler.get_list,
        "GET": Handler.get,
        "HEAD": Handler.get,
        "DELETE": Handler.delete,
    }
    return Handler


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
