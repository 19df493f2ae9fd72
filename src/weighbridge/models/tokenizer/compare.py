"""Compares two tokenizers by meaning: the tokens of a text, and the special tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.models.arch.derived import f32
from weighbridge.models.tokenizer.pretokenizer import same_rules, table
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, VocabKind

#: The tokens that llama.cpp adds to a text by default; a byte-level BPE's class may add bos.
_ADDED: Final = MappingProxyType({
    VocabKind.SPM: ("bos",), VocabKind.WORDPIECE: ("bos", "sep"), VocabKind.UNIGRAM: ("eos",),
})  # fmt: skip


class VocabDifferences(NamedTuple):
    """Descriptions of differences: `tables` in the tables of tokens and the segmentation of texts, `special` in special
    tokens and the chat template."""

    tables: list[str]
    special: list[str]


def vocab_differences(a: Vocab, b: Vocab) -> VocabDifferences:
    """Returns the differences between two tokenizers."""
    if a.kind != b.kind:
        return VocabDifferences([f"it is a tokenizer of another kind: {a.kind.value} and {b.kind.value}"], [])
    return VocabDifferences([*_table_differences(a, b)], [*_special_differences(a, b)])


def _table_differences(a: Vocab, b: Vocab) -> Iterator[str]:
    yield from _lists("tokens", a.tokens, b.tokens)
    types = [[*v.types] or [TokenType.NORMAL] * len(v) for v in (a, b)]
    yield from _lists("types of tokens", *types)
    if a.kind in (VocabKind.BPE, VocabKind.CHAR_BPE):  # merges by rank
        yield from _lists("merges", a.merges, b.merges)
    if a.kind is VocabKind.SPM:  # merges by the order of scores
        yield from _lists("order of scores", _order(a), _order(b))
    if a.kind is VocabKind.UNIGRAM:
        yield from _lists("scores", [*map(f32, a.scores)], [*map(f32, b.scores)])
    if a.kind is VocabKind.BPE and not same_rules(a.pre, b.pre):
        yield f"the pre-tokenizer is {a.pre} and {b.pre}"
    if a.charsmap != b.charsmap:
        yield "the normalization of characters (precompiled_charsmap)"
    for name in ("remove_extra_whitespaces", "lowercase", "strip_accents"):
        flags = getattr(a, name), getattr(b, name)
        if None not in flags and flags[0] != flags[1]:
            yield f"{name}: {_word(flags[0])} and {_word(flags[1])}"
    if a.kind is VocabKind.SPM and (a.add_space_prefix is False) != (b.add_space_prefix is False):
        yield "whether a space is put before the text"


def _order(vocab: Vocab) -> list[int]:
    """Returns the normal pieces by descending score."""
    normal = (i for i, kind in enumerate(vocab.types) if kind == TokenType.NORMAL and i < len(vocab.scores))
    return sorted(normal, key=lambda i: -vocab.scores[i])


def _special_differences(a: Vocab, b: Vocab) -> Iterator[str]:
    for role, index in a.special.items():
        same = role == "cls" and role not in b.special and b.special.get("bos") == index  # llama.cpp's name for it
        if b.special.get(role) != index and not same:
            yield f"the {role} token is {index} and {b.special.get(role)}"
    for role in dict.fromkeys((*a.add, *b.add)):
        if adds(a, role) != adds(b, role):
            yield f"the {role} token is added to a text: {_word(adds(a, role))} and {_word(adds(b, role))}"
    if (a.template or "") != (b.template or ""):
        yield "the chat template"


def adds(vocab: Vocab, role: str) -> bool:
    """Whether llama.cpp adds a token to every text: as stated, or by default (llama-vocab.cpp, `load`)."""
    if (stated := vocab.add.get(role)) is not None:
        return stated
    if role == "bos" and vocab.kind is VocabKind.BPE:
        return any(row.add_bos for row in table().classes if vocab.pre in row.names)
    return role in _ADDED.get(vocab.kind, ())


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _lists(title: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[str]:
    if len(a) != len(b):
        yield f"{title}: {len(a):,} and {len(b):,}"
    elif differing := [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]:
        first = differing[0]
        yield f"{title}: {len(differing):,} differ, first {first}: {a[first]!r} and {b[first]!r}"
