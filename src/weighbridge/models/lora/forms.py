"""Forms of LoRA adapters: which one a model's files have, and its changes by the roles of the base model's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.expand import Sizes, TensorSlot
from weighbridge.models.arch.family import Family
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.lora import gguf, mlx, pairs, peft
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.lora.resolve_experts import resolve_adapter

# Dialects that stack experts, which PEFT's `target_parameters` address.
_STACKED: Final = "hf5"


class AdapterForm(NamedTuple):
    """An adapter format: the dialect of its names, how it is detected and read, and its possible targets."""

    dialect: str
    known: Callable[[Checkpoint], bool]
    read: Callable[[Checkpoint], LoraAdapter]
    targets: tuple[str, ...]


# In order of detection: PEFT is any other folder with an adapter's config.
_FORMS: Final = (
    AdapterForm("gguf", gguf.is_adapter, gguf.read, ("hf", "safetensors")),
    AdapterForm("mlx", mlx.is_adapter, mlx.read, ("gguf", "hf", "safetensors")),
    AdapterForm("hf", peft.is_adapter, peft.read, ("gguf",)),
)


def adapter_form(model: Checkpoint) -> AdapterForm | None:
    """The form of an adapter; None for another model."""
    return next((form for form in _FORMS if form.known(model)), None)


def resolved(adapter: LoraAdapter, dialect: str, family: Family, sizes: Sizes) -> tuple[LoraAdapter, pairs.Roles]:
    """An adapter resolved against its base, and its changes to logical tensors."""
    if dialect not in family.dialects:
        raise UnsupportedError(f"the {family.name} family has no {dialect} names that an adapter could have")
    prefix = family.prefix_of(dialect, dict.fromkeys((*adapter.pairs, *adapter.whole)), sizes)
    found = resolve_adapter(adapter, family, dialect, sizes, prefix)
    if dialect == "hf" and _STACKED in family.dialects and _strangers(found, family, dialect, sizes, prefix):
        stacked = resolve_adapter(adapter, family, _STACKED, sizes, prefix)
        if not _strangers(stacked, family, _STACKED, sizes, prefix):
            return stacked, pairs.load(family, _STACKED, sizes, stacked.pairs, prefix)
    adapter = found
    places = family.expansion(dialect, sizes, prefix).places
    turned = {n: dialect == "mlx" and n in places and is_table(family, places[n]) for n in adapter.pairs}
    named = {name: pair.turned() if turned[name] else pair for name, pair in adapter.pairs.items()}
    return adapter, pairs.load(family, dialect, sizes, named, prefix)


def _strangers(adapter: LoraAdapter, family: Family, dialect: str, sizes: Sizes, prefix: str) -> bool:
    """Whether some pairs are for tensors that the dialect lacks."""
    places = family.expansion(dialect, sizes, prefix).places
    return any(name not in places for name in adapter.pairs)


def is_table(family: Family, place: TensorSlot) -> bool:
    """Whether a tensor is looked up by token."""
    return family.rows[place.roles[0]].kind == "embedding"
