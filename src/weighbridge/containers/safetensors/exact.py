"""Reads a safetensors header exactly as serde does, and reports every problem and oddity with its place.

`container.py` uses it if msgspec's verdict could differ from the reference's. The reference (tensor.rs 0.8.0) reads
`HashMetadata { __metadata__: Option<map of text>, #[serde(flatten)] tensors }`, so every value is first read as plain
JSON and then as a `TensorInfo`: all JSON must be valid, also that of unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from weighbridge.base.dtypes import BY_SAFETENSORS
from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural
from weighbridge.containers.safetensors.json_scan import JsonObject, Pair, Scanner, Value, kind
from weighbridge.containers.safetensors.layout import METADATA
from weighbridge.containers.safetensors.rules import Problems

LENGTH: Final = 8  # bytes of N, before the JSON
SPACE: Final = b" \t\n\r"  # JSON's white space
FIELDS: Final = ("dtype", "shape", "data_offsets")  # also their order in an entry written as an array
# dtype name -> its row and the bits of one element
TYPES: Final = {name: (t, t.size * 8 // t.block) for name, t in BY_SAFETENSORS.items() if name}


class HeaderEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The JSON entry of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def exact(raw: bytes, path: str, problems: Problems) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    """Tensors by name in header order, and metadata, of a header's bytes."""
    infos: dict[str, HeaderEntry] = {}
    metadata: dict[str, str] = {}
    seen: set[str] = set()
    for pair in members(raw, path, problems):
        repeated = pair.key in seen
        seen.add(pair.key)
        if pair.key == METADATA:
            if repeated:
                problems.add("repeated-metadata", "`__metadata__` occurs twice", LENGTH + pair.key_at)
            metadata = _metadata(pair, problems)
            continue
        if repeated:
            message = "this name occurs more than once; the last entry counts"
            problems.add("repeated-name", message, LENGTH + pair.key_at, pair.key)
        info = _info(pair, problems)
        if info is not None:
            infos.pop(pair.key, None)  # the later one takes its place in header order, too
            infos[pair.key] = info
    return infos, metadata


def members(raw: bytes, path: str, problems: Problems) -> Iterator[Pair]:
    """The members of the header's object, up to the first fault of its JSON."""
    try:
        raw.decode()  # the reference checks the whole header before it looks at the JSON
    except UnicodeDecodeError as error:
        problems.add("utf8", "the header is not UTF-8", LENGTH + error.start)
    scan = Scanner(raw, LENGTH, path)
    try:
        if scan.peek() != b"{":
            raise scan.fail("the header is not a JSON object", expected="{")
        yield from scan.members()
        if scan.peek():
            raise scan.fail("something follows the JSON object", expected="spaces only")
    except UnicodeDecodeError:
        return  # reported above
    except FormatError as error:
        problems.add("json", error.reason, error.offset, expected=error.expected, found=error.found)


def _metadata(pair: Pair, problems: Problems) -> dict[str, str]:
    if pair.value is None:
        problems.add("metadata-null", "`__metadata__` is null instead of an object", LENGTH + pair.at)
        return {}
    if not isinstance(pair.value, JsonObject):
        problems.add("metadata", "`__metadata__` is not an object", LENGTH + pair.at,
                     expected="an object", found=kind(pair.value))  # fmt: skip
        return {}
    metadata: dict[str, str] = {}
    for key, value, key_at, at, _ in pair.value:
        if not isinstance(value, str):
            problems.add("metadata", f"metadata {key!r} is not a string", LENGTH + at,
                         expected="a string", found=kind(value))  # fmt: skip
            continue
        if key in metadata:
            message = f"metadata {key!r} occurs more than once; the last one counts"
            problems.add("repeated-metadata-key", message, LENGTH + key_at)
        metadata[key] = value
    return metadata


def _info(pair: Pair, problems: Problems) -> HeaderEntry | None:
    """An entry, or None if it is unusable (which is reported)."""
    fields = _fields(pair, problems)
    if fields is None:
        return None
    place = LENGTH + pair.at
    dtype = _dtype(fields["dtype"], place, pair.key, problems)
    shape, offsets = _integers(fields["shape"]), _integers(fields["data_offsets"])
    if shape is None:
        problems.add("shape", "the shape is not a list of integers from 0 to 2^64-1", place, pair.key,
                     found=short(fields["shape"]))  # fmt: skip
    if offsets is None or len(offsets) != 2:
        problems.add("offsets", "data_offsets are not two integers from 0 to 2^64-1", place, pair.key,
                     found=short(fields["data_offsets"]))  # fmt: skip
        return None
    return None if dtype is None or shape is None else HeaderEntry(dtype, shape, (offsets[0], offsets[1]))


def _fields(pair: Pair, problems: Problems) -> dict[str, Value] | None:
    place, value = LENGTH + pair.at, pair.value
    if isinstance(value, JsonObject):
        fields: dict[str, Value] = {}
        for p in value:
            if p.key not in FIELDS:
                problems.add("unknown-field", f"the entry has an unknown field {p.key!r}", LENGTH + p.key_at, pair.key)
            elif p.key in fields:
                problems.add("repeated-field", f"the entry has two fields {p.key!r}", LENGTH + p.key_at, pair.key)
            else:
                fields[p.key] = p.value
        if missing := [f for f in FIELDS if f not in fields]:
            problems.add("missing-field", f"the entry has no {' and no '.join(missing)}", place, pair.key)
        return None if missing else fields
    if not isinstance(value, list):
        problems.add("entry", "the entry is not an object", place, pair.key, expected="an object", found=kind(value))
        return None
    # serde reads a struct also from the sequence of its fields.
    if len(value) != len(FIELDS):
        problems.add("entry", "an entry written as an array doesn't have three elements", place, pair.key,
                     expected="[dtype, shape, data_offsets]", found=plural(len(value), "element"))  # fmt: skip
        return None
    problems.add("array-entry", "the entry is an array instead of an object", place, pair.key)
    return dict(zip(FIELDS, value, strict=True))


def _dtype(value: Value, place: int, name: str, problems: Problems) -> str | None:
    # serde reads an enum also from {"F32": null}.
    if isinstance(value, JsonObject) and len(value) == 1 and value[0].value is None:
        value = value[0].key
        problems.add("object-dtype", "the dtype is an object instead of a string", place, name)
    if isinstance(value, str) and value in TYPES:
        return value
    hint = f"known: {', '.join(TYPES)}" if isinstance(value, str) else None
    problems.add("dtype", "unknown dtype", place, name, found=short(value), hint=hint)
    return None


def _integers(value: Value) -> tuple[int, ...] | None:
    if not isinstance(value, list) or isinstance(value, JsonObject):
        return None
    # A bool is an int, too. Integers beyond 64 bits are floats here, as in serde_json.
    numbers = [n for n in value if type(n) is int and n >= 0]
    return tuple(numbers) if len(numbers) == len(value) else None


def short(value: Value) -> str:
    """A value in a few characters."""
    text = repr(value.last() if isinstance(value, JsonObject) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
