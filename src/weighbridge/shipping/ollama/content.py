"""What a model consists of in Ollama: layers by their media types, a config, and the same as a Modelfile. Whoever hands
a model to Ollama takes it from here: the store on this machine, a Modelfile, a registry that it is pulled from.

Reference: ollama fb30760, server/create.go, manifest/, types/model/config.go; https://docs.ollama.com.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.ollama import MEDIA as MANIFEST
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.models.modelfile import SETTINGS, Instruction, referred, write_modelfile
from weighbridge.shipping.model import GgufParts
from weighbridge.shipping.ollama.turns import translate
from weighbridge.shipping.plan import ShipRequest

#: Part of a model -> its media type. `params` and `messages` are JSON, the others files or text.
MEDIA: Final = {
    part: f"application/vnd.ollama.image.{part}"
    for part in ("model", "projector", "adapter", "draft", "template", "system", "params", "messages", "license")
}
_CONFIG: Final = "application/vnd.docker.container.image.v1+json"


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """One layer: `data`, or a file. `made`: a plan makes the file first."""

    part: str
    data: bytes = b""
    file: Path | None = None
    size: int = 0
    made: bool = False

    @property
    def bytes(self) -> int:
        return self.size if self.file is not None else len(self.data)


@dataclass(frozen=True)
class OllamaContent:
    """What the model consists of: layers, config, and the same as a Modelfile."""

    layers: tuple[StoreLayer, ...]
    config: dict[str, Any]
    modelfile: str
    notes: tuple[str, ...]

    def config_file(self, layers: Iterable[Mapping[str, Any]]) -> bytes:
        """The config, whose `rootfs` lists the entries of the layers by digest."""
        digests = [layer["digest"] for layer in layers]
        return _json({**self.config, "rootfs": {"type": "layers", "diff_ids": digests}})


def entry(part: str, sha256: str, size: int) -> dict[str, Any]:
    """A layer, or the `config`, in a manifest."""
    return {"mediaType": MEDIA.get(part, _CONFIG), "digest": f"sha256:{sha256}", "size": size}


def manifest_file(config: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> bytes:
    """The manifest of entries."""
    return _json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def content_of(parts: GgufParts, request: ShipRequest) -> OllamaContent:
    """The layers, the model first. UnsupportedError for a chat template that can't be translated; FormatError."""
    notes = list(parts.notes)
    texts = _texts(parts, request, notes)
    params = {**parts.sampling, **(parts.described.parameters if parts.described else {})}
    if stops := _stops(parts, texts.get("template_stop", "")):
        params.setdefault("stop", stops)
    files = [StoreLayer("model", file=parts.file or (parts.plan.target if parts.plan else None), size=parts.size,
                        made=parts.plan is not None), *_companions(parts, request)]  # fmt: skip
    layers = [*files]
    layers += [StoreLayer(part, texts[part].encode()) for part in ("template", "system") if texts.get(part)]
    if params:
        layers.append(StoreLayer("params", _json(params)))
    messages = parts.described.messages if parts.described else ()
    if messages:
        rows = [{"role": role, "content": text} for role, text in messages]
        layers.append(StoreLayer("messages", json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()))
    licences = parts.described.values("LICENSE") if parts.described else ()
    licences = licences or tuple(parts.licences())
    layers += [StoreLayer("license", text.encode()) for text in licences if text.strip()]
    if not licences:
        notes.append("no licence is known: neither a LICENSE file beside the model nor general.license")
    config = _config(parts, [layer.part for layer in layers])
    text = _modelfile(parts, request, files, texts, params, messages, licences, notes)
    return OllamaContent(tuple(layers), config, text, tuple(notes))


def _texts(parts: GgufParts, request: ShipRequest, notes: list[str]) -> dict[str, str]:
    """The template and the system text. `template_stop`: what ends a reply, where the template was translated."""
    described, options = parts.described, request.options
    system = options.system or (described.last("SYSTEM") if described else None) or ""
    texts = {"system": system}
    own = described.last("TEMPLATE") if described else None
    if own and options.template is None:
        return {**texts, "template": own}
    if options.template not in (None, "go", "none"):
        return {**texts, "template": _template_file(Path(str(options.template)))}
    if parts.jinja is None:
        notes.append("the model has no chat template: Ollama passes on what is typed")
    elif options.template == "none":
        notes.append("without a Go template: Ollama renders the model's own one, as versions from 2026 on do")
    else:
        found = translate(parts.jinja, parts.special)
        notes.extend(f"not in the Go template: {words}" for words in found.differences)
        return {**texts, "template": found.text, "template_stop": found.turns.next_user}
    return texts


def _template_file(path: Path) -> str:
    if not path.is_file():
        raise UsageError(f"no template is called {path}", hint="--template go, none or a file with a Go template")
    if path.stat().st_size > MIB:
        raise UsageError(f"{path} is too large for a template", hint=f"at most {MIB} bytes")
    return path.read_text("utf-8")


def _stops(parts: GgufParts, following: str) -> list[str]:
    """The special token that ends a reply, unless llama.cpp stops there by itself."""
    tokens = parts.keys.get("tokenizer.ggml.tokens") or ()
    kinds = parts.keys.get("tokenizer.ggml.token_type") or ()
    special = {str(t) for t, kind in zip(tokens, kinds, strict=False) if kind in (3, 4)}
    text = following.lstrip()
    found = max((t for t in special if t and text.startswith(t)), key=len, default="")
    return [found] if found and not parts.ends(found) else []


def _companions(parts: GgufParts, request: ShipRequest) -> Iterator[StoreLayer]:
    """The projector that was named, and the files of a Modelfile."""
    if request.options.mmproj is not None:
        yield _companion("projector", Path(request.options.mmproj), "mmproj")
    described = parts.described
    if described is None:
        return
    for value in described.values("FROM")[1:]:
        yield _companion("projector", _local(described, value, request.path), "mmproj")
    for value in described.values("DRAFT"):
        yield _companion("draft", _local(described, value, request.path), "model")
    if parts.plan is None:
        for value in described.values("ADAPTER"):
            yield _companion("adapter", _local(described, value, request.path), "adapter")


def _local(described: Any, value: str, path: Path) -> Path:
    found = referred(described, value, path.parent)
    if not isinstance(found, Path):
        raise UnsupportedError(f"{value} isn't a file of this machine", hint="name a GGUF file")
    return found


def _companion(part: str, path: Path, kind: str) -> StoreLayer:
    """A GGUF beside the model. FormatError for one of another kind."""
    from weighbridge.models.open import open_model

    with open_model(path) as model:
        found = model.metadata.get("general.type", "model") if model.format == "gguf" else model.format
    if found != kind:
        raise FormatError(f"no {part}", path=str(path), field="general.type", expected=kind, found=found)
    return StoreLayer(part, file=path, size=path.stat().st_size)


def _config(parts: GgufParts, layers: list[str]) -> dict[str, Any]:
    given = parts.described
    settings = {name: given.last(name.upper()) for name in SETTINGS if given and given.last(name.upper())}
    families = [parts.architecture, *(["clip"] if "projector" in layers else [])]
    return {
        "model_format": "gguf", "model_family": parts.architecture, "model_families": families,
        "model_type": human_number(parts.parameters), "file_type": parts.file_type, "architecture": "amd64",
        "os": "linux", **settings,
    }  # fmt: skip


def human_number(count: int) -> str:
    """As Ollama writes a number of parameters (format/format.go): 1.2B, 124.44M, 7B."""
    for size, unit, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            whole = count % size == 0 or not digits
            return f"{count / size:.0f}{unit}" if whole else f"{count / size:.{digits}f}{unit}"
    return str(count)


# ------------------------------------------------------------------------------------------------ Modelfile


def _modelfile(parts: GgufParts, request: ShipRequest, files: list[StoreLayer], texts: Mapping[str, str],
               params: Mapping[str, Any], messages: Any, licences: Any, notes: list[str]) -> str:  # fmt: skip
    """The same model as a Modelfile. What one can't express is left out, and listed."""
    model, *others = files
    rows = [*_made_from(parts, request)] if model.file is None or model.made else [_from(model.file)]
    rows += [
        Instruction(x.part.upper() if x.part in ("adapter", "draft") else "FROM", str(x.file and x.file.absolute()))
        for x in others
    ]
    rows += [i for i in (parts.described.instructions if parts.described else ()) if i.command.lower() in SETTINGS]
    rows += [Instruction(part.upper(), texts[part]) for part in ("template", "system") if texts.get(part)]
    for name, value in params.items():
        rows += [Instruction("PARAMETER", _parameter(v), name) for v in (value if isinstance(value, list) else [value])]
    rows += [Instruction("MESSAGE", text, role) for role, text in messages]
    rows += [Instruction("LICENSE", text) for text in licences]
    written = []
    for row in rows:
        try:
            written.append(write_modelfile([row]))
        except UnsupportedError as error:
            notes.append(f"not in the Modelfile: {row.command} ({error.message})")
    return "".join(written)


def _from(path: Path) -> Instruction:
    return Instruction("FROM", str(path.absolute()))


def _made_from(parts: GgufParts, request: ShipRequest) -> Iterator[Instruction]:
    """What a model that isn't a GGUF yet is made of: the source, or what its Modelfile names."""
    if parts.described is None:
        yield _from(request.path)
        return
    named = [("FROM", parts.described.values("FROM")[0]), *(("ADAPTER", v) for v in parts.described.values("ADAPTER"))]
    for command, value in named:
        found = referred(parts.described, value, request.path.parent)
        yield Instruction(command, str(found.absolute()) if isinstance(found, Path) else value)


def _parameter(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
