"""Stored tensors that are made of one logical tensor are filled together: it is read once for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kernels.data import numbers

from weighbridge.base.dtypes import BF16, BY_NAME, F32
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout, Slot
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan import contents as planning
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.run import run
from weighbridge.io.sink.journal import Journal
from weighbridge.io.source import BytesSource
from weighbridge.packings.write import packers, rounding
from weighbridge.packings.write.packers import AffineOf
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes.base import Const, Node, Stored

ROWS, COLUMNS = 96, 256
PARTS = ("weight", "scales", "biases")


class _Counted(Const):
    """A tensor that adds up how many rows were read of it."""

    def _read(self, lo: int, hi: int, out: Any) -> None:
        seen.append(hi - lo)
        super()._read(lo, hi, out)


seen: list[int] = []


def parts_of(seed: int = 1) -> dict[str, Node]:
    values = numbers("normal", ROWS * COLUMNS, seed=seed)
    made = nodes.pack(
        _Counted(nodes.const(values.reshape(ROWS, COLUMNS), F32).spec, values.tobytes()), AffineOf(4, 64, BF16)
    )
    return {part: made[part] for part in PARTS}


def plan_of(target: Path, files: list[dict[str, Node]], *, budget: int = 1 << 20, **more: Any) -> Plan:
    planned = []
    for number, members in enumerate(files):
        slots, at = [], 0
        for name, node in members.items():
            slots.append(Slot(name, node.spec, at))
            at += node.spec.nbytes
        layout = replace(Layout("raw", (), tuple(slots), at), **more)
        planned.append(PlannedFile(f"{number}", layout, tuple(members.values())))
    return Plan("test", target, "raw", True, tuple(planned), write=WriteOptions(jobs=1, max_memory=budget))


def resumable(plan: Plan) -> Plan:
    return replace(plan, write=replace(plan.write, resume=True))


def written(target: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(target.iterdir()))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_COMPUTED_SLAB", 4096)
    seen.clear()


def test_parts_in_one_file_read_their_tensor_once(tmp_path: Path) -> None:
    parts = parts_of()
    run(plan_of(tmp_path / "o", [parts]))
    assert sum(seen) == ROWS
    assert len(seen) > 2
    assert written(tmp_path / "o") == b"".join(node.read_all().tobytes() for node in parts.values())


def test_parts_of_two_tensors_are_two_units(tmp_path: Path) -> None:
    both = {**parts_of(), **{f"{k}2": v for k, v in parts_of(2).items()}}
    plan = plan_of(tmp_path / "o", [both])
    assert [[slot.name for slot, _ in unit] for unit in plan.files[0].units] == [list(both)[:3], list(both)[3:]]
    run(plan)
    assert sum(seen) == 2 * ROWS


def test_parts_in_different_files_are_filled_apart(tmp_path: Path) -> None:
    parts = parts_of()
    run(plan_of(tmp_path / "o", [{"weight": parts["weight"]}, {p: parts[p] for p in PARTS[1:]}]))
    assert sum(seen) == 2 * ROWS
    assert written(tmp_path / "o") == b"".join(node.read_all().tobytes() for node in parts.values())


def test_where_checksums_are_kept_every_tensor_goes_alone(tmp_path: Path) -> None:
    run(plan_of(tmp_path / "o", [parts_of()], fixups=lambda digests: []))
    assert sum(seen) == 3 * ROWS


def test_the_memory_of_a_unit_is_that_of_its_results_and_of_one_source(tmp_path: Path) -> None:
    parts = list(parts_of().values())
    rows = planning.slab_rows(parts, 64 << 10)
    results = rows * sum(node.spec.row_bytes for node in parts)
    assert planning.slab_cost(parts, rows) == results + parts[0].scratch(0, rows) <= 64 << 10
    assert plan_of(tmp_path / "o", [dict(zip(PARTS, parts, strict=True))], budget=64 << 10).memory <= 64 << 10


def test_experts_that_are_alike_are_costed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    slab_rows = planning.slab_rows

    def counted(units: Sequence[Node], budget: int, name: str) -> int:
        asked.append(name)
        return slab_rows(units, budget, name)

    monkeypatch.setattr(planning, "slab_rows", counted)
    costs = planning.SlabCosts(64 << 10)
    spec = Spec((ROWS, COLUMNS), F32)
    experts = [nodes.cast(Const(spec, bytes(spec.nbytes)), BF16) for _ in range(2)]
    stored = [nodes.cast(Stored(spec, BytesSource(b"", "x"), at), BF16) for at in range(100)]
    other = nodes.cast(Stored(Spec((ROWS, 2 * COLUMNS), F32), BytesSource(b"", "x"), 0), BF16)
    assert len({costs.of([node], "x") for node in stored}) == len(asked) == 1
    assert costs.of([other], "x") != costs.of(stored[:1], "x")
    assert costs.of([experts[0]], "x") == costs.of([experts[1]], "x") == costs.of(stored[:1], "x")


@pytest.mark.parametrize(
    "packer", [lambda name: AffineOf(4, 32, BF16, name), lambda name: packers.FloatOf("mxfp4", BF16, name),
               lambda name: rounding.RoundToIntQuant("linear", 8, 32, True, BF16, BF16, name)],
)  # fmt: skip
def test_what_a_packed_tensor_is_called_makes_no_unit_of_its_own(packer: Callable[[str], Any]) -> None:
    assert packer("a") == packer("b")
    assert hash(packer("a")) == hash(packer("b"))


def test_a_unit_that_was_noted_in_part_is_done_again_and_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is written between the pieces of a unit, and then the run is interrupted."""
    expected = plan_of(tmp_path / "whole", [parts_of()])
    run(expected)
    noted: list[Any] = []
    add = Journal.add

    def stop(self: Journal, piece: Any, crc: int) -> bool:
        if len(noted) == 4:
            raise KeyboardInterrupt
        noted.append(piece)
        add(self, piece, crc)
        return True

    with monkeypatch.context() as during:
        during.setattr(Journal, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            run(resumable(plan_of(tmp_path / "o", [parts_of()])))
    seen.clear()
    again: list[Any] = []

    def watch(self: Journal, piece: Any, crc: int) -> bool:
        again.append(piece)
        return add(self, piece, crc)

    monkeypatch.setattr(Journal, "add", watch)
    run(resumable(plan_of(tmp_path / "o", [parts_of()])))
    assert not set(noted) & set(again)
    assert 0 < sum(seen) < ROWS
    assert written(tmp_path / "o") == written(tmp_path / "whole")


WEIGHTED = np.ones((1, COLUMNS), np.float32)


@pytest.mark.parametrize(
    ("dtype", "importance", "cores", "options", "threads", "limit"),
    [
        pytest.param("BF16", None, 64, {}, 8, "enough for a disk", id="the disk is the limit"),
        pytest.param("Q8_0", None, 64, {}, 8, "enough for a disk", id="rounded in the time of a copy"),
        pytest.param("Q4_K", None, 64, {}, 48, "more would wait for Python's lock", id="Python's lock is the limit"),
        pytest.param("Q4_0", WEIGHTED, 64, {}, 48, "more would wait for Python's lock", id="weights need a search"),
        pytest.param("Q4_K", None, 12, {}, 12, "all cores", id="cores"),
        pytest.param("Q4_K", None, 2, {}, 2, "all cores", id="few cores"),
        pytest.param("Q4_K", None, 64, {"jobs": 5}, 5, "--jobs", id="as asked"),
        pytest.param("Q4_K", None, 64, {"max_memory": 20}, 20, "as many as fit in --max-memory", id="slabs in memory"),
        pytest.param("Q4_K", None, 64, {"max_memory": 4}, 8, "as many as fit in --max-memory", id="smaller slabs"),
    ],
)
def test_a_plan_has_as_many_threads_as_are_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, importance: Any, cores: int, options: Any,
    threads: int, limit: str,
) -> None:  # fmt: skip
    """`max_memory`: in slabs of the plan of one thread."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    source = nodes.const(numbers("normal", 1 << 20, seed=3).reshape(-1, COLUMNS), F32)
    node = nodes.cast(source, BY_NAME[dtype], importance=importance)
    alone = plan_of(tmp_path / "out", [{"t": node}], budget=1 << 28)
    slab = alone.memory
    options = {**options, **({"max_memory": options["max_memory"] * slab} if "max_memory" in options else {})}
    plan = replace(alone, write=WriteOptions(**options))
    assert plan.workers == plan.describe()["threads"] == threads
    assert plan.threads.limit == plan.describe()["threads_limit"] == limit
    assert plan.memory <= plan.write.memory
    if "max_memory" not in options:
        assert plan.memory == threads * slab
