"""Fetches files from elsewhere."""

from __future__ import annotations

from pathlib import Path as FilePath

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.conversion import fetch as fetching
from weighbridge.conversion.options import FetchOptions, Path
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.location import is_remote


@accepting(FetchOptions)
def plan_fetch(src: Path, dst: Path, options: FetchOptions) -> Plan:
    """Plans to fetch the files of `src` (hf://, https://, s3://, ollama:// ...) into the folder `dst`: those whose path
    matches a glob of `include` and none of `exclude`, with an index or a part of a split GGUF those of the whole set. A
    single file is written to `dst` itself if that has its suffix. Each file is compared with the digest that the Hub or
    the registry lists. After an interruption the same call continues. Raises UsageError if `src` is on this machine,
    RemoteError if a digest differs."""
    if is_remote(dst):
        raise UsageError(f"{dst} is remote, and fetch writes to this machine", hint="wb convert SRC DST")
    return fetching.plan_fetch(resolve_path(src), FilePath(dst), options)


fetch = planned_and_run(plan_fetch, "Fetches files; the arguments are those of `plan_fetch`.")
