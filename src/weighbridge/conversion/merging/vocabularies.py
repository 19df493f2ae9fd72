"""Vocabularies of models that are merged: equal, or rows of embeddings that meet by token, with mergekit's rules
(arcee-ai/mergekit 0.1, tokenizer/embed.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.of_model import vocab_of
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, padding
from weighbridge.tensors.merging import Combination
from weighbridge.tensors.nodes import Gather, LogicalTensor, Node, RowOrder, cast, concat, zeros
from weighbridge.tensors.nodes.merged import merged, row_mean

BASE: Final = "base"
UNION: Final = "union"


@dataclass(frozen=True)
class TokenSource:
    """The embedding of a token for models that lack it, and with `force` for all. `model`: the model that has it, None
    for zeros; `token`: that model's token or its id, None for the same token."""

    model: str | None
    token: str | int | None = None
    force: bool = False


@dataclass(frozen=True)
class TokenizerRule:
    """Whose tokens the result has. `source`: "base", "union", or a model's name. `multiple`: the number of rows is
    rounded up to it; 0 keeps the base's."""

    source: str
    tokens: Mapping[str, TokenSource] = field(default_factory=dict)
    multiple: int = 0


def read_vocabulary(model: OpenModel) -> Vocab | None:
    """The tokenizer of a model; None if it has none that can be read."""
    try:
        return vocab_of(model)
    except WeighbridgeError:
        return None


def ids_of(vocab: Vocab) -> dict[str, int]:
    """The ids of a tokenizer's tokens, without those that fill up the rows of the embedding."""
    types = vocab.types or (TokenType.NORMAL,) * len(vocab)
    filler = (n for n, kind in enumerate(types) if kind == TokenType.UNUSED and vocab.tokens[n] == padding(n))
    skipped = set(filler)
    return {str(token): n for n, token in enumerate(vocab.tokens) if n not in skipped}


def check_vocabularies(vocabularies: Mapping[str, Vocab]) -> None:
    """Raises UsageError if two models have different tokens."""
    first: tuple[str, tuple[str, ...]] | None = None
    for name, vocab in vocabularies.items():
        tokens = tuple(map(str, vocab.tokens))
        if first is None:
            first = name, tokens
        elif tokens != first[1]:
            differ = sum(a != b for a, b in zip(tokens, first[1], strict=False)) + abs(len(tokens) - len(first[1]))
            raise UsageError(
                f"{name} and {first[0]} have different vocabularies ({plural(differ, 'token')})",
                hint="--tokenizer-source union or base, or the same key in a recipe, maps tokens",
            )


class _Place(NamedTuple):
    """Where a row comes from: a row of a model, or a computed row (`model` None)."""

    model: str | None
    row: int


@dataclass(frozen=True)
class MergedVocabulary:
    """The tokens of the result. `ids`: their ids there; `rows`: the number of rows of the embeddings; `models`: the ids
    of the models' tokens, by model; `base`: the model whose embedding a token gets if other models lack it."""

    rule: TokenizerRule
    ids: Mapping[str, int]
    rows: int
    models: Mapping[str, Mapping[str, int]]
    base: str | None

    @cached_property
    def unchanged(self) -> bool:
        """Whether all models have the same tokens, so that rows match without a mapping."""
        return not self.rule.tokens and all(ids == self.ids for ids in self.models.values())

    def notes(self) -> Iterator[str]:
        """Tokens that some models lack, by where their embeddings come from."""
        for name, ids in self.models.items():
            if missing := [token for token in self.ids if token not in ids]:
                yield f"{name} lacks {plural(len(missing), 'token')} of the result, such as {missing[0]!r}"
        nowhere = [
            t for t in self.ids if t not in self.rule.tokens and not any(t in ids for ids in self.models.values())
        ]
        if nowhere:
            yield f"no model has {plural(len(nowhere), 'token')}, such as {nowhere[0]!r}: zeros"

    def embeddings(self, tensors: Mapping[str, LogicalTensor]) -> dict[str, LogicalTensor]:
        """Returns an embedding of each model with the rows of the result, F32. `tensors`: the models' embeddings, which
        take part. Raises UsageError for a token whose source isn't among them."""
        if self.unchanged and all(tensor.spec.shape[0] == self.rows for tensor in tensors.values()):
            return dict(tensors)
        width = {tensor.spec.shape[1:] for tensor in tensors.values()}
        if len(width) > 1:
            shapes = ", ".join(str(list(tensor.spec.shape)) for tensor in tensors.values())
            raise UsageError(f"embeddings of different sizes: {shapes}", hint="merge models of one size")
        return _Embeddings(self, {name: cast(tensor, F32) for name, tensor in tensors.items()}).all()


def _rows(node: Node, order: Sequence[int] | NDArray[np.int64]) -> Node:
    """Rows of a matrix, some of them several times."""
    return Gather(node.spec.with_shape(len(order), *node.spec.shape[1:]), node, RowOrder(order))


class _Embeddings:
    """The embeddings of one tensor's models, with rows that meet by token."""

    def __init__(self, vocabulary: MergedVocabulary, tensors: Mapping[str, Node]) -> None:
        self.vocabulary, self.tensors = vocabulary, tensors
        first = next(iter(tensors.values())).spec
        #: Computed rows: zeros first, then means over models.
        self.computed: list[Node] = [zeros((1, *first.shape[1:]), F32)]
        self.computed_rows = 1
        self._defaults: dict[str, _Place] = {}
        for token in vocabulary.ids:
            if (place := self._default(token)) is not None:
                self._defaults[token] = place
        self._add_means()

    def _row_of(self, model: str, token: str) -> int | None:
        row = self.vocabulary.models[model].get(token)
        return row if row is not None and row < self.tensors[model].spec.shape[0] else None

    def _default(self, token: str) -> _Place | None:
        """The row for models that lack a token; None if all have it. The mean over several is added later."""
        if (source := self.vocabulary.rule.tokens.get(token)) is not None:
            return self._row_by_rule(token, source)
        present = [model for model in self.tensors if self._row_of(model, token) is not None]
        if len(present) == len(self.tensors):
            return None
        if not present:
            return _Place(None, 0)
        if len(present) == 1 or self.vocabulary.base in present:
            model = present[0] if len(present) == 1 else str(self.vocabulary.base)
            return _Place(model, self._row_of(model, token) or 0)
        return _Place(None, -1)

    def _row_by_rule(self, token: str, source: TokenSource) -> _Place:
        if source.model is None:
            return _Place(None, 0)
        if source.model not in self.tensors:
            raise UsageError(f"the token {token!r} is from {source.model}, which isn't among the merged models")
        donor = token if source.token is None else source.token
        row = donor if isinstance(donor, int) else self._row_of(source.model, donor)
        if row is None or not 0 <= row < self.tensors[source.model].spec.shape[0]:
            raise UsageError(f"{source.model} has no token {donor!r}, which {token!r} is to come from")
        return _Place(source.model, row)

    def _add_means(self) -> None:
        """Adds the means of tokens that several models have, one run of rows for each set of models."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for token in (token for token, place in self._defaults.items() if place == _Place(None, -1)):
            groups.setdefault(tuple(m for m in self.tensors if self._row_of(m, token) is not None), []).append(token)
        for models, tokens in groups.items():
            rows = [_rows(self.tensors[m], [self._row_of(m, t) or 0 for t in tokens]) for m in models]
            self.computed.append(merged(rows, Combination("linear", (1 / len(models),) * len(models))))
            for token in tokens:
                self._defaults[token] = _Place(None, self.computed_rows)
                self.computed_rows += 1

    def all(self) -> dict[str, LogicalTensor]:
        parts = [*self.tensors.values(), *self.computed]
        starts = dict(
            zip(self.tensors, np.cumsum([0, *(t.spec.shape[0] for t in self.tensors.values())]), strict=False)
        )
        computed = sum(tensor.spec.shape[0] for tensor in self.tensors.values())
        whole = concat(parts)
        vocabulary = self.vocabulary
        out: dict[str, LogicalTensor] = {}
        for model in self.tensors:
            order = np.full(max(vocabulary.ids.values(), default=-1) + 1, computed, np.int64)  # zeros for unused ids
            for token, row in vocabulary.ids.items():
                present, default = self._row_of(model, token), self._defaults.get(token)
                source = vocabulary.rule.tokens.get(token)
                if present is not None and not (source is not None and source.force):
                    order[row] = starts[model] + present
                elif default is not None:
                    order[row] = (computed if default.model is None else starts[default.model]) + default.row
            node = _rows(whole, order)
            if missing := vocabulary.rows - len(order):
                node = concat([node, _rows(row_mean(node), [0] * missing)])
            out[model] = node
        return out


def merged_vocabulary(
    rule: TokenizerRule, vocabularies: Mapping[str, Vocab], first: str, rows: int, base: str | None
) -> MergedVocabulary:
    """Returns the tokens of the result. `first`: the model whose config it has; `rows`: of that model's embeddings.
    Raises UsageError for models whose tokens can't be mapped."""
    ids = {name: ids_of(vocab) for name, vocab in vocabularies.items()}
    owner = first if rule.source in (BASE, UNION) else rule.source
    if owner not in ids:
        raise UsageError(f"{owner} has no tokenizer that can be read", hint="name a model that has one")
    tokens = dict(ids[owner])
    if rule.source == UNION:
        kinds = {name: vocab.kind for name, vocab in vocabularies.items()}
        if odd := next((name for name, kind in kinds.items() if kind is not kinds[first]), None):
            raise UsageError(
                f"{first} and {odd} have tokenizers of different kinds ({kinds[first].value}, {kinds[odd].value}), "
                "so a union would have tokens that no text becomes",
                hint="tokenizer_source: base, or a model's name",
            )
        for token in new_tokens(vocabularies, first):
            tokens[token] = max(tokens.values(), default=-1) + 1
    unknown = [token for token in rule.tokens if token not in tokens]
    for token in unknown:  # mergekit adds the tokens that have a rule
        tokens[token] = max(tokens.values(), default=-1) + 1
    count = max(tokens.values(), default=-1) + 1
    rows = math.ceil(count / rule.multiple) * rule.multiple if rule.multiple else max(rows, count)
    return MergedVocabulary(rule, tokens, rows, ids, base)


def new_tokens(vocabularies: Mapping[str, Vocab], first: str) -> list[str]:
    """Tokens that a union adds to those of `first`: ordinary ones of the other models, in their order, then added
    ones."""
    present = set(ids_of(vocabularies[first]))
    ordinary: dict[str, None] = {}
    added: dict[str, None] = {}
    for name, vocab in vocabularies.items():
        types = vocab.types or (TokenType.NORMAL,) * len(vocab)
        for token, row in ids_of(vocab).items():
            if name != first and token not in present:
                group = added if types[row] in (TokenType.CONTROL, TokenType.USER_DEFINED) else ordinary
                group[token] = None
    return [*(token for token in ordinary if token not in added), *added]
