"""The laws of formats, for every registered one: written files are read back, every byte has a name, any bytes give an
index or a WeighbridgeError, and recognising a file agrees with parsing it."""

from __future__ import annotations

import random
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from tests.conformance.samples import METADATA, REFUSED, TENSORS, Tensors, accepted, contents, samples, written
from tests.containers.regions import check_regions

from weighbridge.base.dtypes import TABLE
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers import BUILT_IN, MISNAMED_UNLESS, Format, by_suffix, by_target, plugged, reader, target_of
from weighbridge.containers.base import Index, Layout
from weighbridge.containers.formats import READ
from weighbridge.containers.opening import format_of
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.source import BytesSource

ERRORS = (FormatError, UnsupportedError, RefusedError)
#: Of written files: the alignment of tensors; formats that reorder them, or store their checksums.
ALIGNED = {"gguf": 32, "npz": 64, "npy": 64, "torch-zip": 64}
REORDERED = {"safetensors"}
CHECKSUMMED = {"npz", "torch-zip"}
#: The built-in formats, and those of plug-ins that happen to be installed.
EVERY = (*READ, *plugged().values())
WRITTEN = [f for f in EVERY if f.target]
by_name = pytest.mark.parametrize("format", EVERY, ids=lambda f: f.name)
built_in = pytest.mark.parametrize("format", READ, ids=lambda f: f.name)
by_written = pytest.mark.parametrize(
    ("format", "tensors"),
    [pytest.param(f, tensors, id=f"{f.name}-{name}") for f in WRITTEN for name, tensors in accepted(f).items()],
)


def laid_out(format: Format, tensors: Tensors) -> Layout:
    return format.layout(tensors, METADATA)


def data_of(index: Index, name: str) -> bytes:
    entry = index[name]
    return index.files[entry.file].read(entry.offset, entry.nbytes)


# ---- writing ----


@by_written
def test_what_is_written_is_read_back(format: Format, tensors: Tensors) -> None:
    layout = laid_out(format, tensors)
    data = contents(layout)
    index = format.parse(BytesSource(written(layout, data), f"x{format.suffix}"))
    specs = dict(tensors)
    if format.name == "npy":  # a file of one array, which has no name
        assert [e.spec for e in index] == list(specs.values())
        assert data_of(index, index.entries[0].name) == data[layout.slots[0].name]
        return
    assert {e.name: e.spec for e in index} == specs
    assert {name: data_of(index, name) for name in specs} == data
    assert not [f for f in index.findings if f.severity == "error"]


@by_written
def test_the_same_input_gives_the_same_bytes(format: Format, tensors: Tensors) -> None:
    one, two = laid_out(format, tensors), laid_out(format, tensors)
    assert written(one, contents(one)) == written(two, contents(two))


@by_written
def test_slots_and_pieces_lie_inside_and_apart(format: Format, tensors: Tensors) -> None:
    layout = laid_out(format, tensors)
    spans = [(at, at + len(piece)) for at, piece in layout.pieces]
    spans += [(s.offset, s.offset + s.spec.nbytes) for s in layout.slots]
    spans = sorted(span for span in spans if span[0] < span[1])
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert not spans or spans[-1][1] <= layout.size


@by_written
def test_tensors_are_ordered_and_aligned(format: Format, tensors: Tensors) -> None:
    layout = laid_out(format, tensors)
    assert [s.name for s in layout.slots if s.offset % ALIGNED.get(format.name, 1)] == []
    order = [s.name for s in sorted(layout.slots, key=lambda s: s.offset) if s.spec.nbytes]
    if format.name not in REORDERED:
        assert order == [name for name, spec in tensors if spec.nbytes]
    if format.name in BUILT_IN:
        assert (format.name in CHECKSUMMED) == (layout.fixups is not None)


@pytest.mark.parametrize("format", WRITTEN, ids=lambda f: f.name)
def test_a_written_file_is_inspected_without_reading_data(format: Format) -> None:
    layout = format.layout(TENSORS["one"], {})
    assert format.parse(BytesSource(written(layout, contents(layout)))).nbytes == 24


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_format_cannot_hold_is_refused(name: str) -> None:
    for tensors in REFUSED[name]:
        with pytest.raises((UnsupportedError, UsageError)):
            reader(name).layout(TENSORS[tensors], METADATA)


@pytest.mark.parametrize("format", WRITTEN, ids=lambda f: f.name)
def test_a_format_writes_the_types_that_it_declares_and_no_others(format: Format) -> None:
    own = import_module(str(format.module))  # below the check of `Format.layout`
    for row in TABLE:
        tensors = [("w", Spec((256, 256), row))]
        if row.name in format.dtypes:
            assert format.layout(tensors, METADATA).slots[0].spec.dtype is row
            continue
        with pytest.raises((UnsupportedError, UsageError)):
            format.layout(tensors, METADATA)
        if format.name in BUILT_IN:
            with pytest.raises((UnsupportedError, UsageError)):
                own.layout(tensors, METADATA)


# ---- reading ----


@by_name
def test_regions_cover_every_byte(format: Format) -> None:
    for data in samples(format):
        regions = check_regions(format.regions(BytesSource(data)), len(data))
        assert "unknown" not in {r.kind for r in regions}


@by_name
def test_entries_lie_in_their_files(format: Format) -> None:
    for data in samples(format):
        index = format.parse(BytesSource(data))
        for entry in index:
            index.files[entry.file].check(entry.offset, entry.nbytes)


@by_name
def test_examining_a_good_file_agrees_with_parsing_it(format: Format) -> None:
    for data in samples(format):
        index, findings = format.examine(BytesSource(data))
        parsed = format.parse(BytesSource(data))
        assert index.entries == parsed.entries
        assert {f.rule for f in parsed.findings} <= {f.rule for f in findings}


@built_in
def test_recognising_agrees_with_parsing(format: Format) -> None:
    for data in samples(format):
        if not format.parse(BytesSource(data)).entries:
            continue  # an .npz without arrays is a zip as any other
        found = sniff(BytesSource(data))
        assert (found.format, found.readable, found.damage) == (format.name, True, ())
        assert format_of(BytesSource(data)) == format
        assert format.parse(BytesSource(data)).format in BUILT_IN


@by_name
def test_a_truncated_file_is_recognised_or_unknown_and_never_a_crash(format: Format) -> None:
    for data in samples(format):
        for size in sorted({*range(0, min(len(data), 40), 3), len(data) // 2, len(data) - 1}):
            any_bytes(format, data[:size])


@by_name
def test_damaged_files_give_an_index_or_an_error(format: Format) -> None:
    rng = random.Random(1)
    for data in samples(format):
        for _ in range(40):
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 2, 8))):
                damaged[rng.randrange(min(len(damaged), 600))] = rng.randrange(256)
            any_bytes(format, bytes(damaged))


@by_name
def test_other_formats_files_give_an_index_or_an_error(format: Format) -> None:
    for other in READ:
        any_bytes(format, samples(other)[0])
    any_bytes(format, b"")


def any_bytes(format: Format, data: bytes) -> None:
    """The law for any bytes at all."""
    check_regions(format.regions(BytesSource(data)), len(data))
    with suppress(*ERRORS):
        format.examine(BytesSource(data))
    with suppress(*ERRORS):
        index = format.parse(BytesSource(data))
        for entry in index:
            assert entry.offset + entry.nbytes <= index.files[entry.file].size


# ---- names ----


@built_in
def test_names_lead_back(format: Format) -> None:
    assert reader(format.name) is format
    assert all(format.name in MISNAMED_UNLESS[suffix] for suffix in (*format.suffixes, *format.met_as))
    owned = [s for s in format.suffixes if sum(s in f.suffixes for f in READ) == 1]
    assert all(by_suffix(suffix) is format for suffix in owned)
    if format.target:
        assert {by_target(w) for w in (format.target, format.target.upper(), *format.aliases)} == {format}
        assert {target_of(suffix) for suffix in format.suffixes} == {format.target}
    assert format.pickles == hasattr(format.functions, "pickles")
    assert not format.target or hasattr(format.functions, "layout")


@pytest.mark.parametrize("format", [f for f in READ if f.pickles], ids=lambda f: f.name)
def test_pickles_are_named(format: Format) -> None:
    for data in samples(format):
        found = format.pickles_in(BytesSource(data))
        assert found
        for _, source, start in found:
            inside = source.read(0, source.size)
            assert start < 0 or data[start : start + len(inside)] == inside


def test_words_are_unique() -> None:
    names = [f.name for f in BUILT_IN.values()]
    words = [w for f in WRITTEN for w in (f.target, *f.aliases)]
    assert len(set(names)) == len(names)
    assert len(set(words)) == len(words)


def test_what_is_only_recognised_has_no_reader(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no reader for sqlite"):
        reader("sqlite")
    with pytest.raises(UnsupportedError, match="SQLite database, which this version doesn't read"):
        format_of(BytesSource(b"SQLite format 3\0" + bytes(40)))
