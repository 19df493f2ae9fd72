"""Added tokens: what tokenizer.json, tokenizer_config.json and the tokenizer's class add to the model's
vocabulary, merged as in transformers. Their entries determine their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from msgspec import structs

from weighbridge.base.errors import FormatError
from weighbridge.models.tokenizer.formats.merges import BYTE_OF
from weighbridge.models.tokenizer.hf.folder import AddedToken, TokenizerFolder, TokenizerJson, content
from weighbridge.models.tokenizer.hf.tables import class_of_architecture, tokenizer_class
from weighbridge.models.tokenizer.pretokenizer import flat
from weighbridge.models.tokenizer.vocab import Json, check_size

NAMED: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
CLEAN_UP: Final = (  # tokenizers, decoders/wordpiece.rs, `cleanup`
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def class_name(folder: TokenizerFolder) -> str:
    """The tokenizer class of the folder without its "Fast"; "" if unknown, and for a `LlamaTokenizer` over a byte-level
    tokenizer.json, which transformers loads without a class (`AutoTokenizer.from_pretrained`)."""
    kind = (folder.settings or {}).get("tokenizer_class")
    if isinstance(kind, str) and kind:
        name = kind.removesuffix("Fast")
        return "" if name == "LlamaTokenizer" and _is_byte_level(folder.tokenizer) else name
    if folder.tokenizer is not None:
        return ""
    if folder.read("vocab.txt") is not None:
        return "BertTokenizer"
    return class_of_architecture(folder.architecture)


def _is_byte_level(tokenizer: TokenizerJson | None) -> bool:
    if tokenizer is None:
        return False
    steps = chain(flat(tokenizer.pre_tokenizer, "pretokenizers"), flat(tokenizer.decoder, "decoders"))
    return any(step.get("type") == "ByteLevel" for step in steps)


def specials(folder: TokenizerFolder) -> Iterator[tuple[str, str]]:
    """(role, text) of the special tokens of tokenizer_config.json and of the tokenizer class. Tokens of the model alone
    (`image_token`) and additional ones (`additional_special_tokens`, `extra_special_tokens` since transformers 5) have
    the role ""."""
    settings = folder.settings or {}
    # transformers ignores special_tokens_map.json if tokenizer_config.json lists its added tokens.
    other = (folder.json("special_tokens_map.json") or {}) if "added_tokens_decoder" not in settings else {}
    defaults = tokenizer_class(class_name(folder)).special
    for role in NAMED:
        key = f"{role}_token"
        entry = other[key] if key in other else settings[key] if key in settings else defaults.get(role)
        text = content(entry)
        if text:
            yield role, text
    yield from (("", text) for text in model_tokens(folder))
    for source in (settings, other):
        for key in ("extra_special_tokens", "additional_special_tokens"):
            listed = source.get(key)
            for entry in listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else ():
                text = content(entry)
                if text:
                    yield "", text


def model_tokens(folder: TokenizerFolder) -> list[str]:
    """The tokens that tokenizer_config.json names under keys of the model's own, such as `image_token`; without any,
    those of `model_specific_special_tokens`. transformers takes them for special ones (`from_pretrained`)."""
    settings, other = folder.settings or {}, folder.json("special_tokens_map.json") or {}
    roles = {f"{role}_token" for role in NAMED}
    sources = (settings, {} if "added_tokens_decoder" in settings else other)
    found = [
        text for s in sources for k, v in s.items() if k.endswith("_token") and k not in roles and (text := content(v))
    ]
    listed = settings.get("model_specific_special_tokens")
    if found or not isinstance(listed, Mapping):
        return found
    return [text for entry in listed.values() if (text := content(entry))]


def named_tokens(folder: TokenizerFolder, known: Mapping[str, int]) -> dict[str, int]:
    """The ids of the known special tokens by role, of those without a role by text."""
    return {role or text: known[text] for role, text in specials(folder) if text in known}


def added_tokens(
    folder: TokenizerFolder, vocab: Mapping[str, int], tokenizer: TokenizerJson | None
) -> dict[int, AddedToken]:
    """All added tokens by id: those of tokenizer.json, of `added_tokens_decoder`, whose flags take precedence, and the
    special tokens listed in neither, which get the next free id unless the vocabulary has them."""
    found: dict[int, AddedToken] = {}
    ids: dict[str, int] = {}
    free = len(vocab)
    own = tokenizer.added_tokens if tokenizer is not None else []
    listed = [(t.id, t, "tokenizer.json") for t in own]
    listed += [(i, t, "tokenizer_config.json") for i, t in folder.added_decoder.items()]
    # A named token is special, also where the list that transformers reads has another flag.
    named = {*model_tokens(folder), *(text for role, text in specials(folder) if role)}
    first = len(own) if folder.added_decoder else 0
    texts = {i: t for t, i in vocab.items()}
    for number, (index, token, path) in enumerate(listed):
        if number >= first and token.content in named:
            token = structs.replace(token, special=True)
        place(found, ids, texts, vocab, index, token, path)
        free = max(free, index + 1)
    for _, text in specials(folder):
        if text not in ids:
            index = check_size(vocab.get(text, free), "added tokens")
            token = AddedToken(text, index, special=True, normalized=False)
            place(found, ids, texts, vocab, index, token, "tokenizer_config.json")
            free = max(free, index + 1)
    return found


def embedded(
    folder: TokenizerFolder, vocab: Mapping[str, int], added: dict[int, AddedToken]
) -> tuple[dict[int, AddedToken], tuple[str, ...]]:
    """The added tokens that the model has, and words about the others: a token that was added to the tokenizer alone,
    as `<pad>` often is, has no row in the embedding."""
    size = folder.vocab_size("vocab_size")
    if size is None or max(vocab.values(), default=-1) >= size:
        return added, ()
    lost = [unembedded(t.content, i, size) for i, t in added.items() if i >= size]
    return {i: t for i, t in added.items() if i < size}, tuple(lost)


def unembedded(text: str, index: int, size: int) -> str:
    """The words about an added token that the model doesn't have."""
    return f"added token {text} (id {index}): config.json has vocab_size = {size}"


def place(
    found: dict[int, AddedToken], ids: dict[str, int], texts: Mapping[int, str], vocab: Mapping[str, int],
    index: int, token: AddedToken, path: str,
) -> None:  # fmt: skip
    """Adds one token, or replaces its flags. FormatError for a token with two ids or an id with two tokens."""
    have = ids.get(token.content, vocab.get(token.content, index))
    other = found[index].content if index in found else texts.get(index, token.content)
    if have != index or other != token.content:
        raise FormatError(
            f"added token {token.content!r} contradicts the vocabulary", path=path, field=f"id {index}",
            expected=f"id {have}" if have != index else repr(other), found=f"id {index}",
        )  # fmt: skip
    found[index], ids[token.content] = token, index


def is_control(text: str) -> bool:
    """The reference's `does_token_look_special`: control tokens that some published files don't mark."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def spoken(text: str, decoder: Json | None) -> str:
    """What an added token decodes to. The reference encodes and decodes every one that isn't normalized."""
    for step in flat(decoder, "decoders"):
        text = decoded(text, step)
    return text


def decoded(text: str, step: Json) -> str:
    """`text` after one step of a decoder."""
    kind: Any = step.get("type")
    if kind == "ByteLevel" and all(c in BYTE_OF for c in text):  # other texts stay (decoders/byte_level.rs)
        return bytes(BYTE_OF[c] for c in text).decode("utf-8", "replace")
    if (
        kind == "Replace"
        and isinstance(pattern := step.get("pattern"), dict)
        and isinstance(pattern.get("String"), str)
    ):
        return text.replace(pattern["String"], str(step.get("content", ""))) if pattern["String"] else text
    if kind == "Strip" and isinstance(size := step.get("start"), int) and isinstance(char := step.get("content"), str):
        cut = len(text) - len(text.lstrip(char)) if len(char) == 1 else 0
        return text[min(size, cut) :]
    if kind == "WordPiece" and step.get("cleanup", True):
        for old, new in CLEAN_UP:
            text = text.replace(old, new)
    return text
