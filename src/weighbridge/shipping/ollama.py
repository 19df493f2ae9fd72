"""Ollama's store, written as `ollama create` leaves it, with or without Ollama there: blobs by their digests, and last
the manifest, which makes a name of them.

Nothing is rewritten: the model's blob is the file itself. Reference: ollama fb30760, server/create.go, manifest/,
types/model/config.go; https://docs.ollama.com.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote import ollama as store
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.conversion.result import Progress
from weighbridge.io.digest import digest_of
from weighbridge.io.location import open_source
from weighbridge.io.sink import StoreWriter, write_file
from weighbridge.models.modelfile import Instruction, referred, write_modelfile
from weighbridge.shipping.model import GgufParts, as_gguf
from weighbridge.shipping.plan import ShippedFile, ShipPlan, ShipReport, ShipRequest
from weighbridge.shipping.turns import translate

#: Part of a model -> its media type. `params` and `messages` are JSON, the others files or text.
MEDIA: Final = {
    part: f"application/vnd.ollama.image.{part}"
    for part in ("model", "projector", "adapter", "template", "system", "params", "messages", "license")
}
CONFIG: Final = "application/vnd.docker.container.image.v1+json"
_OWNER: Final = (
    "run it as the store's owner (sudo -u ollama wb ship ...), "
    "or ship to a folder of your own with --store DIR, and set OLLAMA_MODELS to it"
)


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


def prepare(request: ShipRequest) -> ShipPlan:
    """The plan of shipping to Ollama. UsageError for a name that Ollama refuses; PermissionError for a store that can't
    be written; UnsupportedError for a chat template that can't be translated."""
    options = request.options
    if not request.name:
        raise UsageError("Ollama needs a name for the model", hint=f"wb ship ollama {request.path} NAME[:TAG]")
    name = store.parse_name(request.name)
    root = Path(options.store).expanduser() if options.store else store.models_folder()
    staged = root / "blobs" / f"sha256-wb{hashlib.sha256(str(request.path).encode()).hexdigest()[:16]}"
    parts = as_gguf(request.path, options.type, staged)
    content = _content(parts, request)
    run = (f"ollama run {name}",)
    if options.modelfile is not None:
        return _modelfile_plan(request, parts, content, name)
    _check_store(root, name, options.overwrite)
    report = ShipReport("ollama", str(request.path), str(name), tuple(_planned(root, content.layers)), run,
                        content.modelfile, notes=content.notes)  # fmt: skip
    shipment = _Shipment(root, name, parts, content, options.hard_link)
    return ShipPlan(report, shipment.run, (parts.plan,) if parts.plan else ())


@dataclass(frozen=True)
class OllamaContent:
    """What the model consists of: layers, config, and the same as a Modelfile."""

    layers: tuple[StoreLayer, ...]
    config: dict[str, Any]
    modelfile: str
    notes: tuple[str, ...]


def _check_store(root: Path, name: store.OllamaName, overwrite: bool) -> None:
    try:
        StoreWriter(root)
    except PermissionError as error:
        raise RefusedError(f"{error.filename} can't be written by you", hint=_OWNER) from None
    manifests = root / "manifests"
    wanted = manifests.joinpath(*name)
    if wanted.exists() and not overwrite:
        raise RefusedError(f"{name} is in {root} already", option="--overwrite")
    for there in manifests.glob("*/*/*/*"):
        other = there.relative_to(manifests).parts
        if other != tuple(name) and tuple(p.lower() for p in other) == tuple(p.lower() for p in name):
            raise RefusedError(f"{store.OllamaName(*other)} is there, a name that Ollama doesn't tell from {name}",
                               hint="use the same letters, with --overwrite")  # fmt: skip


# ------------------------------------------------------------------------------------------------ content


def _content(parts: GgufParts, request: ShipRequest) -> OllamaContent:
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
        layers.append(StoreLayer("params", json.dumps(params, separators=(",", ":")).encode()))
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
        found = model.metadata.get("general.type") if model.format == "gguf" else model.format
    if found != kind:
        raise FormatError(f"no {part}", path=str(path), field="general.type", expected=kind, found=found)
    return StoreLayer(part, file=path, size=path.stat().st_size)


def _config(parts: GgufParts, layers: list[str]) -> dict[str, Any]:
    families = [parts.architecture, *(["clip"] if "projector" in layers else [])]
    return {
        "model_format": "gguf", "model_family": parts.architecture, "model_families": families,
        "model_type": human_number(parts.parameters), "file_type": parts.file_type, "architecture": "amd64",
        "os": "linux",
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
        Instruction("ADAPTER" if x.part == "adapter" else "FROM", str(x.file and x.file.absolute())) for x in others
    ]
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


def _modelfile_plan(request: ShipRequest, parts: GgufParts, content: OllamaContent, name: store.OllamaName) -> ShipPlan:
    """Only the Modelfile, for `ollama create`."""
    target = Path(str(request.options.modelfile))
    data = content.modelfile.encode()
    notes = content.notes
    if parts.plan is not None:
        notes = (*notes, "FROM names the source as it is: Ollama converts it by its own rules")
    file = ShippedFile(str(target), len(data), "Modelfile", "written")
    run = (f"ollama create {name} -f {target}", f"ollama run {name}")

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        write_file(target, data, overwrite=request.options.overwrite)
        return (file,)

    report = ShipReport("ollama", str(request.path), str(name), (file,), run, content.modelfile, notes=notes)
    return ShipPlan(report, act, (parts.plan,) if parts.plan else ())


# ------------------------------------------------------------------------------------------------ writing


def _planned(root: Path, layers: tuple[StoreLayer, ...]) -> Iterator[ShippedFile]:
    """The files as far as they are known before anything is hashed."""
    for layer in layers:
        if layer.file is None:
            path = store.blob(root, store.Layer("", hashlib.sha256(layer.data).hexdigest(), 0))
            yield ShippedFile(str(path), layer.bytes, layer.part, "written")
        else:
            yield ShippedFile(str(root / "blobs"), layer.bytes, layer.part, "converted" if layer.made else "copy")


@dataclass(frozen=True)
class _Shipment:
    """One model on its way into one store."""

    root: Path
    name: store.OllamaName
    parts: GgufParts
    content: OllamaContent
    hard_link: bool

    def run(self, progress: Progress | None) -> tuple[ShippedFile, ...]:
        done: list[ShippedFile] = []
        with StoreWriter(self.root) as writer:
            writer.folder(self.root / "blobs")
            layers = [self._add(writer, layer, progress, done) for layer in self.content.layers]
            digests = [layer["digest"] for layer in layers]
            config = {**self.content.config, "rootfs": {"type": "layers", "diff_ids": digests}}
            described = self._add(writer, StoreLayer("config", json.dumps(config, separators=(",", ":")).encode()),
                                  progress, done)  # fmt: skip
            manifest = {"schemaVersion": 2, "mediaType": store.MEDIA, "config": described, "layers": layers}
            data = json.dumps(manifest, separators=(",", ":")).encode()
            path = self.root.joinpath("manifests", *self.name)
            writer.folder(path.parent)
            writer.add(path, data, overwrite=True, staged_in=self.root / "blobs")
            done.append(ShippedFile(str(path), len(data), "manifest", "written"))
        return tuple(done)

    def _add(
        self, writer: StoreWriter, layer: StoreLayer, progress: Progress | None, done: list[ShippedFile]
    ) -> dict[str, Any]:
        """Put a layer into the store; its entry in the manifest."""
        if layer.made and self.parts.plan is not None:
            writer.expect(self.parts.plan.target)
            self.parts.plan.run(progress)
        digest, size = (_digest(layer.file, progress) if layer.file is not None
                        else (hashlib.sha256(layer.data).hexdigest(), len(layer.data)))  # fmt: skip
        media = MEDIA.get(layer.part, CONFIG)
        target = store.blob(self.root, store.Layer(media, digest, size))
        how = self._placed(writer, layer, target, size)
        done.append(ShippedFile(str(target), size, layer.part, how))
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": size}

    def _placed(self, writer: StoreWriter, layer: StoreLayer, target: Path, size: int) -> str:
        if target.exists():
            if target.stat().st_size != size:
                raise FormatError("the store has a damaged blob", path=str(target), expected=f"{size} bytes",
                                  found=target.stat().st_size, hint="remove it, and ship again")  # fmt: skip
            writer.keep(target)
            return "there already"
        if layer.file is None:
            writer.add(target, layer.data)
            return "written"
        if layer.made:
            writer.publish(layer.file, target)
            return "converted"
        return writer.add_file(target, layer.file, link=self.hard_link)


def _digest(file: Path, progress: Progress | None) -> tuple[str, int]:
    """SHA-256 and size of a file."""
    with open_source(file) as source:
        size, words = source.size, f"hashing {file.name}"
        return digest_of(source, "sha256", lambda at: progress and progress(at, size, words)), size
