"""mlx_lm's adapters: a folder with adapters.safetensors and adapter_config.json, under MLX's names of the modules.

mlx_lm 0.32, tuner/lora.py, the `fuse` of each class, with one scale for all:

    LoRALinear          W + scale * (a @ b) transposed    a [in, rank], b [rank, out]
    LoRASwitchLinear    W + scale * b @ a                 a [experts, rank, in], b [experts, out, rank]
    LoRAEmbedding       W + scale * a @ b                 a [vocabulary, rank], b [rank, hidden]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.tables.values import number
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.lora.peft import CONFIG, LoraAdapter
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

PARAMETERS: Final = "lora_parameters"
_A, _B = ".lora_a", ".lora_b"


def read(model: OpenModel) -> LoraAdapter:
    """Reads the adapter in the folder. Pairs are read as those of linear layers; an embedding's pair is transposed.
    Raises UnsupportedError for DoRA and full fine-tuning, and FormatError if half of a pair is missing."""
    config = model.json(CONFIG) or {}
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise UnsupportedError(f"{model.place.path}: trained as {kind!r}, not lora", hint="fuse it: mlx_lm.fuse")
    halves: dict[str, dict[str, Node]] = {}
    for name, node in model.stored.items():
        if name[-len(_A) :] not in (_A, _B):
            raise UnsupportedError(f"{model.place.path}: {name} isn't part of a LoRA", hint="fuse it: mlx_lm.fuse")
        halves.setdefault(f"{name[: -len(_A)]}.weight", {})[name[-len(_A) :]] = node
    pairs = {name: _pair(name, parts) for name, parts in halves.items()}
    ranks = {pair.rank for pair in pairs.values()}
    if len(ranks) != 1:
        raise FormatError("an adapter of one rank was expected", path=str(model.place.path), found=sorted(ranks))
    parameters = config[PARAMETERS]
    scale = number(parameters.get("scale") if isinstance(parameters, dict) else None, f"{PARAMETERS}.scale")
    base = config.get("model")
    alpha = number(scale * ranks.pop(), f"{PARAMETERS}.scale")
    return LoraAdapter(pairs, alpha=alpha, base=base if isinstance(base, str) else None)


def _pair(name: str, halves: dict[str, Node]) -> LoraPair:
    from weighbridge.tensors.nodes import transpose

    if set(halves) != {_A, _B}:
        raise FormatError("half of an adapter's pair is missing", field=name)
    a, b = halves[_A], halves[_B]
    dims = len(a.spec.shape)
    outer, inner = (b, a) if dims == 3 else (a, b)
    valid = dims in (2, 3) and dims == len(b.spec.shape)
    if not valid or outer.spec.shape[-1] != inner.spec.shape[-2] or not outer.spec.shape[-1]:
        raise FormatError("a and b have different ranks", field=name, found=f"{a.spec} and {b.spec}")
    return LoraPair(a, b) if dims == 3 else LoraPair(transpose(a), transpose(b))
