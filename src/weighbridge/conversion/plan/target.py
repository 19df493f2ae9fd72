"""The target of a conversion: its format, from an option or its name, its options, and the names of its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.containers import BUILT_IN, by_target, model_suffixes, reader, target_of, writable
from weighbridge.conversion import lora
from weighbridge.conversion.checkpoint import training
from weighbridge.conversion.options import (
    FORMATS,
    AdapterOptions,
    CastOptions,
    CheckpointOptions,
    SchemeOptions,
    TargetOptions,
    resolve,
)
from weighbridge.conversion.plan import writers
from weighbridge.models.checkpoint import Checkpoint

#: Containers of model folders, with a config.json.
FOLDER_CONTAINERS: Final = frozenset(f.name for f in BUILT_IN.values() if f.hub_name)
#: Kind of model folder -> the container of its weights.
WEIGHTS: Final = MappingProxyType({"hf": "safetensors", "mlx": "safetensors", "hf-torch": "torch"})
# Container -> the stem of its file names in a model folder.
_STEMS: Final = MappingProxyType({f.target: Path(f.hub_name).stem for f in writable().values() if f.hub_name})


class Target(NamedTuple):
    """The destination of a conversion, its format and its options. `folder`: as a folder, whatever the format."""

    path: Path
    format: str
    options: TargetOptions
    folder: bool = False


def choose_target(
    model: Checkpoint,
    dst: str | os.PathLike[str],
    to: str | TargetOptions | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Target:
    """The target of a conversion of `model` to `dst`, which is a folder if it ends in a slash. `to`: a format, or
    options of one; None: it follows from the path. `given`: options by name. UsageError for an option that doesn't
    apply."""
    path = resolve_target(dst)
    base = to if isinstance(to, TargetOptions) else None
    name = _format_of(base, path) if base is not None else to
    kind = _requested_format(str(name), path, model) if name else _infer_format(path, model)
    options = type(base) if base is not None else _options_class(model, kind, "scheme" in given)
    source = model.format if model.format in ("gguf", "ggml") else "model"
    return Target(path, kind, resolve(options, source, given, base), _names_folder(os.fspath(dst), kind))


def _names_folder(dst: str, kind: str) -> bool:
    """Whether a target is a folder by its name: it ends in a slash, or lacks the suffix of a format that model folders
    have (`--to safetensors out` writes out/model.safetensors)."""
    return dst.endswith(("/", os.sep)) or (kind in _STEMS and not Path(dst).suffix)


def _format_of(options: TargetOptions, path: Path) -> str | None:
    """The format of a class of options; None for an adapter, whose format follows from the path."""
    if isinstance(options, SchemeOptions):
        return "hf"
    names = [name for name, known in FORMATS.items() if type(options) is known]
    return next((name for name in names if path.suffix == f".{name}"), names[0] if names else None)


def _options_class(model: Checkpoint, kind: str, scheme: bool) -> type[TargetOptions]:
    if training.wanted(model.place.path, kind):
        return CheckpointOptions
    if lora.converts_adapter(model, kind):
        return AdapterOptions
    if kind == "hf" and scheme:
        return SchemeOptions
    if kind not in FORMATS:
        writers.writer(kind)  # UnsupportedError if nothing writes it
    return FORMATS.get(kind, CastOptions)


def _requested_format(to: str, path: Path, model: Checkpoint) -> str:
    """The format of `--to`; `torch` is a model folder for a folder target of a source that can become one."""
    if to in WEIGHTS or to == training.NAME:
        return to
    container = by_target(to)
    if container and container.target == "torch" and target_of(path.suffix) is None and _folder_of_models(model):
        return "hf-torch"
    return container.target if container else to


def _folder_of_models(model: Checkpoint) -> bool:
    return model.format == "gguf" or (model.place.path.is_dir() and model.format in FOLDER_CONTAINERS)


def _infer_format(path: Path, model: Checkpoint) -> str:
    """The format by the target's extension; without one, a folder of the source's own kind."""
    if (target := target_of(path.suffix)) is not None:
        return target
    if path.suffix and not path.is_dir() and not path.suffix[1:].isdigit():
        raise UsageError(f"{path.suffix!r} isn't a format to write", hint=f"{', '.join(model_suffixes())}, or --to")
    return "hf" if _folder_of_models(model) else reader(model.format).own_target


def same_format(model: Checkpoint, path: Path) -> str | None:
    """The source's own format; None where the target's extension decides."""
    if target_of(path.suffix) is not None:
        return None
    if model.place.path.is_dir() and model.format == "safetensors":
        return "hf"
    return reader(model.format).own_target


def check_target(path: Path, model: Checkpoint, folder: bool) -> None:
    """RefusedError where writing to `path` would harm the source."""
    here = str(path.resolve())  # a target elsewhere and a source there are two paths of one address
    sources = {w.resolve() for w in model.place.files}
    if here in map(str, sources) or (folder and any(str(w.parent) == here for w in sources)):
        raise RefusedError(f"{path} contains the source", hint="choose another target")


def stem_of(path: Path, model: Checkpoint, kind: str) -> str:
    """The file names up to `-00001-of-...` and the suffix."""
    container = WEIGHTS.get(kind, kind)
    if kind in WEIGHTS or (container in _STEMS and not path.suffix):
        return lora.STEM if lora.converts_adapter(model, kind) else _STEMS[container]
    return path.name if target_of(path.suffix) is None else path.stem
