"""What both models compute, each in its own runtime, on the same tokens."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.io.location import RemotePath, open_source
from weighbridge.models.config.mapping import config_losses
from weighbridge.reports.prove import predictions
from weighbridge.reports.prove.bounds import RunBounds
from weighbridge.reports.prove.model import Progress, ProveCheck, Verdict
from weighbridge.reports.prove.static import has_tokenizer, reader_of
from weighbridge.reports.prove.texts import HARD, PASSAGE

if TYPE_CHECKING:
    from weighbridge.adapters.runtimes.process import RuntimeProcess
    from weighbridge.models.checkpoint import Checkpoint

SHORTEST, LONGEST = 16, 4096  # positions that are compared
_GREEDY: Final = 16  # tokens of a continuation
_PROMPT: Final = 32  # tokens before it
_CHUNKS: Final = 8  # of the text whose perplexity is measured
_TEXT: Final = 1 << 20  # bytes of it that are read
_GENERATES: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_NEAR: Final = math.sqrt(8)  # by Pinsker's inequality: what a divergence may move between two tokens, twice
_SMALLEST_CONTEXT: Final = 256  # llama.cpp's, in tokens
_TIE: Final = 10.0  # times the mean divergence: two tokens that are about as likely


class Amounts(NamedTuple):
    """How much is compared: positions, and a file for the perplexity."""

    tokens: int
    text: str | os.PathLike[str] | None


class ModelPair(NamedTuple):
    """Both models, loaded when they are first asked. `generates`: they give logits and no embedding."""

    a: RuntimeProcess
    b: RuntimeProcess
    generates: bool
    pair: bool  # an encoder with a decoder
    vocabulary: int
    length: int
    least: int = 0  # tokens of a text with which both take the same factors of longrope
    graph: tuple[str, ...] = ()  # what one of the programs computes otherwise by its own rules


def checks(
    a: Checkpoint, b: Checkpoint, bounds: RunBounds, amounts: Amounts, progress: Progress | None = None
) -> Iterator[ProveCheck]:
    """The checks in order."""
    if why := _obstacle(a) or _obstacle(b):
        yield ProveCheck("run", "not-checked", why)
        return
    from weighbridge.adapters.runtimes.process import RuntimeProcess

    with ExitStack() as stack:
        runtimes = [RuntimeProcess(reader_of(m), _path(m), _overruled(m)) for m in (a, b)]
        one, other = map(stack.enter_context, runtimes)
        try:
            models = _pair(a, b, one, other)
        except WeighbridgeError as error:
            yield ProveCheck("run", "not-checked", error.message)
            return
        steps = [_tokens, _predictions if models.generates else _embedding]
        steps += [_greedy] if models.generates and not models.pair else []
        steps += [_perplexity] if amounts.text is not None else []
        tokenized = has_tokenizer(a) and has_tokenizer(b)
        for number, step in enumerate(steps):
            if progress is not None:
                progress(number, len(steps), step.__name__.strip("_"))
            if step is not _tokens or tokenized:
                yield _guarded(step.__name__.strip("_"), partial(step, models, bounds, amounts, tokenized))


def notes(*models: Checkpoint) -> Iterator[str]:
    """Which settings a runtime overrules, and that it was run with them."""
    for model in models:
        for key, value in _overruled(model).items():
            why = model.family.document.overruled[key].why
            yield (
                f"{reader_of(model)} overrules config.json's {key} = {value!r}: it {why}. "
                "It was run as config.json says"
            )


def _overruled(model: Checkpoint) -> dict[str, Any]:
    """The settings of config.json that its runtime overrules."""
    if reader_of(model) != "transformers" or not model.config:
        return {}
    rows = {key: (row.value, model.config.get(key)) for key, row in model.family.document.overruled.items()}
    return {key: own for key, (value, own) in rows.items() if own not in (None, value)}


def _path(model: Checkpoint) -> Path:
    """What a runtime opens: a GGUF, or the first of its set; a folder."""
    return model.place.weights[0] if model.format == "gguf" else model.place.folder


def _obstacle(model: Checkpoint) -> str:
    """Why no runtime can run the model here; "" where one can."""
    from weighbridge.adapters.runtimes.process import missing

    reader = reader_of(model)
    if absent := missing(reader):
        return f'{reader} isn\'t installed ({", ".join(absent)}): pip install "weighbridge[prove]"'
    if isinstance(model.place.folder, RemotePath):
        return f"{model.place.path} isn't on this machine: wb fetch it first"
    if model.place.merged:
        return f"{reader} would run {model.place.path} without its adapter: convert it first"
    if reader != "llama.cpp" and not model.config:
        return f"{model.place.path} has no config.json, without which {reader} can't run it"
    return ""


def _pair(a: Checkpoint, b: Checkpoint, one: RuntimeProcess, other: RuntimeProcess) -> ModelPair:
    folder = b if a.format == "gguf" else a
    names = folder.config.get("architectures") or [""]
    sizes = folder.sizes
    lengths = (m.config.get(key) for m in (a, b) for key in ("max_position_embeddings", "n_positions", "n_ctx"))
    length = min((n for n in lengths if isinstance(n, int) and n > 0), default=LONGEST)
    generates = str(names[0]).endswith(_GENERATES)
    return ModelPair(
        one,
        other,
        generates,
        bool(folder.config.get("is_encoder_decoder")) or "t5" in folder.family.name,
        sizes["V"],
        length,
        _least(folder),
        tuple(config_losses(folder.config, folder.family)) if a.format != b.format else (),
    )


def _least(folder: Checkpoint) -> int:
    """llama.cpp takes longrope's long factors where its context is longer than the model's original one, transformers
    where the text is: with a text that is longer both do."""
    rope = folder.family.effective(folder.config).get("rope", {})
    original = rope.get("original_max_position_embeddings")
    short = rope.get("rope_type") == "longrope" and isinstance(original, int) and original < _SMALLEST_CONTEXT
    return int(original) + 1 if short else 0


def _guarded(name: str, step: Callable[[], ProveCheck]) -> ProveCheck:
    """The check, or why it couldn't be made."""
    try:
        return step()
    except UnsupportedError as error:
        return ProveCheck(name, "not-checked", error.message)


# ------------------------------------------------------------------------------------------------ the checks


def _tokens(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """The ids of every hard text."""
    wrong = []
    for text in (*HARD, PASSAGE):
        one, other = models.a.tokenize(text), models.b.tokenize(text)
        if one != other:
            first = next(
                (i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other))
            )
            wrong.append(f"{text[:40]!r}: from token {first}: {one[first : first + 4]} and {other[first : first + 4]}")
    count = len(HARD) + 1
    if wrong:
        return ProveCheck("tokens", "different", f"{len(wrong)} of {count} texts become other tokens", tuple(wrong))
    return ProveCheck("tokens", "same", f"{count} texts become the same tokens")


def _ids(models: ModelPair, amounts: Amounts, tokenized: bool) -> list[int]:
    """What is computed on: a passage as the source tokenizes it, or ids all over the vocabulary."""
    wanted = min(max(amounts.tokens, models.least), models.length)
    if tokenized:
        found = models.a.tokenize(PASSAGE)
        while len(found) < wanted:
            found += found[1:] or found
        return found[:wanted]
    first = min(5, models.vocabulary - 1)  # behind special tokens
    return [first + 7919 * i % (models.vocabulary - first) for i in range(wanted)]


def _predictions(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """The next token after every position."""
    ids = _ids(models, amounts, tokenized)
    answer = ids[::-2] if models.pair else []
    found = predictions.compare_logits(models.a.logits(ids, answer), models.b.logits(ids, answer))
    mean, worst = float(found.divergence.mean()), int(found.divergence.argmax())
    agreed = float((found.gap <= _NEAR * math.sqrt(bounds.divergence)).mean())
    measures = {
        "divergence": mean,
        "largest_divergence": float(found.divergence[worst]),
        "worst_position": float(worst),
        "agreement": found.agreement,
        "agreement_or_tie": agreed,
    }
    fine = mean <= bounds.divergence and agreed >= bounds.agreement
    message = (
        f"KL {mean:.2g} (up to {bounds.divergence:.2g}), the same token at {found.agreement:.1%} of "
        f"{len(found.divergence)} positions"
    )
    limits = {"divergence": bounds.divergence, "agreement_or_tie": bounds.agreement}
    return ProveCheck("predictions", _verdict(fine), message, () if fine else models.graph, measures, limits)


def _embedding(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """The pooled embedding, or a classifier's numbers."""
    ids = _ids(models, amounts, tokenized)
    distance = predictions.cosine_distance(models.a.embedding(ids), models.b.embedding(ids))
    message = f"1 - cosine {distance:.2g} (up to {bounds.cosine:.2g}) on {len(ids)} tokens"
    verdict = _verdict(distance <= bounds.cosine)
    return ProveCheck(
        "embedding",
        verdict,
        message,
        () if verdict == "same" else models.graph,
        {"cosine_distance": distance},
        {"cosine_distance": bounds.cosine},
    )


def _greedy(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """The most likely continuation. Where it parts, both must hold the two tokens for about as likely."""
    ids = _ids(models, amounts, tokenized)[: max(_PROMPT, models.least)]
    for number in range(min(_GREEDY, max(models.length - len(ids), 1))):
        one, other = models.a.logits(ids)[-1:], models.b.logits(ids)[-1:]
        found = predictions.compare_logits(one, other)
        if found.agreement < 1:
            near = float(found.divergence[0]) <= _TIE * bounds.divergence
            words = "about as likely to both" if near else f"KL {float(found.divergence[0]):.2g}"
            message = f"{number} tokens are the same, then two tokens {words}"
            return ProveCheck("greedy", _verdict(near), message, () if near else models.graph)
        ids = [*ids, int(one.argmax())]
    return ProveCheck("greedy", "same", f"{_GREEDY} tokens are the same")


def _perplexity(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """The perplexity of a text, in chunks of as many tokens as are compared."""
    if not models.generates or models.pair or not tokenized:
        raise UnsupportedError("only models that continue a text, with a tokenizer, have a perplexity")
    ids = models.a.tokenize(_read(str(amounts.text)))
    size = min(amounts.tokens, models.length)
    chunks = [ids[i : i + size] for i in range(0, len(ids), size)][:_CHUNKS]
    chunks = [chunk for chunk in chunks if len(chunk) >= min(SHORTEST, len(ids)) and len(chunk) > 1]
    if not chunks:
        raise UnsupportedError(f"{amounts.text} is too short")
    one, other = (
        sum(predictions.surprise(m.logits(chunk), chunk) * len(chunk) for chunk in chunks) / sum(map(len, chunks))
        for m in (models.a, models.b)
    )
    measures = {"source": _exp(one), "target": _exp(other)}
    verdict = _verdict(abs(other - one) <= bounds.divergence)
    message = f"{measures['source']:.4g} and {measures['target']:.4g} on {sum(map(len, chunks)):,} tokens"
    return ProveCheck("perplexity", verdict, message, (), measures, {"log_ratio": bounds.divergence})


def _verdict(fine: bool) -> Verdict:
    return "same" if fine else "different"


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _read(path: str) -> str:
    with open_source(path) as source:
        return source.read(0, min(source.size, _TEXT)).decode("utf-8", "replace")
