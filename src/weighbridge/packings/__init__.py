"""The registry of packings, and `unpack`, which applies them all. Plain dtypes and ggml blocks need no entry: their
atoms lie in one tensor, so they are rows of a `Spec` already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.packings import base
from weighbridge.packings.base import METADATA, Found, OnError, Unpacker
from weighbridge.packings.read import affine, awq, bitsandbytes, compressed, ggml, gptq, microfloat, scaled, torchao
from weighbridge.packings.read import bitplanes as planes
from weighbridge.tensors.nodes import Node

__all__ = ["METADATA", "REGISTRY", "Found", "groups", "unpack"]

REGISTRY: Final[tuple[Unpacker, ...]] = (
    affine, gptq, awq, ggml, microfloat, compressed, planes, scaled, bitsandbytes, torchao,
)  # fmt: skip


def unpack(
    tensors: Mapping[str, Node], config: Mapping[str, Any], trouble: OnError | None = None
) -> Mapping[str, Node]:
    """Logical tensors: every group that a packing recognises becomes one `QuantizedTensor` node. See `base.unpack`."""
    return base.unpack(REGISTRY, tensors, config, trouble)


def groups(tensors: Mapping[str, Node], config: Mapping[str, Any]) -> Mapping[str, Found]:
    """The group of each stored tensor that is a part of a logical one. See `base.groups`."""
    return base.groups(REGISTRY, tensors, config)
