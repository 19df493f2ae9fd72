"""Plans of mmproj files: the vision and audio towers of a model folder as the second GGUF of llama.cpp, and back.

Names, layouts, keys and types are those of the projector's table (`models/arch/tables/projectors`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.dtypes import BY_NAME, F16, F32, DType
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers import own_target
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.gguf import decision, metadata
from weighbridge.conversion.options import GgufFileOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder, cast_for_gguf, one_way_losses
from weighbridge.conversion.result import Loss
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import as_read
from weighbridge.models.arch.registry import families_of_graph
from weighbridge.models.arch.tables.expression import ArchView
from weighbridge.models.arch.tables.spec import Role
from weighbridge.models.config import card
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.config.keys import all_hold, rules
from weighbridge.models.config.mapping import assemble, config_to_gguf, facts_losses, gguf_to_config
from weighbridge.models.config.settings import same_value
from weighbridge.models.decision import decision_of
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.companions import find_towers
from weighbridge.models.llamacpp.pair import check_pair, without_class
from weighbridge.models.llamacpp.token_rows import copied_names
from weighbridge.models.llamacpp.towers import (
    PREPROCESSOR,
    PREPROCESSORS,
    Towers,
    candidate_of,
    dimensions_of,
    towers_of,
    towers_of_gguf,
)
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.tensors.nodes import LogicalTensor


def to_mmproj(model: OpenModel, options: GgufFileOptions) -> PlanBuilder:
    """Plans the towers of `model`. Lists the language model's tensors as left out."""
    towers = towers_of(decision.of_class(model, decision_of(model)))
    draft = plan_towers(model, towers, options)
    if towers.language:
        count = plural(len(towers.language), "tensor")
        draft.losses.append(
            Loss(f"left out, as asked: {count} of the language model; wb convert SRC DST.gguf writes it")
        )
    return draft


def add_file(
    model: OpenModel, draft: PlanBuilder, options: GgufFileOptions, language: Mapping[str, KV] | None = None
) -> Collection[str]:
    """Adds the mmproj file to the plan of a language model's GGUF. Returns the source's tensors that it holds.

    `language`: the keys of that GGUF, if a second folder has the language model. Raises UsageError if the widths of the
    two differ, UnsupportedError if `model` changes tensors of the language model.
    """
    towers = towers_of(model)
    second = plan_towers(model, towers, options)
    if language is not None:
        _check_apart(model, towers, second, language)
    whole = replace(options, max_shard_size=None, max_shard_tensors=None)
    draft.sources = (*draft.sources, *second.sources)
    draft.extra_files += writers.write_gguf(file_stem(second.metadata), second.tensors, second.metadata, whole).files
    draft.losses += second.losses
    draft.reports |= second.reports
    return {*towers.resolved.tensors, *towers.dropped, *towers.folded}


def _check_apart(model: OpenModel, towers: Towers, second: PlanBuilder, language: Mapping[str, KV]) -> None:
    if towers.language:
        count = plural(len(towers.language), "tensor")
        raise UnsupportedError(
            f"{model.place.path} has {count} of its language model, such as {towers.language[0]}, which the GGUF of "
            "the other folder wouldn't have",
            hint="merge an adapter into the language model first; --mmproj writes only the tower",
        )
    shapes = {name: node.spec.shape for name, node in second.tensors.items()}
    values = ({key: kv.value for key, kv in keys.items()} for keys in (language, second.metadata))
    check_pair(next(values), Candidate(next(values), shapes))


def stored_file(model: OpenModel, draft: PlanBuilder) -> OpenModel:
    """Opens the mmproj file of the GGUF `model`, and adds it to the plan's sources. It stays open with the model."""
    found = find_towers(model.place.path, model)
    if found.path is None:
        hint = "; ".join(found.notes) or "wb convert DIR DST/ --to gguf --with-mmproj writes both from the folder"
        raise UsageError(f"no mmproj file of {model.place.path} is next to it", hint=hint)
    draft.sources = (*draft.sources, found.path)
    draft.notes += found.notes
    return open_weights(found.path)


def stored_stem(towers: OpenModel, keys: Mapping[str, KV], model: OpenModel) -> str:
    """The name of a copy of an mmproj file without its suffix; in Ollama's store, files are named by their digests."""
    name = towers.place.weights[0].name
    if "mmproj" in name and name.endswith(gguf.SUFFIX):
        return name.removesuffix(gguf.SUFFIX)
    return file_stem(keys) if {"general.name", "general.file_type"} <= keys.keys() else f"mmproj-{model.place.title}"


def file_stem(keys: Mapping[str, KV]) -> str:
    """The name of an mmproj file without its suffix, as the reference converter gives it (gguf-py
    `naming_convention`, llama.cpp b11549)."""
    stated = {name: kv.value for name in _NAMED if (kv := keys.get(f"general.{name}")) is not None}
    base = re.sub("[ /]", "-", (stated.get("basename") or stated["name"]).strip())
    dtype = next(name for name, number in dtype_policy.FTYPES.items() if number == keys["general.file_type"].value)
    named = (stated[name].strip().replace(" ", "-") for name in ("finetune", "version") if name in stated)
    return "-".join(("mmproj", base, *named, dtype))


_NAMED: Final = ("basename", "finetune", "name", "version")


def plan_towers(model: OpenModel, towers: Towers, options: GgufFileOptions) -> PlanBuilder:
    """Plans the tensors and keys of the towers."""
    resolved, family = towers.resolved, towers.resolved.family
    read = as_read(model.files_of_tensors, pickled=own_target(model.format) == "torch")
    stored = tuple(f"{folder}." for folder, order in family.document.companions.items() if order == "source")
    order = [*(name for name in towers.further if name.startswith(stored)), *read]
    named = resolved.save("gguf", source_order=order)
    specs = (resolved.tensors[name].spec for name in order if name in resolved.tensors)
    requested = dtype_policy.requested_gguf_dtype(options.dtype, specs)
    draft = PlanBuilder({}, sources=towers.files)
    rows = family.rows_of("gguf", resolved.sizes, named)
    for name, node in named.items():
        dtype = tower_dtype(rows[name], name, node.spec, requested)
        draft.tensors[name] = cast_for_gguf(name, node, dtype, dtype if rows[name].gguf_dtype else requested, draft)
    draft.losses += [Loss("left out: llama.cpp doesn't compute with it", name) for name in towers.dropped]
    if towers.folded:
        draft.losses.append(Loss("means and variances of batch norms are folded into their weights and biases"))
    draft.losses += one_way_losses(resolved)
    unread = family.unmapped_roles("gguf", resolved.sizes, resolved.roles)
    for name in family.holding(resolved.dialect, resolved.sizes, resolved.tensors, unread):
        parts = ", ".join(dict(unread))
        draft.losses.append(Loss(f"rows of {name} left out: llama.cpp doesn't compute with {parts}"))
    facts = family.effective(towers.config)
    draft.losses += [Loss(text, effect="results") for text in facts_losses(facts, family)]
    draft.metadata = _keys(model, towers, draft, requested, options)
    return draft


def tower_dtype(row: Role, name: str, spec: Spec, requested: DType) -> DType:
    """The dtype that the reference converter chooses for a tower's tensor: its class's, unless it is a vector or a norm
    (conversion/base.py `prepare_tensors`, `tensor_force_quant`, llama.cpp b11549)."""
    usual = dtype_policy.gguf_dtype(name, spec, requested)
    if not row.gguf_dtype or len(spec.shape) <= 1 or name.endswith("_norm.weight"):
        return usual
    if row.gguf_dtype == "F16 or F32":
        return F16 if requested is F16 else F32
    return BY_NAME[row.gguf_dtype]


def _keys(
    model: OpenModel, towers: Towers, draft: PlanBuilder, requested: DType, options: GgufFileOptions
) -> Mapping[str, KV]:
    family = towers.resolved.family
    readme, unreadable = card.read_card(model.place.read("README.md"))
    draft.losses += [Loss(unreadable)] if unreadable else []
    general = general_to_gguf(
        family, directory=options.name or model.place.title, config=model.config,
        shapes={name: node.spec.shape for name, node in draft.tensors.items()},
        generation_config=model.json("generation_config.json"),
        card={**readme, "name": options.name} if options.name else readme, kind="mmproj",
    )  # fmt: skip
    architecture = config_to_gguf(towers.config, family, file_type=dtype_policy.FTYPES[requested.name])
    _check_preprocessor(model, towers, architecture, draft)
    return metadata.with_alignment(assemble(general, architecture, {}), options.align)


def _check_preprocessor(model: OpenModel, towers: Towers, keys: Mapping[str, KV], draft: PlanBuilder) -> None:
    """Notes the defaults of keys whose file the folder lacks. Raises UnsupportedError for keys without one: llama.cpp
    loads no tower without them."""
    if towers.config[PREPROCESSOR]:
        return
    family, facts = towers.resolved.family, towers.resolved.family.effective(towers.config)
    rows = (row for row in rules(family).keys if any(f"{PREPROCESSOR}." in path for path in row.config))
    names = [row.key(family.gguf) for row in rows if all_hold(row.when, facts)]
    if unknown := [name for name in names if name not in keys]:
        raise UnsupportedError(
            f"{model.place.path} has no {PREPROCESSORS[0]}, which sets {', '.join(unknown)}",
            hint="get the file from the model's publisher; wb convert SRC DST.gguf converts the language model",
        )
    if names:
        draft.notes.append(f"no {PREPROCESSORS[0]}: {', '.join(names)} as the reference converter assumes")


# ---------------------------------------------------------------------- back to a folder


class Projector(NamedTuple):
    """An mmproj file. `named`: its tensors under Hugging Face's names; `class_`: the class of the whole model;
    `config`: the part of its config that describes the towers; `losses`: keys that no config has; `family` and `keys`:
    its table and metadata."""

    path: Path
    named: Mapping[str, LogicalTensor]
    class_: str
    config: Mapping[str, Any]
    losses: tuple[str, ...]
    family: Family
    keys: Mapping[str, Any]


_TEXT_ALONE: Final = "without --projector a folder with the language model is written"
#: Keys of a config that describe the whole model.
_OF_THE_WHOLE: Final = ("architectures", "model_type")


def projector_of(model: OpenModel, path: str | os.PathLike[str]) -> Projector:
    """The mmproj file at `path`, which belongs to the GGUF `model`. Its file stays open with the model. Raises
    UsageError if the widths of the two differ, UnsupportedError if no class has both."""
    from weighbridge.models.llamacpp import batch_norms

    source = open_weights(resolve_path(path))
    try:
        resolved = towers_of_gguf(source)
        check_pair(model.metadata, candidate_of(source))
        family = resolved.family
        if reduced := family.holding("gguf", resolved.sizes, resolved.tensors, [(role, ()) for role in family.one_way]):
            change = ", ".join(dict.fromkeys(family.one_way.values()))
            raise UnsupportedError(
                f"{path}: no folder can be made again, since {', '.join(reduced)} is {change}",
                hint=f"{_TEXT_ALONE}; wb convert MMPROJ DST.safetensors keeps the towers under llama.cpp's names",
            )
        if folders := family.document.companions:
            raise UnsupportedError(
                f"{path}: no folder can be made again: {', '.join(folders)} has parts that no GGUF has",
                hint=_TEXT_ALONE,
            )
        graph = (model.family, *(f for f in families_of_graph(model.family.gguf) if f.restores))
        view = ArchView(source.metadata, family.gguf, source.index.by_name)
        both = [name for f in graph for name in family.architectures if name in f.architectures]
        classes = ((name, family.architectures[name].gguf) for name in both)
        shared = [name for name, shown in classes if not shown or view.shows(shown)]
        if not shared:
            reason = f"{both[0]} has further parts, which no GGUF has" if both else without_class(model.family, family)
            raise UnsupportedError(reason, hint=_TEXT_ALONE)
        files = ((model.family, model), (family, source))
        shown = (f.architecture_of_gguf(file.metadata, file.index.by_name).name for f, file in files)
        class_ = next((name for name in shown if name in shared), shared[0])
        shared_keys = (row for row in rules(family).keys if row.language)
        read = {row.key(family.gguf): model.metadata.get(row.key(model.family.gguf)) for row in shared_keys}
        stated = {**source.metadata, **{key: value for key, value in read.items() if value is not None}}
        restored = gguf_to_config(stated, family, source.index.by_name, class_=class_)
        config = {key: value for key, value in restored.config.items() if key not in _OF_THE_WHOLE}
        copied = copied_names(family)
        prefix = family.architectures[class_].prefix
        named = {n: node for n, node in resolved.save("hf", prefix=prefix).items() if n not in copied}
        named |= batch_norms.unfolded(family, family.expansion("hf", resolved.sizes, prefix), named)
        return Projector(source.place.path, named, class_, config, tuple(restored.losses), family, source.metadata)
    except BaseException:
        source.close()
        raise


def _laid_over(config: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these entries, object by object."""
    both = (key for key in added if isinstance(added[key], Mapping) and isinstance(config.get(key), Mapping))
    return {**config, **added, **{key: _laid_over(config[key], added[key]) for key in both}}


def add_towers(draft: PlanBuilder, projector: Projector) -> None:
    """Adds the towers' part of config.json, and preprocessor_config.json, to the small files of a folder."""
    config = dict(projector.config)
    prepared = config.pop(PREPROCESSOR, None)
    whole = json.loads(draft.texts["config.json"])
    whole = _laid_over(whole, config)
    draft.texts["config.json"] = metadata.json_text(whole)
    draft.losses += _changed_keys(projector, {**whole, PREPROCESSOR: prepared or {}})
    draft.losses += [Loss(text, effect="results") for text in projector.losses]
    if prepared is not None:
        draft.texts["preprocessor_config.json"] = metadata.json_text(prepared)
    kept = ", ".join(prepared or ()) or "nothing"
    draft.losses.append(Loss(f"preprocessor_config.json: an mmproj file has {kept}; take the rest from the original"))
    draft.sources = (*draft.sources, projector.path)


def _changed_keys(projector: Projector, config: Mapping[str, Any]) -> list[Loss]:
    """A loss for each key of an mmproj file that the folder's config, which has no place for it, implies otherwise."""
    family = projector.family
    try:
        facts = {**config, **dimensions_of(family, projector.named)}
        implied = {key: kv.value for key, kv in config_to_gguf(facts, family, file_type=0).items()}
    except WeighbridgeError as error:  # sizes that only the original's files have
        return [Loss(f"not checked: whether config.json means what the mmproj file's keys say: {error.message}")]
    pairs = ((key, value, implied[key]) for key, value in projector.keys.items() if key in implied)
    return [
        Loss(f"{key} = {_short(old)} has no place in config.json, which means {_short(new)}", effect="results")
        for key, old, new in pairs
        if key.startswith("clip.") and not same_value(old, new)
    ]


def _short(value: Any) -> str:
    """A value with the digits of a number of 32 bits."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)
