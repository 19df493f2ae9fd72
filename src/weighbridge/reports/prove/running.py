"""Compares the results that two models compute in their runtimes on the same tokens."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.containers.formats import PYTORCH
from weighbridge.io.location import RemotePath, open_source
from weighbridge.models.clients import MLX_VLM, client_of, loads
from weighbridge.models.config import settings
from weighbridge.models.joined_folder import linked_folder
from weighbridge.models.model import open_weights
from weighbridge.reports.prove import predictions
from weighbridge.reports.prove.bounds import RunBounds
from weighbridge.reports.prove.model import Progress, ProveCheck, Verdict
from weighbridge.reports.prove.static import folder_losses, has_tokenizer
from weighbridge.reports.prove.texts import HARD, PASSAGE

if TYPE_CHECKING:
    from weighbridge.adapters.runtimes.process import RuntimeProcess
    from weighbridge.models.model import OpenModel

SHORTEST, LONGEST = 16, 4096  # positions to compare
_GREEDY: Final = 16  # tokens of a continuation
_PROMPT: Final = 32  # tokens before it
_CHUNKS: Final = 8  # of the text for the perplexity
_TEXT: Final = 1 << 20  # bytes read of this text
_GENERATES: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_NEAR: Final = math.sqrt(
    8
)  # by Pinsker's inequality: twice the probability that a divergence may move between two tokens
_SMALLEST_CONTEXT: Final = 256  # llama.cpp's, in tokens
_TIE: Final = 10.0  # times the mean divergence: two tokens are about equally likely


class Amounts(NamedTuple):
    """The positions to compare, and a file for the perplexity."""

    tokens: int
    text: str | os.PathLike[str] | None


class ModelPair(NamedTuple):
    """Both models, which are loaded on first use. `generates`: they return logits, otherwise an embedding. `least`: the
    number of tokens with which both use the same factors of longrope. `graph`: deviations of one program by its rules.
    """

    a: RuntimeProcess
    b: RuntimeProcess
    generates: bool
    pair: bool  # an encoder with a decoder
    vocabulary: int
    length: int
    least: int = 0
    graph: tuple[str, ...] = ()


def checks(
    a: OpenModel, b: OpenModel, bounds: RunBounds, amounts: Amounts, progress: Progress | None = None
) -> Iterator[ProveCheck]:
    """Yields the checks in order."""
    if reason := _obstacle(a) or _obstacle(b):
        yield ProveCheck("run", "not-checked", reason)
        return
    from weighbridge.adapters.runtimes.process import RuntimeProcess

    with ExitStack() as stack:
        runtimes = []
        for model in (a, b):  # llama.cpp opens a GGUF or the first of its shards, the others a folder
            path = model.place.weights[0] if model.format == "gguf" else model.place.folder
            if model.borrowed is not None:
                path = stack.enter_context(linked_folder(model.place, model.borrowed))
            runtimes.append(stack.enter_context(RuntimeProcess(client_of(model), path, _overruled(model))))
        try:
            models = _pair(a, b, *runtimes)
        except WeighbridgeError as error:
            yield ProveCheck("run", "not-checked", error.message)
            return
        steps = [_tokens, _predictions if models.generates else _embedding]
        steps += [_greedy] if models.generates and not models.pair else []
        steps += [_perplexity] if amounts.text is not None else []
        tokenized = has_tokenizer(a) and has_tokenizer(b)
        for number, step in enumerate(steps):
            name = step.__name__.strip("_")
            if progress is not None:
                progress(number, len(steps), name)
            if step is not _tokens or tokenized:
                try:
                    yield step(models, bounds, amounts, tokenized)
                except UnsupportedError as error:
                    yield ProveCheck(name, "not-checked", error.message)


def notes(*models: OpenModel) -> Iterator[str]:
    """Yields the settings that a runtime overrules, but that were applied in the comparison."""
    for model in models:
        for key, value in _overruled(model).items():
            why = model.family.document.overruled[key].why
            yield (
                f"{client_of(model)} overrules config.json's {key} = {value!r}: it {why}. "
                "The comparison used the value in config.json"
            )


def _overruled(model: OpenModel) -> dict[str, Any]:
    """Returns the settings in config.json that its runtime overrules."""
    if client_of(model) != "transformers" or not model.described or model.makes_pictures:
        return {}
    rows = {key: (row.value, model.config.get(key)) for key, row in model.family.document.overruled.items()}
    return {key: setting for key, (value, setting) in rows.items() if setting not in (None, value)}


def _obstacle(model: OpenModel) -> str:
    """Returns why no runtime can run the model here; empty if one can."""
    from weighbridge.adapters.runtimes.process import missing

    if model.makes_pictures:
        return f"{model.place.path} makes pictures, which no runtime here does: --no-run compares the tensors"
    reader = client_of(model)
    if reader == MLX_VLM:
        return f"{model.place.path} is for mlx-vlm, which isn't run: --no-run compares settings and tensors"
    if absent := missing(reader):
        return f'{reader} isn\'t installed ({", ".join(absent)}): pip install "weighbridge[prove]"'
    if isinstance(model.place.folder if model.borrowed is None else model.place.weights[0], RemotePath):
        return f"{model.place.path} isn't on this machine: wb fetch it first"
    if model.place.merged:
        return f"{reader} would run {model.place.path} without its adapter: convert it first"
    if reader != "llama.cpp" and _as_trained(model):
        return f"{model.place.path} is a training checkpoint, which {reader} can't run: wb convert it to a folder first"
    if reader != "llama.cpp" and not model.config:
        return f"{model.place.path} has no config.json, without which {reader} can't run it"
    return loads(model).why


def _as_trained(model: OpenModel) -> bool:
    """Whether the files of a model have it in parts, or under other names, as trainers write them."""
    if model.place.parts or model.left_out or model.format not in PYTORCH:
        return model.place.parts or bool(model.left_out)
    with open_weights(model.place.path) as stored:
        return stored.index.by_name.keys() != model.index.by_name.keys()


def _pair(a: OpenModel, b: OpenModel, runtime_a: RuntimeProcess, runtime_b: RuntimeProcess) -> ModelPair:
    folder = b if a.format == "gguf" else a
    names = folder.config.get("architectures") or [""]
    sizes = folder.sizes
    lengths = [m.config.get(key) for m in (a, b) for key in ("max_position_embeddings", "n_positions", "n_ctx")]
    if folder.config:  # some models have more rows for positions than a text can have tokens
        stated = settings.of_config(folder.config, folder.family).values
        lengths.append(stated.get(f"{folder.family.gguf}.context_length"))
    # llama.cpp uses longrope's long factors if its context exceeds the model's original one, transformers if the text
    # does. With a longer text both do.
    rope = folder.family.effective(folder.config).get("rope", {})
    original = rope.get("original_max_position_embeddings")
    short = rope.get("rope_type") == "longrope" and isinstance(original, int) and original < _SMALLEST_CONTEXT
    return ModelPair(
        runtime_a,
        runtime_b,
        str(names[0]).endswith(_GENERATES),
        bool(folder.config.get("is_encoder_decoder")) or "t5" in folder.family.name,
        sizes["V"],
        min((n for n in lengths if isinstance(n, int) and n > 0), default=LONGEST),
        int(original) + 1 if short else 0,
        tuple(folder_losses(a, b)),
    )


# ------------------------------------------------------------------------------------------------ the checks


def _tokens(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """Compares the ids of every hard text."""
    differences = []
    for text in (*HARD, PASSAGE):
        ids_a, ids_b = models.a.tokenize(text), models.b.tokenize(text)
        if ids_a != ids_b:
            pairs = enumerate(zip(ids_a, ids_b, strict=False))
            at = next((i for i, (x, y) in pairs if x != y), min(len(ids_a), len(ids_b)))
            differences.append(f"{text[:40]!r}: from token {at}: {ids_a[at : at + 4]} and {ids_b[at : at + 4]}")
    texts = plural(len(HARD) + 1, "text")
    if differences:
        message = f"{len(differences)} of {texts} become other tokens"
        return ProveCheck("tokens", "different", message, tuple(differences))
    return ProveCheck("tokens", "same", f"{texts} become the same tokens")


def _ids(models: ModelPair, amounts: Amounts, tokenized: bool) -> list[int]:
    """Returns the input: a passage as the source tokenizes it, or ids from the whole vocabulary."""
    count = min(max(amounts.tokens, models.least), models.length)
    if tokenized:
        ids = models.a.tokenize(PASSAGE)
        while len(ids) < count:
            ids += ids[1:] or ids
        return ids[:count]
    first = min(5, models.vocabulary - 1)  # after special tokens
    return [first + 7919 * i % (models.vocabulary - first) for i in range(count)]


def _predictions(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """Compares the next token after every position."""
    ids = _ids(models, amounts, tokenized)
    answer = ids[::-2] if models.pair else []
    result = predictions.compare_logits(models.a.logits(ids, answer), models.b.logits(ids, answer))
    mean, worst = float(result.divergence.mean()), int(result.divergence.argmax())
    agreed = float((result.gap <= _NEAR * math.sqrt(bounds.divergence)).mean())
    measures = {
        "divergence": mean,
        "largest_divergence": float(result.divergence[worst]),
        "worst_position": float(worst),
        "agreement": result.agreement,
        "agreement_or_tie": agreed,
    }
    same = mean <= bounds.divergence and agreed >= bounds.agreement
    message = (
        f"KL {mean:.2g} (up to {bounds.divergence:.2g}), the same token at {result.agreement:.1%} of "
        f"{plural(len(result.divergence), 'position')}"
    )
    limits = {"divergence": bounds.divergence, "agreement_or_tie": bounds.agreement}
    return ProveCheck("predictions", _verdict(same), message, () if same else models.graph, measures, limits)


def _embedding(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """Compares the pooled embedding, or the output of a classifier."""
    ids = _ids(models, amounts, tokenized)
    distance = predictions.cosine_distance(models.a.embedding(ids), models.b.embedding(ids))
    same = distance <= bounds.cosine
    message = f"1 - cosine {distance:.2g} (up to {bounds.cosine:.2g}) on {plural(len(ids), 'token')}"
    measures, limits = {"cosine_distance": distance}, {"cosine_distance": bounds.cosine}
    return ProveCheck("embedding", _verdict(same), message, () if same else models.graph, measures, limits)


def _greedy(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """Compares the most likely continuation. At the first difference, both must find the two tokens about equally
    likely."""
    ids = _ids(models, amounts, tokenized)[: max(_PROMPT, models.least)]
    for number in range(min(_GREEDY, max(models.length - len(ids), 1))):
        logits_a, logits_b = models.a.logits(ids)[-1:], models.b.logits(ids)[-1:]
        result = predictions.compare_logits(logits_a, logits_b)
        if result.agreement < 1:
            divergence = float(result.divergence[0])
            near = divergence <= _TIE * bounds.divergence
            tie = "about as likely to both" if near else f"KL {divergence:.2g}"
            message = f"{number} tokens are the same, then two tokens {tie}"
            return ProveCheck("greedy", _verdict(near), message, () if near else models.graph)
        ids = [*ids, int(logits_a.argmax())]
    return ProveCheck("greedy", "same", f"{_GREEDY} tokens are the same")


def _perplexity(models: ModelPair, bounds: RunBounds, amounts: Amounts, tokenized: bool) -> ProveCheck:
    """Compares the perplexity of a text, in chunks with as many tokens as the other checks."""
    if not models.generates or models.pair or not tokenized:
        raise UnsupportedError("perplexity needs models that continue a text, with a tokenizer")
    with open_source(str(amounts.text)) as source:
        text = source.read(0, min(source.size, _TEXT)).decode("utf-8", "replace")
    ids = models.a.tokenize(text)
    size = min(amounts.tokens, models.length)
    chunks = [ids[i : i + size] for i in range(0, len(ids), size)][:_CHUNKS]
    chunks = [chunk for chunk in chunks if len(chunk) >= min(SHORTEST, len(ids)) and len(chunk) > 1]
    if not chunks:
        raise UnsupportedError(f"{amounts.text} is too short")
    count = sum(map(len, chunks))
    mean_a, mean_b = (
        sum(predictions.surprise(m.logits(chunk), chunk) * len(chunk) for chunk in chunks) / count
        for m in (models.a, models.b)
    )
    measures = {name: math.exp(x) if x < 700 else math.inf for name, x in (("source", mean_a), ("target", mean_b))}
    same = abs(mean_b - mean_a) <= bounds.divergence
    message = f"{measures['source']:.4g} and {measures['target']:.4g} on {plural(count, 'token')}"
    return ProveCheck("perplexity", _verdict(same), message, (), measures, {"log_ratio": bounds.divergence})


def _verdict(same: bool) -> Verdict:
    return "same" if same else "different"
