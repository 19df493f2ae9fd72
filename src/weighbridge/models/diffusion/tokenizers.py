"""The tokenizers that ComfyUI reads from a tensor of a text encoder's file: SentencePiece's model, and Mistral's
tekken.json. The latter is rebuilt from the tokenizer.json of a pipeline without it: ids are the special tokens, then
the tokens by rank, in the byte alphabet."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.diffusion.places import FAST, TEKKEN, TOKENIZER_FILES
from weighbridge.models.jsonfile import decode
from weighbridge.models.tokenizer.formats import bpe_ranks, merges


def tokenizer_in_file(read: Callable[[str, int], bytes | None], folder: str, tensor: str) -> bytes | None:
    """The bytes of a tokenizer's tensor, from the files of a pipeline's folder; None if it has none of that kind."""
    names = TOKENIZER_FILES[tensor]
    data = next((data for name in names if (data := read(f"{folder}/{name}", TOKENIZER_JSON))), None)
    if data is None and tensor == TEKKEN and (fast := read(f"{folder}/{FAST}", TOKENIZER_JSON)):
        return tekken_of(fast, f"{folder}/{FAST}")
    return data


def tekken_of(data: bytes, name: str) -> bytes | None:
    """The tekken.json whose vocabulary, ranks, special tokens and pattern are those of a tokenizer.json; None if it has
    another kind of vocabulary, or merges that don't follow from the ranks. The declared size is that of the vocabulary:
    tokens that are never used are missing."""
    try:
        document: dict[str, Any] = decode(data, name, dict[str, Any], TOKENIZER_JSON)
        model, vocab = document["model"], document["model"]["vocab"]
        specials = {row["content"]: row["id"] for row in document["added_tokens"] if row["special"]}
        split, characters = document["pre_tokenizer"]["pretokenizers"]  # as MistralConverter writes them
        plain = split["behavior"] == "Isolated" and not split["invert"] and characters["type"] == "ByteLevel"
        pattern = str(split["pattern"]["Regex"]) if plain and not characters["use_regex"] else ""
        by_id = {number: text for text, number in {**vocab, **specials}.items()}
        named = [by_id[number] for number in range(len(by_id))]
        alphabet = merges.BYTE_OF
        ranks = {bytes(alphabet[c] for c in text): rank for rank, text in enumerate(named[len(specials) :])}
        pairs = [tuple(pair) for pair in merges.split(model["merges"], name)]
    except (KeyError, TypeError, ValueError, AttributeError, WeighbridgeError):
        return None
    in_front = set(named[: len(specials)]) == set(specials)
    if not (in_front and pattern and len(ranks) == len(named) - len(specials) and pairs == bpe_ranks.every(ranks)):
        return None
    tokens = [{"rank": n, "token_bytes": base64.b64encode(token).decode()} for token, n in ranks.items()]
    controls = [{"rank": n, "token_str": text, "is_control": True} for n, text in enumerate(named[: len(specials)])]
    size = {"default_vocab_size": len(named), "default_num_special_tokens": len(specials)}
    config = {"pattern": pattern, "num_vocab_tokens": len(ranks), **size}
    return json.dumps({"config": config, "vocab": tokens, "special_tokens": controls}).encode()
