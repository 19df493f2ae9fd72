"""Sets of files that form one model: the index (`model.safetensors.index.json`), its shards, and whether they agree.

    {"metadata": {"total_size": 16060522496}, "weight_map": {"lm_head.weight": "model-00004-of-00004.safetensors", ...}}

Nothing is opened here: callers pass the shards' indexes, and the names of all files in the folder. A shard's name comes
from an untrusted file and becomes a path, so it must be a plain file name. `check` returns all problems of a set at
once; `merge` joins several indexes and raises if a tensor is missing or ambiguous. Index files are written as
huggingface_hub writes them, and shards are cut by its greedy rule.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import INDEX_JSON, SHARDS
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Index, Rule, Severity
from weighbridge.containers.numbered import numbered, sets
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.safetensors.json_scan import JsonObject, Scanner, kind
from weighbridge.io.source import Source

INDEX_SUFFIX: Final = ".index.json"
# No separators of any system, no drive or stream colon, no control characters.
_UNSAFE: Final = re.compile(r"[/\\:\x00-\x1f\x7f]")
_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: Final = MappingProxyType(
    {
        "repeated-name": Rule(_W, "tensor listed twice in the index; the last one counts"),
        "missing-shard": Rule(_E, "shard in the index doesn't exist"),
        "missing-tensor": Rule(_E, "tensor that the index lists is in no shard"),
        "misplaced-tensor": Rule(_E, "tensor in another shard than the one in the index"),
        "ambiguous-tensor": Rule(_E, "tensor in several shards, and the index lists none"),
        "repeated-tensor": Rule(_W, "tensor in several shards; the index decides which counts"),
        "unlisted-tensor": Rule(_W, "tensor that the index doesn't list"),
        "alias": Rule(_I, "listed tensor that is stored once, under another name"),
        "numbering": Rule(_W, "the shards' numbers have gaps or exceed their count"),
        "mixed-sets": Rule(_W, "the index names shards of several sets"),
        "stray-shard": Rule(_W, "file named like a shard of the set, which the index doesn't name"),
        "stray-file": Rule(_W, "second copy of the weights next to the shards"),
        "total-size": Rule(_W, "total_size matches no sum of the set"),
        "other-total": Rule(_I, "total_size isn't the sum of the tensors' bytes"),
        "no-total-size": Rule(_I, "index without total_size"),
    }
)


@dataclass(frozen=True)
class ShardIndex:
    """A parsed index file: which file contains which tensor."""

    path: str
    weight_map: Mapping[str, str]
    metadata: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The shards' names in their order."""
        return tuple(sorted(set(self.weight_map.values())))


def is_index(name: str) -> bool:
    """Whether a file of this name is an index; the variant comes before or after the word (`.index.fp16.json`)."""
    return re.search(r"\.(safetensors|bin)\.index(\.[\w-]+)?\.json\Z", name) is not None


# ---- reading the index ----------------------------------------------------------------------------------------


def parse_index(source: Source) -> ShardIndex:
    """An index file. FormatError if it isn't one, or if a shard's name isn't a plain file name."""
    if source.size > INDEX_JSON:
        raise FormatError("too long for an index", path=source.name, expected=f"<= {INDEX_JSON}", found=source.size)
    raw = source.read(0, source.size)
    if (index := _parse_plain(raw, source.name)) is not None:
        return index
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError("not UTF-8", path=source.name, offset=error.start) from None
    top = Scanner(raw, path=source.name).document()
    if not isinstance(top, JsonObject):
        raise FormatError("the index is not a JSON object", path=source.name, expected="an object", found=kind(top))
    metadata, pairs = top.last().get("metadata"), top.last().get("weight_map")
    if not isinstance(pairs, JsonObject):
        raise FormatError("no weight_map", path=source.name, field="weight_map", expected="an object",
                          found="nothing" if pairs is None else kind(pairs))  # fmt: skip
    weight_map = {p.key: shard_name(p.value, p.key, source.name) for p in pairs}
    if len(set(weight_map.values())) > SHARDS:
        raise FormatError("too many shards", path=source.name, expected=f"<= {SHARDS}")
    counts = Counter(p.key for p in pairs) if len(weight_map) != len(pairs) else {}
    finder = _Finder(source.name)
    for name in (name for name, count in counts.items() if count > 1):
        finder.add("repeated-name", "the index lists this tensor more than once; the last one counts", name)
    plain = _plain(metadata) if isinstance(metadata, JsonObject) else {}
    return ShardIndex(source.name, MappingProxyType(weight_map), MappingProxyType(plain), tuple(finder.findings))


class _PlainIndex(msgspec.Struct):
    """An index without anything unusual."""

    weight_map: dict[str, str]
    metadata: dict[str, int | float | str | bool] = {}


_PLAIN_INDEX: Final = msgspec.json.Decoder(_PlainIndex)


def _parse_plain(raw: bytes, path: str) -> ShardIndex | None:
    """An index in the usual spelling, 20 times as fast; None for others, and if a name is listed twice: every key has
    one `":`, unless a text has escapes."""
    try:
        index = _PLAIN_INDEX.decode(raw)
    except ValueError:  # msgspec's errors, and bad UTF-8
        return None
    files = set(index.weight_map.values())
    keys = 1 + (b'"metadata"' in raw) + len(index.weight_map) + len(index.metadata)
    if b"\\" in raw or raw.count(b'":') != keys or len(files) > SHARDS or not all(map(is_plain_name, files)):
        return None
    return ShardIndex(path, MappingProxyType(index.weight_map), MappingProxyType(dict(index.metadata)))


def is_plain_name(name: str) -> bool:
    """Whether a name can't lead out of its folder on any system."""
    return name not in ("", ".", "..") and not _UNSAFE.search(name) and name.isprintable()


def _plain(value: JsonObject) -> dict[str, Any]:
    """As dicts and lists all the way down (the scanner bounds the depth)."""

    def plain(v: Any) -> Any:
        if isinstance(v, JsonObject):
            return _plain(v)
        return [plain(item) for item in v] if isinstance(v, list) else v

    return {p.key: plain(p.value) for p in value}


def shard_name(value: object, tensor: str, path: str) -> str:
    """`value` if it is a plain file name, which can't leave its folder on any system. FormatError otherwise."""
    field = f"weight_map[{tensor!r}]"
    if not isinstance(value, str):
        raise FormatError("a shard's name is not a string", path=path, field=field, found=repr(value))
    if not is_plain_name(value):
        raise FormatError("a shard's name is not a plain file name", path=path, field=field, found=repr(value),
                          hint="shards must be in the folder of their index")  # fmt: skip
    return value


# ---- several files as one -------------------------------------------------------------------------------------


def merge(indexes: Sequence[Index], index: ShardIndex | None = None) -> Index:
    """Joins several files' indexes: entries in file order with their file's number, and all metadata (the first file
    with a key wins). FormatError if the set lacks a tensor that `index` lists, or if a tensor is in several files and
    `index` doesn't decide between them."""
    if not indexes:
        raise UsageError("a set of no files")
    shards = {_basename(i): i for i in indexes}
    agrees = index is not None and _agrees(index, shards)
    findings = _differences(index, shards, (), agrees) if index is not None else ()
    raise_first(findings)
    entries: list[Entry] = []
    files: list[Source] = []
    for shard in indexes:
        at, counting = len(files), shard.entries
        if index is not None and not agrees:  # leave out tensors whose copy in another file counts
            name = _basename(shard)
            counting = tuple(e for e in counting if index.weight_map.get(e.name, name) == name)
        entries += [Entry(e.name, e.dtype, e.shape, e.offset, e.nbytes, at + e.file, e.strides) for e in counting]
        files += shard.files
    if not agrees and len({e.name for e in entries}) != len(entries):
        first = {e.name: e for e in reversed(entries)}
        twice = next(e for e in entries if first[e.name] is not e)
        raise FormatError(f"tensor {twice.name!r} is in two files, and no index decides between them",
                          path=files[twice.file].name)  # fmt: skip
    return replace(
        indexes[0],
        files=tuple(files),
        entries=tuple(entries),
        metadata=MappingProxyType({k: v for shard in reversed(indexes) for k, v in shard.metadata.items()}),
        data_start=tuple(start for shard in indexes for start in shard.data_start),
        findings=(*(f for shard in indexes for f in shard.findings), *findings),
    )


def _basename(index: Index) -> str:
    return PurePath(index.files[0].name).name


def raise_first(findings: Iterable[Finding]) -> None:
    """FormatError for the first finding that is an error."""
    for f in findings:
        if f.severity is Severity.ERROR:
            field = None if f.tensor is None else f"tensor {f.tensor!r}"
            raise FormatError(f.message, path=f.path, offset=f.offset, field=field, hint=f.hint)


# ---- does the set agree with its index? -----------------------------------------------------------------------


class _Finder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.findings: list[Finding] = []

    def add(self, rule: str, message: str, tensor: str | None = None, hint: str | None = None) -> None:
        self.findings.append(Finding(f"sharded/{rule}", RULES[rule].severity, message, self.path, None, tensor, hint))


def check(index: ShardIndex, shards: Mapping[str, Index], names: Collection[str] = ()) -> tuple[Finding, ...]:
    """All differences between the index and its shards. `shards`: those that could be read, by file name; `names`: all
    files of the folder, if known."""
    return _differences(index, shards, names, _agrees(index, shards))


def _differences(
    index: ShardIndex, shards: Mapping[str, Index], names: Collection[str], agrees: bool
) -> tuple[Finding, ...]:
    finder = _Finder(index.path)
    finder.findings += index.findings
    present, listed = {*names, *shards}, Counter(index.weight_map.values())
    for name in index.files:
        if name not in present:
            message = f"shard {name!r} is missing, and with it {plural(listed[name], 'tensor')}"
            finder.add("missing-shard", message, hint="download it")
    if not agrees:
        _check_listed(index, shards, finder)
        _check_unlisted(index, shards, finder)
    _check_numbers(index.files, finder)
    _check_strays(index, names, finder)
    if all(name in shards for name in index.files):
        _check_total(index, [shards[name] for name in index.files], finder)
    return tuple(finder.findings)


def _agrees(index: ShardIndex, shards: Mapping[str, Index]) -> bool:
    """Whether every tensor is in the shard that the index lists, and only there, as in nearly every set."""
    count = 0
    for file, shard in shards.items():
        names = {e.name for e in shard.entries}
        if len(names) != len(shard.entries) or [*map(index.weight_map.get, names)].count(file) != len(names):
            return False
        count += len(names)
    return count == len(index.weight_map)


def _check_listed(index: ShardIndex, shards: Mapping[str, Index], finder: _Finder) -> None:
    holders = _holders(shards)
    # safetensors' save_model omits shared tensors and notes `name: kept name` in the metadata. (Plain values of a
    # pickle aren't such notes.)
    noted = (shard.metadata for shard in shards.values() if shard.format == safetensors.NAME)
    aliases = {name: kept for metadata in noted for name, kept in metadata.items()}
    for tensor, file in index.weight_map.items():
        if file not in shards or tensor in shards[file]:
            continue
        if elsewhere := holders.get(tensor):
            message = f"the index lists it in {file!r}, but it is in {', '.join(map(repr, elsewhere))}"
            finder.add("misplaced-tensor", message, tensor)
        elif aliases.get(tensor) in holders:
            finder.add("alias", f"stored once, as {aliases[tensor]!r}", tensor)
        else:
            finder.add("missing-tensor", f"the index lists it in {file!r}, but no shard has it", tensor)


def _holders(shards: Mapping[str, Index]) -> dict[str, list[str]]:
    holders: dict[str, list[str]] = {}
    for file, shard in shards.items():
        for e in shard.entries:
            holders.setdefault(e.name, []).append(file)
    return holders


def _check_unlisted(index: ShardIndex, shards: Mapping[str, Index], finder: _Finder) -> None:
    for tensor, files in _holders({f: s for f, s in shards.items() if f in index.files}).items():
        if tensor not in index.weight_map:
            message = f"{files[0]!r} has it, but the index does not list it; some loaders skip it"
            finder.add("unlisted-tensor", message, tensor)
            if len(files) > 1:
                finder.add("ambiguous-tensor", f"in {plural(len(files), 'shard')}, and the index lists none", tensor)
        elif len(files) > 1:
            message = f"in {plural(len(files), 'shard')} ({', '.join(files)}); {index.weight_map[tensor]!r} counts"
            finder.add("repeated-tensor", message, tensor, "loaders that read all files may take the other one")


def _check_numbers(files: Iterable[str], finder: _Finder) -> None:
    by_set = sets(files)
    for name, members in by_set.items():
        numbers, count = {m.number for m in members}, members[0].total
        if gaps := [*islice((n for n in range(1, min(count, SHARDS) + 1) if n not in numbers), 5)]:
            message = f"the set {name} has {plural(count, 'file')}; the index lists {len(numbers)} of them"
            finder.add("numbering", f"{message}, not number {', '.join(map(str, gaps))}")
        if extra := sorted(n for n in numbers if not 1 <= n <= count):
            finder.add("numbering", f"number {extra[0]} of {count} can't be: {name}")
    if len(by_set) > 1:
        finder.add("mixed-sets", f"the index lists files of {plural(len(by_set), 'set')}: {', '.join(sorted(by_set))}")


def _check_strays(index: ShardIndex, names: Collection[str], finder: _Finder) -> None:
    whole = PurePath(index.path).name.removesuffix(INDEX_SUFFIX)
    stems = {shard.stem for shard in filter(None, map(numbered, index.files))}
    for name in sorted(set(names) - set(index.files)):
        shard = numbered(name)
        if shard and shard.stem in stems and name.endswith(PurePath(whole).suffix):
            finder.add("stray-shard", f"{name!r} looks like a shard of this set, but the index does not name it")
        elif name == whole or (name.startswith("consolidated") and name.endswith(safetensors.SUFFIX)):
            message = f"{name!r} is in the folder of the shards: perhaps a second copy of the weights"
            finder.add("stray-file", message, hint="loaders that read every file would load it, too")


def _check_total(index: ShardIndex, shards: Sequence[Index], finder: _Finder) -> None:
    """`total_size` is the sum of the tensors' bytes (huggingface_hub, transformers, mlx-lm); some writers sum up file
    sizes, or count aliases or parameters. No loader reads it."""
    stated = index.metadata.get("total_size")
    if stated is None:
        finder.add("no-total-size", "the index states no total_size")
        return
    nbytes = sum(shard.nbytes for shard in shards)
    if stated == nbytes:
        return
    entries = [e for shard in shards for e in shard.entries]
    totals = {  # of some writers
        sum(e.spec.elements for e in entries): "the number of parameters",
        sum(source.size for shard in shards for source in shard.files): "the sum of the files' sizes",
        sum(e.nbytes for e in entries if e.name in index.weight_map): "the sum of the listed tensors' bytes",
    }
    actual = f"the sum of the tensors' bytes is {nbytes}"
    if isinstance(stated, int | float) and stated in totals:
        finder.add("other-total", f"total_size {stated} is {totals[int(stated)]}, but {actual}")
    else:
        finder.add("total-size", f"total_size is {stated}, but {actual}", hint="a stale index?")


# ---- writing --------------------------------------------------------------------------------------------------


def shard_names(count: int, prefix: str = "model", suffix: str = safetensors.SUFFIX) -> list[str]:
    """The names of a set of `count` files; a single file has no number."""
    if not 1 <= count <= SHARDS:
        raise UsageError(f"a set has 1 to {SHARDS} files, not {count}", hint="allow larger shards")
    if count == 1:
        return [f"{prefix}{suffix}"]
    return [f"{prefix}-{i:05d}-of-{count:05d}{suffix}" for i in range(1, count + 1)]


def index_json(weight_map: Mapping[str, str], total_size: int, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of an index file, as huggingface_hub's `save_torch_state_dict` writes them (indent 2, given order)."""
    index = {"metadata": {"total_size": total_size, **(metadata or {})}, "weight_map": dict(weight_map)}
    return json.dumps(index, indent=2).encode()


def partition(
    specs: Iterable[tuple[str, Spec]], max_bytes: int | None = None, max_tensors: int | None = None
) -> list[list[str]]:
    """Names by shard: huggingface_hub's greedy rule, in the given order (`split_state_dict_into_shards_factory`). A
    tensor larger than `max_bytes` gets a separate shard, before the one that is being filled."""
    if (max_bytes is not None and max_bytes < 1) or (max_tensors is not None and max_tensors < 1):
        raise UsageError("the shard size must be positive", hint="--max-shard-size 5GB")
    shards: list[list[str]] = []
    current: list[str] = []
    filled = 0
    for name, spec in specs:
        size = spec.nbytes
        if max_bytes is not None and size > max_bytes:
            shards.append([name])
            continue
        if (max_bytes is not None and filled + size > max_bytes) or len(current) == max_tensors:
            shards.append(current)
            current, filled = [], 0
        current.append(name)
        filled += size
    return [*shards, current] if current or not shards else shards
