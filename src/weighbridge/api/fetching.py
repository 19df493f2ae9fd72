"""Files from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.api.keywords import Path
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.errors import UsageError
from weighbridge.conversion import fetch as fetching
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.location import is_remote


def plan_fetch(
    src: Path,
    dst: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    overwrite: bool = False,
    replace_folder: bool = False,
    resume: bool = True,
    parents: bool = False,
    jobs: int | None = None,
    max_memory: int | None = None,
) -> Plan:
    """Plans to fetch the files of `src` (hf://, https://, s3://, ollama:// ...) into the folder `dst`, those whose path
    matches a glob of `include` and none of `exclude`. Each is compared with the digest that the Hub or the registry
    lists. Interrupted, it keeps what is done; the same call goes on from there. UsageError where `src` is on this
    machine; RemoteError where a digest differs."""
    write = WriteOptions(
        overwrite=overwrite,
        replace_folder=replace_folder,
        resume=resume,
        parents=parents,
        jobs=jobs,
        max_memory=max_memory,
    )
    if is_remote(dst):
        raise UsageError(f"{dst} is elsewhere, and fetch writes to this machine", hint="wb convert SRC DST")
    return fetching.plan_fetch(resolve_path(src), FilePath(dst), tuple(include), tuple(exclude), write)


fetch = planned_and_run(plan_fetch, "Fetches files; the arguments are those of `plan_fetch`.")
