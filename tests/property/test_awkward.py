"""The awkward five: layouts that break converters which think that a tensor is one array in one place. Each equals the
direct computation, and streams through a plan whose memory budget is far below the tensor's size. FP8 blocks have a
`Packing` of their own here, the others are unpacked as models are.

    GPTQ         packed along the input axis, transposed, its columns in groups of any order (act-order)
    FP8 blocks   one scale for each 128 x 128 block
    HQQ, BitNet  the rows of one half (quarter) in the high bits of the rows of the other
    Conv1D       the whole matrix transposed
    ZeRO         one flat buffer over all parameters, cut evenly over ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.costs import traced_memory
from tests.packings import makers
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME, F32, U8, DType
from weighbridge.base.errors import RefusedError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout, Slot
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.conversion.plan.losses.requantized import losses_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.run import run
from weighbridge.io.source import BytesSource
from weighbridge.packings.base import NoBlockForm
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node, Stored

BUDGET = 256 << 10  # bytes of slabs; every tensor here decodes to several times as much
SLACK = 192 << 10  # the interpreter's own: thread stacks' Python objects, futures, small arrays


def as_stored(array: np.ndarray[Any, Any], dtype: DType, shape: tuple[int, ...] | None = None) -> Stored:
    return Stored(Spec(shape or array.shape, dtype), BytesSource(array.tobytes()), 0)


def floats(part: Bytes, dtype: str, columns: int) -> np.ndarray[Any, Any]:
    return part.view(dtype).astype(np.float32).reshape(-1, columns)


@dataclass(frozen=True)
class _Packing(NoBlockForm):
    """The base of the packings below: what decodes, told by `row_map`."""

    row_map: Mapping[str, int]
    name: str = field(default="test", init=False)
    code_bits: int = field(default=4, init=False)


def unpacked(tensors: Mapping[str, Node], method: str) -> Node:
    return nodes.decode(unpack(tensors, {"quantization_config": {"quant_method": method}})["m.weight"])


def gptq(rng: np.random.Generator) -> tuple[Node, np.ndarray[Any, Any]]:
    made = makers.gptq(4, inner=512, outer=384, group=128, order=True, seed=int(rng.integers(1000)))
    return unpacked(made.tensors, "gptq"), made.values


@dataclass(frozen=True)
class Fp8Block(_Packing):
    """w[r, c] = fp8[r, c] * scale[r // 128, c // 128]"""

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: np.ndarray[Any, Any]) -> None:
        import ml_dtypes

        columns = spec.shape[1]
        scale = floats(parts["scale"], "<f4", -(-columns // 128))
        rows = np.arange(lo, hi) // 128 - lo // 128
        values = parts["weight"].view(ml_dtypes.float8_e4m3fn).reshape(hi - lo, columns).astype(np.float32)
        out[:] = (values * np.repeat(scale, 128, axis=1)[rows, :columns]).reshape(-1)


class OtherBlock(Fp8Block):
    """The same blocks under another packing."""


def fp8(rng: np.random.Generator) -> tuple[QuantizedTensor, np.ndarray[Any, Any]]:
    import ml_dtypes

    rows, columns = 700, 520  # neither is a multiple of the block
    weight = rng.normal(size=(rows, columns)).astype(ml_dtypes.float8_e4m3fn)
    scale = rng.uniform(0.5, 2, (6, 5)).astype(np.float32)
    members = {"weight": as_stored(weight, BY_NAME["F8_E4M3"]), "scale": as_stored(scale, F32)}
    packing = Fp8Block(MappingProxyType({"weight": 1, "scale": 128}))
    grid = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :columns]
    return QuantizedTensor(Spec((rows, columns), F32), packing, members), weight.astype(np.float32) * grid


def hqq(rng: np.random.Generator) -> tuple[Node, np.ndarray[Any, Any]]:
    """4 bits: rows 0..n/2 in the high nibbles, the others in the low ones; a scale and zero for each group of 64."""
    outer, inner, group = 512, 640, 64
    rows = outer * inner // group
    codes = rng.integers(0, 16, (rows, group), np.uint8)
    scale, zero = rng.normal(size=(2, rows, 1)).astype(np.float32)
    shape = np.array([outer, inner])
    tensors = {
        "m.W_q": as_stored((codes[: rows // 2] << 4) | codes[rows // 2 :], U8),
        "m.scale": as_stored(scale, F32),
        "m.zero": as_stored(zero, F32),
        "m.nbits": as_stored(np.array(4), BY_NAME["I64"]),
        "m.shape": as_stored(shape, BY_NAME["I64"]),
    }
    return unpacked(tensors, "hqq"), ((codes.astype(np.float32) - zero) * scale).reshape(outer, inner)


def bitnet(rng: np.random.Generator) -> tuple[Node, np.ndarray[Any, Any]]:
    made = makers.bitnet(inner=384, outer=512, seed=int(rng.integers(1000)))
    return unpacked(made.tensors, "bitnet"), made.values


def conv1d(rng: np.random.Generator) -> tuple[Node, np.ndarray[Any, Any]]:
    matrix = rng.normal(size=(600, 700)).astype(np.float32)
    return nodes.transpose(as_stored(matrix, F32)), matrix.T


def zero(rng: np.random.Generator) -> tuple[Node, np.ndarray[Any, Any]]:
    """Three ranks hold a third each of [a (301 x 7) | b (512 x 500) | padding]; b lies on all of them."""
    line = rng.normal(size=301 * 7 + 512 * 500 + 5).astype(np.float32)
    line = line[: len(line) // 3 * 3]
    flat = nodes.concat([as_stored(part, F32) for part in np.split(line, 3)])
    return nodes.flat_range(flat, 301 * 7, (512, 500)), line[301 * 7 : 301 * 7 + 512 * 500].reshape(512, 500)


FIVE = {
    "gptq": gptq,
    "fp8": lambda rng: (lambda p: (nodes.decode(p[0]), p[1]))(fp8(rng)),
    "hqq": hqq,
    "bitnet": bitnet,
    "conv1d": conv1d,
    "zero": zero,
}


@pytest.mark.parametrize("name", FIVE)
def test_it_equals_the_direct_computation(name: str) -> None:
    node, want = FIVE[name](np.random.default_rng(1))
    got = node.read_all().view(np.float32).reshape(want.shape)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("name", FIVE)
def test_any_range_of_rows_equals_the_same_rows_of_the_whole(name: str) -> None:
    node, want = FIVE[name](np.random.default_rng(2))
    rng = np.random.default_rng(3)
    for _ in range(12):
        lo, hi = sorted(rng.integers(0, node.spec.rows + 1, 2).tolist())
        assert node.read(lo, hi).tobytes() == want.reshape(node.spec.rows, -1)[lo:hi].tobytes()


def plan_of(node: Node, target: Path, budget: int) -> Plan:
    layout = Layout("raw", (), (Slot("t", node.spec, 0),), node.spec.nbytes)
    return Plan(
        "test",
        target,
        "raw",
        False,
        (PlannedFile("t", layout, (node,)),),
        write=WriteOptions(jobs=1, max_memory=budget),
    )


@pytest.mark.parametrize("name", FIVE)
def test_it_streams_within_the_stated_budget(name: str, tmp_path: Path) -> None:
    node, want = FIVE[name](np.random.default_rng(4))
    plan = plan_of(node, tmp_path / "out", BUDGET)
    assert plan.memory <= BUDGET < node.spec.nbytes / 2
    with traced_memory() as memory:
        run(plan)
    assert (tmp_path / "out").read_bytes() == np.ascontiguousarray(want).tobytes()
    # Decoding in plain numpy takes a few temporaries of the slab's size beside the buffers the plan counts.
    assert memory.peak <= 6 * BUDGET + SLACK


def test_a_transpose_tells_its_passes_and_more_memory_makes_fewer(tmp_path: Path) -> None:
    node, _ = conv1d(np.random.default_rng(5))
    small, large = plan_of(node, tmp_path / "a", 5 << 20), plan_of(node, tmp_path / "b", 32 << 20)
    assert small.passes >= large.passes == 1
    assert small.memory <= 5 << 20


def test_a_budget_below_one_row_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    node, _ = conv1d(np.random.default_rng(5))
    with pytest.raises(RefusedError, match="max_memory"):
        run(plan_of(node, tmp_path / "out", 1000))
    assert list(tmp_path.iterdir()) == []


def test_a_move_aligned_with_the_blocks_keeps_them_packed() -> None:
    packed, want = fp8(np.random.default_rng(6))
    part = nodes.slice_rows(packed, 128, (256, 520))
    assert isinstance(part, QuantizedTensor)
    assert np.array_equal(nodes.decode(part).read_all().view(np.float32).reshape(256, 520), want[128:384])


def test_a_move_across_the_blocks_becomes_a_decode_that_says_why() -> None:
    packed, want = fp8(np.random.default_rng(6))
    part = nodes.slice_rows(packed, 100, (256, 520))
    assert isinstance(part, Node)
    assert np.array_equal(part.read_all().view(np.float32).reshape(256, 520), want[100:356])
    assert [x.message for x in losses_of({"t": part})] == ["decoded to F32: rows are cut inside a block of 128"]


def test_a_join_of_different_parameters_becomes_a_decode_that_says_why() -> None:
    a, b = (fp8(np.random.default_rng(seed))[0] for seed in (7, 8))
    top = nodes.slice_rows(a, 0, (640, 520))
    joined = nodes.concat([top, nodes.slice_rows(b, 0, (128, 520))])
    assert isinstance(joined, QuantizedTensor)  # same packing, whole blocks: still packed
    assert joined.spec.shape == (768, 520)
    other = QuantizedTensor(b.spec, OtherBlock(b.packing.row_map), b.members)
    joined = nodes.concat([top, nodes.slice_rows(other, 0, (128, 520))])
    assert isinstance(joined, Node)
    assert "different parameters" in losses_of({"t": joined})[0].message


def test_gathering_whole_blocks_keeps_them_packed_and_single_rows_do_not() -> None:
    packed, want = fp8(np.random.default_rng(9))
    whole = nodes.slice_rows(packed, 0, (640, 520))
    order = np.arange(640).reshape(5, 128)[[3, 0, 4, 1, 2]].reshape(-1)
    moved = nodes.gather(whole, order)
    assert isinstance(moved, QuantizedTensor)
    assert np.array_equal(nodes.decode(moved).read_all().view(np.float32).reshape(640, 520), want[:640][order])
    assert losses_of({"t": nodes.as_node(nodes.gather(whole, order[::-1].copy()))})
