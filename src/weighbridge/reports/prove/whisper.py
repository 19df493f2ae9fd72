"""Checks that two Whispers, each in one of its three forms, have the same sizes, mel filters and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.models.whisper.forms import form_of
from weighbridge.models.whisper.source import WhisperModel, read
from weighbridge.reports.prove.model import ProveCheck

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel


def checks(a: OpenModel, b: OpenModel) -> list[ProveCheck]:
    """Returns the checks of settings and tokenizer; none unless both are Whispers."""
    forms = form_of(a), form_of(b)
    if forms[0] is None or forms[1] is None:
        return []
    try:
        x, y = read(a, forms[0], tokenizer=False), read(b, forms[1], tokenizer=False)
    except WeighbridgeError as error:
        return [ProveCheck("settings", "not-checked", f"not compared: {error.message}")]
    return [_settings(x, y), _tokens(a, b, x, y)]


def _settings(x: WhisperModel, y: WhisperModel) -> ProveCheck:
    details = [f"{key}: {value} and {y.sizes[key]}" for key, value in x.sizes.items() if value != y.sizes[key]]
    details += [] if x.filters == y.filters else ["mel filters: other numbers"]
    if details:
        return ProveCheck("settings", "different", f"{len(details)} differ", tuple(details))
    return ProveCheck("settings", "same", f"{plural(len(x.sizes), 'size')} and the mel filters are equal")


def _tokens(a: OpenModel, b: OpenModel, x: WhisperModel, y: WhisperModel) -> ProveCheck:
    bare = [model.place.path for model, whisper in ((a, x), (b, y)) if whisper.tokens is None]
    if x.tokens is None or y.tokens is None:
        return ProveCheck("tokenizer", "not-checked", f"{bare[0]} has no tokens to compare")
    if [*x.tokens] == [*y.tokens]:
        return ProveCheck("tokenizer", "same", f"{plural(len(x.tokens), 'token')} are equal")
    return ProveCheck(
        "tokenizer", "different", f"{plural(len(x.tokens), 'token')} and {plural(len(y.tokens), 'token')} differ"
    )
