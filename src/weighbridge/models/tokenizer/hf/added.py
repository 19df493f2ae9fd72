"""Added tokens: the additions of tokenizer.json, tokenizer_config.json and the tokenizer's class to the model's
vocabulary, merged as in transformers. Their entries determine their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from msgspec import structs

from weighbridge.base.errors import FormatError
from weighbridge.models.tokenizer.formats.merges import BYTE_OF
from weighbridge.models.tokenizer.hf.folder import (
    AddedToken,
    TokenizerFolder,
    TokenizerJson,
    class_of_architecture,
    content,
    tokenizer_class,
)
from weighbridge.models.tokenizer.hf.special import ROLES
from weighbridge.models.tokenizer.pretokenizer import flat
from weighbridge.models.tokenizer.vocab import Json, check_size

CLEAN_UP: Final = (  # tokenizers, decoders/wordpiece.rs, `cleanup`
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def class_name(folder: TokenizerFolder) -> str:
    """Returns the tokenizer class of the folder without its "Fast"; "" if unknown, and for a `LlamaTokenizer` over a
    byte-level tokenizer.json, which transformers loads without a class (`AutoTokenizer.from_pretrained`)."""
    kind = (folder.settings or {}).get("tokenizer_class")
    if isinstance(kind, str) and kind:
        name, json = kind.removesuffix("Fast"), folder.tokenizer
        if name != "LlamaTokenizer" or json is None:
            return name
        steps = chain(flat(json.pre_tokenizer, "pretokenizers"), flat(json.decoder, "decoders"))
        return "" if any(step.get("type") == "ByteLevel" for step in steps) else name
    if folder.tokenizer is not None:
        return ""
    if folder.read("vocab.txt") is not None:
        return "BertTokenizer"
    return class_of_architecture(folder.architecture)


def specials(folder: TokenizerFolder) -> Iterator[tuple[str, str]]:
    """Yields (role, text) of the special tokens of tokenizer_config.json and of the tokenizer class. Tokens of one
    model (`image_token`) and additional ones (`additional_special_tokens`, or `extra_special_tokens` since transformers
    5) have the role ""."""
    settings = folder.settings or {}
    # transformers ignores special_tokens_map.json if tokenizer_config.json lists its added tokens.
    mapped = (folder.json("special_tokens_map.json") or {}) if "added_tokens_decoder" not in settings else {}
    stated = {**tokenizer_class(class_name(folder)).special}
    for source in (settings, mapped):
        stated |= {role: source[f"{role}_token"] for role in ROLES if f"{role}_token" in source}
    yield from ((role, text) for role in ROLES if (text := content(stated.get(role))))
    yield from (("", text) for text in model_tokens(folder))
    for source in (settings, mapped):
        for key in ("extra_special_tokens", "additional_special_tokens"):
            listed = source.get(key)
            entries = listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else ()
            yield from (("", text) for entry in entries if (text := content(entry)))


def model_tokens(folder: TokenizerFolder) -> list[str]:
    """Returns the tokens that tokenizer_config.json names under keys of one model, such as `image_token`, otherwise
    those of `model_specific_special_tokens`. transformers takes them as special (`from_pretrained`)."""
    settings = folder.settings or {}
    mapped = folder.json("special_tokens_map.json") or {}
    mapped = {} if "added_tokens_decoder" in settings else mapped
    roles = {f"{role}_token" for role in ROLES}
    keyed = (v for s in (settings, mapped) for k, v in s.items() if k.endswith("_token") and k not in roles)
    texts = [text for value in keyed if (text := content(value))]
    listed = settings.get("model_specific_special_tokens")
    if texts or not isinstance(listed, Mapping):
        return texts
    return [text for entry in listed.values() if (text := content(entry))]


def named_tokens(folder: TokenizerFolder, ids: Mapping[str, int]) -> dict[str, int]:
    """Returns the ids of the special tokens that have one, by role, or by text if they have no role."""
    return {role or text: ids[text] for role, text in specials(folder) if text in ids}


def added_tokens(
    folder: TokenizerFolder, vocab: Mapping[str, int], tokenizer: TokenizerJson | None
) -> dict[int, AddedToken]:
    """Returns all added tokens by id: those of tokenizer.json, of `added_tokens_decoder`, whose flags take precedence,
    and the special tokens in neither, which get the next free id unless the vocabulary has them. Raises FormatError for
    a token with two ids or an id with two tokens."""
    out: dict[int, AddedToken] = {}
    ids: dict[str, int] = {}
    texts = {i: t for t, i in vocab.items()}

    def place(index: int, token: AddedToken, path: str) -> None:
        expected = ids.get(token.content, vocab.get(token.content, index))
        holder = out[index].content if index in out else texts.get(index, token.content)
        if expected != index or holder != token.content:
            raise FormatError(
                f"added token {token.content!r} contradicts the vocabulary", path=path, field=f"id {index}",
                expected=f"id {expected}" if expected != index else repr(holder), found=f"id {index}",
            )  # fmt: skip
        out[index], ids[token.content] = token, index

    in_json = tokenizer.added_tokens if tokenizer is not None else []
    listed = [(t.id, t, "tokenizer.json") for t in in_json]
    listed += [(i, t, "tokenizer_config.json") for i, t in folder.added_decoder.items()]
    # A named token is special, even if the list that transformers reads has another flag.
    named = {*model_tokens(folder), *(text for role, text in specials(folder) if role)}
    first = len(in_json) if folder.added_decoder else 0
    for number, (index, token, path) in enumerate(listed):
        special = token.special or (number >= first and token.content in named)
        place(index, structs.replace(token, special=special), path)
    free = max((len(vocab), *(index + 1 for index, _, _ in listed)))
    for _, text in specials(folder):
        if text not in ids:
            index = check_size(vocab.get(text, free), "added tokens")
            place(index, AddedToken(text, index, special=True, normalized=False), "tokenizer_config.json")
            free = max(free, index + 1)
    return out


def embedded(
    folder: TokenizerFolder, vocab: Mapping[str, int], added: dict[int, AddedToken]
) -> tuple[dict[int, AddedToken], tuple[str, ...]]:
    """Returns the added tokens that the model has, and losses for the others: a token that was only added to the
    tokenizer, as `<pad>` often is, has no row in the embedding."""
    size = folder.vocab_size("vocab_size")
    if size is None or max(vocab.values(), default=-1) >= size:
        return added, ()
    lost = [unembedded(t.content, i, size) for i, t in added.items() if i >= size]
    return {i: t for i, t in added.items() if i < size}, tuple(lost)


def unembedded(text: str, index: int, size: int) -> str:
    """Returns the loss for an added token that the model doesn't have."""
    return f"added token {text} (id {index}): config.json has vocab_size = {size}"


def is_control(text: str) -> bool:
    """Whether the reference's `does_token_look_special` applies: some published files don't mark their control
    tokens."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def decoded(text: str, step: Json) -> str:
    """Returns the text of an added token after one step of a decoder."""
    kind: Any = step.get("type")
    if kind == "ByteLevel" and all(c in BYTE_OF for c in text):  # other texts stay (decoders/byte_level.rs)
        return bytes(BYTE_OF[c] for c in text).decode("utf-8", "replace")
    if kind == "Replace":
        pattern = step.get("pattern")
        old = pattern.get("String") if isinstance(pattern, dict) else None
        return text.replace(old, str(step.get("content", ""))) if isinstance(old, str) and old else text
    if kind == "Strip" and isinstance(size := step.get("start"), int) and isinstance(char := step.get("content"), str):
        cut = len(text) - len(text.lstrip(char)) if len(char) == 1 else 0
        return text[min(size, cut) :]
    if kind == "WordPiece" and step.get("cleanup", True):
        for old, new in CLEAN_UP:
            text = text.replace(old, new)
    return text
