"""Whether two tokenizers are the same by meaning: what they make of a text, and which tokens are special."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from weighbridge.models.arch.derived import f32
from weighbridge.models.tokenizer.pretokenizer import same_rules
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, VocabKind

# What the tables of a kind mean: merges by rank, merges by the order of scores, pieces by their scores.
_BY_MERGES: Final = (VocabKind.BPE, VocabKind.CHAR_BPE)
_FLAGS: Final = ("remove_extra_whitespaces", "lowercase", "strip_accents")


def vocab_differences(a: Vocab, b: Vocab) -> list[str]:
    """What differs, in words."""
    if a.kind != b.kind:
        return [f"it is a tokenizer of another kind: {a.kind.value} and {b.kind.value}"]
    return [line for check in _CHECKS for line in check(a, b)]


def _tokens(a: Vocab, b: Vocab) -> Iterator[str]:
    yield from _lists("tokens", a.tokens, b.tokens)
    types = [[*v.types] or [TokenType.NORMAL] * len(v) for v in (a, b)]
    yield from _lists("types of tokens", *types)


def _rules(a: Vocab, b: Vocab) -> Iterator[str]:
    if a.kind in _BY_MERGES:
        yield from _lists("merges", a.merges, b.merges)
    if a.kind is VocabKind.SPM:
        yield from _lists("order of scores", _order(a), _order(b))
    if a.kind is VocabKind.UNIGRAM:
        yield from _lists("scores", [*map(f32, a.scores)], [*map(f32, b.scores)])
    if a.kind is VocabKind.BPE and not same_rules(a.pre, b.pre):
        yield f"the pre-tokenizer is {a.pre} and {b.pre}"
    if a.charsmap != b.charsmap:
        yield "the normalization of characters (precompiled_charsmap)"


def _order(vocab: Vocab) -> list[int]:
    """The normal pieces by falling score."""
    normal = (i for i, kind in enumerate(vocab.types) if kind == TokenType.NORMAL and i < len(vocab.scores))
    return sorted(normal, key=lambda i: -vocab.scores[i])


def _special(a: Vocab, b: Vocab) -> Iterator[str]:
    for role, index in a.special.items():
        same = role == "cls" and role not in b.special and b.special.get("bos") == index  # llama.cpp's word for it
        if b.special.get(role) != index and not same:
            yield f"the {role} token is {index} and {b.special.get(role)}"
    for role in dict.fromkeys((*a.add, *b.add)):
        one, other = a.add.get(role), b.add.get(role)
        if one != other and not (one is None and not other) and not (other is None and not one):
            yield f"the {role} token is added to a text: {_word(one)} and {_word(other)}"


def _flags(a: Vocab, b: Vocab) -> Iterator[str]:
    for name in _FLAGS:
        one, other = getattr(a, name), getattr(b, name)
        if None not in (one, other) and one != other:
            yield f"{name}: {_word(one)} and {_word(other)}"
    if a.kind is VocabKind.SPM and (a.add_space_prefix is False) != (b.add_space_prefix is False):
        yield "whether a space is put before the text"
    if (a.template or "") != (b.template or ""):
        yield "the chat template"


def _word(value: Any) -> str:
    return "not stated" if value is None else "yes" if value else "no"


def _lists(what: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[str]:
    if len(a) != len(b):
        yield f"{what}: {len(a):,} and {len(b):,}"
    elif (first := next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)) is not None:
        count = sum(x != y for x, y in zip(a, b, strict=True))
        yield f"{what}: {count:,} differ, first {first}: {a[first]!r} and {b[first]!r}"


_CHECKS: Final[tuple[Callable[[Vocab, Vocab], Iterator[str]], ...]] = (_tokens, _rules, _special, _flags)
