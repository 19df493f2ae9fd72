"""Qwen 4: its table of hashed n-grams (modeling_qwen4_exp.py `Qwen4ExpTextNGramEmbedding`, transformers 5.23)."""

from __future__ import annotations

from itertools import count, islice
from typing import Any, Final

from weighbridge.models.arch.tables.values import Config, integer

_HEADS, _ROWS = 1024, 1 << 31  # of a table: llama.cpp numbers rows in 32 bits
#: settings of a table: the class's default, and the most that is computed with
_SETTINGS: Final = {
    "ngram_size": (3, _HEADS), "heads_per_ngram": (8, _HEADS), "ngram_vocab_size_base": (20_000_000, _ROWS),
    "make_ngram_vocab_size_divisible_by": (128, _ROWS), "ple_conv_kernel_size": (4, _ROWS),
}  # fmt: skip
KEYS: Final = (*_SETTINGS, "image_token_id", "ple_layer_ids")
_WITNESSES: Final = (2, 3, 5, 7)  # prove every prime below 3,215,031,751 (Jaeschke 1993)


def complete(config: Config) -> dict[str, Any]:
    """Adds `output_gate_type`, unless the config states it; `ple_layer_count`, how many layers have a table of n-grams,
    and `ple_layers`, numbered from 0. For these adds the settings of the table, which mean nothing without one:
    `ple_ngram_size`, `ple_heads_per_ngram`, `ple_kernel`, `ple_image_token`; `ple_head_sizes`: as many primes from
    `ngram_vocab_size_base` on as a table has heads; `ple_rows`: their sum, rounded up; `ple_row_width`; and `ple_eos`,
    the token at which n-grams begin anew: the last one of a list, as the reference converter takes it
    (conversion/qwen4exp.py, llama.cpp b11549)."""
    layers = sorted({integer(layer, "ple_layer_ids", 1) for layer in config.get("ple_layer_ids") or ()})
    gate = {"output_gate_type": config.get("output_gate_type") or config.get("hidden_act", "silu")}
    if not layers:
        return {**gate, "ple_layer_count": 0, "ple_layers": []}
    stated = {key: integer(config.get(key, usual), key, 1, most) for key, (usual, most) in _SETTINGS.items()}
    heads = integer((stated["ngram_size"] - 1) * stated["heads_per_ngram"], "heads_per_ngram", 1, _HEADS)
    sizes = list(islice(filter(_is_prime, count(stated["ngram_vocab_size_base"])), heads))
    divisor = stated["make_ngram_vocab_size_divisible_by"]
    eos = config.get("eos_token_id")
    return {
        **gate,
        "ple_layer_count": len(layers),
        "ple_layers": [layer - 1 for layer in layers],
        "ple_ngram_size": stated["ngram_size"],
        "ple_heads_per_ngram": stated["heads_per_ngram"],
        "ple_kernel": stated["ple_conv_kernel_size"],
        "ple_head_sizes": sizes,
        "ple_rows": -(-sum(sizes) // divisor) * divisor,
        "ple_row_width": integer(config.get("ple_embed_dim") or config.get("hidden_size") or 0, "ple_embed_dim")
        // heads,
        "ple_eos": eos[-1] if isinstance(eos, list) and eos else eos,
        "ple_image_token": config.get("image_token_id"),
    }


def _is_prime(number: int) -> bool:
    """The test of Miller and Rabin: a witness proves that a number is composite."""
    if number < 4 or not number % 2:
        return number in (2, 3)
    power = (number - 1 & 1 - number).bit_length() - 1
    odd = number - 1 >> power
    for witness in _WITNESSES:
        value = pow(witness, odd, number)
        if witness % number and value != 1 and number - 1 not in (pow(value, 1 << n, number) for n in range(power)):
            return False
    return True


def restore(config: Config) -> dict[str, Any]:
    """Removes those keys again, and adds settings that llama.cpp's graph implies; the table is one shard."""
    layers, sizes, width = (config.get(key) for key in ("ple_layers", "ple_head_sizes", "ple_row_width"))
    added: dict[str, Any] = dict.fromkeys(("ple_layers", "ple_head_sizes", "ple_row_width"))
    added |= {"indexer_kv_heads": 1, "output_gate_type": "sigmoid"}  # of llama.cpp's graph
    if not layers or not sizes or not width:
        return {**added, "ple_layer_ids": []}
    return {
        **added, "ple_layer_ids": [layer + 1 for layer in layers], "split_ngram_parts": 1,
        "ngram_vocab_size_base": sizes[0], "ple_embed_dim": width * len(sizes),
    }  # fmt: skip
