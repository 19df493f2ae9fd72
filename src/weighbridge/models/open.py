"""Opens a model from a path, for every command and function that reads one. The model of a training checkpoint is its
weights, under the model's names; `ALONE` and `WHOLE` open every part under its stored name.

open_model(path, options)      the model, with the ranks of a tensor-parallel set joined; its tensors can be read
open_headers(path, options)    names, shapes and metadata, also of a set with missing ranks; no data, no adapter"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.containers.formats import COMFY_FILE, COMFY_SET, DFLOAT11, PIPELINE, PIPELINE_INDEX
from weighbridge.io.location import open_source
from weighbridge.models.archives import resolve
from weighbridge.models.jsonfile import decode
from weighbridge.models.model import OpenModel, SourceOptions, open_single_file, open_weights
from weighbridge.models.tensor_parallel.rank_set import RankStatus, find_ranks, rank_set_of

__all__ = ["ALONE", "WHOLE", "Headers", "SourceOptions", "open_headers", "open_model"]


class _Stored(SourceOptions):
    """Joins the files of a step's processes also with `all_parts`."""

    split_ranks: ClassVar[bool] = False


class _OneFile(_Stored):
    """Doesn't join the ranks of a tensor-parallel set."""

    join_ranks: ClassVar[bool] = False


#: One file: a rank without the others of its set, every part of a training checkpoint.
ALONE: Final = _OneFile(all_parts=True)
#: The same with the ranks of a set joined.
WHOLE: Final = _Stored(all_parts=True)
_NEVER_NESTED: Final = frozenset({"safetensors", "gguf"})  # formats without nested training checkpoints
_CONFIG: Final = "config.json"
_OTHER: Final = "the config may belong to another model"
_NUMBER: Final = re.compile(r"\.\d+(?=\.)")


class Headers(NamedTuple):
    """The model that headers describe. `ranks`: the ranks of a tensor-parallel set that exist; None for other
    models."""

    model: OpenModel
    ranks: RankStatus | None


def open_model(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> OpenModel:
    """Opens the model at `path`: a file, a folder, an index, one file of a numbered set or of a tensor-parallel set,
    which is joined, or a Modelfile, whose adapters are merged. Reads only headers. Raises OSError, FormatError,
    UsageError, UnsupportedError, and RefusedError for an adapter to quantized weights."""
    path = resolve(path)
    if (single := open_single_file(path, options)) is not None:
        return _select(single, options)
    files = find_ranks(path) if options.join_ranks else []
    if files:
        from weighbridge.models.tensor_parallel.rank_files import gather_ranks  # late: inspect starts without it

        joined = gather_ranks(path, files, options)
        return joined if options.config is None else _select(joined, options)
    model = open_weights(path, options)
    if adapters := model.place.adapters:
        from weighbridge.models.lora.merge import merge_adapters  # late: inspect starts without it
        from weighbridge.models.lora.weights import WeightedAdapter

        try:
            model = merge_adapters(model, list(map(WeightedAdapter, adapters)))
        except BaseException as error:
            model.close()
            if isinstance(error, RefusedError):
                keep = f"wb convert {model.place.weights[0]} DST, and llama-server -m DST --lora {adapters[0]}"
                raise RefusedError(error.message, hint=f"{error.hint}; or keep the adapter separate: {keep}") from None
            raise
    return _select(model, options)


def _select(model: OpenModel, options: SourceOptions) -> OpenModel:
    """Applies the config of `options`, and reduces a training checkpoint to the model's weights."""
    try:
        if options.config is not None:
            model = describe_by(model, options.config)
        if model.format == "safetensors" and any(end.endswith(DFLOAT11) for end in model.index.name_ends):
            from weighbridge.models.dfloat11 import decoded  # late: few models are in its code

            model = decoded(model, lenient=options.all_parts)
        if options.all_parts:
            return model
        if options.ema or model.format not in _NEVER_NESTED:
            from weighbridge.models.training_parts import model_parts  # late: most commands start without unpickling

            whole, model = model, model_parts(model, ema=options.ema)
            if model is not whole:
                from weighbridge.models.wrapped import without_wrappers  # late, likewise

                model = without_wrappers(model)
        if options.config is not None:
            check_fit(model)
            if _is_pipeline(model, model.place.folder):
                model = replace(model, place=replace(model.place, trainer=COMFY_FILE))
        return model
    except BaseException:
        model.close()
        raise


def contains_config(path: Path) -> UsageError:
    """The error about a config for a GGUF."""
    return UsageError(f"{path} is a GGUF, which contains its config", hint="wb edit changes its keys")


def _needs_no_config(model: OpenModel) -> UsageError:
    path = model.place.path
    if model.format == "gguf" and not model.makes_pictures:
        return contains_config(path)
    if model.place.trainer == PIPELINE:
        return UsageError(f"{path} is a pipeline with its own configs", hint="leave out --config")
    return UsageError(
        f"{path} is one part of a pipeline",
        hint="put it into diffusion_models/ of a folder, next to vae/ and text_encoders/, and name that folder",
    )


def check_fit(model: OpenModel) -> None:
    """Raises MappingError, which names tensors, if the config of weights is another model's: tensors are missing, have
    other shapes, or are of layers that it doesn't count. Further tensors are accepted, and anything is if no table
    describes the config or the weights are an adapter's."""
    from weighbridge.models.arch.naming import some  # late, as are the next: few weights get a config
    from weighbridge.models.lora.forms import adapter_form
    from weighbridge.models.wrapped import unwrapped

    try:
        if adapter_form(model) is not None or not model.family.rows:
            return
    except UnsupportedError:
        return
    whole = unwrapped(model)[0]
    try:
        report = (named := whole.resolved).report
    except UnsupportedError as error:
        names = some(list(model.index.by_name))
        raise FormatError(f"{error.message}: {names}", path=str(model.place.path), hint=_OTHER) from None
    rest = {*report.unmapped, *report.apart, *report.dropped}
    kinds = {_NUMBER.sub(".*", name) for name in model.index.by_name if name not in rest}
    if any(_NUMBER.sub(".*", name) in kinds for name in report.unmapped):
        dict(named.roles)
    dict(named.known_roles)


def describe_by(model: OpenModel, config: str | os.PathLike[str] | Mapping[str, Any]) -> OpenModel:
    """Returns the model with the config.json of a file, a folder or a dict; a folder's tokenizer is used too."""
    if model.format == "gguf" or model.place.trainer == PIPELINE:
        raise _needs_no_config(model)
    model = replace(model, borrowed=config)
    if isinstance(config, Mapping):
        return replace(model, texts={**model.texts, _CONFIG: json.dumps(config).encode()})
    path = resolve(config)
    if path.is_dir():
        needed = PIPELINE_INDEX if model.place.trainer == COMFY_SET or _is_pipeline(model, path) else _CONFIG
        if not (path / needed).is_file():
            raise UsageError(f"{path} has no {needed}", hint="name the file or the folder of a model's config")
        return replace(model, place=replace(model.place, folder=path))
    with open_source(path) as source:
        data = source.read(0, min(source.size, CONFIG_JSON + 1))
    decode(data, str(path), dict[str, Any], CONFIG_JSON)
    return replace(model, texts={**model.texts, _CONFIG: data})


def _is_pipeline(model: OpenModel, folder: Path) -> bool:
    """Whether the folder of a model's config is that of a pipeline, of whose parts one file has the tensors."""
    return not model.place.trainer and not (folder / _CONFIG).is_file() and (folder / PIPELINE_INDEX).is_file()


def open_headers(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> Headers:
    """Returns the contents of the headers at `path`. A folder of ranks has the whole model's tensors, a rank's file
    only the rank's."""
    path = resolve(path)
    if rank_set_of(path) is None:
        return Headers(_select(open_weights(path, options), options), None)
    from weighbridge.models.tensor_parallel.rank_files import open_ranks

    return Headers(*open_ranks(path, options))
