"""The registry of containers: format name -> module, and which one reads a file. Modules are imported when needed."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Final, cast

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.base import Container
from weighbridge.io.source import Source

REGISTRY: Final = MappingProxyType(
    {
        "safetensors": "weighbridge.containers.safetensors.container",
        "gguf": "weighbridge.containers.gguf.container",
        "npz": "weighbridge.containers.numpy.npz",
        "npy": "weighbridge.containers.numpy.npy",
        "torch-zip": "weighbridge.containers.torch.zip",
        "torch-legacy": "weighbridge.containers.torch.legacy",
        "torch-tar": "weighbridge.containers.torch.tar",
        "torchscript": "weighbridge.containers.torch.zip",
        "pickle": "weighbridge.containers.torch.bare_pickle",
        "ggml": "weighbridge.containers.ggml.container",
    }
)


# By what a file is called, where its bytes say nothing.
_NAMED: Final = MappingProxyType(
    {"safetensors": "safetensors", "gguf": "gguf", "npz": "npz", "npy": "npy", "pkl": "pickle", "pickle": "pickle"}
)


def container(name: str) -> Container:
    """The container module of a format. UnsupportedError where there is none."""
    if name not in REGISTRY:
        raise UnsupportedError(f"no reader for {name}", hint=f"formats that can be read: {', '.join(REGISTRY)}")
    return cast(Container, import_module(REGISTRY[name]))


def format_of(source: Source) -> str:
    """The format whose container reads `source`, by its bytes. UnsupportedError says what it is instead, and what to do
    about it. The common formats are told by their first bytes; others by the long way, which knows a hundred more."""
    head = source.head(9)
    if head[:4] == b"GGUF":
        return "gguf"
    if len(head) == 9 and head[8:] in b"{ " and int.from_bytes(head[:8], "little") <= source.size - 8:
        return "safetensors"
    from weighbridge.containers.sniff.detect import sniff

    found = sniff(source)
    if found.format == "unknown" and (named := _NAMED.get(source.name.rpartition(".")[2])):
        return named  # bytes that are nothing: the reader that the name asks for says where they go wrong
    if found.format not in REGISTRY:
        raise UnsupportedError(f"{source.name}: {found.title}, which this version doesn't read", hint=found.advice)
    return found.format
