"""vocab.json and merges.txt, byte-level BPE from before tokenizer.json: read into the form of a tokenizer.json, with
the tokenizer class's additions (transformers, convert_slow_tokenizer.py).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.tokenizer import pretokenizer
from weighbridge.models.tokenizer.hf.added import class_name, named_tokens, specials
from weighbridge.models.tokenizer.hf.folder import (
    AddedToken,
    Id,
    PostProcessor,
    TokenizerFolder,
    TokenizerJson,
    TokenizerModel,
    tokenizer_class,
)
from weighbridge.models.tokenizer.vocab import Vocab

VOCAB, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"


def tokenizer(folder: TokenizerFolder, pre: str | None) -> TokenizerJson:
    """Returns the files as a tokenizer.json. An unknown tokenizer class needs the pre-tokenizer's name (`pre`)."""
    name = class_name(folder)
    rules = tokenizer_class(name)
    if not rules.pre and pre is None:
        raise UnsupportedError(
            f"vocab.json and merges.txt of {name or 'a tokenizer without a class'}: the pre-tokenizer is unknown",
            hint="use --pre NAME; or AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json",
        )
    vocab: dict[str, int] = folder.json(VOCAB, dict[str, Id], TOKENIZER_JSON)
    rows: dict[str, int] = folder.json(ADDED, dict[str, Id]) or {}
    special = {text for _, text in specials(folder)}
    added = [AddedToken(t, i, special=t in special, normalized=t not in special) for t, i in rows.items()]
    pre_tokenizer = pretokenizer.definition(rules.pre or pre or "")
    if (folder.settings or {}).get("add_prefix_space") is True:
        pre_tokenizer = {**pre_tokenizer, "add_prefix_space": True}
    return TokenizerJson(
        TokenizerModel("BPE", vocab, msgspec.Raw(msgspec.json.encode(merges(folder)))),
        added_tokens=added,
        normalizer={"type": rules.normalizer} if rules.normalizer else None,
        pre_tokenizer=pre_tokenizer,
        post_processor=PostProcessor("RobertaProcessing") if rules.adds_ends else None,
        decoder={"type": "ByteLevel"},
    )


def merges(folder: TokenizerFolder) -> list[tuple[str, str]]:
    """Reads merges.txt: two parts per line, after a line with the version."""
    text = folder.text(MERGES)
    if text is None:
        raise FormatError(
            "vocab.json without merges.txt", path=MERGES, hint="get merges.txt from the source of vocab.json"
        )
    out = []
    for number, line in enumerate(text.split("\n"), 1):
        row = line.rstrip("\r")
        if not row or (number == 1 and row.startswith("#")):
            continue
        parts = row.split(" ")
        if len(parts) != 2 or not all(parts):
            raise FormatError("a merge has two parts", path=MERGES, field=f"line {number}", found=row[:60])
        out.append((parts[0], parts[1]))
    return out


def mend(folder: TokenizerFolder, vocab: Vocab) -> Vocab:
    """Returns the vocabulary with the special ids of tokenizer_config.json and the class, and the tokens that the class
    adds to a text."""
    ids = {t: i for i, t in enumerate(vocab.tokens)}
    roles = {r: i for r, i in named_tokens(folder, ids).items() if r not in ids}
    adds_ends = tokenizer_class(class_name(folder)).adds_ends
    flags = {"bos": True, "eos": True, "sep": True} if adds_ends else {}
    return replace(vocab, special={**roles, **vocab.special}, add={**flags, **vocab.add})
