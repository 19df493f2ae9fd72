"""Everything that the bytes of a plan depend on, in a form that another process can compare: equal in every run that
would write the same bytes, another one where a source, an option or this version differs.

A plan's tensors are hashed node by node: types, fields, constants, the place of what is read and the file it is in,
with its size and time. What bears on speed and memory only (threads, slabs) is no part of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from weighbridge import __version__
from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Spec
from weighbridge.io.location import RemotePath
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import BytesSource, FileSource, Source, Window
from weighbridge.tensors.nodes.base import Node, Stored
from weighbridge.tensors.nodes.compute import CastReport

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Plan


_SAMPLES: Final = 16
_SAMPLE: Final = 4096


def key_of(plan: Plan) -> dict[str, str]:
    """Everything that the bytes depend on, under names for messages: version, each file that is read, the plan's
    parts."""
    key = {"weighbridge": __version__, "files": _Teller().digest([(f.name, f.layout.size) for f in plan.files])}
    key["headers"] = _Teller().digest([[f.layout.pieces, f.layout.slots] for f in plan.files], plan.texts)
    key |= {name: state for name, _, state in (line.rpartition(": ") for line in plan.sources)}
    return key | {"tensors": _Teller().digest([f.nodes for f in plan.files])}


def state_of(path: Path) -> str:
    """The present state of a file, for `Plan.sources`: path, size and modification time."""
    if isinstance(path, RemotePath):
        return f"{path}: version {path.version}"
    found = path.stat()
    return f"{path.resolve()}: {found.st_size} bytes of {found.st_mtime_ns}"


def samples_of(states: Sequence[str]) -> list[str]:
    """The sources of a plan as they are now: their states, inodes, and a digest of some of their bytes, for writers
    that leave size and time alone. A file that is gone has an empty one."""
    return [_sampled(Path(state.rpartition(": ")[0])) for state in states]


def _sampled(path: Path) -> str:
    try:
        state, digest = state_of(path), blake2b(digest_size=16)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for at in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                file.seek(at)
                digest.update(file.read(_SAMPLE))
            return f"{state}, inode {os.fstat(file.fileno()).st_ino}, {digest.hexdigest()}"
    except OSError:
        return ""


def _remote_place(source: Source, offset: int) -> tuple[str, str, int] | str:
    """Where bytes of a file elsewhere lie, with its version; what a window of anything else is called."""
    while isinstance(source, Window):
        offset += source.offset
        source = source.parent
    return (source.name, source.version, offset) if isinstance(source, RangeSource) else repr(source)


class _Teller:
    """Hashes plain data, arrays and nodes into one digest; a repeated node is hashed as its number."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._nodes: dict[int, int] = {}

    def digest(self, *values: Any) -> str:
        self.include(values)
        return self._hash.hexdigest()

    def _put(self, kind: str, data: bytes | memoryview = b"") -> None:
        """Length first, so that no two sequences of values read the same."""
        self._hash.update(f"{kind} {len(data)}:".encode())
        self._hash.update(data)

    def include(self, value: Any) -> None:
        for kind, include in _WAYS:
            if isinstance(value, kind):
                include(self, value)
                return
        if not is_dataclass(value) or isinstance(value, type):
            raise UsageError(f"a {type(value).__name__} can't be fingerprinted, so nothing can be resumed")
        self._put(type(value).__qualname__)
        for field in fields(value):
            self._put(field.name)
            self.include(getattr(value, field.name))

    def node(self, node: Node) -> None:
        if (number := self._nodes.get(id(node))) is not None:
            self._put("again", str(number).encode())
            return
        self._nodes[id(node)] = len(self._nodes)
        self._put(type(node).__qualname__)
        for field in fields(node):
            self.include(getattr(node, field.name))
        if isinstance(node, Stored) and (place := node.source.location(node.offset)) is not None:
            found = os.fstat(place[0].fileno())
            self.include((str(Path(place[0].name).resolve()), place[1], found.st_size, found.st_mtime_ns))
        elif isinstance(node, Stored) and isinstance(node.source, RangeSource | Window):
            self.include(_remote_place(node.source, node.offset))

    def spec(self, spec: Spec) -> None:
        self.include((spec.shape, spec.dtype.name))

    def items(self, values: Any) -> None:
        self._put(type(values).__name__, str(len(values)).encode())
        for value in values:
            self.include(value)

    def mapping(self, values: Mapping[Any, Any]) -> None:
        self.items(list(values.items()))

    def array(self, values: np.ndarray[Any, Any]) -> None:
        self._put(f"{values.dtype.str} {values.shape}", np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def data(self, value: bytes | bytearray | memoryview) -> None:
        self._put("bytes", memoryview(value).cast("B"))

    def plain(self, value: Any) -> None:
        self._put(type(value).__name__, repr(value).encode())

    def memory(self, source: BytesSource) -> None:
        self.data(source.data)

    def source(self, source: Source) -> None:
        """A tensor's place in its file is part of the fingerprint; a decompressed source counts by its name."""
        if not isinstance(source, FileSource | Window | RangeSource):
            self.plain(source)

    def nothing(self, value: Any) -> None:
        """A value that changes while running."""


# Kinds of values, in the order in which they are tested -> how they are hashed. Dataclasses are hashed field by field.
_WAYS: tuple[tuple[Any, Callable[[_Teller, Any], None]], ...] = (
    (Node, _Teller.node),
    (Spec, _Teller.spec),
    (CastReport, _Teller.nothing),
    (BytesSource, _Teller.memory),
    (Source, _Teller.source),
    (np.ndarray, _Teller.array),
    (bytes | bytearray | memoryview, _Teller.data),
    (str | int | float | None | Enum | np.generic | np.dtype, _Teller.plain),
    (Mapping, _Teller.mapping),
    (tuple | list | frozenset | range, _Teller.items),
)
