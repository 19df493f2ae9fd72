"""A fleet's job: what it does is what the single command does, once, whatever runs it and wherever it was cut off."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fleets.inline import InlineRunner
from tests.reports.makers import llama_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.cli.main import main
from weighbridge.fleets import job as jobs
from weighbridge.fleets import manifest as manifests
from weighbridge.fleets import operations, work
from weighbridge.fleets.job import Item, Job, batches
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import LocalRunner, Runner
from weighbridge.fleets.sources import items
from weighbridge.io.sink import records_at

QUANTIZE = Job("quantize", {"ftype": "Q8_0", "suffix": "-Q8_0.gguf"})
SCAN = Job("scan", {"fail_on": "unknown-code"})


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BATCH_ITEMS", 3)
    monkeypatch.setattr(manifests, "CHUNK", 5)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small files: weights, some of them equal, a broken one, a pickle that runs code."""
    folder = tmp_path_factory.mktemp("fleet") / "models"
    (folder / "sub").mkdir(parents=True)
    for i in range(9):
        values = np.full((8, 32), i % 7, np.float32)
        place = folder / ("sub" if i % 2 else ".")
        save_file({"w": values, "n": np.ones(4, np.float32)}, place / f"m{i}.safetensors")
    (folder / "broken.safetensors").write_bytes(b"\xff" * 40)
    (folder / "notes.txt").write_text("hello")
    (folder / "bad.pkl").write_bytes(pickle.dumps(os.system))
    return folder


def fleet(job: Job, source: Path | str, target: Path, **more: Any) -> Fleet:
    return Fleet(job, (str(source),), str(target), **more)


def result(target: Path) -> dict[str, bytes]:
    """All that a job leaves but for tracebacks, which name lines of code, and Parquet."""
    found = {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if not name.endswith((".parquet", "dead-letters.jsonl"))
            and "/dead/" not in name}  # fmt: skip


def rows(target: Path, job: Job) -> list[dict[str, Any]]:
    parts = sorted((target / "_fleet" / job.id / "report").glob("*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------ equal results


@pytest.fixture(scope="module")
def scanned(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "BATCH_ITEMS", 3)
        patch.setattr(manifests, "CHUNK", 5)
        target = tmp_path_factory.mktemp("scanned")
        fleet(SCAN, sources, target).run(InlineRunner())
        return result(target)


def test_it_finds_what_the_single_command_finds(sources: Path, tmp_path: Path) -> None:
    report = fleet(SCAN, sources, tmp_path).run(InlineRunner())
    single = wb.scan(sources)
    assert {f.path: f.verdict.value for f in single.files} == {r["source"]: r["verdict"] for r in rows(tmp_path, SCAN)}
    assert dict(report.verdicts) == {v: n for v, n in single.counts.items() if n}
    assert report.exit == main(["scan", "-q", str(sources)]) == 1


def test_shards_without_an_engine_give_the_same(sources: Path, tmp_path: Path, scanned: dict[str, bytes]) -> None:
    for number in (2, 3, 1):
        report = fleet(SCAN, sources, tmp_path, shard=(number, 3)).run(InlineRunner())
        assert (report.missing == 0) == (number == 1)
    assert result(tmp_path) == scanned


@pytest.mark.costly
def test_processes_give_the_same(
    sources: Path, tmp_path: Path, scanned: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(SCAN, sources, tmp_path).run(LocalRunner(2))
    assert result(tmp_path) == scanned


@pytest.mark.parametrize("op", ["hash", "verify", "inspect"])
def test_other_commands(op: str, sources: Path, tmp_path: Path) -> None:
    job = Job(op)
    report = fleet(job, sources, tmp_path).run(InlineRunner())
    found = rows(tmp_path, job)
    if op == "hash":
        single = {f.path: f.digest for f in wb.hash(sources).files}
        assert {r["source"]: r["digest"] for r in found} == single
        assert report.duplicate_bytes == 2 * os.path.getsize(sources / "m0.safetensors")
    else:
        assert {r["source"]: r["verdict"] for r in found if "verdict" in r}[str(sources / "m0.safetensors")] == "ok"
        assert report.exit in (1, 2)  # one is broken
    assert not any("traceback" in row for row in found)


def test_tensors_that_lie_in_several_models(sources: Path, tmp_path: Path) -> None:
    job = Job("hash", {"algo": "sha256", "tensors": True})
    report = fleet(job, f"{sources}/*.safetensors", tmp_path).run(InlineRunner())
    ones = next(d for d in report.duplicates if d.bytes == 16)
    assert ones.copies == 5
    assert report.failed == 1
    assert report.exit == 2


@pytest.mark.parametrize(
    "job", [Job("hash"), Job("hash", {"tensors": True}), Job("verify"), Job("inspect"), SCAN], ids=str
)
def test_every_command_takes_a_folder_as_people_keep_it(job: Job, tmp_path: Path) -> None:
    """Models between configs, tokenizers and texts: nothing fails."""
    for name in ("a", "b"):
        llama_folder(tmp_path / "in" / name)
        (tmp_path / "in" / name / "README.md").write_text("# a model")
    report = fleet(job, tmp_path / "in", tmp_path / "out").run(InlineRunner())
    assert (report.failed, report.exit) == (0, 0)
    models = job.op in ("verify", "inspect") or "tensors" in job.options
    assert report.items == (2 if models else 12)


# ------------------------------------------------------------------------------------------------ writing


def outputs(target: Path) -> dict[str, bytes]:
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()
            and "_fleet" not in p.parts}  # fmt: skip


def test_outputs_are_those_of_the_single_command(tmp_path: Path) -> None:
    from tests.oracles import quantize_cases

    (tmp_path / "in").mkdir()
    source = quantize_cases.make("dense", tmp_path / "in")
    target = tmp_path / "out"
    target.mkdir()
    report = fleet(QUANTIZE, tmp_path / "in", target).run(InlineRunner())
    assert report.failed == 0
    name = f"in/{source.stem}-Q8_0.gguf"
    wb.quantize(source, tmp_path / "single.gguf", "Q8_0")
    assert outputs(target) == {name: (tmp_path / "single.gguf").read_bytes()}
    assert report.written == (tmp_path / "single.gguf").stat().st_size


def test_an_output_that_was_there_before_is_refused(sources: Path, tmp_path: Path) -> None:
    job = Job("convert", {"to": "npz", "suffix": ".npz"})
    (tmp_path / "m0.npz").write_bytes(b"mine")
    with pytest.raises(RefusedError, match="overwrite=True"):
        fleet(job, sources / "*.safetensors", tmp_path).run(InlineRunner())
    assert outputs(tmp_path) == {"m0.npz": b"mine"}


def test_a_share_that_lists_while_another_one_works_takes_its_plan(sources: Path, tmp_path: Path) -> None:
    """What the other one has written meanwhile is an output of the job."""
    job = Job("convert", {"to": "npz", "suffix": ".npz"})
    first, second = (fleet(job, sources / "sub", tmp_path, shard=(i, 2)) for i in (1, 2))
    listed = second._items()

    class Late(Fleet):
        def _items(self) -> Iterator[Item]:
            yield next(listed)
            first.run(InlineRunner())
            yield from listed

    report = Late(job, second.sources, second.target, shard=(2, 2)).run(InlineRunner())
    assert (report.failed, report.missing, len(outputs(tmp_path))) == (0, 0, 4)


# ------------------------------------------------------------------------------------------------ cut off


class Killed(BaseException):
    pass


class Ends(InlineRunner):
    """A driver that is killed at a point of its nth batch."""

    def __init__(self, point: str, nth: int) -> None:
        self.point, self.nth = point, nth

    def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
        for number, task in enumerate(tasks):
            if number == self.nth and self.point == "before the record":
                for item in task.batch.items:
                    work.item_line(task, item)
                raise Killed
            found = function(task)
            if number == self.nth and self.point == "after the record":
                raise Killed
            yield task, found


@pytest.mark.parametrize("nth", [0, 2])
@pytest.mark.parametrize("point", ["before the record", "after the record"])
@pytest.mark.parametrize("job", [SCAN, Job("convert", {"to": "npz", "suffix": ".npz"})], ids=["scan", "convert"])
def test_a_driver_that_is_killed_is_followed_by_another(
    job: Job, point: str, nth: int, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "w", tmp_path / "c"
    here = fleet(job, f"{sources}/*.safetensors", cut)
    fleet(job, f"{sources}/*.safetensors", whole).run(InlineRunner())
    with pytest.raises(Killed):
        here.run(Ends(point, nth))
    done: list[str] = []
    real = work.run_batch

    def counted(task: Any) -> Any:
        done.append(task.batch.id)
        return real(task)

    monkeypatch.setattr("weighbridge.fleets.runners.run_batch", counted)
    report = here.run(InlineRunner())
    assert report.missing == 0
    written = {"output": None}
    assert [{**r, **written} for r in rows(cut, job)] == [{**r, **written} for r in rows(whole, job)]
    assert outputs(cut) == outputs(whole)
    total = len(list(_batches(here)))
    assert len(done) <= total - nth - (point == "after the record") + 1  # the batch with the broken file runs again


def _batches(here: Fleet) -> Iterator[Any]:
    manifest = here.manifest()
    return (batch for chunk in range(manifest.chunks) for batch in manifest.batches(chunk))


def test_a_manifest_without_its_header_is_written_again(sources: Path, tmp_path: Path, scanned: Any) -> None:
    records = records_at(tmp_path)
    for name in (name for name in scanned if "/manifest/" in name):
        records.put(name, b'{"half":')
    fleet(SCAN, sources, tmp_path).run(InlineRunner())
    assert result(tmp_path) == scanned


def test_two_that_plan_at_once_from_other_listings_mix_nothing(sources: Path, tmp_path: Path) -> None:
    """The first header counts, and its chunks are those that its writer listed."""
    records, listed = records_at(tmp_path), list(items([str(sources)], kind="file"))

    def slow() -> Iterator[Item]:
        yield from listed[:6]
        manifests.write_manifest(SCAN, records, reversed(listed))
        yield from listed[6:]

    made = manifests.write_manifest(SCAN, records, slow())
    assert [item for number in range(made.chunks) for item in made.chunk(number)] == listed[::-1]


def test_a_damaged_chunk_of_the_manifest_is_refused(sources: Path, tmp_path: Path) -> None:
    here = fleet(SCAN, sources, tmp_path)
    here.manifest()
    chunk = next((tmp_path / "_fleet" / SCAN.id / "manifest").glob("*.jsonl"))
    chunk.write_bytes(chunk.read_bytes()[:-10])
    with pytest.raises(FormatError, match="--replan"):
        here.run(InlineRunner())
    assert fleet(SCAN, sources, tmp_path, replan=True).run(InlineRunner()).missing == 0


def test_two_drivers_at_once_write_each_record_once(sources: Path, tmp_path: Path, scanned: Any) -> None:
    class Both(InlineRunner):
        def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
            for number, task in enumerate(tasks):
                if number == 1:
                    fleet(SCAN, sources, tmp_path).run(InlineRunner())
                yield task, function(task)

    fleet(SCAN, sources, tmp_path).run(Both())
    assert result(tmp_path) == scanned


# ------------------------------------------------------------------------------------------------ poison


def test_poison_goes_to_the_dead_letters_and_is_tried_again(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, calls = Job("hash"), list[str]()
    real = operations.OPERATIONS["hash"].run

    def poisoned(item: Item, *rest: Any) -> Any:
        if item.name.endswith("m3.safetensors"):
            calls.append(item.name)
            raise OSError("no route to it")
        return real(item, *rest)

    row = operations.OPERATIONS["hash"]
    with monkeypatch.context() as patch:
        table = {**operations.OPERATIONS, "hash": operations.Operation(poisoned, "file", row.rate)}
        patch.setattr(work, "OPERATIONS", table)
        report = fleet(job, sources, tmp_path).run(InlineRunner())
    assert (report.failed, report.exit, len(calls)) == (1, 2, work.TRIES)
    assert report.verdicts["hashed"] == report.items - 1
    (letter,) = (tmp_path / "_fleet" / job.id / "dead-letters.jsonl").read_text().splitlines()
    assert json.loads(letter)["error"] == "OSError: no route to it"
    assert "Traceback" in json.loads(letter)["traceback"]
    assert "no route to it" in (tmp_path / "_fleet" / job.id / "report.html").read_text()
    again = fleet(job, sources, tmp_path).run(InlineRunner())
    assert (again.failed, again.exit) == (0, 0)


def test_an_input_that_changed_is_refused(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "in" / "x.safetensors"
    path.parent.mkdir()
    save_file({"w": np.ones(4, np.float32)}, path)
    here = fleet(Job("hash"), path.parent, tmp_path / "out")
    here.manifest()
    save_file({"w": np.ones(5, np.float32)}, path)
    report = here.run(InlineRunner())
    assert report.failed == 1
    assert "has changed since it was listed" in rows(tmp_path / "out", here.job)[0]["error"]
    replanned = Fleet(here.job, here.sources, here.target, replan=True)
    assert replanned.run(InlineRunner()).failed == 0


def test_replan_does_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches without a change keep their records; one without it keeps its plan, and says so."""
    folder, done = tmp_path / "in", list[str]()
    folder.mkdir()
    for i in range(9):
        (folder / f"{i}.bin").write_bytes(bytes([i]))
    real = work.run_batch

    def counted(task: Any) -> Any:
        done.extend(item.name for item in task.batch.items)
        return real(task)

    monkeypatch.setattr("weighbridge.fleets.runners.run_batch", counted)
    job, target = Job("hash"), tmp_path / "out"
    assert fleet(job, folder, target).run(InlineRunner()).items == len(done) == 9
    done.clear()
    (folder / "4.bin").write_bytes(b"other")
    (folder / "9.bin").write_bytes(b"new")
    assert fleet(job, folder, target).run(InlineRunner()).items == 9
    assert fleet(job, folder, target).plan().planned_before
    assert done == []
    report = fleet(job, folder, target, replan=True).run(InlineRunner())
    assert (report.items, report.failed) == (10, 0)
    assert done == ["in/3.bin", "in/4.bin", "in/8.bin", "in/9.bin"]  # two batches of two chunks
    assert rows(target, job)[4]["digest"] == wb.hash(folder / "4.bin").files[0].digest


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX'")
def test_an_item_that_kills_its_process_is_found(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies with a batch; then each item runs alone, and one is at fault."""

    class Dying(Runner):
        def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
            for task in tasks:
                poison = any(item.name.endswith("m1.safetensors") for item in task.batch.items)
                yield task, None if poison else function(task)

    report = fleet(Job("hash"), sources, tmp_path).run(Dying())
    assert report.failed == 1
    errors = [row["error"] for row in rows(tmp_path, Job("hash")) if "error" in row]
    assert ["died" in error for error in errors] == [True]


def _dies(task: Any) -> int:
    if "die" in task.target:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(task.batch.items)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX'")
def test_a_process_that_dies_takes_no_other_task_with_it() -> None:
    batch = next(batches(SCAN, 0, [Item("a", "a", 1, "p")]))
    tasks = [work.BatchTask(batch, "die" if i == 2 else f"t{i}", 1) for i in range(6)]
    found = {task.target: n for task, n in LocalRunner(2).map(_dies, tasks)}
    assert found == {"t0": 1, "t1": 1, "die": None, "t3": 1, "t4": 1, "t5": 1}


# ------------------------------------------------------------------------------------------------ sources


def test_batches_follow_from_the_manifest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BATCH_BYTES", 100)
    made = list(batches(SCAN, 0, [Item(str(i), str(i), size, "p") for i, size in enumerate((1, 2, 3, 4, 98, 200, 1))]))
    assert [[item.size for item in batch.items] for batch in made] == [[1, 2, 3], [4], [98], [200], [1]]
    assert len({batch.id for batch in made}) == len(made)


def test_models_are_folders_with_a_config_or_files(tmp_path: Path) -> None:
    from tests.reports.makers import llama_folder

    llama_folder(tmp_path / "m" / "llama")
    save_file({"w": np.ones(4, np.float32)}, tmp_path / "m" / "one.safetensors")
    for i in (1, 2):
        save_file({f"w{i}": np.ones(4, np.float32)}, tmp_path / "m" / f"set-0000{i}-of-00002.safetensors")
    found = [item.name for item in items([str(tmp_path / "m")], kind="model")]
    assert found == ["m/one.safetensors", "m/set-00001-of-00002.safetensors", "m/llama"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_manifest_of_ones_own(suffix: str, sources: Path, tmp_path: Path) -> None:
    listed = [{"source": str(sources / "m0.safetensors"), "name": "first"}, {"source": str(sources / "sub")}]
    path = tmp_path / f"list.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, listed)) + "\n\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        arrow.parquet = pytest.importorskip("pyarrow.parquet")
        arrow.parquet.write_table(arrow.Table.from_pylist(listed), path)
    assert [i.name for i in items([str(path)], kind="file")] == [
        "first", *(f"sub/m{i}.safetensors" for i in (1, 3, 5, 7))
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["{", '{"path": 1}', "[]"])
def test_a_bad_manifest_names_the_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"source": "a", "name": "a"}\n' + text)
    with pytest.raises(FormatError, match=r"(line|row) 2"):
        list(items([str(tmp_path / "x.jsonl")], kind="file"))


def test_two_items_of_one_name_are_refused(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m0.safetensors").write_bytes(b"another")
    with pytest.raises(UsageError, match="have the same name"):
        list(items([str(sources), str(tmp_path / "models")], kind="file"))
    assert len(list(items([str(sources), str(sources / "*.txt"), str(sources)], kind="file"))) == 13


def test_names_stay_below_the_target(sources: Path) -> None:
    odd = f"{sources}/../models/./sub"
    names = [item.name for item in items([odd], kind="file")]
    assert all(".." not in name.split("/") and not name.startswith("/") for name in names)


# ------------------------------------------------------------------------------------------------ the command


def test_the_command(sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "out")
    assert main(["fleet", "hash", str(sources), "-o", target, "--dry-run", "--cross-region", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["estimate"]["items"] == 12
    assert plan["estimate"]["egress_cost"] > 0
    assert not Path(target).exists()
    assert main(["fleet", "hash", str(sources), "-o", target, "--dry-run", "--calibrate", "1"]) == 0
    shown = capsys.readouterr()
    assert "egress" in shown.out
    assert "as measured here" in shown.err
    assert main(["fleet", "hash", str(sources), "-o", target, "--processes", "1"]) == 0
    assert "stored more than once" in capsys.readouterr().err
    words = ["fleet", "convert", f"{sources}/*.safetensors", "-o", target, "--to", "npz"]
    assert main([*words, "--dry-run", "--calibrate", "0.01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibrated"] > 0
    assert not list(Path(target).rglob("*.npz"))
    assert main(["fleet", "hash", str(sources), "-o", target, "--processes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == {"hashed": 12}
    for words in (
        ["hash", str(sources / "nothing*"), "-o", target + "2"],
        ["hash", str(sources), "-o", "hf://org/model"],
        ["hash", str(sources), "-o", target, "--shard", "3/2"],
        ["hash", str(sources), "-o", target, "--address", "auto"],
        ["hash", str(sources), "-o", target, "--node-label", "zone=a"],
        ["hash", str(sources), "-o", target, "--runner", "ray", "--node-label", "zone"],
        ["hash", str(sources), "-o", target, "--runner", "ray", "--shard", "1/2"],
        ["hash", str(sources), "-o", target, "--calibrate", "1"],
        ["hash", str(sources), "-o", target, "--nodes", "2"],
        ["hash", str(sources), "-o", target, "--egress-price", "1"],
    ):
        assert main(["fleet", *words]) == 2, words
        capsys.readouterr()
