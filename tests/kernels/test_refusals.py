"""What can't be quantized is refused where llama-quantize refuses it, with tensor, row and reason."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
from tests.kernels import ggml
from tests.kernels.data import SETS, Floats, numbers

from weighbridge.base.dtypes import BF16, BY_NAME, F32, DType
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors.nodes import Const, cast
from weighbridge.tensors.nodes.compute import CastReport, Encode
from weighbridge.tensors.reference import registry as codecs

# On IQ types llama.cpp may abort the process: they have tests of their own.
NAMES = [name for name, block in codecs.BLOCKS.items() if block.encode and not name.startswith("IQ")]
COLUMNS = 512


def tensor(dtype: DType, x: Floats, importance: Floats | None = None) -> Encode:
    spec = Spec((x.size // COLUMNS, COLUMNS), F32)
    return Encode(spec.with_dtype(dtype), Const(spec, x.tobytes()), CastReport("blk.0.ffn_up.weight"), importance)


def refused(dtype: DType, x: Floats, importance: Floats | None = None) -> str | None:
    try:
        tensor(dtype, x, importance).read_all()
    except RefusedError as error:
        return error.message
    return None


@pytest.mark.oracle
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", NAMES)
def test_refused_is_what_llama_cpp_refuses(name: str, kind: str) -> None:
    dtype, x = BY_NAME[name], numbers(kind, COLUMNS * 4)
    weights = np.random.default_rng(1).gamma(0.3, size=COLUMNS).astype(np.float32)
    for row in x.reshape(-1, COLUMNS):
        for importance in (None, weights):
            taken = ggml.accepts(F32, row) and ggml.accepts(dtype, ggml.quantize(dtype, row, importance))
            message = refused(dtype, row, None if importance is None else importance[None])
            assert (message is None) == taken, message


# Value in an otherwise harmless tensor of three rows; llama.cpp's verdict by type: where it is refused.
# Scales of MXFP4 and NVFP4 aren't f16. In Q3_K and Q6_K the squares of the largest are Inf, no scale is found, and both
# programs write zeros.
EVERYWHERE = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 Q1_0 Q2_0 MXFP4 NVFP4"
VERDICTS = MappingProxyType(
    {
        "NaN": (np.nan, EVERYWHERE),
        "Inf": (np.inf, EVERYWHERE),
        "-Inf": (-np.inf, EVERYWHERE),
        "largest": (3.4e38, "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q4_K Q5_K TQ1_0 TQ2_0 Q1_0 Q2_0"),
        "1e30": (1e30, "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q4_K Q5_K TQ1_0 TQ2_0 Q1_0 Q2_0"),
        "1e6": (1e6, "Q4_0 Q4_1 TQ1_0 TQ2_0 Q2_0"),
        "65504": (65504.0, ""),
        "denormal": (1e-40, ""),
        "-0": (-0.0, ""),
    }
)


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", VERDICTS)
def test_hostile_values(case: str, name: str, path: str) -> None:
    value, verdict = VERDICTS[case]
    x = numbers("normal", COLUMNS * 3)
    x[COLUMNS + 77] = value
    message = refused(BY_NAME[name], x)
    assert (message is not None) == (name in verdict.split()), message
    assert message is None or message.startswith("blk.0.ffn_up.weight: row 1 has values ")
    if np.isfinite(value):
        assert (message is None) == (
            ggml.accepts(BY_NAME[name], ggml.quantize(BY_NAME[name], x[COLUMNS : 2 * COLUMNS]))
        )


def test_the_row_is_counted_in_the_tensor_not_in_the_slab() -> None:
    x = numbers("normal", COLUMNS * 9)
    x[COLUMNS * 7] = np.nan
    node = tensor(BY_NAME["Q8_0"], x)
    node.read(0, 7)
    with pytest.raises(RefusedError, match="row 7 "):
        node.read(6, 9)


@pytest.mark.oracle
def test_mxfp4_of_the_smallest_normals_is_refused() -> None:
    """Their scale would be 255, which is no number (ggml's rule wraps round below 2^-125)."""
    x = np.full(COLUMNS, 2.0**-126, np.float32)
    assert not ggml.accepts(BY_NAME["MXFP4"], ggml.quantize(BY_NAME["MXFP4"], x))
    assert refused(BY_NAME["MXFP4"], x)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_importance_matrix_must_be_finite(value: float) -> None:
    weights = np.ones((1, COLUMNS), np.float32)
    weights[0, 3] = value
    with pytest.raises(UsageError, match=r"ffn_up.weight has weights that aren't finite"):
        tensor(BY_NAME["Q4_K"], numbers("normal", COLUMNS), weights)


def test_values_of_a_plain_type_may_be_anything() -> None:
    """Only quantizing needs numbers: a NaN is carried over by casts."""
    spec = Spec((1, 4), F32)
    data = np.array([np.nan, np.inf, -np.inf, 1e38], np.float32)
    assert cast(Const(spec, data.tobytes()), BF16).read_all().size == 8
