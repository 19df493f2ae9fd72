"""What a packing module gives: it tells whether the stored tensors around a name are one logical tensor, by their
names, types and shapes (a config only settles what shapes leave open: configs are often wrong), and makes the
`QuantizedTensor` node.

A packing never sees a container: names and nodes come in, names and nodes go out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes import Node
from weighbridge.tensors.nodes.base import Bytes

#: The key of a config under which a file's own metadata stands, which some writers tell more in.
METADATA: Final = "__metadata__"

Nodes = Mapping[str, Node]
Config = Mapping[str, Any]


class NoBlockForm:
    """The part of a packing whose values no block type of ggml has."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ()

    @property
    def blocks(self) -> tuple[DType, ...]:
        return ()

    def inexact(self, members: Nodes, dtype: DType) -> str:
        return f"{dtype} has not these values"

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        raise UnsupportedError(f"these values have no form in {dtype}")


class Found(NamedTuple):
    """A logical tensor and the stored ones it takes the place of: its members, and companions that say nothing of its
    values (scales of activations)."""

    name: str
    node: Node
    stored: frozenset[str]


class Unpacker(Protocol):
    """The interface of a packing module."""

    NAME: str

    @property
    def KEYS(self) -> tuple[str, ...]:
        """Endings of the name that shows a group, of the rarest member; behind the module's name."""

    def match(self, module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
        """The group of `module` whose member `module + key` is there; None where it is none of this packing.
        FormatError where it is incomplete or misshapen, UnsupportedError where its layout is known and not read."""


#: Told of a group that can't be read, and of the stored tensor that shows it.
OnError = Callable[[str, WeighbridgeError], None]


def groups(
    packings: Iterable[Unpacker], tensors: Nodes, config: Config, trouble: OnError | None = None
) -> Mapping[str, Found]:
    """The group of each stored tensor that is in one. `trouble` is told of each group that can't be read, which then
    stays as it is stored; without it the first one is raised."""
    joined = "\0".join((*tensors, ""))  # one search over all names a key: most models have none
    active = [(p, key) for p in packings for key in p.KEYS if f"{key}\0" in joined]
    out: dict[str, Found] = {}
    for name in tensors if active else ():
        for packing, key in active:
            if name.endswith(key) and name not in out:
                try:
                    found = packing.match(name.removesuffix(key), key, tensors, config)
                    if found:
                        _check_alone(found, tensors)
                except (FormatError, UnsupportedError) as error:
                    if trouble is None:
                        raise
                    trouble(name, error)
                    break
                if found:
                    out.update(dict.fromkeys(found.stored, found))
    return out


def unpack(packings: Iterable[Unpacker], tensors: Nodes, config: Config, trouble: OnError | None = None) -> Nodes:
    """The same tensors with every group replaced by one node, in the place of its first member. Where there are no
    groups, the mapping itself. See `groups`."""
    found = groups(packings, tensors, config, trouble)
    if not found:
        return tensors
    out: dict[str, Node] = {}
    for name in tensors:
        group = found.get(name)
        out[group.name if group else name] = group.node if group else tensors[name]
    return out


def _check_alone(found: Found, tensors: Nodes) -> None:
    """FormatError where the logical tensor is there a second time, under its own name."""
    if found.name in tensors and found.name not in found.stored:
        raise FormatError(
            "a weight is there twice, packed and plain", field=found.name, expected="one of them", found="both",
            hint="leftovers of a conversion: remove one",
        )  # fmt: skip


def members(module: str, tensors: Nodes, wanted: Mapping[str, str]) -> dict[str, Node]:
    """Member name -> node, for the stored suffixes that are there."""
    return {m: tensors[module + suffix] for m, suffix in wanted.items() if module + suffix in tensors}


def stored(module: str, tensors: Nodes, suffixes: Iterable[str]) -> frozenset[str]:
    """The names behind `module` that are there."""
    return frozenset(module + s for s in suffixes if module + s in tensors)


def need(condition: bool, module: str, what: str, expected: object, found: object) -> None:
    """FormatError about the group of `module` unless `condition`."""
    if not condition:
        raise FormatError(what, field=module, expected=str(expected), found=str(found))


def described(nodes: Mapping[str, Node]) -> str:
    return ", ".join(f"{name} {node.spec}" for name, node in nodes.items())


def settings(config: Config) -> Mapping[str, Any]:
    """What a config says of quantization; {} where it says nothing."""
    found = config.get("quantization_config") or config.get("quantization") or {}
    return found if isinstance(found, Mapping) else {}
