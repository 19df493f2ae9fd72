"""llama.cpp's rules for memory by architecture: the rows of llamacpp.toml."""

from __future__ import annotations

from functools import cache

import msgspec

from weighbridge.base.imports.tables import read_table


class SlidingWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sliding layers of an architecture (see llamacpp.toml)."""

    period: int | None = None
    size: int = 0
    first: bool = False
    always: int = 0
    layers: int = 0


class ComputeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deviations of some architectures' graphs from the rules in compute.py."""

    vectors: dict[str, float]
    uncertain: frozenset[str]
    batched: frozenset[str] = frozenset()


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The kinds of caches with their architectures, and the parameters of some architectures."""

    kind: dict[str, frozenset[str]]
    uncached_decisions: frozenset[str]
    predicting: frozenset[str]
    own_widths: tuple[str, ...]
    interval: dict[str, int]
    own_layers: dict[str, int]
    sharing_key: dict[str, str]


class WeightRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Deviations of some architectures from placement.py."""

    embedding_twice: frozenset[str]


class LlamaCppRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rules, by architecture."""

    cache: CacheRules
    state: dict[str, frozenset[str]]
    window: dict[str, SlidingWindow]
    weights: WeightRules
    compute: ComputeRules

    def cache_kind(self, architecture: str) -> str:
        default = "interval" if architecture in self.cache.interval else "attention"
        return next((kind for kind, names in self.cache.kind.items() if architecture in names), default)

    def state_kind(self, architecture: str) -> str:
        return next((kind for kind, names in self.state.items() if architecture in names), "ssm")


@cache
def rules() -> LlamaCppRules:
    """Returns the parsed table."""
    return msgspec.convert(read_table(__file__, "llamacpp.toml"), LlamaCppRules)
