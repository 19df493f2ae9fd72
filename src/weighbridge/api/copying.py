"""Copies files without a change of their values: fetches, packs and unpacks them."""

from __future__ import annotations

from pathlib import Path as FilePath

from weighbridge.adapters.remote.schemes import resolve_path, resolve_target
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.conversion import fetch as fetching
from weighbridge.conversion.archive.options import FetchOptions, PackOptions, UnpackOptions
from weighbridge.conversion.archive.pack import PackPlan
from weighbridge.conversion.archive.pack import plan_pack as _plan_pack
from weighbridge.conversion.archive.unpack import plan_unpack as _plan_unpack
from weighbridge.conversion.options import Path
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


@accepting(PackOptions)
def plan_pack(src: Path, dst: Path, options: PackOptions) -> PackPlan:
    """Plans to pack the file `src` without loss, or all weights of the folder `src`; its other files are copied. Packed
    files are read like the originals by every function. With `base` tensors are stored as differences to those of
    another model. Raises UsageError if there is nothing to pack, UnsupportedError without the compiled extension."""
    if is_remote(dst):
        raise UsageError(f"{dst} is remote, and pack writes to this machine", hint="wb fetch SRC DIR, then wb pack")
    return _plan_pack(resolve_path(src), FilePath(dst), options)


@accepting(UnpackOptions)
def plan_unpack(src: Path, dst: Path, options: UnpackOptions) -> Plan:
    """Plans to unpack the file or folder `src`: the original bytes, compared with their SHA-256. ZipNN files have none;
    they are decoded only. `base`: the model that it was packed with. Raises UsageError if nothing is packed,
    FormatError for a damaged file."""
    return _plan_unpack(resolve_path(src), resolve_target(dst), options)


pack = planned_and_run(plan_pack, "Packs weights; the arguments are those of `plan_pack`.")
unpack = planned_and_run(plan_unpack, "Unpacks weights; the arguments are those of `plan_unpack`.")
