"""Files of a plain web server. It lists no folder: each file is asked for by its name."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote, urlunsplit

from weighbridge.adapters.remote.connections import origin_of
from weighbridge.adapters.remote.credentials import Credentials, credentials_for
from weighbridge.adapters.remote.extra import check_online, same_job
from weighbridge.adapters.remote.http import DeniedError, HttpClient, HttpFile
from weighbridge.base.errors import UsageError
from weighbridge.io.location import RemotePath, parse_address
from weighbridge.io.ranges import FIRST, RangeSource
from weighbridge.io.source import Source
from weighbridge.io.workers import Workers

#: Files next to a model's weights that have the same name everywhere. A folder's listing is those that exist.
SIDECARS: Final = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
    *("model.safetensors.index.json", "adapter_config.json"),
)
_AT_A_TIME: Final = 16


class WebTree:
    """The files in the folder of a URL. `query`: the part after the named file's path. Such URLs are often signed
    for that file, so no other file is requested."""

    def __init__(self, base: str, query: str, credentials: Credentials) -> None:
        check_online(base)
        self.title, self.query = base, query
        self.named: set[str] = set()
        self.client = HttpClient(base, credentials.headers, advice=credentials.advice)
        self._files: dict[str, tuple[HttpFile, bytes] | None] = {}
        self._lock = threading.Lock()

    def _file(self, name: str) -> tuple[HttpFile, bytes] | None:
        with self._lock:
            if name in self._files:
                return self._files[name]
        found = self._asked(name)
        with self._lock:
            return self._files.setdefault(name, found)

    def _asked(self, name: str) -> tuple[HttpFile, bytes] | None:
        if not name or (self.query and name not in self.named):
            return None
        url = f"{self.title}/{quote(name)}{'?' if self.query else ''}{self.query}"
        title = f"{self.title}/{name}"
        try:
            first = self.client.first(url, title, FIRST)
        except FileNotFoundError:
            return None
        except DeniedError:
            if name in self.named:
                raise
            return None  # some servers deny what isn't there
        return HttpFile(self.client, url, title, first.size, first.version), first.head

    def name_file(self, name: str) -> None:
        """Registers a file that a user names. Raises FileNotFoundError or RemoteError if it isn't available."""
        self.named.add(name)
        if self._file(name) is None:
            raise FileNotFoundError(2, "no such file on the server", f"{self.title}/{name}")

    def size(self, name: str) -> int | None:
        found = self._file(name)
        return found[0].size if found else None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        if folder:
            return None
        self.prepare(SIDECARS)
        names = {name for name in SIDECARS if self._file(name)}
        return dict.fromkeys(sorted(self.named | names), False)

    def prepare(self, names: Sequence[str]) -> None:
        """Ask for files at the same time; each answer has the file's size and its first bytes."""
        with Workers(_AT_A_TIME, "web") as pool:
            list(pool.map(self._file, names))

    def version(self, name: str) -> str:
        found = self._file(name)
        return found[0].version if found else ""

    def digest(self, name: str) -> tuple[str, str] | None:
        return None

    def open(self, name: str) -> Source:
        found = self._file(name)
        if found is None:
            raise FileNotFoundError(2, "no such file on the server", f"{self.title}/{name}")
        source = RangeSource(found[0])
        source.seed(found[1])
        return source


def to_path(url: str) -> RemotePath:
    """The file at a URL."""
    parts = parse_address(url)
    folder, _, name = parts.path.rpartition("/")
    if not parts.hostname or not name:
        raise UsageError(f"{url} names no file", hint="a web server lists no folder: name the file")
    base = urlunsplit((parts.scheme.lower(), parts.netloc, folder, "", ""))
    name = unquote(name)
    try:
        credentials = credentials_for(origin_of(base))
    except ValueError as error:
        raise UsageError(f"{base}: no valid address: {error}", hint="check it") from None
    key = (base, parts.query, credentials.headers.get("Authorization"))
    tree = same_job(key, lambda: WebTree(base, parts.query, credentials))
    tree.name_file(name)
    path: RemotePath = RemotePath.root(base, tree) / name
    return path
