"""The forms in which a model can be had without being written: GGUFs of several types, safetensors, MLX. Each is
planned when it is first asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.conversion.forms.views import PlannedBytes, SlabCache, TextBytes
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target
from weighbridge.conversion.quantize import plan as quantizing
from weighbridge.conversion.quantize.inputs import QuantizeOptions
from weighbridge.io.location import StoredPath
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.open import open_model

#: Forms that are a folder of files: name -> (format, options of the target).
FOLDERS: Final = MappingProxyType(
    {"safetensors": ("hf", {}), "mlx-4bit": ("mlx", {"q_bits": 4}), "mlx-8bit": ("mlx", {"q_bits": 8})}
)
#: GGUFs, by the type that `wb quantize` takes.
GGUFS: Final = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")
FORMS: Final = (*GGUFS, *FOLDERS)


class FormFile(Protocol):
    """A file that is computed where it is read."""

    name: str
    size: int
    etag: str

    def read(self, offset: int, length: int) -> bytes: ...


def title_of(path: Path) -> str:
    """What a model is called, by its path: the file or folder; in the Hub's cache the repository; in a store of blobs
    the name there; the folder of a file that is only called model or Modelfile."""
    if isinstance(path, StoredPath) and path.title:
        return path.title
    real = path.resolve()
    if real.parent.name == "snapshots":
        real = real.parent.parent
    if real.name.startswith("models--"):
        return real.name.rpartition("--")[2]
    if real.is_dir():
        return real.name
    return real.parent.name if real.stem.lower() in ("model", "modelfile") else real.stem


class ModelForms(Closing):
    """The forms of one model. `name`: what its files are called. A form that the model can't take isn't there;
    `reasons` says why."""

    def __init__(
        self, path: str | os.PathLike[str], forms: tuple[str, ...] = FORMS, cache: SlabCache | None = None
    ) -> None:
        if unknown := [form for form in forms if form not in FORMS]:
            raise UsageError(f"there is no form {unknown[0]!r}", hint=f"known: {', '.join(FORMS)}")
        self.path = resolve_path(path)
        self.name = title_of(self.path)
        self.forms, self.reasons = forms, dict[str, str]()
        self._cache = cache or SlabCache(WriteOptions().workers)
        self._owned = cache is None
        self._plans: dict[str, Plan] = {}
        self._files: dict[str, Mapping[str, FormFile]] = {}
        self._lock = threading.Lock()
        open_model(self.path).close()  # an error here and now where there is no model

    def files(self, form: str) -> Mapping[str, FormFile]:
        """The files of a form by name; none where the model can't take it."""
        with self._lock:
            if form not in self._files:
                self._files[form] = self._planned(form) if form in self.forms else {}
            return self._files[form]

    def plan(self, form: str) -> Plan:
        """The plan of a form that the model can take."""
        self.files(form)
        return self._plans[form]

    def _planned(self, form: str) -> Mapping[str, FormFile]:
        model = open_model(self.path)
        try:
            plan = self._made(model, form)
            plan.slabs  # noqa: B018  # refuses where a row needs more than the budget
            found: dict[str, FormFile] = {}
            for file in plan.files:
                view = PlannedBytes(plan, file, self._cache)
                found[file.name if plan.folder else plan.target.name] = view
            found |= {name: TextBytes(name, data) for name, data in plan.texts.items()}
        except (UnsupportedError, RefusedError, UsageError) as error:
            model.close()
            self.reasons[form] = error.message
            return {}
        except BaseException:
            model.close()
            raise
        self._plans[form] = plan
        return found

    def _made(self, model: Checkpoint, form: str) -> Plan:
        """The plan that `wb quantize` or `wb convert` would carry out: the same bytes."""
        if form in FOLDERS:
            to, options = FOLDERS[form]
            return build(model, choose_target(model, Path(f"{self.name}-{form}"), to, options), WriteOptions())
        target = Path(f"{self.name}-{form}.gguf")
        plan = quantizing.build(model, target, form, QuantizeOptions(), WriteOptions())
        plan.check()
        return plan

    def tree(self) -> Iterator[tuple[str, FormFile]]:
        """Every file under its path in the mounted folder: `model-F16.gguf`, `mlx-4bit/config.json`."""
        for form in self.forms:
            for name, file in self.files(form).items():
                yield (f"{form}/{name}" if form in FOLDERS else name), file

    def close(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        if self._owned:
            self._cache.close()
