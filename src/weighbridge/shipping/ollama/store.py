"""Writes a model to Ollama's store like `ollama create`, with or without Ollama installed: blobs by digest, and finally
the manifest, which gives them a name.

Nothing is rewritten: the model's blob is the file. Reference: ollama fb30760, server/create.go, manifest/,
types/model/config.go; https://docs.ollama.com.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote import ollama as store
from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.conversion.result import Progress
from weighbridge.io.digest import digest_of
from weighbridge.io.location import open_source
from weighbridge.io.sink import StoreWriter
from weighbridge.models.llamacpp import TEXT, use_of
from weighbridge.shipping.model import as_gguf
from weighbridge.shipping.ollama.content import OllamaContent, StoreLayer, content_of, entry, manifest_file
from weighbridge.shipping.plan import ShippedFile, ShipPlan, ShipReport, ShipRequest, check_writable, text_plan

_OWNER: Final = (
    "run it as the store's owner (sudo -u ollama wb ship ...), "
    "or ship to another folder with --store DIR, and set OLLAMA_MODELS to it"
)


def prepare(request: ShipRequest) -> ShipPlan:
    """Plans to ship to Ollama. Raises UsageError for a name that Ollama refuses, PermissionError if the store isn't
    writable, and UnsupportedError if the chat template can't be translated."""
    options = request.options
    if not request.name:
        raise UsageError("Ollama needs a name for the model", hint=f"wb ship ollama {request.path} NAME[:TAG]")
    name = store.parse_name(request.name)
    root = Path(options.store).expanduser() if options.store else store.models_folder()
    staged = root / "blobs" / f"sha256-wb{hashlib.sha256(str(request.path).encode()).hexdigest()[:16]}"
    parts = as_gguf(request, staged, staged.with_name(f"{staged.name}-mmproj"))
    content = content_of(parts, request)
    plans = (parts.plan,) if parts.plan else ()
    text = "" if use_of(parts.keys) == TEXT else " TEXT"
    run = (f"ollama run {name}{text}",)
    report = ShipReport("ollama", str(request.path), str(name), (), run, content.modelfile, notes=content.notes)
    if (modelfile := options.modelfile) is not None:  # for `ollama create`
        notes = content.notes
        if parts.plan is not None:
            notes = (*notes, "FROM names the unconverted source: Ollama converts it by other rules")
        report = replace(report, run=(f"ollama create {name} -f {Path(modelfile)}", *run), notes=notes)
        return text_plan(report, modelfile, "Modelfile", options.overwrite, plans)
    check_writable(root, _OWNER)
    manifests = root / "manifests"
    if manifests.joinpath(*name).exists() and not options.overwrite:
        raise RefusedError(f"{name} is in {root} already", option="--overwrite")
    for path in manifests.glob("*/*/*/*"):
        existing = path.relative_to(manifests).parts
        if existing != tuple(name) and tuple(p.lower() for p in existing) == tuple(p.lower() for p in name):
            raise RefusedError(f"{store.OllamaName(*existing)} exists, which Ollama doesn't distinguish from {name}",
                               hint="use the same letters, with --overwrite")  # fmt: skip
    files = []
    for layer in content.layers:
        if layer.file is None:
            path = store.blob(root, store.Layer("", hashlib.sha256(layer.data).hexdigest(), 0))
            files.append(ShippedFile(str(path), layer.bytes, layer.part, "written"))
        else:
            method = "copy" if layer.plan is None else "converted"
            files.append(ShippedFile(str(root / "blobs"), layer.bytes, layer.part, method))
    shipment = _Shipment(root, name, content, options.hard_link)
    return ShipPlan(replace(report, files=tuple(files)), shipment.run, plans)


@dataclass(frozen=True)
class _Shipment:
    """Writes one model to one store."""

    root: Path
    name: store.OllamaName
    content: OllamaContent
    hard_link: bool

    def run(self, progress: Progress | None) -> tuple[ShippedFile, ...]:
        files: list[ShippedFile] = []
        with StoreWriter(self.root) as writer:
            writer.folder(self.root / "blobs")
            layers = [self._add(writer, layer, progress, files) for layer in self.content.layers]
            config = StoreLayer("config", self.content.config_file(layers))
            data = manifest_file(self._add(writer, config, progress, files), layers)
            path = self.root.joinpath("manifests", *self.name)
            writer.folder(path.parent)
            writer.add(path, data, overwrite=True, staged_in=self.root / "blobs")
            files.append(ShippedFile(str(path), len(data), "manifest", "written"))
        return tuple(files)

    def _add(
        self, writer: StoreWriter, layer: StoreLayer, progress: Progress | None, files: list[ShippedFile]
    ) -> dict[str, Any]:
        """Adds a layer to the store, and returns its entry in the manifest."""
        if layer.plan is not None:
            writer.expect(layer.plan.target)
            layer.plan.run(progress)
        if layer.file is None:
            digest, size = hashlib.sha256(layer.data).hexdigest(), len(layer.data)
        else:
            with open_source(layer.file) as source:
                size, label = source.size, f"hashing {layer.file.name}"
                digest = digest_of(source, "sha256", lambda at: progress and progress(at, size, label))
        target = store.blob(self.root, store.Layer("", digest, size))
        files.append(ShippedFile(str(target), size, layer.part, self._write(writer, layer, target, size)))
        return entry(layer.part, digest, size)

    def _write(self, writer: StoreWriter, layer: StoreLayer, target: Path, size: int) -> str:
        """Writes a blob unless it exists, and returns the method."""
        if target.exists():
            if target.stat().st_size != size:
                raise FormatError("the store has a damaged blob", path=str(target), expected=f"{size} bytes",
                                  found=target.stat().st_size, hint="remove it, and ship again")  # fmt: skip
            writer.keep(target)
            if layer.plan is not None:
                writer.discard(layer.plan.target)
            return "there already"
        if layer.file is None:
            writer.add(target, layer.data)
            return "written"
        if layer.plan is not None:
            writer.publish(layer.file, target)
            return "converted"
        return writer.add_file(target, layer.file, link=self.hard_link)
