"""The expected error of rounded inputs: what rounding them as ggml does costs."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.base.dtypes import BY_NAME
from weighbridge.conversion.quantize.size_target import CANDIDATES, rounded
from weighbridge.forward.column_sums import MatrixPlace
from weighbridge.forward.rounding.input_errors import BLOCKS, InputErrors

COLUMNS, TOKENS = 768, 300
STACK = {("one", None): MatrixPlace("dense", 0, 1), ("experts", 0): MatrixPlace("experts", 0, 2),
         ("experts", 1): MatrixPlace("experts", 1, 2)}  # fmt: skip


def _inputs(seed: int, outliers: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((TOKENS, COLUMNS)).astype(np.float32)
    x[:, 5 : 5 + 100 * outliers : 100] *= 30
    return x


def _eight_bits(x: np.ndarray, block: int) -> np.ndarray:
    """As quantize_row_q8_0 and quantize_row_q8_K_ref of ggml-quants.c: a scale for a block."""
    if block == 32:
        return rounded(x, BY_NAME["Q8_0"])
    blocks = x.reshape(len(x), -1, block)
    scale = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2) / -127
    return (np.minimum(np.rint(blocks / scale), 127) * scale).reshape(x.shape)


def _matrix(seed: int) -> np.ndarray:
    random = np.random.default_rng(1000 + seed)
    return (random.standard_normal((64, COLUMNS)) * random.uniform(0.1, 2, COLUMNS)).astype(np.float32)


def test_the_blocks_are_those_of_the_candidates() -> None:
    assert {BY_NAME[name].block for name in CANDIDATES} == {1, *BLOCKS}


@pytest.mark.parametrize("outliers", [0, 3])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_error_is_that_of_rounded_inputs(block: int, outliers: int) -> None:
    errors, difference, power = InputErrors(STACK), {"dense": 0.0, "experts": 0.0}, {"dense": 0.0, "experts": 0.0}
    for seed, (key, place) in enumerate(STACK.items()):
        matrix = _matrix(seed)
        errors.weigh(place, matrix[:10])
        errors.weigh(place, matrix[10:])
        for texts in range(2):
            x = _inputs(10 * seed + texts, outliers)
            errors.observe([key[0], "not in a file"], x, key[1])
            found = _eight_bits(x, block)
            difference[place.name] += float((((found - x) @ matrix.T).astype(np.float64) ** 2).sum())
            power[place.name] += float(((x @ matrix.T).astype(np.float64) ** 2).sum())
    expected = {name: difference[name] / power[name] for name in power}
    assert errors.relative(block) == {name: pytest.approx(error, rel=0.15) for name, error in expected.items()}


def test_inputs_that_are_no_whole_blocks_are_left_out() -> None:
    errors = InputErrors(STACK)
    errors.weigh(STACK["one", None], _matrix(1)[:, :32])
    errors.observe(["one"], _inputs(1, 0)[:, :32])
    assert errors.relative(256) == {}
    assert set(errors.relative(32)) == {"dense"}
