"""RWKV World's tokenizer: repeatedly takes the longest token that a text's bytes begin with (conversion/base.py,
`_set_vocab_rwkv_world`).

    rwkv_vocab_v20230424.txt    one line per token: its id, from 1; a Python literal; its length in bytes

Token 0 ends a text and has no line. A GGUF stores each token's bytes literal without prefix and quotes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import VOCABULARY
from weighbridge.models.tokenizer.hf.folder import TokenizerFolder
from weighbridge.models.tokenizer.hf.special import SpecialTokens
from weighbridge.models.tokenizer.vocab import ChatTemplate, TokenType, Vocab, VocabKind, check_size, padding

NAME: Final = "rwkv_vocab_v20230424.txt"
END: Final = "<s>"
_END_OF_TURN: Final = 261  # two line feeds
_LINE: Final = re.compile(r"(\d{1,7}) (.{1,1024}) (\d{1,4})")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r"}


def vocabulary(folder: TokenizerFolder) -> Vocab:
    """Reads the vocabulary, padded to the model's size, without special ids. Raises FormatError for an invalid line."""
    lines = (folder.text(NAME) or "").splitlines()
    size = check_size(folder.vocab_size("vocab_size") or 1 << 16, "vocab_size")
    if not 0 < len(lines) < min(size, VOCABULARY):
        raise FormatError(
            "has more tokens than the model, or none", path=NAME, expected=f"1..{size - 1}", found=len(lines)
        )
    tokens = [END]
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        try:
            value = ast.literal_eval(match[2]) if match else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
        token = value.encode("utf-8", "replace") if isinstance(value, str) else value
        if match is None or not isinstance(token, bytes) or int(match[1]) != number or int(match[3]) != len(token):
            raise FormatError(
                "not the line of a token", path=NAME, field=f"line {number}", found=ascii(line)[:80],
                expected="its id, a Python literal, its length in bytes",
            )  # fmt: skip
        tokens.append(escaped(token))
    pads = range(len(tokens), size)
    types = [TokenType.CONTROL, *[TokenType.NORMAL] * len(lines), *[TokenType.UNUSED] * len(pads)]
    return Vocab(VocabKind.RWKV, [*tokens, *map(padding, pads)], [int(t) for t in types])


def escaped(token: bytes) -> str:
    """Returns a token's bytes literal without prefix and quotes."""
    return repr(token)[2:-1]


def unescaped(text: str) -> bytes:
    """Inverts `escaped`. Raises FormatError for text that isn't the inside of a bytes literal."""
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _NAMED.get(m[2], m[2]), text)
    try:
        return plain.encode("latin-1")
    except UnicodeEncodeError:
        raise FormatError("not a bytes literal", field="tokenizer.ggml.tokens", found=ascii(text)[:80]) from None


def vocabulary_file(vocab: Vocab) -> bytes:
    """Returns rwkv_vocab_v20230424.txt for a vocabulary, with every token as a bytes literal."""
    types = vocab.types if len(vocab.types) else [TokenType.NORMAL] * len(vocab)
    kept = [unescaped(t) for t, k in zip(vocab.tokens, types, strict=True) if k == TokenType.NORMAL]
    return "".join(f"{i} {token!r} {len(token)}\n" for i, token in enumerate(kept, 1)).encode()


def mend(state: SpecialTokens) -> None:
    """Sets token 0 as the begin and end of a text, and two line feeds as the end of a turn."""
    state.ids.setdefault("eot", _END_OF_TURN)
    state.ids |= {"bos": 0, "eos": 0}


def with_template(vocab: Vocab) -> Vocab:
    """Returns the vocabulary with llama.cpp's name of a chat template if the folder has none."""
    return vocab if vocab.templates else replace(vocab, templates=(ChatTemplate("default", "rwkv-world"),))
