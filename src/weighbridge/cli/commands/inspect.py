"""`wb inspect`: the contents of a model: summary, tensor tree or rows, metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.cli.options import arch_file_option, command, examples, json_option, option, refuse_others
from weighbridge.cli.values import SOURCE_OR_TENSOR

if TYPE_CHECKING:
    from weighbridge.conversion.quantize.imatrix_report import ImatrixReport
    from weighbridge.reports.inspect.report import InspectReport


@command(
    epilog=examples(
        "wb inspect ./my-model/",
        "wb inspect model.gguf --metadata",
        "wb inspect model.safetensors --filter 'size>1MB' --sort size:desc --limit 20",
        "wb inspect model.gguf::token_embd.weight",
        "wb inspect imatrix.gguf --model ./my-model/",
    )
)
@click.argument("paths", nargs=-1, required=True, type=SOURCE_OR_TENSOR, metavar="PATH...")
@option("--tensors", is_flag=True, help="List the tensors (implied by a filter, a glob, --sort or --limit).")
@option("--tree", is_flag=True, help="Show the tree of names only.")
@option("--metadata", is_flag=True, help="Show the metadata only.")
@option("--filter", multiple=True, metavar="EXPR", help="Only tensors that satisfy it: 'size>1MB and dtype=F16'.")
@option("--include", multiple=True, metavar="GLOB", help="Only tensors whose name matches.")
@option("--exclude", multiple=True, metavar="GLOB", help="Not those whose name matches.")
@option("--sort", metavar="FIELD[:desc]", help="name, size, params, offset, dtype, rank, rows or file.")
@option("--limit", type=click.IntRange(0), metavar="N", help="Show the first N rows.")
@option("--model", metavar="MODEL", help="For an importance matrix: check that it fits this model.")
@arch_file_option
@json_option
def inspect(
    paths: tuple[str, ...],
    tensors: bool,
    tree: bool,
    metadata: bool,
    model: str | None,
    arch_file: Path | None,
    as_json: bool,
    **selection: Any,
) -> int:
    """Show the contents of each PATH: a file, a folder, one file of a sharded set, or PATH::TENSOR for one tensor.

    Reads only headers and config files. For an importance matrix (GGUF or .dat), shows its entries and their
    statistics; --tensors lists a GGUF's tensors instead. Exit code 1 if no tensor passes the filters, if an importance
    matrix doesn't fit --model, or if a damaged model can be shown only in part. The JSON is an array for several
    models; schema.md in the docs describes it.
    """
    from weighbridge.base.limits import TREE_TENSORS
    from weighbridge.reports import tensor_path
    from weighbridge.reports.inspect.report import inspect

    rows = tensors or any(selection.values()) or selection["limit"] is not None
    report: InspectReport | ImatrixReport
    shown, codes = [], []
    for path in _models(paths):
        if tensor_path.split(path)[1] is not None:
            choosing = {"--tensors": tensors, **{f"--{name}": value for name, value in selection.items()}}
            refuse_others("one tensor", choosing, hint="it selects tensors of a model")
        if not (rows or tree or metadata) and _is_imatrix(path):
            from weighbridge.conversion.quantize.imatrix_report import inspect_imatrix

            report = inspect_imatrix(path, model=model)
            code = int(report.fit is not None and not report.fit.fits)
        elif model is not None:
            raise UsageError("--model applies to an importance matrix", hint="wb diff compares two models")
        else:
            limit = selection["limit"]
            if not (as_json or rows or tree):
                limit = 0 if metadata else TREE_TENSORS
            report = inspect(path, **{**selection, "limit": limit}, arch_file=arch_file)
            none_match = rows and not report.selected and limit != 0
            code = int(none_match or bool(report.damage))
        codes.append(code)
        shown.append(report)
        if not as_json:
            _show(path, report, rows, tree, metadata, selection["filter"])
    if as_json:
        from weighbridge.cli.render import emit_json

        emit_json(shown[0] if len(shown) == 1 else shown)
    return max(codes)


def _models(paths: tuple[str, ...]) -> Iterator[str]:
    """The paths, with a file of each model instead of a folder with several models."""
    from weighbridge.cli.render import clean, note
    from weighbridge.models.locate import models_in
    from weighbridge.reports.tensor_path import split

    for path in paths:
        several = models_in(split(path)[0])
        if several:
            note(clean(f"note: {path} contains {plural(len(several), 'model')}; each is shown"))
        yield from map(str, several or (path,))


def _is_imatrix(path: str) -> bool:
    from weighbridge.containers.ggml import imatrix
    from weighbridge.io.location import open_source
    from weighbridge.models.locate import expect_header
    from weighbridge.reports.tensor_path import split

    file, tensor = split(path)
    if tensor is not None or not file.is_file():
        return False
    expect_header(file)
    with open_source(file) as source:
        return imatrix.recognised(source)


def _show(
    path: str, report: InspectReport | ImatrixReport, rows: bool, tree: bool, metadata: bool, filters: Sequence[str]
) -> None:
    from weighbridge.base.limits import TREE_LINES
    from weighbridge.cli.render import clean, note
    from weighbridge.cli.views import imatrix
    from weighbridge.cli.views import inspect as view
    from weighbridge.reports.inspect.report import InspectReport
    from weighbridge.reports.tensor_path import names_tensor

    if not isinstance(report, InspectReport):
        return imatrix.show(report)
    if rows and not report.selected and report.tensor_count:
        return note(clean(f"no tensor of {path} matches {' and '.join(filters) or 'all options'}"))
    single = len(report.tensors) == 1 and names_tensor(path)
    if single:
        view.one(report)
    elif not (tree or metadata or rows):
        view.summary(report)
        view.schemes(report)
        view.tree(report, TREE_LINES)
        view.metadata(report, brief=True)
    for requested, show in ((tree, view.tree), (rows and not single, view.rows), (metadata, view.metadata)):
        if requested:
            show(report)
    return view.notes(report)
