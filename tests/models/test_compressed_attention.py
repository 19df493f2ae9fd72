"""DeepSeek V4's settings in the words of its publisher and of transformers 5, and its tables of experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracles.families import CASES

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError
from weighbridge.models.arch.registry import families
from weighbridge.tensors.nodes import cast, const

PUBLISHED: dict[str, Any] = CASES["deepseek4"].options
SAID = ("num_hash_layers", "qk_rope_head_dim", "compress_rope_theta")


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    return families()["deepseek4"].effective({"architectures": ["DeepseekV4ForCausalLM"], **config})


def _transformers(config: dict[str, Any]) -> dict[str, Any]:
    """The config as transformers 5 writes it again."""
    from transformers import DeepseekV4Config

    return dict(DeepseekV4Config(**config).to_dict())


@pytest.mark.parametrize(
    "without", [(), ("compress_ratios",), ("num_hash_layers",), ("qk_rope_head_dim",), ("rope_scaling",)], ids=str
)
@pytest.mark.oracle
def test_the_words_of_transformers_mean_the_same(without: tuple[str, ...]) -> None:
    config = {key: value for key, value in PUBLISHED.items() if key not in without}
    theirs = _transformers(config)
    silent = {key: value for key, value in theirs.items() if key != "qk_rope_head_dim"}
    ours = _facts(config)
    for written in (theirs, silent):
        found = _facts(written)
        assert found["compress_ratios"] == ours["compress_ratios"][:4]
        assert {key: found[key] for key in SAID} == {key: ours[key] for key in SAID}
        same = {"rope_type", "rope_theta", "factor", "beta_fast", "beta_slow"} & {*ours["rope"]}
        assert {key: found["rope"][key] for key in same} == {key: ours["rope"][key] for key in same}


def test_rates_of_its_own_count() -> None:
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"]
    config = {key: value for key, value in PUBLISHED.items() if key != "compress_ratios"} | {"layer_types": kinds}
    assert _facts(config)["compress_ratios"] == [0, 4, 128, 0]
    rates = {"compress_rates": {"heavily_compressed_attention": 64}}
    assert _facts(config | rates)["compress_ratios"] == [0, 4, 64, 0]
    with pytest.raises(FormatError, match="layer_types: is not a list of known kinds"):
        _facts(config | {"layer_types": [*kinds[:3], "full_attention"]})


def test_a_table_s_numbers_fit_or_are_refused() -> None:
    numbers = np.array([[1, -2], [2**31 - 1, -(2**31)]], np.int64)
    narrow = cast(const(numbers, BY_NAME["I64"]), BY_NAME["I32"])
    assert np.array_equal(narrow.read_all().view("<i4").reshape(2, 2), numbers)
    assert np.array_equal(cast(narrow, BY_NAME["I64"]).read_all().view("<i8").reshape(2, 2), numbers)
    for wrong in (2**31, -(2**31) - 1, 2**40):
        with pytest.raises(FormatError, match="a number is too large for I32"):
            cast(const(np.array([[0, wrong]], np.int64), BY_NAME["I64"]), BY_NAME["I32"]).read_all()
