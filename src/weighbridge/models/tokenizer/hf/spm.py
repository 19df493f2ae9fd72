"""SentencePiece BPE and what is made of it: `tokenizer.model`, tokenizer.json with byte fallback, Gemma 4's BPE over
characters. The functions are named after the reference's (conversion/base.py, gemma.py; gguf-py/gguf/vocab.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import JSON_DEPTH
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.formats import sentencepiece
from weighbridge.models.tokenizer.hf.added import added_tokens, is_control, named_tokens
from weighbridge.models.tokenizer.hf.folder import OTHERS, Id, TokenizerFolder, TokenizerJson, table_of
from weighbridge.models.tokenizer.hf.special import finish, special
from weighbridge.models.tokenizer.vocab import (
    BYTE_TOKEN,
    NO_SCORE,
    PAD_SCORE,
    SPACE,
    TokenType,
    Vocab,
    VocabKind,
    padding,
)

Scores = Literal["exact", "reference"]
VISIBLE: Final = frozenset(  # of Gemma 4: what the chat parser must see (conversion/gemma.py)
    (
        "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
    )
)  # fmt: skip


def is_spm_like(tokenizer: TokenizerJson) -> bool:
    """gguf-py/gguf/vocab.py, `LlamaHfVocab`: byte fallback, and a decoder that is a sequence."""
    return bool(tokenizer.model.byte_fallback) and (tokenizer.decoder or {}).get("type") == "Sequence"


def spm(folder: TokenizerFolder, model: sentencepiece.SentencePieceModel) -> Vocab:
    """`_create_vocab_sentencepiece`: pieces, then added_tokens.json, then `added_tokens_decoder`, in a padded list."""
    if model.model_type != sentencepiece.BPE:
        raise UnsupportedError(
            "a SentencePiece model that is neither BPE nor Unigram: llama.cpp has no tokenizer for it",
        )
    size = folder.vocab_size("vocab_size") or len(model.pieces)
    count = min(size, len(model.pieces))
    tokens = [*model.pieces[:count], *map(padding, range(count, size))]
    scores = [*model.scores[:count], *[PAD_SCORE] * (size - count)]
    # The reference knows no user-defined pieces: they are normal unless `added_tokens_decoder` says more.
    types = [TokenType.NORMAL if t == TokenType.USER_DEFINED else t for t in model.types[:count]]
    types += [TokenType.UNUSED] * (size - count)
    listed: dict[str, int] = folder.json("added_tokens.json", dict[str, Id]) or {}
    for text, index in listed.items():
        if index < size:
            tokens[index], scores[index], types[index] = text, NO_SCORE, TokenType.USER_DEFINED
    for index, token in folder.added_decoder.items():
        if index < size:
            control = token.special or is_control(token.content)
            types[index] = TokenType.CONTROL if control else TokenType.USER_DEFINED
            tokens[index] = token.content if control else token.content.replace(SPACE, " ")
            scores[index] = NO_SCORE
    losses = ["the SentencePiece normalizer: llama.cpp tokenizes the text as it is"] if model.charsmap else []
    if size < len(model.pieces):
        losses.append(f"pieces {size}..{len(model.pieces) - 1} of the tokenizer: config.json has vocab_size = {size}")
    made = Vocab(VocabKind.SPM, tokens, [int(t) for t in types], scores, pre="default", losses=tuple(losses))
    if not model.add_dummy_prefix:
        made = replace(made, add_space_prefix=False)
    return finish(folder, made, special(folder, size))


def llama_hf(folder: TokenizerFolder, tokenizer: TokenizerJson, scores: Scores) -> Vocab:
    """`LlamaHfVocab`: ids 0.. of the model, then the added tokens beyond them."""
    vocab = table_of(tokenizer)
    size = len(vocab)
    if max(vocab.values()) != size - 1:
        raise FormatError(
            "ids have gaps", path="tokenizer.json", field="model.vocab", expected=f"0..{size - 1}",
            found=max(vocab.values()), hint="AutoTokenizer.from_pretrained(...).save_pretrained(...) numbers them anew",
        )  # fmt: skip
    pairs = mergelists.split(tokenizer.model.merges, "tokenizer.json")
    mergelists.check(pairs, vocab, "tokenizer.json")
    added = added_tokens(folder, vocab, tokenizer)
    controls = set(named_tokens(folder, vocab | {t.content: i for i, t in added.items()}).values())
    tokens: list[Any] = [None] * size
    types = [int(TokenType.NORMAL)] * size
    for text, index in vocab.items():
        tokens[index] = text
        if text.startswith("<0x") and BYTE_TOKEN.fullmatch(text):
            types[index] = int(TokenType.BYTE)
    for index in controls:
        if index < size and types[index] != TokenType.BYTE:
            types[index] = int(TokenType.CONTROL)
    for index, token in sorted(added.items()):
        if index >= size:
            tokens.append(token.content)
            types.append(int(TokenType.CONTROL if index in controls else TokenType.USER_DEFINED))
    values = [NO_SCORE] * len(tokens)
    if scores == "exact":
        exact = mergelists.to_scores(pairs, vocab, size)
        values[:size] = [NO_SCORE if i in controls else s for i, s in enumerate(exact)]
    missing = (folder.vocab_size("vocab_size") or len(tokens)) - len(tokens)
    if missing < 0:
        raise FormatError(
            "a token's id is outside of the vocabulary", path="config.json", field="vocab_size",
            expected=f">= {len(tokens)}", found=len(tokens) + missing, hint=OTHERS,
        )  # fmt: skip
    values += [PAD_SCORE] * missing
    types += [int(TokenType.UNUSED)] * missing
    tokens += [padding(len(tokens) + i) for i in range(missing)]
    made = Vocab(VocabKind.SPM, tokens, types, values, pre="default", losses=metaspace_losses(tokenizer))
    if not prefixes_space(tokenizer):
        made = replace(made, add_space_prefix=False)
    return finish(folder, made, special(folder, len(tokens)))


def gemma4(folder: TokenizerFolder, tokenizer: TokenizerJson) -> Vocab:
    """`Gemma4Model.set_vocab`: `LlamaHfVocab` with its merges; scores that nobody reads."""
    vocab = llama_hf(folder, tokenizer, "reference")
    pairs = mergelists.split(tokenizer.model.merges, "tokenizer.json")
    types = [int(TokenType.USER_DEFINED) if t in VISIBLE else k for t, k in zip(vocab.tokens, vocab.types, strict=True)]
    return replace(
        vocab, kind=VocabKind.GEMMA4, pre=None, types=types, merges=mergelists.joined(pairs), add_space_prefix=False,
        add={**vocab.add, "bos": True}, losses=(),
    )  # fmt: skip


def metaspace_losses(tokenizer: TokenizerJson) -> tuple[str, ...]:
    """`Metaspace` treats spaces otherwise than SentencePiece does, and llama.cpp does as SentencePiece."""
    items = [n for n in pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers") if n.get("type") == "Metaspace"]
    if not items or items[0].get("prepend_scheme", "always") == "never":
        return ()
    return ("Metaspace puts no space before a text that begins with one, or after special tokens: llama.cpp does",)


def prefixes_space(tokenizer: TokenizerJson) -> bool:
    """Is a space put before the text: by a `Prepend` normalizer, or by a `Metaspace` that doesn't say "never"?"""
    items = [*pretokenizer.flat(tokenizer.normalizer, "normalizers")]
    items += pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers")
    return any(
        n.get("type") == "Prepend" or (n.get("type") == "Metaspace" and n.get("prepend_scheme", "always") != "never")
        for n in items[:JSON_DEPTH]
    )
