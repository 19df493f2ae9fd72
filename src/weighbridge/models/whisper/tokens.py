"""Whisper's tokens: byte strings by rank, then special tokens, whose ids follow from the number of tokens.

A whisper.cpp file has only the byte strings; the program makes up the special tokens (src/whisper.cpp,
`whisper_model_load`). OpenAI's tokenizer.py, `get_encoding`, has their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.formats import bpe_ranks
from weighbridge.models.tokenizer.formats.merges import BYTE_OF, joined
from weighbridge.models.tokenizer.hf.folder import Id, TokenizerFolder, table_of
from weighbridge.models.tokenizer.hf.write import to_hf
from weighbridge.models.tokenizer.vocab import TokenType, Vocab, VocabKind

END, START = "<|endoftext|>", "<|startoftranscript|>"
#: The languages, in the order of their tokens. Models before large-v3 lack the last one.
LANGUAGES: Final = (
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id", "hi", "fi",
    "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg", "lt", "la", "mi", "ml",
    "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs",
    "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu", "am",
    "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln",
    "ha", "ba", "jw", "su", "yue",
)  # fmt: skip
TASKS: Final = ("translate", "transcribe")
NO_TIMESTAMPS: Final = "<|notimestamps|>"
_AFTER: Final = (*(f"<|{task}|>" for task in TASKS), "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", NO_TIMESTAMPS)
#: From 0.00 to 30.00 seconds.
_TIMESTAMPS: Final = tuple(f"<|{i * 0.02:.2f}|>" for i in range(1501))
# transformers' name of a token in models before large-v3
_ALIASES: Final = {"<|nocaptions|>": "<|nospeech|>"}
# tiktoken files of OpenAI's package, by whether the model has several languages
_RANK_FILES: Final = {True: "multilingual.tiktoken", False: "gpt2.tiktoken"}
MULTILINGUAL: Final = 51865  # the smallest vocabulary of a multilingual model


def languages(rows: int, tokens: int) -> int | None:
    """Returns the number of languages of a model with `tokens` byte strings and `rows` tokens in all; None if the
    special tokens aren't Whisper's."""
    count = rows - tokens - 2 - len(_AFTER) - len(_TIMESTAMPS)
    return count if 0 <= count <= len(LANGUAGES) else None


def special_tokens(rows: int, tokens: int) -> dict[str, int]:
    """Returns the special tokens without the timestamps, and their ids. Empty if they aren't Whisper's."""
    count = languages(rows, tokens)
    spoken = () if count is None else (END, START, *(f"<|{name}|>" for name in LANGUAGES[:count]), *_AFTER)
    return {text: tokens + i for i, text in enumerate(spoken)}


def read_tokens(model: OpenModel, rows: int) -> tuple[list[bytes], list[str]]:
    """Reads the byte strings before `<|endoftext|>` from the tokenizer's files, in the order of their ids, and lists
    the special tokens that Whisper doesn't have. Raises FormatError for a gap, UnsupportedError without a file."""
    folder = TokenizerFolder(model.place.read)
    ranks = model.place.read(_RANK_FILES[rows >= MULTILINGUAL], TOKENIZER_JSON)
    if folder.tokenizer is not None:
        name, vocab = "tokenizer.json", dict(table_of(folder.tokenizer))
        vocab |= {token.content: token.id for token in folder.tokenizer.added_tokens}
    elif (listed := folder.json("vocab.json", dict[str, Id], TOKENIZER_JSON)) is not None:
        name, vocab = "vocab.json", {**listed, **(folder.json("added_tokens.json", dict[str, Id]) or {})}
    elif ranks is not None:
        name = _RANK_FILES[rows >= MULTILINGUAL]
        body, _, last = ranks.rstrip(b"\n").rpartition(b"\n")
        empty = last.startswith(b"= ")  # the empty token, which isn't valid base64
        parsed = bpe_ranks.parse(body if empty else ranks, name)
        vocab = {bpe_ranks.spelled(token): rank for token, rank in parsed.items()}
        vocab[END] = 1 + max(parsed.values()) + empty
    else:
        raise UnsupportedError(
            f"{model.place.path} has no tokenizer, which a whisper.cpp file needs",
            hint=f"put tokenizer.json, vocab.json or OpenAI's {_RANK_FILES[rows >= MULTILINGUAL]} next to it, or pass "
            "their folder with --config",
        )
    return _split(vocab, rows, name)


def _split(vocab: Mapping[str, int], rows: int, name: str) -> tuple[list[bytes], list[str]]:
    """Splits a vocabulary at `<|endoftext|>` into byte strings and unexpected special tokens."""
    end = vocab.get(END)
    if end is None:
        raise FormatError("the tokenizer isn't Whisper's", path=name, expected=END, found="no such token")
    by_id = {i: text for text, i in vocab.items() if i < end}
    gap = next((i for i in range(end) if i not in by_id), None)
    if gap == end - 1:  # multilingual models have an empty token here, which some files omit
        by_id[gap] = ""
    elif gap is not None:
        raise FormatError("an id has no token", path=name, found=gap)
    try:
        tokens = [bytes(BYTE_OF[char] for char in by_id[i]) for i in range(end)]
    except KeyError as error:
        raise FormatError("a token isn't byte-level BPE", path=name, found=ascii(error.args[0])) from None
    known = special_tokens(rows, end)
    known |= {text: len(known) + end + i for i, text in enumerate(_TIMESTAMPS)} if known else {END: end}
    others = [text for text, i in vocab.items() if i >= end and known.get(_ALIASES.get(text, text)) != i]
    return tokens, others


def tokenizer_files(tokens: Sequence[bytes], rows: int) -> dict[str, bytes] | None:
    """Returns tokenizer.json and tokenizer_config.json; None if the special tokens aren't Whisper's."""
    special = special_tokens(rows, len(tokens))
    if not special:
        return None
    ranks = {token: i for i, token in enumerate(tokens) if token}
    bpe_ranks.check(ranks, "tokens")
    texts = [*map(bpe_ranks.spelled, tokens), *special, *_TIMESTAMPS]
    kinds = [*([TokenType.NORMAL] * len(tokens)), *([TokenType.CONTROL] * len(special))]
    kinds += [TokenType.USER_DEFINED] * len(_TIMESTAMPS)
    end = special[END]
    vocab = Vocab(
        VocabKind.BPE, texts, [int(kind) for kind in kinds], merges=joined(bpe_ranks.natural(ranks)), pre="gpt-2",
        special={"bos": end, "eos": end, "unk": end, "pad": end},
    )  # fmt: skip
    files = to_hf(vocab)
    settings: dict[str, Any] = json.loads(files["tokenizer_config.json"])
    settings.pop("gguf_token_types", None)
    settings |= {"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor", "errors": "replace"}
    # without the timestamps, which begin after the last special token
    settings["additional_special_tokens"] = list(special)
    return files | {"tokenizer_config.json": (json.dumps(settings, indent=2) + "\n").encode()}
