"""Proves that two models are the same in different forms, in three steps:

    prove("model/", "model.gguf") -> ProveReport

    settings, tokenizer    every setting means the same to the programs that load it (`static.py`)
    tensors                no tensor differs by more than its type implies (`values.py`)
    tokens, predictions    both compute the same in their runtimes (`running.py`)

Of an mmproj file and a folder, the folder's towers are compared (`towers.py`).

A check that isn't possible is "not-checked", and a report with one is never "same".
"""

from __future__ import annotations

import os
import shlex
from typing import Literal

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.options import accepting
from weighbridge.io.location import path_text
from weighbridge.models.borrowed_config import with_given_config
from weighbridge.models.llamacpp.towers import alike
from weighbridge.models.open import SourceOptions, open_model
from weighbridge.models.whisper.forms import form_of
from weighbridge.reports.options import ProveOptions
from weighbridge.reports.prove import images, running, towers, values
from weighbridge.reports.prove import static as fields
from weighbridge.reports.prove.model import ProveCheck, ProveReport


@accepting(ProveOptions)
def prove(src: str | os.PathLike[str], dst: str | os.PathLike[str], options: ProveOptions) -> ProveReport:
    """Compares the model `dst` with `src`: settings, tokenizer, tensors, and the results that both compute in their
    runtimes. Raises OSError, FormatError, UnsupportedError, and UsageError for contradictory options."""
    text, tokens, progress = options.text, options.tokens, options.progress
    if text is not None and (options.static or not options.run):
        raise UsageError("--text needs the models to run", hint="leave out --static and --no-run")
    if not running.SHORTEST <= tokens <= running.LONGEST:
        raise UsageError(f"{tokens} positions can't be compared", hint=f"{running.SHORTEST} to {running.LONGEST}")
    opening = SourceOptions(arch_file=options.arch_file)
    with open_model(src, opening) as a, open_model(dst, opening) as b:
        if form_of(a) is not None and form_of(b) is not None:
            hint = f"wb diff {shlex.quote(str(src))} {shlex.quote(str(dst))} compares every tensor"
            raise UnsupportedError("wb prove compares language models, and these are Whispers", hint=hint)
        a, b = with_given_config((a, b), options.config)
        pair = towers.towers_of_pair(a, b)
        left, right = pair or alike(a, b)
        drafts = pair is None and (left is not a or right is not b)
        a, b = left, right
        checks = [*(towers.checks(*pair) if pair else fields.checks(a, b))]
        notes: list[str] = []
        folded: bool | None = None
        if not options.static:
            tensors = values.check(a, b, options.jobs, progress)
            checks.append(tensors.check)
            folded = tensors.folded
            notes += tensors.notes
            if options.run and pair:
                checks += images.checks(*pair, tensors.bounds)
            elif options.run and drafts:
                checks.append(ProveCheck("run", "not-checked", "no runtime runs a draft model without its target"))
            elif options.run:
                checks += running.checks(a, b, tensors.bounds, running.Amounts(tokens, text), progress)
                notes += running.notes(a, b)
        checks = fields.settled(checks, folded)
        verdicts = {check.verdict for check in checks}
        verdict: Literal["same", "different", "incomplete"] = "different"
        if "different" not in verdicts:
            verdict = "incomplete" if "not-checked" in verdicts or not checks else "same"
        return ProveReport(path_text(src), path_text(dst), verdict, tuple(checks), tuple(notes))
