"""The target of a conversion: its format (by an option or the path), its options, and the names of its files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.containers import BUILT_IN, by_target, model_suffixes, own_target, target_of, writable
from weighbridge.containers.formats import DISTRIBUTED, GRAPHS, PIPELINE_STEM
from weighbridge.conversion.options import (
    CHECKPOINT,
    FORMATS,
    AdapterOptions,
    CastOptions,
    CheckpointOptions,
    ComfyFolderOptions,
    ComfyOptions,
    GenericGgufOptions,
    MlxTowersOptions,
    MmprojOptions,
    SchemeOptions,
    TargetOptions,
    TaskAdapterOptions,
    resolve,
)
from weighbridge.conversion.plan import writers
from weighbridge.models.lora import peft
from weighbridge.models.lora.forms import converts_adapter
from weighbridge.models.model import OpenModel

#: Containers of model folders, with a config.json.
FOLDER_CONTAINERS: Final = frozenset((*(f.name for f in BUILT_IN.values() if f.hub_name), DISTRIBUTED))
#: The suffix of whisper.cpp's files, which PyTorch's have, too.
WHISPER_SUFFIX: Final = ".bin"
#: Kind of model folder -> the container of its weights.
WEIGHTS: Final = MappingProxyType({"hf": "safetensors", "mlx": "safetensors", "hf-torch": "torch"})
#: The target that is a folder of its own files.
DCP: Final = "dcp"
# (format, option) -> the class of options that the option chooses.
_BY_OPTION: Final[Mapping[tuple[str, str], type[TargetOptions]]] = MappingProxyType(
    {
        ("hf", "scheme"): SchemeOptions,
        ("hf", "comfy_folders"): ComfyFolderOptions,
        ("safetensors", "comfy_quant"): ComfyOptions,
        ("gguf", "arch"): GenericGgufOptions,
        ("gguf", "mmproj"): MmprojOptions,
        ("gguf", "task_adapter"): TaskAdapterOptions,
        ("mlx", "towers"): MlxTowersOptions,
    }
)
# Container -> the stem of its file names in a model folder.
_STEMS: Final = MappingProxyType({f.target: Path(f.hub_name).stem for f in writable().values() if f.hub_name})


class Target(NamedTuple):
    """The destination of a conversion, its format and its options. `folder`: a folder even if the format is a file.
    `asked`: whether the format was asked for, so that a model isn't kept in the form that it has (MLX's)."""

    path: Path
    format: str
    options: TargetOptions
    folder: bool = False
    asked: bool = False


def choose_target(
    model: OpenModel,
    dst: str | os.PathLike[str],
    to: str | TargetOptions | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
    default: str | None = None,
) -> Target:
    """Determines the target of a conversion of `model` to `dst`, which is a folder if it ends in a slash.

    `to`: a format, or options of one; None: `default`, or the path determines it. `given`: options by name. Raises
    UsageError for an option that doesn't apply, or a path with a different format's suffix.
    """
    path, name, asked = resolve_target(dst), os.fspath(dst), to is not None
    if to is None:
        to = "gguf" if given.get("with_mmproj") else default  # only GGUFs have their towers in a second file
    base = to if isinstance(to, TargetOptions) else None
    graph = given.get("graph") or getattr(base, "graph", "")
    if graph:
        from weighbridge.conversion.graph import format_of_graph  # late: few conversions have a graph

        kind = format_of_graph(graph, to if isinstance(to, str) else None)
    else:
        kind = _choose_format(to if base is None else _format_of(base, path), path, model)
    slash = name.endswith(("/", os.sep))
    suffix = Path(name).suffix
    if kind != CHECKPOINT and kind in (*WEIGHTS, *FORMATS) and not slash and not Path(name).is_dir():
        named = kind if kind in BUILT_IN and suffix in BUILT_IN[kind].met_as else target_of(suffix)
        if named not in (None, kind):  # `--to mlx out.gguf` would be a folder of that name
            content = "a folder" if kind in (*WEIGHTS, DCP) else f"a {kind} file"
            raise UsageError(
                f"--to {kind} writes {content}, but {name} is named as a {named} file",
                hint="leave --to out, or name the target otherwise; a slash at its end names a folder",
            )
    options = (
        type(base)
        if base is not None
        else _options_class(model, kind, [name for name in given if given[name] is not False])
    )
    source = model.format if model.format in ("gguf", "ggml") else "model"
    folder = slash or kind == DCP or (kind in (*_STEMS, *GRAPHS) and not suffix)
    # without a suffix, the formats of model folders write a folder: `--to safetensors out` writes out/model.safetensors
    return Target(path, kind, resolve(options, source, given, base), folder, asked)


def _format_of(options: TargetOptions, path: Path) -> str | None:
    """The format of options; None for an adapter, whose format depends on the path."""
    formats = (format for (format, _), known in _BY_OPTION.items() if type(options) is known)
    if (format := next(formats, None)) is not None:
        return format
    names = [name for name, known in FORMATS.items() if type(options) is known]
    return next((name for name in names if path.suffix == f".{name}"), names[0] if names else None)


def _options_class(model: OpenModel, kind: str, given: Collection[str]) -> type[TargetOptions]:
    if keeps_state(model.place.path, kind):
        return CheckpointOptions
    if converts_adapter(model, kind):
        return AdapterOptions
    chosen = (known for (format, option), known in _BY_OPTION.items() if format == kind and option in given)
    if (known := next(chosen, None)) is not None:
        return known
    if kind not in FORMATS:
        writers.writer(kind)  # UnsupportedError if nothing writes it
    return FORMATS.get(kind, CastOptions)


def _choose_format(to: str | TargetOptions | None, path: Path, model: OpenModel) -> str:
    """The format of `--to` or, without it, of the target's extension; else a folder of the source's kind.

    `torch` is a model folder if the target is a folder and the source can become one.
    """
    by_suffix = target_of(path.suffix)
    makes_folder = (
        model.format == "gguf"
        or (model.format in FOLDER_CONTAINERS and (model.place.path.is_dir() or model.borrowed is not None))
        or (model.format == "ggml" and _is_whisper(model))
    )
    if to:
        container = None if to in WEIGHTS or to == CHECKPOINT else by_target(str(to))
        if container and container.target == "torch" and by_suffix is None and makes_folder:
            return "hf-torch"
        return container.target if container else str(to)
    if path.suffix == WHISPER_SUFFIX and not path.is_dir() and is_whisper_cpp(model, path):
        return "ggml"
    if by_suffix is not None:
        return by_suffix
    if path.suffix and not path.is_dir() and not path.suffix[1:].isdigit():
        graph = any(path.suffix in BUILT_IN[name].suffixes for name in GRAPHS)
        hint = (
            "--graph MODEL, an existing model for the weights" if graph else f"{', '.join(model_suffixes())}, or --to"
        )
        raise UsageError(f"{path.suffix!r} isn't a format to write{' without a graph' if graph else ''}", hint=hint)
    return "hf" if makes_folder else own_target(model.format)


def is_whisper_cpp(model: OpenModel, path: Path) -> bool:
    """Whether quantizing `model` to `path` makes a whisper.cpp file: of a Whisper that is such a file, or whose
    target has such a name."""
    named = fnmatchcase(path.name, "ggml-*" + WHISPER_SUFFIX)
    return (named or model.format == "ggml") and _is_whisper(model)


def _is_whisper(model: OpenModel) -> bool:
    from weighbridge.models.whisper.forms import form_of

    return form_of(model) is not None


def keeps_state(model_path: Path, kind: str) -> bool:
    """Whether a folder's whole checkpoint is requested rather than the model in it."""
    if kind != "torch" or not model_path.is_dir():
        return False
    from weighbridge.models.training_state import is_checkpoint

    return is_checkpoint(model_path)


def same_format(model: OpenModel, path: Path) -> str | None:
    """The source's format; None if the target's extension decides."""
    if target_of(path.suffix) is not None:
        return None
    if model.place.path.is_dir() and model.format == "safetensors":
        return "hf"
    if model.borrowed is not None and model.format in FOLDER_CONTAINERS:  # as if it were in a folder with its config
        return "hf"
    return own_target(model.format)


def several_files(path: Path, count: int) -> UsageError:
    """The error about several files for a path that isn't a folder."""
    hint = f"a slash at the end of DST names a folder: {path.stem}/"
    return UsageError(f"{count} files are written, so DST must be a folder", hint=hint)


def check_target(path: Path, files: Iterable[Path], folder: bool) -> None:
    """Raises RefusedError if writing to `path` would harm the files of the source."""
    target = str(path.resolve())  # compared as text: a remote source and target with one address are distinct paths
    sources = {file.resolve() for file in files}
    if target in map(str, sources) or (folder and any(str(w.parent) == target for w in sources)):
        raise RefusedError(f"{path} contains the source", hint="choose another target")


def stem_of(path: Path, model: OpenModel, kind: str) -> str:
    """The file names without `-00001-of-...` and the suffix."""
    container = WEIGHTS.get(kind, kind)
    if kind in WEIGHTS or (container in _STEMS and not path.suffix):
        named = model.place.weights and model.place.weights[0].name.startswith(PIPELINE_STEM)
        diffusers = kind != "mlx" and (named or "_class_name" in (model.json("config.json") or ()))
        return peft.STEM if converts_adapter(model, kind) else PIPELINE_STEM if diffusers else _STEMS[container]
    return path.name if target_of(path.suffix) is None else path.stem
