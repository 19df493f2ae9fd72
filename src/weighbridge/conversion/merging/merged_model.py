"""The model that a recipe makes: the base's config, tokenizer and names, with tensors that are merged while they are
read. Tensors meet under their names in a Hugging Face folder, so models of any format mix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from weighbridge.base.dtypes import BF16
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.conversion.merging.folder_view import HF, FolderView
from weighbridge.conversion.merging.methods import REQUIRED, MethodRow, TensorValues, method_of, random_key
from weighbridge.conversion.merging.parameters import TensorPlace, value_at
from weighbridge.conversion.merging.recipe import MergeSlice, MergeSource, Parameters, Recipe
from weighbridge.conversion.merging.vocabularies import check_vocabularies, rows_by_token
from weighbridge.models.model import OpenModel
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import with_nodes
from weighbridge.models.transform.layers import slice_layers
from weighbridge.tensors.nodes import LogicalTensor, is_plain, provisional
from weighbridge.tensors.nodes.merged import merged

# config.json: keys that say nothing about how weights are used.
_UNIMPORTANT: Final = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures"})


def merge_models(recipe: Recipe, models: Mapping[str, OpenModel], seed: int = 0) -> OpenModel:
    """Returns the merged model. `models`: the recipe's, by name. Their files stay open with the result. Raises
    UsageError for models that don't fit each other, or values that a method doesn't have."""
    merge = _Merge(recipe, {name: FolderView(model) for name, model in models.items()}, seed)
    template = merge.template
    tensors = merge.tensors()
    nodes = {**template.model.logical, **_as_stored(template, tensors)}
    if template.by_table:
        copies = _stale_copies(template)
        nodes = {name: node for name, node in nodes.items() if name not in copies}
    result = with_nodes(template.model, packed_rename.parts(template.model, nodes, ()))
    place = template.model.place
    files = [file for model in models.values() if model.place is not place for file in model.place.files]
    place = replace(
        place,
        merged=(*place.merged, *(file for file in dict.fromkeys(files) if file not in place.files)),
        notes=(*place.notes, *merge.notes()),
    )
    return replace(result, place=place)


def _as_stored(template: FolderView, tensors: Mapping[str, LogicalTensor]) -> Mapping[str, LogicalTensor]:
    """Returns merged tensors under the names, and in the layouts, of the template's own files."""
    model = template.model
    if not template.by_table:
        return tensors
    unnamed = model.resolved.others
    named = {name: node for name, node in tensors.items() if name not in unnamed}
    family, sizes = model.family, model.sizes
    roles = family.load_checked(HF, sizes, named, family.prefix_of(HF, named, sizes))
    saved = family.save(model.dialect, sizes, roles, prefix=family.prefix_of(model.dialect, model.logical, sizes))
    return {
        **{name: node for name, node in saved.items() if name in model.logical},
        **{name: node for name, node in tensors.items() if name in unnamed},
    }


def _stale_copies(template: FolderView) -> set[str]:
    """The tensors that repeat an embedding, which the table leaves out: they would be outdated."""
    model = template.model
    shapes = {template.tensors[name].spec.shape for name in template.embeddings}
    return {name for name in model.resolved.report.dropped if model.logical[name].spec.shape in shapes}


@dataclass(frozen=True)
class _Merge:
    recipe: Recipe
    views: Mapping[str, FolderView]
    seed: int

    @cached_property
    def row(self) -> MethodRow:
        row = method_of(self.recipe.method)
        self._check(row)
        return row

    def _check(self, row: MethodRow) -> None:
        recipe = self.recipe
        if row.base in ("needed", "end") and recipe.base is None:
            what = "t = 0" if row.base == "end" else "differences"
            raise UsageError(f"{recipe.method} needs a base model ({what})", hint="base_model, or --merge-base")
        parameters = {*row.per_model, *row.settings}
        given = [recipe.parameters, *(part.parameters for part in recipe.slices)]
        given += [source.parameters for part in recipe.slices for source in part.sources]
        for name in (name for scope in given for name in scope):
            if name not in parameters:
                has = ", ".join(sorted(parameters)) or "none"
                raise UsageError(f"{recipe.method} has no parameter {name!r}", hint=f"its parameters: {has}")
        least, most = row.models
        for part in recipe.slices:
            count = len(self._others(part))
            if not least <= count <= most:
                needed = f"{least}" if least == most else f"at least {least}" if most > count else f"at most {most}"
                without = " besides the base" if row.base != "no" and recipe.base else ""
                raise UsageError(f"{recipe.method} merges {needed} models{without}, not {count}")

    def _has_base(self) -> bool:
        return self.recipe.base is not None and self.row.base != "no"

    def _others(self, part: MergeSlice) -> tuple[MergeSource, ...]:
        """The models of a slice without the base."""
        if self.recipe.base is None or method_of(self.recipe.method).base == "no":
            return part.sources
        return tuple(source for source in part.sources if source.model != self.recipe.base)

    @cached_property
    def template(self) -> FolderView:
        """The model whose config, tokenizer and names the result has, with as many layers as the result."""
        view = self.views[self.recipe.models[0]]
        if view.model.packed:
            raise UsageError(
                f"{view.model.place.path} is quantized, so the result can't have its config",
                hint="convert it first: wb convert SRC DST --dtype bf16",
            )
        if not self.recipe.sliced:
            return view
        kept = [layer for part in self.recipe.slices for layer in part.sources[0].layers or ()]
        stack = view.stack
        if stack is None:
            raise UnsupportedError(f"{view.model.place.path} has no stack of layers")
        if beyond := [layer for layer in kept if layer >= stack.count]:
            raise UsageError(
                f"layer {beyond[0]} is outside {view.model.place.path}, which has {plural(stack.count, 'layer')}"
            )
        return FolderView(slice_layers(view.model, ",".join(map(str, kept)), renumber=True).model)

    @cached_property
    def _rows(self) -> list[tuple[MergeSlice, int, float]]:
        """By layer of the result: its slice, its place there, and t."""
        rows = []
        for part in self.recipe.slices:
            count = len(part.sources[0].layers or range(self.template.stack.count if self.template.stack else 0))
            rows += [(part, n, n / (count - 1) if count > 1 else 1.0) for n in range(count)]
        return rows

    def tensors(self) -> dict[str, LogicalTensor]:
        """Returns all tensors of the result, by their names in a folder."""
        self._check_models()
        return {name: self._tensor(name, node) for name, node in self.template.tensors.items()}

    def _tensor(self, name: str, node: LogicalTensor) -> LogicalTensor:
        layer = self.template.layer(name)
        if layer is None:
            after = name not in self.template.embeddings or "head" in name
            part, place, t = (self.recipe.slices[-1] if after else self.recipe.slices[0]), None, 0.0
        else:
            part, place, t = self._rows[layer]
        position = TensorPlace(name, t)
        base = [self._base(part)] if self._has_base() else []
        inputs = self._others(part)
        tensors = [self._part(source, name, place, node) for source in (*base, *inputs)]
        if missing := [source for source, tensor in zip((*base, *inputs), tensors, strict=True) if tensor is None]:
            raise UsageError(
                f"{missing[0].model} has no {name}, which {self.recipe.models[0]} has", hint="merge models of one kind"
            )
        parts = [tensor for tensor in tensors if tensor is not None]
        method = self.row.build(self._values(part, inputs, position))
        if method is None:
            return parts[0]
        return provisional(merged(parts, method), node.spec.dtype if is_plain(node) else BF16)

    def _part(self, source: MergeSource, name: str, place: int | None, like: LogicalTensor) -> LogicalTensor | None:
        """The tensor of a source that becomes a part of `name`."""
        view = self.views[source.model]
        if place is not None and source.layers is not None and view.stack is not None:
            layer = source.layers[place]
            if layer >= view.stack.count:
                raise UsageError(f"layer {layer} is outside {source.model}: it has {plural(view.stack.count, 'layer')}")
            name = view.stack.moved(name, layer)
        tensor = view.tensors.get(name)
        if tensor is None:
            return None
        if name in view.embeddings and self.recipe.vocabulary:
            tensor = rows_by_token(tensor, view.model, self.template.model, like.spec.shape[0])
        if tensor.spec.shape != like.spec.shape:
            if name in view.embeddings and tensor.spec.shape[1:] == like.spec.shape[1:]:
                hint = "tokenizer_source: base, or --tokenizer-source base, takes the base's tokens"
            else:
                hint = "merge models of one size"
            raise UsageError(
                f"{name} is {list(tensor.spec.shape)} in {source.model} and {list(like.spec.shape)} in "
                f"{self.recipe.models[0]}",
                hint=hint,
            )
        return tensor

    def _base(self, part: MergeSlice) -> MergeSource:
        """The base as a source of a slice: its own layers if it is listed, else those of the first model."""
        name = str(self.recipe.base)
        listed = (source for source in part.sources if source.model == name)
        return next(listed, MergeSource(name, layers=part.sources[0].layers))

    # ------------------------------------------------------------------------------------------ parameters

    def _values(self, part: MergeSlice, inputs: Sequence[MergeSource], position: TensorPlace) -> TensorValues:
        row, scopes = self.row, (part.parameters, self.recipe.parameters)
        models = tuple(
            {name: self._value(name, default, (source.parameters, *scopes), position, source.model)
             for name, default in row.per_model.items()}
            for source in inputs
        )  # fmt: skip
        settings = {name: self._value(name, default, scopes, position) for name, default in row.settings.items()}
        keys = tuple(random_key(self.seed, n, position.name) for n in range(len(inputs)))
        return TensorValues(models, settings, self._has_base(), keys)

    def _value(
        self, name: str, default: Any, scopes: Sequence[Parameters], position: TensorPlace, model: str = ""
    ) -> Any:
        candidates = (value_at(name, scope[name], position) for scope in scopes if name in scope)
        value = next((candidate for candidate in candidates if candidate is not None), default)
        if value is REQUIRED:
            of = f" for {model}" if model else ""
            raise UsageError(
                f"{self.recipe.method} needs {name!r}{of}, and none is given for {position.name}",
                hint=f"--parameter {name}=0.5",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name} is {value}")
        return value

    # ------------------------------------------------------------------------------------------ checks

    def _check_models(self) -> None:
        first, template = self.recipe.models[0], self.template
        for name, view in self.views.items():
            if view.by_table != template.by_table or (
                view.by_table and view.model.family.name != template.model.family.name
            ):
                raise UsageError(
                    f"{name} and {first} are of different families: {view.family_name}, {template.family_name}",
                    hint="merge models of one architecture",
                )
        if not self.recipe.vocabulary:
            check_vocabularies({name: view.model for name, view in self.views.items()})

    def notes(self) -> Iterator[str]:
        """What the result is made of, and what the models don't have in common."""
        yield f"merged by {self.recipe.method}: {', '.join(self.recipe.models)}"
        if self.row.note:
            yield self.row.note
        first = self.recipe.models[0]
        for name, view in self.views.items():
            if extra := view.tensors.keys() - self.views[first].tensors.keys():
                yield f"left out: {plural(len(extra), 'tensor')} that only {name} has, such as {min(extra)}"
            ours, theirs = self.views[first].model.config, view.model.config
            keys = sorted((ours.keys() | theirs.keys()) - _UNIMPORTANT)
            differ = [key for key in keys if ours.get(key) != theirs.get(key)]
            if differ:
                yield f"config.json is {first}'s; {name} differs in {', '.join(differ[:8])}"
