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
@click.argument("path")
@option("--tensors", is_flag=True, help="List the tensors (implied by a filter, a glob, --sort or --limit).")
@option("--tree", is_flag=True, help="Show the tree of names only.")
@option("--metadata", is_flag=True, help="Show the metadata only.")
@option("--filter", "filters", multiple=True, metavar="EXPR", help="Rows that satisfy it: 'size>1MB', 'dtype=F16'.")
@option("--include", multiple=True, metavar="GLOB", help="Tensors whose name fits.")
@option("--exclude", multiple=True, metavar="GLOB", help="Not those whose name fits.")
@option("--sort", metavar="FIELD[:desc]", help="name, size, params, offset, dtype, rank, rows or file.")
@option("--limit", type=click.IntRange(0), metavar="N", help="Show the first N rows.")
@option("--model", metavar="MODEL", help="Of an importance matrix: what doesn't fit this model (exit code 1).")
@json_option
def inspect(
    path: str, tensors: bool, tree: bool, metadata: bool, model: str | None, as_json: bool, **selection: Any
) -> int:
    """Show what is inside PATH: a file, a folder, one of a set of shards, or PATH::TENSOR for a single tensor.

    Reads headers and config files only, whatever the size of the model. Of an importance matrix (either form) shows the
    entries and their statistics; --tensors and the like show a GGUF one's tensors. The JSON form is described in
    docs/schema.md.
    """
    rows = tensors or any(selection.values()) or selection["limit"] is not None
    if not (rows or tree or metadata) and _is_importance(path):
        return _importance(path, model, as_json)
    if model is not None:
        raise UsageError("--model is for an importance matrix alone", hint="wb diff compares two models")
    _inspect(path, rows, tree, metadata, as_json, selection)
    return 0


def _is_importance(path: str) -> bool:
    import os

    from weighbridge.containers.ggml import imatrix
    from weighbridge.io.source import FileSource

    if not os.path.isfile(path):
        return False
    with FileSource(path) as source:
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


def _inspect(path: str, rows: bool, tree: bool, metadata: bool, as_json: bool, selection: dict[str, Any]) -> None:
    from weighbridge.base.limits import TREE_LINES, TREE_TENSORS
    from weighbridge.cli.render import emit_json
    from weighbridge.reports.inspect.report import inspect

    if not (as_json or rows or tree):
        selection["limit"] = 0 if metadata else TREE_TENSORS
    report = inspect(path, **selection)
    if as_json:
        return emit_json(report)
    from weighbridge.cli.views import inspect as view

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
