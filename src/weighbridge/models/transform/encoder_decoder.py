"""Models with an encoder and a decoder: which tensors belong to which stack, and where a config counts its layers.

A selection names the side (`encoder:0-3`, `decoder:0,2`), and the other one stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.checkpoint import Checkpoint
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
_BOTH: Final = "num_layers"  # ... counts both, in the absence of other keys
_GGUF_COUNTS: Final[Mapping[str, str]] = MappingProxyType({"encoder": "block_count", "decoder": "decoder_block_count"})


def parse_selection(wanted: str) -> dict[str, str]:
    """`0-3` -> {"": "0-3"}; `encoder:0-3,decoder:0,2` -> {"encoder": "0-3", "decoder": "0,2"}. UsageError for a
    mixture, or an unknown side."""
    first, *rest = _SIDE.split(wanted)
    if not rest:
        return {"": wanted}
    declared = dict(zip(rest[::2], (text.strip(" ,;") for text in rest[1::2]), strict=True))
    wrong = next((name for name in declared if name not in SIDES), None)
    if first.strip(" ,;") or wrong is not None or len(declared) < len(rest) // 2:
        raise UsageError(
            f"{wanted!r} isn't a selection of encoder and decoder layers",
            hint="write encoder:0-3, or encoder:0-3,decoder:0-1",
        )
    return declared


def sides(names: Iterable[str]) -> dict[str, LayerStack]:
    """The name stacks of encoder and decoder; {} for a model with a single stack."""
    found: dict[str, LayerStack] = {}
    for stack in stacks(names):
        parts = set(stack.prefix.split("."))
        found |= {side: stack for side, words in SIDES.items() if words & parts}
    return found if len(found) == len(SIDES) else {}


def stack_of_side(names: Iterable[str], side: str) -> LayerStack:
    """One side's stack. UsageError where the model has a single stack."""
    found = sides(names)
    if not found:
        raise UsageError(
            f"the model has no {side} side: it has a single stack of layers", hint="use plain numbers: --layers 0-3"
        )
    return found[side]


def check_one(names: Iterable[str]) -> None:
    """UsageError where layer numbers don't name a side."""
    if found := sides(names):
        have = " and ".join(f"{article} {side} of {found[side].count} layers" for article, side in
                            (("an", "encoder"), ("a", "decoder")))  # fmt: skip
        raise UsageError(
            f"the model has {have}: ambiguous layer numbers", hint="write encoder:0-3, or decoder:0-3, or both"
        )


def hf_counts(config: Mapping[str, Any], side: str, before: int, after: int) -> dict[str, int]:
    """The config keys that change when a side has this many layers."""
    keys = [key for key in _COUNTS[side] if config.get(key) is not None]
    out = dict.fromkeys(keys or _COUNTS[side][-1:], after)
    other = _COUNTS["decoder"]
    if side == "encoder" and _BOTH in out and all(config.get(key) is None for key in other):
        out[other[-1]] = before  # which counted both sides
    if side == "encoder" and config.get("num_hidden_layers") is not None:
        out["num_hidden_layers"] = after
    return out


def gguf_counts(keys: Mapping[str, KV], front: str, side: str, before: int, after: int) -> dict[str, KV]:
    """As `_config_changes`, for a GGUF's keys."""
    own, other = f"{front}{_GGUF_COUNTS[side]}", f"{front}{_GGUF_COUNTS['decoder']}"
    out = {own: KV("u32", after)}
    if own != other and other not in keys:
        out[other] = KV("u32", before)
    return out


def check_depth(model: Checkpoint) -> None:
    """UsageError for a GGUF that llama.cpp can't run: its T5 has a cache for as many layers as the encoder has."""
    found = sides(e.name for e in model.index) if model.format == "gguf" else {}
    if found and found["decoder"].count > found["encoder"].count:
        raise UsageError(
            f"llama.cpp runs no decoder of {found['decoder'].count} layers beside an encoder of "
            f"{found['encoder'].count}: it has a cache for as many layers as the encoder has",
            hint="leave fewer of the decoder's layers, or slice the Hugging Face folder",
        )
