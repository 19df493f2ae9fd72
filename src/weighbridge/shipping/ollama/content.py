"""The contents of a model in Ollama: layers by media type, a config, and the equivalent Modelfile. The local store, the
Modelfile for `ollama create`, and the registry for `ollama pull` share them.

Reference: ollama fb30760, server/create.go, manifest/, types/model/config.go; https://docs.ollama.com.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.ollama import MEDIA as MANIFEST
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.conversion.plan.model import Plan
from weighbridge.models.llamacpp import CLASSIFIER, RERANKER, use_of
from weighbridge.models.llamacpp.companions import companion, described_files
from weighbridge.models.modelfile import SETTINGS, Instruction, referred, write_modelfile
from weighbridge.shipping.model import GgufParts
from weighbridge.shipping.ollama.turns import translate
from weighbridge.shipping.plan import ShipRequest

#: The media type of each part of a model. `params` and `messages` are JSON, the rest files or text.
MEDIA: Final = {
    part: f"application/vnd.ollama.image.{part}"
    for part in ("model", "projector", "adapter", "draft", "template", "system", "params", "messages", "license")
}
_CONFIG: Final = "application/vnd.docker.container.image.v1+json"


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """One layer: `data`, or a file. `plan`: writes the file first; None if it exists."""

    part: str
    data: bytes = b""
    file: Path | None = None
    size: int = 0
    plan: Plan | None = None

    @property
    def bytes(self) -> int:
        return self.size if self.file is not None else len(self.data)


@dataclass(frozen=True)
class OllamaContent:
    """A model's layers and config, and the equivalent Modelfile."""

    layers: tuple[StoreLayer, ...]
    config: dict[str, Any]
    modelfile: str
    notes: tuple[str, ...]

    def config_file(self, layers: Iterable[Mapping[str, Any]]) -> bytes:
        """Returns the config with the layers' digests in `rootfs`."""
        digests = [layer["digest"] for layer in layers]
        return _json({**self.config, "rootfs": {"type": "layers", "diff_ids": digests}})


def entry(part: str, sha256: str, size: int) -> dict[str, Any]:
    """Returns the manifest entry of a layer, or of the `config`."""
    return {"mediaType": MEDIA.get(part, _CONFIG), "digest": f"sha256:{sha256}", "size": size}


def manifest_file(config: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns the manifest."""
    return _json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def content_of(parts: GgufParts, request: ShipRequest) -> OllamaContent:
    """Returns the layers, the model first. Raises UnsupportedError if the chat template can't be translated, and
    FormatError."""
    notes, described = list(parts.notes), parts.described
    if (use := use_of(parts.keys)) in (RERANKER, CLASSIFIER):
        notes.append(f"Ollama computes embeddings with a {use}, and no scores; llama-server computes these")
    texts, following = _texts(parts, request, notes)
    params = {**parts.sampling, **(described.parameters if described else {})}
    # The special token that ends a reply, unless llama.cpp stops there by default.
    tokens = parts.keys.get("tokenizer.ggml.tokens") or ()
    kinds = parts.keys.get("tokenizer.ggml.token_type") or ()
    special = {str(t) for t, kind in zip(tokens, kinds, strict=False) if kind in (3, 4)}
    text = following.lstrip()
    stop = max((t for t in special if t and text.startswith(t)), key=len, default="")
    if stop and not parts.ends(stop):
        params.setdefault("stop", [stop])
    file = parts.file or (parts.plan.target if parts.plan else None)
    files = [StoreLayer("model", file=file, size=parts.size, plan=parts.plan), *_companions(parts, request.path)]
    layers = [*files, *(StoreLayer(part, text.encode()) for part, text in texts.items())]
    if params:
        layers.append(StoreLayer("params", _json(params)))
    messages = described.messages if described else ()
    if messages:
        rows = [{"role": role, "content": text} for role, text in messages]
        layers.append(StoreLayer("messages", json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()))
    licences = described.values("LICENSE") if described else ()
    licences = licences or tuple(parts.licences())
    layers += [StoreLayer("license", text.encode()) for text in licences if text.strip()]
    if not licences:
        notes.append("unknown licence: the model has neither a LICENSE file nor general.license")
    settings = {name: described.last(name.upper()) for name in SETTINGS} if described else {}
    projects = any(layer.part == "projector" for layer in layers)
    config = {
        "model_format": "gguf", "model_family": parts.architecture,
        "model_families": [parts.architecture, *(["clip"] if projects else [])],
        "model_type": human_number(parts.parameters), "file_type": parts.file_type, "architecture": "amd64",
        "os": "linux", **{name: value for name, value in settings.items() if value},
    }  # fmt: skip
    instructions = (*_from(parts, request, files), *_instructions(parts, texts, params, messages, licences))
    written = []
    for instruction in instructions:
        try:
            written.append(write_modelfile([instruction]))
        except UnsupportedError as error:
            notes.append(f"not in the Modelfile: {instruction.command} ({error.message})")
    return OllamaContent(tuple(layers), config, "".join(written), tuple(notes))


def _texts(parts: GgufParts, request: ShipRequest, notes: list[str]) -> tuple[dict[str, str], str]:
    """Returns the template and the system text, and the text that follows a reply if the template was translated."""
    described, options = parts.described, request.options
    template, following = described.last("TEMPLATE") if described else None, ""
    if template and options.template is None:
        pass
    elif options.template not in (None, "go", "none"):
        path = Path(str(options.template))
        if not path.is_file():
            raise UsageError(f"unknown template {path}", hint="--template go, none or a file with a Go template")
        if path.stat().st_size > MIB:
            raise UsageError(f"{path} is too large for a template", hint=f"at most {MIB} bytes")
        template = path.read_text("utf-8")
    elif parts.jinja is None:
        template = None
        notes.append("the model has no chat template: Ollama passes text through unchanged")
    elif options.template == "none":
        template = None
        notes.append("without a Go template: Ollama renders the Jinja template, in versions from 2026 on")
    else:
        translation = translate(parts.jinja, parts.special)
        notes.extend(f"not in the Go template: {difference}" for difference in translation.differences)
        template, following = translation.text, translation.turns.next_user
    system = options.system or (described.last("SYSTEM") if described else None)
    texts = {"template": template, "system": system}
    return {part: text for part, text in texts.items() if text}, following


def _companions(parts: GgufParts, path: Path) -> Iterator[StoreLayer]:
    """Yields the mmproj file, and the further files of a Modelfile. Adapters are merged into a converted model."""
    if parts.towers is not None:
        yield StoreLayer("projector", file=parts.towers.path, size=parts.towers.size, plan=parts.towers.plan)
    for part, described, kind in described_files(path):
        if part == "draft" or (part == "adapter" and parts.plan is None):
            file = companion(described, part, kind, parts.keys)
            yield StoreLayer(part, file=file, size=file.stat().st_size)


def human_number(count: int) -> str:
    """Formats a number of parameters like Ollama (format/format.go): 1.2B, 124.44M, 7B."""
    for size, unit, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            whole = count % size == 0 or not digits
            return f"{count / size:.0f}{unit}" if whole else f"{count / size:.{digits}f}{unit}"
    return str(count)


# ------------------------------------------------------------------------------------------------ Modelfile


def _from(parts: GgufParts, request: ShipRequest, files: list[StoreLayer]) -> Iterator[Instruction]:
    """Yields the files. An unconverted model is named by its source, which has its towers, or by the files in its
    Modelfile."""
    model, *companions = files
    if model.file is not None and model.plan is None:
        yield Instruction("FROM", str(model.file.absolute()))
    elif (described := parts.described) is None:
        yield Instruction("FROM", str(request.path.absolute()))
    else:
        adapters = [("ADAPTER", value) for value in described.values("ADAPTER")]
        for command, value in (("FROM", described.values("FROM")[0]), *adapters):
            path = referred(described, value, request.path.parent)
            yield Instruction(command, str(path.absolute()) if isinstance(path, Path) else value)
    for layer in (layer for layer in companions if layer.plan is None):
        command = layer.part.upper() if layer.part in ("adapter", "draft") else "FROM"
        yield Instruction(command, str(layer.file and layer.file.absolute()))


def _instructions(
    parts: GgufParts, texts: Mapping[str, str], params: Mapping[str, Any], messages: Any, licences: Any
) -> Iterator[Instruction]:
    for instruction in parts.described.instructions if parts.described else ():
        if instruction.command.lower() in SETTINGS:
            yield instruction
    for part, text in texts.items():
        yield Instruction(part.upper(), text)
    for name, value in params.items():
        for one_value in value if isinstance(value, list) else [value]:
            text = str(one_value).lower() if isinstance(one_value, bool) else str(one_value)
            yield Instruction("PARAMETER", text, name)
    for role, text in messages:
        yield Instruction("MESSAGE", text, role)
    for text in licences:
        yield Instruction("LICENSE", text)
