"""Rows of a language model's embedding that llama.cpp has in the projector's file, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.hf.folder import TokenizerFolder

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family
    from weighbridge.tensors.nodes import LogicalTensor

_EMBEDDING = ("embed", ())


def copied_names(family: Family) -> Mapping[str, str]:
    """The names, in a folder's dialect, of tensors that no folder has: copies of a token's row -> the token."""
    return {row.names["hf"]: row.token for row in family.rows.values() if row.token is not None}


def copied_rows(model: OpenModel, family: Family) -> Iterator[tuple[str, LogicalTensor]]:
    """The copies by name. Raises UnsupportedError if the folder's tokenizer hasn't the token, FormatError for an id
    beyond the embedding."""
    for name, token in copied_names(family).items():
        yield name, _row_of(model, token)


def _row_of(model: OpenModel, token: str) -> LogicalTensor:
    from weighbridge.tensors.nodes import reshape, slice_rows

    number = _id_of(model, token)
    embedding = model.resolved.known_roles[_EMBEDDING]
    rows, width = embedding.spec.shape
    if number >= rows:
        raise FormatError(
            f"{token} isn't a token of the embedding", path=str(model.place.path), expected=f"an id below {rows}",
            found=number,
        )  # fmt: skip
    return reshape(slice_rows(embedding, number, (1, width)), (width,))


def _id_of(model: OpenModel, token: str) -> int:
    """The token's id, by the files that the reference converter reads (conversion/llava.py `get_token_id`, llama.cpp
    b11549)."""
    folder = TokenizerFolder(lambda name: model.place.read(name, TOKENIZER_JSON))
    listed = {added.content: number for number, added in folder.added_decoder.items()}
    if token not in listed and folder.tokenizer is not None:
        listed |= {added.content: added.id for added in folder.tokenizer.added_tokens}
    if token not in listed:
        raise UnsupportedError(
            f"no file of the tokenizer lists {token}, whose embedding llama.cpp needs in the projector",
            hint="put tokenizer_config.json or tokenizer.json into the folder",
        )
    return listed[token]
