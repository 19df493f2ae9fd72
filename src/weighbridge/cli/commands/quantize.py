"""`wb quantize`: llama-quantize's command, from any source. The options are spelled as it spells them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.cli.options import applied, command, examples, option, size_option, source_options, write_options
from weighbridge.cli.paths import OUTPUT, PATH, QuantizeWord
from weighbridge.cli.render import Progress
from weighbridge.cli.views import quantize as view
from weighbridge.cli.views.plan import given, planned, write


class Request(NamedTuple):
    """What the words on the command line ask for; `target` None: beside the source, under llama-quantize's name."""

    source: Path
    target: str | Path | None
    ftype: str
    threads: int | None = None


def parse_words(words: tuple[str, ...], output: str | None, sized: bool = False) -> Request:
    """`SRC [DST] TYPE [THREADS]`, as llama-quantize takes them; `sized`: `SRC DST` alone, the types follow from a size.
    UsageError where they make no sense."""
    from weighbridge.conversion.quantize.ftypes import ftype_names

    if not words:
        raise UsageError("no source was given", hint="wb quantize SRC DST TYPE")
    known = {name.upper() for name in ftype_names()}
    source, rest = resolve_path(words[0]), list(words[1:])
    if sized:
        if len(rest) + (output is not None) != 1:
            raise UsageError(
                "no target was given", hint="with --target-size or --target-bpw: wb quantize SRC DST, and no TYPE"
            )
        return Request(source, output or rest[0], "")
    named = [i for i, word in enumerate(rest) if word.upper() in known or word.isdigit()]
    if output is None and rest and not (named and named[0] == 0):
        output = rest.pop(0)
    if output == "-":
        raise UsageError("a model can't be written to standard output", hint="wb quantize SRC DST TYPE")
    if not rest:
        raise UsageError("no type was given", hint=f"wb quantize SRC DST TYPE, TYPE one of {', '.join(ftype_names())}")
    ftype, *more = rest
    if more and not (len(more) == 1 and more[0].isdigit() and int(more[0]) > 0):
        raise UsageError(
            f"{more[0]!r} after the type {ftype} is not a number of threads", hint="wb quantize SRC DST TYPE"
        )
    return Request(source, output, ftype, int(more[0]) if more else None)


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    if value is None:
        return ()
    parts = value.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of layers; write 4,5,6")
    return tuple(sorted({int(part) for part in parts}))


def _patterns(ctx: click.Context, param: click.Parameter, value: Path | None) -> tuple[str, ...]:
    return () if value is None else tuple(value.read_text("utf-8", "surrogateescape").split())


_OPTIONS: Final = (
    click.argument("words", nargs=-1, type=QuantizeWord(), metavar="SRC [DST] TYPE [THREADS]"),
    option("-o", "--output", type=OUTPUT, aliases=("--outfile",), help="The target, instead of DST."),
    option("--imatrix", type=PATH, metavar="FILE", help="Importance matrix (GGUF or .dat)."),
    option("--include-weights", multiple=True, metavar="NAME", help="Use only its entries whose name contains NAME."),
    option("--exclude-weights", multiple=True, metavar="NAME", help="Ignore its entries whose name contains NAME."),
    size_option("--target-size", help="Choose types so that the file is at most this large."),
    option("--target-bpw", type=click.FloatRange(0, 32, min_open=True), metavar="BITS",
           help="Choose types for this many bits per weight."),
    option("--pure", is_flag=True, help="Give all tensors the same type, no mixture."),
    option("--leave-output-tensor", is_flag=True, help="Leave output.weight as it is."),
    option("--output-tensor-type", metavar="TYPE", help="Type of output.weight."),
    option("--token-embedding-type", metavar="TYPE", help="Type of the token embeddings."),
    option("--tensor-type", multiple=True, metavar="REGEX=TYPE",
           help="Type of the tensors whose name matches REGEX; the first match counts."),
    option("--tensor-type-file", "patterns", type=click.Path(path_type=Path, exists=True, dir_okay=False),
           callback=_patterns, metavar="FILE", help="A file of such pairs, separated by white space."),
    option("--prune-layers", callback=_layers, metavar="L0,L1", help="Leave these layers out."),
    option("--override-kv", multiple=True, metavar="KEY=TYPE:VALUE", help="Set a key (int, float, bool, str)."),
    option("--keep-split", is_flag=True, help="Write the shards of the source, into the folder DST."),
    option("--allow-requantize", is_flag=True, help="Quantize tensors that are quantized already (loses more)."),
    option("--tokenizer/--no-tokenizer", default=None, help="Convert the tokenizer of a folder too [yes]."),
    option("--name", metavar="NAME", aliases=("--model-name",), help="Model name [from the source]."),
    option("--pre", metavar="NAME", help="Pre-tokenizer, if a folder's isn't recognized."),
    option("--align", type=click.IntRange(1), metavar="N", help="Alignment of the tensors in bytes."),
    option("--report", type=PATH, metavar="FILE",
           help="Then measure the errors: print a table, and write FILE (.json, .html or .svg)."),
    source_options,
    write_options,
)  # fmt: skip


@command(
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
@applied(_OPTIONS)
def quantize(
    words: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    as_json: bool,
    patterns: tuple[str, ...],
    report: Path | None,
    **options: Any,
) -> int:
    """Quantize the model SRC to the GGUF DST, with the bytes that llama-quantize writes.

    SRC is a GGUF, a model folder (safetensors, MLX, PyTorch) or a file of one; no intermediate file is written.
    Without DST the file is called ggml-model-TYPE.gguf, beside SRC. TYPE is a type of llama-quantize, in any case, or
    its number: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K, IQ1_S IQ1_M
    IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS, TQ1_0 TQ2_0, MXFP4_MOE, Q1_0 Q2_0, F32
    F16 BF16; COPY keeps every tensor's type.
    """
    import weighbridge
    from weighbridge.conversion.quantize.plan import default_target

    request = parse_words(words, output, options["target_bpw"] is not None or options["target_size"] is not None)
    options["tensor_type"] = (*options["tensor_type"], *patterns)
    options["jobs"] = options["jobs"] or request.threads
    target = request.target or default_target(request.source, request.ftype, options["keep_split"])
    if report is not None:
        view.check_report(report, options["overwrite"])
    plan = planned(weighbridge.plan_quantize, request.source, target, options, dry_run=dry_run, ftype=request.ftype)
    if dry_run:
        return view.show_plan(plan, as_json=as_json)
    write(plan, dry_run=False, as_json=as_json)
    if report is not None:
        types = {
            name: value for name, value in given(options).items() if name not in ("resume", "max_memory", "overwrite")
        }
        with Progress() as progress:
            found = weighbridge.compare_quantized(request.source, plan.target, progress=progress, **types)
        view.print_report(found, report, plan.target.name, overwrite=options["overwrite"], as_json=as_json)
    return 0
