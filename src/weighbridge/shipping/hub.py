"""The Hugging Face Hub: a folder's files, or one file, with a model card whose metadata is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.extra import check_online
from weighbridge.adapters.remote.hub import HubUri
from weighbridge.adapters.remote.hub_upload import HubRepository
from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import RefusedError, UsageError, WeighbridgeError
from weighbridge.base.ftypes import BY_NUMBER, GUESSED
from weighbridge.base.limits import GIB, MIB
from weighbridge.conversion.result import Progress
from weighbridge.io.sink import write_file
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.locate import models_in
from weighbridge.shipping.card import CardFacts, CardFile, card, commands
from weighbridge.shipping.measured import measured
from weighbridge.shipping.model import opened, refuse_modelfile
from weighbridge.shipping.plan import ShipOptions, ShippedFile, ShipPlan, ShipReport, ShipRequest

#: The Hub's hard limit on a file (docs/hub/storage-limits).
LARGEST: Final = 500 * 10**9
_CARD: Final = "README.md"
_NAME: Final = re.compile(r"(?=.{3,96}\Z)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<![.-])")


def prepare(request: ShipRequest) -> ShipPlan:
    """The plan of an upload. UsageError for a name that the Hub refuses."""
    name, options = request.name, request.options
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith(".git"):
        raise UsageError(f"{name!r} is no name of a repository", hint=f"wb ship hub {request.path} ORG/NAME")
    refuse_modelfile(request.path, "the Hub")
    paths = dict(_files(request.path))
    facts, notes = _facts(request)
    readme = paths.pop(_CARD, None)
    text, missing = card(facts, readme.read_bytes() if readme and readme.stat().st_size <= MIB else None)
    notes = (*notes, *missing, *_warnings(paths, facts))
    run = commands(facts)
    if options.output is not None:
        _refuse_uploading(options)
        return _card_only(request, text, run, notes)
    notes = (*notes, *_how(options))
    rows = [ShippedFile(path, file.stat().st_size, "file", "uploaded") for path, file in paths.items()]
    rows.append(ShippedFile(_CARD, len(text.encode()), "model card", "uploaded"))

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        check_online(name)
        repository = HubRepository(HubUri("model", name, options.revision, ""))
        files: dict[str, Path | bytes] = {_CARD: text.encode(), **paths}
        url = repository.commit(files, replace=options.overwrite, private=options.private, create_pr=options.create_pr)
        return tuple(ShippedFile(f"{url} {row.path}" if row.what == "model card" else row.path, row.bytes, row.what,
                                 row.how) for row in rows)  # fmt: skip

    return ShipPlan(ShipReport("hub", str(request.path), name, tuple(rows), run, text, notes=notes), act)


def _refuse_uploading(options: ShipOptions) -> None:
    """UsageError for the first option of an upload, where only the card is written."""
    given = {"--private": options.private, "--create-pr": options.create_pr, "--revision": options.revision}
    if flag := next((name for name, value in given.items() if value), None):
        raise UsageError(f"{flag} is of an upload, and --output only writes the card", hint="leave one of them out")


def _how(options: ShipOptions) -> Iterator[str]:
    """What the options say of the upload."""
    if options.create_pr or options.revision:
        branch = f" to {options.revision}" if options.revision else ""
        yield f"uploaded {'as a pull request' if options.create_pr else 'directly'}{branch}"
    if options.private:
        yield "a repository that isn't there yet becomes private"


def _card_only(request: ShipRequest, text: str, run: tuple[str, ...], notes: tuple[str, ...]) -> ShipPlan:
    """Only the card, into a file."""
    target, data = Path(str(request.options.output)), text.encode()
    file = ShippedFile(str(target), len(data), "model card", "written")

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        write_file(target, data, overwrite=request.options.overwrite)
        return (file,)

    return ShipPlan(ShipReport("hub", str(request.path), request.name, (file,), run, text, notes=notes), act)


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """What is uploaded, by its name there; hidden files stay here."""
    if path.is_file():
        yield path.name, path
        return
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and not any(part.startswith(".") for part in name.split("/")):
            if file.stat().st_size > LARGEST:
                raise RefusedError(
                    f"{name} is larger than 500 GB, the Hub's limit", hint="wb split SRC DST --max-size 45GB"
                )
            yield name, file


def _facts(request: ShipRequest) -> tuple[CardFacts, tuple[str, ...]]:
    """What the card says, from the headers of every model in the folder."""
    models = models_in(request.path) or (request.path,)
    files, notes, first = [], [], None
    for path in models:
        with opened(path) as model:
            files.append(_card_file(model))
            first = first or _model_facts(model)
            if model.format == "gguf" and "general.architecture" not in model.metadata:
                notes.append(f"{path.name} has no general.architecture, so the Hub offers no app for it")
    kind, keys, jinja, special, quantized = first or ("hf", {}, None, {}, False)
    quantized = quantized or any(f.type not in ("", "F32", "F16", "BF16") for f in files)
    base, proofs = request.options.base_model, request.options.measured
    proven = measured(proofs, [request.path.name, *(file.name for file in files)])
    return CardFacts(request.name, kind, tuple(files), keys, jinja, special, quantized, base, proven), tuple(notes)


def _card_file(model: Checkpoint) -> CardFile:
    number = model.metadata.get("general.file_type")
    row = BY_NUMBER.get(number % GUESSED) if isinstance(number, int) else None
    size = sum(p.stat().st_size for p in model.place.weights)
    parameters = _parameters(model)
    return CardFile(model.place.weights[0].name, row.name if row else "", size, 8 * size / max(parameters, 1))


def _parameters(model: Checkpoint) -> int:
    from weighbridge.reports.inspect.report import inspect

    return inspect(model.place.weights[0] if model.place.single else model.place.path, limit=0).parameters


def _model_facts(model: Checkpoint) -> tuple[str, dict[str, Any], str | None, dict[str, str], bool]:
    """Kind, keys, chat template, special tokens, whether weights are quantized."""
    if model.format == "gguf":
        keys = dict(model.metadata)
        tokens = keys.get("tokenizer.ggml.tokens") or ()
        numbers = ((n, keys.get(f"tokenizer.ggml.{n}_token_id")) for n in ("bos", "eos"))
        special = {f"{n}_token": str(tokens[i]) for n, i in numbers if isinstance(i, int) and 0 <= i < len(tokens)}
        keys = {key: value for key, value in keys.items() if not key.startswith("tokenizer.ggml.")}
        keys = {key: list(v) if key in ("general.languages", "general.tags") else v for key, v in keys.items()}
        quantized = any(entry.dtype.kind is Kind.BLOCK for entry in model.index)
        return "gguf", keys, keys.get("tokenizer.chat_template"), special, quantized
    config = model.json("config.json") or {}
    settings = model.json("tokenizer_config.json") or {}
    jinja = model.place.read("chat_template.jinja", MIB)
    template = jinja.decode("utf-8", "replace") if jinja else settings.get("chat_template")
    special = {n: v for n in ("bos_token", "eos_token") if isinstance(v := settings.get(n), str)}
    kind = "mlx" if "quantization" in config or model.metadata.get("format") == "mlx" else "hf"
    try:
        keys = {"general.architecture": model.family.gguf}
    except WeighbridgeError:  # no family of ours: the card says less
        keys = {}
    if isinstance(source := config.get("_name_or_path"), str):
        keys["general.source.repo_url"] = source
    packed = bool(config.get("quantization_config") or config.get("quantization"))
    return kind, keys, template if isinstance(template, str) else None, special, packed


def _warnings(paths: dict[str, Path], facts: CardFacts) -> Iterator[str]:
    if "preset.ini" in paths:
        yield "preset.ini: with it, llama.cpp's -hf fetches that file alone"
    for file in facts.files if facts.kind == "gguf" else ():
        if file.type and not re.search(rf"{file.type}[.-]", file.name, re.IGNORECASE):
            yield f"{file.name}: apps choose a file by its name, which doesn't say {file.type}"
    for name, path in paths.items():
        if path.stat().st_size > 50 * 10**9:
            yield f"{name} has more than 50 GB: clients without hf_xet can't fetch it (wb split --max-size 45GB)"
    if sum(p.stat().st_size for p in paths.values()) > 100 * GIB:
        yield "more than 100 GB: a free account has so much room for private repositories"
