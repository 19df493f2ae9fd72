"""`wb hash`: digests of files, of tensors and of a model's weights, written and checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.cli.options import PATH, command, examples, jobs_option, json_option, option
from weighbridge.cli.render import clean, echo, emit_json, is_terminal, plain, warn

if TYPE_CHECKING:
    from weighbridge.reports.hash.checksum_files import CheckReport
    from weighbridge.reports.hash.digests import HashReport

_ALGORITHMS = ("sha256", "sha1", "sha512", "md5", "blake2b", "blake3", "xxh3", "xxh64", "git", "uuid")


@command(
    epilog=examples(
        "wb hash ./my-model/ > SHA256SUMS",
        "wb hash --check SHA256SUMS",
        "wb hash model.safetensors --tensors --manifest model.hash.json",
        "wb hash model.gguf --gguf-hash --algo sha1 --algo uuid",
        "wb hash --check ~/.ollama/models/blobs/",
    )
)
@click.argument("paths", nargs=-1, type=PATH)
@option("-a", "--algo", "algorithms", multiple=True, type=click.Choice(_ALGORITHMS), help="The digest [sha256].")
@option("--tensors", is_flag=True, help="Of each tensor, whatever its container, and of all weights.")
@option("--gguf-hash", is_flag=True, help="The lines of llama-gguf-hash: of tensors' bytes alone.")
@option("--manifest", type=click.Path(path_type=Path), help="Write the digests there, as JSON.")
@option("-c", "--check", is_flag=True, help="Compare: with the list PATH [of the file or folder FILE], or with names.")
@option("--overwrite", is_flag=True, help="Replace the manifest where it exists.")
@jobs_option
@json_option
def hash(
    paths: tuple[Path, ...], algorithms: tuple[str, ...], tensors: bool, gguf_hash: bool, manifest: Path | None,
    check: bool, overwrite: bool, jobs: int | None, as_json: bool,
) -> int:  # fmt: skip
    """Print digests of files as sha256sum does, or of tensors; write them to a list; check a list.

    A tensor's digest is the same in every container: that of its type, shape and bytes in C order. With --check the
    first PATH is a list (SHA256SUMS, llama-gguf-hash, our own manifest, a Git LFS pointer, an Ollama manifest), or
    lies in a store that calls files by their digests. Exit code 1 where something differs or is missing.
    """
    if not paths:
        raise UsageError("what is to be hashed?", hint="wb hash PATH")
    paths = tuple(map(resolve_path, paths))
    if check:
        return _check(paths, as_json)
    if gguf_hash:
        return _gguf_hash(paths, algorithms, as_json)
    if len(algorithms) > 1:
        raise UsageError("one digest at a time", hint="several go with --gguf-hash")
    from weighbridge.reports.hash.digests import hash as hash_paths

    report = hash_paths(paths, algo=(*algorithms, "sha256")[0], tensors=tensors, jobs=jobs)
    if manifest is not None:
        import json

        from weighbridge.io.sink import write_file

        write_file(manifest, (json.dumps(plain(report), indent=1) + "\n").encode(), overwrite=overwrite)
    if as_json:
        emit_json(report)
    elif manifest is None:
        _print(report)
    return 0


def _print(report: HashReport) -> None:
    for file in report.files:
        echo(_sum_line(file.digest, file.path))
    for model in report.models:
        for t in model.tensors:
            echo(clean(f"{t.digest}  {t.dtype}[{','.join(map(str, t.shape))}]  {t.name}"))
        echo(clean(f"{model.digest}  weights  {model.path}"))


def _sum_line(digest: str, path: str) -> str:
    """As sha256sum writes it: a name with a backslash or a line break is escaped, and the line begins with one."""
    escaped = path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    line = f"{'' if escaped == path else chr(92)}{digest}  {escaped}"
    return clean(line) if is_terminal(sys.stdout) else line


def _gguf_hash(paths: tuple[Path, ...], algorithms: tuple[str, ...], as_json: bool) -> int:
    from weighbridge.reports.hash.digests import gguf_hash

    lines = [line for path in paths for line in gguf_hash(path, algorithms or ("sha256",))]
    if as_json:
        emit_json(lines)
    else:
        for line in lines:
            echo(clean(str(line)))
    return 0


def _check(paths: tuple[Path, ...], as_json: bool) -> int:
    from weighbridge.reports.hash.checksum_files import check, check_names, is_named
    from weighbridge.reports.hash.digests import files_of

    by_name = any(is_named(file) for path in paths[:1] for file in files_of(path))
    report = check_names(paths) if by_name else check(paths[0], paths[1:])
    if as_json:
        emit_json(report)
    else:
        _print_check(report)
    return int(bool(report.mismatched or report.missing))


def _print_check(report: CheckReport) -> None:
    for result in report.results:
        if result.status == "ok":
            echo(clean(f"{result.name}: ok"))
        else:
            found = f", found {result.found}" if result.found else ""
            warn(clean(f"{result.name}: {result.status}, {result.algo} should be {result.expected}{found}"))
    echo(f"{report.ok:,} ok, {report.mismatched:,} differ, {report.missing:,} missing")
