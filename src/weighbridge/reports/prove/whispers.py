"""Checks that the settings and tokens of two Whispers are the same, in any of their three forms."""

from __future__ import annotations

from collections.abc import Iterator

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.models.model import OpenModel
from weighbridge.models.whisper.forms import form_of
from weighbridge.models.whisper.source import WhisperModel, read
from weighbridge.reports.prove.model import ProveCheck


def are_whispers(a: OpenModel, b: OpenModel) -> bool:
    return form_of(a) is not None and form_of(b) is not None


def checks(a: OpenModel, b: OpenModel) -> list[ProveCheck]:
    """Returns the checks of sizes, mel filters and tokens."""
    try:
        first, second = (read(model, form, tokenizer=False) for model in (a, b) if (form := form_of(model)))
    except WeighbridgeError as error:
        return [ProveCheck("settings", "not-checked", f"not compared: {error.message}")]
    return [_settings(first, second), *_tokens(first, second)]


def _settings(a: WhisperModel, b: WhisperModel) -> ProveCheck:
    details = [f"{name}: {size} and {b.sizes[name]}" for name, size in a.sizes.items() if b.sizes[name] != size]
    details += ["the mel filters"] if a.filters != b.filters else []
    if details:
        return ProveCheck("settings", "different", f"{len(details)} differ", tuple(details))
    return ProveCheck("settings", "same", f"{plural(len(a.sizes), 'size')} and the mel filters are the same")


def _tokens(a: WhisperModel, b: WhisperModel) -> Iterator[ProveCheck]:
    if a.tokens is None and b.tokens is None:
        return
    if a.tokens is None or b.tokens is None:
        yield ProveCheck("tokenizer", "not-checked", "only one of the models has its tokens")
    elif list(a.tokens) == list(b.tokens):
        yield ProveCheck("tokenizer", "same", plural(len(a.tokens), "token"))
    else:
        at = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y), -1)
        where = f"the first is {at}" if at >= 0 else f"{len(a.tokens):,} and {len(b.tokens):,}"
        yield ProveCheck("tokenizer", "different", f"other tokens: {where}")
