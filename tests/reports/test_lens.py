"""A byte's meaning is that of the region it lies in; a pickle's steps, stack and memo are those of pickletools."""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.reports import makers as m

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import VIEW_BYTES
from weighbridge.containers.base import Index
from weighbridge.models.open import open_model
from weighbridge.page.views import file_view, layout
from weighbridge.page.views import pickle_trace as pickle_traces
from weighbridge.page.views.file_view import ByteView, FileView
from weighbridge.page.views.pickle_trace import PickleTrace, pickle_trace
from weighbridge.reports.anatomy import anatomy

TENSORS = {"a": ("F32", (2, 3)), "b": ("F16", (5,))}
FILES = {
    "safetensors": m.safetensors(TENSORS, {"format": "pt"}),
    "gguf": m.gguf({"general.architecture": ("str", "llama"), "x.y": ("u32", 7)}, TENSORS),
    "pickle": pickle.dumps({"a": [1, 2.5, "x"]}),
    "broken": m.safetensors(TENSORS)[:-7],
}


@pytest.mark.parametrize("name", FILES)
def test_every_byte_has_its_region(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(FILES[name])
    parts = [p for p in anatomy(path).parts if p.length]
    with FileView(path) as lens:
        for offset in range(0, lens.size, 5):
            view = lens.bytes(offset, 9)
            assert bytes.fromhex(view.data) == FILES[name][offset : offset + 9]
            want = [(p.start, p.end, p.kind, p.label) for p in parts if p.start < offset + 9 and p.end > offset]
            assert [(r.start, r.end, r.kind, r.label) for r in view.regions] == want
        assert lens.bytes(lens.size, 5).regions == ()


@pytest.mark.parametrize("name", ["safetensors", "gguf"])
def test_regions_of_many_tensors_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found where somebody looks, behind the header from the index alone."""
    (tmp_path / "x").write_bytes(FILES[name])
    with FileView(tmp_path / "x") as all_at_once:
        want = [[all_at_once.bytes(at, n) for at in range(0, all_at_once.size, 3)] for n in (1, 20, 500)]
    monkeypatch.setattr(layout, "VIEW_DETAIL", 1)
    monkeypatch.setattr(file_view, "VIEW_BYTES", 500)
    with FileView(tmp_path / "x", form_index(tmp_path / "x")) as lens:
        for views in want:
            for view in views:
                found = lens.bytes(view.offset, len(view.data) // 2)
                assert (found.data, _named(found)) == (view.data, _named(view)), view.offset


def form_index(path: Path) -> Index:
    with open_model(path) as model:
        return model.index


def _named(view: ByteView) -> list[tuple[object, ...]]:
    """Padding between tensors has no words where only the index is known."""
    return [(r.start, r.end, r.kind, r.kind != "padding" and (r.label, bool(r.value)), r.first) for r in view.regions]


def test_the_bytes_of_a_tensor_have_an_element(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(FILES["safetensors"])
    start = anatomy(f"{tmp_path / 'x'}::a", kind=["tensor"]).parts[0].start
    with FileView(tmp_path / "x") as lens:
        (region,) = lens.bytes(start + 17, 3).regions
    assert region.first is not None
    assert (region.first.index, region.first.byte, region.atom) == ((1, 1), 1, 4)


def test_what_a_lens_refuses(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(FILES["gguf"])
    with pytest.raises(UsageError, match="folder"):
        FileView(tmp_path)
    with FileView(tmp_path / "x") as lens:
        for offset, size in ((-1, 1), (lens.size + 1, 1), (0, -1), (0, VIEW_BYTES + 1)):
            with pytest.raises(UsageError):
                lens.bytes(offset, size)


VALUES: list[Any] = [
    {"a": [1, 2.5, "x"], "b": (None, True, b"y")},
    OrderedDict([(f"k{i}", (i, i + 1, [i])) for i in range(40)]),
    [{1, 2}, frozenset([3]), 1 << 70, "\u202e\n"],
]


def traced(path: Path, **options: Any) -> PickleTrace:
    return pickle_trace(path, **options)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", VALUES, ids=["dict", "calls", "sets"])
def test_steps_are_those_of_pickletools(value: Any, protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps(value, protocol)
    (tmp_path / "x.pkl").write_bytes(data)
    found = traced(tmp_path / "x.pkl", count=5000)
    want = list(pickletools.genops(data))
    assert [(s.op, s.at) for s in found.steps] == [(op.name, at) for op, _, at in want]
    assert found.steps[-1].end == len(data)
    assert not found.more
    known = {place.key for place in found.memo}
    puts = [s.number for s in found.steps if len(known) < len(known := known | {place.key for place in s.changed})]
    assert puts == [n for n, (op, _, _) in enumerate(want) if "PUT" in op.name or op.name == "MEMOIZE"]


@pytest.mark.parametrize("protocol", range(6))
def test_the_depth_is_that_of_pickletools(protocol: int, tmp_path: Path) -> None:
    """pickletools has the effect of each opcode on the stack; a mark takes a place, and pops all above it."""
    data = pickle.dumps(VALUES[0], protocol)
    (tmp_path / "x.pkl").write_bytes(data)
    stack: list[Any] = []
    pairs = list(zip(traced(tmp_path / "x.pkl").steps, pickletools.genops(data), strict=True))
    for step, (op, _, _) in pairs[:-1]:  # the last is STOP, after which the result is still shown
        before = list(op.stack_before)
        if pickletools.markobject in before:
            while stack.pop() is not pickletools.markobject:
                pass
            before = before[: before.index(pickletools.markobject)]
        if before:
            del stack[-len(before) :]
        stack.extend(op.stack_after)
        assert step.depth == len(stack), step


def memos(data: bytes) -> list[dict[int, str]]:
    """The memo of Python's own unpickler after each opcode, in words."""
    found: list[dict[int, str]] = []

    def watched(run: Callable[[Any], None]) -> Callable[[Any], None]:
        def step(unpickler: Any) -> None:
            try:
                run(unpickler)
            finally:
                found.append({key: words(value) for key, value in unpickler.memo.items()})

        return step

    class Watched(pickle._Unpickler):
        dispatch: ClassVar = {code: watched(run) for code, run in pickle._Unpickler.dispatch.items()}

    Watched(BytesIO(data)).load()
    return found


def words(value: Any) -> str:
    if isinstance(value, list | tuple | dict | set):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)


NESTED: Any = {"a": [1, [2, ["x"]]], "b": {"c": {}, "d": ("y", "y")}, "e": [None] * 3}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("start", [0, 13])
def test_the_memo_is_that_of_python(protocol: int, start: int, tmp_path: Path) -> None:
    """Also of values that change after they were remembered, and from any step on."""
    data = pickle.dumps([NESTED, NESTED], protocol)
    (tmp_path / "x.pkl").write_bytes(data)
    want = memos(data)
    found = traced(tmp_path / "x.pkl", start=start, count=5000)
    memo = {place.key: place.words for place in found.memo}
    assert memo == (want[start - 1] if start else {})
    for step in found.steps:
        memo |= {place.key: place.words for place in step.changed}
        assert (memo, step.memo) == (want[step.number], len(memo)), step


def test_a_place_of_the_memo_is_filled_again(tmp_path: Path) -> None:
    data = b"]q\x00]q\x00h\x00K\x01a00."
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + data)
    changes = [{p.key: p.words for p in step.changed} for step in traced(tmp_path / "x.pkl").steps]
    assert [change for change in changes if change] == [{0: "list of 0"}, {0: "list of 0"}, {0: "list of 1"}]


def test_no_more_of_the_memo_is_given_than_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_traces, "VIEW_MEMO", 5)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(VALUES[1]))
    found = traced(tmp_path / "x.pkl", start=100)
    count = traced(tmp_path / "x.pkl", start=99, count=1).steps[0].memo
    assert [place.key for place in found.memo] == list(range(count - 5, count))


def test_windows_of_steps(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(VALUES[1]))
    whole = traced(tmp_path / "x.pkl", count=9999)
    part = traced(tmp_path / "x.pkl", start=10, count=7)
    assert part.steps == whole.steps[10:17]
    assert part.more
    with pytest.raises(UsageError):
        traced(tmp_path / "x.pkl", count=100_000)
    with pytest.raises(UsageError, match="no pickle"):
        traced(tmp_path / "x.pkl", member="nothing")


def test_a_broken_pickle_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(VALUES[0])[:-9])
    last = traced(tmp_path / "x.pkl").steps[-1]
    assert last.broken
    assert "broken here" in last.words
    (tmp_path / "x").write_bytes(FILES["gguf"])
    with pytest.raises(UnsupportedError):
        traced(tmp_path / "x")
