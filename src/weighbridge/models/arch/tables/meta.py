"""Checks the expressions and words of `[meta]` when a table is loaded: a typo there would lose a value in silence."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.layers import LayerSet
from weighbridge.models.arch.tables.schema import FamilyTable, KeyEntry
from weighbridge.models.arch.tables.validate import nearest_word

# How much like a known key an unknown one is that must be a typo of it: one letter of a dozen. Keys may well be known
# to no other section; the nearest two that published configs have both are `eos_token_id` and `eod_token_id` (0.917).
_TYPO = 0.92
_ALL_LAYERS = "*"


def check_meta(table: FamilyTable, layers: Mapping[str, LayerSet], derived: Collection[str]) -> None:
    """UsageError for an expression outside the grammar, an unknown set of layers, and a key that is misspelled.
    `derived`: the keys of an effective config that no config states."""
    if table.meta is None:
        return
    known = {*derived, *_stated(table)}
    for place, text in _expressions(table):
        for key in _keys(place, text):
            if key not in known and (near := difflib.get_close_matches(key, known, 1, _TYPO)):
                raise UsageError(f"{place}: unknown key {key!r}; did you mean {near[0]!r}?")
    for entry in (*table.meta.key, *table.meta.tokenizer):
        if entry.layers not in (None, _ALL_LAYERS, *layers):
            words = f"unknown set of layers {entry.layers!r}{nearest_word(str(entry.layers), layers)}"
            raise UsageError(f"meta.key.{entry.name}.layers: {words}")


def _keys(place: str, text: str) -> Iterator[str]:
    """The keys of config.json in an expression; of a dotted one the first."""
    try:
        expression.check_number(text)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return (name.partition(".")[0] for name in expression.names(expression.parse(text)))


def _stated(table: FamilyTable) -> Iterator[str]:
    """The keys of config.json that the other sections of the table name."""
    yield from table.defaults
    for architecture in table.architecture.values():
        yield from (*architecture.defaults, *architecture.null)
    classes = (text for a in table.architecture.values() for text in a.null.values())
    sizes = (text for size in table.size.values() for text in size.hf)
    sets = (text for layer_set in table.layers.values() for text in layer_set.hf)
    for text in (*classes, *sizes, *sets):
        yield from (name.partition(".")[0] for name in expression.names(expression.parse(text)))


def _expressions(table: FamilyTable) -> Iterator[tuple[str, str]]:
    """Each expression over a config in `[meta]`, with its place."""
    meta = table.meta
    assert meta is not None
    for entry in (*meta.key, *meta.tokenizer):
        yield from ((f"meta.key.{entry.name}", text) for text in _of_key(entry))
    for implied in meta.implied:
        value = [implied.value] if isinstance(implied.value, str) else []
        yield from ((f"meta.implied.{implied.config}", text) for text in (implied.config, *value, *implied.when))
    for required in meta.requires_value:
        texts = (required.config, *filter(None, [required.equals, required.at_least]), *required.when)
        yield from ((f"meta.requires_value.{required.config}", text) for text in texts)
    for part, keys in (("presence", meta.presence), ("assumed", meta.assumed)):
        yield from ((f"meta.{part}", key) for key in keys)


def _of_key(entry: KeyEntry) -> Iterator[str]:
    yield from (*entry.config, *entry.when)
    yield from filter(None, (entry.subtract, entry.divide_by, entry.divide_by_sqrt, entry.others))
    if not isinstance(entry.restore, bool):
        yield from [entry.restore] if isinstance(entry.restore, str) else entry.restore
