"""Converts LoRA adapters to other formats.

PEFT, MLX -> GGUF     names, order and layout by the base model's table, as the reference's convert_lora_to_gguf.py
GGUF, MLX -> PEFT     the reverse; facts that the adapter's GGUF lacks come from the base model
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import AdapterOptions, DTypeOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_for_gguf, cast_to
from weighbridge.conversion.result import Loss
from weighbridge.io.location import open_source
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import reference_order
from weighbridge.models.arch.registry import family_of_hf, read_family
from weighbridge.models.config import card
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.jsonfile import decode
from weighbridge.models.lora import gguf, pairs, peft
from weighbridge.models.lora.forms import adapter_form, is_table, resolved
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.model import OpenModel
from weighbridge.models.open import SourceOptions, open_model
from weighbridge.tensors.nodes import Node

_MERGE: Final = "merge the adapter into the model: wb convert BASE DST --lora ADAPTER"
_BASE: Final = "name the model it is for: --base FOLDER (its config.json is enough) or --base MODEL.gguf"


def plan_adapter(model: OpenModel, options: AdapterOptions, kind: str) -> PlanBuilder:
    """Plans an adapter in another format. Raises UnsupportedError if the target can't express it."""
    form = adapter_form(model)
    if form is None:
        raise UsageError(f"{model.place.path} isn't a LoRA adapter")
    adapter = form.read(model)
    base = _base(model, adapter, options)
    adapter, apart = _of_language(adapter, base) if kind == "gguf" else (adapter, {})
    adapter, roles = resolved(adapter, form.dialect, base.family, base.sizes)
    if name := next((name for name, pair in adapter.pairs.items() if pair.lengths is not None), None):
        raise UnsupportedError(
            f"{name}: DoRA sets the length of each row of the changed weight. That isn't B @ A, and an adapter "
            "of this format can't store it", hint=_MERGE,
        )  # fmt: skip
    if kind != "gguf":
        return _to_peft(adapter, roles, base, options)
    dtype = dtype_policy.requested_gguf_dtype(options.dtype or "f32", (n.spec for n in model.stored.values()))
    readme, _ = card.read_card(model.place.read("README.md"))
    readme = {**readme, "name": options.name} if options.name else readme
    draft = to_gguf(adapter, roles, base, dtype, options.name or model.place.title, readme)
    draft.losses += [
        Loss(
            f"left out: changes of another part of the model, {start}* ({count:,}); {_MERGE}",
            effect="results",
        )
        for start, count in apart.items()
    ]
    return draft


def _of_language(adapter: LoraAdapter, base: AdapterBase) -> tuple[LoraAdapter, Mapping[str, int]]:
    """Returns an adapter without its changes of other parts of the model, which llama.cpp doesn't apply, and the number
    of these by the start of their names. Raises UnsupportedError if nothing remains."""
    starts = base.family.ignored_prefixes(base.sizes)
    kept = {name: pair for name, pair in adapter.pairs.items() if not name.startswith(starts)}
    if adapter.pairs and not kept:
        reason = "the adapter changes no matrix of the language model, and llama.cpp applies adapters to no other part"
        raise UnsupportedError(reason, hint=_MERGE)
    apart = (name for name in adapter.pairs if name not in kept)
    return replace(adapter, pairs=kept), base.family.parted(apart, base.sizes)


class AdapterBase(NamedTuple):
    """The base model of an adapter. `tied`: its head is the embedding."""

    family: Family
    sizes: Sizes
    tied: bool


def _base(model: OpenModel, adapter: LoraAdapter, options: AdapterOptions) -> AdapterBase:
    """Reads the facts about an adapter's base model."""
    declared = options.base or adapter.base
    if declared is None:
        raise UsageError(f"{model.place.path} doesn't name its base model", hint=_BASE)
    path = Path(declared)
    if options.base is None and not path.exists():
        raise UsageError(f"the adapter is for {str(declared)!r}, which wasn't found", hint=_BASE)
    if path.is_dir() and (path / "config.json").is_file():
        with open_source(path / "config.json") as source:
            config = decode(source.read(0, source.size), source.name, dict[str, Any])
        family = family_of_hf(config, (read_family(Path(model.arch_file)),) if model.arch_file else ())
        sizes = family.sizes_from_hf(config)
        return AdapterBase(family, sizes, bool(sizes.facts.get("tie_word_embeddings")))
    with open_model(path, SourceOptions(arch_file=model.arch_file)) as base:
        head = base.format != "gguf" or "output.weight" in base.index
        return AdapterBase(base.family, base.sizes, not head or bool(base.sizes.facts.get("tie_word_embeddings")))


# ------------------------------------------------------------------------------------------------ to GGUF


def to_gguf(
    adapter: LoraAdapter, roles: pairs.Roles, base: AdapterBase, dtype: DType, title: str, readme: card.Card
) -> PlanBuilder:
    """Plans a GGUF of a resolved adapter. `roles`: its changes of logical tensors. `title`: its name, if `readme`, the
    front matter of a model card, has none. Raises UnsupportedError for what a GGUF adapter can't store."""
    draft, (family, sizes, tied) = PlanBuilder({}), base
    named = pairs.save(family, "gguf", sizes, roles)
    if tied and (changed := next((n for n in ("output.weight", gguf.EMBEDDING) if n in named), None)):
        raise UnsupportedError(
            f"the adapter changes {changed}; this model's embedding and head are tied, and llama.cpp supports "
            "adapters for neither", hint=_MERGE,
        )  # fmt: skip
    norms = _norms(adapter, family, sizes, draft)
    draft.losses += [Loss("left out: a weight of the base model", name) for name in adapter.base_weights]
    places = family.expansion("gguf", sizes).places
    order = reference_order(family, {n: places[n] for n in named}, sizes, list(adapter.pairs))
    for name, node in gguf.tensors({name: named[name] for name in order}, norms).items():
        draft.tensors[name] = cast_for_gguf(name, node, dtype_policy.gguf_dtype(name, node.spec, dtype), dtype, draft)

    # the adapter's key-values, in the reference's order
    shapes = {name: pair.shape for name, pair in named.items()}
    general = general_to_gguf(family, directory=title, config={}, shapes=shapes, card=readme, kind="adapter")
    first = {key: general.pop(key) for key in ("general.architecture", gguf.TYPE)}
    keys = {**first, gguf.KIND: KV("str", "lora"), **general, gguf.ALPHA: KV("f32", adapter.alpha)}
    if adapter.tokens:
        keys[gguf.TOKENS] = KV("arr[u32]", list(adapter.tokens))
    draft.metadata = {**keys, "general.quantization_version": KV("u32", 2)}
    return draft


def _norms(adapter: LoraAdapter, family: Family, sizes: Sizes, draft: PlanBuilder) -> dict[str, Node]:
    """Fully trained norms, which the reference writes and llama.cpp ignores.

    Raises UnsupportedError for other full tensors, which a GGUF adapter can't store.
    """
    if not adapter.whole:
        return {}
    places = family.expansion("hf", sizes, family.prefix_of("hf", adapter.whole, sizes)).places
    for name in adapter.whole:
        if name not in places or family.rows[places[name].roles[0]].kind != "norm":
            raise UnsupportedError(
                f"the adapter has the full tensor {name} (modules_to_save, a bias), which a GGUF adapter can't store",
                hint=_MERGE,
            )
        draft.losses.append(Loss("fully trained: llama.cpp ignores it in an adapter", name))
    holder = {places[name].instances[0]: node for name, node in adapter.whole.items()}
    names = {place.instances[0]: n for n, place in family.expansion("gguf", sizes).places.items()}
    layouts = {i: family.layout_of("gguf", i[0], sizes) for i in holder}
    return {names[i]: layout.apply(node) if (layout := layouts[i]) else node for i, node in holder.items()}


# ------------------------------------------------------------------------------------------------ to PEFT


def _to_peft(adapter: LoraAdapter, roles: pairs.Roles, base: AdapterBase, options: AdapterOptions) -> PlanBuilder:
    family, sizes, _ = base
    if adapter.whole:
        raise UnsupportedError(f"the adapter contains the full tensor {next(iter(adapter.whole))}, which isn't a LoRA")
    named = pairs.save(family, "hf", sizes, roles)
    places = family.expansion("hf", sizes).places
    tables = frozenset(name for name in named if is_table(family, places[name]))
    declared = str(options.base) if options.base else adapter.base
    conv = any(family.rows[places[name].roles[0]].transposed("hf") for name in named)
    return to_folder(replace(adapter, pairs=named, base=declared), tables, options, conv=conv)


def to_folder(
    adapter: LoraAdapter, tables: frozenset[str], options: DTypeOptions, *, conv: bool = False
) -> PlanBuilder:
    """Plans the PEFT folder of an adapter under the names of a Hugging Face folder. `tables`, `conv`: as of
    `peft.write`."""
    tensors, config = peft.write(adapter, tables, conv=conv)
    draft = PlanBuilder({}, {"format": "pt"}, peft.STEM)
    for name, node in tensors.items():
        draft.tensors[name] = cast_to(name, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
    draft.texts[peft.CONFIG] = (json.dumps(config, indent=2) + "\n").encode()
    return draft
