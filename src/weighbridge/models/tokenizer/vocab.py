"""`Vocab`: a tokenizer independent of the files it came from.

This package has pure functions over bytes and JSON values and runs no tokenizer library (tests do). A folder's files
come through a `read(name) -> bytes | None` callback, a GGUF's keys through a mapping. Chat templates are carried as
text and never rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum, StrEnum
from typing import Any, Final, Literal

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import VOCABULARY
from weighbridge.base.records import dataclass

Json = dict[str, Any]
NO_SCORE, PAD_SCORE = -1000.0, -10000.0  # scores of added tokens and of padding (conversion/base.py)
BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SPACE: Final = "\u2581"  # SentencePiece's space inside a piece ("lower one eighth block")


class VocabKind(StrEnum):
    """The algorithm. The value is llama.cpp's name for it, `tokenizer.ggml.model`."""

    WORDPIECE = "bert"
    SPM = "llama"  # SentencePiece BPE: merges by score
    BPE = "gpt2"  # byte-level BPE: merges by rank
    UNIGRAM = "t5"
    RWKV = "rwkv"  # the longest matching token, over bytes
    PLAMO2 = "plamo2"  # the segmentation of a text with the best sum of scores
    PLAMO3 = "plamo3"  # the same, around the model's control tokens
    CHAR_BPE = "gemma4"  # BPE over characters: merges by rank, byte tokens for unknown characters


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; the values are SentencePiece's (sentencepiece_model.proto, SentencePiece.Type)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template. Programs use the one named "default" unless another is chosen."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Vocab:
    """A tokenizer.

    `tokens` have GGUF's spelling (WordPiece: U+2581 before a word, nothing before a continuation). `special` maps a
    role (bos, eos, unk, sep, pad, mask, eot ...) to a token id, `add` maps a role to whether that token is added to
    every text; both keep the reference converter's order. None means unspecified, for which llama.cpp has a default
    per kind. `losses` lists what reading couldn't carry over.
    """

    kind: VocabKind
    tokens: Sequence[str]
    types: Sequence[int] = ()
    scores: Sequence[float] = ()
    merges: Sequence[str] = ()  # "left right"
    pre: str | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    add: Mapping[str, bool] = field(default_factory=dict)
    add_space_prefix: bool | None = None
    space_prefix_at: Literal["first", "tokens", "ids", "last"] = (
        "first"  # the position of its key in the reference converter
    )
    late: frozenset[str] = frozenset()  # roles and `add_` roles with keys after the templates
    remove_extra_whitespaces: bool | None = None
    charsmap: bytes | None = None
    lowercase: bool | None = None
    strip_accents: bool | None = None
    token_type_count: int | None = None
    suppress: Sequence[int] = ()
    own_tokens: int = 0  # tokens of the vocabulary's own file, without added ones; byte-level BPE only
    templates: tuple[ChatTemplate, ...] = ()
    max_length: int | None = None
    losses: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def token(self, role: str) -> str | None:
        """Returns the text of a special token."""
        index = self.special.get(role)
        return self.tokens[index] if index is not None and index < len(self.tokens) else None

    @property
    def template(self) -> str | None:
        """The default chat template."""
        return next((t.text for t in self.templates if t.name == "default"), None)


def with_codes(vocab: Vocab, names: Sequence[str]) -> Vocab:
    """The tokens followed by those of codes or of other inputs, as the reference converter writes a model's that
    speaks: without a chat template, and of Unigram's without special tokens (conversion/qwen3tts.py, pockettts.py
    `set_vocab`, llama.cpp b11549)."""
    unigram = vocab.kind == VocabKind.UNIGRAM
    types = [*(vocab.types or [TokenType.NORMAL] * len(vocab)), *[TokenType.CONTROL] * len(names)]
    scores = [*vocab.scores, *[NO_SCORE if unigram else 0.0] * len(names)] if vocab.scores else ()
    lost = ("the chat template: a model that speaks has none in a GGUF",) if vocab.templates else ()
    losses = (*vocab.losses, *lost)
    if unigram:
        vocab = replace(vocab, special={}, add={"bos": False, "eos": False}, pre="default")
    return replace(vocab, tokens=[*vocab.tokens, *names], types=types, scores=scores, templates=(), losses=losses)


def check_size(count: int, field: str) -> int:
    """Returns `count` if it is in range. Padding tokens are created from a number, so that number needs a bound."""
    if not 0 <= count <= VOCABULARY:
        raise FormatError("not a vocabulary size", field=field, expected=f"0..{VOCABULARY}", found=count)
    return count


def padding(index: int) -> str:
    """Returns the text of an unused id (conversion/base.py, `_create_vocab_sentencepiece` and `get_vocab_base`)."""
    return f"[PAD{index}]"
