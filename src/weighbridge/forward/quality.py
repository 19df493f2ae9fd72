"""Compares what two models predict on a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.containers.formats import LOGITS_MAGIC
from weighbridge.containers.ggml.logits import LogitsHeader
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.options import CHUNK, TextQualityOptions
from weighbridge.forward.run import ForwardPass
from weighbridge.forward.saved_logits import LogitsWriter, SavedLogits
from weighbridge.forward.scores import ChunkScores, Doubles, SampleMean, log_softmax, mean, score, through
from weighbridge.forward.texts import TextChunks, chunks_of, first_token, with_first
from weighbridge.io.location import open_source
from weighbridge.io.sink.checks import check_target
from weighbridge.io.sink.target import Sink
from weighbridge.models.borrowed_config import with_given_config
from weighbridge.models.model import OpenModel
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer.of_model import vocab_of

SCHEMA: Final = "weighbridge/text-quality/1"
#: Quantiles of the KL divergence that are listed, as llama-perplexity's.
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
#: llama-perplexity leaves smaller log-probabilities of a file out.
_LEAST: Final = -16.0


@dataclass(frozen=True, kw_only=True)
class TextQualityReport:
    """How well a reference predicts a text, and how a model's predictions differ. Only the second half of each chunk is
    scored. Shares are between 0 and 1; errors are standard errors, from the chunks' means.

    `log_ratio`: ln(perplexity / the reference's). `kl`: KL divergence in nats, with its `kl_quantiles`. `same_top`:
    share of positions with the same likeliest token. `lost`, `gained`: shares at which only the reference's, or only
    the model's, is the next token of the text. `delta_p`: change of the probability of the next token, with its
    `rms_delta_p`.
    `same_tokens`: whether the model's own tokenizer gives the same tokens; None: not checked, since it has none.
    """

    reference: str
    model: str | None
    context: int
    chunks: int
    positions: int
    vocab: int
    dropped: int
    reference_perplexity: SampleMean
    perplexity: SampleMean | None = None
    log_ratio: SampleMean | None = None
    kl: SampleMean | None = None
    kl_quantiles: dict[str, float] | None = None
    same_top: SampleMean | None = None
    lost: SampleMean | None = None
    gained: SampleMean | None = None
    delta_p: SampleMean | None = None
    rms_delta_p: SampleMean | None = None
    same_tokens: bool | None = None
    schema: str = SCHEMA


@accepting(TextQualityOptions)
def quality(
    reference: str | Path, model: str | Path | None = None, *, options: TextQualityOptions
) -> TextQualityReport:
    """Runs a model and its `reference` over a text, layer by layer, and compares their predictions.

    `reference`: a model, or the log-probabilities that llama-perplexity saved, with their tokens. Without `model`: only
    the reference's perplexity. Memory: as `imatrix`'s, and both output matrices in F32. Raises UnsupportedError for a
    family whose graph isn't computed, UsageError for models of different vocabularies.
    """
    with ExitStack() as stack:
        return _Comparison(stack, str(reference), model, options).run()


class _Comparison:
    """A reference, perhaps a model, and a text."""

    def __init__(self, stack: ExitStack, reference: str, model: str | Path | None, options: TextQualityOptions) -> None:
        self.options, self.stack, self.titles = options, stack, (reference, None if model is None else str(model))
        if options.save is not None:
            check_target(options.save, overwrite=options.overwrite, folder=False)
        self.saved: SavedLogits | None = None
        self.computed: ComputedModel | None = None
        models = iter(self._opened([reference] * (not _is_saved(reference)) + [str(model)] * (model is not None)))
        if _is_saved(reference):
            self.saved = stack.enter_context(SavedLogits(resolve_path(reference)))
            self.texts = _texts_of_file(self.saved, model, options)
        else:
            self.computed = ComputedModel(next(models))
            self.texts = chunks_of(self.computed.model, options)
        self.tokens = self.texts.tokens[: options.chunks]
        self.other = None if model is None else ComputedModel(next(models))
        self.same_tokens = None if self.other is None else _same_tokens(self.texts, self.other, options, self.saved)
        sizes = [self.vocab, *([] if self.other is None else [self.other.vocab])]
        if len({*sizes}) > 1:
            raise UsageError(f"the vocabularies have different sizes: {sizes[0]:,} and {sizes[1]:,}")

    def _opened(self, paths: Sequence[str]) -> list[OpenModel]:
        """The models, those without a config with that of the options."""
        opening = replace(self.options, config=None)
        models = [self.stack.enter_context(open_model(resolve_path(path), opening)) for path in paths]
        return with_given_config(models, self.options.config)

    @property
    def vocab(self) -> int:
        if self.saved is not None:
            return self.saved.header.vocab
        assert self.computed is not None
        return self.computed.vocab

    @property
    def first(self) -> int:
        """The first position that is scored."""
        return int(self.tokens.shape[1]) // 2

    def run(self) -> TextQualityReport:
        expected = self._expected()
        if self.other is None:
            following = self.tokens[:, self.first + 1 :]
            known = [p[np.arange(len(f)), f] for p, f in zip(expected, following, strict=True)]
            return self._report(_perplexity(known), [])
        own = first_token(vocab_of(self.other.model)) if self.saved is not None else self.texts.first
        least = _LEAST if self.saved is not None else -math.inf
        scores = [
            score(p, logits, row[self.first + 1 :], least)
            for p, logits, row in zip(expected, self._logits(self.other, own, 1), self.tokens, strict=True)
        ]
        return self._report(_perplexity([s.reference for s in scores]), scores)

    def _expected(self) -> Iterator[Doubles]:
        """The reference's log-probabilities by chunk, which are also saved."""
        if self.saved is not None:
            yield from map(self.saved.chunk, range(len(self.tokens)))
            return
        assert self.computed is not None
        logits = map(log_softmax, self._logits(self.computed, self.texts.first, 0))
        path = self.options.save
        if path is None:
            yield from logits
            return
        size = LogitsHeader(self.tokens.shape[1], self.vocab, len(self.tokens)).nbytes
        with Sink(path, folder=False, size=size, overwrite=self.options.overwrite) as sink:
            writer = LogitsWriter(sink, self.tokens, self.vocab)
            for values in logits:
                writer.add(values)
                yield values

    def _logits(self, of: ComputedModel, first: int | None, number: int) -> Iterator[np.ndarray]:
        """A model's logits by chunk. The last position has no next token."""
        layers = of.graph.layers

        def step(done: int, total: int) -> None:
            if self.options.progress is not None:
                self.options.progress(number * layers + done, (number + 1) * layers, f"layer {done}")

        forward = ForwardPass(of.provider, of.graph)
        with forward.hidden(with_first(self.tokens, first), step) as states:
            for logits in forward.logits(states, self.first):
                yield logits[:-1]

    def _report(self, reference: SampleMean, scores: list[ChunkScores]) -> TextQualityReport:
        positions = len(self.tokens) * (self.tokens.shape[1] - 1 - self.first)
        more = _compared(scores) if scores else {}
        return TextQualityReport(
            reference=self.titles[0], model=self.titles[1], context=self.tokens.shape[1], chunks=len(self.tokens),
            positions=positions, vocab=self.vocab, dropped=self.texts.dropped, reference_perplexity=reference,
            same_tokens=self.same_tokens, **more,
        )  # fmt: skip


def _is_saved(path: str) -> bool:
    place = Path(path)
    if not place.is_file():
        return False
    with open_source(place) as source:
        return source.head(len(LOGITS_MAGIC)) == LOGITS_MAGIC


def _texts_of_file(saved: SavedLogits, model: object, options: TextQualityOptions) -> TextChunks:
    """The tokens that a file holds. Raises UsageError for options that would name others."""
    given = {
        "--text": bool(options.text), "--field": options.field is not None, "--chat": options.chat,
        "--parse-special": options.parse_special, "--save": options.save is not None,
        "--context": options.context not in (CHUNK, saved.header.context),
    }  # fmt: skip
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError(f"{name} doesn't apply to saved log-probabilities", hint="the file has its tokens")
    return TextChunks(saved.tokens, None)


def _same_tokens(
    texts: TextChunks, other: ComputedModel, options: TextQualityOptions, saved: SavedLogits | None
) -> bool | None:
    """Raises UsageError if the other model's tokenizer gives other tokens; None if that can't be checked."""
    if saved is not None:
        return None
    try:
        theirs = chunks_of(other.model, options)
    except (UnsupportedError, FormatError):
        return None
    if theirs.tokens.shape == texts.tokens.shape and np.array_equal(theirs.ids, texts.ids):
        return True
    raise UsageError("the two models' tokenizers give different tokens for this text",
                     hint="compare perplexities of the same text by one run each")  # fmt: skip


def _perplexity(known: list[Doubles]) -> SampleMean:
    """Of the log-probabilities of the tokens that follow, by chunk."""
    loss = mean([-chunk for chunk in known])
    value = math.exp(loss.value)
    return through(loss, value, value)


def _compared(scores: list[ChunkScores]) -> dict[str, Any]:
    change = [np.exp(s.model) - np.exp(s.reference) for s in scores]
    power = mean([c**2 for c in change])
    rms = math.sqrt(power.value)
    values = np.concatenate([s.kl for s in scores])
    return {
        "perplexity": _perplexity([s.model for s in scores]),
        "log_ratio": mean([s.reference - s.model for s in scores]),
        "kl": mean([s.kl for s in scores]),
        "kl_quantiles": {f"{q:g}": float(np.quantile(values, q)) for q in QUANTILES},
        "same_top": mean([s.same for s in scores]),
        "lost": mean([s.hits & ~s.model_hits for s in scores]),
        "gained": mean([~s.hits & s.model_hits for s in scores]),
        "delta_p": mean(change),
        "rms_delta_p": through(power, rms, 0.5 / rms if rms else 0.0),
    }
