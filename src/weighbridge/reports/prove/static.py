"""Checks that settings and tokenizer mean the same to the programs that load them. Reads headers and small files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.models.clients import MLX_VLM, TRANSFORMERS, client_of, loads, packaging
from weighbridge.models.config import settings
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import with_tokenizer_keys
from weighbridge.models.config.reranker import pooling_of
from weighbridge.models.tied_copies import copied_names
from weighbridge.models.tokenizer import Vocab, from_gguf, from_hf, to_gguf, with_codes
from weighbridge.models.tokenizer.compare import vocab_differences
from weighbridge.models.tokenizer.hf.read import VOCABULARY_FILES
from weighbridge.reports.prove.model import ProveCheck, Verdict
from weighbridge.reports.prove.tower_settings import config_differences

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel

_FACTORS: Final = "factors"
_PRE: Final = "pre-tokenizer"
_SETTINGS: Final = "tokenizer_config.json"
_SHOWN: Final = 60  # characters of a value


def checks(a: OpenModel, b: OpenModel) -> list[ProveCheck]:
    """Returns the checks of settings and tokenizer, except of what neither model has."""
    if a.makes_pictures and b.makes_pictures:
        return [ProveCheck("settings", "not-checked", "the settings of image models aren't compared")]
    failures = []
    source, target = loads(a), loads(b)
    weights_only = a.format != "gguf" and not a.config  # no program is known that runs them
    for model, loading in ((a, source), (b, target)):
        if loading.accepts is False:
            unknown = loading is source or source.accepts is False or packaging(model) is not None or weights_only
            verdict: Verdict = "not-checked" if unknown else "different"
            message = f"{loading.client} won't load {model.place.path}: {loading.why}"
            failures.append(ProveCheck("loads", verdict, message))
    return [*failures, *_settings(a, b), *_tokenizer(a, b)]


def settled(checks: list[ProveCheck], folded: bool | None = None) -> list[ProveCheck]:
    """Returns the checks after tensors and the tokens of texts were compared. `folded`: whether tensors are the same
    only with the config's factors multiplied in, so that other factors don't count; None if tensors weren't
    compared. If the tokens are equal, the pre-tokenizer's name needs no check; if not, the tokenizers differ even if
    their tables are equal."""
    if folded is not None:
        verdict: Verdict = "same" if folded else "different"
        because = "; the weights have them" if folded else "; the weights don't have them"
        checks = [
            replace(check, verdict=verdict, message=f"{check.message}{because}") if check.name == _FACTORS else check
            for check in checks
        ]
    tokens = next((check.verdict for check in checks if check.name == "tokens"), None)
    if tokens == "same":
        return [check for check in checks if check.name != _PRE]
    return [
        replace(check, verdict="different", message=f"{check.message} are the same, but texts become other tokens")
        if tokens == "different" and check.name == "tokenizer" and check.verdict == "same"
        else check
        for check in checks
    ]


# ------------------------------------------------------------------------------------------------ settings


def _settings(a: OpenModel, b: OpenModel) -> Iterator[ProveCheck]:
    stated, count = list[str](), 0
    for_mlx_vlm = MLX_VLM in (client_of(a), client_of(b)) and "gguf" not in (a.format, b.format)
    try:
        if for_mlx_vlm:
            stated, count = config_differences(a, b)
            if not (a.described or b.described):
                message = (
                    f"{len(stated)} differ" if stated else f"{plural(count, 'setting')} mean the same to {MLX_VLM}"
                )
                yield ProveCheck("settings", "different" if stated else "same", message, tuple(stated))
                return
        source, target = _loader_settings(a, b), _loader_settings(b, a)
    except WeighbridgeError as error:
        listed = b.metadata.items() if b.format == "gguf" else ()
        keys = tuple(f"{key}: {_short(str(value))}" for key, value in listed)
        yield ProveCheck("settings", "not-checked", f"not compared: {error.message}", keys)
        return
    every = settings.differences(source, target)
    lost = [loss for loss in folder_losses(a, b) if not any(d.named_in(loss) for d in every)]
    factors = [d for d in every if d.setting.partition("[")[0] in _factors(a, b)]
    differences = [d for d in every if d not in factors]
    details = [*(_difference_text(difference, source) for difference in differences), *lost]
    details += [text for text in stated if not any(text.partition(": ")[0].endswith(d.source) for d in differences)]
    if details:
        yield ProveCheck("settings", "different", f"{len(details)} differ", tuple(details))
    elif MLX_VLM in (client_of(a), client_of(b)) and not for_mlx_vlm:
        message = "both state the same, but mlx-vlm reads the folder: compare it with the folder that it was made of"
        yield ProveCheck("settings", "not-checked", message)
    else:
        number = count if for_mlx_vlm else len(source.values) - len(factors)
        message = f"{plural(number, 'setting')} mean the same to {target.reader}"
        yield ProveCheck("settings", "same", message)
    if factors:
        message = f"{plural(len(factors), 'other factor')}, which weights may have in them"
        yield ProveCheck(_FACTORS, "not-checked", message, tuple(_difference_text(d, source) for d in factors))


def _factors(a: OpenModel, b: OpenModel) -> frozenset[str]:
    """Returns the numbers of config.json that the weights of one of two folders may have in them."""
    with suppress(WeighbridgeError):
        if a.family.name == b.family.name:
            return frozenset(key.partition("[")[0] for key in a.family.folded)
    return frozenset()


def _difference_text(difference: settings.SettingDifference, source: settings.LoaderSettings) -> str:
    texts = ("not there" if value is None else str(value) for value in (difference.a, difference.b))
    lost_words = ""
    if difference.lost:
        reason = "mlx-lm doesn't read it" if source.reader == "mlx-lm" else "the target has no place for it"
        lost_words = f" ({reason})"
    elif not source.has_place(difference.setting, difference.source):
        lost_words = " (the source has no place for it)"
    return f"{difference.source}: {' and '.join(map(_short, texts))}{lost_words}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def folder_losses(a: OpenModel, b: OpenModel) -> list[str]:
    """Returns the settings of a folder that a GGUF can't hold, as listed by a conversion; none for two models of the
    same kind."""
    if (a.format == "gguf") == (b.format == "gguf"):
        return []
    folder = b if a.format == "gguf" else a
    return config_losses(folder.config, folder.family)


def _loader_settings(model: OpenModel, other: OpenModel) -> settings.LoaderSettings:
    """Returns the settings that the model's program reads. A GGUF's copy of a tensor that the other model ties isn't
    one: the tensors are compared."""
    reader = client_of(model)
    if reader == "llama.cpp":
        copied = {
            name for role, name, _ in copied_names(model.family)
            if other.format != "gguf" and (role, ()) not in other.roles
        }  # fmt: skip
        names = {name: entry for name, entry in model.index.by_name.items() if name not in copied}
        return settings.of_gguf(model.metadata, model.family, names, model.vector)
    if not model.config:
        raise UnsupportedError(f"{model.place.path} has no config.json")
    if reader in (TRANSFORMERS, MLX_VLM):
        # A copy of a folder may have another name.
        return settings.of_config(model.config, model.family, pooling_of(model, by_folder=other.format == "gguf"))
    mlx_settings = settings.of_mlx(model.config, model.family)
    if mlx_settings is None:
        raise UnsupportedError(f"mlx-lm has no class for {model.config.get('model_type')}")
    return mlx_settings


# ------------------------------------------------------------------------------------------------ tokenizer


def _tokenizer(a: OpenModel, b: OpenModel) -> Iterator[ProveCheck]:
    if not (has_tokenizer(a) or has_tokenizer(b)):
        return
    if not (has_tokenizer(a) and has_tokenizer(b)):
        without = b if has_tokenizer(a) else a
        yield ProveCheck("tokenizer", "different", f"{without.place.path} has no tokenizer")
        return
    try:
        source, target, assumed = _vocabularies(a, b)
    except WeighbridgeError as error:
        yield ProveCheck("tokenizer", "not-checked", f"not compared: {error.message}")
        return
    folders = (m.place for m in (a, b) if m.format != "gguf")
    incomplete = next((str(place.path) for place in folders if _SETTINGS not in place.names()), "")
    yield _compare_vocabularies(source, target, incomplete)
    if assumed:
        yield ProveCheck(_PRE, "not-checked", assumed)


def _compare_vocabularies(source: Vocab, target: Vocab, incomplete: str) -> ProveCheck:
    """Checks two vocabularies. `incomplete`: a folder without tokenizer_config.json."""
    tables, special = vocab_differences(source, target)
    lost = tuple(dict.fromkeys((*source.losses, *target.losses)))
    if not tables and not special:
        rare = ", except in rare texts" if lost else ""
        return ProveCheck("tokenizer", "same", f"{plural(len(source), 'token')} and their rules{rare}", lost)
    details = (*tables, *special, *lost)
    if incomplete and not tables:
        message = f"{incomplete} has no {_SETTINGS}, which names special tokens and the chat template: add it"
        return ProveCheck("tokenizer", "not-checked", message, details)
    return ProveCheck("tokenizer", "different", plural(len(details), "difference"), details)


def _vocabularies(a: OpenModel, b: OpenModel) -> tuple[Vocab, Vocab, str]:
    """Returns both tokenizers. If a pre-tokenizer is unknown, assumes the other's, and returns the reason."""
    coded = "gguf" in (a.format, b.format)
    try:
        source = _vocabulary(a, None, coded)
    except UnsupportedError as error:
        target = _vocabulary(b, None, coded)
        return _vocabulary(a, target.pre, coded), target, error.message
    try:
        return source, _vocabulary(b, None, coded), ""
    except UnsupportedError as error:
        return source, _vocabulary(b, source.pre, coded), error.message


def has_tokenizer(model: OpenModel) -> bool:
    """Returns whether a model includes a tokenizer."""
    if model.format == "gguf":
        return "tokenizer.ggml.tokens" in model.metadata
    return not VOCABULARY_FILES.isdisjoint(model.place.names())


def _vocabulary(model: OpenModel, pre: str | None, coded: bool) -> Vocab:
    """Returns a model's tokenizer; `coded`: a folder's as a GGUF has it, with the codes of a model that speaks."""
    if model.format == "gguf":
        return from_gguf(model.metadata)
    rules = model.family.document.tokenizer
    vocab = from_hf(model.place.read, pre=pre, names=model.place.names(), rules=rules)
    if not (coded and rules is not None and rules.codes):
        return vocab
    vocab = with_codes(vocab, model.sizes.facts[rules.codes])
    keys = with_tokenizer_keys(to_gguf(vocab), model.config, model.family)
    return replace(from_gguf({key: kv.value for key, kv in keys.items()}), losses=vocab.losses)
