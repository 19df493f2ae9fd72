"""Vocabularies of models that are merged: equal, or rows of embeddings mapped by token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.of_model import vocab_of
from weighbridge.tensors.nodes import Gather, LogicalTensor, as_node


def _tokens(model: OpenModel) -> tuple[str, ...] | None:
    """The tokens by id; None for a model without a tokenizer that can be read."""
    try:
        return tuple(map(str, vocab_of(model).tokens))
    except WeighbridgeError:
        return None


def check_vocabularies(models: Mapping[str, OpenModel]) -> None:
    """Raises UsageError if two models have different tokens."""
    first: tuple[str, tuple[str, ...]] | None = None
    for name, model in models.items():
        tokens = _tokens(model)
        if tokens is None:
            continue
        if first is None:
            first = name, tokens
        elif tokens != first[1]:
            differ = sum(a != b for a, b in zip(tokens, first[1], strict=False)) + abs(len(tokens) - len(first[1]))
            raise UsageError(
                f"{name} and {first[0]} have different vocabularies ({plural(differ, 'token')})",
                hint="tokenizer_source: base, or --tokenizer-source base, takes the base's tokens",
            )


def rows_by_token(tensor: LogicalTensor, model: OpenModel, template: OpenModel, rows: int) -> LogicalTensor:
    """Returns a matrix with one row per token, in the order of the template's tokens; further rows repeat the last one.
    Raises UsageError for a token that the model lacks."""
    target, present = _tokens(template), _tokens(model)
    if target is None or present is None or target == present:
        return tensor
    ids = {token: n for n, token in enumerate(present)}
    if missing := [token for token in target if token not in ids]:
        raise UsageError(
            f"{model.place.path} lacks {plural(len(missing), 'token')} of {template.place.path}: {missing[0]!r}",
            hint="a base whose tokens all models have",
        )
    order = np.array([ids[token] for token in target], np.int64)
    if rows < len(order):
        raise UsageError(f"{template.place.path} has more tokens than rows of embeddings")
    padding = np.full(rows - len(order), int(order[-1]), np.int64)
    node = as_node(tensor)
    return Gather(node.spec.with_shape(rows, *node.spec.shape[1:]), node, np.concatenate([order, padding]))
