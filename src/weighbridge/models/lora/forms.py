"""Formats of LoRA adapters: detects a model's format, and reads its changes by the roles of the base model's table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.arch.expand import Sizes, TensorSlot
from weighbridge.models.arch.family import Family
from weighbridge.models.lora import gguf, mlx, pairs, peft
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.lora.resolve_experts import resolve_adapter
from weighbridge.models.model import OpenModel, open_weights

# Dialects that stack experts, which PEFT's `target_parameters` address.
_STACKED: Final = "hf5"


class AdapterForm(NamedTuple):
    """An adapter format: the program that applies it, the dialect of its names, how it is read, and its possible
    targets."""

    client: str
    dialect: str
    read: Callable[[OpenModel], LoraAdapter]
    targets: tuple[str, ...]


_GGUF: Final = AdapterForm("llama.cpp", "gguf", gguf.read, ("hf", "safetensors"))
_MLX: Final = AdapterForm("mlx-lm", "mlx", mlx.read, ("gguf", "hf", "safetensors"))
_PEFT: Final = AdapterForm("PEFT", "hf", peft.read, ("gguf",))


def adapter_form(model: OpenModel) -> AdapterForm | None:
    """Returns the format of an adapter, or None for another model."""
    if model.format == "gguf":
        return _GGUF if model.metadata.get(gguf.TYPE) == "adapter" else None
    if model.format == "safetensors" and mlx.PARAMETERS in (model.json(peft.CONFIG) or {}):
        return _MLX
    if not (model.place.folder / peft.CONFIG).is_file():
        return None
    # A model into which an adapter was merged may have its config too.
    named = any(w.name.startswith("adapter") for w in model.place.weights)
    return _PEFT if named or any("lora_" in e.name for e in model.index) else None


def converts_adapter(model: OpenModel, kind: str) -> bool:
    """Whether a conversion to `kind` is from one adapter format to another."""
    form = adapter_form(model)
    return form is not None and kind in form.targets


def looks_like_adapter(path: Path) -> bool:
    """Whether a folder has an adapter and no model, by the names of its files, or a GGUF is an adapter, by its type."""
    if path.suffix == ".gguf" and path.is_file():
        with suppress(WeighbridgeError, OSError), open_weights(path) as source:
            return adapter_form(source) is not None
    if not (path / peft.CONFIG).is_file():
        return False
    weights = [p for p in path.iterdir() if p.suffix in (".safetensors", ".bin")]
    return bool(weights) and all(p.name.startswith("adapter") for p in weights)


def resolved(adapter: LoraAdapter, dialect: str, family: Family, sizes: Sizes) -> tuple[LoraAdapter, pairs.Roles]:
    """Resolves an adapter against its base. Returns it and its changes to logical tensors."""
    if dialect not in family.dialects:
        raise UnsupportedError(f"the {family.name} family has no {dialect} names that an adapter could have")
    prefix = family.prefix_of(dialect, dict.fromkeys((*adapter.pairs, *adapter.whole, *adapter.base_weights)), sizes)
    plain = resolve_adapter(adapter, family, dialect, sizes, prefix)
    places = family.expansion(dialect, sizes, prefix).places
    if dialect == "hf" and _STACKED in family.dialects and plain.pairs.keys() - places.keys():
        stacked = resolve_adapter(adapter, family, _STACKED, sizes, prefix)
        if stacked.pairs.keys() <= family.expansion(_STACKED, sizes, prefix).places.keys():
            return stacked, pairs.load(family, _STACKED, sizes, stacked.pairs, prefix)
    tables = {n for n in plain.pairs if dialect == "mlx" and n in places and is_table(family, places[n])}
    named = {name: pair.turned() if name in tables else pair for name, pair in plain.pairs.items()}
    return plain, pairs.load(family, dialect, sizes, named, prefix)


def is_table(family: Family, place: TensorSlot) -> bool:
    """Whether a tensor is looked up by token, position or type, as the weights of torch's Embedding are."""
    return family.rows[place.roles[0]].kind in ("embedding", "position", "types")
