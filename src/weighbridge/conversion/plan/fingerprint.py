"""A fingerprint of everything that a plan's bytes depend on, which another process can compare.

Runs that would write the same bytes have the same fingerprint. It changes with a source, an option or the version.
Tensors are hashed node by node: types, fields, constants, and the offset, file, size and time of source bytes. Settings
that affect only speed and memory (threads, slabs) are left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

from weighbridge import __version__
from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Spec
from weighbridge.conversion.plan.contents import PlanContents
from weighbridge.io.location import TreePath
from weighbridge.io.source import BytesSource, FileSource, Source, Window
from weighbridge.tensors import np
from weighbridge.tensors.nodes.base import Node, RowOrder, Stored
from weighbridge.tensors.nodes.compute import CastReport

_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096


def key_of(plan: PlanContents) -> dict[str, str]:
    """The fingerprint's parts by the name that messages use, causes before their effects.

    They are the version, each source file, the types, and the parts of the plan.
    """
    key = {"weighbridge": __version__}
    key |= {name: state for name, _, state in (line.rpartition(": ") for line in plan.sources)}
    types = Counter(node.spec.dtype.name for file in plan.files for node in file.nodes)
    key["types of tensors"] = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
    key["files"] = _Hasher().digest([(f.name, f.layout.size) for f in plan.files])
    key["headers"] = _Hasher().digest([[f.layout.pieces, f.layout.slots] for f in plan.files], plan.texts)
    return key | {"tensors": _Hasher().digest([f.nodes for f in plan.files])}


def state_of(path: Path) -> str:
    """The current state of a file, for `Plan.sources`: path, size and modification time."""
    if isinstance(path, TreePath):
        return f"{path}: version {path.version}"
    stat = path.stat()
    return f"{path.resolve()}: {stat.st_size} bytes of {stat.st_mtime_ns}"


def samples_of(states: Sequence[str]) -> list[str]:
    """The current state of a plan's sources, with inode and a digest of some bytes; "" for a file that is gone.

    The digest detects writers that preserve size and time.
    """
    from hashlib import blake2b

    samples = []
    for path in (Path(state.rpartition(": ")[0]) for state in states):
        try:
            state, digest = state_of(path), blake2b(digest_size=16)
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                for at in range(0, stat.st_size, max(_SAMPLE_BYTES, stat.st_size // _SAMPLES)):
                    file.seek(at)
                    digest.update(file.read(_SAMPLE_BYTES))
            samples.append(f"{state}, inode {stat.st_ino}, {digest.hexdigest()}")
        except OSError:
            samples.append("")
    return samples


class _Hasher:
    """Hashes plain data, arrays and nodes into one digest; a repeated node is hashed as its number."""

    def __init__(self) -> None:
        from hashlib import blake2b

        self._hash = blake2b(digest_size=16)
        self._nodes: dict[int, int] = {}

    def digest(self, *values: Any) -> str:
        self.include(values)
        return self._hash.hexdigest()

    def _put(self, kind: str, data: bytes | memoryview = b"") -> None:
        """Hashes the length before the data, so that no two sequences of values collide."""
        self._hash.update(f"{kind} {len(data)}:".encode())
        self._hash.update(data)

    def include(self, value: Any) -> None:
        for kind, include in _hashers():
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
        from weighbridge.io.ranges import RangeSource

        if (number := self._nodes.get(id(node))) is not None:
            self._put("again", str(number).encode())
            return
        self._nodes[id(node)] = len(self._nodes)
        self._put(type(node).__qualname__)
        for field in fields(node):
            self.include(getattr(node, field.name))
        if isinstance(node, Stored) and (place := node.source.location(node.offset)) is not None:
            stat = os.fstat(place[0].fileno())
            self.include((str(Path(place[0].name).resolve()), place[1], stat.st_size, stat.st_mtime_ns))
        elif isinstance(node, Stored) and isinstance(node.source, RangeSource | Window):
            source: Source = node.source
            offset = node.offset
            while isinstance(source, Window):
                offset += source.offset
                source = source.parent
            # a remote file by its version, a window of any other source by its name
            self.include((source.name, source.version, offset) if isinstance(source, RangeSource) else repr(source))

    def items(self, values: Any) -> None:
        self._put(type(values).__name__, str(len(values)).encode())
        for value in values:
            self.include(value)

    def ndarray(self, values: np.ndarray[Any, Any]) -> None:
        self._put(f"{values.dtype.str} {values.shape}", np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def data(self, value: bytes | bytearray | memoryview) -> None:
        self._put("bytes", memoryview(value).cast("B"))

    def plain(self, value: Any) -> None:
        self._put(type(value).__name__, repr(value).encode())

    def source(self, source: Source) -> None:
        """Hashes a decompressed source by its name; a tensor's place in a file is hashed with its node."""
        from weighbridge.io.ranges import RangeSource

        if not isinstance(source, FileSource | Window | RangeSource):
            self.plain(source)

    def nothing(self, value: Any) -> None:
        """Skips a value that changes while running."""


@cache
def _hashers() -> tuple[tuple[Any, Callable[[_Hasher, Any], None]], ...]:
    """Types of values, in the order in which they are tested, with their hasher. Dataclasses are hashed field by
    field."""
    return (
        (Node, _Hasher.node),
        (Spec, lambda hasher, spec: hasher.include((spec.shape, spec.dtype.name))),
        (CastReport, _Hasher.nothing),
        (BytesSource, lambda hasher, source: hasher.data(source.data)),
        (Source, _Hasher.source),
        (RowOrder, lambda hasher, order: hasher.data(memoryview(order.rows))),
        (np.ndarray, _Hasher.ndarray),
        (bytes | bytearray | memoryview, _Hasher.data),
        (str | int | float | None | Enum | np.generic | np.dtype, _Hasher.plain),
        (Mapping, lambda hasher, values: hasher.items(list(values.items()))),
        (tuple | list | frozenset | range, _Hasher.items),
    )
