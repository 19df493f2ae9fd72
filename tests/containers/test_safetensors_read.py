"""Reading safetensors: the verdict is the reference's, on hand-built files, on damaged ones and on random JSON."""

from __future__ import annotations

import gc
import json
import re
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.containers.regions import check_regions
from tests.containers.safetensors_cases import CASES, GOOD, Case, entry, file, one
from tests.examples import examples

from weighbridge.base.dtypes import RANK
from weighbridge.base.errors import FormatError
from weighbridge.base.native import native
from weighbridge.containers.base import Index, Severity
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.safetensors import exact as safetensors_exact
from weighbridge.containers.safetensors import json_scan
from weighbridge.containers.safetensors import rules as safetensors_rules
from weighbridge.containers.safetensors.rules import RULES, Problems
from weighbridge.io.source import BytesSource

Found = dict[str, tuple[str | None, tuple[int, ...], bytes]]


def contents(index: Index) -> Found:
    source = index.files[0]
    return {e.name: (e.dtype.safetensors, e.shape, source.read(e.offset, e.nbytes)) for e in index}


def ours(data: bytes) -> Found | None:
    try:
        return contents(safetensors.parse(BytesSource(data)))
    except FormatError:
        return None


def slowly(data: bytes) -> Found | None:
    """As `ours`, without the extension's walk."""
    with patch.object(safetensors, "plain_safetensors", lambda *_: None):
        return ours(data)


def reference(data: bytes) -> Found | None:
    rust = pytest.importorskip("safetensors")
    try:
        return {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in rust.deserialize(data)}
    except rust.SafetensorError:
        return None


def rules(data: bytes) -> list[str]:
    """The rules of all findings but those on alignment."""
    found = [f.rule.removeprefix("safetensors/") for f in safetensors.examine(BytesSource(data))[1]]
    return [rule for rule in found if not rule.endswith("alignment")]


def errors(data: bytes) -> list[str]:
    return [rule for rule in rules(data) if RULES[rule].severity is Severity.ERROR]


cases = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


# ---- the table


@pytest.mark.oracle
@cases
def test_the_verdict_is_the_references(case: Case) -> None:
    assert ours(case.data) == reference(case.data)
    assert (ours(case.data) is None) is (case.rule is not None)


@cases
def test_the_reason(case: Case) -> None:
    if case.rule is None:
        assert tuple(rules(case.data)) == case.remarks
        return
    assert errors(case.data)[0] == case.rule
    with pytest.raises(FormatError) as caught:
        safetensors.parse(BytesSource(case.data, "m.safetensors"))
    assert caught.value.path == "m.safetensors"
    assert caught.value.offset is not None
    assert 0 <= caught.value.offset <= max(len(case.data), 2**64)


@cases
def test_strict_refuses_departures_from_the_text(case: Case) -> None:
    departs = case.rule is not None or any(RULES[r].spec for r in case.remarks)
    try:
        safetensors.parse(BytesSource(case.data), strict=True)
    except FormatError:
        assert departs
    else:
        assert not departs


@cases
def test_every_byte_is_named(case: Case) -> None:
    found = check_regions(safetensors.regions(BytesSource(case.data)), len(case.data))
    if case.rule is None:
        assert not [r for r in found if r.kind == "unknown"]
        assert [r.label for r in found if r.kind == "tensor"] == [
            e.name for e in safetensors.parse(BytesSource(case.data)) if e.nbytes
        ]


@cases
def test_the_exact_path_reads_what_the_fast_one_reads(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = slowly(case.data)
    monkeypatch.setattr(safetensors, "plain_safetensors", lambda *_: None)
    monkeypatch.setattr(safetensors, "_fast", lambda raw: None)
    assert ours(case.data) == fast


def test_most_files_take_the_fast_path() -> None:
    raw = file(f'{{"__metadata__":{{"format":"pt"}},"a.b:0":{entry()},"-1":{entry(offsets="[8,16]")}}}   ', 16)[8:-16]
    assert safetensors._fast(raw) is not None


# ---- the extension's walk, which has nothing to remark


def plain(data: bytes) -> Index | None:
    """What the walk lets pass of a file."""
    problems = Problems()
    _, raw = safetensors._header(BytesSource(data), problems)
    return None if raw is None or problems else safetensors._plain(BytesSource(data), raw)


SPELLINGS = {
    "reference": f'{{"__metadata__":{{"format":"pt"}},"a.b:0":{entry()},"-1":{entry(offsets="[8,16]")}}}',
    "json.dumps": f'{{"a": {{"dtype": "I32", "shape": [1, 2], "data_offsets": [0, 8]}}, '
    f'"b": {entry(offsets="[8, 16]")}}}',
    "indented": f'{{\n\t"a": {entry()} ,\r\n"b":{entry(offsets="[ 8 , 16 ]")}\n}}',
    "sorted names": f'{{"a":{entry(offsets="[8,16]")},"b":{entry()}}}',
    "sorted fields": f'{{"a":{{"data_offsets":[0,8],"dtype":"I32","shape":[2]}},"b":{entry(offsets="[8,16]")}}}',
    "metadata last": f'{{"a":{entry()},"b":{entry(offsets="[8,16]")},"__metadata__":{{"k":"v","l":""}}}}',
    "no metadata": f'{{"__metadata__":{{}},"a":{entry(shape="[]", offsets="[0,4]")},'
    f'"b":{entry("F32", "[3,1]", "[4,16]")}}}',
    "empty tensors": f'{{"a":{entry(shape="[0,9]", offsets="[0,0]")},"b":{entry(shape="[4]", offsets="[0,16]")}}}',
    "types of few bits": f'{{"a":{entry("F4", "[2,8]", "[0,8]")},"b":{entry("F6_E2M3", "[4]", "[8,11]")},'
    f'"c":{entry("U8", "[5]", "[11,16]")}}}',
}


@pytest.mark.costly
@pytest.mark.parametrize("header", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_a_usual_header_is_plain(header: str) -> None:
    if native is None:
        pytest.skip("no extension")
    data = file(header + " " * (-len(header) % 8), 16)
    assert plain(data) is not None
    assert ours(data) == slowly(data)
    for size in range(len(header)):  # nothing less is: neither a part of the header, nor one without a character
        for spoiled in (header[:size], header[:size] + header[size + 1 :]):
            broken = file(spoiled + " " * (-len(spoiled) % 8), 16)
            assert ours(broken) == slowly(broken)


@cases
def test_a_plain_header_is_without_remarks(case: Case) -> None:
    """Whatever the walk lets pass, the others read as it does and have nothing to say about."""
    found = plain(case.data)
    if found is None:
        return
    whole, findings = safetensors.examine(BytesSource(case.data))
    assert (found.entries, dict(found.metadata)) == (whole.entries, dict(whole.metadata))
    assert (found.data_start, found.findings, found.by_name) == (whole.data_start, findings, whole.by_name)
    assert findings == ()


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"data_offsets":[0,8],"dtype":"I32","data_offsets":[]}}',
        '{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8],"data_offsets":[]}}',
        '{"a":{"dtype":"I32","dtype":"I32","data_offsets":[0,8]}}',
        '{"a":{"dtype":"","dtype":"I32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"I32","shape":[],"shape":[2],"data_offsets":[0,8]}}',
        f'{{"a":{entry()},"a":{entry()}}}',
        f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{entry()}}}',
        f'{{"__metadata__":{{"k":"v","k":"v"}},"a":{entry()}}}',
        f'{{"a":{entry(shape="[02]")}}}',
        f'{{"a":{entry(shape="[18446744073709551618]")}}}',
        f'{{"a":{entry(shape="[4294967296,4294967296,2]")}}}',
        f'{{"a":{entry(offsets="[0,8,8]")}}}',
        f'{{"a":{entry(offsets="[8]")}}}',
        f'{{"a":{entry()},}}',
        f'{{,"a":{entry()}}}',
        f'{{"a":{entry()}}}}}',
        f'{{"":{entry()}}}',
        f'{{"a\x7f":{entry()}}}',
        f' {{"a":{entry()}}}',
        f'{{"a":{entry()}}}\n',
    ],
)  # fmt: skip
def test_an_odd_header_is_not_plain(header: str) -> None:
    data = file(header.ljust(len(header) + -len(header) % 8), 8)
    assert plain(data) is None


# ---- damage


def test_truncation_anywhere_is_told() -> None:
    data = file(f'{{"__metadata__":{{"k":"v"}},"a":{entry()},"b":{entry(offsets="[8,16]")}}}', 16)
    for size in range(len(data)):
        cut = data[:size]
        assert ours(cut) is None
        index, findings = safetensors.examine(BytesSource(cut))
        assert any(f.severity is Severity.ERROR for f in findings)
        assert [e.name for e in index] == ["a", "b"][: max(size - (len(data) - 16), 0) // 8]
        check_regions(safetensors.regions(BytesSource(cut)), size)


def test_a_cut_file_says_what_is_missing() -> None:
    data = file(f'{{"a":{entry()},"b":{entry(offsets="[8,16]")},"c":{entry(offsets="[16,24]")}}}', 24)
    with pytest.raises(FormatError, match="the last 2 of 3 tensors") as caught:
        safetensors.parse(BytesSource(data[:-9]))
    assert caught.value.expected == f"{len(data)} bytes"
    assert caught.value.found == len(data) - 9


def test_all_problems_are_told_at_once() -> None:
    header = (
        f' {{"a":{entry("I33")},"b":{entry(offsets="[4,12]")},"c":{entry(shape="[3]", offsets="[8,16]")},'
        f'"d":[1],"e":{entry(offsets="[20,28]")},"__metadata__":{{"k":1}}}}'
    )
    assert rules(file(header, 100)) == [
        *("dtype", "entry", "metadata", "hole", "overlap", "size", "hole", "trailing-bytes", "leading-space"),
    ]


def test_what_can_be_saved_is() -> None:
    header = f'{{"a":{entry()},"b":{entry("X", offsets="[8,16]")},"c":{entry(offsets="[16,24]")},"d":{{broken'
    index, findings = safetensors.examine(BytesSource(file(header, 24)))
    assert [e.name for e in index] == ["a", "c"]
    assert {f.rule for f in findings if f.severity is Severity.ERROR} == {
        *("safetensors/dtype", "safetensors/json", "safetensors/hole"),
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (b"GGUF" + bytes(100), "GGUF"),
        (b'{"a":1}     ', "bare JSON"),
    ],
)
def test_other_files_are_named(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        safetensors.parse(BytesSource(data))


def test_alignment_is_remarked_on() -> None:
    def alignment(data: bytes) -> set[str]:
        return {f.rule for f in safetensors.parse(BytesSource(data)).findings}

    pad = -len(GOOD) % 8
    assert alignment(one(entry(), 8, pad)) == set()
    assert alignment(one(entry(), 8, pad + 4)) == {"safetensors/data-alignment"}
    assert alignment(one(entry(), 8, pad + 1)) == {"safetensors/data-alignment", "safetensors/tensor-alignment"}
    header = '{"e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    for spaces in range(8):  # an empty tensor may stand anywhere: no byte of it is out of line
        assert "safetensors/tensor-alignment" not in alignment(file(header + " " * spaces))


def test_metadata_is_read() -> None:
    raw = '{"__metadata__":{"k":"\\u00e9\\n\\ud83d\\ude00","":""}}'
    assert dict(safetensors.parse(BytesSource(file(raw))).metadata) == {"k": "é\n😀", "": ""}


def test_the_garbage_collector_is_as_it_was() -> None:
    big = file("{}" + " " * (2 << 20))
    assert gc.isenabled()
    safetensors.parse(BytesSource(big))
    assert gc.isenabled()
    gc.disable()
    try:
        safetensors.parse(BytesSource(big))
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- differential: random JSON, damaged headers

numbers = st.one_of(
    st.integers(-3, 20),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**400]),
    st.sampled_from(["1.0", "-0", "0e5", "1e5", "1e309", "-1e308", "1e-999", "NaN", "01", "1.", "true", "null", '"1"']),
).map(str)


def numeric_list(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    return sizes.flatmap(lambda n: st.lists(numbers, min_size=n, max_size=n)).map(lambda v: f"[{','.join(v)}]")


junk = st.recursive(
    st.one_of(numbers, st.sampled_from(['"x"', '"\\ud800"', '"dtype"', '"__metadata__"', '"\x01"', '"é"', "nul"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: f"[{','.join(v)}]"),
        st.lists(inner, max_size=3).map(lambda v: "{" + ",".join(f'"k{i % 2}":{x}' for i, x in enumerate(v)) + "}"),
    ),
    max_leaves=6,
)
keys = st.sampled_from(["dtype", "shape", "data_offsets", "x", "__metadata__", "d\\u0074ype", "shape:"])
dtypes = st.sampled_from([*RANK, "F33", "f32", ""])


@st.composite
def entries(draw: Any, at: int) -> tuple[str, int]:
    """Mostly right, so that the one wrong thing decides; the place where the tensor ends."""
    name = draw(st.sampled_from([*RANK]))
    dtype = safetensors_exact.TYPES[name][0]
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = dtype.block
    for n in shape:
        count *= n
    end = at + count // dtype.block * dtype.size * (1 if shape else 0) if count % dtype.block == 0 else at
    end = at + dtype.size if not shape and dtype.block == 1 else end
    real = [dtype.block, *shape] if shape else shape
    fields = {"dtype": f'"{name}"', "shape": json.dumps(real), "data_offsets": f"[{at},{end}]"}
    pairs = [(k, fields[k]) for k in draw(st.permutations(sorted(fields)))]
    change = draw(st.integers(0, 9))
    if change == 0:
        pairs.insert(draw(st.integers(0, 3)), (draw(keys), draw(junk)))
    elif change == 1:
        pairs[draw(st.integers(0, 2))] = (draw(keys), draw(junk))
    elif change == 2:
        pairs[[k for k, _ in pairs].index("shape")] = ("shape", draw(numeric_list(st.integers(0, 3))))
    elif change == 3:
        pairs[[k for k, _ in pairs].index("dtype")] = ("dtype", f'"{draw(dtypes)}"')
    elif change == 4:
        return "[" + ",".join(fields[k] for k in ("dtype", "shape", "data_offsets")) + "]", end
    return "{" + ",".join(f'"{k}":{v}' for k, v in pairs) + "}", end


@st.composite
def files(draw: Any) -> bytes:
    """Files near the border between right and wrong."""
    names = draw(st.lists(st.sampled_from(["a", "b", "a:b", "-1", "\\u0061", "é", "__metadata__", ""]), max_size=4))
    members, at = [], 0
    for name in names:
        value, at = draw(entries(at))
        members.append(f'"{name}":{value}')
    if draw(st.booleans()):
        meta = draw(
            st.sampled_from(['{"k":"v"}', "{}", "null", '{"k":"v","k":"w"}', '{"k":1}', '{"\\u0064":"\\""}', "[]"])
        )
        members.insert(
            draw(st.integers(0, len(members))), f'"{draw(st.sampled_from(["__metadata__"] * 5 + ["x"]))}":{meta}'
        )
    space = draw(st.sampled_from(["", "", " ", "\n\t\r "]))
    header = space + "{" + f"{space},".join(members) + "}" + draw(st.sampled_from(["", "   ", "\0", "\n"]))
    return file(header, at + draw(st.sampled_from([0, 0, 0, 0, 1, -1 if at else 0])))


@pytest.mark.costly
@pytest.mark.oracle
@examples(600)
@given(files())
@example(one(entry(shape="[2,9223372036854775808,4,0]", offsets="[0,0]"), 0))
def test_random_files_get_the_references_verdict(data: bytes) -> None:
    assert ours(data) == slowly(data) == reference(data)
    check_regions(safetensors.regions(BytesSource(data)), len(data))
    safetensors.examine(BytesSource(data))


@pytest.mark.oracle
@examples(400)
@given(st.sampled_from(CASES), st.data())
def test_damaged_cases_get_the_references_verdict(case: Case, draw: Any) -> None:
    data = bytearray(case.data[:2000])
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data)))
        change = draw.draw(
            st.one_of(st.sampled_from([b'"', b"{", b"}", b",", b":", b"-", b"0", b"\\", b" "]), st.binary(max_size=3))
        )
        data[at : at + draw.draw(st.integers(0, 2))] = change
    if draw.draw(st.booleans()) and len(data) >= 8:  # let the length be right again, so that the rest is judged
        end = max(data.rfind(b"}") + 1, 8)
        data[:8] = (end - 8).to_bytes(8, "little")
    assert ours(bytes(data)) == slowly(bytes(data)) == reference(bytes(data))


@pytest.mark.oracle
@examples(300)
@given(junk)
def test_json_is_judged_as_serde_judges_it(value: str) -> None:
    data = one(f'{{"dtype":"I32","shape":[2],"data_offsets":[0,8],"x":{value}}}')
    assert (ours(data) is None) is (reference(data) is None)


def digits(text: str) -> st.SearchStrategy[str]:
    return st.from_regex(re.compile(text, re.ASCII), fullmatch=True)


@pytest.mark.oracle
@examples(400)
@given(digits(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?"))
@example("1.7976931348623157e308")
@example("1.7976931348623158e308")
@example("0." + "0" * 320 + "1e630")
def test_numbers_overflow_where_serdes_do(number: str) -> None:
    data = one(f'{{"dtype":"I32","shape":[2],"data_offsets":[0,8],"x":{number}}}')
    assert (ours(data) is None) is (reference(data) is None)


# ---- each rule is one that some case needs: without it a verdict changes


# About headers: the cases of ZipNN's streams are in test_coded.py.
_REFUSING = [name for name, rule in RULES.items() if rule.severity is Severity.ERROR and name != "zipnn"]


@pytest.mark.mutation
@pytest.mark.parametrize("rule", _REFUSING)
def test_a_rule_that_does_not_refuse_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [c.rule for c in CASES if c.rule]
    assert rule in expected
    monkeypatch.setitem(safetensors_rules.RULES, rule, RULES[rule]._replace(severity=Severity.INFO))
    assert [next(iter(errors(c.data)), None) for c in CASES if c.rule] != expected


@pytest.mark.mutation
@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.spec])
def test_a_remark_that_is_not_made_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Problems.add

    def silent(self: Problems, name: str, *args: Any, **kwargs: Any) -> None:
        if name != rule:
            add(self, name, *args, **kwargs)

    monkeypatch.setattr(Problems, "add", silent)
    assert any(tuple(rules(c.data)) != c.remarks for c in CASES if c.rule is None)


_LAX: dict[str, tuple[object, str, object]] = {
    "nesting": (json_scan, "JSON_DEPTH", 140),
    "nesting, too shallow": (json_scan, "JSON_DEPTH", 127),
    "control characters": (json_scan, "_STRING", re.compile(rb'"((?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+)"')),
    "escapes": (json_scan, "_STRING", re.compile(rb'"((?:[^"\\\x00-\x1f]|\\.)*+)"')),
    "leading zeros": (json_scan, "_NUMBER", re.compile(rb"(-?)([0-9]++)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]++))?")),
    "digits after the point": (
        json_scan,
        "_NUMBER",
        re.compile(rb"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]*+))?(?:[eE]([+-]?[0-9]++))?"),
    ),
    "float overflow": (json_scan, "serde_float", lambda whole, fraction, exponent, minus: 0.5),
    "white space": (json_scan, "_SPACE", re.compile(rb"[ \t\n\r\x0b]*+")),
    "less white space": (json_scan, "_SPACE", re.compile(rb"[ \n]*+")),
    "repeats, when read fast": (safetensors, "_repeats", lambda raw, count: False),
    "repeats, by their colons": (safetensors, "_KEYS", ()),
    "repeats, hidden by escapes": (safetensors, "_HIDDEN_KEY", re.compile(rb"\\u00[89]")),
    "negative numbers, when read fast": (safetensors, "_NEGATIVE", re.compile(rb"\x00\x00")),
    "header cap": (safetensors, "SAFETENSORS_HEADER", 1 << 62),
    "header cap, by one": (safetensors, "SAFETENSORS_HEADER", 99_999_999),
    "overflow": (safetensors, "_overflows", lambda shape, bits: False),
    "64 bits": (json_scan, "_U64", 2**65),
    "63 bits": (json_scan, "_U64", 2**63 - 1),
    "64 bits, when read fast": (safetensors, "_U64", 2**65),
}


@pytest.mark.mutation
@pytest.mark.parametrize("fault", _LAX)
def test_a_lax_reader_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, value = _LAX[fault]
    monkeypatch.setattr(module, name, value)
    assert any(_verdict(c) != c.rule for c in CASES)


def _verdict(case: Case) -> str | None:
    try:
        return next(iter(errors(case.data)), None)
    except ValueError as error:  # another kind of error than a user may see
        return repr(error)


@pytest.mark.mutation
def test_every_dtype_of_the_table_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK:
        data = one(entry(name, "[8]", f"[0,{safetensors_exact.TYPES[name][1]}]"), safetensors_exact.TYPES[name][1])
        assert contents(safetensors.parse(BytesSource(data))) == reference(data)
        wrong = {**safetensors_exact.TYPES, name: (safetensors_exact.TYPES[name][0], 7)}
        monkeypatch.setattr(safetensors, "TYPES", wrong)
        assert slowly(data) is None
        monkeypatch.undo()


@pytest.mark.mutation
@pytest.mark.parametrize("name", RANK)
def test_every_row_of_the_walks_table_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of another width, and one of another alignment, which a plain file has."""
    if native is None:
        pytest.skip("no extension")
    dtype, bits = safetensors_exact.TYPES[name]
    at = safetensors._TYPE_ROWS.index(bytes((bits, dtype.word, len(name))) + name.encode())
    data = one(entry(name, "[8]", f"[0,{bits}]"), bits)
    data = one(entry(name, "[8]", f"[0,{bits}]"), bits, pad=-(len(data) - bits) % 8)
    assert plain(data) is not None
    for place, wrong in ((0, bits + 1), (1, 80)):
        rows = bytearray(safetensors._TYPE_ROWS)
        rows[at + place] = wrong
        monkeypatch.setattr(safetensors, "_TYPE_ROWS", bytes(rows))
        assert plain(data) is None
        monkeypatch.undo()
