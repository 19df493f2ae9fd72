"""What two models of a page have in common and what differs: their tokens."""

from __future__ import annotations

from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.models.tokenizer import Vocab
from weighbridge.models.tokenizer.compare import vocab_differences

SCHEMA: Final = "weighbridge/token-pair/1"
_SHOWN: Final = 40  # tokens of one model only


@dataclass(frozen=True, slots=True)
class RolePair:
    """A special token of both models: its number and text in each; None without one."""

    role: str
    a: tuple[int, str] | None
    b: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class TokenPair:
    """`algorithm`, `pre`, `sizes`: of both. `same`: tokens with the same number in both, `moved`: with another one.
    `only`: how many tokens only one has, and the first of them as (number, text). `tables`, `special`: differences in
    words."""

    algorithm: tuple[str, str]
    pre: tuple[str | None, str | None]
    sizes: tuple[int, int]
    same: int
    moved: int
    only: tuple[int, int]
    first: tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]
    roles: tuple[RolePair, ...]
    tables: tuple[str, ...]
    special: tuple[str, ...]
    schema: str = SCHEMA


def token_pair(a: Vocab, b: Vocab) -> TokenPair:
    """Compares two tokenizers, token by token."""
    ids_a, ids_b = ({text: number for number, text in enumerate(v.tokens)} for v in (a, b))
    shared = [(number, ids_b[text]) for text, number in ids_a.items() if text in ids_b]
    same = sum(x == y for x, y in shared)
    only_a = [(number, text) for text, number in ids_a.items() if text not in ids_b]
    only_b = [(number, text) for text, number in ids_b.items() if text not in ids_a]
    differences = vocab_differences(a, b)
    roles = dict.fromkeys((*a.special, *b.special))
    return TokenPair(
        algorithm=(a.kind.value, b.kind.value),
        pre=(a.pre, b.pre),
        sizes=(len(a), len(b)),
        same=same,
        moved=len(shared) - same,
        only=(len(only_a), len(only_b)),
        first=(tuple(only_a[:_SHOWN]), tuple(only_b[:_SHOWN])),
        roles=tuple(RolePair(role, _special(a, role), _special(b, role)) for role in roles),
        tables=tuple(differences.tables),
        special=tuple(differences.special),
    )


def _special(vocab: Vocab, role: str) -> tuple[int, str] | None:
    number = vocab.special.get(role)
    return None if number is None else (number, vocab.tokens[number] if 0 <= number < len(vocab.tokens) else "")
