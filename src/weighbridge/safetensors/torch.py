"""The drop-in's functions for torch tensors and modules. Loaded CPU tensors share the file's pages; writing to them
doesn't change the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.adapters import shared_memory
from weighbridge.adapters.shared_memory import (
    _end_ptr,
    _find_shared_tensors,
    _is_complete,
    _remove_duplicate_names,
    storage_ptr,
    storage_size,
)
from weighbridge.base.dtypes import BY_SAFETENSORS
from weighbridge.safetensors.core import TensorSpec, deserialize, serialize, serialize_file
from weighbridge.safetensors.reading import safe_open

if TYPE_CHECKING:
    import torch

__all__ = [
    "_end_ptr", "_find_shared_tensors", "_is_complete", "_remove_duplicate_names", "load", "load_file", "load_model",
    "save", "save_file", "save_model", "storage_ptr", "storage_size",
]  # fmt: skip


def save(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes that the reference writes for contiguous tensors without shared memory. ValueError and RuntimeError for
    other tensors."""
    kept: list[Any] = []
    return serialize(_specs(tensors, kept), metadata)


def save_file(
    tensors: Mapping[str, torch.Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors to a file. Errors: as `save`."""
    kept: list[Any] = []
    serialize_file(_specs(tensors, kept), filename, metadata)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a file in memory."""
    return {
        name: shared_memory.from_bytes(t["data"], BY_SAFETENSORS[t["dtype"]], t["shape"])
        for name, t in deserialize(data)
    }


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, torch.Tensor]:
    """The tensors of a file, on a device."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def save_model(
    model: torch.nn.Module, filename: str | os.PathLike[str], metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:  # fmt: skip
    """Writes a module. One of the tensors that share memory is written; the metadata maps the others' names to its
    name. `force_contiguous`: copy tensors that aren't in C order."""
    state = dict(model.state_dict())
    metadata = dict(metadata or {})
    for kept, dropped in _remove_duplicate_names(state).items():
        for name in dropped:
            metadata.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, metadata or None)
    except ValueError as error:
        raise ValueError(f"{error} Or use save_model(..., force_contiguous=True).") from None


def load_model(
    model: torch.nn.Module, filename: str | os.PathLike[str], strict: bool = True, device: str | int = "cpu", *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:  # fmt: skip
    """Loads a file into a module. Returns the names that the file lacks, and those that the module lacks; if `strict`,
    these are a RuntimeError."""
    state = load_file(filename, device=device, backend=backend)
    duplicates = _remove_duplicate_names(dict(model.state_dict()), preferred_names=list(state))
    keys = model.load_state_dict(state, strict=False)
    missing, unexpected = set(keys.missing_keys), list(keys.unexpected_keys)
    for name in (name for group in duplicates.values() for name in group):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for word, names in (("Missing", sorted(missing)), ("Unexpected", sorted(unexpected))):
            if names:
                quoted = ", ".join(f'"{name}"' for name in names)
                lines.append(f"    {word} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def _specs(tensors: Mapping[str, torch.Tensor], kept: list[Any]) -> dict[str, TensorSpec]:
    shared_memory.check_savable(tensors)
    out = {}
    for name, tensor in tensors.items():
        data = shared_memory.on_cpu(name, tensor)
        kept.append(data)
        out[name] = TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape),
            data_ptr=data.data_ptr(), data_len=data.numel() * data.element_size(),
        )  # fmt: skip
    return out
