"""Settings and tokenizer, from headers and small files: whether each means the same to the programs that load them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.config import settings
from weighbridge.models.config.pooling import pooling_type
from weighbridge.models.tokenizer import Vocab, from_gguf, from_hf
from weighbridge.models.tokenizer.compare import vocab_differences
from weighbridge.models.tokenizer.hf.read import VOCABULARY_FILES
from weighbridge.reports.prove.model import ProveCheck

if TYPE_CHECKING:
    from weighbridge.models.checkpoint import Checkpoint

_PRE: Final = "pre-tokenizer"
_SHOWN: Final = 60  # characters of a value


def checks(a: Checkpoint, b: Checkpoint) -> list[ProveCheck]:
    """The checks of settings and tokenizer; one that neither model has is left out."""
    return [_settings(a, b), *_tokenizer(a, b)]


def settled(found: list[ProveCheck]) -> list[ProveCheck]:
    """Without a check of the pre-tokenizer's name that wasn't made, where the tokens of texts are the same."""
    if any(check.name == "tokens" and check.verdict == "same" for check in found):
        return [check for check in found if check.name != _PRE]
    return found


def reader_of(model: Checkpoint) -> str:
    """The program that a model's form is for."""
    if model.format == "gguf":
        return "llama.cpp"
    return "mlx-lm" if model.metadata.get("format") == "mlx" else "transformers"


# ------------------------------------------------------------------------------------------------ settings


def _settings(a: Checkpoint, b: Checkpoint) -> ProveCheck:
    try:
        one, other = _as_read(a), _as_read(b)
    except WeighbridgeError as error:
        return ProveCheck("settings", "not-checked", f"not compared: {error.message}")
    found = settings.differences(one, other)
    if not found:
        return ProveCheck("settings", "same", f"{len(one.values)} settings mean the same to {other.reader}")
    return ProveCheck("settings", "different", f"{len(found)} differ", tuple(map(_words, found)))


def _as_read(model: Checkpoint) -> settings.LoaderSettings:
    """What the model's own program reads of its settings."""
    reader = reader_of(model)
    if reader == "llama.cpp":
        return settings.of_gguf(model.metadata, model.family, model.index.by_name, model._vector)
    if not model.config:
        raise UnsupportedError(f"{model.place.path} has no config.json")
    if reader == "transformers":
        return settings.of_config(model.config, model.family, pooling_type(model.place.read))
    found = settings.of_mlx(model.config, model.family)
    if found is None:
        raise UnsupportedError(f"mlx-lm has no class for {model.config.get('model_type')}")
    return found


def _words(difference: settings.SettingDifference) -> str:
    values = " and ".join(_short(v) for v in (difference.a, difference.b))
    return f"{difference.source}: {values}" + (" (the target has no place for it)" if difference.lost else "")


def _short(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# ------------------------------------------------------------------------------------------------ tokenizer


def _tokenizer(a: Checkpoint, b: Checkpoint) -> Iterator[ProveCheck]:
    if not (has_tokenizer(a) or has_tokenizer(b)):
        return
    if not (has_tokenizer(a) and has_tokenizer(b)):
        without = b if has_tokenizer(a) else a
        yield ProveCheck("tokenizer", "different", f"{without.place.path} has no tokenizer")
        return
    try:
        one, other, taken = _vocabularies(a, b)
    except WeighbridgeError as error:
        yield ProveCheck("tokenizer", "not-checked", f"not compared: {error.message}")
        return
    found = vocab_differences(one, other)
    message = f"{len(found)} differences" if found else f"{len(one):,} tokens and their rules"
    yield ProveCheck("tokenizer", "different" if found else "same", message, tuple(found))
    if taken:
        yield ProveCheck(_PRE, "not-checked", taken)


def _vocabularies(a: Checkpoint, b: Checkpoint) -> tuple[Vocab, Vocab, str]:
    """Both tokenizers; and whose pre-tokenizer isn't known, which is then taken to be the other's."""
    try:
        one = _vocabulary(a, None)
    except UnsupportedError as error:
        other = _vocabulary(b, None)
        return _vocabulary(a, other.pre), other, error.message
    try:
        return one, _vocabulary(b, None), ""
    except UnsupportedError as error:
        return one, _vocabulary(b, one.pre), error.message


def has_tokenizer(model: Checkpoint) -> bool:
    """Whether a model comes with a tokenizer."""
    if model.format == "gguf":
        return "tokenizer.ggml.tokens" in model.metadata
    return not VOCABULARY_FILES.isdisjoint(model.place.names())


def _vocabulary(model: Checkpoint, pre: str | None) -> Vocab:
    if model.format == "gguf":
        return from_gguf(model.metadata)
    rules = model.family.document.tokenizer
    return from_hf(model.place.read, pre=pre, names=model.place.names(), rules=rules)
