"""Extracts a LoRA adapter from two models."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from weighbridge.api.keywords import ExtractKeywords
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.closeable import OpenTogether
from weighbridge.base.options import accepting
from weighbridge.conversion.extraction.plan import ExtractPlan, plan_extract
from weighbridge.conversion.options import Path
from weighbridge.models.open import SourceOptions, open_model
from weighbridge.models.wrapped import for_the_table


@accepting(ExtractKeywords)
def plan_extract_lora(base: Path, tuned: Path, dst: Path, options: ExtractKeywords) -> ExtractPlan:
    """Plans to write the LoRA adapter that makes the model `tuned` of `base` to `dst`, a folder of PEFT or a GGUF.
    Decomposes each difference, so it reads all values; `plan.report` has the rank and the error of each matrix."""
    with ExitStack() as stack:
        opened = (open_model(path, SourceOptions(arch_file=options.arch_file)) for path in (base, tuned))
        models = [for_the_table(stack.enter_context(model)) for model in opened]
        plan = plan_extract(models[0], models[1], dst, options.to, options, options, options, options.progress)
        return replace(plan, model=OpenTogether(stack))


extract_lora = planned_and_run(
    plan_extract_lora, "Extracts a LoRA adapter; the arguments are those of `plan_extract_lora`."
)
