"""Types for a size: what is chosen fits, is the best the hull has, and is the same every time."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.oracles import quantize_cases

import weighbridge
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.cli.main import main
from weighbridge.conversion.quantize.allocation import Offer, allocate, hull

pytest.importorskip("gguf")

TYPES = [BY_NAME[name] for name in ("Q2_K", "Q3_K", "Q4_K", "Q6_K")]
# Errors in steps of 2**-20: a gain per byte is then no number that rounds to zero.
offers = st.lists(
    st.tuples(st.integers(1, 100), st.integers(0, 1 << 20).map(lambda n: n / (1 << 20))), min_size=1, max_size=4
).map(lambda pairs: [Offer(TYPES[i], nbytes, error) for i, (nbytes, error) in enumerate(pairs)])  # fmt: skip
models = st.lists(offers, min_size=1, max_size=4).map(lambda found: {f"t{i}": o for i, o in enumerate(found)})


@given(offers)
def test_a_hull_falls_ever_slower(found: list[Offer]) -> None:
    kept = hull(found)
    assert kept[0].nbytes == min(o.nbytes for o in found)
    assert kept[-1].error == min(o.error for o in found)
    gains = [(a.error - b.error) / (b.nbytes - a.nbytes) for a, b in pairwise(kept)]
    assert gains == sorted(gains, reverse=True)
    assert all(g > 0 for g in gains)


@examples(200)
@given(models, st.integers(0, 400))
def test_an_allocation_fits_and_is_the_best(found: dict[str, list[Offer]], room: int) -> None:
    least = sum(min(o.nbytes for o in options) for options in found.values())
    if least > room:
        with pytest.raises(RefusedError):
            allocate(found, room)
        return
    chosen = allocate(found, room)
    assert chosen.nbytes <= room
    assert chosen == allocate(dict(found), room)
    best = min(
        sum(o.error for o in choice)
        for choice in product(*found.values())
        if sum(o.nbytes for o in choice) <= room
    )  # fmt: skip
    assert chosen.error == pytest.approx(best, abs=1e-12)


def test_a_choice_that_is_bounded_below_the_best_may_be_above_it() -> None:
    """The rest after the greedy choice fits no upgrade, and all that is kept beside it is worse."""
    found = {
        "a": [Offer(TYPES[0], 26, 1.0), Offer(TYPES[1], 34, 0.0)],
        "b": [Offer(TYPES[0], 31, 2.0), Offer(TYPES[1], 40, 0.0)],
    }
    assert allocate(found, 65).types == {"a": TYPES[1], "b": TYPES[0]}


def test_room_for_all_gives_the_best_of_each() -> None:
    found = {"a": [Offer(TYPES[0], 10, 0.5), Offer(TYPES[3], 30, 0.1)], "b": [Offer(TYPES[1], 5, 0.0)]}
    assert allocate(found, 35).types == {"a": TYPES[3], "b": TYPES[1]}
    assert allocate(found, 34).types == {"a": TYPES[0], "b": TYPES[1]}


def test_the_step_that_helps_most_comes_first() -> None:
    found = {
        "a": [Offer(TYPES[0], 10, 0.5), Offer(TYPES[3], 20, 0.4)],
        "b": [Offer(TYPES[0], 10, 0.5), Offer(TYPES[3], 20, 0.1)],
    }
    assert allocate(found, 30).types == {"a": TYPES[0], "b": TYPES[3]}


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("budget")
    quantize_cases.prepare(made)
    return made


@pytest.mark.parametrize("bits", [6.0, 7.0, 9.5, 12.0])
def test_bits_are_met(folder: Path, bits: float) -> None:
    plan = weighbridge.plan_quantize(folder / "dense.gguf", "out.gguf", target_bpw=bits)
    assert bits - 0.8 < plan.bits <= bits


@pytest.mark.costly
@pytest.mark.parametrize("imatrix", [None, "imatrix-dense.gguf"])
@pytest.mark.parametrize("size", [40_000, 60_000])
def test_a_size_is_met_by_the_whole_file(folder: Path, tmp_path: Path, size: int, imatrix: str | None) -> None:
    matrix = folder / imatrix if imatrix else None
    out = tmp_path / "out.gguf"
    weighbridge.quantize(folder / "dense.gguf", out, target_size=size, imatrix=matrix)
    assert 0.8 * size < out.stat().st_size <= size
    weighbridge.quantize(folder / "dense.gguf", tmp_path / "again.gguf", target_size=size, imatrix=matrix)
    assert (tmp_path / "again.gguf").read_bytes() == out.read_bytes()


SIZED: dict[str, dict[str, Any]] = {
    "dense": {}, "odd": {}, "shards": {"keep_split": True}, "odd aligned": {"align": 64},
    "dense aligned": {"align": 512},
}  # fmt: skip


@pytest.mark.parametrize("case", SIZED)
def test_a_size_is_met_to_the_byte(folder: Path, tmp_path: Path, case: str) -> None:
    """The size of a chosen file is enough for it, and one byte less isn't."""
    source, out = quantize_cases.make(case.split()[0], folder), tmp_path / "out"

    def plan(size: int) -> Any:
        return weighbridge.plan_quantize(source, out, target_size=size, **SIZED[case])

    def made(size: int) -> int:
        return sum(file.layout.size for file in plan(size).files)

    best = made(1 << 30)
    for size in (best - 1, int(0.9 * best), int(0.8 * best)):
        assert made(size) <= size
        assert made(made(size)) == made(size)
        assert made(made(size) - 1) < made(size)
    plan(size).run()
    files = [out] if out.is_file() else [*out.iterdir()]
    assert sum(file.stat().st_size for file in files) == made(size)


@pytest.mark.costly
def test_more_room_is_less_error(folder: Path, tmp_path: Path) -> None:
    errors = []
    for bits in (6, 7, 8, 10):
        out = tmp_path / f"{bits}.gguf"
        weighbridge.quantize(folder / "dense.gguf", out, target_bpw=bits)
        errors.append(np.mean([q.nmse for q in weighbridge.compare_quantized(folder / "dense.gguf", out).tensors]))
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == len(errors)


def test_what_an_option_says_stays(folder: Path) -> None:
    plan = weighbridge.plan_quantize(
        folder / "dense.gguf", "out.gguf", target_bpw=9, tensor_type=("attn_v=q8_0",), token_embedding_type="q5_1",
        leave_output_tensor=True,
    )  # fmt: skip
    types = {row.name: row.target for row in plan.rows}
    assert {t for n, t in types.items() if "attn_v" in n} == {"Q8_0"}
    assert types["token_embd.weight"] == "Q5_1"
    assert types["output.weight"] == "BF16"
    assert types["output_norm.weight"] == "F32"


def test_rows_that_are_no_blocks_of_a_type_get_another(folder: Path) -> None:
    plan = weighbridge.plan_quantize(folder / "odd.gguf", "out.gguf", target_bpw=14)
    for row in plan.rows:
        assert row.shape[-1] % BY_NAME[row.target].block == 0


def test_too_small_and_too_much_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", str(folder / "dense.gguf"), "out.gguf"]
    assert main([*words, "--target-bpw", "1"]) == 2
    assert "at least" in capsys.readouterr().err
    assert main([*words, "Q4_0", "--target-bpw", "5"]) == 2
    assert "no TYPE" in capsys.readouterr().err
    with pytest.raises(UsageError, match="mutually exclusive"):
        weighbridge.plan_quantize(folder / "dense.gguf", "out.gguf", target_bpw=5, target_size=10**6)
