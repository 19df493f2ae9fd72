"""Safetensors: [8 bytes: N, little-endian][N bytes: JSON][data]. Accepts exactly the files that the reference accepts.

    {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}

The verdict equals that of the Rust reference (safetensors 0.8.0, `tensor.rs`), which accepts more than its README:
white space before the brace, a repeated name (the last wins), an entry written as an array, unknown fields. These are
findings, and errors with `strict=True`. Every rule is a row of `rules.py`; a broken one is a `Problem` first, and
becomes an error in `parse` or a finding in `examine`, which returns all of them.

The JSON has three readers. The extension reads files without any problem or oddity: 20,000 tensors take it 8 ms, and
msgspec 27 to 39 ms, a third of that for decoding. `_fast` decodes with msgspec, and only answers if the reference would
certainly accept the header and read the same values. `exact.py` reads all other headers, and decides as serde_json
does. `layout.py` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError
from weighbridge.base.gc_pause import paused
from weighbridge.base.limits import MIB, SAFETENSORS_HEADER
from weighbridge.base.native import plain_safetensors
from weighbridge.base.spec import Shape
from weighbridge.base.words import plural
from weighbridge.containers import by_magic
from weighbridge.containers.base import Entry, Finding, Index, Region, Severity
from weighbridge.containers.formats import ZIPNN_KEY
from weighbridge.containers.safetensors.exact import FIELDS, LENGTH, SPACE, TYPES, HeaderEntry, exact, members
from weighbridge.containers.safetensors.json_scan import JsonObject, Pair, Scanner
from weighbridge.containers.safetensors.layout import METADATA, SUFFIX, header_bytes, layout
from weighbridge.containers.safetensors.rules import RULES, Problems
from weighbridge.io.source import Source

__all__ = ["NAME", "SUFFIX", "examine", "header_bytes", "layout", "parse", "parse_stored", "regions"]

NAME: Final = "safetensors"
_U64: Final = 2**64 - 1


class _ParsedHeader(NamedTuple):
    """The header: its bytes as far as they exist, tensors by name in header order, metadata, and the problems so
    far."""

    length: int
    raw: bytes
    infos: dict[str, HeaderEntry]
    metadata: dict[str, str]
    problems: Problems


def parse(source: Source, *, strict: bool = False) -> Index:
    """The tensors of a file as `parse_stored` returns them, those in ZipNN's code decoded as they are read."""
    index = parse_stored(source, strict=strict)
    return _decoded_tensors(index) if ZIPNN_KEY in index.metadata else index


def parse_stored(source: Source, *, strict: bool = False) -> Index:
    """The stored tensors of a file, in the order of their bytes. Raises FormatError exactly if the reference refuses
    the file, and with `strict` also if it deviates from the README (otherwise these deviations are findings)."""
    problems = Problems()
    length, raw = _header(source, problems)
    if raw is not None and not problems and (plain := _plain(source, raw)) is not None:
        return plain
    with paused() if source.size > MIB else nullcontext():
        head = _decoded(source, length, raw, problems)
        head.problems.raise_first(source.name, strict)
        entries = _place(head, source.size)
    head.problems.raise_first(source.name, strict)
    return _index(source, head, entries)


# The rows of the types, as `plain_safetensors` reads them, and their types.
_TYPE_ROWS: Final = b"".join(bytes((bits, t.word, len(name))) + name.encode() for name, (t, bits) in TYPES.items())
_ROW_TYPES: Final = tuple(t for t, _ in TYPES.values())


def _plain(source: Source, raw: bytes) -> Index | None:
    """The extension's index of a file whose header is in the usual spelling, without any problem or oddity; None for
    other files, which may be valid too."""
    start = LENGTH + len(raw)
    plain = plain_safetensors(raw, _TYPE_ROWS, start, source.size - start, _ROW_TYPES, Entry)
    if plain is None:
        return None
    by_name, metadata = plain
    index = Index(NAME, (source,), tuple(by_name.values()), MappingProxyType(metadata), (start,))
    vars(index)["by_name"] = by_name
    return index


def examine(source: Source) -> tuple[Index, tuple[Finding, ...]]:
    """The readable part of a file, and all its problems. Tensors with incomplete data, or with a contradictory
    entry, are left out of the index."""
    head = _read_head(source)
    whole = tuple(e for e in _place(head, source.size) if e.offset + e.nbytes <= source.size)
    index = _index(source, head, whole)
    if ZIPNN_KEY in index.metadata:
        from weighbridge.containers.zipnn.tensors import examined  # late: few files have such tensors

        index = examined(index)
    return index, index.findings


def headers(source: Source) -> tuple[Index, tuple[Finding, ...]]:
    """As `examine`, including tensors with incomplete data."""
    head = _read_head(source)
    index = _index(source, head, _place(head, source.size))
    index = _decoded_tensors(index) if ZIPNN_KEY in index.metadata else index
    return index, index.findings


def _decoded_tensors(index: Index) -> Index:
    from weighbridge.containers.zipnn.tensors import decoded  # late, as above

    return decoded(index)


def _index(source: Source, head: _ParsedHeader, entries: tuple[Entry, ...]) -> Index:
    start = min(LENGTH + head.length, source.size)
    metadata, findings = MappingProxyType(head.metadata), head.problems.findings(source.name)
    return Index(NAME, (source,), entries, metadata, (start,), findings=findings)


# ---- the header -----------------------------------------------------------------------------------------------


def _read_head(source: Source) -> _ParsedHeader:
    problems = Problems()
    return _decoded(source, *_header(source, problems), problems)


def _decoded(source: Source, length: int, raw: bytes | None, problems: Problems) -> _ParsedHeader:
    if raw is None:
        return _ParsedHeader(0, b"", {}, {}, problems)
    fast = None if problems else _fast(raw)
    infos, metadata = fast or exact(raw, source.name, problems)
    return _ParsedHeader(length, raw, infos, metadata, problems)


_FIRST: Final = 16 << 10  # one read is enough for the header of a usual file of 100 tensors
# Beginnings of files that people have instead of a safetensors file (`wb identify` recognises many more).
_OTHERS: Final = (
    (b"version https://git-lfs", "this is a Git LFS pointer, not the weights: run `git lfs pull`"),
    (b"\x80\x02", "this is a pickle: a PyTorch checkpoint of the old format"),
    (b"<!DOCTYPE", "this is a web page: the download failed"),
    (b"<html", "this is a web page: the download failed"),
    (b"{", "this is bare JSON: the 8 bytes of the header's length are missing"),
)


def _hint(first: bytes) -> str | None:
    """The actual format of a file, by its first bytes."""
    if format := by_magic(first):
        return f"its magic is that of a different format: {format.title}"
    return next((hint for start, hint in _OTHERS if first.startswith(start)), None)


def _header(source: Source, problems: Problems) -> tuple[int, bytes | None]:
    """N, and the header's bytes as far as the file goes; None if N is impossible."""
    first = source.head(_FIRST)
    if len(first) < LENGTH:
        problems.add("no-header", "too short for a header", 0, expected=f"{LENGTH} bytes at least", found=source.size,
                     hint=_hint(first))  # fmt: skip
        return 0, None
    length = int.from_bytes(first[:LENGTH], "little")
    if length > SAFETENSORS_HEADER:
        problems.add("header-too-large", "the header's length is impossible", 0,
                     expected=f"at most {SAFETENSORS_HEADER}", found=length, hint=_hint(first))  # fmt: skip
        return 0, None
    present = min(length, source.size - LENGTH)
    if present < length:
        problems.add("header-cut", "the file ends inside its header; all of the data is missing", 0,
                     expected=f"{length} bytes", found=present, hint=_hint(first) or _AGAIN)  # fmt: skip
    end = LENGTH + present
    return length, first[LENGTH:end] if end <= len(first) else source.read(LENGTH, present)


_AGAIN: Final = "download or copy it again"
# A key spelled with escapes could hide from the counts below: letters and `_` are 0x41..0x7a.
_HIDDEN_KEY: Final = re.compile(rb"\\u00[4-7]")
# A number with a sign: begins with the rare character, so that the search runs at the speed of memchr.
_NEGATIVE: Final = re.compile(rb"-(?<=[\[, \t\n\r]-)[0-9]")
_NO_METADATA: Final = b'{"dtype":"U8","shape":[],"data_offsets":[0,0]}'
_KEYS: Final = tuple(b'"%b"' % field.encode() for field in FIELDS)
_METADATA_KEY: Final = b'"__metadata__"'
_DECODER: Final = msgspec.json.Decoder(dict[str, HeaderEntry])
_TEXTS: Final = msgspec.json.Decoder(dict[str, str])


def _fast(raw: bytes) -> tuple[dict[str, HeaderEntry], dict[str, str]] | None:
    """Tensors and metadata, or None if msgspec's verdict might differ from the reference's.

    msgspec accepts four things that serde refuses or reads differently: repeated fields, repeated names, integers
    beyond 64 bits (`_place` checks them), and `-0` for 0. It refuses unknown fields, other forms of an entry, and all
    faults of strings, numbers and nesting.
    """
    metadata: dict[str, str] = {}
    has_metadata = _METADATA_KEY in raw
    try:
        if has_metadata:
            metadata, raw = _cut_metadata(raw)
        infos = _DECODER.decode(raw)
    except (FormatError, ValueError):  # msgspec's errors and bad UTF-8 are ValueErrors
        return None
    if _repeats(raw, len(infos)) or _NEGATIVE.search(raw):
        return None
    # Without its plain spelling the key could still be there, written with escapes.
    if (infos.pop(METADATA, None) is not None) is not has_metadata:
        return None
    if not {i.dtype for i in infos.values()} <= TYPES.keys():
        return None
    return infos, metadata


def read_tensors(raw: bytes, *, exactly: bool) -> tuple[dict[str, HeaderEntry], dict[str, str], bool] | None:
    """Tensors and metadata of a header's bytes, and whether they are complete; of a malformed header the readable
    part, or nothing if not `exactly`. None if the header isn't a JSON object."""
    fast = _fast(raw)
    if fast or not exactly:
        return (*fast, True) if fast else ({}, {}, False)
    problems = Problems()
    infos, metadata = exact(raw, "", problems)
    broken = any(RULES[p.rule].severity is Severity.ERROR for p in problems)
    return None if problems.has(("json", "utf8")) else (infos, metadata, not broken)


def _repeats(raw: bytes, count: int) -> bool:
    """Whether a name or a field may occur twice in a header that decoded to `count` complete entries."""
    # An entry has at least four colons, one after each key. If there are no more, nothing is repeated. Otherwise some
    # names have colons; then count the keys of fields, unless one may be spelled with escapes.
    if raw.count(b":") == 4 * count:
        return False
    return _HIDDEN_KEY.search(raw) is not None or any(raw.count(key) != count for key in _KEYS)


def _cut_metadata(raw: bytes) -> tuple[dict[str, str], bytes]:
    """The metadata, and the header with an empty tensor in its place, so that all values have one type.

    ValueError if `"__metadata__"` occurs twice or isn't a key of text pairs. Inside an entry the swapped value is an
    unknown field, which msgspec refuses: only a key of the outermost object passes.
    """
    after = raw.index(_METADATA_KEY) + len(_METADATA_KEY)
    if raw.count(_METADATA_KEY) != 1:
        raise ValueError("two keys __metadata__")
    end = raw.find(b"}", after) + 1
    text = raw[after + 1 : end]
    if raw[after : after + 2] == b":{" and b"\\" not in text:  # the usual spelling, without escapes and braces
        with suppress(ValueError):
            metadata = _TEXTS.decode(text)
            if text.count(b'"') == 4 * len(metadata):  # else a key is repeated
                return metadata, raw[: after + 1] + _NO_METADATA + raw[end:]
    scan = Scanner(raw, at=after)
    scan.take(b":")
    scan.peek()
    start = scan.at
    value = scan.value(1)
    if not isinstance(value, JsonObject):
        raise ValueError("not the usual metadata")
    metadata = {p.key: p.value for p in value if isinstance(p.value, str)}
    if len(metadata) != len(value):
        raise ValueError("a repeated key or a value that isn't text")
    return metadata, raw[:start] + _NO_METADATA + raw[scan.at :]


# ---- the data -------------------------------------------------------------------------------------------------


def _place(head: _ParsedHeader, file_size: int) -> tuple[Entry, ...]:
    """Entries in the order of their bytes. The reference requires that tensors cover the data without hole or overlap,
    and that each has exactly the bytes of its shape and dtype."""
    start, at, last = LENGTH + head.length, 0, ""
    entries: list[Entry] = []
    offsets = [info.data_offsets for info in head.infos.values()]
    in_order = offsets == sorted(offsets)  # as most writers store them
    forms: dict[tuple[str, Shape], _Form] = {}  # a few dozen, which all tensors share
    for name, info in head.infos.items() if in_order else sorted(head.infos.items(), key=lambda i: i[1].data_offsets):
        begin, end = info.data_offsets
        if (form := forms.get((info.dtype, info.shape))) is None:
            dtype, bits = TYPES[info.dtype]
            size, remainder = divmod(prod(info.shape) * bits, 8)
            whole = not remainder and (size or not _overflows(info.shape, bits))
            form = forms[info.dtype, info.shape] = _Form(dtype, info.shape, size if whole else None)
        dtype, shape, nbytes = form
        if begin != at:
            before = f"tensor {last!r}" if at else "the start of the data"
            if begin > at:
                message = f"{begin - at} bytes between {before} and this tensor belong to none"
                head.problems.add("hole", message, start + at, name, expected=f"begin at {at}", found=begin)
            else:
                head.problems.add("overlap", f"shares bytes with {before}", start + begin, name,
                             expected=f"begin at {at}", found=begin)  # fmt: skip
        if end - begin == nbytes:
            entries.append(Entry(name, dtype, shape, start + begin, nbytes))
        else:
            _report_size(name, info, dtype, start + begin, head.problems)
        last = name
        if end > at:
            at = end
    _report_end(head, start + at, file_size)
    raw, start, problems = head.raw, LENGTH + head.length, head.problems
    if raw[:1] and raw[:1] in SPACE:
        problems.add("leading-space", "white space before the opening brace", LENGTH)
    tail = raw[len(raw.rstrip(SPACE)) :]
    if tail.strip(b" "):
        problems.add("padding", "the header is padded with other white space than spaces", start - len(tail))
    if start % 8 and entries:
        problems.add("data-alignment", f"the data starts at byte {start}, not a multiple of 8", start)
    if crooked := [e for e in entries if e.offset % e.dtype.word and e.nbytes]:
        message = (
            f"{len(crooked)} of {plural(len(entries), 'tensor')} don't start at a multiple of their element's size"
        )
        problems.add("tensor-alignment", message, crooked[0].offset, crooked[0].name)
    # ASCII without escapes and DEL is printable: JSON strings contain no other control characters.
    plain = raw.isascii() and b"\\" not in raw and b"\x7f" not in raw and "" not in head.infos
    odd = [] if plain else [name for name in head.infos if not name or not name.isprintable()]
    if odd:
        problems.add("odd-name", f"{plural(len(odd), 'name', 'are')} empty or not printable", None, odd[0])
    return tuple(entries)


class _Form(NamedTuple):
    """A dtype and shape, and their number of bytes; None if it isn't a whole number, or exceeds 64 bits."""

    dtype: DType
    shape: Shape
    nbytes: int | None


def _overflows(shape: tuple[int, ...], bits: int) -> bool:
    """Whether the reference's checked multiplication of 64-bit numbers, from left to right, overflows: it does so even
    if a later dimension is 0."""
    total = 1
    for n in (*shape, bits):
        total *= n
        if total > _U64 or n > _U64:
            return True
    return False


def _report_size(name: str, info: HeaderEntry, dtype: DType, place: int, problems: Problems) -> None:
    (begin, end), form = info.data_offsets, f"{info.dtype}{list(info.shape)}"
    if end < begin:
        problems.add("reversed", "ends before it begins", place, name, expected=f"an end >= {begin}", found=end)
    elif _overflows(info.shape, TYPES[info.dtype][1]):
        problems.add("overflow", f"the size of {form} exceeds 64 bits", place, name)
    elif prod(info.shape) % dtype.block:
        problems.add("sub-byte", f"{form} is not a whole number of bytes", place, name)
    else:
        size = prod(info.shape) // dtype.block * dtype.size
        message = f"the entry has another number of bytes than {form}"
        problems.add("size", message, place, name, expected=f"{size} bytes", found=end - begin)


def _report_end(head: _ParsedHeader, expected: int, size: int) -> None:
    if head.problems.has(("no-header", "header-too-large", "header-cut")):
        return  # without data
    if expected > size:
        ends = [LENGTH + head.length + info.data_offsets[1] for info in head.infos.values()]
        missing = sum(end > size for end in ends)
        message = f"the file is cut off: the last {missing} of {plural(len(ends), 'tensor')} are incomplete"
        head.problems.add("truncated", message, size, expected=f"{expected} bytes", found=size, hint=_AGAIN)
    elif expected < size and not head.problems.has(("json", "utf8")):  # a broken JSON leaves tensors unknown
        message = f"{size - expected} bytes at the end belong to no tensor"
        head.problems.add("trailing-bytes", message, expected, expected=f"{expected} bytes in all", found=size)


# ---- every byte -----------------------------------------------------------------------------------------------


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; "unknown" for bytes without an entry. Works on broken files as far as possible."""
    head = _read_head(source)
    out: list[Region] = []
    at = 0
    named = [region for pair in members(head.raw, source.name, Problems()) for region in _member(head.raw, pair)]
    named += [Region(e.offset, e.offset + e.nbytes, "tensor", e.name, str(e.spec)) for e in _place(head, source.size)]
    if source.size >= LENGTH:
        length = int.from_bytes(source.read(0, LENGTH), "little")
        named.insert(0, Region(0, LENGTH, "length", "header length", str(length)))
    for r in sorted(named, key=lambda r: (r.start, r.end)):
        # Tensors of a broken file may overlap: the first keeps the bytes.
        first, end = max(r.start, at), min(r.end, source.size)
        if first < end:
            out += _between(head, at, first)
            out.append(Region(first, end, r.kind, r.label, r.value))
            at = end
    out += _between(head, at, source.size)
    return out


_SHOWN: Final = 60  # characters of a value


def _member(raw: bytes, pair: Pair) -> Iterator[Region]:
    """The regions of a member, each with the beginning of its value as it is written."""

    def written(part: Pair) -> str:
        text = raw[part.at : min(part.end, part.at + 4 * _SHOWN + 4)].decode(errors="backslashreplace")
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

    if pair.key != METADATA or not isinstance(pair.value, JsonObject):
        yield Region(LENGTH + pair.key_at, LENGTH + pair.end, "json", pair.key, written(pair))
        return
    yield Region(LENGTH + pair.key_at, LENGTH + pair.at, "key", METADATA)
    for inner in pair.value:
        yield Region(LENGTH + inner.key_at, LENGTH + inner.end, "value", inner.key, written(inner))


_PUNCTUATION: Final = re.compile(rb"[ \t\n\r]*[{}:,][{}:, \t\n\r]*(?<=[{}:,])|[ \t\n\r]+")


def _between(head: _ParsedHeader, start: int, end: int) -> Iterator[Region]:
    """The regions outside of members and tensors: punctuation, padding, or unknown."""
    stop = max(min(LENGTH + len(head.raw), end), start)
    while start < stop:
        match = _PUNCTUATION.match(head.raw, start - LENGTH, stop - LENGTH)
        if match is None:
            yield Region(start, stop, "unknown", "header")
            break
        text = match[0].strip(SPACE)
        after = LENGTH + match.end()
        yield Region(start, after, "json", "punctuation", text.decode()) if text else Region(start, after, "padding")
        start = after
    if stop < end:
        yield Region(stop, end, "unknown")
