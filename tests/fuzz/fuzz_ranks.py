"""Invariant: whatever rank file or merges.txt comes in is a vocabulary that both writers take, or refused.

Data that begins with `{` is a tekken.json, with `#` a merges.txt beside a small vocab.json, other data tiktoken.model.
A vocabulary that comes out has as many types as tokens and no token twice in a GGUF, and its folder is read back.
"""

from __future__ import annotations

import base64
import json
import sys

import harness

from weighbridge.models.tokenizer import from_gguf, from_hf, to_gguf, to_hf
from weighbridge.models.tokenizer.pretokenizer import known

WORDS = [b"ab", b"abc", b" a", b"aa", b"aaaa", b"\xc3\xa9"]
ADDED = {"262": {"content": "[BOS]", "special": True}, "263": {"content": "[EOS]", "special": True}}
SETTINGS = json.dumps(
    {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": ADDED, "bos_token": "[BOS]", "eos_token": "[EOS]"}
).encode()
VOCAB = json.dumps({"a": 0, "b": 1, "ab": 2, "abab": 3}).encode()


def target(data: bytes) -> None:
    """Read it, and take it through both forms."""
    name = "tekken.json" if data.startswith(b"{") else "merges.txt" if data.startswith(b"#") else "tiktoken.model"
    files = {name: data, "tokenizer_config.json": SETTINGS, **({"vocab.json": VOCAB} if name == "merges.txt" else {})}
    vocab = from_hf(files.get)
    assert len(vocab.types) == len(vocab.tokens)
    keys = to_gguf(vocab)
    assert len(set(vocab.tokens)) == len(vocab.tokens)
    back = from_gguf({key: kv.value for key, kv in keys.items()})
    again = from_hf(to_hf(back).get)
    assert list(again.tokens) == list(vocab.tokens)


def seeds() -> list[bytes]:
    """A file of each kind."""
    tokens = [*(bytes([b]) for b in range(256)), *WORDS]
    lines = b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens))
    rows = [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)]
    special = [{"rank": i, "token_str": t} for i, t in enumerate(("<unk>", "<s>", "</s>", "<pad>"))]
    config = {"pattern": known("tekken").steps[0], "version": "v7", "default_num_special_tokens": 6}
    tekken = json.dumps({"config": config, "vocab": rows, "special_tokens": special}).encode()
    out = [lines, tekken, b"#version: 0.2\na b\nab ab\n"]
    for data in out:  # they must get all the way through: an error here is one
        target(data)
    return out


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
