"""Mistral's tokenizer files, for folders without tokenizer.json (conversion/base.py, `_set_vocab_mistral`).

    tekken.json                                  ranks, after special tokens
    tokenizer.model.v1 .v2 .v3, *.model.v7m1     SentencePiece, with the version in the name

Ids: the special tokens and fillers first, then the tokens by rank. Without a chat template in the folder, the version
selects one of llama.cpp's by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import bpe_ranks
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.hf.folder import Id, TokenizerFolder, tables
from weighbridge.models.tokenizer.hf.special import SpecialTokens
from weighbridge.models.tokenizer.vocab import ChatTemplate, TokenType, Vocab, VocabKind, check_size

NAME: Final = "tekken.json"
VERSIONED: Final = re.compile(r"[^/]*\.model\.(v\d{1,3})(m\d{1,3})?")
TRIED: Final = tuple(f"tokenizer.model.v{i}" for i in (7, 3, 2, 1))  # if the folder can't be listed


class TekkenConfig(Struct):
    pattern: str
    default_vocab_size: Annotated[int, Meta(gt=0)] | None = None
    default_num_special_tokens: Annotated[int, Meta(ge=0)] | None = None
    version: str = ""


class TekkenToken(Struct):
    token_bytes: str
    rank: Id


class TekkenSpecial(Struct):
    token_str: str
    rank: Id


class Tekken(Struct):
    config: TekkenConfig
    vocab: list[TekkenToken]
    special_tokens: list[TekkenSpecial] | None = None


def vocabulary(folder: TokenizerFolder, pre: str | None) -> tuple[Vocab, str]:
    """Returns the vocabulary of tekken.json without special ids, and the file's version."""
    file: Tekken = folder.json(NAME, Tekken, TOKENIZER_JSON)
    names = specials(file)
    size = file.config.default_vocab_size or len(names) + len(file.vocab)
    check_size(size, "config.default_vocab_size")
    count = size - len(names)
    if not 0 < count <= len(file.vocab):
        raise FormatError(
            "fewer tokens than the file declares", path=NAME, field="config.default_vocab_size",
            expected=f"{len(names) + 1}..{len(names) + len(file.vocab)}", found=size,
        )  # fmt: skip
    table = by_bytes(file.vocab[:count])
    tokens = [*names, *(text for _, text in bpe_ranks.by_rank(table))]
    types = [int(TokenType.CONTROL)] * len(names) + [int(TokenType.NORMAL)] * count
    steps = (pretokenizer.key(file.config.pattern), pretokenizer.BYTES)
    name = pre if pre is not None else pretokenizer.recognise(steps, (), ignore_merges=True)
    pretokenizer.known(name)
    merges = mergelists.joined(bpe_ranks.every(table))
    return Vocab(VocabKind.BPE, tokens, types, merges=merges, pre=name), file.config.version


def specials(file: Tekken) -> list[str]:
    """Returns the special tokens in the order of their ids, with fillers."""
    names = tables().tekken.special
    if file.special_tokens is not None:
        rows = sorted(file.special_tokens, key=lambda t: t.rank)
        if (gap := next((i for i, t in enumerate(rows) if t.rank != i), None)) is not None:
            raise FormatError("ranks have gaps", path=NAME, field="special_tokens", expected=gap, found=rows[gap].rank)
        names = [t.token_str for t in rows]
    count = file.config.default_num_special_tokens
    count = check_size(len(names) if count is None else count, "config.default_num_special_tokens")
    if count < len(names):
        raise FormatError(
            "more special tokens than the file declares", path=NAME, field="config.default_num_special_tokens",
            expected=f">= {len(names)}", found=count,
        )  # fmt: skip
    return names + [tables().tekken.filler.format(i) for i in range(len(names), count)]


def by_bytes(vocab: list[TekkenToken]) -> dict[bytes, int]:
    """Returns token -> rank; ranks are positions in the list."""
    table: dict[bytes, int] = {}
    for i, row in enumerate(vocab):
        if row.rank != i:
            raise FormatError("a token's rank isn't its position", path=NAME, field=f"vocab[{i}].rank", found=row.rank)
        token = bpe_ranks.unpacked(row.token_bytes, NAME, f"vocab[{i}].token_bytes")
        if table.setdefault(token, i) != i:
            twice = f"a token occurs twice, at {table[token]} and {i}"
            raise FormatError(twice, path=NAME, field="vocab", found=ascii(token)[1:])
    bpe_ranks.check(table, NAME)
    return table


def versioned(folder: TokenizerFolder) -> tuple[str, str] | None:
    """Returns (name, version) of the newest versioned SentencePiece model, or None if there is none."""
    names = [n for n in folder.names if VERSIONED.fullmatch(n)]
    for name in sorted(names, reverse=True) or TRIED:
        match = VERSIONED.fullmatch(name)
        if match is not None and folder.read(name) is not None:
            return name, match[1]
    return None


def mend(vocab: Vocab, state: SpecialTokens, ids: Mapping[str, int] | None = None) -> None:
    """Sets special ids and flags from the file (`ids`: a SentencePiece model's) instead of config.json."""
    if ids is None:
        controls = {
            t: i for i, (t, k) in enumerate(zip(vocab.tokens, vocab.types, strict=True)) if k == TokenType.CONTROL
        }
        roles = tables().tekken.roles
        missing = [t for t in roles.values() if t not in controls]
        if missing:
            raise FormatError("special tokens are missing", path=NAME, field="special_tokens", expected=missing[0])
        ids = {r: controls[t] for r, t in roles.items()}
    ids = {r: ids[r] for r in tables().tekken.roles if ids.get(r, -1) >= 0}
    state.ids = {**ids, "pad": ids.get("pad", ids["eos"])} if "eos" in ids else dict(ids)
    state.add = {"bos": True, "eos": False}


def template(folder: TokenizerFolder, version: str, tekken: bool) -> tuple[tuple[ChatTemplate, ...], tuple[str, ...]]:
    """Returns (templates, losses): the folder's chat template, or llama.cpp's by name."""
    text = folder.text("chat_template.jinja")
    if text:
        return (ChatTemplate("default", text),), ()
    names = tables().tekken
    name = (names.templates if tekken else names.sentencepiece_templates).get(version)
    if name is not None:
        return (ChatTemplate("default", name),), ()
    return (), (f"the chat template: llama.cpp has no name for version {version or 'none'} of Mistral's tokenizer",)
