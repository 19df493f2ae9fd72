"""The model that a recipe makes: the base's config, tokenizer and names, with tensors that are merged while they are
read. Tensors meet under their names in a Hugging Face folder, so models of any format mix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from weighbridge.base.dtypes import BF16, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.gguf.values import Metadata, kvs
from weighbridge.conversion.gguf.metadata import with_file_type
from weighbridge.conversion.merging.folder_view import HF, FolderView, decoded
from weighbridge.conversion.merging.methods import REQUIRED, MethodRow, TensorValues, method_of, random_key
from weighbridge.conversion.merging.parameters import TensorPlace, value_at
from weighbridge.conversion.merging.recipe import MergeSlice, MergeSource, Parameters, Recipe
from weighbridge.conversion.merging.tokenizer_files import (
    chosen_template,
    with_template,
    with_tokens,
)
from weighbridge.conversion.merging.vocabularies import (
    BASE,
    UNION,
    MergedVocabulary,
    check_vocabularies,
    ids_of,
    merged_vocabulary,
    read_vocabulary,
)
from weighbridge.models.config.settings import ROTATION_KEYS, of_config, same_rotation
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.vocab import Vocab
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import with_nodes
from weighbridge.models.transform.layers import slice_layers
from weighbridge.models.transform.vocabulary import with_vocabulary_size
from weighbridge.tensors.nodes import LogicalTensor, as_node, is_plain, provisional
from weighbridge.tensors.nodes.merged import merged

# config.json: keys that don't affect how weights are used.
_UNIMPORTANT: Final = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures"})


def merge_models(recipe: Recipe, models: Mapping[str, OpenModel], seed: int = 0) -> OpenModel:
    """Returns the merged model. `models`: the recipe's, by name. Their files stay open with the result. Raises
    UsageError for models that don't fit each other, or values that a method doesn't have."""
    merge = _Merge(recipe, {name: FolderView(model) for name, model in models.items()}, seed)
    template = merge.template
    tensors = merge.tensors()
    described = merge.described()
    nodes = {**template.model.logical, **_as_stored(template, tensors, described)}
    if template.by_table:  # tensors that repeat an embedding, which the table leaves out, would be outdated
        model = template.model
        shapes = {template.tensors[name].spec.shape for name in template.embeddings}
        copies = {name for name in model.resolved.report.dropped if model.logical[name].spec.shape in shapes}
        nodes = {name: node for name, node in nodes.items() if name not in copies}
    result = with_nodes(described, packed_rename.parts(template.model, nodes, ()))
    if result.format == "gguf" and not all(map(is_plain, template.tensors.values())):
        metadata = with_file_type(kvs(result.metadata), BF16)
        result = replace(result, index=replace(result.index, metadata=Metadata(metadata)))
    place = described.place
    files = [file for model in models.values() if model.place is not place for file in model.place.files]
    place = replace(
        place,
        merged=(*place.merged, *(file for file in dict.fromkeys(files) if file not in place.files)),
        notes=(*place.notes, *merge.notes()),
    )
    return replace(result, place=place)


def _as_stored(
    template: FolderView, tensors: Mapping[str, LogicalTensor], described: OpenModel
) -> Mapping[str, LogicalTensor]:
    """Returns merged tensors under the names, and in the layouts, of the template's own files. `described`: the
    template with the result's config."""
    model = template.model
    if not template.by_table:
        return tensors
    unnamed = model.resolved.others
    named = {name: node for name, node in tensors.items() if name not in unnamed}
    family, sizes = model.family, described.sizes
    if template.as_stored:
        return {template.stored_names.get(name, name): node for name, node in tensors.items()}
    roles = family.load_checked(HF, sizes, named, family.prefix_of(HF, named, sizes))
    saved = family.save(model.dialect, sizes, roles, prefix=family.prefix_of(model.dialect, model.logical, sizes))
    saved |= {stored: named[name] for name, stored in template.stored_names.items() if name in named}
    return {
        **{name: node for name, node in saved.items() if name in model.logical},
        **{name: node for name, node in tensors.items() if name in unnamed},
    }


def _of_integers(name: str, sources: Sequence[MergeSource], parts: Sequence[LogicalTensor]) -> LogicalTensor:
    """Returns a tensor of counts or places, which all models share. Raises UsageError if they differ."""
    from weighbridge.tensors.filling import same_bytes

    for source, part in zip(sources[1:], parts[1:], strict=True):
        if part.spec != parts[0].spec or not same_bytes(parts[0], part):
            raise UsageError(
                f"{name} has integers, which differ between {sources[0].model} and {source.model}",
                hint="merge models of one kind",
            )
    return parts[0]


@dataclass(frozen=True)
class _Merge:
    recipe: Recipe
    views: Mapping[str, FolderView]
    seed: int

    @cached_property
    def row(self) -> MethodRow:
        """The recipe's method. Raises UsageError for a recipe without its base, with unknown parameters, or with
        too few or too many models."""
        recipe, row = self.recipe, method_of(self.recipe.method)
        if row.base in ("needed", "end") and recipe.base is None:
            purpose = "t = 0" if row.base == "end" else "differences"
            raise UsageError(f"{recipe.method} needs a base model ({purpose})", hint="base_model, or --merge-base")
        parameters = {*row.per_model, *row.settings}
        scopes = [recipe.parameters, *(part.parameters for part in recipe.slices)]
        scopes += [source.parameters for part in recipe.slices for source in part.sources]
        for name in (name for scope in scopes for name in scope):
            if name not in parameters:
                has = ", ".join(sorted(parameters)) or "none"
                raise UsageError(f"{recipe.method} has no parameter {name!r}", hint=f"its parameters: {has}")
        least, most = row.models
        for part in recipe.slices:
            count = len(self._inputs(part))
            if not least <= count <= most:
                number = plural(most if most < count or least == most else least, "model")
                expected = number if least == most else f"at least {number}" if most > count else f"at most {number}"
                without = " besides the base" if row.base != "no" and recipe.base else ""
                raise UsageError(
                    f"{recipe.method} merges {expected}{without}, not {count}",
                    hint="wb help guide-merge lists the methods",
                )
        return row

    def _has_base(self) -> bool:
        return self.recipe.base is not None and self.row.base != "no"

    def _inputs(self, part: MergeSlice) -> tuple[MergeSource, ...]:
        """The models of a slice without the base. If a model is listed twice, as both ends of a line, the first is the
        base."""
        if self.recipe.base is None or method_of(self.recipe.method).base == "no":
            return part.sources
        base = next((n for n, source in enumerate(part.sources) if source.model == self.recipe.base), None)
        return tuple(source for n, source in enumerate(part.sources) if n != base)

    @cached_property
    def template(self) -> FolderView:
        """The model whose config, tokenizer and names the result has, with as many layers as the result."""
        view = self.views[self.recipe.models[0]]
        if view.model.packed:
            view = FolderView(decoded(view.model))
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
        first, template = self.recipe.models[0], self.template
        for name, view in self.views.items():
            if view.by_table != template.by_table or (
                view.by_table and view.model.family.name != template.model.family.name
            ):
                raise UsageError(
                    f"{name} and {first} are of different families: {view.family_name}, {template.family_name}",
                    hint="merge models of one architecture",
                )
        _ = self.vocabulary  # models with different tokens are refused first
        return {name: self._tensor(name, node) for name, node in self.template.tensors.items()}

    def _tensor(self, name: str, node: LogicalTensor) -> LogicalTensor:
        layer = self.template.layer(name)
        if layer is None:
            after = name not in self.template.embeddings or "head" in name
            part, place, t = (self.recipe.slices[-1] if after else self.recipe.slices[0]), None, 0.0
        else:
            part, place, t = self._rows[layer]
        position = TensorPlace(name, t)
        inputs = self._inputs(part)
        name_of_base = str(self.recipe.base)  # with its own layers if it is listed, else with those of the first model
        listed = (source for source in part.sources if source.model == name_of_base)
        base = [next(listed, MergeSource(name_of_base, layers=part.sources[0].layers))] if self._has_base() else []
        tensors = [self._part(source, name, place) for source in (*base, *inputs)]
        if missing := [source for source, tensor in zip((*base, *inputs), tensors, strict=True) if tensor is None]:
            raise UsageError(
                f"{missing[0].model} has no {name}, which {self.recipe.models[0]} has", hint="merge models of one kind"
            )
        parts = [tensor for tensor in tensors if tensor is not None]
        if self.vocabulary is not None and name in self.template.embeddings:
            by_model = {source.model: part for source, part in zip((*base, *inputs), parts, strict=True)}
            mapped = self.vocabulary.embeddings(by_model)
            parts = [mapped[source.model] for source in (*base, *inputs)]
        else:
            self._check_shapes(name, node, (*base, *inputs), parts)
        if node.spec.dtype.kind is Kind.INT:
            return _of_integers(name, (*base, *inputs), parts)
        method = self.row.build(self._values(part, inputs, position))
        if method is None:
            mapped_rows = parts[0] is not tensors[0]
            return provisional(as_node(parts[0]), node.spec.dtype) if mapped_rows else parts[0]
        return provisional(merged(parts, method), node.spec.dtype if is_plain(node) else BF16)

    def _part(self, source: MergeSource, name: str, place: int | None) -> LogicalTensor | None:
        """The tensor of a source that becomes a part of `name`."""
        view = self.views[source.model]
        if place is not None and source.layers is not None and view.stack is not None:
            layer = source.layers[place]
            if layer >= view.stack.count:
                raise UsageError(f"layer {layer} is outside {source.model}: it has {plural(view.stack.count, 'layer')}")
            name = view.stack.moved(name, layer)
        return view.tensors.get(name)

    def _check_shapes(
        self, name: str, like: LogicalTensor, sources: Sequence[MergeSource], parts: Sequence[LogicalTensor]
    ) -> None:
        """Raises UsageError for a part with another shape than the result's."""
        for source, part in zip(sources, parts, strict=True):
            if part.spec.shape != like.spec.shape:
                rows_differ = name in self.template.embeddings and part.spec.shape[1:] == like.spec.shape[1:]
                raise UsageError(
                    f"{name} is {list(part.spec.shape)} in {source.model} and {list(like.spec.shape)} in "
                    f"{self.recipe.models[0]}",
                    hint="--tokenizer-source union or base maps tokens" if rows_differ else "merge models of one size",
                )

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

    # ------------------------------------------------------------------------------------------ vocabulary

    @cached_property
    def _vocabularies(self) -> Mapping[str, Vocab]:
        vocabularies = ((name, read_vocabulary(view.model)) for name, view in self.views.items())
        return {name: vocab for name, vocab in vocabularies if vocab is not None}

    @cached_property
    def vocabulary(self) -> MergedVocabulary | None:
        """The tokens of the result, if a rule maps them. Raises UsageError for models with different ones otherwise."""
        recipe, rule = self.recipe, self.recipe.tokenizer
        if rule is None:
            check_vocabularies(self._vocabularies)
            return None
        first = recipe.models[0]
        if rule.source not in (BASE, UNION, *self.views):
            raise UsageError(f"tokenizer_source: {rule.source} isn't among the merged models")
        if missing := [name for name in self.views if name not in self._vocabularies]:
            raise UsageError(f"{missing[0]} has no tokenizer that can be read", hint="leave the tokenizer's source out")
        owner = self.views[first if rule.source in (BASE, UNION) else rule.source]
        rows = [owner.tensors[name].spec.shape[0] for name in sorted(owner.embeddings)]
        return merged_vocabulary(rule, self._vocabularies, first, max(rows, default=0), recipe.base)

    def described(self) -> OpenModel:
        """The template with the config and the tokenizer of the result."""
        model, vocabulary = self.template.model, self.vocabulary
        if vocabulary is not None:
            model = self._with_vocabulary(model, vocabulary)
        if (choice := self.recipe.chat_template) is not None:
            template = chosen_template(choice, self._vocabularies.values())
            if template is not None:
                self._check_folder(model, "a chat template")
                model = replace(model, texts={**model.texts, **with_template(model, template)})
        return model

    def _with_vocabulary(self, model: OpenModel, vocabulary: MergedVocabulary) -> OpenModel:
        first, rule = self.recipe.models[0], vocabulary.rule
        owner = first if rule.source in (BASE, UNION) else rule.source
        before = ids_of(self._vocabularies[owner])
        rows = {self.template.tensors[name].spec.shape[0] for name in self.template.embeddings}
        added = {token: row for token, row in vocabulary.ids.items() if token not in before}
        if owner == first and not added and rows == {vocabulary.rows}:
            return model
        self._check_folder(model, "another tokenizer")
        donor = self.views[owner].model
        if owner != first:
            self._check_folder(donor, "a tokenizer for a folder")
            model = replace(model, place=replace(model.place, folder=donor.place.folder))
        config = with_vocabulary_size(self.template.model, vocabulary.rows, donor)
        model = replace(model, texts={**model.texts, **config})
        if added:
            donors = [(self.views[name].model, vocab) for name, vocab in self._vocabularies.items()]
            model = replace(model, texts={**model.texts, **with_tokens(model, added, donors)})
        return model

    @staticmethod
    def _check_folder(model: OpenModel, purpose: str) -> None:
        if model.format == "gguf":
            raise UsageError(
                f"{model.place.path} is a GGUF, which has no files of {purpose}",
                hint=f"convert it first: wb convert {model.place.path} FOLDER --to hf",
            )

    def notes(self) -> Iterator[str]:
        """Yields the models that the result is made of, and their differences."""
        yield f"merged by {self.recipe.method}: {', '.join(self.recipe.models)}"
        if self.row.note:
            yield self.row.note
        if self.vocabulary is not None:
            yield from self.vocabulary.notes()
        first = self.recipe.models[0]
        if decoded := [name for name, view in self.views.items() if not all(map(is_plain, view.tensors.values()))]:
            yield f"quantized, so decoded: {', '.join(decoded)}"
        for name, view in self.views.items():
            if extra := view.tensors.keys() - self.views[first].tensors.keys():
                yield f"left out: {plural(len(extra), 'tensor')} that only {name} has, such as {min(extra)}"
            if differ := differing_keys(self.views[first], view):
                yield f"config.json is {first}'s; {name} differs in {', '.join(differ[:8])}"


def differing_keys(a: FolderView, b: FolderView) -> list[str]:
    """Returns the keys of config.json with other values. Rotations are compared as loaders read them."""
    kept, dropped = a.model.config, b.model.config
    keys = {key for key in kept.keys() | dropped.keys() if kept.get(key) != dropped.get(key)} - _UNIMPORTANT
    if keys & ROTATION_KEYS and a.by_table and b.by_table:
        read = [of_config(view.model.config, view.model.family) for view in (a, b)]
        keys -= ROTATION_KEYS if same_rotation(*read) else set()
    return sorted(keys)
