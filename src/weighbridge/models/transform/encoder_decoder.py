"""Models with an encoder and a decoder: the tensors of each stack, and the config keys that count its layers.

A selection names the side (`encoder:0-3`, `decoder:0,2`); the other side stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.layer_stack import LayerStack, stacks

_SIDE: Final = re.compile(r"\b([a-z]+):", re.ASCII)
#: The word for each side in tensor names: in models with a config.json, and in a GGUF.
SIDES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {"encoder": frozenset({"encoder", "enc"}), "decoder": frozenset({"decoder", "dec"})}
)
# The keys with each side's number of layers: BART and its kin, T5 (a missing decoder count equals the encoder's;
# transformers 5.23, configuration_*.py), llama.cpp's T5 (b11549, models/t5.cpp).
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"encoder": ("encoder_layers", "num_layers"), "decoder": ("decoder_layers", "num_decoder_layers")}
)
_BOTH: Final = "num_layers"  # counts both sides in the absence of other keys
_GGUF_COUNTS: Final[Mapping[str, str]] = MappingProxyType({"encoder": "block_count", "decoder": "decoder_block_count"})


def parse_selection(text: str) -> dict[str, str]:
    """Parses `0-3` to {"": "0-3"}, and `encoder:0-3,decoder:0,2` to {"encoder": "0-3", "decoder": "0,2"}. Raises
    UsageError for a mixture or an unknown side."""
    first, *parts = _SIDE.split(text)
    if not parts:
        return {"": text}
    declared = dict(zip(parts[::2], (part.strip(" ,;") for part in parts[1::2]), strict=True))
    if first.strip(" ,;") or declared.keys() - SIDES.keys() or len(declared) < len(parts) // 2:
        raise UsageError(
            f"{text!r} isn't a selection of encoder and decoder layers",
            hint="write encoder:0-3, or encoder:0-3,decoder:0-1",
        )
    return declared


def sides(names: Iterable[str]) -> dict[str, LayerStack]:
    """Returns the name stacks of encoder and decoder; {} for a model with a single stack."""
    out: dict[str, LayerStack] = {}
    for stack in stacks(names):
        parts = set(stack.prefix.split("."))
        out |= {side: stack for side, spellings in SIDES.items() if spellings & parts}
    return out if len(out) == len(SIDES) else {}


def stack_of_side(names: Iterable[str], side: str) -> LayerStack:
    """Returns one side's stack. Raises UsageError if the model has a single stack."""
    if stack := sides(names).get(side):
        return stack
    raise UsageError(
        f"the model has no {side} side: it has a single stack of layers", hint="use plain numbers: --layers 0-3"
    )


def check_one(names: Iterable[str]) -> None:
    """Raises UsageError if layer numbers need a side."""
    if pair := sides(names):
        counts = f"an encoder of {pair['encoder'].count} layers and a decoder of {pair['decoder'].count} layers"
        raise UsageError(
            f"the model has {counts}: ambiguous layer numbers", hint="write encoder:0-3, or decoder:0-3, or both"
        )


def hf_counts(config: Mapping[str, Any], side: str, before: int, after: int) -> dict[str, int]:
    """Returns the config keys that change when a side has this many layers."""
    keys = [key for key in _COUNTS[side] if config.get(key) is not None]
    out = dict.fromkeys(keys or _COUNTS[side][-1:], after)
    decoder = _COUNTS["decoder"]
    if side == "encoder" and _BOTH in out and all(config.get(key) is None for key in decoder):
        out[decoder[-1]] = before  # the key counted both sides
    if side == "encoder" and config.get("num_hidden_layers") is not None:
        out["num_hidden_layers"] = after
    return out


def gguf_counts(keys: Mapping[str, KV], front: str, side: str, before: int, after: int) -> dict[str, KV]:
    """Returns a GGUF's keys that change when a side has this many layers."""
    key, decoder = f"{front}{_GGUF_COUNTS[side]}", f"{front}{_GGUF_COUNTS['decoder']}"
    out = {key: KV("u32", after)}
    if key != decoder and decoder not in keys:
        out[decoder] = KV("u32", before)
    return out


def check_depth(model: OpenModel) -> None:
    """Raises UsageError for a T5 in GGUF whose decoder is deeper than its encoder: llama.cpp sizes the cache by the
    encoder's layers."""
    pair = sides(e.name for e in model.index) if model.format == "gguf" else {}
    if pair and pair["decoder"].count > pair["encoder"].count:
        raise UsageError(
            f"llama.cpp can't run a decoder of {pair['decoder'].count} layers with an encoder of "
            f"{pair['encoder'].count}: its cache has as many layers as the encoder",
            hint="keep fewer of the decoder's layers, or slice the Hugging Face folder",
        )
