"""The stack of five pickles and storages that torch wrote before 1.6, as a file or inside a pickle
(`torch.storage._load_from_bytes`).

    magic number | protocol 1001 | {"little_endian": ..., "type_sizes": ...} | the object | [storage keys] |
    for each key: i64 number of elements, their bytes

Only the persistent id by which the object names a storage has the width of its elements. All numbers are little-endian,
whatever the third pickle declares. Reference: `_legacy_load` in torch/serialization.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.io.source import Source
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Global, Persistent, preview

MAGIC: Final = 0x1950A86A20F9469CFC6C
PROTOCOL: Final = 1001
PARTS: Final = ("magic number", "protocol", "system", "object", "storage keys")


class Span(NamedTuple):
    """`size` bytes of a source, from `start` on."""

    start: int
    size: int


@dataclass(frozen=True)
class LegacyStack:
    """The machines that read the five pickles, their values, the storages by key, and the end of the stack."""

    machines: tuple[Machine, ...]
    values: tuple[Any, ...]
    spans: Mapping[str, Span]
    end: int


def read(source: Source, widths: Mapping[tuple[str, str], int], budget: int) -> LegacyStack:
    """Reads the stack. `widths`: bytes per element of each storage class."""
    machines: list[Machine] = []
    values: list[Any] = []
    at = 0
    for part in PARTS:
        machine = Machine(source, at, budget)
        values.append(machine.run())
        machines.append(machine)
        at = machine.end
        expected = {"magic number": MAGIC, "protocol": PROTOCOL}.get(part)
        if expected is not None and (not isinstance(values[-1], int) or values[-1] != expected):
            raise FormatError(f"not the {part}", path=source.name, offset=machine.start, expected=expected,
                              found=preview(values[-1]))  # fmt: skip
    spans, end = _spans(source, machines, values[4], widths)
    return LegacyStack(tuple(machines), tuple(values), spans, end)


def _spans(
    source: Source, machines: Sequence[Machine], keys: Any, widths: Mapping[tuple[str, str], int]
) -> tuple[dict[str, Span], int]:
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys):
        raise FormatError(
            "the storage keys aren't text", path=source.name, offset=machines[4].start, found=preview(keys)
        )
    named: dict[str, int] = {}  # the width of each storage, as its first mention declares it
    ids: Iterable[Any] = (e.what.id for e in machines[3].events if isinstance(e.what, Persistent))
    for id in ids:
        if not isinstance(id, tuple) or len(id) not in (5, 6) or not isinstance(id[1], Global):
            continue
        key = id[2].decode("latin-1") if isinstance(id[2], bytes) else id[2]
        if isinstance(key, str) and id[1].path in widths:
            named.setdefault(key, widths[id[1].path])
    spans: dict[str, Span] = {}
    at = machines[4].end
    for key in keys:
        if key not in named or key in spans:
            reason = "a storage is listed twice" if key in spans else "a storage that the object does not name"
            raise FormatError(reason, path=source.name, offset=at, field="storage keys", found=preview(key))
        count = int.from_bytes(source.read(at, 8), "little", signed=True)
        size = count * named[key]
        if not 0 <= size <= source.size - at - 8:
            left = f"{source.size - at - 8} left"
            raise FormatError("the file ends inside a storage", path=source.name, offset=at, field=repr(key[:40]),
                              expected=f"{size} bytes", found=left)  # fmt: skip
        spans[key] = Span(at + 8, size)
        at += 8 + size
    return spans, at
