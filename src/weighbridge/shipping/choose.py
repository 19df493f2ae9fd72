"""Recommends a format and type for a purpose, with the exact commands. The rules are in a table (choose.toml), from
which docs/choosing.md is generated too.

    choose("./my-model/", purpose="chat", runtime="ollama", loss="little")
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import PurePath
from typing import Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.fitting import devices
from weighbridge.fitting.report import fit
from weighbridge.io.location import is_remote
from weighbridge.models.llamacpp import TEXT, use_of
from weighbridge.models.llamacpp.companions import find_towers
from weighbridge.models.llamacpp.towers import has_towers
from weighbridge.models.mlxlm.towers import tower_names
from weighbridge.models.model import OpenModel
from weighbridge.models.open import open_headers
from weighbridge.models.whisper.forms import WhisperForm, form_of
from weighbridge.shipping.choice_table import ChoiceRule, ChooseOptions, table
from weighbridge.shipping.servers import method_of
from weighbridge.shipping.targets import FLAGS, run_line

SCHEMA: Final = "weighbridge/choose/1"
#: The forms of a source that need no conversion, by the recommended form.
_UNCHANGED: Final = {"mlx": ("mlx",), "hf": ("hf", "scheme"), "scheme": ("scheme", "hf")}


@dataclass(frozen=True, slots=True)
class ChosenRule:
    """A rule that applied."""

    id: str
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class Choice:
    """`answers`: those that it is based on. `format`: gguf, mlx, hf (a folder of safetensors), scheme (one with packed
    weights). `type`: empty if values don't change. `commands`: in order, with MODEL if no model was named."""

    answers: Mapping[str, str]
    format: str
    type: str
    commands: tuple[str, ...]
    rules: tuple[ChosenRule, ...]
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA


@accepting(ChooseOptions)
def choose(options: ChooseOptions) -> Choice:
    """Returns the format, the type and the commands for these answers; the table has defaults for missing ones. With a
    model, the type of a GGUF is the best one that fits on the device, and the commands start from the model's form.

    Raises UsageError for an unknown answer, UnsupportedError for weights that no program runs, and the errors of
    `wb.open`."""
    model = options.model
    answers = {q.name: getattr(options, q.name) or q.default for q in table().question}
    answers["trusted"] = "yes" if options.trusted else "no"
    for question in table().question:
        if question.answers and (answer := answers[question.name]) not in question.answers:
            hint = f"choose one of {', '.join(question.answers)}"
            raise UsageError(f"unknown {question.flag} {answer}", hint=hint)
    source = ChoiceSource() if model is None else _source(model, answers["purpose"])
    facts = {**answers, "device": devices.device(answers["device"]).kind}
    form = _first(table().format, facts)
    if form.gives == "scheme" and "scheme" in source.faults:
        facts["loss"] = "none"
        form = _first(table().format, facts)
    if form.gives != source.form and (fault := source.faults.get(form.gives)) is not None:
        raise fault
    type_rule = _first(table().type, {**facts, "format": form.gives})
    type, notes = type_rule.gives, tuple[str, ...]()
    if form.gives == "gguf" and type and model is not None:
        type, notes = _fitting(model, answers["device"], type)
    if source.packed and type:
        type, notes = "", ("its weights are quantized already, and kept as exactly as the format can",)
    if source.sees and form.gives == "mlx" and not source.in_mlx and source.form != "mlx":
        notes = (*notes, "only the language model is written for mlx-lm")
    commands = tuple(_commands(source, form.gives, type, answers))
    cited = tuple(ChosenRule(rule.id, rule.why, rule.source) for rule in (form, type_rule))
    return Choice(answers, form.gives, type, commands, cited, notes)


def _first(rules: tuple[ChoiceRule, ...], facts: Mapping[str, str]) -> ChoiceRule:
    return next(rule for rule in rules if rule.holds(facts))


def _fitting(model: str | os.PathLike[str], device: str, type: str) -> tuple[str, tuple[str, ...]]:
    """Returns the type if it fits on the device, else the one that `wb fit` recommends, and the reason."""
    try:
        report = fit(model, device=device)
    except WeighbridgeError as error:
        return type, (f"wb fit can't judge the model: {error.message}",)
    name = report.device.name
    if report.recommended is None:
        return "", (f"the file is quantized already: {report.verdict} on {name}",)
    row = next((row for row in report.types if row.type == type), None)
    if row is not None and row.verdict in ("fits", "tight"):
        return type, (f"{type} {row.verdict} on {name}: {row.needs:,} bytes",)
    return report.recommended or type, (f"{type} doesn't fit on {name}; {report.reason}",)


# ------------------------------------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class ChoiceSource:
    """The model to recommend for. `form`: its current form, one of the table's, or "pickle". `packed`: the weights are
    quantized; quantizing them again would add to the loss. `sees`: it has towers that a conversion to GGUF keeps, and
    `in_mlx` one to MLX. `projector`: the mmproj file of a GGUF. `use`: of its GGUF in llama.cpp. `faults`: form -> why
    the model can't have it."""

    path: str = "MODEL"
    form: str = "hf"
    packed: bool = False
    sees: bool = False
    in_mlx: bool = False
    projector: str = ""
    use: str = TEXT
    faults: Mapping[str, WeighbridgeError] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return PurePath(self.path).name.split(".gguf")[0] if self.path != "MODEL" else "model"


def _source(path: str | os.PathLike[str], purpose: str) -> ChoiceSource:
    """Reads the headers. Raises UnsupportedError for weights without a config, which no program runs."""
    with open_headers(path).model as model:
        if model.diffusion is not None and purpose != "keep":
            raise UnsupportedError(
                f"wb choose answers for language models, and {path} is {model.diffusion.title}",
                hint="wb convert SRC DST.gguf or wb quantize SRC DST.gguf Q4_K_M, for ComfyUI-GGUF",
            )
        if model.format == "gguf":
            packed = any(entry.spec.dtype.kind is Kind.BLOCK for entry in model.index.entries)
            projector = find_towers(resolve_path(path), model).path
            seen = str(projector or "")
            return ChoiceSource(os.fspath(path), "gguf", packed, bool(seen), projector=seen, use=use_of(model.metadata))
        if form_of(model) is WhisperForm.GGML and purpose != "keep":
            raise UnsupportedError(
                f"wb choose answers for language models, and {path} is a Whisper",
                hint="whisper.cpp runs it: whisper-cli -m FILE; wb quantize SRC ggml-NAME.bin Q5_0 makes it smaller",
            )
        if model.json("config.json") is None and purpose != "keep":
            raise UnsupportedError(f"no program runs {path}: config.json is missing",
                                   hint="put the model's config.json and tokenizer next to the weights")  # fmt: skip
        method = method_of(model)
        form = "mlx" if method == "MLX" else "scheme" if method else "hf"
        form = form if model.format == "safetensors" else "pickle"
        faults = dict(_faults(model))
        sees = not faults.get("gguf") and has_towers(model)
        in_mlx = sees and tower_names(model.config) is not None
        use = TEXT if faults.get("gguf") else use_of({"general.architecture": model.family.gguf})
        return ChoiceSource(os.fspath(path), form, method is not None, sees, in_mlx, use=use, faults=faults)


def _faults(model: OpenModel) -> Iterator[tuple[str, WeighbridgeError]]:
    """Yields the forms that a folder can't be converted to, and the reason."""
    from weighbridge.conversion.mlx.plan import refuse_unsupported  # late: few answers need it

    try:
        model.family  # noqa: B018
    except UnsupportedError as error:
        yield from ((form, error) for form in ("gguf", "mlx", "scheme"))
        return
    try:
        refuse_unsupported(model)
    except UnsupportedError as error:
        if tower_names(model.config) is None:
            yield "mlx", error


def _commands(source: ChoiceSource, form: str, type: str, answers: Mapping[str, str]) -> Iterator[str]:
    """Yields the commands, from the check of the source to the running model."""
    path = shlex.quote(source.path)
    if answers["trusted"] == "no":
        yield f"wb scan {path}"
    yield f"wb verify {path}"
    purpose, runtime = answers["purpose"], answers["runtime"]
    if purpose == "keep":
        yield f"wb hash {path} --manifest {shlex.quote(f'{source.name}.json')}"
        return
    # `wb ship` converts on the fly for these stores.
    stores = form == "gguf" and runtime in ("ollama", "lmstudio") and purpose != "share"
    target, conversion = _conversion(source, form, type)
    if (stores or conversion is None) and is_remote(source.path):
        yield f"wb fetch {path} {shlex.quote(source.name)}"
        path = shlex.quote(source.name)
    if stores and source.use not in FLAGS:
        raise UnsupportedError(
            f"{runtime} doesn't run this kind of model ({source.use})", hint="--runtime llama.cpp does"
        )
    if stores:
        label = f" --type {type}" if type else ""
        yield f"wb ship {runtime} {path} {shlex.quote(source.name.lower())}{label}"
        return
    if conversion is not None:
        yield f"wb {conversion[0]} {path} {target}{conversion[1]}"
        path = target
    if purpose == "share":
        yield f"wb ship hub {path} ORG/{shlex.quote(source.name)}{'-GGUF' if form == 'gguf' else ''} --dry-run"
    elif purpose == "train" or runtime == "transformers":
        kind = "AutoModel" if purpose == "embed" else "AutoModelForCausalLM"
        code = f"from transformers import {kind}; model = {kind}.from_pretrained({json.dumps(shlex.split(path)[0])})"
        yield f"python -c {shlex.quote(code)}"
    elif form == "gguf" and source.use in FLAGS:
        yield f"wb ship llama-server {path}"
    elif form == "gguf":
        written = shlex.split(path)[0]
        yield run_line(source.use, f"{written}MODEL.gguf" if written.endswith("/") else written) or ""
    elif form == "mlx":
        yield f"wb ship {'lmstudio' if runtime == 'lmstudio' else 'mlx'} {path}"
    elif runtime == "sglang":
        yield f"python -m sglang.launch_server --model-path {path}"
    else:
        yield f"wb ship vllm {path}"


def _conversion(source: ChoiceSource, form: str, type: str) -> tuple[str, tuple[str, str] | None]:
    """Returns the converted model, and the command and options that write it; None without a conversion."""
    if form == "gguf":
        title = f"{source.name}-{type}" if type else source.name
        target, towers = (f"{title}-GGUF/", " --with-mmproj") if source.sees else (f"{title}.gguf", "")
        if type:
            return shlex.quote(target), ("quantize", f" {type}{towers}")
        to = f" --to gguf{towers}" if towers else ""
        return shlex.quote(target), None if source.form == "gguf" else ("convert", to)
    label = {"mlx": f"mlx-{type}bit" if type else "mlx", "scheme": type or form}.get(form, form)
    target = shlex.quote(f"{source.name}-{label}")
    if source.form in _UNCHANGED[form] and not (type and source.form == "hf"):
        return target, None
    options = {"mlx": f" --q-bits {type}", "scheme": f" --scheme {type}"}[form] if type else ""
    if form == "mlx" and source.in_mlx:
        options = f" --towers{options}"
    if source.projector and not options:
        options = f" --projector {shlex.quote(source.projector)}"
    if source.form == "mlx":  # only mlx-lm loads its packing
        options = " --dtype bf16"
    return target, ("convert", f" --to {'mlx' if form == 'mlx' else 'hf'}{options}")
