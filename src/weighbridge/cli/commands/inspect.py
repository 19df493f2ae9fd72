"""`wb inspect`: what is inside. Summary, tensor tree or rows, metadata."""

from __future__ import annotations

from typing import Any

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples, json_option, option


@command(
    epilog=examples(
        "wb inspect ./my-model/",
        "wb inspect model.gguf --metadata",
        "wb inspect model.safetensors --filter 'size>1MB' --sort size:desc --limit 20",
        "wb inspect model.gguf::token_embd.weight",
        "wb inspect imatrix.gguf --model ./my-model/",
    )
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@option("--tensors", is_flag=True, help="List the tensors (implied by a filter, a glob, --sort or --limit).")
@option("--tree", is_flag=True, help="Show the tree of names only.")
@option("--metadata", is_flag=True, help="Show the metadata only.")
@option("--filter", multiple=True, metavar="EXPR", help="Only tensors that satisfy it: 'size>1MB and dtype=F16'.")
@option("--include", multiple=True, metavar="GLOB", help="Only tensors whose name matches.")
@option("--exclude", multiple=True, metavar="GLOB", help="Not those whose name matches.")
@option("--sort", metavar="FIELD[:desc]", help="name, size, params, offset, dtype, rank, rows or file.")
@option("--limit", type=click.IntRange(0), metavar="N", help="Show the first N rows.")
@option("--model", metavar="MODEL", help="For an importance matrix: check that it fits this model.")
@json_option
def inspect(
    paths: tuple[str, ...],
    tensors: bool,
    tree: bool,
    metadata: bool,
    model: str | None,
    as_json: bool,
    **selection: Any,
) -> int:
    """Show what is inside each PATH: a file, a folder, one file of a sharded set, or PATH::TENSOR for a single tensor.

    Reads headers and config files only, whatever the size of the model. For an importance matrix (GGUF or .dat) shows
    its entries and their statistics; --tensors lists a GGUF's tensors instead. Exit code 1 where no tensor passes the
    filters, or an importance matrix doesn't fit --model. docs/schema.md describes the JSON.
    """
    rows = tensors or any(selection.values()) or selection["limit"] is not None
    codes = []
    for path in paths:
        if not (rows or tree or metadata) and _is_importance(path):
            codes.append(_importance(path, model, as_json))
        elif model is not None:
            raise UsageError("--model applies to an importance matrix", hint="wb diff compares two models")
        else:
            codes.append(_inspect(path, rows, tree, metadata, as_json, dict(selection)))
    return max(codes)


def _is_importance(path: str) -> bool:
    import os
    from pathlib import Path

    from weighbridge.adapters.remote.schemes import resolve_path
    from weighbridge.containers.ggml import imatrix
    from weighbridge.io.location import is_remote, open_source

    if is_remote(path):
        path, _, tensor = path.partition("::")
        found = resolve_path(path)
        if tensor or not found.is_file():
            return False
    elif not os.path.isfile(path):
        return False
    else:
        found = Path(path)
    with open_source(found) as source:
        return imatrix.recognised(source)


def _importance(path: str, model: str | None, as_json: bool) -> int:
    import weighbridge
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import imatrix as view

    report = weighbridge.inspect_imatrix(path, model=model)
    if as_json:
        emit_json(report)
    else:
        view.show(report)
    return int(report.fit is not None and not report.fit.fits)


def _inspect(path: str, rows: bool, tree: bool, metadata: bool, as_json: bool, selection: dict[str, Any]) -> int:
    from weighbridge.base.limits import TREE_LINES, TREE_TENSORS
    from weighbridge.cli.render import clean, emit_json, note
    from weighbridge.reports.inspect.report import inspect

    if not (as_json or rows or tree):
        selection["limit"] = 0 if metadata else TREE_TENSORS
    report = inspect(path, **selection)
    none_match = rows and not report.selected and selection["limit"] != 0
    if as_json:
        emit_json(report)
        return int(none_match)
    from weighbridge.cli.views import inspect as view

    if none_match:
        note(f"no tensor of {clean(path)} matches")
        return 1

    one = len(report.tensors) == 1 and "::" in path
    if one:
        view.one(report)
    elif not (tree or metadata or rows):
        view.summary(report)
        view.schemes(report)
        view.tree(report, TREE_LINES)
        view.metadata(report, brief=True)
    for wanted, show in ((tree, view.tree), (rows and not one, view.rows), (metadata, view.metadata)):
        if wanted:
            show(report)
    view.notes(report)
    return 0
