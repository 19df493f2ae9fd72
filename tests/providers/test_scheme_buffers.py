"""Buffers of GPTQ and AWQ against other implementations of their bits: compressed-tensors packs, mlx-lm unpacks.
`tests/peers/run_layouts.py` compares them with vLLM's packing and GPT-QModel's modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.conformance.test_providers import make_sources

import weighbridge as wb

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
Q = "layers.0.attention.q.weight"
K = "layers.0.attention.k.weight"  # [32, 64]: rows and columns can't be confused


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return make_sources(tmp_path_factory.mktemp("schemes"))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "bits"), [("q4_0", 4), ("q8_0", 8), ("gptq", 4)])
def test_words_of_gptq_are_those_that_compressed_tensors_packs(
    kind: str, bits: int, sources: Mapping[str, Any]
) -> None:
    """Rows of inputs, the first in the lowest bits; zero points one less than they are, as format 1 has them."""
    torch = pytest.importorskip("torch", reason=NOTHING)
    packing = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers", reason=NOTHING)
    with wb.provider(sources[kind]) as weights:
        made, values = weights.buffer(K, layout="gptq"), weights.get(K).T
    scales = made.part("scales").astype(np.float32)  # [groups, outputs]
    assert values.shape == (64, 32)
    assert scales.shape == (2, 32)
    codes = np.round(values / np.repeat(scales, 32, axis=0))  # about zero
    assert np.array_equal(codes * np.repeat(scales, 32, axis=0), values)
    words = packing.pack_to_int32(torch.from_numpy(codes.astype(np.int8)), bits, packed_dim=0)
    assert np.array_equal(made.part("qweight"), words.numpy())
    zeros = np.full((2, 32), -1, np.int8)  # 2 ** (bits - 1), less one
    words = packing.pack_to_int32(torch.from_numpy(zeros), bits, packed_dim=1)
    assert np.array_equal(made.part("qzeros"), words.numpy())
    assert np.array_equal(made.part("g_idx"), np.arange(64) // 32)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["q4_0", "gptq"])
def test_mlx_lm_reads_the_words_of_awq(kind: str, sources: Mapping[str, Any]) -> None:
    mx = pytest.importorskip("mlx.core", reason=NOTHING)
    utils = pytest.importorskip("mlx_lm.utils", reason=NOTHING)
    with wb.provider(sources[kind]) as weights:
        made, values = weights.buffer(K, layout="awq"), weights.get(K)
    parts = {f"m.{name}": mx.array(made.part(name)) for name in made.sections}
    assert set(parts) == {"m.qweight", "m.qzeros", "m.scales"}
    found, settings = utils._transform_awq_weights(parts, {"bits": 4, "group_size": 32})
    scales, biases = (found[f"m.{name}"].astype(mx.float32) for name in ("scales", "biases"))
    dense = mx.dequantize(found["m.weight"], scales, biases, group_size=settings["group_size"], bits=settings["bits"])
    assert np.array_equal(np.array(dense), values)
