"""The registry of containers: format name -> module. Modules are imported when asked for."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Final, cast

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.base import Container

REGISTRY: Final = MappingProxyType(
    {
        "safetensors": "weighbridge.containers.safetensors",
        "gguf": "weighbridge.containers.gguf",
        "npz": "weighbridge.containers.npz",
        "npy": "weighbridge.containers.npy",
    }
)


def container(name: str) -> Container:
    """The container module of a format. UnsupportedError where there is none."""
    if name not in REGISTRY:
        raise UnsupportedError(f"no reader for {name}", hint=f"formats that can be read: {', '.join(REGISTRY)}")
    return cast(Container, import_module(REGISTRY[name]))
