"""Plans a merge: opens the models of a recipe, merges them, and builds the plan that writes the result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from weighbridge.adapters.remote.schemes import resolve_path, resolve_target
from weighbridge.base.closeable import OpenTogether
from weighbridge.containers import target_of
from weighbridge.conversion.dtype_policy import is_cast
from weighbridge.conversion.merging.merged_model import merge_models
from weighbridge.conversion.merging.recipe import Recipe
from weighbridge.conversion.options import QuantizeOptions, TargetOptions, WriteOptions, resolve
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target, same_format
from weighbridge.conversion.quantize import plan as quantizing
from weighbridge.models.borrowed_config import with_borrowed_configs
from weighbridge.models.lora.merge import merge_for_writing
from weighbridge.models.lora.weights import weighted_adapter
from weighbridge.models.model import OpenModel, SourceOptions
from weighbridge.models.open import open_model
from weighbridge.models.wrapped import for_the_table


def plan_recipe(
    recipe: Recipe,
    target: str | os.PathLike[str],
    to: str | TargetOptions | None,
    target_options: Mapping[str, Any],
    source: SourceOptions,
    write: WriteOptions,
    seed: int,
) -> Plan:
    """Plans the merge of several models. `given`: options of the target by name; without a type among them, that of the
    recipe, else the base's."""
    with ExitStack() as stack:
        models, notes = open_recipe_models(recipe.models, source, stack)
        model = with_notes(merge_models(recipe, models, seed), notes)
        if recipe.dtype is not None:
            target_options = {"dtype": recipe.dtype, **target_options}
        return replace(plan_merged(model, target, to, target_options, write), model=OpenTogether(stack))


def plan_merged(
    model: OpenModel,
    target: str | os.PathLike[str],
    to: str | TargetOptions | None,
    target_options: Mapping[str, Any],
    write: WriteOptions,
) -> Plan:
    """Plans to write a merged model. For a GGUF, a type of `wb quantize` quantizes it in the same pass."""
    dtype, kind = target_options.get("dtype"), to or target_of(resolve_target(target).suffix)
    if kind == "gguf" and isinstance(dtype, str) and not is_cast(dtype):
        remaining = {name: value for name, value in target_options.items() if name != "dtype"}
        return quantizing.build(model, target, dtype, resolve(QuantizeOptions, "model", remaining), write)
    chosen = choose_target(model, target, to, target_options, same_format(model, resolve_target(target)))
    return build(model, chosen, write)


def open_recipe_models(
    names: Sequence[str], options: SourceOptions, stack: ExitStack
) -> tuple[dict[str, OpenModel], list[str]]:
    """Opens the models of a recipe, by name, and returns notes on them. They are closed with `stack`."""
    models, notes = with_borrowed_configs([stack.enter_context(open_recipe_model(name, options)) for name in names])
    return dict(zip(names, models, strict=True)), notes


def with_notes(model: OpenModel, notes: Sequence[str]) -> OpenModel:
    """Returns the model with further notes on where it comes from."""
    return replace(model, place=replace(model.place, notes=(*notes, *model.place.notes)))


def open_recipe_model(name: str, options: SourceOptions) -> OpenModel:
    """Opens MODEL, or MODEL+ADAPTER with the adapter merged."""
    path, *adapters = name.split("+") if not resolve_path(name).exists() else [name]
    model = for_the_table(open_model(path, options))
    try:
        return merge_for_writing(model, list(map(weighted_adapter, adapters))) if adapters else model
    except BaseException:
        model.close()
        raise
