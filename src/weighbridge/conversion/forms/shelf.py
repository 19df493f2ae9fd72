"""The models below a folder as repositories: their stored files, and their computed forms."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.sniff.detect import sniff
from weighbridge.conversion.forms.library import FOLDERS, GGUFS, MMPROJ, FormFile, ModelForms, title_of
from weighbridge.conversion.forms.views import SlabCache, StoredFile
from weighbridge.conversion.gguf.loadable import LayoutSource
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.filesystem import is_inside, own_folders
from weighbridge.io.location import open_source
from weighbridge.models.llamacpp import SERVER_FLAGS, use_of
from weighbridge.models.llamacpp.companions import find_towers, mmproj_name
from weighbridge.models.locate import locate, models_in
from weighbridge.models.model import files_of
from weighbridge.models.open import open_headers

#: Suffix of the repository of a model's GGUFs.
GGUF: Final = "-GGUF"


class GgufForm(NamedTuple):
    """The plan of a GGUF, and the bytes of its files: the model, and the towers if it has some."""

    plan: Plan
    file: FormFile
    mmproj: FormFile | None = None


class ModelFolder(Closing):
    """The models at or below a folder, one level deep.

    A model `name` has the repositories `name` (its files), `name-GGUF`, `name-safetensors`, `name-mlx-4bit`, and so on.
    Nothing is read through a link out of the folder; `outside`: models that are such links.
    """

    def __init__(self, root: Path, forms: tuple[str, ...]) -> None:
        self._cache = SlabCache(WriteOptions().workers)
        self._models: dict[str, Path] = {}
        self._forms: dict[str, ModelForms] = {}
        self._stored: dict[str, Mapping[str, FormFile]] = {}
        self._lock = threading.Lock()
        self.forms = forms
        self.outside: list[str] = []
        root.stat()  # raises the system's error for a missing folder
        self._allowed = own_folders(str(root if root.is_dir() else root.resolve().parent))
        below = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        for path in (root, *below):
            for model in models_in(path) or _one_model(path):
                if is_inside(str(model), self._allowed):
                    self._models[self._unused_name(model)] = model
                else:
                    self.outside.append(model.relative_to(root).as_posix())
        if not self._models:
            links = f"; {', '.join(self.outside)}: links out of it, which aren't followed" if self.outside else ""
            hint = f"name a folder of models, a model's folder or a GGUF{links}"
            raise UsageError(f"{root} holds no model", hint=hint)

    def repositories(self) -> tuple[str, ...]:
        """The names of all repositories; those of forms that a model doesn't have are empty."""
        return tuple(r for name in self._models for r in (name, *self._form_repositories(name)))

    def _form_repositories(self, name: str) -> Mapping[str, tuple[str, ...]]:
        """The repositories of a model's forms: repository -> forms in it."""
        ggufs = tuple(form for form in self.forms if form in GGUFS)
        repositories = {f"{name}{GGUF}": ggufs} if ggufs else {}
        return repositories | {f"{name}-{form}": (form,) for form in self.forms if form in FOLDERS}

    def _unused_name(self, model: Path) -> str:
        """The simplest name whose repositories are unused, in the letters that the Hub, llama.cpp and Ollama allow."""
        used = {repository.lower() for repository in self.repositories()}
        title, name = title_of(model), model.resolve().name
        candidates = map(_plain, (title, name, f"{model.resolve().parent.name}-{name}"))
        for candidate in chain(candidates, (f"{_plain(title)}-{number}" for number in count(2))):
            if used.isdisjoint(r.lower() for r in (candidate, *self._form_repositories(candidate))):
                return candidate
        raise AssertionError  # the numbers never end

    def files(self, repository: str) -> Mapping[str, FormFile] | None:
        """The files of a repository; None for an unknown one."""
        if repository in self._models:
            with self._lock:
                if repository not in self._stored:
                    stored = _stored_files(self._models[repository])
                    self._stored[repository] = {name: StoredFile(name, path) for name, path in stored}
                return self._stored[repository]
        if (forms := self._forms_in(repository)) is None:
            return None
        return {name: file for form in forms[1] for name, file in forms[0].files(form).items()}

    def reasons(self, repository: str) -> Mapping[str, str]:
        """Files and forms that are missing in a repository -> why: links out of its folder, refused plans."""
        if repository in self._models:
            links = _stored_files(self._models[repository], inside=False)
            return {name: "a link out of the model's folder" for name, _ in links}
        if (forms := self._forms_in(repository)) is None:
            return {}
        shown = (*forms[1], *([MMPROJ] if forms[1][0] in GGUFS else []))
        return {form: forms[0].reasons[form] for form in shown if form in forms[0].reasons}

    def server_flags(self, repository: str) -> tuple[str, ...] | None:
        """llama-server's flags for the GGUFs of a repository; None if it has none, or if it doesn't run them."""
        if repository in self._models:
            with open_headers(self._models[repository]).model as model:
                return SERVER_FLAGS.get(use_of(model.metadata)) if model.format == "gguf" else None
        forms, names = self._forms_in(repository) or (None, ())
        if forms is None or (form := next((form for form in names if form in GGUFS and forms.files(form)), "")) == "":
            return None
        file, *_ = forms.plan(form).files
        index = gguf.parse(LayoutSource(file.name, file.layout), level="lenient")
        return SERVER_FLAGS.get(use_of(index.metadata))

    def _forms_in(self, repository: str) -> tuple[ModelForms, tuple[str, ...]] | None:
        """The model of a repository, and the names of its forms."""
        for name in self._models:
            if (forms := self._form_repositories(name).get(repository)) is not None:
                return self._forms_of(name), forms
        return None

    def known(self, name: str) -> str | None:
        """A model's name, by that name in any case or by the repository of its GGUFs."""
        model = name.lower().removesuffix(GGUF.lower())
        return next((name for name in self._models if name.lower() == model), None)

    def path(self, model: str) -> Path:
        """The path of a known model."""
        return self._models[model]

    def gguf(self, model: str, form: str) -> GgufForm | None:
        """One GGUF of a known model; None for an unknown form. Raises UnsupportedError if the model can't have it."""
        if form not in self.forms or form not in GGUFS:
            return None
        forms = self._forms_of(model)
        if not (files := forms.files(form)):
            raise UnsupportedError(f"no {form} of {model}: {forms.reasons[form]}")
        return GgufForm(forms.plan(form), *files.values())

    def _forms_of(self, name: str) -> ModelForms:
        with self._lock:
            if name not in self._forms:
                self._forms[name] = ModelForms(self._models[name], self.forms, self._cache, self._allowed)
            return self._forms[name]

    def close(self) -> None:
        for forms in self._forms.values():
            forms.close()
        self._cache.close()


def _stored_files(model: Path, *, inside: bool = True) -> Iterator[tuple[str, Path]]:
    """The files of a model, by their names in its folder; or, unless `inside`, the links out of that."""
    place = locate(model)
    allowed = own_folders(str(place.folder))
    if not model.is_dir():
        files = (path for path in (*files_of(model), *place.adapters) if path.is_file())
        yield from ((path.name, path) for path in files if inside)
        with open_headers(model).model as opened:
            towers = find_towers(model, opened).path if opened.format == "gguf" else None
        if towers is not None and is_inside(str(towers), allowed) == inside:
            yield mmproj_name(towers, title_of(model)), towers
        return
    for base, folders, names in os.walk(place.folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(base, name) for name in sorted(names) if not name.startswith(".")):
            if path.is_file() and is_inside(str(path), allowed) == inside:
                yield path.relative_to(place.folder).as_posix(), path


def _plain(text: str) -> str:
    return re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9_.]+", "-", text))[:60].strip("-.") or "model"


def _one_model(path: Path) -> tuple[Path, ...]:
    """The model of a path: the only GGUF of a folder, the folder, or a file of a readable format; else empty."""
    try:
        weights = locate(path).weights
    except (OSError, WeighbridgeError):
        return ()
    if path.is_dir():
        return weights if len(weights) == 1 and weights[0].suffix == ".gguf" else (path,)
    with open_source(weights[0]) as source:
        return (path,) if sniff(source).readable else ()
