"""`wb inspect`: the contents of a model: summary, tensor tree or rows, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.cli.options import CommandOptions, command, examples, refuse_others
from weighbridge.cli.values import SOURCE_OR_TENSOR
from weighbridge.reports.options import InspectOptions

if TYPE_CHECKING:
    from weighbridge.conversion.quantize.imatrix_report import ImatrixReport
    from weighbridge.reports.inspect.report import InspectReport


@dataclass(frozen=True, kw_only=True)
class InspectCommand(InspectOptions, CommandOptions):
    tensors: bool = option("List the tensors (implied by a filter, a glob, --sort or --limit).", False)
    tree: bool = option("Show the tree of names only.", False)
    metadata: bool = option("Show the metadata only.", False)
    model: str | None = option("For an importance matrix: check that it fits this model.", metavar="MODEL")


@command(
    InspectCommand,
    epilog=examples(
        "wb inspect ./my-model/",
        "wb inspect model.gguf --metadata",
        "wb inspect model.safetensors --filter 'size>1MB' --sort size:desc --limit 20",
        "wb inspect model.gguf::token_embd.weight",
        "wb inspect imatrix.gguf --model ./my-model/",
    ),
)
@click.argument("paths", nargs=-1, required=True, type=SOURCE_OR_TENSOR, metavar="PATH...")
def inspect(paths: tuple[str, ...], options: InspectCommand) -> int:
    """Show the contents of each PATH: a file, a folder, one file of a sharded set, or PATH::TENSOR for one tensor.

    Reads only headers and config files. For an importance matrix (GGUF or .dat), shows its entries and their
    statistics; --tensors lists a GGUF's tensors instead. Exit code 1 if no tensor passes the filters, if an importance
    matrix doesn't fit --model, or if a damaged model can be shown only in part. The JSON is an array for several
    models; `wb help schema` describes it.
    """
    from weighbridge.base.limits import TREE_TENSORS
    from weighbridge.reports import tensor_path
    from weighbridge.reports.inspect.report import inspect

    selecting = ("filter", "include", "exclude", "sort", "limit")
    rows = options.tensors or not {*selecting}.isdisjoint(options.given)
    selection = options.keywords(inspect)
    report: InspectReport | ImatrixReport
    shown, codes = [], []
    for path in _models(paths):
        if tensor_path.split(path)[1] is not None:
            refuse_others("one tensor", options, ("tensors", *selecting), hint="it selects tensors of a model")
        if not (rows or options.tree or options.metadata) and _is_imatrix(path):
            from weighbridge.conversion.quantize.imatrix_report import inspect_imatrix

            refuse_others("an importance matrix", options, ("step",), hint="it applies to a training run's folder")
            report = inspect_imatrix(path, model=options.model)
            code = int(report.fit is not None and not report.fit.fits)
        elif options.model is not None:
            raise UsageError("--model applies to an importance matrix", hint="wb diff compares two models")
        else:
            if not (options.json or rows or options.tree):
                selection["limit"] = 0 if options.metadata else TREE_TENSORS
            report = inspect(path, **selection)
            none_match = rows and not report.selected and options.limit != 0
            code = int(none_match or bool(report.damage))
        codes.append(code)
        shown.append(report)
        if not options.json:
            _show(path, report, rows, options)
    if options.json:
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
    from weighbridge.io.location import expect, open_source
    from weighbridge.models.locate import HEADER
    from weighbridge.reports.tensor_path import split

    file, tensor = split(path)
    if tensor is not None or not file.is_file():
        return False
    expect([file], HEADER)
    with open_source(file) as source:
        return imatrix.recognised(source)


def _show(path: str, report: InspectReport | ImatrixReport, rows: bool, options: InspectCommand) -> None:
    from weighbridge.base.limits import TREE_LINES
    from weighbridge.cli.render import clean, note
    from weighbridge.cli.views import inspect as view
    from weighbridge.reports.inspect.report import InspectReport
    from weighbridge.reports.tensor_path import names_tensor

    if not isinstance(report, InspectReport):
        from weighbridge.cli.views import imatrix

        return imatrix.show(report)
    if rows and not report.selected and report.tensor_count:
        return note(clean(f"no tensor of {path} matches {' and '.join(options.filter) or 'all options'}"))
    single = len(report.tensors) == 1 and names_tensor(path)
    if single:
        view.one(report)
    elif not (options.tree or options.metadata or rows):
        view.summary(report)
        view.schemes(report)
        view.tree(report, TREE_LINES)
        view.metadata(report, brief=True)
    listed = (options.tree, view.tree), (rows and not single, view.rows), (options.metadata, view.metadata)
    for requested, show in listed:
        if requested:
            show(report)
    return view.notes(report)
