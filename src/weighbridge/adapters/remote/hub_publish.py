"""Files published in a repository of the Hugging Face Hub: one commit, or a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weighbridge import __version__
from weighbridge.adapters.remote.extra import check_online, package
from weighbridge.base.errors import RefusedError, RemoteError


def publish_files(
    repository: str,
    files: Mapping[str, Path | bytes],
    *,
    private: bool = False,
    create_pr: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
) -> str:
    """Put the files, by their names there, into the repository `ORG/NAME`, which is made where there is none; the
    URL of the commit or pull request. RefusedError where one of the names is taken; RemoteError."""
    check_online(repository)
    hub: Any = package("huggingface_hub", "uploading to the Hub", "ship")
    api = hub.HfApi(library_name="weighbridge", library_version=__version__)
    hub.utils.disable_progress_bars()
    adds = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in files.items()]
    try:
        _check(hub, api, repository, files, revision, overwrite or create_pr)
        api.create_repo(repository, private=private, exist_ok=True)
        message = f"Upload with weighbridge {__version__}"
        done = api.create_commit(repository, adds, commit_message=message, revision=revision, create_pr=create_pr)
    except (OSError, ValueError, RuntimeError, hub.errors.HfHubHTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        words = next(iter(str(error).splitlines()), type(error).__name__)
        hint = "log in with a token that may write: hf auth login, or HF_TOKEN" if status in (401, 403) else "try again"
        raise RemoteError(f"{repository}: {words}", hint=hint) from None
    return str(done.pr_url or done.commit_url)


def _check(
    hub: Any, api: Any, repository: str, files: Mapping[str, Path | bytes], revision: str | None, allowed: bool
) -> None:
    """RefusedError where the repository has one of the names; one that isn't there yet has none."""
    if allowed:
        return
    try:
        there = {s.rfilename for s in api.repo_info(repository, revision=revision).siblings or ()}
    except hub.errors.RepositoryNotFoundError:
        return
    if taken := sorted((there - {".gitattributes"}).intersection(files)):
        raise RefusedError(f"{repository} has {', '.join(taken[:4])} already", option="--overwrite")
