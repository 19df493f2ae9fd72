"""Places a model's memory on device and host for a number of offloaded layers, as llama.cpp does (src/llama-model.cpp,
b11549).

Input tensors always stay on the host. `-ngl 1` offloads only the output layer, `-ngl N` the output layer and the last
N - 1 layers; N above the number of layers offloads all. Caches and states are placed with their layer. If input and
output share a tensor, the output's device gets a copy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.fitting.cache import CacheMemory
from weighbridge.fitting.rules import rules

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
_INPUT = ("token_embd.", "token_types.", "position_embd.", "token_embd_norm.", "per_layer_token_embd.")
_TABLE = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of the weights. `layers`: of each layer. `output`: with a copy of the embedding if they share it."""

    input: int
    layers: tuple[int, ...]
    output: int
    shared: int

    @property
    def total(self) -> int:
        """Bytes of all weights on one device."""
        return self.input + sum(self.layers) + self.output - self.shared


@lru_cache(maxsize=1 << 14)
def _layer(name: str) -> int | None:
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def weight_bytes(tensors: Mapping[str, Spec], used_layers: int, architecture: str = "") -> WeightBytes:
    """Returns the weights of a GGUF by place. Layers after `used_layers`, which predict further tokens, are skipped,
    like in llama.cpp without a draft."""
    layers: dict[int, int] = defaultdict(int)
    start = output = 0
    for name, spec in tensors.items():
        if (number := _layer(name)) is not None:
            if number < used_layers:
                layers[number] += spec.nbytes
        elif name.startswith(_INPUT):
            start += spec.nbytes
        else:
            output += spec.nbytes
    table = tensors.get(_TABLE)
    shared = table.nbytes if table is not None and "output.weight" not in tensors else 0
    if shared and architecture in rules().weights.embedding_twice:
        start += shared
    count = max(layers, default=-1) + 1
    return WeightBytes(start, tuple(layers[i] for i in range(count)), output + shared, shared)


@dataclass(frozen=True, slots=True)
class Placement:
    """Bytes on the device and on the host with `offloaded` of `layers` layers, including the output layer."""

    offloaded: int
    layers: int
    device: int
    host: int


def place(weights: WeightBytes, memory: CacheMemory, compute: int, offloaded: int) -> Placement:
    """Returns the placement for `-ngl offloaded`."""
    layers = len(weights.layers) + 1
    offloaded = min(offloaded, layers)
    everything = weights.total + memory.total + compute
    if not offloaded:
        return Placement(0, layers, 0, everything)
    first = layers - offloaded
    caches = sum(memory.kv[first:]) + sum(memory.states[first:])
    device = weights.output + sum(weights.layers[first:]) + caches + compute
    return Placement(offloaded, layers, device, everything + weights.shared - device)


def most_layers(weights: WeightBytes, memory: CacheMemory, compute: int, usable: int) -> Placement:
    """Returns the placement with as many layers on the device as fit in `usable` bytes."""
    placements = (place(weights, memory, compute, n) for n in range(len(weights.layers) + 1, 0, -1))
    return next((p for p in placements if p.device <= usable), place(weights, memory, compute, 0))
