"""SentencePiece BPE and its derivatives: `tokenizer.model`, tokenizer.json with byte fallback, BPE over characters
(conversion/base.py, gemma.py; gguf-py/gguf/vocab.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Literal

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import JSON_DEPTH
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import merges as mergelists
from weighbridge.models.tokenizer.formats import sentencepiece
from weighbridge.models.tokenizer.hf.added import added_tokens, embedded, is_control, named_tokens, unembedded
from weighbridge.models.tokenizer.hf.folder import OTHERS, AddedToken, Id, TokenizerFolder, TokenizerJson, table_of
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


def spm(folder: TokenizerFolder, model: sentencepiece.SentencePieceModel) -> Vocab:
    """Returns the vocabulary of a tokenizer.model: pieces, then added_tokens.json and `added_tokens_decoder`, padded to
    the model's size (`_create_vocab_sentencepiece`)."""
    if model.model_type != sentencepiece.BPE:
        raise UnsupportedError("llama.cpp has no tokenizer for a SentencePiece model other than BPE and Unigram")
    size = folder.vocab_size("vocab_size") or len(model.pieces)
    count = min(size, len(model.pieces))
    tokens = [*model.pieces[:count], *map(padding, range(count, size))]
    scores = [*model.scores[:count], *[PAD_SCORE] * (size - count)]
    # As in the reference, user-defined pieces are normal unless an added token is at their id.
    types = [TokenType.NORMAL if t == TokenType.USER_DEFINED else t for t in model.types[:count]]
    types += [TokenType.UNUSED] * (size - count)
    rules = folder.rules
    if rules.piece_types or rules.piece_texts:  # the model class's texts and types of pieces
        for index, text in enumerate(tokens):
            tokens[index] = rules.piece_texts.get(text, text)
            prefixed = (TokenType(kind) for start, kind in rules.piece_types.items() if text.startswith(start))
            types[index] = next(prefixed, types[index])
    unknown_text = (folder.settings or {}).get("unk_token")
    listed: dict[str, int] = folder.json("added_tokens.json", dict[str, Id]) or {}
    for text, index in listed.items():
        if index < size:
            tokens[index], scores[index], types[index] = text, NO_SCORE, TokenType.USER_DEFINED
    for index, token in redefinitions(folder):
        if index < size:
            scores[index] = NO_SCORE
            tokens[index], types[index] = token.content, TokenType.CONTROL
            as_stated = rules.redefine or rules.added_scores
            if not token.special and (as_stated or not is_control(token.content)):
                tokens[index] = token.content if as_stated else token.content.replace(SPACE, " ")
                types[index] = TokenType.USER_DEFINED
            if rules.added_scores:
                scores[index] = 0.0 if token.special else PAD_SCORE
                unknown = token.special and token.content == unknown_text
                types[index] = TokenType.UNKNOWN if unknown else types[index]
    extra = {i: text for text, i in listed.items()} | {i: t.content for i, t in redefinitions(folder)}
    losses = [unembedded(text, i, size) for i, text in extra.items() if i >= size]
    losses += ["the SentencePiece normalizer: llama.cpp tokenizes the unmodified text"] if model.charsmap else []
    if size < len(model.pieces):
        losses.append(f"pieces {size}..{len(model.pieces) - 1} of the tokenizer: config.json has vocab_size = {size}")
    result = Vocab(VocabKind.SPM, tokens, [int(t) for t in types], scores, pre="default", losses=tuple(losses))
    if not model.add_dummy_prefix:
        result = replace(result, add_space_prefix=False)
    return finish(folder, result, special(folder, size))


def redefinitions(folder: TokenizerFolder) -> Iterator[tuple[int, AddedToken]]:
    """Yields added tokens that replace pieces; the last of an id counts."""
    yield from folder.added_decoder.items()
    if folder.rules.redefine and folder.tokenizer is not None:
        yield from ((token.id, token) for token in folder.tokenizer.added_tokens)


def byte_fallback(folder: TokenizerFolder, tokenizer: TokenizerJson, scores: Scores) -> Vocab:
    """Returns the vocabulary of a tokenizer.json with byte fallback: the model's ids, then the added tokens
    (`LlamaHfVocab`)."""
    vocab = table_of(tokenizer)
    size = len(vocab)
    if max(vocab.values()) != size - 1:
        raise FormatError(
            "ids have gaps", path="tokenizer.json", field="model.vocab", expected=f"0..{size - 1}",
            found=max(vocab.values()), hint="AutoTokenizer.from_pretrained(...).save_pretrained(...) renumbers them",
        )  # fmt: skip
    pairs = mergelists.checked(tokenizer.model.merge_rows("tokenizer.json"), vocab, "tokenizer.json")
    added, lost = embedded(folder, vocab, added_tokens(folder, vocab, tokenizer))
    controls = set(named_tokens(folder, vocab | {t.content: i for i, t in added.items()}).values())
    if folder.rules.special_is_control:
        controls |= {i for i, t in added.items() if t.special}
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
    result = Vocab(VocabKind.SPM, tokens, types, values, pre="default", losses=(*lost, *metaspace_losses(tokenizer)))
    if not prefixes_space(tokenizer):
        result = replace(result, add_space_prefix=False)
    return finish(folder, result, special(folder, len(tokens)))


def char_bpe(folder: TokenizerFolder, tokenizer: TokenizerJson, visible: Collection[str]) -> Vocab:
    """Returns BPE over characters with its merges (`Gemma4Model.set_vocab`); its scores are unused. `visible`: control
    tokens that become user-defined."""
    vocab, model = byte_fallback(folder, tokenizer, "reference"), tokenizer.model
    merges = mergelists.spelled(model.merges, model.merge_rows, table_of(tokenizer), "tokenizer.json")
    types = [int(TokenType.USER_DEFINED) if t in visible else k for t, k in zip(vocab.tokens, vocab.types, strict=True)]
    return replace(
        vocab, kind=VocabKind.CHAR_BPE, pre=None, types=types, merges=merges, add_space_prefix=False,
        add={**vocab.add, "bos": True}, losses=tuple(x for x in vocab.losses if x not in metaspace_losses(tokenizer)),
    )  # fmt: skip


def metaspace_losses(tokenizer: TokenizerJson) -> tuple[str, ...]:
    """Returns the differences between `Metaspace` and SentencePiece or llama.cpp."""
    items = [n for n in pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers") if n.get("type") == "Metaspace"]
    if not items or items[0].get("prepend_scheme", "always") == "never":
        return ()
    return ("Metaspace adds no space before a text that begins with one, or after special tokens; llama.cpp does",)


def prefixes_space(tokenizer: TokenizerJson) -> bool:
    """Whether a space is put before the text: by a `Prepend` normalizer, or a `Metaspace` unless its scheme is
    never."""
    items = [*pretokenizer.flat(tokenizer.normalizer, "normalizers")]
    items += pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers")
    return any(
        n.get("type") == "Prepend" or (n.get("type") == "Metaspace" and n.get("prepend_scheme", "always") != "never")
        for n in items[:JSON_DEPTH]
    )
