"""Rules of configs whose sizes and layers follow from others, at their edges; layouts by layer and by fractions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.base.dtypes import F16, F32, DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.models.arch.rules import openelm, plamo2, plamo3, rwkv6
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.check import check_number
from weighbridge.models.arch.tables.spec import layout_call
from weighbridge.tensors.layouts import layout
from weighbridge.tensors.nodes import const


def attending(count: int, step: int) -> Any:
    return plamo2.complete({"num_hidden_layers": count, "mamba_step": step})["attending_layers"]


@given(st.integers(1, 40), st.integers(2, 50))
def test_every_so_many_layers_one_attends(count: int, step: int) -> None:
    """modeling_plamo.py, `is_mamba`."""
    few = count <= step // 2
    alone = [i for i in range(count) if (i == count - 1 if few else i % step == step // 2)]
    assert attending(count, step) == alone
    back = plamo2.restore({"num_hidden_layers": count, "attending_layers": alone})
    assert attending(count, back["mamba_step"]) == alone


def test_layers_that_attend_by_no_step_are_refused() -> None:
    with pytest.raises(FormatError, match="follow no step"):
        plamo2.restore({"num_hidden_layers": 4, "attending_layers": [0, 3]})


# apple/OpenELM-270M's first and last multipliers, and one that is rounded up since down takes more than a tenth
@pytest.mark.parametrize(("scale", "width"), [(0.5, 768), (0.73, 1024), (4.0, 5120), (0.3, 512), (0.01, 256)])
def test_widths_are_rounded_to_a_multiple(scale: float, width: int) -> None:
    config = {"model_dim": 1280, "ffn_dim_divisor": 256, "ffn_multipliers": [scale]}
    assert openelm.complete(config)["ffn_widths_by_layer"] == [width]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 5000))
def test_widths_give_multipliers_that_give_them(parts: list[int], width: int) -> None:
    widths = [8 * part for part in parts]
    back = openelm.restore({"model_dim": width, "ffn_widths_by_layer": widths})
    assert back["ffn_dim_divisor"] == math.gcd(*widths)
    assert openelm.complete({**back, "model_dim": width})["ffn_widths_by_layer"] == widths


@pytest.mark.parametrize("listed", [3, "x", ["x"], [None], [math.inf], [1.0] * 100_000])
def test_other_multipliers_are_refused(listed: Any) -> None:
    with pytest.raises(FormatError, match="ffn_multipliers"):
        openelm.complete({"model_dim": 64, "ffn_dim_divisor": 8, "ffn_multipliers": listed})


def test_stretched_positions() -> None:
    rule, inverse = plamo3.complete, plamo3.restore
    assert rule({"rope_scaling_factor": 1}) == {} == rule({})
    said = {"rope_scaling_factor": 4.0, "initial_context_length": 64}
    made = rule(said)["rope_scaling"]
    assert (made["factor"], made["original_max_position_embeddings"], made["truncate"]) == (4.0, 64, False)
    assert {key: inverse({"rope_scaling": made})[key] for key in said} == said
    with pytest.raises(FormatError, match="initial_context_length"):
        rule({"rope_scaling_factor": 4.0})


@pytest.mark.parametrize(("width", "ranks"), [(2048, (32, 64)), (4096, (64, 128)), (5120, (32, 64))])
def test_ranks_follow_from_the_width(width: int, ranks: tuple[int, int]) -> None:
    assert tuple(rwkv6.complete({"hidden_size": width}).values()) == ranks


def test_the_larger_of_two_numbers() -> None:
    assert expression.evaluate("max(64, n // 16)", {"n": 512}) == 64
    assert expression.evaluate("max(64, n // 16)", {"n": 4096}) == 256
    assert expression.evaluate("max(64, n // 16)", {}) is None
    for text in ("max(64)", "max(1, 2, 3)", "max(1, 'a')"):
        with pytest.raises(UsageError):
            check_number(text)


def test_layouts_alone_take_decimals() -> None:
    assert layout_call("shift(0.2)").symbols == ("0.2",)
    with pytest.raises(UsageError, match="whole number"):
        expression.parse("a * 0.2")


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize(("layer", "by"), [(0, 1), (5, 1), (6, 2), (23, 8)])
def test_what_is_halved_by_the_layer_comes_back(layer: int, by: int, dtype: DType) -> None:
    kind = {F32: "<f4", F16: "<f2"}[dtype]
    values = np.random.default_rng(layer).standard_normal((3, 8)).astype(kind)
    halved = layout("halved", layer, 6)
    node = halved.apply(const(values, dtype))
    assert np.array_equal(node.read(0, 3).view(kind), (values / kind_of(by, kind)).ravel())
    again = halved.undo(const((values / kind_of(by, kind)).astype(kind), dtype))
    assert np.array_equal(again.read(0, 3).view(kind), values.ravel())


def kind_of(by: int, kind: str) -> Any:
    return np.dtype(kind).type(by)
