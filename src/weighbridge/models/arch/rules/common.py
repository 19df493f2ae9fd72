"""Rules that serve several families; `keys` are the keys that a table states in the brackets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer


def uniform(config: Config, keys: Sequence[str]) -> dict[str, Any]:
    """Replaces a list by layer with its value if all layers have the same one."""
    listed = {key: value for key in keys if isinstance(value := config.get(key), list) and value}
    return {key: value[0] for key, value in listed.items() if all(item == value[0] for item in value)}


def last_layer(config: Config, keys: Sequence[str]) -> dict[str, Any]:
    """Replaces -1, or a number beyond the layers, with the number of the last layer: classes compare with `<=`."""
    last = layer_count(config) - 1
    values = {key: config.get(key) for key in keys}
    return {key: last for key, n in values.items() if isinstance(n, int) and (n == -1 or n > last)}


def leading_dense(config: Config, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Adds `mlp_layer_types`, which layers have experts, and `first_k_dense_replace`, the number of leading dense
    layers, from either of them or from numbers by layer (configuration_minimax_m3_vl.py,
    configuration_cohere2_moe.py)."""
    kinds, numbers = config.get("mlp_layer_types"), config.get("moe_layer_freq")
    if kinds is None and isinstance(numbers, list):
        kinds = ["sparse" if number else "dense" for number in numbers]
    if kinds is None:
        count, layers = integer(config.get("first_k_dense_replace") or 0, "first_k_dense_replace"), layer_count(config)
        kinds = ["dense" if layer < count else "sparse" for layer in range(layers)]
    if not isinstance(kinds, list):
        raise FormatError("is not a list", field="mlp_layer_types", found=repr(kinds)[:80])
    leading = next((layer for layer, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    return {"mlp_layer_types": kinds, "first_k_dense_replace": leading}


RULES: Final[Mapping[str, Callable[..., dict[str, Any]]]] = MappingProxyType(
    {"uniform": uniform, "last_layer": last_layer, "leading_dense": leading_dense}
)
