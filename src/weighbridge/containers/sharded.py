"""Sharded sets: `model-00001-of-00003.safetensors` ... and the `model.safetensors.index.json` that says which tensor is
in which file. The JSON is written by many tools and checked by none at load, so everything it says is untrusted: a name
in it must be a plain file name beside it, and what it says is held against the shards themselves.

    {"metadata": {"total_size": 123, ...}, "weight_map": {"tensor name": "file name", ...}}

Rules of the format: huggingface_hub 2.4 `serialization/_base.py` (how shards are cut and named) and `_torch.py`.
This module opens nothing: it gets parsed indexes, names and sizes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import INDEX_JSON, SHARDS
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Finding, Index, Severity
from weighbridge.io.source import Source

SUFFIX: Final = ".index.json"
_NUMBERED: Final = re.compile(r"(?P<stem>.+)-(?P<no>\d{5,6})-of-(?P<count>\d{5,6})(?P<suffix>\.\w+)\Z")


@dataclass(frozen=True)
class WeightMap:
    """What an index JSON says: tensor name -> file name, and `metadata` (total_size and whatever else)."""

    where: Mapping[str, str]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files it names, each once, in the order of their names."""
        return tuple(sorted(set(self.where.values())))

    @property
    def total_size(self) -> int | None:
        said = self.metadata.get("total_size")
        return int(said) if isinstance(said, int | float) and not isinstance(said, bool) and said == said // 1 else None


# ------------------------------------------------------------------------------------------------ reading


def parse_index(source: Source) -> WeightMap:
    """An index JSON. FormatError where it is none, or names a file that isn't a plain name beside it."""
    if source.size > INDEX_JSON:
        raise FormatError("the index is too large", path=source.name, expected=f"at most {INDEX_JSON} bytes",
                          found=source.size)  # fmt: skip
    try:
        doc = msgspec.json.decode(source.read(0, source.size))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the index is no JSON: {error}", path=source.name) from None
    where = doc.get("weight_map") if isinstance(doc, dict) else None
    if not isinstance(where, dict) or not where:
        raise FormatError("the index has no weight_map", path=source.name, field="weight_map",
                          expected="an object of tensor and file names")  # fmt: skip
    for tensor, name in where.items():
        if not isinstance(name, str) or not is_plain_name(name):
            raise FormatError(
                "a shard's name leaves the folder or is no file name", path=source.name,
                field=f"weight_map[{tensor!r}]", expected="a plain file name", found=repr(name)[:120],
            )  # fmt: skip
    if len(set(where.values())) > SHARDS:
        raise FormatError("the index names too many files", path=source.name, expected=f"at most {SHARDS}")
    metadata = doc.get("metadata")
    return WeightMap(MappingProxyType(where), metadata if isinstance(metadata, dict) else {}, source.name)


def is_plain_name(name: str) -> bool:
    """True for a name that stays in its folder on every system: no separators, no drive, no dots alone, no controls."""
    return (
        0 < len(name) <= 255
        and name not in (".", "..")
        and not any(c in '/\\:\0<>"|?*' or ord(c) < 32 for c in name)
        and not name.endswith((" ", "."))
    )


def merge(indexes: Sequence[Index], weight_map: WeightMap | None = None) -> Index:
    """Several files' indexes as one, tensors in the order of the files. Where a tensor stands in two files, the one
    that the weight map names counts, else the first; what disagrees becomes findings (see `check`)."""
    if not indexes:
        raise UsageError("no shards to merge")
    names = [_base(i.files[0].name) for i in indexes]
    findings = [f for i in indexes for f in i.findings] + list(check(indexes, weight_map))
    where = weight_map.where if weight_map else {}
    first: dict[str, int] = {}
    for number, index in enumerate(indexes):
        for entry in index:
            if entry.name not in first or where.get(entry.name) == names[number]:
                first[entry.name] = number
    entries, offset = [], 0
    for number, index in enumerate(indexes):
        entries += [_shifted(e, offset) for e in index if first[e.name] == number]
        offset += len(index.files)
    head = indexes[0]
    return Index(
        head.format, tuple(s for i in indexes for s in i.files), tuple(entries), _metadata(indexes),
        tuple(start for i in indexes for start in i.data_start), max(i.alignment for i in indexes),
        head.byte_order, head.version, tuple(findings),
    )  # fmt: skip


def _shifted(e: Entry, files: int) -> Entry:
    """The entry in a set with `files` files before its own."""
    return Entry(e.name, e.dtype, e.shape, e.offset, e.nbytes, e.file + files) if files else e


def _metadata(indexes: Sequence[Index]) -> Mapping[str, Any]:
    """What all shards say; the first one's word where they differ."""
    out: dict[str, Any] = {}
    for index in reversed(indexes):
        out |= index.metadata
    return out


def _base(name: str) -> str:
    return re.split(r"[/\\]", name)[-1]


# ------------------------------------------------------------------------------------------------ checking


def check(indexes: Sequence[Index], weight_map: WeightMap | None, listing: Collection[str] = ()) -> Iterator[Finding]:
    """What is wrong between an index and its shards, both ways. `listing`: the names of the folder, for files that are
    missing or stray; without it only the shards given are held against the map."""
    held: dict[str, list[str]] = {}
    for index in indexes:
        for entry in index:
            held.setdefault(entry.name, []).append(_base(index.files[entry.file].name))
    yield from _doubles(held)
    if weight_map is not None:
        yield from _against_map(held, weight_map, {_base(s.name) for i in indexes for s in i.files})
        yield from _total_size(indexes, weight_map)
    if listing:
        named = set(weight_map.files) if weight_map else set()
        yield from _missing_files(named, listing, weight_map)
        yield from _strays(named, listing)
        yield from _gaps(listing)


def _doubles(held: Mapping[str, list[str]]) -> Iterator[Finding]:
    for tensor, files in held.items():
        if len(files) > 1:
            yield Finding(
                "shards/duplicate-tensor", Severity.ERROR, f"the tensor stands in {', '.join(files)}", tensor=tensor,
                hint="loaders take one of them, and not all the same one",
            )  # fmt: skip


def _against_map(held: Mapping[str, list[str]], weight_map: WeightMap, read: Collection[str]) -> Iterator[Finding]:
    for tensor, file in weight_map.where.items():
        if file in read and file not in held.get(tensor, ()):
            elsewhere = f"; it stands in {held[tensor][0]}" if tensor in held else ""
            yield Finding(
                "shards/not-in-shard", Severity.ERROR,
                f"the index places the tensor in {file}, which lacks it{elsewhere}",
                path=weight_map.path, tensor=tensor, hint="the index is stale or a shard is another model's",
            )  # fmt: skip
    for tensor, files in held.items():
        if tensor not in weight_map.where:
            yield Finding(
                "shards/not-in-index", Severity.WARNING, f"the tensor stands in {files[0]} but not in the index",
                path=weight_map.path, tensor=tensor, hint="loaders that follow the index don't load it",
            )  # fmt: skip


def _total_size(indexes: Sequence[Index], weight_map: WeightMap) -> Iterator[Finding]:
    said = weight_map.total_size
    data = sum(i.nbytes for i in indexes)
    files = sum(s.size for i in indexes for s in i.files)
    if {_base(s.name) for i in indexes for s in i.files} != set(weight_map.files) or said in (data, files):
        return  # with a shard absent the sum says nothing; some tools count whole files, headers included
    found = "none" if said is None else f"{said}"
    yield Finding(
        "shards/total-size", Severity.WARNING, f"total_size is {found}, the tensors take {data} bytes",
        path=weight_map.path, hint="no loader checks it; tools that show sizes are misled",
    )  # fmt: skip


def _missing_files(named: Collection[str], listing: Collection[str], weight_map: WeightMap | None) -> Iterator[Finding]:
    for file in sorted(set(named) - set(listing)):
        count = sum(f == file for f in weight_map.where.values()) if weight_map else 0
        yield Finding(
            "shards/missing-file", Severity.ERROR, f"{file} is missing, with {count} tensors",
            path=weight_map.path if weight_map else None, hint="download it again",
        )  # fmt: skip


def _strays(named: Collection[str], listing: Collection[str]) -> Iterator[Finding]:
    """Weights beside the set that the index doesn't name: loaders that take every file load them too."""
    suffixes = {"." + n.rsplit(".", 1)[-1] for n in named}
    for file in sorted(set(listing) - set(named)):
        if named and any(file.endswith(s) for s in suffixes) and not file.startswith(("adapter_", "consolidated")):
            yield Finding(
                "shards/stray-file", Severity.WARNING, f"{file} is not in the index", path=file,
                hint="a leftover of another version? loaders that take every file load it as well",
            )  # fmt: skip


def _gaps(listing: Collection[str]) -> Iterator[Finding]:
    """Numbers missing in a numbered set."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in listing:
        if match := _NUMBERED.fullmatch(name):
            sets.setdefault((match["stem"], match["count"], match["suffix"]), set()).add(int(match["no"]))
    for (stem, count, suffix), numbers in sorted(sets.items()):
        total = int(count)
        if total > SHARDS or not numbers <= set(range(1, min(total, SHARDS) + 1)):
            message = f"{stem}-*-of-{count}{suffix}: numbers outside 1..{total}"
            yield Finding("shards/numbering", Severity.ERROR, message)
        elif len(numbers) < total:
            absent = [i for i in range(1, total + 1) if i not in numbers]
            some = ", ".join(map(str, absent[:10])) + (" ..." if len(absent) > 10 else "")
            message = f"{stem}-*-of-{count}{suffix}: {len(absent)} of {total} are missing: {some}"
            yield Finding("shards/gap", Severity.ERROR, message)
    stems = Counter((stem, suffix) for stem, _, suffix in sets)
    for (stem, suffix), versions in sorted(stems.items()):
        if versions > 1:
            yield Finding(
                "shards/two-sets", Severity.WARNING, f"{stem}-*{suffix}: {versions} sets of different lengths lie here"
            )


# ------------------------------------------------------------------------------------------------ writing


def shard_names(count: int, stem: str = "model", suffix: str = ".safetensors") -> list[str]:
    """`model-00001-of-00003.safetensors` ...; one file alone has no number."""
    if count == 1:
        return [f"{stem}{suffix}"]
    return [f"{stem}-{i:05d}-of-{count:05d}{suffix}" for i in range(1, count + 1)]


def partition(
    tensors: Sequence[tuple[str, Spec]], max_bytes: int | None = None, max_tensors: int | None = None
) -> list[list[str]]:
    """Names shard by shard, cut greedily in the order given, as huggingface_hub does: a tensor larger than the bound
    gets a shard of its own, placed before the one that is still open."""
    if any(bound is not None and bound < 1 for bound in (max_bytes, max_tensors)):
        raise UsageError("a shard must hold something")
    done: list[list[str]] = []
    shard: list[str] = []
    size = 0
    for name, spec in tensors:
        if max_bytes is not None and spec.nbytes > max_bytes:
            done.append([name])
            continue
        full = max_bytes is not None and size + spec.nbytes > max_bytes
        if full or (max_tensors is not None and len(shard) >= max_tensors):
            done.append(shard)
            shard, size = [], 0
        shard.append(name)
        size += spec.nbytes
    return [*done, shard] if shard or not done else done


def index_json(where: Mapping[str, str], total_size: int, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The index as transformers' `save_pretrained` writes it: two spaces, sorted keys, a newline at the end."""
    doc = {"metadata": {"total_size": total_size, **(metadata or {})}, "weight_map": dict(where)}
    return (json.dumps(doc, indent=2, sort_keys=True) + "\n").encode()
