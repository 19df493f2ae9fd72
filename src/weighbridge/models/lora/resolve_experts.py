"""What an adapter's config leaves to be found with its base model: which stack of experts a pair is for, how much each
pair counts.

PEFT's `target_parameters` (0.17 and later) wraps a module's parameters one over the other, and names the pairs by the
module and by how deep they lie:

    model.layers.0.mlp.experts.lora_A.weight               the last parameter, A [rank * experts, in]
    model.layers.0.mlp.experts.base_layer.lora_A.weight    the one before,     B [out, rank * experts]

A's rows are expert by expert, B's columns rank by rank (tuners/lora/layer.py, `ParamWrapper.get_delta_weight`). The
shapes decide which parameter a pair is for. Before 0.19 [out, in] was taken for [in, out], so that a pair may lie the
other way round.
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

_STRAIGHT: Final = (0, 19)  # since this version PEFT takes stacks as [experts, out, in]
_WEIGHT, _WRAPPED = ".weight", ".base_layer"
# A pattern in a config is untrusted: one with exponential backtracking would hang, so only simple ones are run.
_NESTED: Final = re.compile(r"[)\]}*+?][*+?{]|\\[1-9]")


def resolve_adapter(
    adapter: LoraAdapter, family: Family, dialect: str, sizes: Sizes, prefix: str | None
) -> LoraAdapter:
    """The adapter with one pair per tensor, each scaled by alpha/rank."""
    places = family.expansion(dialect, sizes, prefix).places
    pairs: dict[str, LoraPair] = {}
    for name, pair in adapter.pairs.items():
        found = _stack(family, dialect, places, name, pair, adapter.version)
        if found[0] in pairs:
            raise FormatError("two pairs are for one tensor", field=found[0])
        pairs[found[0]] = found[1]
    return _counted(replace(adapter, pairs=pairs))


# ------------------------------------------------------------------------------------------------ stacks of experts


def _stack(
    family: Family, dialect: str, places: Mapping[str, TensorSlot], name: str, pair: LoraPair, version: tuple[int, ...]
) -> tuple[str, LoraPair]:
    """The tensor that a pair is for; the pair is split per expert where the tensor is a stack."""
    module = name.removesuffix(_WEIGHT)
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    if name in places or f"{module}{_WEIGHT}" in places:
        return f"{module}{_WEIGHT}" if f"{module}{_WEIGHT}" in places else name, pair
    found: list[tuple[str, LoraPair]] = []
    near = [n for n in places if n.rpartition(".")[0] == module and len(places[n].shape) == 3]
    for candidate in near:
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
            each = _each(pair, count)
            found.append((candidate, each if straight else each.turned()))
    if len(found) != 1:
        return name, pair  # reported as unmapped by the table
    return found[0]


def _each(pair: LoraPair, count: int) -> LoraPair:
    """A [rank * experts, in] and B [out, rank * experts] as [experts, rank, in] and [experts, out, rank]."""
    from weighbridge.tensors.nodes import reshape, strided

    rank, (outer, inner) = pair.rank // count, pair.shape
    line = reshape(pair.b, (outer * pair.rank,))
    b = strided(line, 0, (count, outer, rank), (1, pair.rank, count))
    return LoraPair(reshape(pair.a, (count, rank, inner)), b)


# ------------------------------------------------------------------------------------------------ scaling


def _counted(adapter: LoraAdapter) -> LoraAdapter:
    """The adapter with a single alpha, so that each pair is scaled by alpha/rank. B is multiplied where a pair's own
    factor differs."""
    alphas = {name: _alpha(adapter, name, pair) for name, pair in adapter.pairs.items()}
    common = Counter(alphas.values()).most_common(1)[0][0] if alphas else adapter.alpha
    if not common:
        common = next((a for a in alphas.values() if a), 1.0)
    pairs = {n: pair if alphas[n] == common else _times(pair, alphas[n] / common) for n, pair in adapter.pairs.items()}
    return replace(adapter, pairs=pairs, alpha=common, alphas={}, root=False)


def _alpha(adapter: LoraAdapter, name: str, pair: LoraPair) -> float:
    """The pair's alpha: its scale times its rank. With rsLoRA the scale is alpha/sqrt(rank)."""
    module = name.removesuffix(_WEIGHT)
    alpha = next((value for key, value in adapter.alphas.items() if _fits(key, module)), adapter.alpha)
    return number(alpha * math.sqrt(pair.rank), "lora_alpha") if adapter.root else alpha


def _fits(key: str, module: str) -> bool:
    """As peft's `get_pattern_key`: a name, the end of one, or a regular expression for either."""
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


def _times(pair: LoraPair, by: float) -> LoraPair:
    """The change multiplied by a number, in F32."""
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast, scaled

    return replace(pair, b=scaled(cast(pair.b, F32), by))
