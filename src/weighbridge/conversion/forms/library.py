"""The forms of a model that are computed on the fly: GGUFs of several types, safetensors, MLX.

Each is planned on first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.conversion.forms.views import PlannedBytes, SlabCache, StoredFile, TextBytes
from weighbridge.conversion.options import QuantizeOptions, WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target
from weighbridge.conversion.quantize import plan as quantizing
from weighbridge.io.filesystem import cached_repository, is_inside
from weighbridge.io.location import StoredPath
from weighbridge.models.arch.registry import projector_of_hf
from weighbridge.models.llamacpp.companions import find_towers, mmproj_name
from weighbridge.models.model import OpenModel
from weighbridge.models.open import open_model

#: Forms that are a folder of files: name -> (format, options of the target).
FOLDERS: Final = MappingProxyType(
    {"safetensors": ("hf", {}), "mlx-4bit": ("mlx", {"q_bits": 4}), "mlx-8bit": ("mlx", {"q_bits": 8})}
)
#: GGUFs, by the type that `wb quantize` takes.
GGUFS: Final = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")
FORMS: Final = (*GGUFS, *FOLDERS)
#: The second file of a GGUF form, among `ModelForms.reasons`.
MMPROJ: Final = "mmproj"


class FormFile(Protocol):
    """A file that is computed on demand."""

    name: str
    size: int
    etag: str

    def read(self, offset: int, length: int) -> bytes: ...


def title_of(path: Path) -> str:
    """The name of a model by its path.

    It is that of the file or folder, of the repository in the Hub's cache, the name in a store of blobs, or the folder
    of a file named model or Modelfile.
    """
    if isinstance(path, StoredPath) and path.title:
        return path.title
    real = path.resolve()
    if (repository := cached_repository(path if path.is_dir() else path.parent)) is not None:
        return repository.rpartition("/")[2]
    if real.name.startswith("models--"):
        return real.name.rpartition("--")[2]
    if real.is_dir():
        return real.name
    return real.parent.name if real.stem.lower() in ("model", "modelfile") else real.stem


class ModelForms(Closing):
    """The forms of one model. A GGUF form of a model with towers has an mmproj file, too: that of a stored GGUF, or one
    that is computed from the folder.

    `name`: the stem of its file names. `reasons`: why a form of the model, or the mmproj file, doesn't exist.
    `allowed`: the folders from which weights may be read through links; any if it is empty.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        forms: tuple[str, ...] = FORMS,
        cache: SlabCache | None = None,
        allowed: tuple[str, ...] = (),
    ) -> None:
        if unknown := [form for form in forms if form not in FORMS]:
            raise UsageError(f"there is no form {unknown[0]!r}", hint=f"known: {', '.join(FORMS)}")
        self.path = resolve_path(path)
        self.name = title_of(self.path)
        self.forms, self.reasons = forms, dict[str, str]()
        self._allowed = allowed
        self._cache, self._closes_cache = cache or SlabCache(WriteOptions().workers), cache is None
        self._plans: dict[str, Plan] = {}
        self._files: dict[str, Mapping[str, FormFile]] = {}
        self._lock = threading.Lock()
        open_model(self.path).close()  # fails now if the path has no model

    def files(self, form: str) -> Mapping[str, FormFile]:
        """The files of a form by name; none if the model doesn't have the form."""
        with self._lock:
            if form not in self._files:
                self._files[form] = self._open_form(form) if form in self.forms else {}
            return self._files[form]

    def plan(self, form: str) -> Plan:
        """The plan of a form that the model has."""
        self.files(form)
        return self._plans[form]

    def _open_form(self, form: str) -> Mapping[str, FormFile]:
        """Plans a form and opens its files; with an entry in `reasons` and no files if the plan is refused."""
        model = open_model(self.path)
        try:
            for path in (*model.place.files, *model.place.adapters) if self._allowed else ():
                if not is_inside(str(path), self._allowed):
                    raise RefusedError(f"{path.name} is a link out of the folder that is served")
            # the same bytes as those of `wb quantize` and `wb convert`
            if form in FOLDERS:
                to, options = FOLDERS[form]
                plan = build(model, choose_target(model, Path(f"{self.name}-{form}"), to, options))
            else:
                plan = self._quantized(model, form)
            plan.slabs  # noqa: B018  # refuses a row that exceeds the budget
            files: dict[str, FormFile] = {}
            for file in plan.files:
                name = file.name if plan.folder else plan.target.name
                files[name] = PlannedBytes(plan, file, self._cache)
            files |= {name: TextBytes(name, data) for name, data in plan.texts.items()}
            if form in GGUFS and model.format == "gguf":
                files |= self._stored_towers(model)
        except (UnsupportedError, RefusedError, UsageError) as error:
            model.close()
            self.reasons[form] = error.message
            return {}
        except BaseException:
            model.close()
            raise
        self._plans[form] = plan
        return files

    def _quantized(self, model: OpenModel, form: str) -> quantizing.QuantizePlan:
        """Plans a GGUF, with the mmproj file if the model has towers that convert."""
        name, reason = f"{self.name}-{form}", None
        if model.format != "gguf" and projector_of_hf(model.config) is not None:
            try:
                return _checked(quantizing.build(model, f"{name}/", form, QuantizeOptions(with_mmproj=True)))
            except WeighbridgeError as error:
                reason = error.message
        plan = _checked(quantizing.build(model, f"{name}.gguf", form, QuantizeOptions()))
        if reason is not None:
            self.reasons[MMPROJ] = reason
        return plan

    def _stored_towers(self, model: OpenModel) -> Mapping[str, FormFile]:
        """The mmproj file of a GGUF, unchanged; with an entry in `reasons` if there are several or it doesn't fit."""
        path, notes = find_towers(self.path, model)
        if path is not None and self._allowed and not is_inside(str(path), self._allowed):
            notes = (f"{path.name} is a link out of the folder that is served",)
            path = None
        if path is None:
            self.reasons |= {MMPROJ: "; ".join(notes)} if notes else {}
            return {}
        name = mmproj_name(path, self.name)
        return {name: StoredFile(name, path)}

    def tree(self) -> Iterator[tuple[str, FormFile]]:
        """Every file under its path in the mounted folder: `model-F16.gguf`, `mlx-4bit/config.json`. GGUFs share the
        mmproj file."""
        paths = set()
        for form in self.forms:
            for name, file in self.files(form).items():
                path = f"{form}/{name}" if form in FOLDERS else name
                if path not in paths:
                    paths.add(path)
                    yield path, file

    def close(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        if self._closes_cache:
            self._cache.close()


def _checked(plan: quantizing.QuantizePlan) -> quantizing.QuantizePlan:
    plan.check()
    return plan
