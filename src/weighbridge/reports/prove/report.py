"""Whether one model is the other in another form: three steps, each with a verdict of its own.

    prove("model/", "model.gguf") -> ProveReport

    settings, tokenizer    every setting that the loaders take means the same (`static.py`)
    tensors                no tensor differs by more than its type implies (`values.py`)
    tokens, predictions    both give the same in their own runtimes (`running.py`)

A check that couldn't be made is "not-checked", and a report with one is never "same".
"""

from __future__ import annotations

import os
from typing import Literal

from weighbridge.base.errors import UsageError
from weighbridge.models.open import open_model
from weighbridge.reports.prove import running, values
from weighbridge.reports.prove import static as fields
from weighbridge.reports.prove.model import Progress, ProveCheck, ProveReport


def prove(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    static: bool = False,
    run: bool = True,
    text: str | os.PathLike[str] | None = None,
    tokens: int = 256,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ProveReport:
    """Whether `dst` is the model `src`: settings, tokenizer, tensors, and what both compute in their own runtimes.

    `static`: only settings and tokenizer, which reads headers. `run`: False leaves out the runtimes. `text`: a file
    whose perplexity is compared too. `tokens`: how many positions are compared. Errors: OSError, FormatError,
    UnsupportedError, UsageError for options that contradict each other.
    """
    if text is not None and (static or not run):
        raise UsageError("--text needs the models to run", hint="leave out --static and --no-run")
    if not running.SHORTEST <= tokens <= running.LONGEST:
        raise UsageError(f"{tokens} positions can't be compared", hint=f"{running.SHORTEST} to {running.LONGEST}")
    with open_model(src) as one, open_model(dst) as other:
        checks = [*fields.checks(one, other)]
        notes: list[str] = []
        if not static:
            found = values.check(one, other, jobs, progress)
            checks.append(found.check)
            notes += found.notes
            if run:
                checks += running.checks(one, other, found.bounds, running.Amounts(tokens, text), progress)
                notes += running.notes(one, other)
        settled = fields.settled(checks)
        return ProveReport(os.fspath(src), os.fspath(dst), _verdict(settled), tuple(settled), tuple(notes))


def _verdict(checks: list[ProveCheck]) -> Literal["same", "different", "incomplete"]:
    found = {check.verdict for check in checks}
    if "different" in found:
        return "different"
    return "incomplete" if "not-checked" in found or not checks else "same"
