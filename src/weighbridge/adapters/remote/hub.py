"""Repositories of the Hugging Face Hub. huggingface_hub knows endpoints, tokens, revisions and the local cache; the
bytes come by ranges. A revision is resolved to a commit once, and every file is read at that commit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from weighbridge import __version__
from weighbridge.adapters.remote.connections import Answer
from weighbridge.adapters.remote.extra import is_offline, package, same_job
from weighbridge.adapters.remote.http import HttpClient, HttpFile
from weighbridge.base.errors import FormatError, RemoteError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.words import suggest
from weighbridge.io.location import RemotePath
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import FileSource, Source

#: The longest answer about a repository.
_LISTING: Final = 32 * MIB
_NAME: Final = r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?)"
_PLAIN: Final = re.compile(
    rf"hf://(?:(models|datasets|spaces)/)?{_NAME}/{_NAME}(?:@([A-Za-z0-9._-]+))?((?:/[A-Za-z0-9._-]+)*/?)"
)
#: The prefixes of repository types in a URL; no owner of a model has such a name.
_KINDS: Final = frozenset(
    f"{kind}{plural}" for kind in ("model", "dataset", "space", "kernel", "bucket") for plural in ("", "s")
)
_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE")


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
    """A file in the Hub's listing. `sha256`: the digest of an LFS file's bytes; `git`: the git blob id of other
    files."""

    name: str
    size: int
    sha256: str | None
    git: str | None

    @property
    def version(self) -> str:
        return self.sha256 or self.git or ""


def parse_uri(text: str) -> HubUri:
    """Parses an `hf://` path or a Hub URL. Raises UsageError if it is invalid."""
    uri = _plain(text) or _parsed(text)
    _check_name(uri.path.rstrip("/"), text)
    return uri._replace(path=uri.path.strip("/"))


def _plain(text: str) -> HubUri | None:
    """An address as most of them are; None for one that huggingface_hub has to judge, which takes 50 ms to import."""
    found = _PLAIN.fullmatch(text)
    if found is None or found[2] in _KINDS or found[4] == "refs":
        return None
    kind, owner, name, revision, path = found.groups()
    if "--" in owner + name or ".." in owner + name or name.endswith(".git"):
        return None
    return HubUri((kind or "models").removesuffix("s"), f"{owner}/{name}", revision, path.removeprefix("/"))


def _parsed(text: str) -> HubUri:
    """The parts by huggingface_hub's grammar."""
    uris = package("huggingface_hub.utils._hf_uris", "reading from the Hub")
    try:
        found = uris.parse_hf_uri(text)
    except ValueError as error:
        why = str(error).splitlines()[-1]
        raise UsageError(f"{text}: {why}", hint="write hf://ORG/NAME[@REVISION][/FILE]") from None
    if found.type not in ("model", "dataset", "space"):
        raise UsageError(f"{text} is a {found.type}, which isn't read", hint="write hf://ORG/NAME[@REVISION][/FILE]")
    return HubUri(found.type, found.id, found.revision, found.path_in_repo)


def _check_name(name: str, where: str) -> None:
    """FormatError for a name that leaves its folder."""
    if name and (name.startswith("/") or "\\" in name or any(p in ("", ".", "..") for p in name.split("/"))):
        raise FormatError("a name leaves the repository", path=where, found=repr(name))


class _Lfs(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: _Lfs | None = None


class _Info(msgspec.Struct):
    """What of the Hub's answer about a repository is used."""

    sha: str
    siblings: list[_Sibling] = []


class HubTree:
    """The files of a repository at one commit."""

    def __init__(self, uri: HubUri) -> None:
        self.uri, self.title = uri, uri.title
        self.hub = package("huggingface_hub", "reading from the Hub")
        self.utils = package("huggingface_hub.utils", "reading from the Hub")
        self.endpoint: str = _constants().ENDPOINT
        advice = f"log in with `hf auth login` (or set HF_TOKEN); a gated repository's conditions are accepted on \
{self.endpoint}/{uri.repository}"
        # huggingface_hub's own function takes 60 ms, since it looks up torch's version.
        agent = f"weighbridge/{__version__}; hf_hub/{self.hub.__version__}"
        token = self.utils.get_token() if _may_have_token(_constants()) else None
        headers = {"User-Agent": agent} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.client = HttpClient(self.endpoint, headers, advice=advice, explain=self._explained)
        # The commit and the files, in one request; HfApi would take longer to import than to answer.
        revision = f"/revision/{quote(self.uri.revision, safe='')}" if self.uri.revision else ""
        url = f"{self.endpoint}/api/{self.uri.kind}s/{self.uri.repository}{revision}?blobs=true"
        try:
            info = msgspec.json.decode(self.client.get(url, self.title, _LISTING), type=_Info)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "check HF_ENDPOINT"
            raise RemoteError(f"{self.title}: {self.endpoint} answers unlike a Hub ({error})", hint=hint) from None
        self.commit = info.sha
        self.entries = {entry.name: entry for entry in map(_entry, info.siblings)}
        for name in self.entries:
            _check_name(name, self.title)
        self._folders = _folders(self.entries)

    def _explained(self, response: Answer) -> Exception | None:
        """Returns a refusal by the Hub as an error with the next step, as huggingface_hub interprets it; None if it
        doesn't recognize it."""
        errors = package("huggingface_hub.errors", "reading from the Hub")
        client = package("httpx2", "reading from the Hub")  # huggingface_hub's own
        why = {k: v for k, v in response.headers.items() if k.startswith("x-error-")}
        try:
            self.utils.hf_raise_for_status(
                client.Response(response.status, headers=why, request=client.Request("GET", response.url))
            )
        except errors.GatedRepoError:
            return RemoteError(f"{self.title} is gated", hint=self.client.advice)
        except errors.DisabledRepoError:
            return RemoteError(
                f"{self.title}: the Hub has disabled it", hint=f"see {self.endpoint}/{self.uri.repository}"
            )
        except errors.RepositoryNotFoundError:
            return RemoteError(f"{self.title}: the repository doesn't exist, or it is private", hint=self.client.advice)
        except errors.RevisionNotFoundError:
            branches = f"see the branches of {self.endpoint}/{self.uri.repository}"
            return UsageError(f"{self.title}: the revision doesn't exist", hint=branches)
        except errors.HfHubHTTPError:
            return None
        return None

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
        kind = "" if self.uri.kind == "model" else f"{self.uri.kind}s/"
        return f"{self.endpoint}/{kind}{self.uri.repository}/resolve/{self.commit}/{quote(name)}"

    def cached(self, name: str) -> Path | None:
        """Returns the file in the local cache, if it is complete and from this commit."""
        if not _cache_of(self.uri).is_dir():  # most often; and the function for it is slow to import
            return None
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


def _may_have_token(constants: Any) -> bool:
    """Whether there is anything that huggingface_hub may find a token in; its function takes 40 ms to import."""
    named = any(os.environ.get(name) for name in _TOKENS) or "google.colab" in sys.modules
    return not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (named or Path(constants.HF_TOKEN_PATH).exists())


def _entry(sibling: _Sibling) -> HubEntry:
    lfs = sibling.lfs
    size = lfs.size if lfs else sibling.size
    return HubEntry(sibling.rfilename, size or 0, lfs.sha256 if lfs else None, sibling.blobId)


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
    try:
        tree = same_job((whole, os.environ.get("HF_ENDPOINT"), os.environ.get("HF_TOKEN")), lambda: HubTree(whole))
    except RemoteError as error:
        if stored_path(uri.title):
            error.hint = "the local cache has a copy: --offline reads it"
        raise
    # Unique for a revision, with the repository's name last, as a folder on disk would have it.
    org, name = uri.repository.split("/")
    revision = f"@{uri.revision.replace('/', '%2F')}" if uri.revision else ""
    root = RemotePath.root(f"hf://{'' if uri.kind == 'model' else uri.kind + 's/'}{org}{revision}/{name}", tree)
    path: Path = root / uri.path if uri.path else root
    if uri.path and not path.exists():
        hint = suggest(uri.path, tree.entries, f"`wb inspect {uri.title}` lists the files")
        raise UsageError(f"{uri.title} has no file {uri.path!r}", hint=hint)
    return path


def _constants() -> Any:
    """huggingface_hub's settings: a module that its package doesn't import by itself."""
    return package("huggingface_hub.constants", "reading from the Hub")


def _cache_of(uri: HubUri) -> Path:
    """The repository's folder in the local cache."""
    return Path(_constants().HF_HUB_CACHE) / f"{uri.kind}s--{uri.repository.replace('/', '--')}"


def stored_path(text: str) -> Path | None:
    """Returns the path of an `hf://` file or folder in the local cache; None if it isn't there."""
    uri = parse_uri(text)
    try:
        return _cached_snapshot(uri) / uri.path
    except RemoteError:
        return None


def _cached_snapshot(uri: HubUri) -> Path:
    """Returns the snapshot in the local cache. Raises RemoteError if it is missing."""
    folder = _cache_of(uri)
    revision = uri.revision or "main"
    ref = folder / "refs" / revision
    commit = ref.read_text("utf-8").strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    if os.sep in commit or not snapshot.is_dir() or (uri.path and not (snapshot / uri.path).exists()):
        raise RemoteError(
            f"{uri.title}{'/' if uri.path else ''}{uri.path} isn't in the cache {folder.parent}, and --offline "
            "(HF_HUB_OFFLINE) forbids the network", hint="go online, or name a path",
        )  # fmt: skip
    return snapshot
