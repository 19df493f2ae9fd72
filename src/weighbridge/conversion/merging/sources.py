"""What `wb merge` was given: the shards of one model, a model and its adapters, a recipe, or models and a method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.options import flag
from weighbridge.base.words import plural
from weighbridge.conversion.merging.methods import method_of
from weighbridge.conversion.merging.mixture_recipe import MixtureRecipe, is_mixture, parse_mixture
from weighbridge.conversion.merging.options import MergeOptions
from weighbridge.conversion.merging.recipe import (
    MergeSlice,
    MergeSource,
    Recipe,
    parse_recipe,
    read_yaml,
    tokenizer_rule,
)
from weighbridge.models.locate import locate
from weighbridge.models.lora.forms import looks_like_adapter
from weighbridge.models.lora.weights import WeightedAdapter, weighted_adapter

PathLike = str | os.PathLike[str]
#: A path, several, or a recipe as plain data.
MergeInput = PathLike | Sequence[PathLike] | Mapping[str, Any]

#: Suffixes of recipes.
RECIPES: Final = (".yaml", ".yml")
_OF_MODELS: Final = tuple(field.name for field in fields(MergeOptions))


class WithAdapters(NamedTuple):
    """A model, and the adapters that are merged into it."""

    model: Path
    adapters: tuple[WeightedAdapter, ...]


def read_any_recipe(path: Path) -> Recipe | MixtureRecipe:
    """Returns the recipe of a merge, or of a mixture of experts, in a YAML file. Raises as `parse_recipe` does."""
    data = read_yaml(path)
    return parse_mixture(data, path) if is_mixture(data) else parse_recipe(data, path)


def read_input(
    inputs: MergeInput, options: MergeOptions, named: Sequence[str]
) -> Recipe | MixtureRecipe | WithAdapters | Path:
    """Returns a recipe, a model with adapters, or the path of a model whose shards are merged. `named`: the options
    that were given. Raises UsageError for options that don't apply, and for several models without a method."""
    source = _read(inputs, options, [name for name in _OF_MODELS if name in named])
    if isinstance(source, Recipe) and "seed" in named and not method_of(source.method).random:
        raise UsageError(f"--seed doesn't apply to {source.method}", hint="it applies to methods with random masks")
    if isinstance(source, MixtureRecipe) and "seed" in named and not source.random:
        raise UsageError(f"--seed doesn't apply to gate_mode: {source.gate_mode}", hint="it applies to random numbers")
    return source


def _read(
    inputs: MergeInput, options: MergeOptions, merging: Sequence[str]
) -> Recipe | MixtureRecipe | WithAdapters | Path:
    if isinstance(inputs, Mapping):
        _refuse(merging, "a recipe has its own", keep=("seed",))
        return parse_mixture(inputs) if is_mixture(inputs) else parse_recipe(inputs)
    addresses = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    weighted = tuple(map(weighted_adapter, addresses))
    paths = tuple(map(resolve_path, addresses))
    if len(paths) == 1 and paths[0].suffix in RECIPES:
        _refuse(merging, "a recipe has its own", keep=("seed",))
        return read_any_recipe(paths[0])
    if options.method is not None:
        return _recipe(paths, options)
    adapters = tuple(source for source in weighted if looks_like_adapter(source.path))
    if adapters and len(adapters) == len(paths) - 1:
        _refuse(merging, "an adapter is merged as it is")
        model = next(source for source in weighted if source not in adapters)
        if model.weight != 1:
            raise UsageError(
                f"{model.path} isn't an adapter, so it has no weight", hint="wb merge BASE ADAPTER:0.5 DST"
            )
        return WithAdapters(model.path, adapters)
    _refuse(merging, "it needs --method")
    return _set_of(paths)


def _refuse(inputs: Sequence[str], reason: str, keep: Sequence[str] = ()) -> None:
    for name in inputs:
        if name not in keep:
            raise UsageError(f"{flag(name)} doesn't apply: {reason}", hint="wb merge A B DST --method linear")


def _set_of(paths: tuple[Path, ...]) -> Path:
    """The path of the set with these shards: the first, or its folder."""
    if len(paths) == 1:
        return paths[0]
    shards = {path.resolve() for path in paths}
    for place in (paths[0], paths[0].parent):
        with suppress(WeighbridgeError, OSError):  # the folder above need not be a model
            if shards <= {file.resolve() for file in locate(place).weights}:
                return place
    raise UsageError(
        f"{paths[-1]} is not a shard of the set of {paths[0]}",
        hint=f"a method merges models: wb merge {paths[0]} {paths[-1]} DST --method slerp --t 0.5",
    )


def _recipe(paths: tuple[Path, ...], options: MergeOptions) -> Recipe:
    """The recipe of a command line: models, a method, and its parameters."""
    names = [str(path) for path in paths]
    row = method_of(str(options.method))
    base = None if options.merge_base is None else str(resolve_path(options.merge_base))
    if row.base == "end" and base is None:
        base = names[0]
    models, listed = [*names], base in names and row.base != "no"
    if listed:
        models.remove(str(base))  # once: a model may be both ends of a line
    each = {"weight": options.weight, "density": options.density}
    for name, values in each.items():
        if len(values) > 1 and len(values) != len(models):
            raise UsageError(f"{flag(name)} was given {len(values)} times for {plural(len(models), 'model')}")
    everywhere: dict[str, Any] = {name: values[0] for name, values in each.items() if len(values) == 1}
    if "weight" in row.per_model and not options.weight:
        everywhere["weight"] = 1.0
    everywhere |= {} if options.t is None else {"t": options.t}
    everywhere |= dict(map(_assignment, options.parameter))
    sources = tuple(
        MergeSource(model, {name: values[n] for name, values in each.items() if len(values) > 1})
        for n, model in enumerate(models)
    )
    return Recipe(
        method=str(options.method),
        slices=(MergeSlice((MergeSource(str(base)), *sources) if listed else sources),),
        base=base,
        parameters=everywhere,
        tokenizer=None if options.tokenizer_source is None else tokenizer_rule(options.tokenizer_source),
    )


def _assignment(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    booleans = {"true": True, "false": False}
    try:
        return name, booleans[value] if value in booleans else float(value)
    except ValueError:
        form = "NAME=VALUE, such as lambda=0.8 or normalize=false"
        raise UsageError(f"--parameter {text!r} isn't a parameter and its value", hint=form) from None
