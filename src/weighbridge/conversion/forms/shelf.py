"""Models below a folder as repositories: each as its files lie, and in the forms that are computed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.conversion.forms.library import FOLDERS, GGUFS, FormFile, ModelForms
from weighbridge.conversion.forms.views import SlabCache
from weighbridge.conversion.options import WriteOptions
from weighbridge.io.source import FileSource
from weighbridge.models.locate import locate, models_in

#: The repository of a model's GGUFs is called so.
GGUF: Final = "-GGUF"


class StoredFile:
    """A file as it lies on the disk."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self._source = name, FileSource(path)
        found = path.stat()
        self.size = found.st_size
        self.etag = hashlib.sha1(f"{path.resolve()} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()

    def read(self, offset: int, length: int) -> bytes:
        return self._source.read(offset, max(min(length, self.size - offset), 0))


class Shelf(Closing):
    """The models at or below a folder, one level deep. Of a model `name` there are the repositories `name` (its files),
    `name-GGUF`, `name-safetensors`, `name-mlx-4bit`, and so on."""

    def __init__(self, root: Path, forms: tuple[str, ...]) -> None:
        self._cache = SlabCache(WriteOptions().workers)
        self._models: dict[str, Path] = {}
        self._forms: dict[str, ModelForms] = {}
        self._stored: dict[str, Mapping[str, FormFile]] = {}
        self._lock = threading.Lock()
        self.forms = forms
        root.stat()  # no such folder: the system's own words
        below = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        for path in (root, *below):
            for model in models_in(path) or _one_model(path):
                self._models[(model if model.is_dir() else model.with_suffix("")).resolve().name] = model
        if not self._models:
            raise UsageError(f"{root} holds no model", hint="name a folder of models, a model's folder or a GGUF")

    def repositories(self) -> tuple[str, ...]:
        """The names of all repositories; those of forms that a model can't take turn out empty."""
        found = []
        for name in self._models:
            found += [name, f"{name}{GGUF}", *(f"{name}-{form}" for form in self.forms if form in FOLDERS)]
        return tuple(found)

    def files(self, repository: str) -> Mapping[str, FormFile] | None:
        """The files of a repository; None where there is none of that name."""
        if repository in self._models:
            return self._as_stored(repository)
        name = repository.removesuffix(GGUF)
        if name != repository and name in self._models:
            forms = self._of(name)
            return {file: view for form in self.forms if form in GGUFS for file, view in forms.files(form).items()}
        for form in FOLDERS:
            name = repository.removesuffix(f"-{form}")
            if name != repository and name in self._models and form in self.forms:
                return self._of(name).files(form)
        return None

    def gguf(self, model: str, tag: str) -> FormFile | None:
        """One GGUF of a model, by its type in any case; `latest` is Q4_K_M, as Ollama would have it."""
        form = {"latest": "Q4_K_M"}.get(tag, tag).upper()
        name = model.removesuffix(GGUF)
        known = next((n for n in self._models if n.lower() == name.lower()), None)
        if known is None or form not in self.forms or form not in GGUFS:
            return None
        return next(iter(self._of(known).files(form).values()), None)

    def _of(self, name: str) -> ModelForms:
        with self._lock:
            if name not in self._forms:
                self._forms[name] = ModelForms(self._models[name], self.forms, self._cache)
            return self._forms[name]

    def _as_stored(self, name: str) -> Mapping[str, FormFile]:
        with self._lock:
            if name not in self._stored:
                path = self._models[name]
                files = [p for p in sorted(path.iterdir()) if p.is_file()] if path.is_dir() else locate(path).weights
                self._stored[name] = {p.name: StoredFile(p.name, p) for p in files if not p.name.startswith(".")}
            return self._stored[name]

    def close(self) -> None:
        for forms in self._forms.values():
            forms.close()
        self._cache.close()


def _one_model(path: Path) -> tuple[Path, ...]:
    """The model of a folder or file: the folder, or the one GGUF in it; empty where there is none."""
    try:
        weights = locate(path).weights
    except (OSError, WeighbridgeError):
        return ()
    return weights if len(weights) == 1 and weights[0].suffix == ".gguf" else (path,)
