"""Checks the expressions and names of `[meta]` when a table is loaded: a typo there would silently lose a value."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.layers import LayerSet
from weighbridge.models.arch.tables.schema import FamilyTable
from weighbridge.models.arch.tables.validate import nearest_word

# The similarity from which on an unknown key is a typo: one letter in a dozen. Valid keys may be unknown to the other
# sections; the two nearest keys of published configs are `eos_token_id` and `eod_token_id` (0.917).
_TYPO = 0.92
_ALL_LAYERS = "*"


def check_meta(table: FamilyTable, layers: Mapping[str, LayerSet], derived: Collection[str]) -> None:
    """UsageError for an expression outside the grammar, an unknown set of layers, or a misspelled key. `derived`: the
    keys that only an effective config has."""
    if table.meta is None:
        return
    named = {*derived, *_named_keys(table)}
    for place, text in _expressions(table):
        for key in _keys(place, text):
            if key not in named and (near := difflib.get_close_matches(key, named, 1, _TYPO)):
                raise UsageError(f"{place}: unknown key {key!r}; did you mean {near[0]!r}?")
    for entry in (*table.meta.key, *table.meta.tokenizer):
        if entry.layers not in (None, _ALL_LAYERS, *layers):
            nearest = nearest_word(str(entry.layers), layers)
            raise UsageError(f"meta.key.{entry.name}.layers: unknown set of layers {entry.layers!r}{nearest}")


def _keys(place: str, text: str) -> Iterator[str]:
    """The keys of config.json in an expression; the first part of a dotted one."""
    try:
        expression.check_number(text)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return (name.partition(".")[0] for name in expression.names(expression.parse(text)))


def _named_keys(table: FamilyTable) -> Iterator[str]:
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
        others = filter(None, (entry.subtract, entry.divide_by, entry.divide_by_sqrt, entry.others))
        restored = entry.restored if not isinstance(entry.restore, bool) else ()
        yield from ((f"meta.key.{entry.name}", text) for text in (*entry.config, *entry.when, *others, *restored))
    for implied in meta.implied:
        value = [implied.value] if isinstance(implied.value, str) else []
        yield from ((f"meta.implied.{implied.config}", text) for text in (implied.config, *value, *implied.when))
    for required in meta.requires_value:
        texts = (required.config, *filter(None, [required.equals, required.at_least]), *required.when)
        yield from ((f"meta.requires_value.{required.config}", text) for text in texts)
    for part, keys in (("presence", meta.presence), ("assumed", meta.assumed)):
        yield from ((f"meta.{part}", key) for key in keys)
