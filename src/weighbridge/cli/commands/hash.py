"""`wb hash`: computes and checks digests of files, of tensors and of a model's weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.plain import plain
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples, refuse_others
from weighbridge.cli.render import Progress, clean, echo, emit_json, is_terminal, warn, write_bytes
from weighbridge.cli.values import SOURCE, is_standard_input
from weighbridge.io.options import OverwriteOptions
from weighbridge.reports.options import HashOptions


@dataclass(frozen=True, kw_only=True)
class HashCommand(HashOptions, OverwriteOptions, CommandOptions):
    gguf_hash: bool = option("Print the lines of llama-gguf-hash: only the bytes of tensors.", False)
    manifest: str | None = option("Write the digests there, as JSON.", metavar="FILE", kind="file")
    check: bool = option(
        "Compare with the list PATH [of the file or folder FILE], or with file names.", False, letter="c"
    )


@command(
    HashCommand,
    epilog=examples(
        "wb hash ./my-model/ > SHA256SUMS",
        "wb hash --check SHA256SUMS",
        "curl -L https://example.org/model.gguf | wb hash -",
        "wb hash model.safetensors --tensors --manifest model.hash.json",
        "wb hash model.gguf --gguf-hash --algo sha1 --algo uuid",
        "wb hash --check ~/.ollama/models/blobs/",
    ),
)
@click.argument("paths", nargs=-1, type=SOURCE)
def hash(paths: tuple[str, ...], options: HashCommand) -> int:
    """Print digests of files as sha256sum does, or of tensors; write them to a list; check a list.

    A tensor's digest covers its type, shape and bytes in C order, so it is the same in every container. With --check
    the first PATH is a list (SHA256SUMS, llama-gguf-hash, a manifest of this command, a Git LFS pointer, an Ollama
    manifest), or is in a store that names files by their digests. Exit code 1 if something differs or is missing.
    """
    if not paths:
        raise UsageError("no path was given", hint="wb hash PATH")
    others = ("tensors", "manifest", "overwrite", "jobs")
    if options.check:
        refuse_others("--check", options, ("algo", "gguf_hash", *others), hint="the list determines it")
        return _check(tuple(map(resolve_path, paths)), options.json)
    if options.gguf_hash:
        refuse_others("--gguf-hash", options, others, hint="it prints a line for each tensor")
        from weighbridge.reports.hash.digests import gguf_hash as hashes_of

        algorithms = (options.algo,) if isinstance(options.algo, str) else options.algo
        lines = [line for path in paths for line in hashes_of(resolve_path(path), algorithms)]
        if options.json:
            emit_json(lines)
        for line in () if options.json else lines:
            echo(clean(str(line)))
        return 0
    return _hash(paths, options)


def _hash(paths: tuple[str, ...], options: HashCommand) -> int:
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.hash.digests import hash as hash_paths

    manifest, overwrite = options.manifest, options.overwrite
    if not isinstance(options.algo, str) and len(options.algo) > 1:
        raise UsageError("only one digest is computed at a time", hint="--gguf-hash accepts several")
    if manifest is not None:
        check_target(manifest, overwrite=overwrite, folder=False)
    elif overwrite:
        raise UsageError("--overwrite replaces a manifest", hint="write one with --manifest FILE")
    with Progress() as progress:
        report = hash_paths(paths, progress=progress, **options.keywords(hash_paths))
    if manifest is not None:
        import json

        write_file(manifest, (json.dumps(plain(report), indent=1) + "\n").encode(), overwrite=overwrite)
    if options.json:
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
        for note in report.notes:
            warn(clean(note))
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
