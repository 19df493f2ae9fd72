"""Sets of GGUF shards, as llama-gguf-split makes them and llama.cpp loads them (tools/gguf-split/gguf-split.cpp,
llama-model-loader.cpp of b11549):

    PREFIX-00001-of-00003.gguf    all keys of the model, then split.no u16 = 0, split.tensors.count i32, split.count u16
    PREFIX-00002-of-00003.gguf    the three split keys only

split.no counts from 0, names count from 1; split.tensors.count is the total over all shards.

Two faults of the reference are not copied. It pads the data to 32 bytes, whatever `general.alignment` is; here every
shard has that key, since each is read separately. It refuses a first tensor that is larger than a shard; here that
tensor gets a separate shard, as later ones do in the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import SHARDS
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Index, Layout
from weighbridge.containers.gguf.read import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, padded
from weighbridge.containers.gguf.rules import Collector
from weighbridge.containers.gguf.values import KV, RANGES, Metadata, kvs
from weighbridge.containers.gguf.write import layout

MAX_TENSORS: Final = 128  # llama-gguf-split's default
NUMBER, COUNT, TOTAL = "split.no", "split.count", "split.tensors.count"
_NAME: Final = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shard_name(prefix: str, number: int, count: int) -> str:
    """The name of shard `number` (from 0) of `count`."""
    return f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf"


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """Prefix, number (from 0) and count in a shard's name; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return None
    return match["prefix"], int(match["number"]) - 1, int(match["count"])


# -- split ---------------------------------------------------------------------------------------------------------


def split_layouts(
    tensors: Sequence[tuple[str, Spec]],
    metadata: Mapping[str, Any],
    max_tensors: int | None = None,
    max_bytes: int | None = None,
    no_tensor_first: bool = False,
    order: str = "<",
) -> tuple[Layout, ...]:
    """One layout a shard, grouped as llama-gguf-split does: by number of tensors (128 by default), or by
    bytes of padded tensor data; `no_tensor_first` leaves the first shard to the keys.
    `order`: ">" for big-endian files."""
    if max_tensors is not None and max_bytes is not None:
        raise UsageError("shards are limited by tensors or by bytes, not both")
    limit = next(n for n in (max_bytes, max_tensors, MAX_TENSORS) if n is not None)
    if limit < 1:
        raise UsageError("a shard's limit is at least 1")
    pairs = {key: kv for key, kv in kvs(metadata).items() if key not in (NUMBER, COUNT, TOTAL)}
    align = pairs[ALIGNMENT_KEY].value if ALIGNMENT_KEY in pairs else DEFAULT_ALIGNMENT
    if max_bytes is not None:
        groups = list(_by_bytes(tensors, limit, align))
    else:
        groups = [list(tensors[start : start + limit]) for start in range(0, max(len(tensors), 1), limit)]
    if no_tensor_first:
        groups.insert(0, [])
    if len(groups) > RANGES["u16"][1]:
        raise UsageError(
            f"{plural(len(groups), 'shard', 'are')} too many; {COUNT} is a u16", hint="allow larger shards"
        )
    later = {key: kv for key, kv in pairs.items() if key == ALIGNMENT_KEY}
    layouts = []
    for number, group in enumerate(groups):
        # The order of the reference, which sets the count last.
        keys = {NUMBER: KV("u16", number), TOTAL: KV("i32", len(tensors)), COUNT: KV("u16", len(groups))}
        layouts.append(layout(group, (later if number else pairs) | keys, order=order))
    return tuple(layouts)


def _by_bytes(tensors: Sequence[tuple[str, Spec]], limit: int, align: int) -> Iterator[list[tuple[str, Spec]]]:
    group: list[tuple[str, Spec]] = []
    size = 0
    for name, spec in tensors:
        nbytes = padded(spec.nbytes, align)
        if group and size + nbytes > limit:
            yield group
            group, size = [], 0
        group.append((name, spec))
        size += nbytes
    yield group


# -- merge ---------------------------------------------------------------------------------------------------------


def merge(indexes: Sequence[Index]) -> Index:
    """A set of parsed shards, in any order, as one index: the first shard's keys (without those of the split), all
    tensors. Problems of the set become findings; shards that can't belong together are a FormatError."""
    if not indexes:
        raise UsageError("no shards to merge")
    name = indexes[0].files[0].name
    if len({(index.byte_order, index.alignment) for index in indexes if index.entries}) > 1:
        raise FormatError("shards differ in byte order or alignment: they don't belong to one set", path=name)
    notes = Collector(name, strict=False)
    ordered = _in_order(indexes, notes)
    entries: dict[str, Entry] = {}
    base = 0
    for index in ordered:
        for e in index.entries:
            if e.name in entries:
                notes.note("gguf/split-duplicate", tensor=e.name)
            else:
                entries[e.name] = Entry(e.name, e.dtype, e.shape, e.offset, e.nbytes, base + e.file)
        base += len(index.files)
    first = ordered[0]
    total, count = first.metadata.get(TOTAL), sum(len(index) for index in ordered)
    if total is not None and total != count:
        notes.note("gguf/split-total", f"it is {total}, the shards have {count}")
    return Index(
        format="gguf",
        files=tuple(source for index in ordered for source in index.files),
        entries=tuple(entries.values()),
        metadata=Metadata((k, kv) for k, kv in kvs(first.metadata).items() if k not in (NUMBER, COUNT, TOTAL)),
        data_start=tuple(start for index in ordered for start in index.data_start),
        alignment=max(index.alignment for index in ordered),
        byte_order=first.byte_order,
        version=first.version,
        findings=(*(f for index in ordered for f in index.findings), *notes.result()),
    )


def _in_order(indexes: Sequence[Index], notes: Collector) -> list[Index]:
    """The shards by split.no, with findings on missing, duplicate or contradictory ones."""
    numbered: dict[int, Index] = {}
    unnumbered: list[Index] = []
    counts = {index.metadata.get(COUNT) for index in indexes}
    for index in indexes:
        number = index.metadata.get(NUMBER)
        if not isinstance(number, int) or number in numbered:
            notes.note("gguf/split-number", f"{index.files[0].name} has number {number}")
            unnumbered.append(index)
        else:
            numbered[number] = index
    first = numbered[min(numbered)] if numbered else indexes[0]
    count = first.metadata.get(COUNT)
    if len(counts) > 1:
        notes.note("gguf/split-count", ", ".join(sorted(map(str, counts))))
    if isinstance(count, int):
        missing = [number for number in range(min(count, SHARDS)) if number not in numbered]
        if missing:
            shown = ", ".join(str(number + 1) for number in missing[:20])
            notes.note("gguf/split-missing", f"number {shown}{' ...' if len(missing) > 20 else ''} of {count}")
        for number in sorted(numbered):
            if number >= count:
                notes.note("gguf/split-number", f"{numbered[number].files[0].name} has number {number} of {count}")
    return [numbered[number] for number in sorted(numbered)] + unnumbered
