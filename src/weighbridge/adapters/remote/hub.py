"""Repositories of the Hugging Face Hub. huggingface_hub knows endpoints, tokens, revisions and the local cache; the
bytes come by ranges. A revision is resolved to a commit once, and every file is read at that commit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from weighbridge import __version__
from weighbridge.adapters.remote.extra import is_offline, package, same_job
from weighbridge.adapters.remote.http import HttpClient, HttpFile, Passing
from weighbridge.base.errors import FormatError, RemoteError, UsageError
from weighbridge.io.location import RemotePath
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import FileSource, Source


class HubUri(NamedTuple):
    """`hf://[type/]org/name[@revision][/path]`."""

    kind: str
    repository: str
    revision: str | None
    path: str

    @property
    def title(self) -> str:
        prefix = "" if self.kind == "model" else f"{self.kind}s/"
        return f"hf://{prefix}{self.repository}" + (f"@{self.revision}" if self.revision else "")


class HubEntry(NamedTuple):
    """A file as the Hub lists it. `sha256` of its bytes where it is stored by LFS, else `git`, their git blob id."""

    name: str
    size: int
    sha256: str | None
    git: str | None

    @property
    def version(self) -> str:
        return self.sha256 or self.git or ""


def parse_uri(text: str) -> HubUri:
    """The parts of an `hf://` path or of a Hub URL. UsageError where it is none."""
    uris = package("huggingface_hub.utils._hf_uris", "reading from the Hub")
    try:
        found = uris.parse_hf_uri(text)
    except ValueError as error:
        why = str(error).splitlines()[-1]
        raise UsageError(f"{text}: {why}", hint="write hf://ORG/NAME[@REVISION][/FILE]") from None
    if found.type not in ("model", "dataset", "space"):
        raise UsageError(f"{text} is a {found.type}, which isn't read", hint="write hf://ORG/NAME[@REVISION][/FILE]")
    _check_name(found.path_in_repo.rstrip("/"), text)
    return HubUri(found.type, found.id, found.revision, found.path_in_repo.strip("/"))


def _check_name(name: str, where: str) -> None:
    """FormatError for a name that leaves its folder."""
    if name and (name.startswith("/") or "\\" in name or any(p in ("", ".", "..") for p in name.split("/"))):
        raise FormatError("a name leaves the repository", path=where, found=repr(name))


class HubTree:
    """The files of a repository at one commit."""

    def __init__(self, uri: HubUri) -> None:
        self.uri, self.title = uri, uri.title
        self.hub = package("huggingface_hub", "reading from the Hub")
        self.transport_error: type[Exception] = package("httpx2", "reading from the Hub").TransportError
        self.endpoint: str = self.hub.constants.ENDPOINT
        advice = f"log in with `hf auth login` (or set HF_TOKEN); a gated repository's conditions are accepted on \
{self.endpoint}/{uri.repository}"
        headers = self.hub.utils.build_hf_headers(library_name="weighbridge", library_version=__version__)
        self.client = HttpClient(self.endpoint, headers, advice=advice)
        info = self.client.persistent(self.title, self._info, lambda: 0)
        self.commit: str = info.sha
        self.entries = {entry.name: entry for entry in map(_entry, info.siblings or [])}
        for name in self.entries:
            _check_name(name, self.title)
        self._folders = _folders(self.entries)

    def _info(self) -> Any:
        errors = self.hub.errors
        try:
            return self.hub.HfApi().repo_info(
                self.uri.repository, repo_type=self.uri.kind, revision=self.uri.revision, files_metadata=True
            )
        except errors.HfHubHTTPError as error:
            raise self._explained(error) from None
        except (OSError, self.transport_error) as error:
            raise Passing(f"no answer from {urlsplit(self.endpoint).netloc} ({type(error).__name__})") from None

    def _explained(self, error: Any) -> Exception:
        """A Hub's error with the next step; `Passing` where it may be over soon."""
        errors, status = self.hub.errors, getattr(error.response, "status_code", 0)
        if isinstance(error, errors.GatedRepoError):
            return RemoteError(f"{self.title} is gated", hint=self.client.advice)
        if isinstance(error, errors.RepositoryNotFoundError):
            return RemoteError(f"{self.title}: there is no such repository, or it is private", hint=self.client.advice)
        if isinstance(error, errors.RevisionNotFoundError):
            return UsageError(
                f"{self.title}: there is no such revision",
                hint=f"see the branches of {self.endpoint}/\
{self.uri.repository}",
            )
        if status in (408, 429, 500, 502, 503, 504):
            wait = error.response.headers.get("retry-after", "")
            return Passing(f"the Hub answers {status}", float(wait) if wait.isdigit() else None)
        return RemoteError(f"{self.title}: the Hub answers {status}", hint=self.client.advice)

    def size(self, name: str) -> int | None:
        entry = self.entries.get(name)
        return entry.size if entry else None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        return self._folders.get(folder)

    def version(self, name: str) -> str:
        return self.entries[name].version or self.commit

    def digest(self, name: str) -> tuple[str, str] | None:
        entry = self.entries[name]
        return ("sha256", entry.sha256) if entry.sha256 else ("git", entry.git) if entry.git else None

    def url(self, name: str) -> str:
        """Where a file's bytes are, at this commit."""
        kind = None if self.uri.kind == "model" else self.uri.kind
        url: str = self.hub.hf_hub_url(
            self.uri.repository, name, repo_type=kind, revision=self.commit, endpoint=self.endpoint
        )
        return url

    def cached(self, name: str) -> Path | None:
        """The file in the local cache, where it is there at this commit and whole."""
        found = self.hub.try_to_load_from_cache(
            self.uri.repository, name, revision=self.commit, repo_type=self.uri.kind
        )
        path = Path(found) if isinstance(found, str) else None
        return path if path and path.is_file() and path.stat().st_size == self.size(name) else None

    def open(self, name: str) -> Source:
        entry = self.entries.get(name)
        if entry is None:
            raise FileNotFoundError(2, "no such file in the repository", f"{self.title}/{name}")
        if (path := self.cached(name)) is not None:
            return FileSource(path)
        title = f"{self.title}/{name}"
        return RangeSource(HttpFile(self.client, self.url(name), title, entry.size, self.version(name), pinned=False))


def _entry(sibling: Any) -> HubEntry:
    lfs = sibling.lfs
    size = lfs.size if lfs else sibling.size
    return HubEntry(sibling.rfilename, size or 0, lfs.sha256 if lfs else None, sibling.blob_id)


def _folders(names: Mapping[str, HubEntry]) -> dict[str, dict[str, bool]]:
    """Every folder with its direct children: name -> whether it is a folder."""
    folders: dict[str, dict[str, bool]] = {"": {}}
    for name in sorted(names):
        parts = PurePosixPath(name).parts
        for depth, part in enumerate(parts):
            above = "/".join(parts[:depth])
            folders.setdefault(above, {})[part] = depth < len(parts) - 1
    return folders


def to_path(text: str) -> Path:
    """The repository, folder or file of an `hf://` path. Offline the local cache answers."""
    uri = parse_uri(text)
    if is_offline():
        return _cached_snapshot(uri) / uri.path
    whole = uri._replace(path="")
    tree = same_job((whole, os.environ.get("HF_ENDPOINT"), os.environ.get("HF_TOKEN")), lambda: HubTree(whole))
    root = RemotePath.root(_key(uri), tree)
    path: Path = root / uri.path if uri.path else root
    if uri.path and not path.exists():
        from difflib import get_close_matches

        near = get_close_matches(uri.path, tree.entries, 3, 0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"`wb inspect {uri.title}` shows what is there"
        raise UsageError(f"{uri.title} has no file {uri.path!r}", hint=hint)
    return path


def _key(uri: HubUri) -> str:
    """Unique for a revision, with the repository's name last, as a folder on disk would have it."""
    org, name = uri.repository.split("/")
    revision = f"@{uri.revision.replace('/', '%2F')}" if uri.revision else ""
    return f"hf://{'' if uri.kind == 'model' else uri.kind + 's/'}{org}{revision}/{name}"


def _cached_snapshot(uri: HubUri) -> Path:
    """The snapshot in the local cache. RemoteError where there is none."""
    hub = package("huggingface_hub", "reading from the Hub's cache")
    folder = Path(hub.constants.HF_HUB_CACHE) / f"{uri.kind}s--{uri.repository.replace('/', '--')}"
    revision = uri.revision or "main"
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    if os.sep in commit or not snapshot.is_dir() or (uri.path and not (snapshot / uri.path).exists()):
        raise RemoteError(
            f"{uri.title}{'/' if uri.path else ''}{uri.path} isn't in the cache {folder.parent}, and --offline "
            "(HF_HUB_OFFLINE) forbids the network", hint="go online, or name a path",
        )  # fmt: skip
    return snapshot
