"""Several processes at one file, sources that change while they are read, and links that lead elsewhere: nothing is
lost or mixed in silence."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError
from weighbridge.conversion.edit import plan as edit_plan
from weighbridge.conversion.edit.plan import plan_edit, read_metadata
from weighbridge.conversion.edit.values import Edit
from weighbridge.io.sink import Sink, exclusive, processes

_EDITS = 12
# Each process tries again until all of its edits are made.
_EDITOR = f"""
import random, sys, time
import weighbridge as wb
path, own = sys.argv[1:]
number = 0
while number < {_EDITS}:
    try:
        wb.edit(path, set={{f"k.{{own}}.{{number}}": "x" * number}}, reserve=200 if number % 4 == 0 else 0)
    except (wb.errors.RefusedError, wb.errors.FormatError):
        time.sleep(random.random() / 100)
    else:
        number += 1
"""


_HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


def _weights(path: Path, rows: int = 4) -> Path:
    tensors = {"a.weight": np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)}
    header = {"a.weight": {"dtype": "F32", "shape": [rows, 64], "data_offsets": [0, rows * 256]}}
    text = json.dumps(header).encode().ljust(512)
    path.write_bytes(len(text).to_bytes(8, "little") + text + tensors["a.weight"].tobytes())
    return path


@pytest.mark.costly
def test_edits_of_several_processes_are_all_there_or_refused(tmp_path: Path) -> None:
    path = _weights(tmp_path / "a.safetensors")
    data = path.read_bytes()[-1024:]
    editors = [subprocess.Popen([sys.executable, "-c", _EDITOR, str(path), str(n)]) for n in range(3)]
    assert [editor.wait() for editor in editors] == [0, 0, 0]
    assert set(read_metadata(path)) == {f"k.{own}.{number}" for own in range(3) for number in range(_EDITS)}
    assert path.read_bytes()[-1024:] == data
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_an_edit_planned_while_another_is_applied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan follows from the bytes that are compared when it is applied: at no moment is another edit lost."""
    path = _weights(tmp_path / "a.safetensors")

    def meanwhile(*args: Any) -> None:
        monkeypatch.undo()
        wb.edit(path, set={"b": "other"})

    monkeypatch.setattr(edit_plan, "check", meanwhile)
    plan = plan_edit(path, set=[Edit("a", "b")])
    with pytest.raises(FormatError, match="changed after"):
        plan.run()
    assert list(read_metadata(path)) == ["b"]


def test_an_edit_of_a_locked_file_is_refused(tmp_path: Path) -> None:
    path = _weights(tmp_path / "a.safetensors")
    other = subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    try:
        with pytest.raises(RefusedError, match="by another process"):
            plan_edit(path, set=[Edit("a", "b")]).run()
    finally:
        other.kill()
        other.communicate()
    plan_edit(path, set=[Edit("a", "b")]).run()


def test_where_there_is_no_flock_a_file_keeps_others_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    path = _weights(tmp_path / "a.safetensors")
    with exclusive(path), pytest.raises(RefusedError, match="another process"), exclusive(path):
        pass
    (tmp_path / ".a.safetensors.lock").write_text("2147483646")  # of a process that is gone
    with exclusive(path):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_file_that_was_replaced_before_the_lock_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _weights(tmp_path / "a.safetensors")
    taken = processes._flock

    def replaced(fd: int, name: str) -> bool:
        os.replace(_weights(tmp_path / "b"), path)
        return taken(fd, name)

    monkeypatch.setattr(processes, "_flock", replaced)
    with pytest.raises(RefusedError, match="replaced"), exclusive(path):
        pass


def test_a_change_that_leaves_size_and_time_alone_is_seen(tmp_path: Path) -> None:
    path = _weights(tmp_path / "a.safetensors")
    plan = plan_edit(path, set=[Edit("a", "b")])
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[20:21] = b"\t"
    path.write_bytes(data.replace(b'"a.weight"', b'"b.weight"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(FormatError, match="changed after"):
        plan.run()


def test_a_backup_goes_on_after_a_kill_between_its_two_steps(tmp_path: Path) -> None:
    path = _weights(tmp_path / "a.safetensors")
    old = path.read_bytes()
    os.link(path, tmp_path / "a.safetensors.bak")
    plan_edit(path, set=[Edit("a", "b")], backup=True).run()
    assert (tmp_path / "a.safetensors.bak").read_bytes() == old
    assert "a" in read_metadata(path)
    with pytest.raises(RefusedError, match="exists already"):
        plan_edit(path, set=[Edit("a", "c")], backup=True).run()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_rewritten_file_keeps_its_owner(tmp_path: Path) -> None:
    path = _weights(tmp_path / "a.safetensors")
    os.chown(path, 1234, 4321)
    plan_edit(path, set=[Edit("a", "b")], rewrite=True).run()
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


# ---- sources and links


@pytest.mark.parametrize("touched", [True, False])
def test_a_source_that_changes_while_it_is_read_leaves_no_output(tmp_path: Path, touched: bool) -> None:
    path = _weights(tmp_path / "a.safetensors", rows=64)
    plan = wb.plan_convert(path, tmp_path / "b.safetensors")

    def change(*_: Any) -> None:
        before = path.stat()
        data = bytearray(path.read_bytes())
        data[600:1100] = bytes(500)
        with open(path, "r+b") as file:
            file.write(data)
        if not touched:  # as a file mapped into memory may be written
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        time.sleep(0.01)

    with pytest.raises(FormatError, match="changed while it was read"):
        plan.run(progress=change)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def _folder(path: Path) -> Path:
    path.mkdir()
    _weights(path / "model.safetensors")
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_a_link_that_leads_out_of_the_folder_is_not_copied(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    (folder / "merges.txt").symlink_to("/etc/hostname")
    with pytest.raises(RefusedError, match="outside the model's folder"):
        wb.convert(folder, tmp_path / "out", to="hf")
    (folder / "merges.txt").unlink()
    (folder / "vocab.txt").write_text("a\n")
    (folder / "merges.txt").symlink_to("vocab.txt")
    wb.convert(folder, tmp_path / "out", to="hf")
    assert (tmp_path / "out" / "merges.txt").read_text() == "a\n"


def test_a_link_to_nothing_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "to").symlink_to("nothing")
    with pytest.raises(RefusedError, match="doesn't exist"):
        Sink(tmp_path / "to", folder=False)
    assert not (tmp_path / "nothing").exists()


def test_a_target_that_is_a_link_is_named_with_what_it_replaces(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    (tmp_path / "real.safetensors").write_bytes(b"mine")
    (link := tmp_path / "link.safetensors").symlink_to("real.safetensors")
    with pytest.raises(RefusedError, match=r"is a link to .*real\.safetensors, which exists already"):
        wb.convert(folder, link)
    with wb.plan_convert(folder, link, overwrite=True) as plan:
        assert [note for note in plan.notes if "is a link" in note] == [
            f"{link} is a link: {tmp_path / 'real.safetensors'} is replaced"
        ]
        plan.run()
    assert link.is_symlink()
    assert (tmp_path / "real.safetensors").read_bytes() != b"mine"
