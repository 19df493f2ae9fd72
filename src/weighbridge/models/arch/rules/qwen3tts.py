"""Qwen3-TTS: the talker's vocabulary, that of texts followed by that of codes (conversion/qwen3tts.py
`Qwen3TTSTalkerModel`, llama.cpp b11549)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from weighbridge.base.limits import VOCABULARY
from weighbridge.models.arch.tables.values import Config, integer

KEYS: Final = ("text_vocab_size", "codec_eos_token_id")
#: The last codes of the embedding, which control the talker: of these, only the one at its end is sampled.
_CONTROL: Final = 1024
_ID: Final = "_id"


def complete(config: Config) -> dict[str, Any]:
    """Adds `codes`, the number of rows of the codes' embedding, in place of `vocab_size`, which becomes that of texts;
    `code_names`: the name of each code; `end_code`: the token of the code that ends the speech; and
    `suppressed_tokens`, which are never sampled. A GGUF's keys restore the first and the last of these."""
    suppressed = config.get("suppressed_tokens")
    if config.get("text_vocab_size") is None and suppressed is None:
        return {}
    rows = integer(config.get("vocab_size"), "vocab_size", 1, VOCABULARY)
    codes = integer(config.get("codes", rows), "codes", 1, VOCABULARY)
    texts = integer(config.get("text_vocab_size", rows - codes), "text_vocab_size", 1, VOCABULARY)
    control = range(max(0, texts + codes - _CONTROL), texts + codes)
    if suppressed is None:
        end = texts + integer(
            config.get("codec_eos_token_id"), "codec_eos_token_id", max(0, codes - _CONTROL), codes - 1
        )
    else:
        end = next((token for token in control if token not in {*suppressed}), texts)
    names = [f"<|codec_{number}|>" for number in range(codes)]
    for number, name in _named(config):
        if number < codes:
            names[number] = f"<|{name}|>"
    return {
        "codes": codes, "vocab_size": texts, "code_names": names, "end_code": end,
        "suppressed_tokens": [token for token in control if token != end],
    }  # fmt: skip


def _named(config: Config) -> Iterator[tuple[int, str]]:
    """The codes that a config names: `codec_bos_id`, or an object of several, `codec_language_id`."""
    for key, value in config.items():
        if key.endswith(_ID) and isinstance(value, int) and not isinstance(value, bool):
            yield value, key.removesuffix(_ID)
        elif key.endswith(_ID) and isinstance(value, dict):
            for name, number in value.items():
                yield integer(number, f"{key}.{name}"), f"{key.removesuffix(_ID)}_{name}"
