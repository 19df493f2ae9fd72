"""Models below a folder as repositories: each as its files lie, and in the forms that are computed."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers.sniff.detect import sniff
from weighbridge.conversion.forms.library import FOLDERS, GGUFS, FormFile, ModelForms, title_of
from weighbridge.conversion.forms.views import SlabCache
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.links import is_inside, own_folders
from weighbridge.io.location import open_source
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


class GgufForm(NamedTuple):
    """The plan of a GGUF, and its bytes."""

    plan: Plan
    file: FormFile


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
                self._models[next(name for name in _names(model) if self._is_free(name))] = model
        if not self._models:
            raise UsageError(f"{root} holds no model", hint="name a folder of models, a model's folder or a GGUF")

    def repositories(self) -> tuple[str, ...]:
        """The names of all repositories; those of forms that a model can't take turn out empty."""
        return tuple(r for name in self._models for r in (name, *self._made(name)))

    def _made(self, name: str) -> Mapping[str, tuple[str, ...]]:
        """The repositories of a model's forms: repository -> forms in it."""
        ggufs = tuple(form for form in self.forms if form in GGUFS)
        found = {f"{name}{GGUF}": ggufs} if ggufs else {}
        return found | {f"{name}-{form}": (form,) for form in self.forms if form in FOLDERS}

    def _is_free(self, name: str) -> bool:
        taken = {repository.lower() for repository in self.repositories()}
        return taken.isdisjoint(repository.lower() for repository in (name, *self._made(name)))

    def files(self, repository: str) -> Mapping[str, FormFile] | None:
        """The files of a repository; None where there is none of that name."""
        if repository in self._models:
            return self._as_stored(repository)
        if (found := self._form_of(repository)) is None:
            return None
        model, forms = found
        return {file: view for form in forms for file, view in model.files(form).items()}

    def reasons(self, repository: str) -> Mapping[str, str]:
        """What isn't in a repository, and why: forms that the model can't take, files that aren't its own."""
        if repository in self._models:
            return {name: "a link out of the model's folder" for name, _ in _lying(self._models[repository], own=False)}
        if (found := self._form_of(repository)) is None:
            return {}
        model, forms = found
        return {form: model.reasons[form] for form in forms if form in model.reasons}

    def _form_of(self, repository: str) -> tuple[ModelForms, tuple[str, ...]] | None:
        for name in self._models:
            if (forms := self._made(name).get(repository)) is not None:
                return self._of(name), forms
        return None

    def known(self, name: str) -> str | None:
        """A model's name, by that name in any case or by the repository of its GGUFs."""
        model = name.lower().removesuffix(GGUF.lower())
        return next((known for known in self._models if known.lower() == model), None)

    def path(self, model: str) -> Path:
        """Where a known model lies."""
        return self._models[model]

    def gguf(self, model: str, form: str) -> GgufForm | None:
        """One GGUF of a known model. None where there is no such form; UnsupportedError where the model can't have
        it."""
        if form not in self.forms or form not in GGUFS:
            return None
        forms = self._of(model)
        if not (files := forms.files(form)):
            raise UnsupportedError(f"no {form} of {model}: {forms.reasons[form]}")
        return GgufForm(forms.plan(form), next(iter(files.values())))

    def _of(self, name: str) -> ModelForms:
        with self._lock:
            if name not in self._forms:
                self._forms[name] = ModelForms(self._models[name], self.forms, self._cache)
            return self._forms[name]

    def _as_stored(self, name: str) -> Mapping[str, FormFile]:
        with self._lock:
            if name not in self._stored:
                self._stored[name] = {file: StoredFile(file, path) for file, path in _lying(self._models[name])}
            return self._stored[name]

    def close(self) -> None:
        for forms in self._forms.values():
            forms.close()
        self._cache.close()


def _lying(model: Path, *, own: bool = True) -> Iterator[tuple[str, Path]]:
    """The files of a model as they lie, by their names in its folder; or those that are links out of it."""
    place = locate(model)
    if not model.is_dir():
        files = (path for path in (*place.weights, *place.adapters) if path.is_file())
        yield from ((path.name, path) for path in files if own)
        return
    inside = own_folders(str(place.folder))
    for base, folders, names in os.walk(place.folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(base, name) for name in sorted(names) if not name.startswith(".")):
            if path.is_file() and is_inside(str(path), inside) == own:
                yield path.relative_to(place.folder).as_posix(), path


def _names(model: Path) -> Iterator[str]:
    """Names for a model's repositories, the plainest first, in the letters that the Hub, llama.cpp and Ollama take."""
    folder = model.resolve().parent.name
    for text in (title_of(model), model.resolve().name, f"{folder}-{model.resolve().name}"):
        yield _plain(text)
    yield from (f"{_plain(title_of(model))}-{number}" for number in count(2))


def _plain(text: str) -> str:
    return re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9_.]+", "-", text))[:60].strip("-.") or "model"


def _one_model(path: Path) -> tuple[Path, ...]:
    """The model of a folder or file: the file, the folder, or the one GGUF in it; empty where there is none."""
    try:
        weights = locate(path).weights
    except (OSError, WeighbridgeError):
        return ()
    if path.is_dir():
        return weights if len(weights) == 1 and weights[0].suffix == ".gguf" else (path,)
    return (path,) if _is_readable(weights[0]) else ()


def _is_readable(path: Path) -> bool:
    """Whether a file is of a format that has a reader, whatever its name."""
    with open_source(path) as source:
        return sniff(source).readable
