"""The tokens of a model: special tokens with their roles, and a search through the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.models.tokenizer import TokenType, Vocab

SCHEMA: Final = "weighbridge/vocabulary/1"
FOUND: Final = 100  # tokens that a search lists
_SPECIAL: Final = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


@dataclass(frozen=True, slots=True)
class Token:
    """A token as spelled in the tokenizer's file. `kind`: normal, control, user_defined, byte, unused or unknown.
    `roles`: bos, eos, pad ... `score`: None if the tokenizer has none."""

    id: int
    text: str
    kind: str
    roles: tuple[str, ...] = ()
    score: float | None = None


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """`algorithm`: llama.cpp's name for it (gpt2: byte-level BPE; llama: SentencePiece; bert; t5). `special`: control
    and user-defined tokens, and those with a role. `added`: whether each role's token is added to every text."""

    algorithm: str
    pre: str | None
    size: int
    special: tuple[Token, ...]
    added: dict[str, bool]
    templates: tuple[str, ...]
    losses: tuple[str, ...]
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class TokenMatches:
    """The first matches of a search, and the number of all matches."""

    query: str
    count: int
    tokens: tuple[Token, ...]


def vocabulary(vocab: Vocab) -> VocabularyReport:
    """Describes a tokenizer and its special tokens."""
    return VocabularyReport(
        algorithm=str(vocab.kind.value),
        pre=vocab.pre,
        size=len(vocab),
        special=tuple(special_tokens(vocab)),
        added=dict(vocab.add),
        templates=tuple(template.name for template in vocab.templates),
        losses=vocab.losses,
    )


def special_tokens(vocab: Vocab) -> Iterator[Token]:
    """Yields the tokens that aren't plain text, by id."""
    with_role = set(vocab.special.values())
    for number, kind in enumerate(vocab.types):
        if kind in _SPECIAL or number in with_role:
            yield _token(vocab, number)
    for number in sorted(with_role):
        if len(vocab.types) <= number < len(vocab):
            yield _token(vocab, number)


def search(vocab: Vocab, query: str, *, limit: int = FOUND) -> TokenMatches:
    """Finds the tokens whose text contains `query`, or whose id is `query`. Raises UsageError for an empty query."""
    if not query:
        raise UsageError("the search is empty", hint="enter text or a token id")
    exact = int(query) if query.isascii() and query.isdecimal() and len(query) < 10 else -1
    ids = [number for number, text in enumerate(vocab.tokens) if query in text or number == exact]
    ids.sort(key=lambda number: (number != exact, vocab.tokens[number] != query, number))
    return TokenMatches(query, len(ids), tuple(_token(vocab, number) for number in ids[:limit]))


def _token(vocab: Vocab, number: int) -> Token:
    kind = vocab.types[number] if number < len(vocab.types) else TokenType.NORMAL
    name = TokenType(kind).name.lower() if kind in set(TokenType) else f"type {kind}"
    roles = tuple(role for role, index in vocab.special.items() if index == number)
    score = float(vocab.scores[number]) if number < len(vocab.scores) else None
    return Token(number, vocab.tokens[number], name, roles, score)
