"""Ships to the Hugging Face Hub: the files of a folder, or one file, with a complete model card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.extra import check_online
from weighbridge.adapters.remote.hub import HubUri
from weighbridge.adapters.remote.hub_upload import HubRepository
from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.ftypes import BY_NUMBER, GUESSED
from weighbridge.base.limits import GIB, MIB
from weighbridge.containers.wbpack.source import OriginalSource
from weighbridge.conversion.result import Progress
from weighbridge.io.location import WrappedPath
from weighbridge.models.config.pooling import MODULES
from weighbridge.models.llamacpp.companions import find_towers
from weighbridge.models.llamacpp.projectors import modalities
from weighbridge.models.llamacpp.towers import candidate_of, senses_of
from weighbridge.models.locate import models_in
from weighbridge.models.lora.peft import CONFIG as ADAPTER
from weighbridge.models.mlxlm.towers import is_of_mlx_vlm
from weighbridge.models.model import OpenModel
from weighbridge.models.open import open_headers
from weighbridge.models.whisper.forms import form_of
from weighbridge.reports.scan.engine import scan_file
from weighbridge.reports.scan.model import ScanVerdict
from weighbridge.shipping.card import EMBEDS, CardFacts, CardFile, card, commands, is_repository
from weighbridge.shipping.measured import measured_quality
from weighbridge.shipping.model import refuse_modelfile, special_texts
from weighbridge.shipping.plan import ShipOptions, ShippedFile, ShipPlan, ShipReport, ShipRequest, text_plan

#: The Hub's limit for a file (docs/hub/storage-limits).
LARGEST: Final = 500 * 10**9
_CARD: Final = "README.md"
_HARMFUL: Final = (ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED)
_NAME: Final = re.compile(r"(?=.{3,96}\Z)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<![.-])")


def prepare(request: ShipRequest) -> ShipPlan:
    """Plans an upload. Raises UsageError for a name that the Hub refuses."""
    name, options = request.name, request.options
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith(".git"):
        raise UsageError(f"{name!r} isn't the name of a repository", hint=f"wb ship hub {request.path} ORG/NAME")
    refuse_modelfile(request.path, "the Hub")
    paths = dict(_files(request.path))
    scanned = tuple(_scan(paths, options)) if options.output is None else ()
    facts, notes = _facts(request)
    readme = paths.pop(_CARD, None)
    text, missing = card(facts, readme.read_bytes() if readme and readme.stat().st_size <= MIB else None)
    notes = (*notes, *missing, *_warnings(paths, facts))
    report = ShipReport("hub", str(request.path), name, (), commands(facts), text, notes=notes)
    if options.output is not None:
        flags = {"--private": options.private, "--create-pr": options.create_pr, "--revision": options.revision}
        if flag := next((name for name, value in flags.items() if value), None):
            raise UsageError(f"{flag} applies to uploads, but --output only writes the card", hint="omit one of them")
        return text_plan(report, options.output, "model card", options.overwrite)
    if options.create_pr or options.revision:
        branch = f" to {options.revision}" if options.revision else ""
        scanned = (*scanned, f"uploaded {'as a pull request' if options.create_pr else 'directly'}{branch}")
    if options.private:
        scanned = (*scanned, "a new repository becomes private")
    rows = [ShippedFile(path, file.stat().st_size, "file", "uploaded") for path, file in paths.items()]
    rows.append(ShippedFile(_CARD, len(text.encode()), "model card", "uploaded"))

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        check_online(name)
        repository = HubRepository(HubUri("model", name, options.revision, ""))
        files: dict[str, Path | bytes] = {_CARD: text.encode(), **paths}
        url = repository.commit(files, replace=options.overwrite, private=options.private, create_pr=options.create_pr)
        return tuple(replace(row, path=f"{url} {row.path}") if row.what == "model card" else row for row in rows)

    return ShipPlan(replace(report, files=tuple(rows), notes=(*notes, *scanned)), act)


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yields the files to upload with their names; hidden files are skipped."""
    if path.is_file():
        yield path.name, path
        return
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and not any(part.startswith(".") for part in name.split("/")):
            if file.stat().st_size > LARGEST:
                raise RefusedError(
                    f"{name} is larger than 500 GB, the Hub's limit", hint="wb split SRC DST --max-shard-size 45GB"
                )
            yield name, file


def _scan(paths: dict[str, Path], options: ShipOptions) -> Iterator[str]:
    """Yields notes on files that `wb scan` doesn't classify as data only. Raises RefusedError for dangerous files, and
    for files that programs read differently."""
    for name, path in paths.items():
        report = scan_file(str(path))
        worst = next(iter(report.findings), None)
        if worst is None or report.verdict in (ScanVerdict.NOT_SCANNED, ScanVerdict.DATA_ONLY):
            continue
        message = f"{name}: {report.verdict.value}: {worst.message} (wb scan {path})"
        if report.verdict in _HARMFUL and not options.allow_dangerous:
            raise RefusedError(message, option="--allow-dangerous")
        yield message


def _facts(request: ShipRequest) -> tuple[CardFacts, tuple[str, ...]]:
    """Returns the facts of the card, from the headers of every model in the folder, and notes."""
    models = models_in(request.path) or (request.path,)
    files, notes, first, unpacked = [], [], None, ""
    senses, task, apart = frozenset[str](), "", dict[Path, CardFile]()
    for path in models:
        with open_headers(path).model as model:
            files.append(_card_file(model))
            first = first or _model_facts(model)
            if form_of(model) is not None:
                task = "automatic-speech-recognition"
            elif model.format != "gguf" and MODULES in model.place.names():
                task = EMBEDS
            if model.format != "gguf":
                senses |= senses_of(model)
            elif (towers := find_towers(path, model).path) is not None:
                with open_headers(towers).model as projector:
                    senses |= {name.partition(".")[0] for name in modalities(candidate_of(projector))}
                    apart[towers] = replace(_card_file(projector), towers=True)
            if isinstance(model.place.path, WrappedPath):
                raise UnsupportedError(
                    f"{path} is an archive, which no program loads from the Hub", hint="unpack it first"
                )
            packed = next((file for file in model.index.files if isinstance(file, OriginalSource)), None)
            if packed is not None and not unpacked:
                unpacked = f"model/{packed.archive.name if model.format == 'gguf' else ''}"
            if model.format == "gguf" and "general.architecture" not in model.metadata:
                notes.append(f"{path.name} has no general.architecture, so the Hub offers no app for it")
    if request.path.is_file():
        notes += [f"{file.name} isn't uploaded: name the folder" for file in apart]
    else:
        files += apart.values()
    kind, keys, jinja, special, quantized = first or ("hf", {}, None, {}, False)
    quantized = quantized or any(f.type not in ("", "F32", "F16", "BF16") for f in files if not f.towers)
    base = request.options.base_model or (keys.get("general.source.repo_url") if kind == "peft" else None)
    measurements = measured_quality(request.options.measured, [request.path.name, *(file.name for file in files)])
    facts = CardFacts(request.name, kind, tuple(files), keys, jinja, special, quantized, base, measurements, unpacked,
                      senses, task)  # fmt: skip
    return facts, tuple(notes)


def _card_file(model: OpenModel) -> CardFile:
    from weighbridge.reports.inspect.report import inspect

    weights = model.place.weights
    report = inspect(weights[0] if model.place.single else model.place.path, limit=0)
    number = model.metadata.get("general.file_type")
    row = BY_NUMBER.get(number % GUESSED) if isinstance(number, int) else None
    first = "" if model.place.single else weights[0].name
    name = f"{first} to {weights[-1].name}" if first else weights[0].name
    size = sum(path.stat().st_size for path in weights)
    type = row.name if row else report.type_words or ""
    return CardFile(name, type, size, report.bits_per_weight or 0.0, first=first)


def _model_facts(model: OpenModel) -> tuple[str, dict[str, Any], str | None, dict[str, str], bool]:
    """Returns the kind, metadata, chat template, special tokens, and whether the weights are quantized."""
    if model.format == "gguf":
        special = special_texts(model.metadata)
        keys = {key: value for key, value in model.metadata.items() if not key.startswith("tokenizer.ggml.")}
        keys |= {key: list(keys[key]) for key in ("general.languages", "general.tags") if key in keys}
        quantized = any(entry.dtype.kind is Kind.BLOCK for entry in model.index)
        return "gguf", keys, keys.get("tokenizer.chat_template"), special, quantized
    if (adapter := model.json(ADAPTER)) is not None and model.json("config.json") is None:
        named = adapter.get("base_model_name_or_path")
        keys = {"general.source.repo_url": named} if isinstance(named, str) and is_repository(named) else {}
        return "peft", keys, None, {}, False
    if model.format == "ggml":
        return "ggml", {}, None, {}, any(entry.dtype.kind is Kind.BLOCK for entry in model.index)
    config = model.json("config.json") or {}
    settings = model.json("tokenizer_config.json") or {}
    jinja = model.place.read("chat_template.jinja", MIB)
    template = jinja.decode("utf-8", "replace") if jinja else settings.get("chat_template")
    special = {n: v for n in ("bos_token", "eos_token") if isinstance(v := settings.get(n), str)}
    kind = "mlx" if "quantization" in config or model.metadata.get("format") == "mlx" else "hf"
    kind = "mlx with towers" if kind == "mlx" and is_of_mlx_vlm(config, model.index) else kind
    try:
        keys = {"general.architecture": model.family.gguf}
    except WeighbridgeError:  # unknown family: the card omits it
        keys = {}
    if isinstance(source := config.get("_name_or_path"), str):
        keys["general.source.repo_url"] = source
    packed = bool(config.get("quantization_config") or config.get("quantization"))
    return kind, keys, template if isinstance(template, str) else None, special, packed


def _warnings(paths: dict[str, Path], facts: CardFacts) -> Iterator[str]:
    if "preset.ini" in paths:
        yield "preset.ini: llama.cpp's -hf then fetches only that file"
    for file in facts.files if facts.kind == "gguf" else ():
        if not file.towers and file.type and not re.search(rf"{file.type}[.-]", file.name, re.IGNORECASE):
            yield f"{file.name}: apps choose a file by its name, which lacks {file.type}"
    for name, path in paths.items():
        if path.stat().st_size > 50 * 10**9:
            yield f"{name} is larger than 50 GB: clients without hf_xet can't fetch it (wb split --max-shard-size 45GB)"
    if sum(p.stat().st_size for p in paths.values()) > 100 * GIB:
        yield "more than 100 GB: the limit of a free account's private repositories"
