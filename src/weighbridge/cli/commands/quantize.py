"""`wb quantize`: llama-quantize for any source, with the same option names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.api.keywords import QuantizeKeywords
from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import command, examples
from weighbridge.cli.render import Progress
from weighbridge.cli.values import QuantizeWord
from weighbridge.cli.views import quantize as view
from weighbridge.cli.views.plan import TargetCommand, planned, write
from weighbridge.conversion.options import IN_PLACE_OF_TYPE
from weighbridge.io.sink import check_target


class Request(NamedTuple):
    """The parsed arguments. `target` None: next to the source, with llama-quantize's file name."""

    source: Path
    target: str | Path | None
    ftype: str
    threads: int | None = None


def parse_words(words: tuple[str, ...], output: str | None, sized: bool = False) -> Request:
    """Parses `SRC [DST] TYPE [THREADS]` like llama-quantize, or only `SRC DST` if `sized`, since the size then
    determines the types. Raises UsageError for invalid arguments."""
    from weighbridge.conversion.quantize.ftypes import ftype_names, parse_ftype
    from weighbridge.conversion.quantize.type_hints import refusal

    if not words:
        raise UsageError("no source was given", hint="wb quantize SRC DST TYPE")
    types = {name.upper() for name in ftype_names()}
    if len(words) > 1 and words[0].upper() in types and not Path(words[0]).exists():
        line = " ".join([*words[1:], words[0]])
        raise UsageError(f"the type {words[0]} comes last", hint=f"wb quantize {line}")
    source, after = resolve_path(words[0]), list(words[1:])
    if sized:
        if len(after) + (output is not None) != 1:
            raise UsageError(
                "no target was given",
                hint="with --target-size, --target-bpw or --recipe: wb quantize SRC DST, and no TYPE",
            )
        return Request(source, output or after[0], "")
    named = [i for i, word in enumerate(after) if word.upper() in types or word.isdigit()]
    if output is None and after and not (named and named[0] == 0):
        output = after.pop(0)
    if output == "-":
        raise UsageError("a model can't be written to standard output", hint="wb quantize SRC DST TYPE")
    if not after:
        if output is not None and (refused := refusal(output)):
            raise refused
        raise UsageError("no type was given", hint=f"wb quantize SRC DST TYPE, TYPE one of {', '.join(ftype_names())}")
    ftype, *more = after
    if more and not (len(more) == 1 and more[0].isdigit() and int(more[0]) > 0):
        raise UsageError(
            f"{more[0]!r} after the type {ftype} is not a number of threads", hint="wb quantize SRC DST TYPE"
        )
    parse_ftype(ftype)
    return Request(source, output, ftype, int(more[0]) if more else None)


@dataclass(frozen=True, kw_only=True)
class QuantizeCommand(QuantizeKeywords, TargetCommand):
    tensor_type_file: Path | None = option(
        "A file of pairs for --tensor-type, separated by white space.", metavar="FILE", kind="existing file",
        section="Types",
    )  # fmt: skip
    save_recipe: Path | None = option(
        "Write each tensor's type to FILE, for --recipe or llama-quantize's --tensor-type-file.", metavar="FILE",
        kind="path", section="Types",
    )  # fmt: skip
    report: Path | None = option(
        "Then measure the errors: print a table, and write FILE (.json, .html or .svg).", metavar="FILE", kind="path",
        section="Output",
    )  # fmt: skip


@command(
    QuantizeCommand,
    epilog=examples(
        "wb quantize ./my-model/ my-model.gguf Q4_K_M",
        "wb quantize model-f16.gguf Q5_K_S",
        "wb quantize model.gguf small.gguf IQ2_XS --imatrix imatrix.gguf",
        "wb quantize model.gguf out.gguf Q4_K_M --tensor-type 'attn_v=q8_0' --token-embedding-type q8_0",
        "wb quantize ./my-model/ my-model.gguf Q3_K_M --report errors.html",
        "wb quantize ./my-model/ my-model.gguf --target-bpw 4.5 --imatrix imatrix.gguf",
        "wb quantize ./my-model/ my-model.gguf --target-size 4.2GB --imatrix auto --text calibration.txt",
        "wb quantize ./my-model/ my-model.gguf --target-bpw 4.5 --save-recipe my-model.recipe",
        "wb quantize ./my-fine-tune/ my-fine-tune.gguf --recipe my-model.recipe",
        "wb quantize ./my-model/ my-model.gguf Q4_K_M --lora ./adapter/",
        "wb quantize ./my-model/ Q4_K_M --dry-run",
        "wb quantize ggml-base.en.bin ggml-base.en-q5_0.bin Q5_0",
    ),
)
@click.argument("words", nargs=-1, type=QuantizeWord(), metavar="SRC [DST] TYPE [THREADS]")
def quantize(words: tuple[str, ...], options: QuantizeCommand) -> int:
    """Quantize the model SRC to the GGUF DST, with the bytes that llama-quantize writes.

    SRC is a GGUF, a model folder (safetensors, MLX, PyTorch) or a file of one. No intermediate file is written.
    Without DST the file is ggml-model-TYPE.gguf next to SRC. TYPE is a type of llama-quantize, in any case, or
    its number: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K, IQ1_S IQ1_M
    IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS, TQ1_0 TQ2_0, MXFP4_MOE, Q1_0 Q2_0, F32
    F16 BF16; COPY keeps every tensor's type.

    A Whisper becomes a whisper.cpp file, with the bytes of whisper.cpp's quantize, if SRC is such a file or DST is
    named ggml-NAME.bin. Its types are F32 F16, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K Q3_K Q4_K Q5_K Q6_K.
    """
    import weighbridge
    from weighbridge.conversion.quantize.inputs import read_recipe
    from weighbridge.conversion.quantize.plan import default_target

    request = parse_words(words, options.output, not set(IN_PLACE_OF_TYPE).isdisjoint(options.given))
    pairs = options.tensor_type_file
    listed = () if pairs is None else read_recipe(pairs).split()
    changed = {"tensor_type": (*options.tensor_type, *listed), "jobs": options.jobs or request.threads}
    keywords = options.keywords(weighbridge.plan_quantize) | changed | {"ftype": request.ftype}
    target = request.target or default_target(request.source, request.ftype, options.keep_split)
    if options.report is not None:
        view.check_report(options.report, options.overwrite)
    if options.save_recipe is not None:
        check_target(options.save_recipe, overwrite=options.overwrite, folder=False)
    with Progress(noun="pass") as progress:  # over the text, to choose types
        keywords["progress"] = progress
        plan = planned(weighbridge.plan_quantize, request.source, target, options, keywords)
    if plan.format != "gguf":
        for name in (name for name in ("report", "save_recipe") if getattr(options, name) is not None):
            plan.close()
            raise UsageError(f"--{name.replace('_', '-')} doesn't apply to a whisper.cpp file")
    if options.save_recipe is not None:
        view.save_recipe(plan, options.save_recipe, options.overwrite)
    if options.dry_run:
        return view.show_plan(plan, options)
    write(plan, options)
    if options.report is not None:
        types = options.keywords(weighbridge.compare_quantized) | changed
        with Progress() as progress:
            errors = weighbridge.compare_quantized(request.source, plan.target, progress=progress, **types)
        view.print_report(errors, options.report, plan.target.name, options)
    return 0
