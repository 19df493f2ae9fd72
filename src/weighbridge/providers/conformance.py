"""What every provider keeps: for tests of backends. Each law is a function that lists how a provider breaks it.

from weighbridge.providers.conformance import faults
assert faults(my_provider) == []
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.providers.base import Provider
from weighbridge.providers.layouts import ALIGNMENT
from weighbridge.tensors.nodes import QuantizedTensor, stored_bytes

Faults = Iterator[str]
_ABSENT: Final = "no.weight.has.this.name"


def faults(provider: Provider) -> list[str]:
    """Returns every violation of a law by a provider over numpy, with the law's name; [] if there is none."""
    return [f"{law}: {fault}" for law, check in LAWS.items() for fault in check(provider)]


def _names(provider: Provider) -> Faults:
    """`has`, iteration and `len` agree on the names; an absent name raises KeyError."""
    names = list(provider)
    if len(names) != len(provider) or len(set(names)) != len(names):
        yield "len and iteration differ"
    yield from (f"has({name!r}) is false" for name in names if not provider.has(name))
    if provider.has(_ABSENT):
        yield "has is true of any name"
    for call in (provider.get, provider.shape, provider.dtype, provider.quantization, provider.buffer):
        if not _raises(KeyError, call, _ABSENT):
            yield f"{call.__name__} of an absent name doesn't raise KeyError"


def _values(provider: Provider) -> Faults:
    """`get` has the shape that `shape` states, also of a part, and gives the same numbers each time."""
    for name in provider:
        whole = np.asarray(provider.get(name))
        if whole.shape != provider.shape(name):
            yield f"{name}: get returns {whole.shape}, shape is {provider.shape(name)}"
            continue
        if whole.tobytes() != np.asarray(provider.get(name)).tobytes():
            yield f"{name}: a second get gives other values"
        if whole.ndim and len(whole) > 1:
            part = np.asarray(provider.get(name, slice(1, 2)))
            if part.tobytes() != np.ascontiguousarray(whole[1:2]).tobytes():
                yield f"{name}: get of a part isn't that part"


def _types(provider: Provider) -> Faults:
    """A type has a name; `quantization` returns a value exactly for the quantized types."""
    for name in provider:
        kind, scheme = provider.dtype(name), provider.quantization(name)
        if not kind.name or (kind.code is not None and kind.code < 0):
            yield f"{name}: no type"
        if scheme is not None and not 0 < scheme.bits <= 16:
            yield f"{name}: {scheme.bits} bits a weight"


def _buffers(provider: Provider) -> Faults:
    """A buffer starts at a multiple of 64 and has the weight's bytes, its sections side by side without a gap."""
    for name in provider:
        buffer, tensor = provider.buffer(name), provider.tensor(name)
        if buffer.nbytes and buffer.address % ALIGNMENT:
            yield f"{name}: the buffer starts at {buffer.address}"
        at = 0
        for section in buffer.sections.values():
            if section.offset != at:
                yield f"{name}: a gap at {at}"
            at += section.nbytes
        if at != buffer.nbytes or buffer.nbytes != stored_bytes(tensor):
            yield f"{name}: {buffer.nbytes} bytes of {stored_bytes(tensor)}"
        members = tensor.members if isinstance(tensor, QuantizedTensor) else {"": tensor}
        stored = b"".join(node.read_all().tobytes() for node in members.values())
        if stored != buffer.data.tobytes():
            yield f"{name}: other bytes than the weight's"


def _fusion(provider: Provider) -> Faults:
    """A fused weight has the values of its parts, one after the other."""
    first: dict[tuple[Any, ...], str] = {}
    for name in provider:
        shape = provider.shape(name)
        if len(shape) != 2 or (other := first.setdefault(shape[1:], name)) == name:
            continue
        fused = provider.fuse(other, name, mixed="decode")
        found = _decoded(fused.tensor)
        want = np.concatenate([_decoded(provider.tensor(n)) for n in (other, name)])
        if not np.array_equal(found, want, equal_nan=True):
            yield f"{other} and {name}: other values than their own"
        parts = provider.fuse(other, name).parts
        if sum(p.tensor.spec.shape[0] for p in parts) != len(want):
            yield f"{other} and {name}: parts are missing"


def _decoded(tensor: Any) -> Any:
    from weighbridge.adapters.numpy import to_numpy
    from weighbridge.base.dtypes import F32

    return to_numpy(tensor, F32)


def _metadata(provider: Provider) -> Faults:
    """A key that nothing states gives the default; the config is one object, or an UnsupportedError."""
    if provider.metadata("no.such.key", 7) != 7:
        yield "an absent key doesn't give the default"
    try:
        config = provider.config
    except UnsupportedError:
        return
    if config.dim < 1 or config.layers < 0:
        yield f"config of {config.dim} columns and {config.layers} layers"
    if provider.metadata("embedding_length") != config.dim:
        yield "metadata and config differ"


def _refusals(provider: Provider) -> Faults:
    """What makes no sense is a UsageError."""
    name = next(iter(provider), None)
    if name is None:
        return
    if not _raises(UsageError, lambda: provider.buffer(name, layout="no-such-layout")):
        yield "a layout of no name is taken"
    if not _raises(WeighbridgeError, lambda: provider.get(name, dtype="no-such-type")):
        yield "a type of no name is taken"
    if not _raises(UsageError, provider.fuse):
        yield "nothing can be fused"


def _raises(kind: type[BaseException], call: Callable[..., Any], *arguments: Any) -> bool:
    try:
        call(*arguments)
    except kind:
        return True
    return False


#: Every law by name.
LAWS: Final[Mapping[str, Callable[[Provider], Faults]]] = MappingProxyType({
    "names": _names, "values": _values, "types": _types, "buffers": _buffers, "fusion": _fusion,
    "metadata": _metadata, "refusals": _refusals,
})  # fmt: skip
