"""The rows of llamacpp.toml, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec


class SlidingWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the layers of an architecture slide (see llamacpp.toml)."""

    period: int | None = None
    size: int = 0
    first: bool = False
    always: int = 0
    layers: int = 0


class ComputeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the graphs of some architectures need beside the rules of compute.py."""

    vectors: dict[str, float]
    uncertain: frozenset[str]


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Which layers keep what, by architecture."""

    none: frozenset[str]
    recurrent: frozenset[str]
    by_kv_heads: frozenset[str]
    both: frozenset[str]
    by_feed_forward: frozenset[str]
    indexer: frozenset[str]
    indexer_with_values: frozenset[str]
    compressed: frozenset[str]
    own_widths: tuple[str, ...]
    interval: dict[str, int]
    own_layers: dict[str, int]
    sharing_key: dict[str, str]


class WeightRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What is loaded otherwise than placement.py has it."""

    embedding_twice: frozenset[str]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cache: CacheRules
    state: dict[str, frozenset[str]]
    window: dict[str, SlidingWindow]
    weights: WeightRules
    compute: ComputeRules


@dataclass(frozen=True, slots=True)
class LlamaCppRules:
    """llama.cpp's rules by architecture."""

    kinds: Mapping[str, str]
    states: Mapping[str, str]
    windows: Mapping[str, SlidingWindow]
    own_widths: tuple[str, ...]
    interval: Mapping[str, int]
    own_layers: Mapping[str, int]
    sharing_key: Mapping[str, str]
    embedding_twice: frozenset[str]
    compute: ComputeRules

    def cache_kind(self, architecture: str) -> str:
        return self.kinds.get(architecture, "attention")

    def state_kind(self, architecture: str) -> str:
        return self.states.get(architecture, "ssm")


@cache
def rules() -> LlamaCppRules:
    """The parsed table."""
    text = (resources.files(__package__ or "") / "llamacpp.toml").read_text(encoding="utf-8")
    return _build(msgspec.toml.decode(text, type=_Table))


def _build(table: _Table) -> LlamaCppRules:
    listed = msgspec.structs.asdict(table.cache)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(table.cache)}
    kinds = {arch: names[kind] for kind, found in listed.items() if isinstance(found, frozenset) for arch in found}
    return LlamaCppRules(
        kinds=kinds | dict.fromkeys(table.cache.interval, "interval"),
        states={arch: kind for kind, found in table.state.items() for arch in found},
        windows=table.window,
        own_widths=table.cache.own_widths,
        interval=table.cache.interval,
        own_layers=table.cache.own_layers,
        sharing_key=table.cache.sharing_key,
        embedding_twice=table.weights.embedding_twice,
        compute=table.compute,
    )
