"""Resolves parts of an adapter that depend on its base model: the stack of experts of a pair, and its scale.

PEFT's `target_parameters` (0.17 and later) wraps a module's parameters in each other, and names the pairs by the module
and the nesting depth:

    model.layers.0.mlp.experts.lora_A.weight               the last parameter, A [rank * experts, in]
    model.layers.0.mlp.experts.base_layer.lora_A.weight    the one before,     B [out, rank * experts]

A's rows are ordered by expert, B's columns by rank (tuners/lora/layer.py, `ParamWrapper.get_delta_weight`). The shapes
determine which parameter a pair is for. Versions before 0.19 took [out, in] for [in, out], so a pair may be
transposed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.expand import Sizes, TensorSlot
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.tables.values import number
from weighbridge.models.lora.pairs import LoraPair, is_turned, linear_shape
from weighbridge.models.lora.peft import LoraAdapter

_STRAIGHT: Final = (0, 19)  # since this version PEFT reads stacks as [experts, out, in]
_WEIGHT, _WRAPPED = ".weight", ".base_layer"
# A pattern in a config is untrusted: one with exponential backtracking would hang, so only simple ones are run.
_NESTED: Final = re.compile(r"[)\]}*+?][*+?{]|\\[1-9]")


def resolve_adapter(
    adapter: LoraAdapter, family: Family, dialect: str, sizes: Sizes, prefix: str | None
) -> LoraAdapter:
    """Returns the adapter with one pair per tensor, each scaled by alpha/rank."""
    places = family.expansion(dialect, sizes, prefix).places
    pairs: dict[str, LoraPair] = {}
    for old, old_pair in adapter.pairs.items():
        name, pair = _resolve_pair(family, dialect, places, old, old_pair, adapter.version)
        if name in pairs:
            raise FormatError("two pairs are for one tensor", field=name)
        pairs[name] = pair
    return scaled_alike(replace(adapter, pairs=pairs))


# ------------------------------------------------------------------------------------------------ stacks of experts


def _resolve_pair(
    family: Family, dialect: str, places: Mapping[str, TensorSlot], name: str, pair: LoraPair, version: tuple[int, ...]
) -> tuple[str, LoraPair]:
    """Returns the tensor that a pair is for, and the pair; for a stack, A [rank * experts, in] and B
    [out, rank * experts] become [experts, rank, in] and [experts, out, rank]."""
    from weighbridge.tensors.nodes import reshape, strided

    module = name.removesuffix(_WEIGHT)
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    if name in places or f"{module}{_WEIGHT}" in places:
        return f"{module}{_WEIGHT}" if f"{module}{_WEIGHT}" in places else name, pair
    matches: list[tuple[str, LoraPair]] = []
    for candidate in (n for n in places if n.rpartition(".")[0] == module and len(places[n].shape) == 3):
        count, outer, inner = linear_shape(family, dialect, places[candidate])
        whole = pair.rank % count == 0
        straight = whole and pair.shape == (outer, inner)
        turned = whole and pair.shape == (inner, outer) and not is_turned(family, dialect, places[candidate])
        if straight and turned:
            if not version:
                raise UnsupportedError(
                    f"{candidate}: its matrices are square and the config has no peft_version; before 0.19 such "
                    "pairs were stored transposed",
                    hint='add the right "peft_version" (such as "0.19.0") to adapter_config.json',
                )
            straight = version >= _STRAIGHT
        if straight or turned:
            rank, (height, width) = pair.rank // count, pair.shape
            b = strided(reshape(pair.b, (height * pair.rank,)), 0, (count, height, rank), (1, pair.rank, count))
            stack = LoraPair(reshape(pair.a, (count, rank, width)), b)
            matches.append((candidate, stack if straight else stack.turned()))
    return matches[0] if len(matches) == 1 else (name, pair)  # otherwise the table reports it as unmapped


# ------------------------------------------------------------------------------------------------ scaling


def scaled_alike(adapter: LoraAdapter) -> LoraAdapter:
    """Returns the adapter with a single alpha, so that each pair is scaled by alpha/rank. B of a pair with another
    factor is multiplied, in F32."""
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast, scaled

    alphas: dict[str, float] = {}
    for name, pair in adapter.pairs.items():
        module = name.removesuffix(_WEIGHT)
        alpha = next((value for key, value in adapter.alphas.items() if _matches(key, module)), adapter.alpha)
        # rsLoRA scales by alpha/sqrt(rank).
        alphas[name] = number(alpha * math.sqrt(pair.rank), "lora_alpha") if adapter.root else alpha
    common = Counter(alphas.values()).most_common(1)[0][0] if alphas else adapter.alpha
    if not common:
        common = next((a for a in alphas.values() if a), 1.0)
    pairs = {
        name: pair if alphas[name] == common else replace(pair, b=scaled(cast(pair.b, F32), alphas[name] / common))
        for name, pair in adapter.pairs.items()
    }
    return replace(adapter, pairs=pairs, alpha=common, alphas={}, root=False)


def _matches(key: str, module: str) -> bool:
    """Whether a key is a module's name, the end of it, or a regular expression for either, as in PEFT's
    `get_pattern_key`."""
    if module == key or module.endswith(f".{key}"):
        return True
    if len(key) > 200 or _NESTED.search(key):
        raise UnsupportedError(
            f"alpha_pattern has {key!r}, a pattern with unbounded backtracking", hint="name the modules"
        )
    try:
        return re.match(rf"(.*\.)?({key})$", module) is not None
    except re.error as error:
        raise FormatError(f"isn't a valid pattern: {error}", field=f"alpha_pattern.{key}") from None
