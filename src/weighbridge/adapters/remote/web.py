"""Files of a plain web server. It lists no folder: each file is asked for by its name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from weighbridge.adapters.remote.extra import check_online, same_job
from weighbridge.adapters.remote.http import DeniedError, HttpClient, HttpFile
from weighbridge.base.errors import UsageError
from weighbridge.io.location import RemotePath
from weighbridge.io.ranges import FIRST, RangeSource
from weighbridge.io.source import Source

# What lies beside a model's weights under the same name everywhere. A folder's listing is those of them that are there.
_SIDECARS: Final = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
    *("model.safetensors.index.json", "adapter_config.json"),
)
_AT_A_TIME: Final = 16


class WebTree:
    """The files in the folder of a URL. `query`: what follows the named file's path; such addresses are often signed
    for that file alone, so none is asked for beside it."""

    def __init__(self, base: str, query: str) -> None:
        check_online(base)
        self.title, self.query = base, query
        self.named: set[str] = set()
        self.client = HttpClient(base)
        self._files: dict[str, tuple[HttpFile, bytes] | None] = {}
        self._lock = threading.Lock()

    def _file(self, name: str, stopped: Callable[[], bool] = lambda: False) -> tuple[HttpFile, bytes] | None:
        with self._lock:
            if name in self._files:
                return self._files[name]
        found = self._asked(name, stopped)
        with self._lock:
            return self._files.setdefault(name, found)

    def _asked(self, name: str, stopped: Callable[[], bool]) -> tuple[HttpFile, bytes] | None:
        if not name or (self.query and name not in self.named):
            return None
        url = f"{self.title}/{quote(name)}{'?' if self.query else ''}{self.query}"
        title = f"{self.title}/{name}"
        try:
            first = self.client.first(url, title, FIRST, stopped)
        except FileNotFoundError:
            return None
        except DeniedError:
            if name in self.named:
                raise
            return None  # some servers deny what isn't there
        return HttpFile(self.client, url, title, first.size, first.version), first.head

    def name_file(self, name: str) -> None:
        """A file that a user names. FileNotFoundError or RemoteError where it can't be had."""
        self.named.add(name)
        if self._file(name) is None:
            raise FileNotFoundError(2, "no such file on the server", f"{self.title}/{name}")

    def size(self, name: str) -> int | None:
        found = self._file(name)
        return found[0].size if found else None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        if folder:
            return None
        self.prepare(_SIDECARS)
        names = {name for name in _SIDECARS if self._file(name)}
        return dict.fromkeys(sorted(self.named | names), False)

    def prepare(self, names: Sequence[str]) -> None:
        """Ask for files at the same time; each answer has the file's size and its first bytes."""
        ended = threading.Event()
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            try:
                list(pool.map(lambda name: self._file(name, ended.is_set), names))
            finally:
                ended.set()  # after an error or Ctrl-C nobody waits for the others

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
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not parts.hostname or not name:
        raise UsageError(f"{url} names no file", hint="a web server lists no folder: name the file")
    if parts.username or parts.password:
        raise UsageError(f"{parts.hostname}: credentials don't belong into an address", hint="leave them out")
    base = urlunsplit((parts.scheme.lower(), parts.netloc, folder, "", ""))
    name = unquote(name)
    tree = same_job((base, parts.query), lambda: WebTree(base, parts.query))
    tree.name_file(name)
    path: RemotePath = RemotePath.root(base, tree) / name
    return path
