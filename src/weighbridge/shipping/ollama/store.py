"""Ollama's store, written as `ollama create` leaves it, with or without Ollama there: blobs by their digests, and last
the manifest, which makes a name of them.

Nothing is rewritten: the model's blob is the file itself. Reference: ollama fb30760, server/create.go, manifest/,
types/model/config.go; https://docs.ollama.com.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote import ollama as store
from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.conversion.result import Progress
from weighbridge.io.digest import digest_of
from weighbridge.io.location import open_source
from weighbridge.io.sink import StoreWriter, write_file
from weighbridge.shipping.model import GgufParts, as_gguf
from weighbridge.shipping.ollama.content import OllamaContent, StoreLayer, content_of, entry, manifest_file
from weighbridge.shipping.plan import ShippedFile, ShipPlan, ShipReport, ShipRequest

_OWNER: Final = (
    "run it as the store's owner (sudo -u ollama wb ship ...), "
    "or ship to a folder of your own with --store DIR, and set OLLAMA_MODELS to it"
)


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
    content = content_of(parts, request)
    run = (f"ollama run {name}",)
    if options.modelfile is not None:
        return _modelfile_plan(request, parts, content, name)
    _check_store(root, name, options.overwrite)
    report = ShipReport("ollama", str(request.path), str(name), tuple(_planned(root, content.layers)), run,
                        content.modelfile, notes=content.notes)  # fmt: skip
    shipment = _Shipment(root, name, parts, content, options.hard_link)
    return ShipPlan(report, shipment.run, (parts.plan,) if parts.plan else ())


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
            config = StoreLayer("config", self.content.config_file(layers))
            data = manifest_file(self._add(writer, config, progress, done), layers)
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
        target = store.blob(self.root, store.Layer("", digest, size))
        how = self._placed(writer, layer, target, size)
        done.append(ShippedFile(str(target), size, layer.part, how))
        return entry(layer.part, digest, size)

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
