"""A pickle in words: one step an opcode, as the disassembler has them; what is imported and called is told, and not
done; what is broken ends it."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from tests.containers.regions import check_regions

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.containers.torch import bare_pickle as pickles
from weighbridge.io.source import BytesSource
from weighbridge.reports.explain import ACTS, explain
from weighbridge.unpickle import explain as module
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.opcodes import TABLE


def steps(data: bytes) -> list[module.ExplainedStep]:
    return list(module.explain(Machine(BytesSource(data))))


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_each_opcode_is_a_step(tmp_path: Path, protocol: int) -> None:
    value = [1, {"a": (1.5, None, True), "b": {2, 3}, "c": b"xyz"}, Evil(tmp_path / "made"), (), (1,), (1, 2)]
    data = pickle.dumps(value, protocol)
    got = steps(data)
    theirs = [(at, op.name) for op, _, at in pickletools.genops(data)]
    assert [(s.at, s.op) for s in got] == theirs
    assert [s.end for s in got] == [*(at for at, _ in theirs[1:]), len(data)]
    assert not (tmp_path / "made").exists()
    (call,) = [s for s in got if s.op == "REDUCE" and "mkdir" in s.effect]
    assert call.effect.startswith(f"calls {os.mkdir.__module__}.mkdir with ('{str(tmp_path)[:40]}")
    assert any(s.effect == f"asks Python to import {os.mkdir.__module__}.mkdir" for s in got)


WORDS = {
    b"N.": ["pushes None", "ends: the result is None"],
    b"(K\1K\2t.": ["marks this place on the stack", "pushes 1", "pushes 2",
                   "makes a tuple of the 2 values since the mark", "ends: the result is tuple of 2"],
    b"](K\1K\2e.": ["pushes an empty list", "marks this place on the stack", "pushes 1", "pushes 2",
                    "appends the 2 values since the mark to list of 0", "ends: the result is list of 2"],
    b"}U\1aK\1s.": ["pushes an empty dict", "pushes 'a'", "pushes 1", "sets 'a' to 1 in dict of 0",
                    "ends: the result is dict of 1"],
    b"cm\nf\n(K\1K\2\x86tR.": ["asks Python to import m.f", "marks this place on the stack", "pushes 1",
                              "pushes 2", "makes a tuple of 1 and 2", "makes a tuple of the 1 values since the mark",
                              "calls m.f with ((1, 2),)", "ends: the result is m.f(...)"],
    b"cm\nC\n)\x81}b.": ["asks Python to import m.C", "pushes an empty tuple", "makes an object of m.C with ()",
                        "pushes an empty dict", "sets the state of m.C(...) (__setstate__ or attributes) to dict of 0",
                        "ends: the result is m.C(...)"],
    b"(K\1im\nC\n.": ["marks this place on the stack", "pushes 1", "imports and calls m.C with 1 values",
                     "ends: the result is m.C(...)"],
    b"K\x012\x860.": ["pushes 1", "pushes 1 once more", "makes a tuple of 1 and 1", "drops tuple of 2",
                     "broken here: the stack is empty"],
    b"U\1xQ.": ["pushes 'x'", "asks the loader for the outside object with the id 'x'",
                "ends: the result is persistent"],
    b"K\1q\7h\x07.": ["pushes 1", "memoizes 1", "pushes from the memo: 1", "ends: the result is 1"],
}  # fmt: skip


@pytest.mark.parametrize("data", WORDS, ids=repr)
def test_words(data: bytes) -> None:
    assert [s.effect for s in steps(data)] == WORDS[data]


def test_every_opcode_has_words_or_pushes_something() -> None:
    pushes = {op.name for op in TABLE.values()} - set(module._EFFECTS)
    assert {name for name in pushes if not name.startswith(("NEW", "NONE"))} == {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
        "BINBYTES8", "BYTEARRAY8",
    }  # fmt: skip
    assert {op.name for op in TABLE.values()} >= ACTS


@pytest.mark.parametrize("data", [b"", b"\xff", b"K", b"cos\nsystem\n(", b"X\xff\0\0\0a", b"\x80\x09N."])
def test_a_broken_pickle_ends_with_why(data: bytes) -> None:
    assert steps(data)[-1].broken
    assert "broken here" in steps(data)[-1].effect


def test_an_anatomy_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weighbridge.containers.torch.entries.PICKLE_REGIONS", 100)
    data = pickle.dumps(list(range(1, 400)), 2)
    regions = check_regions(pickles.regions(BytesSource(data)), len(data))
    assert len(regions) == 101
    cut = check_regions(pickles.regions(BytesSource(data[:-2])), len(data) - 2)
    assert cut[-1].kind == "unknown"


def checkpoint(tmp_path: Path, **options: Any) -> Path:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    out = io.BytesIO()
    torch.save({"w": torch.ones(2, 3), "x": Evil(tmp_path / "made")}, out, **options)
    path.write_bytes(out.getvalue())
    return path


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_report_names_what_is_asked_for(tmp_path: Path, new: bool) -> None:
    path = checkpoint(tmp_path, _use_new_zipfile_serialization=new)
    report = explain(path)
    main_pickle = next(p for p in report.pickles if p.names)
    named = {n.name: (n.called, n.known) for n in main_pickle.names}
    assert named["torch._utils._rebuild_tensor_v2"] == (1, True)
    assert named[f"{os.mkdir.__module__}.mkdir"] == (1, False)
    data = path.read_bytes()[main_pickle.start :]
    assert main_pickle.steps == sum(1 for _ in pickletools.genops(data)) == len(main_pickle.lines)
    assert {line.op for line in explain(path, calls=True).pickles[-2 if not new else 0].lines} <= ACTS
    assert sum(len(p.lines) for p in explain(path, limit=1).pickles) == len(report.pickles)
    assert not (tmp_path / "made").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def output(*options: str) -> tuple[int, str]:
        return main(["explain", str(path), *options]), capsys.readouterr().out

    path = checkpoint(tmp_path)
    code, shown = output("--calls")
    assert (code, f"calls {os.mkdir.__module__}.mkdir" in shown, "(not one of a checkpoint)" in shown) == (
        0,
        True,
        True,
    )
    told = json.loads(output("--json", "--limit", "2")[1])
    assert told["schema"] == "weighbridge/explain/1"
    assert [line["op"] for line in told["pickles"][0]["lines"]] == ["PROTO", "EMPTY_DICT"]
    assert output("--member", "none.pkl")[0] == 2
    with pytest.raises(UsageError, match="no pickle"):
        explain(path, member="none.pkl")
    (tmp_path / "y.json").write_text("{}")
    with pytest.raises(UnsupportedError):
        explain(tmp_path / "y.json")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("depth", [1, 3])
def test_pickles_inside_pickles_are_explained(protocol: int, depth: int, tmp_path: Path) -> None:
    """In bytes that torch loads, as every protocol writes bytes; in zips and bare."""
    torch = pytest.importorskip("torch")

    class Loads:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (self.data,)

    out = io.BytesIO()
    torch.save({"a": Evil(tmp_path / "made")}, out)
    data = out.getvalue()
    for _ in range(depth):
        data = pickle.dumps({"w": Loads(data)}, protocol)
    path = tmp_path / "model.pkl"
    path.write_bytes(data)
    found = explain(path).pickles
    assert len(found) == depth + 1
    assert found[-1].name.count("!bytes at ") == depth
    assert [n.name for n in found[-1].names if n.called] == [f"{os.mkdir.__module__}.mkdir"]
    assert not (tmp_path / "made").exists()


def test_pickles_without_end_inside_a_pickle_are_few(tmp_path: Path) -> None:
    inner = b"\x80\x02N."
    loads = b"ctorch.storage\n_load_from_bytes\nC" + bytes([len(inner)]) + inner + b"\x85R0"
    (tmp_path / "m.pkl").write_bytes(b"\x80\x03" + loads * 500 + b"N.")
    assert len(explain(tmp_path / "m.pkl").pickles) == 65
