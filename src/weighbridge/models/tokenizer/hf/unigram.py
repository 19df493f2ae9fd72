"""Unigram, SentencePiece's probabilistic model: the likeliest split of a text. llama.cpp calls it `t5`.

    spiece.model, tokenizer.model   ids are those of the pieces          conversion/t5.py, `T5Model.set_vocab`
    sentencepiece.bpe.model         ids are fairseq's                    conversion/bert.py, `_xlmroberta_set_vocab`
    tokenizer.json                  ids are positions in its list        the same, second half

If both exist, ids come from tokenizer.json, as in transformers; the SentencePiece model adds information that
tokenizer.json lacks: which pieces are unused, and the normalizer's switches.

Deliberate corrections of the reference:
  * added tokens (sentinels, <mask>) have their names; the reference writes padding;
  * the normalizer decides whether spaces are merged; without a SentencePiece model the reference reads
    `clean_up_tokenization_spaces`, a decoding switch;
  * an unknown token other than llama.cpp's default (id 2), and tokens added around a text, are written.
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.formats import sentencepiece
from weighbridge.models.tokenizer.hf.added import (
    added_tokens,
    class_name,
    embedded,
    is_control,
    named_tokens,
    unembedded,
)
from weighbridge.models.tokenizer.hf.folder import Id, TokenizerFolder, TokenizerJson, tokenizer_class
from weighbridge.models.tokenizer.hf.special import SpecialTokens
from weighbridge.models.tokenizer.vocab import (
    BYTE_TOKEN,
    NO_SCORE,
    PAD_SCORE,
    SPACE,
    Json,
    TokenType,
    Vocab,
    VocabKind,
    check_size,
    padding,
)

# The first four tokens of fairseq's dictionary, which replace SentencePiece's <unk>, <s>, </s>.
FAIRSEQ: Final = (
    ("<s>", TokenType.CONTROL), ("<pad>", TokenType.CONTROL), ("</s>", TokenType.CONTROL), ("<unk>", TokenType.UNKNOWN),
)  # fmt: skip
FAIRSEQ_FILE: Final = "sentencepiece.bpe.model"
ALIGNED: Final = ["<unk>", "<s>", "</s>"]  # the pieces that those four replace
TRIM: Final = {"Regex": r"\A +| +\z"}  # trims spaces only; `Strip` trims all white space
F32_MAX: Final = 3.4028234663852886e38
UNKNOWN_ID: Final = 2  # llama.cpp's default (llama-vocab.cpp, `load`)


class SpmFile(NamedTuple):
    """A SentencePiece model and its file name."""

    name: str
    model: sentencepiece.SentencePieceModel


@dataclass
class VocabRows:
    """A vocabulary under construction: three parallel lists."""

    tokens: list[str]
    scores: list[float]
    types: list[int]

    def put(self, index: int, text: str, score: float, kind: int) -> None:
        """Sets a token, after padding up to its id."""
        for i in range(len(self.tokens), check_size(index, "added tokens") + 1):
            self.tokens.append(padding(i))
            self.scores.append(PAD_SCORE)
            self.types.append(int(TokenType.UNUSED))
        self.tokens[index], self.scores[index], self.types[index] = text, score, int(kind)


@dataclass(frozen=True)
class TextNormalization:
    """Changes to a text before it is split. `prefix`: a space is put before it; `merge`: spaces are merged;
    `whitespace`: tabs and newlines count as spaces; `unknown`: steps that llama.cpp doesn't have."""

    charsmap: bytes = b""
    prefix: bool = False
    merge: bool = False
    unknown: tuple[str, ...] = ()
    whitespace: bool = False


def unigram(folder: TokenizerFolder, tokenizer: TokenizerJson | None, file: SpmFile | None, pre: str | None) -> Vocab:
    """Returns the vocabulary without special ids, from at least one of the two sources."""
    rows = listed(tokenizer, file) if tokenizer is not None else pieces(folder, file)
    beyond = place_added(folder, tokenizer, rows)
    size = folder.vocab_size("vocab_size") or len(rows.tokens)
    if size < len(rows.tokens):
        raise FormatError(
            "the tokenizer has more tokens than the model", path="config.json", field="vocab_size",
            expected=f">= {len(rows.tokens)}", found=size, hint="use the tokenizer from the model's folder",
        )  # fmt: skip
    if size > len(rows.tokens):
        rows.put(size - 1, padding(size - 1), PAD_SCORE, TokenType.UNUSED)
    rules = normalization(tokenizer, file)
    if rules.unknown and pre is None:
        raise UnsupportedError(
            f"Unigram with a normalizer that llama.cpp doesn't have: {', '.join(rules.unknown)}",
            hint="use --pre default to convert without it",
        )
    result = Vocab(
        VocabKind.UNIGRAM, rows.tokens, rows.types, rows.scores, pre=pre or "default", charsmap=rules.charsmap or None,
        add_space_prefix=rules.prefix, remove_extra_whitespaces=rules.merge, losses=(*beyond, *lost(rules, rows)),
    )  # fmt: skip
    return replace(result, token_type_count=folder.type_count) if folder.rules.token_types else result


def listed(tokenizer: TokenizerJson, file: SpmFile | None) -> VocabRows:
    """Returns the tokens and scores of tokenizer.json, with types from the SentencePiece model if there is one."""
    place: dict[str, Any] = {"path": "tokenizer.json", "field": "model.vocab"}
    model = tokenizer.model
    vocab = model.vocab if isinstance(model.vocab, list) else []
    if not vocab:
        raise FormatError("the vocabulary isn't a list of tokens and scores", **place)
    seen: dict[str, int] = {}
    for i, (text, score) in enumerate(vocab):
        if seen.setdefault(text, i) != i:
            raise FormatError(f"a token occurs twice, as id {seen[text]} and {i}", **place, found=text)
        if not -F32_MAX <= score <= F32_MAX:
            raise FormatError(f"the score of id {i} doesn't fit 32 bits", **place, found=score)
    if model.unk_id is not None and model.unk_id >= len(vocab):
        raise FormatError(
            "the unknown token's id is outside of the vocabulary", path="tokenizer.json", field="model.unk_id",
            expected=f"< {len(vocab)}", found=model.unk_id,
        )  # fmt: skip
    piece_types = {} if file is None else dict(zip(file.model.pieces, plain(file.model.types), strict=True))
    rows = VocabRows(
        [t for t, _ in vocab], [s for _, s in vocab], [piece_types.get(t, int(TokenType.NORMAL)) for t, _ in vocab]
    )
    for i, text in enumerate(rows.tokens):
        if model.byte_fallback and BYTE_TOKEN.fullmatch(text):
            rows.types[i] = int(TokenType.BYTE)
        elif rows.types[i] == TokenType.UNKNOWN:
            rows.types[i] = int(TokenType.NORMAL)
    if model.unk_id is not None:
        rows.types[model.unk_id] = int(TokenType.UNKNOWN)
    return rows


def plain(types: Sequence[int]) -> list[int]:
    """Returns types with user-defined pieces as normal ones, as in the reference: llama.cpp would cut user-defined
    pieces out of the text and drop the space before them, and their score of 0 makes them win anyway."""
    return [int(TokenType.NORMAL if t == TokenType.USER_DEFINED else t) for t in types]


def user_defined(text: str) -> int:
    """The type of an added token: user-defined if it is ASCII. llama.cpp splits characters that share their first byte
    with a user-defined token into bytes (`naive_trie::get_longest_prefix`): "\u2581<extra_id_0>" would break dashes and
    quotes."""
    return int(TokenType.USER_DEFINED if text.isascii() else TokenType.NORMAL)


def pieces(folder: TokenizerFolder, file: SpmFile | None) -> VocabRows:
    """Returns a SentencePiece model's pieces, at the ids that the tokenizer class assigns."""
    assert file is not None
    model, name = file.model, class_name(folder)
    rules = tokenizer_class(name)
    rows = VocabRows(list(model.pieces), list(model.scores), plain(model.types))
    if file.name == FAIRSEQ_FILE:
        if not rules.fairseq_ids or rows.tokens[:3] != ALIGNED:
            raise UnsupportedError(
                f"{FAIRSEQ_FILE} of a {name or 'tokenizer without a class'}: the ids of its pieces are unknown",
                hint="AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json with the ids",
            )
        rows.tokens[:3] = [t for t, _ in FAIRSEQ]
        rows.scores[:3] = [0.0] * len(FAIRSEQ)
        rows.types[:3] = [int(k) for _, k in FAIRSEQ]
        if len(set(rows.tokens)) != len(rows.tokens):
            raise FormatError("a piece has the name of one of fairseq's tokens", path=file.name, found="<pad>")
    elif rules.extra_ids:
        count = (folder.settings or {}).get("extra_ids", rules.extra_ids)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise FormatError("not a count", path="tokenizer_config.json", field="extra_ids", found=count)
        first, texts = len(rows.tokens), set(rows.tokens)
        check_size(first + count, "extra_ids")
        for i, text in enumerate(f"<extra_id_{n}>" for n in reversed(range(count))):
            if text not in texts:
                rows.put(first + i, text, 0.0, TokenType.CONTROL)
    return rows


def place_added(folder: TokenizerFolder, tokenizer: TokenizerJson | None, rows: VocabRows) -> list[str]:
    """Adds the tokens of added_tokens.json, then those of tokenizer.json, tokenizer_config.json and the class. Returns
    losses for those that the model has no row for."""
    more: Mapping[str, int] = folder.json("added_tokens.json", dict[str, Id]) or {} if tokenizer is None else {}
    size = folder.vocab_size("vocab_size")
    beyond = []
    for text, index in more.items():
        if size is None or index < size:
            rows.put(index, text, NO_SCORE, user_defined(text))
        else:
            beyond.append(unembedded(text, index, size))
    ids = {t: i for i, t in enumerate(rows.tokens)}
    added, lost = embedded(folder, ids, added_tokens(folder, ids, tokenizer))
    for index, token in sorted(added.items()):
        score = rows.scores[index] if index < len(rows.tokens) else 0.0
        control = token.special or is_control(token.content)
        kind = int(TokenType.CONTROL) if control else user_defined(token.content)
        if index >= len(rows.tokens) or rows.types[index] != TokenType.UNKNOWN:
            rows.put(index, token.content, score, kind)
    return [*beyond, *lost]


def normalization(tokenizer: TokenizerJson | None, file: SpmFile | None) -> TextNormalization:
    """Returns the normalization: the SentencePiece model's switches if there is one, other steps from tokenizer.json,
    its normalizer and its pre-tokenizer."""
    rules, unknown = TextNormalization(), list[str]()
    if tokenizer is not None:
        items = [*pretokenizer.flat(tokenizer.normalizer, "normalizers")]
        for item in [*items, *pretokenizer.flat(tokenizer.pre_tokenizer, "pretokenizers")]:
            changes = switches(item)
            if changes is None:
                unknown.append(str(item.get("type")))
            else:
                rules = replace(rules, **changes)
    rules = replace(rules, unknown=tuple(unknown))
    if file is None:
        check_charsmap(rules.charsmap, "tokenizer.json", "normalizer")
        return rules
    model = file.model
    check_charsmap(model.charsmap, file.name, "precompiled_charsmap")
    return replace(
        rules, charsmap=model.charsmap, prefix=model.add_dummy_prefix, merge=model.remove_extra_whitespaces,
        whitespace=False,
    )  # fmt: skip


def switches(item: Json) -> Json | None:
    """Returns the fields that a step sets, or None for a step that SentencePiece doesn't have."""
    kind, pattern = item.get("type"), item.get("pattern")
    if kind == "Precompiled":
        text = item.get("precompiled_charsmap")
        try:
            return {"charsmap": b64decode(text, validate=True) if isinstance(text, str) else b""}
        except (binascii.Error, ValueError) as error:
            field = "normalizer.precompiled_charsmap"
            raise FormatError(f"not base64: {error}", path="tokenizer.json", field=field) from error
    if kind == "Strip" or (kind == "Replace" and pattern == TRIM):
        return {"merge": True}
    if kind == "WhitespaceSplit":
        return {"merge": True, "whitespace": True}
    if kind == "Prepend" and item.get("prepend") == SPACE:
        return {"prefix": True}
    if kind == "Metaspace":
        never = item.get("prepend_scheme", "always") == "never" or item.get("add_prefix_space") is False
        return {} if never else {"prefix": True}
    if kind == "Replace" and isinstance(pattern, dict):
        to = item.get("content")
        if pattern == {"String": " "} and to == SPACE:
            return {}
        if pattern == {"Regex": " {2,}"} and to in (SPACE, " "):
            return {"merge": True}
    return None


def check_charsmap(data: bytes, path: str | None, field: str) -> None:
    """Raises FormatError for a map that llama.cpp refuses: its trie must end inside it, with a byte left
    (llama-vocab.cpp)."""
    if data and (len(data) < 4 or struct.unpack_from("<I", data)[0] + 4 >= len(data)):
        size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 4
        raise FormatError(
            "the table of replacements is truncated", path=path, field=field, expected=f"> {size + 4} bytes",
            found=len(data),
        )  # fmt: skip


def lost(rules: TextNormalization, rows: VocabRows) -> list[str]:
    """Returns the differences to llama.cpp."""
    out = [f"the normalizer ({', '.join(rules.unknown)}): llama.cpp has none"] if rules.unknown else []
    if TokenType.BYTE in rows.types:
        out.append("byte fallback: llama.cpp uses the unknown token for a character without a token")
    if rules.merge and not rules.prefix:
        out.append("no space before a text: llama.cpp adds one whenever it merges spaces")
    if rules.whitespace and not rules.charsmap:
        out.append("tabs and newlines as spaces: llama.cpp keeps them as characters")
    return out


def mend(
    folder: TokenizerFolder, tokenizer: TokenizerJson | None, file: SpmFile | None, vocab: Vocab, state: SpecialTokens
) -> None:
    """Adds the special ids that a folder without tokenizer.json leaves to its class, and an unusual unknown token."""
    if tokenizer is None and file is not None and file.name == FAIRSEQ_FILE:
        for role, index in named_tokens(folder, {t: i for i, t in enumerate(vocab.tokens)}).items():
            state.ids.setdefault(role, index)
        state.add = {"bos": True, "eos": True, "sep": True} | state.add
    unknown = next((i for i, k in enumerate(vocab.types) if k == TokenType.UNKNOWN), UNKNOWN_ID)
    if unknown != UNKNOWN_ID:
        state.ids.setdefault("unk", unknown)


# ------------------------------------------------------------------------------------------------ writing


def parts(vocab: Vocab, texts: list[str], types: list[int], unknown: int | None, processor: Json | None) -> Json:
    """Returns the parts of a tokenizer.json with llama.cpp's normalization, over the whole text between two special
    tokens. (Published files split at white space first, which is the same unless a token crosses a space.)"""
    scores = vocab.scores if len(vocab.scores) else [0.0] * len(texts)
    steps: list[Json] = []
    if vocab.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(vocab.charsmap).decode()})
    if vocab.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": TRIM, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    strip = []
    if vocab.add_space_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    unescape = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": processor,
        "decoder": {"type": "Sequence", "decoders": [unescape, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "Unigram", "unk_id": unknown, "byte_fallback": TokenType.BYTE in types,
            "vocab": [[text, float(score)] for text, score in zip(texts, scores, strict=False)],
        },
    }  # fmt: skip


def model_file(vocab: Vocab, texts: list[str], types: list[int]) -> dict[str, bytes]:
    """Returns the SentencePiece model to write; sentencepiece.bpe.model, without fairseq's additions, for fairseq's
    ids. No file unless there is exactly one unknown piece, which SentencePiece requires."""
    scores = [float(s) for s in vocab.scores[: len(texts)]] if len(vocab.scores) else [0.0] * len(texts)
    rows, name, ids = VocabRows(list(texts), scores, list(types)), "spiece.model", vocab.special
    if [(t, k) for t, k in zip(texts, types, strict=True)][: len(FAIRSEQ)] == list(FAIRSEQ):
        name, ids = FAIRSEQ_FILE, {"unk": 0, "bos": 1, "eos": 2}
        end = len(texts) - 1 if (texts[-1], types[-1]) == ("<mask>", TokenType.CONTROL) else len(texts)
        rows = VocabRows([*ALIGNED, *texts[4:end]], [0.0, 0.0, 0.0, *scores[4:end]], [2, 3, 3, *types[4:end]])
    if rows.types.count(TokenType.UNKNOWN) != 1 or len(set(rows.tokens)) != len(rows.tokens):
        return {}
    model = sentencepiece.SentencePieceModel(
        rows.tokens, rows.scores, rows.types, model_type=sentencepiece.UNIGRAM,
        byte_fallback=TokenType.BYTE in types, add_dummy_prefix=bool(vocab.add_space_prefix),
        remove_extra_whitespaces=bool(vocab.remove_extra_whitespaces), charsmap=vocab.charsmap or b"",
        normalizer="nmt_nfkc" if vocab.charsmap else "",
        ids={r: ids.get(r, -1) for r in ("bos", "eos", "pad")} | {"unk": rows.types.index(TokenType.UNKNOWN)},
    )  # fmt: skip
    return {name: sentencepiece.dump(model)}
