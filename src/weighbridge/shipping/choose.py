"""Which format and type for which purpose, and the exact commands. The rules are a table (choose.toml), of which
docs/choosing.md is made too.

    choose("./my-model/", purpose="chat", runtime="ollama", loss="little")
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.fitting import devices
from weighbridge.fitting.report import FitReport, fit
from weighbridge.models.open import open_headers
from weighbridge.shipping.choice_table import ChoiceRule, Question, table

SCHEMA: Final = "weighbridge/choose/1"


@dataclass(frozen=True, slots=True)
class ChosenRule:
    """A rule that decided something."""

    id: str
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class Choice:
    """`format`: gguf, mlx, hf (a folder of safetensors), scheme (one with packed weights). `type`: "" where values
    stay. `commands`: in their order, with MODEL where none was named. `answers`: those that it is for."""

    answers: Mapping[str, str]
    format: str
    type: str
    commands: tuple[str, ...]
    rules: tuple[ChosenRule, ...]
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA


def choose(
    model: str | os.PathLike[str] | None = None,
    *,
    purpose: str | None = None,
    runtime: str | None = None,
    device: str | None = None,
    loss: str | None = None,
    trusted: bool = False,
) -> Choice:
    """The format, the type and the commands for these answers; those not given are the table's defaults. With a model,
    the type of a GGUF is the best that fits on the device. UsageError for an answer that isn't known; the errors of
    `wb.open` for what is no model."""
    given = {
        "purpose": purpose,
        "runtime": runtime,
        "device": device,
        "loss": loss,
        "trusted": "yes" if trusted else "no",
    }
    if model is not None:
        open_headers(model).model.close()  # no advice on what can't be opened
    answers = {q.name: _answer(q, given[q.name]) for q in table().question}
    where = devices.device(answers["device"])
    facts = {**answers, "device": where.kind}
    form = _first(table().format, facts)
    kind = _first(table().type, {**facts, "format": form.gives})
    type, notes = kind.gives, tuple[str, ...]()
    if form.gives == "gguf" and type and model is not None:
        type, notes = _fitting(model, answers["device"], type)
    commands = tuple(_commands(str(model or "MODEL"), form.gives, type, answers))
    cited = tuple(ChosenRule(rule.id, rule.why, rule.source) for rule in (form, kind))
    return Choice(answers, form.gives, type, commands, cited, notes)


def _answer(question: Question, given: str | None) -> str:
    answer = given or question.default
    if question.answers and answer not in question.answers:
        raise UsageError(f"{question.flag} {answer} isn't known", hint=f"known: {', '.join(question.answers)}")
    return answer


def _first(rules: tuple[ChoiceRule, ...], facts: Mapping[str, str]) -> ChoiceRule:
    return next(rule for rule in rules if rule.holds(facts))


def _fitting(model: str | os.PathLike[str], device: str, type: str) -> tuple[str, tuple[str, ...]]:
    """The type if it fits on the device, else the one that `wb fit` recommends; and why."""
    try:
        report = fit(model, device=device)
    except WeighbridgeError as error:
        return type, (f"wb fit can't judge the model: {error.message}",)
    if report.recommended is None:  # quantized already
        return "", (f"the file has its type already: {report.verdict} on {report.device.name}",)
    return _of_report(report, type)


def _of_report(report: FitReport, type: str) -> tuple[str, tuple[str, ...]]:
    row = next((row for row in report.types if row.type == type), None)
    if row is not None and row.verdict in ("fits", "tight"):
        return type, (f"{type} {row.verdict} on {report.device.name}: {row.needs:,} bytes",)
    return report.recommended or type, (f"{type} doesn't fit on {report.device.name}; {report.reason}",)


# ------------------------------------------------------------------------------------------------ commands


def _commands(model: str, form: str, type: str, answers: Mapping[str, str]) -> Iterator[str]:
    """What to type, from the check of the source to the running model."""
    source = shlex.quote(model) if model != "MODEL" else model
    name = Path(model).name.split(".gguf")[0] or "model"
    if answers["trusted"] == "no":
        yield f"wb scan {source}"
    yield f"wb verify {source}"
    purpose, runtime = answers["purpose"], answers["runtime"]
    if purpose == "keep":
        yield f"wb hash {source} --manifest {shlex.quote(f'{name}.json')}"
        return
    if form == "gguf":
        yield from _gguf(source, name, type, purpose, runtime)
        return
    made = shlex.quote(f"{name}-{type or form}")
    way = {"mlx": f"--to mlx --q-bits {type}" if type else "--to mlx", "scheme": f"--to hf --scheme {type}"}.get(form)
    if way is not None:
        yield f"wb convert {source} {made} {way}"
    yield from _use(made if way else source, name, form, purpose, runtime)


def _gguf(source: str, name: str, type: str, purpose: str, runtime: str) -> Iterator[str]:
    label = f" --type {type}" if type else ""
    if runtime in ("ollama", "lmstudio") and purpose != "share":
        yield f"wb ship {runtime} {source} {shlex.quote(name.lower())}{label}"
        return
    made = shlex.quote(f"{name}-{type}.gguf" if type else f"{name}.gguf")
    yield f"wb quantize {source} {made} {type}" if type else f"wb convert {source} {made}"
    yield from _use(made, name, "gguf", purpose, runtime)


def _use(made: str, name: str, form: str, purpose: str, runtime: str) -> Iterator[str]:
    """How the result is used."""
    if purpose == "share":
        yield f"wb ship hub {made} ORG/{name}{'-GGUF' if form == 'gguf' else ''} --dry-run"
    elif purpose == "train" or runtime == "transformers":
        yield f"python -c 'import weighbridge as wb; model = wb.from_pretrained(\"{made}\")'"
    elif form == "gguf":
        yield f"wb ship llama-server {made}"
    elif runtime == "lmstudio":
        yield f"wb ship lmstudio {made}"
    else:
        yield f"wb ship {'mlx' if form == 'mlx' else 'vllm'} {made}"
