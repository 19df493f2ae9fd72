"""Invariant: whatever tokenizer.model or tokenizer.json comes in is a vocabulary that both writers take, or refused.

A vocabulary that comes out has as many types as tokens, special ids that fit their key, and no token twice in a GGUF.
Data that begins with `{` is a tokenizer.json, other data a tokenizer.model; a small config.json stands beside them.
"""

from __future__ import annotations

import json
import sys

import harness

from weighbridge.models.tokenizer import from_gguf, from_hf, to_gguf, to_hf
from weighbridge.models.tokenizer.formats.sentencepiece import BPE, UNIGRAM, SentencePieceModel, dump

SETTINGS = json.dumps(
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": "{{ x }}"}
).encode()
ADDED = [{"id": i, "content": t, "special": True, "normalized": False} for i, t in enumerate(("<unk>", "<s>", "</s>"))]


def target(data: bytes) -> None:
    """Read it, and take it through both forms."""
    name = "tokenizer.json" if data.startswith(b"{") else "tokenizer.model"
    files = {name: data, "tokenizer_config.json": SETTINGS}
    vocab = from_hf(files.get)
    assert len(vocab.types) == len(vocab.tokens)
    keys = to_gguf(vocab)
    assert len(set(vocab.tokens)) == len(vocab.tokens)
    assert all(0 <= i < 1 << 32 for i in vocab.special.values())
    back = from_gguf({key: kv.value for key, kv in keys.items()})
    assert list(back.tokens) == list(vocab.tokens)
    for content in to_hf(back).values():
        assert isinstance(content, bytes)


def seeds() -> list[bytes]:
    """A model of 20 pieces, and the three kinds of tokenizer.json."""
    words = ["<unk>", "<s>", "</s>", "<0x41>", "a", "b", "ab", "abab", "\u2581", "\u2581a"]
    types = [2, 3, 3, 6, 1, 1, 1, 4, 1, 5]
    model = SentencePieceModel(words, [0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -1.0, -2.0, -7.0, -3.0], types, model_type=BPE)
    vocab = {w: i for i, w in enumerate(words)}
    merges = [["a", "b"], ["ab", "ab"], ["\u2581", "a"]]
    bpe = {"type": "BPE", "vocab": vocab, "merges": merges}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    special = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": special, "pair": special, "special_tokens": {}}
    likely = {"type": "Unigram", "unk_id": 0, "vocab": [[w, -1.0] for w in words], "byte_fallback": True}
    precompiled = {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAA"}
    continued = ["<unk>", "<s>", "</s>", "##a", "b"]
    pieces = {"type": "WordPiece", "vocab": {w: i for i, w in enumerate(continued)}, "continuing_subword_prefix": "##"}
    files = [
        {"model": bpe, "added_tokens": ADDED, "pre_tokenizer": level, "decoder": level, "post_processor": template},
        {
            "model": {**bpe, "byte_fallback": True},
            "added_tokens": ADDED,
            "decoder": {"type": "Sequence", "decoders": []},
        },
        {"model": pieces, "added_tokens": ADDED, "normalizer": {"type": "BertNormalizer", "lowercase": True}},
        {"model": likely, "added_tokens": ADDED, "normalizer": precompiled, "post_processor": template},
    ]
    unigram = SentencePieceModel(words, [0.0] * len(words), types, model_type=UNIGRAM, charsmap=b"\4\0\0\0\0\0\0\0\0")
    out = [dump(model), dump(unigram), *(json.dumps(f).encode() for f in files)]
    for data in out:  # they must get all the way through: an error here is one
        target(data)
    return out


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
