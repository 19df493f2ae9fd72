"""vocab.json and merges.txt, the files of byte-level BPE before there was tokenizer.json (GPT-2, RoBERTa, Qwen 2):
brought to the form of a tokenizer.json, with what the class adds to them (transformers, convert_slow_tokenizer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

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
)
from weighbridge.models.tokenizer.vocab import Json, Vocab

VOCAB, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"


class SlowTokenizer(NamedTuple):
    """A class of transformers: a name of its pre-tokenizer, its normalizer, and whether it puts tokens around a text as
    RoBERTa does."""

    pre: str
    normalizer: str = ""
    around: bool = False


CLASSES: Final[Mapping[str, SlowTokenizer]] = {
    "GPT2Tokenizer": SlowTokenizer("gpt-2"),
    "CodeGenTokenizer": SlowTokenizer("gpt-2"),
    "RobertaTokenizer": SlowTokenizer("gpt-2", around=True),
    "BartTokenizer": SlowTokenizer("gpt-2", around=True),
    "LongformerTokenizer": SlowTokenizer("gpt-2", around=True),
    "Qwen2Tokenizer": SlowTokenizer("qwen2", "NFC"),
}


def present(folder: TokenizerFolder) -> bool:
    return folder.read(VOCAB) is not None


def tokenizer(folder: TokenizerFolder, pre: str | None) -> TokenizerJson:
    """The files as a tokenizer.json. A class that we don't know needs a name from the caller."""
    name = class_name(folder)
    known = CLASSES.get(name)
    if known is None and pre is None:
        raise UnsupportedError(
            f"vocab.json and merges.txt of {name or 'a tokenizer without a class'}: we don't know how its text is cut",
            hint="use --pre NAME; or AutoTokenizer.from_pretrained(...).save_pretrained(...) writes a tokenizer.json",
        )
    what = known or SlowTokenizer(pre or "")
    vocab: dict[str, int] = folder.json(VOCAB, dict[str, Id], TOKENIZER_JSON)
    rows: dict[str, int] = folder.json(ADDED, dict[str, Id]) or {}
    special = {text for _, text in specials(folder)}
    added = [AddedToken(t, i, special=t in special, normalized=t not in special) for t, i in rows.items()]
    return TokenizerJson(
        TokenizerModel("BPE", vocab, [*merges(folder)]),
        added_tokens=added,
        normalizer={"type": what.normalizer} if what.normalizer else None,
        pre_tokenizer=cut(folder, what.pre),
        post_processor=PostProcessor("RobertaProcessing") if what.around else None,
        decoder={"type": "ByteLevel"},
    )


def cut(folder: TokenizerFolder, name: str) -> Json:
    """The pre-tokenizer, with a space before the text where tokenizer_config.json wants one."""
    item = pretokenizer.definition(name)
    if (folder.settings or {}).get("add_prefix_space") is True:
        return {**item, "add_prefix_space": True}
    return item


def merges(folder: TokenizerFolder) -> list[tuple[str, str]]:
    """merges.txt: two parts a line, after a line that names the version."""
    text = folder.text(MERGES)
    if text is None:
        raise FormatError(
            "vocab.json without its merges", path=MERGES, hint="get merges.txt from where vocab.json came from"
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
    """Special ids by the names of tokenizer_config.json and of the class, and what the class puts around a text."""
    known = {t: i for i, t in enumerate(vocab.tokens)}
    roles = {r: i for r, i in named_tokens(folder, known).items() if r not in known}
    around = CLASSES.get(class_name(folder), SlowTokenizer("")).around
    flags = {"bos": True, "eos": True, "sep": True} if around else {}
    return replace(vocab, special={**roles, **vocab.special}, add={**flags, **vocab.add})
