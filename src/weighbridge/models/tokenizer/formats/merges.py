"""BPE merges and SentencePiece scores express the same order: merges list pairs by rank, scores rank each result. Both
conversions, and the byte alphabet of byte-level BPE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.native import gguf_merges
from weighbridge.containers.gguf.values import LazyArray
from weighbridge.io.source import BytesSource

if TYPE_CHECKING:
    from typing_extensions import Buffer

MergeRow = str | tuple[str, str]

ESCAPED: Final = chr(ord(" ") + 256)  # a space inside a merge's part (gguf-py/gguf/vocab.py, SpecialVocab)


def alphabet() -> dict[str, int]:
    """Returns the byte of each of GPT-2's printable characters: the character itself if printable, otherwise U+0100 + a
    running number."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(unprintable)}


BYTE_OF: Final = alphabet()


def checked(rows: Sequence[MergeRow], vocab: Mapping[str, int], path: str) -> list[tuple[str, str]]:
    """Returns merges as pairs, from either form in tokenizer.json ("a b" up to transformers 4.44, ["a", "b"] since).
    Raises FormatError if a part or result of a merge isn't a token."""
    pairs = split(rows, path)
    check(pairs, vocab, path)
    return pairs


def spelled(json: Buffer, rows: Callable[[str], Sequence[MergeRow]], vocab: dict[str, int], path: str) -> Sequence[str]:
    """Returns the merges of a tokenizer.json in GGUF's spelling. `rows(path)`: returns the parsed merges, if `json`
    isn't in the plain form. Raises FormatError if a part or result of a merge isn't a token."""
    if (plain := gguf_merges(json, vocab)) is None:
        return joined(checked(rows(path), vocab, path))
    count, raw = plain
    return LazyArray("str", count, BytesSource(b"", path), 0, len(raw), raw=raw)


def split(rows: Sequence[MergeRow], path: str) -> list[tuple[str, str]]:
    """Returns merges as pairs."""
    if not any(isinstance(row, str) for row in rows):
        return rows  # type: ignore[return-value]
    pairs = [tuple(row.split(" ")) if isinstance(row, str) else row for row in rows]
    if any(len(p) != 2 for p in pairs):
        bad = next(i for i, p in enumerate(pairs) if len(p) != 2)
        raise FormatError("a merge has two parts", path=path, field=f"model.merges[{bad}]", found=rows[bad])
    return pairs  # type: ignore[return-value]


def check(pairs: Sequence[tuple[str, str]], vocab: Mapping[str, int], path: str) -> None:
    """Raises FormatError if a part or result of a merge isn't a token; the tokenizers library refuses such files
    too."""
    is_token = vocab.__contains__
    if all(map(is_token, chain.from_iterable(pairs))) and all(map(is_token, map("".join, pairs))):
        return  # fast path for half a million merges
    for i, (a, b) in enumerate(pairs):
        for text in (a, b, a + b):
            if text not in vocab:
                raise FormatError("a merge names an unknown token", path=path, field=f"merge {i}", found=text)


def joined(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Returns GGUF's spelling: "a b", with a space inside a part as U+0120."""
    out = list(map(" ".join, pairs))
    if "".join(out).count(" ") != len(out):  # one fast pass; hardly any file has a space inside a part
        return [" ".join(p.replace(" ", ESCAPED) for p in pair) for pair in pairs]
    return out


def parted(merges: Sequence[str]) -> list[tuple[str, str]]:
    """Returns GGUF merges as pairs, split at the first space after the first character (llama-vocab.cpp, `load`)."""
    out: list[tuple[str, str]] = []
    for i, text in enumerate(merges):
        cut = text.find(" ", 1)
        if cut < 1 or cut + 1 == len(text):
            raise FormatError("a merge has two parts", field=f"tokenizer.ggml.merges[{i}]", found=text)
        out.append((text[:cut], text[cut + 1 :]))
    return out


def from_scores(tokens: Sequence[str], scores: Sequence[float], skip: Collection[int]) -> list[tuple[str, str]]:
    """Returns all pairs of tokens whose concatenation is a token, best score first, as transformers derives them from a
    `tokenizer.model` (`generate_merges`; its reversed sort puts the longer left part first among equals). Ids in `skip`
    (control, bytes ...) are ignored."""
    index = {t: i for i, t in enumerate(tokens) if i not in skip}
    ranked: list[tuple[float, int, int, str, str]] = []
    for text, i in index.items():
        score, size = -scores[i], len(text)
        for cut in range(1, size):
            left, right = text[:cut], text[cut:]
            if left in index and right in index:
                ranked.append((score, -cut, cut - size, left, right))
    ranked.sort(key=lambda row: row[:3])  # stable: tokens of one score stay in order of their ids
    return [(left, right) for *_, left, right in ranked]


def to_scores(pairs: Sequence[tuple[str, str]], vocab: Mapping[str, int], size: int) -> list[float]:
    """Returns a score for each id that makes SentencePiece merge in the order of `pairs`: minus the rank of the token's
    first merge, counted in tokens as in SentencePiece's trainer; 0 for tokens that no merge produces."""
    scores = [0.0] * size
    rank = 0
    for left, right in pairs:
        index = vocab[left + right]
        if scores[index] == 0.0:
            rank += 1
            scores[index] = float(-rank)
    return scores
