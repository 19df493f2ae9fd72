"""torchao's subclasses, quantized and flattened by torchao itself on the CPU, read to the values that it reads."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.mutation import Check, Fault, assert_seen
from tests.packings.stored import of_torch, values
from tests.unpacked import unpack

import weighbridge
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.packings.schema import registry, torchao
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node

if os.environ.get("CI") != "true" and importlib.util.find_spec("torchao") is None:
    pytest.skip("TORCHAO WAS NOT PROVED: install requirements/oracles.txt", allow_module_level=True)
if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
# Its import warns: of escapes in its strings, of what torch deprecates.
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
Tensor = Any


def weight() -> Tensor:
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(3)).bfloat16()


def quantized(config: Any) -> Tensor:
    from torchao.quantization import quantize_

    model = torch.nn.Sequential(torch.nn.Linear(128, 64, bias=False)).bfloat16()
    model[0].weight.data = weight()
    quantize_(model, config)
    return model[0].weight


def configs() -> dict[str, Callable[[], Tensor]]:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        MappingType,
        PerAxis,
        PerGroup,
        PerTensor,
    )

    asymmetric = MappingType.ASYMMETRIC
    return {
        "float8": lambda: quantized(Float8WeightOnlyConfig()),
        "int8": lambda: quantized(Int8WeightOnlyConfig()),
        "int8 tensor": lambda: quantized(Int8WeightOnlyConfig(granularity=PerTensor())),
        "int8 groups": lambda: quantized(Int8WeightOnlyConfig(granularity=PerGroup(32))),
        "int8 dynamic": lambda: quantized(Int8DynamicActivationInt8WeightConfig()),
        "int4": lambda: quantized(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))),
        "int4 zeros": lambda: quantized(
            IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(64), mapping_type=asymmetric)
        ),
        "int3": lambda: quantized(IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=PerAxis(0))),
        "mxfp8": lambda: MXTensor.to_mx(weight(), torch.float8_e4m3fn, 32),
        "mxfp4": lambda: MXTensor.to_mx(weight(), torch.float4_e2m1fn_x2, 32),
        "nvfp4": lambda: NVFP4Tensor.to_nvfp4(weight()),
        "nvfp4 scaled": lambda: NVFP4Tensor.to_nvfp4(weight(), per_tensor_scale=torch.tensor(0.0015)),
    }


CASES = (
    "float8", "int8", "int8 tensor", "int8 groups", "int8 dynamic", "int4", "int4 zeros", "int3", "mxfp8", "mxfp4",
    "nvfp4", "nvfp4 scaled",
)  # fmt: skip


def flattened(tensor: Tensor) -> tuple[dict[str, Node], dict[str, Any], dict[str, Tensor]]:
    """Stored tensors, what a checkpoint tells of them, and the tensors themselves."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, metadata = flatten_tensor_state_dict({"m.weight": tensor})
    return {name: of_torch(t) for name, t in tensors.items()}, {"__metadata__": metadata}, tensors


@pytest.mark.parametrize("case", CASES)
def test_values_are_torchaos(case: str) -> None:
    tensor = configs()[case]()
    stored, told, _ = flattened(tensor)
    found = unpack(stored, told)
    assert list(found) == ["m.weight"]
    want = tensor.dequantize().float().numpy()
    # It computes in bf16, we in f32: the same numbers, rounded once.
    np.testing.assert_allclose(values(found["m.weight"]), want, rtol=2**-7, atol=0)
    exact = torch.from_numpy(values(found["m.weight"])).bfloat16().float().numpy()
    assert (exact == want).mean() > 0.9


@pytest.mark.parametrize(("case", "block"), [("int8 groups", None), ("int4", "Q4_0"), ("mxfp4", "MXFP4"),
                                             ("nvfp4", "NVFP4")])  # fmt: skip
def test_blocks(case: str, block: str | None) -> None:
    stored, told, _ = flattened(configs()[case]())
    node: Any = unpack(stored, told)["m.weight"]
    names = [str(dtype) for dtype in node.packing.blocks]
    assert block is None or names[0] == block
    for dtype in node.packing.blocks:
        if not node.packing.inexact(node.members, dtype):
            np.testing.assert_array_equal(values(nodes.transcode(node, dtype)), values(node))


def test_a_file_of_it(tmp_path: Path) -> None:
    """Its metadata lies in the file's own, which says how many bits the codes have."""
    from safetensors.torch import save_file

    tensor = configs()["int4 zeros"]()
    _, told, tensors = flattened(tensor)
    save_file(tensors, tmp_path / "model.safetensors", told["__metadata__"])
    with weighbridge.open(tmp_path / "model.safetensors") as model:
        np.testing.assert_allclose(
            model["m.weight"].numpy(dtype="f32"), tensor.dequantize().float().numpy(), rtol=2**-7
        )


def changed(**data: Any) -> dict[str, Any]:
    stored, told, _ = flattened(configs()["int4"]())
    own = json.loads(told["__metadata__"]["m.weight"])
    own |= {k: v for k, v in data.items() if k == "_type"}
    own["_data"] |= {k: v for k, v in data.items() if k != "_type"}
    return {"tensors": stored, "config": {"__metadata__": {"m.weight": json.dumps(own)}}}


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a kernel's own order": ({"_type": "Int4TilePackedTo4dTensor"}, UnsupportedError, "GPU kernel"),
    "swizzled scales": ({"is_swizzled_scales": True}, UnsupportedError, "GPU kernel"),
    "codes too large": ({"target_dtype": {"_data": "int2"}}, FormatError, "larger than their type"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_read_is_named(case: str) -> None:
    data, error, words = BAD[case]
    made = changed(**data)
    with pytest.raises(error, match=words):
        values(unpack(made["tensors"], made["config"])["m.weight"])


def test_parts_that_do_not_fit_are_named() -> None:
    made = changed()
    with pytest.raises(FormatError, match="without scales"):
        unpack({"m._weight_qdata": made["tensors"]["m._weight_qdata"]}, {})
    with pytest.raises(FormatError, match="isn't JSON"):
        unpack(made["tensors"], {"__metadata__": {"m.weight": "{"}})
    short = made["tensors"] | {"m._weight_scale": of_torch(torch.ones(63, 4))}
    with pytest.raises(FormatError, match="belong together"):
        unpack(short, {})


def _global_elsewhere() -> Any:
    wrong = torchao.TORCHAO[1].members["global"]._replace(suffix="._weight_scale_2")
    changed = tuple(replace(s, members={**s.members, "global": wrong}) for s in torchao.TORCHAO)
    return tuple(s for s in registry.SHIPPED if s.packing != "torchao") + changed


FAULTS: dict[str, tuple[Any, str, Any, Check]] = {
    "bits of int4": (torchao, "_BITS", {**torchao._BITS, "int4": 5}, lambda: test_blocks("int4", "Q4_0")),
    "bits of int3": (torchao, "_BITS", {**torchao._BITS, "int3": 2}, lambda: test_values_are_torchaos("int3")),
    "what is read": (torchao, "_READ", torchao._READ[:-1], lambda: test_values_are_torchaos("nvfp4")),
    "where the scale of the tensor is": (
        registry, "SHIPPED", _global_elsewhere(), lambda: test_values_are_torchaos("nvfp4 scaled")),
    "where the metadata is": (torchao, "METADATA", "metadata", lambda: test_blocks("int4", "Q4_0")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_seen(Fault(*FAULTS[fault]), monkeypatch)
