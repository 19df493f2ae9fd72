"""Edits change what was asked for and nothing else: the metadata as a dict would have it, every tensor's bytes as they
were, in place where that is possible, and never half."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.containers import ggml_files

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.values import KV
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.safetensors.layout import layout as safetensors_layout
from weighbridge.conversion.edit import apply as applying
from weighbridge.conversion.edit import plan as module
from weighbridge.conversion.edit.apply import apply_edit, journal_of, recover
from weighbridge.conversion.edit.headers import RESERVED
from weighbridge.conversion.edit.plan import plan_edit
from weighbridge.conversion.edit.values import Edit, parse_array, parse_assignment
from weighbridge.io.sink import InPlace
from weighbridge.io.source import FileSource

TENSORS = [
    ("b.weight", Spec((4, 32), dtype("F32"))),
    ("a", Spec((3, 5), dtype("F16"))),
    ("c", Spec((0, 2), dtype("F32"))),
]
DATA = bytes(range(256)) * 8


def write_gguf(path: Path, metadata: dict[str, KV], alignment: int = 32) -> Path:
    plan = gguf.layout(TENSORS, metadata, alignment=alignment)
    return _write(path, plan)


def write_safetensors(path: Path, metadata: dict[str, str], **options: Any) -> Path:
    return _write(path, safetensors_layout(TENSORS, metadata, **options))


def _write(path: Path, plan: Any) -> Path:
    out = bytearray(plan.size)
    for at, piece in plan.pieces:
        out[at : at + len(piece)] = piece
    for i, slot in enumerate(plan.slots):
        out[slot.offset : slot.offset + slot.spec.nbytes] = DATA[i : i + slot.spec.nbytes]
    path.write_bytes(out)
    return path


def tensors(path: Path) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    with FileSource(path) as source:
        index = (gguf if source.head(4) == b"GGUF" else safetensors).parse(source)
        return [(e.name, e.dtype.name, e.shape, source.read(e.offset, e.nbytes)) for e in index]


def metadata(path: Path) -> dict[str, KV]:
    return dict(module.read_metadata(path))


def edit(path: Path, *edits: Edit, **options: Any) -> Any:
    plan = plan_edit(path, set=edits, **options)
    apply_edit(plan)
    return plan


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
KEYS = st.sampled_from(["a", "general.name", "weighbridge.x", "k" * 50, "ключ"])
VALUES = st.one_of(
    st.builds(KV, st.just("str"), TEXT),
    st.builds(KV, st.just("u32"), st.integers(0, 2**32 - 1)),
    st.builds(KV, st.just("i64"), st.integers(-(2**63), 2**63 - 1)),
    st.builds(KV, st.just("f32"), st.floats(width=32, allow_nan=False)),
    st.builds(KV, st.just("bool"), st.booleans()),
    st.builds(KV, st.just("arr[str]"), st.lists(TEXT, max_size=5)),
    st.builds(KV, st.just("arr[i32]"), st.lists(st.integers(-5, 5), max_size=9)),
)


@pytest.mark.costly
@given(
    before=st.dictionaries(KEYS, VALUES, max_size=4),
    steps=st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=5),
    reserve=st.sampled_from([0, 0, 300]),
    alignment=st.sampled_from([8, 32, 64]),
)
def test_gguf_edits_do_what_a_dict_does(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, KV],
    steps: list[tuple[str, KV | None]],
    reserve: int,
    alignment: int,
) -> None:
    path = write_gguf(tmp_path_factory.mktemp("g") / "m.gguf", before, alignment)
    old, expected, edits = tensors(path), metadata(path), []
    for key, value in steps:
        if value is not None:
            expected[key] = value
            edits.append(Edit(key, value.value, value.type))
        elif key in expected:
            del expected[key]
            edits.append(Edit(key, remove=True))
    edit(path, *edits, allow_guarded=True, reserve=reserve)
    assert metadata(path) == expected
    assert tensors(path) == old
    edit(path, Edit("again", "x" * 40))  # what an edit wrote can be edited
    assert metadata(path) == {**expected, "again": KV("str", "x" * 40)}
    assert tensors(path) == old


@given(
    before=st.dictionaries(KEYS, TEXT, max_size=4),
    after=st.dictionaries(KEYS, TEXT, max_size=4),
    align=st.sampled_from([8, 4096]),
)
def test_safetensors_edits_do_what_a_dict_does(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, str], after: dict[str, str], align: int
) -> None:
    path = write_safetensors(tmp_path_factory.mktemp("s") / "m.safetensors", before, align=align)
    old = tensors(path)
    edits = [Edit(key, remove=True) for key in before if key not in after]
    plan = edit(path, *edits, *(Edit(key, value) for key, value in after.items()))
    assert {key: kv.value for key, kv in metadata(path).items()} == after
    assert tensors(path) == old
    with FileSource(path) as source:
        assert safetensors.parse(source).data_start[0] % align == 0
    assert plan.in_place or align == 8, "a page of room holds these"


ENTRY = '"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
OTHER = '"u":["U8",[1],[2,3]]'  # the array form, which the reference reads
HEADERS = [  # ENTRY and OTHER stand for the two above
    "{ENTRY,OTHER}",
    '{"__metadata__":{"a":"1"},ENTRY,OTHER}',
    '{ENTRY,"__metadata__":{"a":"1"},OTHER}',
    '{ENTRY , OTHER , "__metadata__" : {"a" : "1"} }',
    '  \n{ENTRY,"__metadata__":null,OTHER}\t \r\n',
    '{ENTRY,"\\u005f_metadata__":{"a":"1","a":"1"},OTHER,ENTRY}',  # key escaped; names and keys twice
    '{ENTRY,"u":{"dtype":"U8","shape":[1],"data_offsets":[2,3],"note":{"x":[1,"}"]}},"__metadata__":{}}',
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("wanted", [{}, {"b": "2"}, {"a": "1", "b": "x" * 500}, {"é": '"\\{}\n'}])
def test_an_odd_header_keeps_its_entries(tmp_path: Path, header: str, wanted: dict[str, str]) -> None:
    from safetensors import safe_open

    path = tmp_path / "odd.safetensors"
    header = header.replace("ENTRY", ENTRY).replace("OTHER", OTHER)
    raw = header.encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"\1\2\3")
    before = metadata(path)
    edits = [Edit(key, remove=True) for key in before if key not in wanted]
    edit(path, *edits, *(Edit(key, value) for key, value in wanted.items()))
    with safe_open(path, "np") as reference:
        assert (reference.metadata() or {}) == wanted
        assert {k: reference.get_tensor(k).tolist() for k in reference.keys()} == {"t": [1, 2], "u": [3]}  # noqa: SIM118
    for entry in (ENTRY, OTHER):
        assert entry not in header or entry.encode() in path.read_bytes()


def test_the_reference_reads_an_edited_gguf(tmp_path: Path) -> None:
    reference = pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": KV("str", "llama"), "x": KV("u32", 1)})
    edit(path, Edit("general.tags", ["a", "ü"], "arr[str]"), Edit("x", remove=True), Edit("y", "1e-5"))
    fields = reference.GGUFReader(path).fields
    assert fields["general.tags"].contents() == ["a", "ü"]
    assert fields["y"].contents() == pytest.approx(1e-5)
    assert "x" not in fields


# In place or anew

BASE = {
    "general.architecture": KV("str", "llama"),
    "general.name": KV("str", "n" * 100),
    "llama.block_count": KV("u32", 2),
}
PLACES = [
    ("same length", [Edit("general.name", "m" * 100)], {}, True),
    ("a number", [Edit("llama.block_count", "3")], {}, True),
    ("much shorter: the room is reserved", [Edit("general.name", "m")], {}, True),
    ("removed", [Edit("general.name", remove=True)], {}, True),
    ("longer", [Edit("general.name", "m" * 300)], {}, False),
    ("asked for", [Edit("general.name", "m" * 100)], {"rewrite": True}, False),
    ("with room", [Edit("general.name", "m")], {"reserve": 1000}, False),
]


@pytest.mark.parametrize(("what", "edits", "options", "in_place"), PLACES, ids=[p[0] for p in PLACES])
def test_in_place_where_it_fits(
    tmp_path: Path, what: str, edits: list[Edit], options: dict[str, Any], in_place: bool
) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    inode, size = path.stat().st_ino, path.stat().st_size
    plan = edit(path, *edits, **options)
    assert plan.in_place is in_place
    assert (path.stat().st_ino == inode) is in_place
    assert not in_place or path.stat().st_size == size
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"], "nothing is left beside it"


@pytest.mark.costly
def test_the_llama_loader_finds_the_data_after_every_edit_in_place(tmp_path: Path) -> None:
    """llama.cpp takes the first multiple of the alignment after the directory: no slack is allowed before the data."""
    seen = set()
    for length in range(100):
        path = write_gguf(tmp_path / "m.gguf", BASE)
        old = tensors(path)
        with FileSource(path) as source:
            before = gguf.parse(source)
        plan = edit(path, Edit("general.name", "m" * length))
        with FileSource(path) as source:
            index = gguf.parse(source)
            assert not plan.in_place or index.data_start == before.data_start
            seen.add((plan.in_place, RESERVED in index.metadata))
            assert [f for f in index.findings if f.severity != "info"] == []
        assert tensors(path) == old
        assert metadata(path)["general.name"].value == "m" * length, "the reserved key isn't shown"
    # With room left over, with none, and where what is left over is less than the reserved key needs.
    assert seen == {(True, True), (True, False), (False, False)}


def test_only_the_bytes_that_differ_are_written(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    assert plan_edit(path, set=[Edit("llama.block_count", "3")]).written == 1
    assert plan_edit(path, set=[Edit("llama.block_count", "2")]).changes == ()


def test_a_rewrite_that_is_interrupted_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    before = path.read_bytes()
    plan = plan_edit(path, set=[Edit("general.name", "m" * 300)])

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_edit(plan, progress=cut)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("written", [0, 1, 40, None])
def test_an_edit_in_place_that_is_cut_off_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    before = path.read_bytes()
    plan = plan_edit(path, set=[Edit("general.name", "m" * 100)])

    class Cut(InPlace):
        def write(self, offset: int, data: bytes) -> None:
            super().write(offset, data[:written])
            raise SystemExit("the machine stops here")

    with monkeypatch.context() as patch:
        patch.setattr(applying, "InPlace", Cut)
        with pytest.raises(SystemExit):
            apply_edit(plan)
    assert (path.read_bytes() != before) is (written != 0)
    assert journal_of(path).exists()
    assert recover(path)
    assert path.read_bytes() == before
    assert not journal_of(path).exists()
    assert not recover(path)


def test_a_journal_of_another_file_is_not_applied(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    before = path.read_bytes()
    for journal in (b"", b"{}\n", b"[]\nxx", b'{"offset":0,"size":5,"pid":999999999}\nxxxx',
                    b'{"offset":0,"size":5,"pid":%d}\nxxxx' % 10**30, b"\xff\n"):  # fmt: skip
        journal_of(path).write_bytes(journal)
        with pytest.raises(FormatError):
            recover(path)
        assert path.read_bytes() == before


def test_an_edit_that_runs_elsewhere_is_not_undone(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    head = {"offset": 0, "size": path.stat().st_size, "pid": os.getppid()}
    journal_of(path).write_bytes(json.dumps(head).encode() + b"\nxxxx")
    with pytest.raises(RefusedError, match="is being edited"):
        recover(path)


def test_a_file_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    plan = plan_edit(path, set=[Edit("general.name", "m")])
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(FormatError, match="file changed"):
        apply_edit(plan)


@pytest.mark.parametrize("keep", [40, -1])
def test_a_file_that_is_cut_off_is_told_as_that(tmp_path: Path, keep: int) -> None:
    """Its keys can still be listed where the header is whole; an edit is refused in the reader's words."""
    path = write_gguf(tmp_path / "m.gguf", BASE)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match=r"the file ends|than the file can hold"):
        plan_edit(path, set=[Edit("general.name", "m")])


@pytest.mark.parametrize(
    ("data", "title", "hint"),
    [
        (ggml_files.llama("ggjt3"), "ggml file", "wb edit takes GGUF and safetensors files"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n",
            "Git LFS",
            "git lfs pull",
        ),
        (b"", "empty file", "download it again"),
    ],
)
def test_a_file_of_another_format_is_called_by_its_name(data: bytes, title: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"x.bin: {title}") as refused:
        edit(path, Edit("a", "b"))
    assert hint in str(refused.value.hint)
    assert path.read_bytes() == data


def test_a_big_endian_file_is_listed_and_not_edited(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + struct.pack(">Q1sII", 1, b"k", 4, 7) + bytes(31)  # k: u32 = 7
    )
    assert metadata(path) == {"k": KV("u32", 7)}
    with pytest.raises(UnsupportedError, match="big-endian"):
        plan_edit(path, set=[Edit("k", 8)])


# Whose file it is


@pytest.mark.parametrize("value", ["m" * 100, "m" * 400])
def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    before = path.read_bytes()
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda name, mode: bool(os.stat(name).st_mode & 0o200))  # root may all
    with pytest.raises(PermissionError):
        edit(path, Edit("general.name", value))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_the_other_names_of_a_hard_link_keep_their_content(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    other = tmp_path / "other.gguf"
    os.link(path, other)
    before = other.read_bytes()
    plan = edit(path, Edit("llama.block_count", "3"))
    assert not plan.in_place
    assert other.read_bytes() == before
    assert metadata(path)["llama.block_count"].value == 3


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "real.gguf", BASE)
    link = tmp_path / "link.gguf"
    link.symlink_to(path.name)
    for value in ("m" * 100, "m" * 400):  # in place, then anew
        edit(link, Edit("general.name", value))
        assert link.is_symlink()
        assert metadata(path)["general.name"].value == value


@pytest.mark.parametrize("blob", ["sha256-" + "a" * 64, "b" * 64, "c" * 40])
def test_a_blob_of_a_store_is_refused(tmp_path: Path, blob: str) -> None:
    (tmp_path / "blobs").mkdir()
    path = write_gguf(tmp_path / "blobs" / blob, BASE)
    link = tmp_path / "model.gguf"
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(RefusedError, match="is a blob of"):
            plan_edit(name, set=[Edit("general.name", "m")])
    edit(link, Edit("general.name", "m"), output=tmp_path / "copy.gguf")
    assert metadata(tmp_path / "copy.gguf")["general.name"].value == "m"
    assert metadata(path) == BASE
    edit(link, Edit("general.name", "m"), allow_guarded=True)
    assert metadata(path)["general.name"].value == "m"


def test_a_backup_is_the_old_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    before = path.read_bytes()
    plan = plan_edit(path, set=[Edit("llama.block_count", "3")], backup=True)
    apply_edit(plan)
    assert (tmp_path / "m.gguf.bak").read_bytes() == before
    with pytest.raises(RefusedError):
        apply_edit(plan_edit(path, set=[Edit("llama.block_count", "4")], backup=True))


# What is refused

REFUSED: list[tuple[Edit, type[Exception]]] = [
    (Edit("general.alignment", "64", "u32"), UnsupportedError),
    (Edit("split.count", "2", "u16"), RefusedError),
    (Edit("general.architecture", "gemma"), RefusedError),
    (Edit("tokenizer.ggml.tokens", remove=True), RefusedError),
    (Edit("llama.block_count", "2", "f32"), RefusedError),
    (Edit("llama.block_count", "-1"), UsageError),
    (Edit("llama.block_count", "4294967296"), UsageError),
    (Edit("llama.block_count", "2.5"), UsageError),
    (Edit("llama.block_count", "true"), UsageError),
    (Edit("llama.block_count", "many"), UsageError),
    (Edit("llama.block_counts", remove=True), UsageError),
    (Edit("", "x"), UsageError),
    (Edit("new", "x", "u128"), UsageError),
    (Edit("new", "1", "bool"), UsageError),
    (Edit("new", "1e39", "f32"), UsageError),
    (Edit("new", ["a", 1], "arr[str]"), UsageError),
    (Edit("new", "abc", "arr[str]"), UsageError),
    (Edit("new", "\ud800"), UsageError),
    (Edit("k" * 70_000, "x"), UsageError),
]


@pytest.mark.parametrize(("wish", "error"), REFUSED, ids=lambda x: str(getattr(x, "key", ""))[:30])
def test_what_would_break_the_file_is_refused(tmp_path: Path, wish: Edit, error: type[Exception]) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    before = path.read_bytes()
    with pytest.raises(error):
        edit(path, wish)
    assert path.read_bytes() == before


def test_safetensors_hold_text_only(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="text only"):
        edit(path, Edit("x", "5", "u32"))
    with pytest.raises(RefusedError):
        edit(path, Edit("format", remove=True))


# What people type

TYPED = [
    ("k=5", KV("u32", 5)),
    ("k=-5", KV("i32", -5)),
    ("k=99999999999", KV("i64", 99999999999)),
    ("k=0.5", KV("f32", 0.5)),
    ("k=1e3", KV("f32", 1000.0)),
    ("k=true", KV("bool", True)),
    ("k=1_000", KV("str", "1_000")),
    ("k=nan", KV("str", "nan")),
    ("k=", KV("str", "")),
    ("k=a=b:c", KV("str", "a=b:c")),
    ("k=https://x.y", KV("str", "https://x.y")),
    ("k=str:5", KV("str", "5")),
    ("k=str:i32:5", KV("str", "i32:5")),
    ("k=u8:255", KV("u8", 255)),
    ("k=float:1", KV("f32", 1.0)),
    ("k=f64:0.1", KV("f64", 0.1)),
    ("k=int:7", KV("i32", 7)),
    ("k=" + "9" * 5000, KV("str", "9" * 5000)),
]


@pytest.mark.parametrize(("text", "expected"), TYPED, ids=[t[0][:20] for t in TYPED])
def test_assignments_as_people_type_them(tmp_path: Path, text: str, expected: KV) -> None:
    path = write_gguf(tmp_path / "m.gguf", {})
    edit(path, parse_assignment(text))
    assert metadata(path)["k"] == expected
    assert type(metadata(path)["k"].value) is type(expected.value)


def test_a_key_keeps_its_type(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"k": KV("u8", 1), "s": KV("str", "1"), "f": KV("f64", 1.0)})
    edit(path, *map(parse_assignment, ("k=7", "s=7", "f=7")))
    assert metadata(path) == {"k": KV("u8", 7), "s": KV("str", "7"), "f": KV("f64", 7.0)}


@pytest.mark.parametrize("text", ["k=[1]", "k", "k=u32:1", "k=u32:{}", "k=u32:[1", "k=arr:[1]", "k=u32:" + "[" * 10000])
def test_what_is_no_array_is_told(text: str) -> None:
    with pytest.raises(UsageError):
        parse_array(text, str)


def test_arrays_come_from_a_file_too() -> None:
    assert parse_array("k=str:@names.json", {"names.json": '["a"]'}.__getitem__) == Edit("k", ["a"], "arr[str]")


@pytest.mark.parametrize("cut", [1, 4, 20, 40, 100, 200])
def test_a_damaged_file_is_not_edited(tmp_path: Path, cut: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", BASE)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FormatError):
        plan_edit(path, set=[Edit("general.name", "m")])
