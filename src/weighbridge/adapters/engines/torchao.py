"""Tensors of torchao for transformers, from the parts that a safetensors file keeps of them. torchao is imported only
when a tensor is asked for.

transformers makes them of the parts too, but takes what they are from the headers of files that it has opened itself.
So it gets them whole. Source: torchao 0.18, prototype/safetensors/safetensors_support.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError

if TYPE_CHECKING:
    import torch

_NAMES: Final = "tensor_names"
_PLAIN: Final = "Tensor"


class ComposedValue:
    """A torchao tensor in a state dict for transformers, read and composed when it is indexed. `parts`: the tensors
    in the file, by name. `described`: the file's metadata entry for the tensor `name`."""

    def __init__(self, name: str, parts: Mapping[str, Any], described: str) -> None:
        self._name, self._parts, self._described = name, parts, described

    def is_floating_point(self) -> bool:
        """False: transformers casts floating point numbers, and these parts keep their types."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first part."""
        found: torch.dtype = next(iter(self._parts.values())).dtype
        return found

    def __getitem__(self, key: Any) -> torch.Tensor:
        from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

        parts = {name: part[...] for name, part in self._parts.items()}
        found, _ = unflatten_tensor_state_dict(parts, {_NAMES: json.dumps([self._name]), self._name: self._described})
        whole: torch.Tensor = found[self._name]
        return whole if key is ... else whole[key]


def composed(values: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, the stored parts of each tensor of torchao replaced by the tensor. FormatError where `metadata`, the
    file's, doesn't describe them, or a part isn't there."""
    found = dict(values)
    for name, described, parts in _described(metadata):
        if absent := [part for part in parts if part not in found]:
            raise FormatError(f"{name} lacks a part that the metadata names: {absent[0]}")
        found[name] = ComposedValue(name, {part: found.pop(part) for part in parts}, described)
    return found


def _described(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Name, description and stored names of the parts of each tensor of torchao."""
    try:
        for name in json.loads(metadata[_NAMES]):
            known = json.loads(metadata[name])
            if known["_type"] != _PLAIN:
                module, _, weight = name.rpartition(".")
                parts = [f"{module}._{weight}_{part}" for part in known["_tensor_data_names"]]
                yield name, metadata[name], parts
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"the file's metadata doesn't describe tensors of torchao: {error!r}") from error
