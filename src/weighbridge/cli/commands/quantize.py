"""`wb quantize`: llama-quantize's command, from any source. The options are spelled as it spells them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.cli.commands.plans import print_losses, print_notes, print_result
from weighbridge.cli.options import examples, jobs_option, json_option, resume_option, size_option
from weighbridge.cli.render import SCREEN, Cell, Column, Progress, echo, emit_json, human_bytes, pairs, table, warn

if TYPE_CHECKING:
    from weighbridge.conversion.quantize.inputs import QuantizeOptions
    from weighbridge.conversion.quantize.plan import QuantizePlan, TensorRow


class Request(NamedTuple):
    """What the words on the command line ask for; `target` None: beside the source, under llama-quantize's name."""

    source: Path
    target: Path | None
    ftype: str
    threads: int | None = None


def understood(words: tuple[str, ...], output: Path | None, sized: bool = False) -> Request:
    """`SRC [DST] TYPE [THREADS]`, as llama-quantize takes them; `sized`: `SRC DST` alone, the types follow from a size.
    UsageError where they make no sense."""
    from weighbridge.conversion.quantize.ftypes import ftype_names

    if not words:
        raise UsageError("no source was given", hint="wb quantize SRC DST TYPE")
    known = {name.upper() for name in ftype_names()}
    source, rest = Path(words[0]), list(words[1:])
    if sized:
        if len(rest) + (output is not None) != 1:
            raise UsageError("where to?", hint="with --target-size or --target-bpw: wb quantize SRC DST, and no TYPE")
        return Request(source, output or Path(rest[0]), "")
    named = [i for i, word in enumerate(rest) if word.upper() in known or word.isdigit()]
    if output is None and rest and not (named and named[0] == 0):
        output = Path(rest.pop(0))
    if not rest:
        raise UsageError("which type?", hint=f"wb quantize SRC DST TYPE, TYPE one of {', '.join(ftype_names())}")
    ftype, *more = rest
    if more and not (len(more) == 1 and more[0].isdigit() and int(more[0]) > 0):
        raise UsageError(f"{more[0]!r} after the type {ftype} is no number of threads", hint="wb quantize SRC DST TYPE")
    return Request(source, output, ftype, int(more[0]) if more else None)


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    if value is None:
        return ()
    parts = value.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) for part in parts):
        raise click.BadParameter(f"{value!r} is no list of layers; write 4,5,6")
    return tuple(sorted({int(part) for part in parts}))


def _patterns(ctx: click.Context, param: click.Parameter, value: Path | None) -> tuple[str, ...]:
    return () if value is None else tuple(value.read_text("utf-8", "surrogateescape").split())


_FILE: Final = click.Path(path_type=Path)
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.argument("words", nargs=-1, metavar="SRC [DST] TYPE [THREADS]"),
    click.option("-o", "--output", type=_FILE, help="The target, where DST isn't given."),
    click.option("--imatrix", type=_FILE, metavar="FILE", help="Importance matrix, GGUF or the older form."),
    click.option("--include-weights", multiple=True, metavar="NAME", help="Use only its entries with NAME in them."),
    click.option("--exclude-weights", multiple=True, metavar="NAME", help="Leave out its entries with NAME in them."),
    size_option("--target-size", help="Choose types so that the file is at most this large."),
    click.option(
        "--target-bpw", type=click.FloatRange(0, 32, min_open=True), metavar="BITS",
        help="Choose types for so many bits per weight.",
    ),
    click.option("--pure", is_flag=True, help="All tensors the same type, no mixture."),
    click.option("--leave-output-tensor", is_flag=True, help="Leave output.weight as it is."),
    click.option("--output-tensor-type", metavar="TYPE", help="Type of output.weight."),
    click.option("--token-embedding-type", metavar="TYPE", help="Type of the token embeddings."),
    click.option(
        "--tensor-type", multiple=True, metavar="REGEX=TYPE",
        help="Type of the tensors in whose name REGEX is found; the first that fits counts.",
    ),
    click.option(
        "--tensor-type-file", "patterns", type=click.Path(path_type=Path, exists=True, dir_okay=False),
        callback=_patterns, metavar="FILE", help="A file of such, separated by white space.",
    ),
    click.option("--prune-layers", callback=_layers, metavar="L0,L1", help="Leave these layers out."),
    click.option("--override-kv", multiple=True, metavar="KEY=TYPE:VALUE", help="Set a key (int, float, bool, str)."),
    click.option("--keep-split", is_flag=True, help="Write the shards of the source, into the folder DST."),
    click.option("--allow-requantize", is_flag=True, help="Quantize what is quantized already (loses more)."),
    click.option("--pre", metavar="NAME", help="Pre-tokenizer to write, where it isn't recognised."),
    click.option("--tokenizer/--no-tokenizer", default=True, help="Convert the tokenizer of a folder too [yes]."),
    click.option("--name", metavar="NAME", help="Model name to write [from the source]."),
    click.option("--align", type=click.IntRange(1), metavar="N", help="Alignment of the tensors in bytes."),
    size_option("--max-memory", help="Most memory to hold beside the interpreter."),
    click.option("--overwrite", is_flag=True, help="Replace DST where it exists."),
    resume_option,
    click.option(
        "--report", type=_FILE, metavar="FILE", help="Measure the errors then: a table, and FILE: .json, .html or .svg."
    ),
    click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing."),
    jobs_option,
    json_option,
)  # fmt: skip


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(
    epilog=examples(
        "wb quantize ./my-model/ my-model.gguf Q4_K_M",
        "wb quantize model-f16.gguf Q5_K_S",
        "wb quantize model.gguf small.gguf IQ2_XS --imatrix imatrix.gguf",
        "wb quantize model.gguf out.gguf Q4_K_M --tensor-type 'attn_v=q8_0' --token-embedding-type q8_0",
        "wb quantize ./my-model/ my-model.gguf Q3_K_M --report errors.html",
        "wb quantize ./my-model/ my-model.gguf --target-bpw 4.5 --imatrix imatrix.gguf",
        "wb quantize ./my-model/ Q4_K_M --dry-run",
    )
)
@_with_options
def command(
    words: tuple[str, ...],
    output: Path | None,
    dry_run: bool,
    as_json: bool,
    patterns: tuple[str, ...],
    report: Path | None,
    **options: Any,
) -> int:
    """Quantize the model SRC to the GGUF DST, as llama-quantize would: the same bytes.

    SRC is a GGUF, a model folder (safetensors, MLX, PyTorch) or a file of it; nothing lies in between. Without DST the
    file is called ggml-model-TYPE.gguf and put beside SRC. TYPE is one of llama-quantize's, in any case, or its number:
    Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K, IQ1_S IQ1_M IQ2_XXS
    IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS, TQ1_0 TQ2_0, MXFP4_MOE, Q1_0 Q2_0, F32 F16 BF16; COPY
    changes no tensor.
    """
    from weighbridge.conversion.quantize.inputs import QuantizeOptions
    from weighbridge.conversion.quantize.plan import default_target

    request = understood(words, output, options["target_bpw"] is not None or options["target_size"] is not None)
    options["tensor_type"] = (*options["tensor_type"], *patterns)
    options["jobs"] = options["jobs"] or request.threads
    chosen = QuantizeOptions(**options)
    target = request.target or default_target(request.source, request.ftype, chosen.keep_split)
    if dry_run:
        return _show(request.source, target, request.ftype, chosen, as_json)
    return _quantize(request.source, target, request.ftype, chosen, as_json, report)


def _show(source: Path, target: Path, ftype: str, options: QuantizeOptions, as_json: bool) -> int:
    """The plan; exit code 1 where something stands in the way."""
    import weighbridge

    plan = weighbridge.plan_quantize(source, target, ftype, options=options)
    if as_json:
        emit_json(plan.describe())
    else:
        _print_plan(plan)
    return 1 if plan.refusals else 0


def _quantize(
    source: Path, target: Path, ftype: str, options: QuantizeOptions, as_json: bool, report: Path | None
) -> int:
    import weighbridge

    if report is not None:
        _check_report(report, options.overwrite)
    with Progress() as progress:
        result = weighbridge.quantize(source, target, ftype, options=options, progress=progress)
    if as_json:
        emit_json(result)
    else:
        print_result(result)
    return 0 if report is None else _measure(source, Path(result.target), options, report, as_json)


# -- the report ------------------------------------------------------------------------------------------------------


def _check_report(path: Path, overwrite: bool) -> None:
    """What would stand in its way is told before the work, not after it."""
    from weighbridge.reports.diff.quality_page import form_of

    form_of(path)
    if path.exists() and not overwrite:
        raise RefusedError(f"{path} exists already", option="--overwrite")


def _measure(source: Path, target: Path, options: QuantizeOptions, path: Path, as_json: bool) -> int:
    """The errors of what was written: into the file, and the worst of them on the screen."""
    import weighbridge
    from weighbridge.io.sink import write_file
    from weighbridge.reports.diff.quality_page import cells, render

    with Progress() as progress:
        found = weighbridge.quality(source, target, options=options, progress=progress)
    write_file(path, render(found, path, target.name), overwrite=options.overwrite)
    if not as_json:
        weighted = None if found.weighted is None else f"{found.weighted:.4g}"
        total = [("NMSE", f"{found.nmse:.4g}"), ("weighted", weighted), ("cosine", f"{found.cosine:.6f}")]
        pairs([*total, ("largest error", f"{found.max_error:.4g}"), ("report", path)])
        echo()
        heads = ("worst", "shape", "from", "to", "bytes", "NMSE", "weighted", "max error", "cosine")
        table([Column(h, right=i > 3) for i, h in enumerate(heads)], [cells(q) for q in found.worst])
    return 0


# -- the plan --------------------------------------------------------------------------------------------------------


def _print_plan(plan: QuantizePlan) -> None:
    before, after = (sum(getattr(r, f) for r in plan.rows) for f in ("source_bytes", "target_bytes"))
    pairs(
        [
            ("source", plan.source),
            ("target", plan.target),
            ("type", plan.ftype or "chosen for the size"),
            ("size", f"{human_bytes(plan.size, exact=True)}, {plan.bits:.2f} bits per weight"),
            ("tensors", f"{human_bytes(before)} -> {human_bytes(after)}"),
            ("memory", f"{human_bytes(plan.memory)} at most, beside the interpreter"),
        ]
    )
    echo()
    heads = (*map(Column, ("tensor", "shape", "from", "to")), Column("size", right=True), Column(""))
    table(heads, [_line(*group) for group in _grouped(plan.rows)])
    print_losses(plan.losses)
    print_notes(plan.notes)
    for message, names in _refused(plan).items():
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        warn(f"refused: {names[0]}{more}: {message}")


def _refused(plan: QuantizePlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for refusal in plan.refusals:
        found.setdefault(refusal.message, []).append(refusal.tensor)
    return found


_LAYER: Final = re.compile(r"(?<=blk\.)\d+(?=\.)")


def _grouped(rows: Iterable[TensorRow]) -> list[tuple[str, list[TensorRow]]]:
    """Tensors of several layers that fare alike in one line; each by itself with --verbose."""
    groups: dict[tuple[Any, ...], list[TensorRow]] = {}
    for row in rows:
        kind = row.name if SCREEN.verbose else _LAYER.sub("*", row.name, count=1)
        groups.setdefault((kind, row.shape, row.source, row.target, row.wanted, row.weighted), []).append(row)
    return [(_named(key[0], found), found) for key, found in groups.items()]


def _named(kind: str, rows: list[TensorRow]) -> str:
    numbers = [int(found[0]) for row in rows if (found := _LAYER.search(row.name))]
    return kind.replace("*", _ranges(numbers), 1) if len(numbers) > 1 else rows[0].name


def _ranges(numbers: Iterable[int]) -> str:
    """`{0-3,7}`."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return "{" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) + "}"


def _line(name: str, rows: list[TensorRow]) -> tuple[Cell, ...]:
    first = rows[0]
    remarks = [f"instead of {first.wanted}" if first.wanted else "", "weighted" if first.weighted else ""]
    size = human_bytes(sum(row.target_bytes for row in rows))
    to = first.target if first.target != first.source else "="
    shape = " x ".join(map(str, first.shape))
    return name, shape, first.source, to, size, ", ".join(filter(None, remarks))
