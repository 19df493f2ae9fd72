"""`wb hash`: computes and checks digests of files, of tensors and of a model's weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.plain import plain
from weighbridge.cli.options import applied, command, examples, jobs_option, json_option, option, refuse_others
from weighbridge.cli.render import Progress, clean, echo, emit_json, is_terminal, warn, write_bytes
from weighbridge.cli.values import FILE, SOURCE, is_standard_input

#: Of files, here and in `wb fleet hash`.
FILE_ALGORITHMS: Final = ("sha256", "sha1", "sha512", "md5", "blake2b", "blake3", "xxh3", "xxh64", "git")


_OPTIONS: Final = (
    click.argument("paths", nargs=-1, type=SOURCE),
    option("-a", "--algo", multiple=True, type=click.Choice((*FILE_ALGORITHMS, "uuid")),
           help="The digest [sha256]."),
    option("--tensors", is_flag=True, help="Hash each tensor, whatever its container, and all weights."),
    option("--gguf-hash", is_flag=True, help="Print the lines of llama-gguf-hash: only the bytes of tensors."),
    option("--manifest", type=FILE, metavar="FILE", help="Write the digests there, as JSON."),
    option("-c", "--check", is_flag=True,
           help="Compare with the list PATH [of the file or folder FILE], or with file names."),
    option("--overwrite", is_flag=True, help="Replace the manifest if it exists."),
    jobs_option,
    json_option,
)  # fmt: skip


@command(
    epilog=examples(
        "wb hash ./my-model/ > SHA256SUMS",
        "wb hash --check SHA256SUMS",
        "curl -L https://example.org/model.gguf | wb hash -",
        "wb hash model.safetensors --tensors --manifest model.hash.json",
        "wb hash model.gguf --gguf-hash --algo sha1 --algo uuid",
        "wb hash --check ~/.ollama/models/blobs/",
    )
)
@applied(_OPTIONS)
def hash(paths: tuple[str, ...], check: bool, gguf_hash: bool, as_json: bool, **options: Any) -> int:
    """Print digests of files as sha256sum does, or of tensors; write them to a list; check a list.

    A tensor's digest covers its type, shape and bytes in C order, so it is the same in every container. With --check
    the first PATH is a list (SHA256SUMS, llama-gguf-hash, a manifest of this command, a Git LFS pointer, an Ollama
    manifest), or is in a store that names files by their digests. Exit code 1 if something differs or is missing.
    """
    if not paths:
        raise UsageError("no path was given", hint="wb hash PATH")
    algorithms = options.pop("algo")
    chosen = {"--gguf-hash": gguf_hash and check} | {f"--{name}": value for name, value in options.items()}
    if check:
        refuse_others("--check", {"--algo": algorithms, **chosen}, hint="the list determines it")
        return _check(tuple(map(resolve_path, paths)), as_json)
    if gguf_hash:
        refuse_others("--gguf-hash", chosen, hint="it prints a line for each tensor")
        from weighbridge.reports.hash.digests import gguf_hash as hashes_of

        lines = [line for path in paths for line in hashes_of(resolve_path(path), algorithms or ("sha256",))]
        if as_json:
            emit_json(lines)
        for line in () if as_json else lines:
            echo(clean(str(line)))
        return 0
    if len(algorithms) > 1:
        raise UsageError("only one digest is computed at a time", hint="--gguf-hash accepts several")
    return _hash(paths, (*algorithms, "sha256")[0], as_json=as_json, **options)


def _hash(
    paths: tuple[str, ...], algo: str, *, tensors: bool, manifest: str | None, overwrite: bool, jobs: int | None,
    as_json: bool,
) -> int:  # fmt: skip
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.hash.digests import hash as hash_paths

    if manifest is not None:
        check_target(manifest, overwrite=overwrite, folder=False)
    elif overwrite:
        raise UsageError("--overwrite replaces a manifest", hint="write one with --manifest FILE")
    with Progress() as progress:
        report = hash_paths(paths, algo=algo, tensors=tensors, jobs=jobs, progress=progress)
    if manifest is not None:
        import json

        write_file(manifest, (json.dumps(plain(report), indent=1) + "\n").encode(), overwrite=overwrite)
    if as_json:
        emit_json(report)
    elif manifest is None:
        for file in report.files:
            # A line like sha256sum's: it escapes a name with a backslash or a line break and starts the line with a
            # backslash. The bytes of the name are kept.
            name = "-" if is_standard_input(file.path) else file.path
            escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
            line = f"{'' if escaped == name else chr(92)}{file.digest}  {escaped}"
            if is_terminal(sys.stdout):
                echo(clean(line))
            else:
                write_bytes(os.fsencode(line) + b"\n")
        for model in report.models:
            for t in model.tensors:
                echo(clean(f"{t.digest}  {t.dtype}[{','.join(map(str, t.shape))}]  {t.name}"))
            echo(clean(f"{model.digest}  weights  {model.path}"))
    return 0


def _check(paths: tuple[Path, ...], as_json: bool) -> int:
    from weighbridge.reports.hash.checksum_files import check, check_names, digest_in_name
    from weighbridge.reports.hash.digests import files_of

    by_name = any(digest_in_name(file) for path in paths[:1] for file in files_of(path))
    report = check_names(paths) if by_name else check(paths[0], paths[1:])
    if as_json:
        emit_json(report)
        return int(bool(report.mismatched or report.missing))
    for result in report.results:
        if result.status == "ok":
            echo(clean(f"{result.name}: ok"))
        else:
            computed = f", found {result.found}" if result.found else ""
            warn(clean(f"{result.name}: {result.status}, {result.algo} should be {result.expected}{computed}"))
    echo(f"{report.ok:,} ok, {report.mismatched:,} differ, {report.missing:,} missing")
    return int(bool(report.mismatched or report.missing))
