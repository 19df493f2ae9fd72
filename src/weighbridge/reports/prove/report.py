"""Proves that two models are the same in different forms, in three steps:

    prove("model/", "model.gguf") -> ProveReport

    settings, tokenizer    every setting means the same to the programs that load it (`static.py`)
    tensors                no tensor differs by more than its type implies (`values.py`)
    tokens, predictions    both compute the same in their runtimes (`running.py`)

A check that isn't possible is "not-checked", and a report with one is never "same".
"""

from __future__ import annotations

import os
from typing import Literal

from weighbridge.base.errors import UsageError
from weighbridge.io.location import path_text
from weighbridge.models.open import SourceOptions, open_model
from weighbridge.reports.prove import running, values
from weighbridge.reports.prove import static as fields
from weighbridge.reports.prove.model import Progress, ProveReport


def prove(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    static: bool = False,
    run: bool = True,
    text: str | os.PathLike[str] | None = None,
    tokens: int = 256,
    arch_file: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ProveReport:
    """Compares the model `dst` with `src`: settings, tokenizer, tensors, and the results that both compute in their
    runtimes.

    `static`: only settings and tokenizer, from headers. `run`: whether to use the runtimes. `text`: a file whose
    perplexity is compared too. `tokens`: the number of positions to compare. `arch_file`: a family table for both.
    Raises OSError, FormatError, UnsupportedError, and UsageError for contradictory options.
    """
    if text is not None and (static or not run):
        raise UsageError("--text needs the models to run", hint="leave out --static and --no-run")
    if not running.SHORTEST <= tokens <= running.LONGEST:
        raise UsageError(f"{tokens} positions can't be compared", hint=f"{running.SHORTEST} to {running.LONGEST}")
    options = SourceOptions(arch_file=arch_file)
    with open_model(src, options) as a, open_model(dst, options) as b:
        checks = [*fields.checks(a, b)]
        notes: list[str] = []
        if not static:
            tensors = values.check(a, b, jobs, progress)
            checks.append(tensors.check)
            notes += tensors.notes
            if run:
                checks += running.checks(a, b, tensors.bounds, running.Amounts(tokens, text), progress)
                notes += running.notes(a, b)
        checks = fields.settled(checks)
        verdicts = {check.verdict for check in checks}
        verdict: Literal["same", "different", "incomplete"] = "different"
        if "different" not in verdicts:
            verdict = "incomplete" if "not-checked" in verdicts or not checks else "same"
        return ProveReport(path_text(src), path_text(dst), verdict, tuple(checks), tuple(notes))
