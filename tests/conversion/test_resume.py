"""Runs that are interrupted and go on: the same bytes, wherever they were cut off; nothing that is done is done again,
and nothing of another run is taken for this one's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.oracles import quantize_cases

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.cli.main import main
from weighbridge.conversion.plan import contents as planning
from weighbridge.conversion.plan import fingerprint
from weighbridge.conversion.plan import run as running
from weighbridge.conversion.plan.fingerprint import key_of
from weighbridge.io.sink import OutFile, Sink, partial_of
from weighbridge.io.sink import journal as journaling
from weighbridge.io.sink.journal import Journal, Piece
from weighbridge.tensors.nodes.base import Node

pytest.importorskip("gguf")
fcntl = pytest.importorskip("fcntl", reason="locks and SIGKILL are POSIX'")


@pytest.fixture(autouse=True)
def _small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_COMPUTED_SLAB", 1024)
    monkeypatch.setattr(planning, "SLAB", 2048)
    monkeypatch.setattr(running, "_COPY", 2048)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    plain = {f"layer.{i}.weight": rng.standard_normal((16, 64)).astype(np.float32) for i in range(12)}
    plain |= {"nothing": np.zeros((0, 4), np.float32), "one": np.ones((), np.float32)}
    save_file(plain, folder / "plain.safetensors", {"format": "pt"})
    names = ("dense", "shards")
    return {"plain": folder / "plain.safetensors", **{n: quantize_cases.make(n, folder) for n in names}}


#: name -> source, target, what is done: computed and copied slabs, checksums to be fixed up, folders, shards, texts
CASES: Mapping[str, tuple[str, str, Callable[..., Any], dict[str, Any]]] = {
    "quantized": ("dense", "o.gguf", wb.plan_quantize, {"ftype": "Q4_K_M"}),
    "quantized shards": ("shards", "o", wb.plan_quantize, {"ftype": "Q5_0", "keep_split": True}),
    "copied": ("plain", "o.safetensors", wb.plan_convert, {}),
    "cast": ("plain", "o.safetensors", wb.plan_convert, {"dtype": "f16"}),
    "checksums of npz": ("plain", "o.npz", wb.plan_convert, {}),
    "checksums of torch": ("plain", "o.pt", wb.plan_convert, {}),
    "sharded": ("plain", "o", wb.plan_convert, {"to": "safetensors", "max_shard_tensors": 2}),
}


class _Stop(Exception):
    pass


class _After:
    """Raises once that `part` of the work is done; `seen` is how far it was at each report."""

    def __init__(self, part: float = 2) -> None:
        self.part, self.seen = part, list[int]()

    def __call__(self, done: int, total: int, label: str) -> None:
        self.seen.append(done)
        if done >= self.part * total:
            raise _Stop


def content(target: Path) -> dict[str, bytes]:
    if target.is_dir():
        return {p.relative_to(target).as_posix(): p.read_bytes() for p in sorted(target.rglob("*")) if p.is_file()}
    return {"": target.read_bytes()}


def act(name: str, sources: Mapping[str, Path], folder: Path, progress: Any = None, **more: Any) -> Path:
    source, target, plan, options = CASES[name]
    plan(sources[source], folder / target, **{"jobs": 2, **options, **more}).run(progress)
    return folder / target


def interrupted(name: str, sources: Mapping[str, Path], folder: Path, after: float, **more: Any) -> Path:
    """A run with `resume` that is cut off; where it has staged."""
    with pytest.raises(_Stop):
        act(name, sources, folder, resume=True, progress=_After(after), **more)
    return partial_of(folder / CASES[name][1])


@pytest.mark.parametrize("name", CASES)
def test_wherever_it_is_cut_off_it_ends_with_the_same_bytes(
    name: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    steps = _After()
    expected = content(act(name, sources, whole, progress=steps))
    assert len(steps.seen) > 2
    for after in (0, 0.1, 0.5, 0.9, 1):
        here = tmp_path / f"{after}"
        here.mkdir()
        stage = interrupted(name, sources, here, after)
        assert {p.name for p in here.iterdir()} == {stage.name, f"{stage.name}.journal"}
        again = _After()
        target = act(name, sources, here, resume=True, progress=again)
        assert content(target) == expected
        assert [p.name for p in here.iterdir()] == [target.name]
        # (slabs that were in the queue may be finished too)
        assert again.seen[-1:] in {0.9: ([], steps.seen[-1:]), 1: ([],)}.get(after, (steps.seen[-1:],))
        assert all(done > after * steps.seen[-1] for done in again.seen)


def test_what_is_done_is_not_done_again(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """Not a byte of it is written, over several interruptions; and the last word is what was there."""
    written: list[tuple[int, int]] = []
    real = OutFile.write

    def watched(self: OutFile, offset: int, data: Any) -> None:
        written.append((offset, len(data)))
        real(self, offset, data)

    monkeypatch.setattr(OutFile, "write", watched)
    for after in (0.2, 0.4, 0.6):
        interrupted("cast", sources, tmp_path, after, jobs=1)
    act("cast", sources, tmp_path, resume=True, jobs=1)
    slabs = [w for w in written if w[0] > 0]
    # each interruption loses at most the slabs in the queue: those written, not yet collected
    assert len(slabs) - len(set(slabs)) <= 3 * 4
    assert len(set(slabs)) > 10


def test_counts_and_notes_tell_of_it(sources: Mapping[str, Path], tmp_path: Path) -> None:
    interrupted("cast", sources, tmp_path, 0.3)
    result = wb.convert(sources["plain"], tmp_path / "o.safetensors", dtype="f16", jobs=2, resume=True)
    assert any("bytes were kept from an interrupted run" in line for line in result.notes)
    fresh = wb.convert(sources["plain"], tmp_path / "p.safetensors", dtype="f16", resume=True)
    assert not any("interrupted" in line for line in fresh.notes)


@pytest.mark.parametrize("name", ["quantized", "sharded"])
def test_without_resume_nothing_is_left_behind(name: str, sources: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(_Stop):
        act(name, sources, tmp_path, progress=_After(0.3))
    assert list(tmp_path.iterdir()) == []


def test_threads_and_slabs_may_change(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """Slabs of another size are done again where they aren't those that were noted."""
    expected = content(act("quantized", sources, tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    interrupted("quantized", sources, here, 0.6)
    monkeypatch.setattr(planning, "_COMPUTED_SLAB", 512)
    again, size = _After(), sum(r.target_bytes for r in wb.plan_quantize(sources["dense"], here, "Q4_K_M").rows)
    assert content(act("quantized", sources, here, resume=True, jobs=1, max_memory=1 << 20, progress=again)) == expected
    assert again.seen[-1] == size


# ------------------------------------------------------------------------------------------------ kill -9


@pytest.mark.costly
@pytest.mark.parametrize("after", [0.01, 0.3, 0.8])
def test_a_killed_process_is_gone_on_with(after: float, sources: Mapping[str, Path], tmp_path: Path) -> None:
    """SIGKILL while slabs are in flight, every finished one noted at once."""
    code = f"""
        import os, signal, weighbridge as wb
        from weighbridge.conversion.plan import model as plan, run
        from weighbridge.io.sink import journal
        plan._COMPUTED_SLAB, run._COPY, journal._WAIT_BYTES = 1024, 2048, 1
        def progress(done, total, label):
            if done >= {after} * total:
                os.kill(os.getpid(), signal.SIGKILL)
        wb.plan_quantize({str(sources["dense"])!r}, {str(tmp_path / "o.gguf")!r}, "Q4_K_M", jobs=2, resume=True).run(
            progress)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {p.name for p in tmp_path.iterdir()} == {"o.gguf.partial", "o.gguf.partial.journal"}
    expected = tmp_path / "whole"
    expected.mkdir()
    again = _After()
    target = act("quantized", sources, tmp_path, resume=True, progress=again)
    assert content(target) == content(act("quantized", sources, expected))
    assert again.seen[0] > 0


def test_a_record_never_comes_before_its_bytes(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """Each batch: the files are synced, then the journal is written; and what was not synced is not in it."""
    events: list[str] = []
    real_sync, real_write = OutFile.sync_data, Journal.write
    monkeypatch.setattr(journaling, "_WAIT_BYTES", 4096)

    def sync(self: OutFile) -> None:
        real_sync(self)
        events.append(self.path.name)

    def write(self: Journal) -> None:
        files = sorted(p.name for p in (tmp_path / "o.partial").iterdir())
        assert events[-len(self.waiting) :] == [files[number] for number in sorted(self.waiting)]
        events.append("noted")
        real_write(self)

    monkeypatch.setattr(OutFile, "sync_data", sync)
    monkeypatch.setattr(Journal, "write", write)
    act("quantized shards", sources, tmp_path, resume=True)
    assert events.count("noted") > 3


# ------------------------------------------------------------------------------------------------ other runs


OTHERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "another type": ({"ftype": "Q4_0"}, r"types of tensors \(then .*Q6_K.*, now .*Q4_0"),
    "another tensor's type": ({"tensor_type": ("ffn_down=q8_0",)}, r"types of tensors \(then .*, now .*Q8_0"),
    "another key": ({"override_kv": ("general.name=str:x",)}, "headers"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_plan_is_refused_and_overwrite_starts_anew(
    what: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    options, words = OTHERS[what]
    stage = interrupted("quantized", sources, tmp_path, 0.4)
    before = {p.name: content(p) for p in tmp_path.iterdir()}
    with pytest.raises(RefusedError, match=words) as caught:
        act("quantized", sources, tmp_path, resume=True, **options)
    assert caught.value.option == "--overwrite"
    assert stage.name in str(caught.value.hint)
    assert {p.name: content(p) for p in tmp_path.iterdir()} == before
    target = act("quantized", sources, tmp_path, resume=True, overwrite=True, **options)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    other = tmp_path / "other"
    other.mkdir()
    assert content(target) == content(act("quantized", sources, other, **options))


def test_the_weights_of_an_importance_matrix_count(sources: Mapping[str, Path], tmp_path: Path) -> None:
    plan = wb.plan_quantize(sources["dense"], tmp_path / "o.gguf", "Q4_K_M")
    (file,) = plan.files
    nodes = [n for n in file.nodes if type(n).__name__ == "Encode"]
    for node in nodes[:3]:
        one = np.ones((1, node.spec.shape[-1]), np.float32)
        weighted = replace(node, importance=one)  # type: ignore[call-arg]
        changed = replace(file, nodes=tuple(weighted if n is node else n for n in file.nodes))
        assert key_of(replace(plan, files=(changed,)))["tensors"] != key_of(plan)["tensors"]


@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_the_key_is_the_same_in_every_process(name: str, sources: Mapping[str, Path], tmp_path: Path) -> None:
    """Nothing in it is an address, an order of a set, a count."""
    source, target, plan, options = CASES[name]
    code = f"""
        import weighbridge as wb
        from weighbridge.conversion.plan.fingerprint import key_of
        print(key_of(wb.{plan.__name__}({str(sources[source])!r}, {str(tmp_path / target)!r}, **{options!r})))
    """
    found = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1
    assert str(sources[source]) in found.pop()


def test_a_source_that_changed_is_refused_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {f"t{i}": rng.standard_normal((16, 64)).astype(np.float32) for i in range(6)}
    source = tmp_path / "m.safetensors"
    save_file(tensors, source)
    mine = {"plain": source}
    interrupted("cast", mine, tmp_path, 0.3)
    save_file({**tensors, "t5": tensors["t5"] + 1}, source)  # same header, same size
    with pytest.raises(RefusedError, match=r"m\.safetensors"):
        act("cast", mine, tmp_path, resume=True)


def test_another_version_is_refused(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    interrupted("cast", sources, tmp_path, 0.3)
    monkeypatch.setattr("weighbridge.conversion.plan.fingerprint.__version__", "0.0.9")
    with pytest.raises(RefusedError, match=r"different weighbridge \(then .*, now 0.0.9\)"):
        act("cast", sources, tmp_path, resume=True)


def test_a_value_that_cannot_be_told_is_no_key(sources: Mapping[str, Path], tmp_path: Path) -> None:
    plan = wb.plan_convert(sources["plain"], tmp_path / "o.npz")
    with pytest.raises(UsageError, match="resumed"):
        key_of(replace(plan, texts={"x": object()}))  # type: ignore[dict-item]


# ------------------------------------------------------------------------------------------------ what lies there


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _cut_to_head(path: Path) -> None:
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"\n") + 1 + 32 + 20] ^= 1  # the digest in the second record
    path.write_bytes(data)


def _tail_of_zeros(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(4096))


def _doubled(path: Path) -> None:
    head, _, records = path.read_bytes().partition(b"\n")
    path.write_bytes(head + b"\n" + records + records)


@pytest.mark.parametrize("damage", [_torn, _cut_to_head, _flipped, _tail_of_zeros, _doubled])
@pytest.mark.parametrize("name", ["quantized", "checksums of npz"])
def test_records_that_are_damaged_count_for_nothing(
    name: str, damage: Callable[[Path], None], sources: Mapping[str, Path], tmp_path: Path
) -> None:
    expected = content(act(name, sources, tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    stage = interrupted(name, sources, here, 0.4)
    damage(stage.with_name(f"{stage.name}.journal"))
    assert content(act(name, sources, here, resume=True)) == expected
    stage = interrupted(name, sources, here, 0.4, overwrite=True)
    damage(stage.with_name(f"{stage.name}.journal"))
    interrupted(name, sources, here, 0.6, overwrite=True)  # and the journal that was damaged is sound again
    assert content(act(name, sources, here, resume=True, overwrite=True)) == expected


@pytest.mark.parametrize("head", [b"", b"garbage", b"{}\n", b"[1]\n", b'{"form": "x"}\n', b"[" * 100_000, b"\xff\n"])
def test_a_strange_journal_is_refused(head: bytes, sources: Mapping[str, Path], tmp_path: Path) -> None:
    stage = interrupted("cast", sources, tmp_path, 0.3)
    stage.with_name(f"{stage.name}.journal").write_bytes(head)
    with pytest.raises(RefusedError, match="with a different version"):
        act("cast", sources, tmp_path, resume=True)
    assert stage.exists()
    target = act("cast", sources, tmp_path, resume=True, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


def test_a_partial_of_somebody_else_is_not_touched(sources: Mapping[str, Path], tmp_path: Path) -> None:
    """Downloads are called so, too."""
    stage = tmp_path / "o.safetensors.partial"
    stage.write_bytes(b"a download")
    with pytest.raises(RefusedError, match="has no journal"):
        act("cast", sources, tmp_path, resume=True)
    assert content(tmp_path) == {stage.name: b"a download"}


def test_a_journal_alone_is_no_work_done(sources: Mapping[str, Path], tmp_path: Path) -> None:
    expected = content(act("cast", sources, tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    interrupted("cast", sources, here, 0.4).unlink()
    assert content(act("cast", sources, here, resume=True)) == expected


@pytest.mark.parametrize("harm", ["gone", "shorter", "link"])
def test_a_file_of_the_partial_that_is_not_as_it_was_is_made_anew(
    harm: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    """Also where the second run is interrupted in its turn: records from before don't come back."""
    expected = content(act("sharded", sources, tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    stage = interrupted("sharded", sources, here, 0.6)
    victim = sorted(stage.iterdir())[0]
    data = victim.read_bytes()
    victim.unlink()
    if harm == "shorter":
        victim.write_bytes(data[:-1])
    elif harm == "link":
        (tmp_path / "mine").write_bytes(data)
        victim.symlink_to(tmp_path / "mine")
    interrupted("sharded", sources, here, 0.7)
    assert content(act("sharded", sources, here, resume=True)) == expected


def test_two_processes_don_t_write_the_same(sources: Mapping[str, Path], tmp_path: Path) -> None:
    stage = interrupted("cast", sources, tmp_path, 0.3)
    with stage.with_name(f"{stage.name}.journal").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for overwrite in (False, True):
            with pytest.raises(RefusedError, match="another process"):
                act("cast", sources, tmp_path, resume=True, overwrite=overwrite)
    act("cast", sources, tmp_path, resume=True)


# ------------------------------------------------------------------------------------------------ errors


def test_no_space_leaves_nothing_of_nothing_done(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        act("cast", sources, tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_in_the_middle_keeps_what_was_synced(
    sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    expected = content(act("cast", sources, tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    calls: list[int] = []

    def failing(self: OutFile) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journaling, "_WAIT_BYTES", 4096)
        patch.setattr(OutFile, "sync_data", failing)
        with pytest.raises(OSError, match="Input/output") as caught:
            act("cast", sources, here, resume=True)
    assert "--resume" in caught.value.__notes__[0]
    again = _After()
    assert content(act("cast", sources, here, resume=True, progress=again)) == expected
    assert again.seen[0] > 2 * 4096  # what two syncs vouched for, and a slab


def test_space_that_the_partial_takes_is_not_asked_for_again(tmp_path: Path, monkeypatch: Any) -> None:
    """Its blocks are allocated: a disk that is full with them is large enough."""
    size, key = 1 << 20, {"a": "b"}
    with pytest.raises(_Stop):
        _stopped(tmp_path / "t", size, key)
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage())
    with Sink(tmp_path / "t", folder=False, size=size, key=key) as sink:
        assert sink.done == {Piece(0, 0, 10): 0}
        sink.create("", size)
    with pytest.raises(OSError, match="not enough space"):
        Sink(tmp_path / "u", folder=False, size=size, key=key)


def _stopped(target: Path, size: int, key: Mapping[str, str]) -> None:
    with Sink(target, folder=False, size=size, key=key) as sink:
        sink.create("", size)
        sink.finished(Piece(0, 0, 10), 0)
        raise _Stop


class _Usage:
    free = 0


@pytest.mark.parametrize("name", ["cast", "sharded"])
def test_an_interrupt_of_the_last_sync_keeps_all(
    name: str, sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    """After the last slab, before the rename: the minutes in which people lose patience."""

    def stop(self: OutFile) -> None:
        if "journal" not in self.path.name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OutFile, "sync", stop)
        with pytest.raises(KeyboardInterrupt):
            act(name, sources, tmp_path, resume=True)
    again = _After()
    target = act(name, sources, tmp_path, resume=True, progress=again)
    assert again.seen == []
    (tmp_path / "whole").mkdir()
    assert content(target) == content(act(name, sources, tmp_path / "whole"))


def test_a_failed_sync_is_not_asked_again(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """The kernel tells of lost bytes once; the next sync of the file says that all is well."""
    calls: list[int] = []

    def once(self: OutFile) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OutFile, "sync_data", once)
    with pytest.raises(OSError, match="Input/output"):
        act("cast", sources, tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_the_old_folder_is_never_gone_on_with(sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """While folders change places the old one has the name of the staged one."""
    target = act("sharded", sources, tmp_path)
    expected = content(target)
    for path in target.iterdir():
        if path.suffix == ".safetensors":
            path.write_bytes(bytes(path.stat().st_size))  # of the same size, with other bytes
    code = f"""
        import os, shutil, signal, weighbridge as wb
        shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        wb.convert({str(sources["plain"])!r}, {str(target)!r}, to="safetensors", max_shard_tensors=2, resume=True,
                   overwrite=True)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert content(act("sharded", sources, tmp_path, resume=True, overwrite=True)) == expected


def test_an_existing_target_is_refused_before_anything(sources: Mapping[str, Path], tmp_path: Path) -> None:
    target = act("cast", sources, tmp_path)
    with pytest.raises(RefusedError, match="exists already"):
        act("cast", sources, tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == [target]


# ------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize("verb", ["quantize", "convert"])
def test_the_command_says_how_to_go_on(
    verb: str, sources: Mapping[str, Path], tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources["dense" if verb == "quantize" else "plain"]
    target = tmp_path / ("o.gguf" if verb == "quantize" else "o.safetensors")
    command = [verb, str(source), str(target), *(["Q8_0"] if verb == "quantize" else ["--dtype", "f16"]), "-j", "1"]
    calls: list[int] = []

    def stop(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("weighbridge.cli.render.Progress.__call__", stop)
        assert main([*command, "--resume"]) == 130
    told = capsys.readouterr().err
    assert "interrupted" in told
    assert f"{target}.partial" in told
    assert "--resume" in told
    assert main([*command, "--resume", "--json"]) == 0
    assert "from an interrupted run" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [target]


# ------------------------------------------------------------------------------------------------ seeded faults


_Fault = Callable[[pytest.MonkeyPatch], None]
#: what is broken -> how, and the check that must see it
FAULTS: Mapping[str, tuple[_Fault, Callable[..., None], dict[str, Any]]] = {
    "records that nothing seals": (
        lambda patch: patch.setattr(Journal, "_seal", lambda self, record: bytes(8)),
        test_records_that_are_damaged_count_for_nothing, {"name": "checksums of npz", "damage": _flipped},
    ),
    "a file that is made anew keeps its records": (
        lambda patch: patch.setattr(Journal, "forget", lambda self: None),
        test_a_file_of_the_partial_that_is_not_as_it_was_is_made_anew, {"harm": "gone"},
    ),
    "digests that aren't kept": (
        lambda patch: patch.setattr(Sink, "finished", _without_digest),
        test_wherever_it_is_cut_off_it_ends_with_the_same_bytes, {"name": "checksums of npz"},
    ),
    "a key without the tensors": (
        lambda patch: patch.setattr(
            fingerprint, "_hashers", partial(tuple, ((Node, lambda hasher, node: None), *fingerprint._hashers()[1:]))
        ),
        test_the_weights_of_an_importance_matrix_count, {},
    ),
    "no lock": (
        lambda patch: patch.setattr("weighbridge.io.sink.InPlace.lock", lambda self: True),
        test_two_processes_don_t_write_the_same, {},
    ),
    "a failed sync that is asked again": (
        lambda patch: patch.setattr(Journal, "drop", lambda self: None), test_a_failed_sync_is_not_asked_again, {},
    ),
    "work that is never skipped": (
        lambda patch: patch.setattr(Sink, "done", {}), test_wherever_it_is_cut_off_it_ends_with_the_same_bytes,
        {"name": "cast"},
    ),
    "space asked for twice": (
        lambda patch: patch.setattr("weighbridge.io.sink.target._allocated", lambda stage: 0),
        test_space_that_the_partial_takes_is_not_asked_for_again, {},
    ),
}  # fmt: skip


def _without_digest(self: Sink, piece: Piece, crc: int, real: Any = Sink.finished) -> None:
    real(self, piece, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, sources: Mapping[str, Path], tmp_path: Path) -> None:
    seed, check, given = FAULTS[fault]
    known = {"sources": sources, "tmp_path": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        seed(patch)
        known["monkeypatch"] = patch
        wanted = check.__code__.co_varnames[: check.__code__.co_argcount]
        with pytest.raises((AssertionError, pytest.fail.Exception, OSError, RefusedError)):
            check(**{name: {**known, **given}[name] for name in wanted})
