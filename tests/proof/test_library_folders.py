"""Model folders packed by the libraries of their schemes, as a GGUF in llama.cpp: the logits that transformers has of
the values that each library unpacks."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import llamacpp, models, ours, vocabularies
from tests.oracles.models import probe
from tests.packings import rounded
from tests.proof.test_schemes import WIDE

import weighbridge

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
Tensor = Any
# What a library makes of a weight: its tensors by their names behind the module's, and the values that it unpacks.
QuantizedTensor = tuple[dict[str, Tensor], Tensor]


def bitsandbytes(kind: str, nested: bool) -> Callable[[Tensor], QuantizedTensor]:
    def pack(weight: Tensor) -> QuantizedTensor:
        from bitsandbytes import functional as bnb

        codes, state = bnb.quantize_4bit(weight, quant_type=kind, compress_statistics=nested, blocksize=64)
        parts = {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        return {"weight": codes} | parts, bnb.dequantize_4bit(codes, state)

    return pack


def int8(weight: Tensor) -> QuantizedTensor:
    import torch
    from bitsandbytes import functional as bnb

    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    parts = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, bnb.int8_vectorwise_dequant(codes, scales)


def hqq(bits: int, axis: int) -> Callable[[Tensor], QuantizedTensor]:
    def pack(weight: Tensor) -> QuantizedTensor:
        import torch
        from hqq.core.quantize import Quantizer

        packed, meta = Quantizer.quantize(
            weight, nbits=bits, group_size=64, axis=axis, device="cpu", compute_dtype=torch.float32
        )
        parts = {"W_q": packed, "scale": meta["scale"], "zero": meta["zero"], "axis": torch.tensor(axis)}
        parts |= {"nbits": torch.tensor(meta["nbits"]), "shape": torch.tensor(list(meta["shape"]))}
        return parts, Quantizer.dequantize(packed, meta)

    return pack


def compressed(form: str, arguments: dict[str, Any]) -> Callable[[Tensor], QuantizedTensor]:
    return lambda weight: rounded.compressed(form, arguments, weight)


def mxfp4(weight: Tensor) -> QuantizedTensor:
    import torch

    arguments = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    return rounded.compressed("mxfp4-pack-quantized", arguments, weight)


def deepseek(weight: Tensor) -> QuantizedTensor:
    """Compressed-tensors' blocks under DeepSeek's name of the scales, which are multiplied as well."""
    parts, values = rounded.compressed("float-quantized", BLOCKS, weight)
    return {"weight": parts["weight"], "weight_scale_inv": parts["weight_scale"].float()}, values


def torchao(bits: int) -> Callable[[Tensor], QuantizedTensor]:
    def pack(weight: Tensor) -> QuantizedTensor:
        import torch
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

        model = torch.nn.Sequential(torch.nn.Linear(*reversed(weight.shape), bias=False))
        model[0].weight.data = weight
        quantize_(model, IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=PerGroup(32)))
        tensors, metadata = flatten_tensor_state_dict({"m.weight": model[0].weight})
        parts: dict[str, Any] = {name.removeprefix("m."): tensor for name, tensor in tensors.items()}
        return parts | {"told": metadata["m.weight"]}, model[0].weight.dequantize()

    return pack


GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
ROWS = {"num_bits": 8, "type": "float", "strategy": "channel"}
BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
# The library -> how it packs, its config, and the types that the linear layers have in the GGUF.
LIBRARIES: dict[str, tuple[Callable[[Tensor], QuantizedTensor], dict[str, Any], set[str]]] = {
    "bitsandbytes nf4": (bitsandbytes("nf4", False), {"quant_method": "bitsandbytes"}, {"F16"}),
    "bitsandbytes fp4": (bitsandbytes("fp4", False), {"quant_method": "bitsandbytes"}, {"F16"}),
    "bitsandbytes nested": (bitsandbytes("nf4", True), {"quant_method": "bitsandbytes"}, {"F16"}),
    "bitsandbytes int8": (int8, {"quant_method": "bitsandbytes"}, {"F16"}),
    "hqq axis 0": (hqq(4, 0), {"quant_method": "hqq"}, set()),
    "hqq axis 1": (hqq(2, 1), {"quant_method": "hqq"}, set()),
    "compressed-tensors": (compressed("pack-quantized", GROUP), {
        "quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": GROUP}}}, {"F16"}),
    "compressed-tensors int8": (
        compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
        {"quant_method": "compressed-tensors"}, {"F16"}),
    "compressed-tensors FP8": (compressed("float-quantized", ROWS), {"quant_method": "compressed-tensors"}, {"F16"}),
    "compressed-tensors MXFP4": (mxfp4, {"quant_method": "compressed-tensors"}, {"MXFP4"}),
    "FP8 in blocks": (deepseek, {"quant_method": "fp8", "weight_block_size": [128, 128]}, {"F16"}),
    "torchao": (torchao(4), {"quant_method": "torchao"}, {"F16"}),
}  # fmt: skip


def folders(source: Path, target: Path, library: str) -> tuple[Path, Path]:
    """The folder that the library packed, and one with the values that it unpacks."""
    from safetensors.torch import load_file, save_file

    pack, told, _ = LIBRARIES[library]
    packed, plain, metadata = {}, {}, {"format": "pt"}
    for name, tensor in load_file(source / "model.safetensors").items():
        plain[name] = packed[name] = tensor
        if name.endswith("_proj.weight"):
            parts, values = pack(tensor)
            del packed[name]
            module = name.removesuffix(".weight")
            if "told" in parts:
                metadata[name] = str(parts.pop("told"))
            packed |= {f"{module}.{part}": t.contiguous() for part, t in parts.items()}
            plain[name] = values.float().contiguous()
    for folder, tensors in (("packed", packed), ("plain", plain)):
        shutil.copytree(source, target / folder)
        save_file(tensors, target / folder / "model.safetensors", metadata)
    path = target / "packed" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": told}))
    return target / "packed", target / "plain"


@pytest.fixture(scope="module")
def source(workshop: Path) -> Path:
    return models.build(WIDE, workshop / "library-source")


@pytest.mark.parametrize("library", LIBRARIES)
def test_llama_cpp_has_the_logits_of_the_librarys_values(library: str, source: Path, tmp_path: Path) -> None:
    if library == "torchao" and os.environ.get("CI") != "true" and importlib.util.find_spec("torchao") is None:
        pytest.skip("TORCHAO WAS NOT PROVED: install requirements/oracles.txt")
    packed, plain = folders(source, tmp_path, library)
    ids = probe(vocabularies.SIZES[WIDE.tokenizer])
    want = models.logits(plain, ids)
    with llamacpp.Model(ours.to_gguf(packed, tmp_path / "f32.gguf", "f32")) as model:
        exact = model.logits(ids)
    assert np.mean((exact - want) ** 2) / np.var(want) < 1e-6
    result = weighbridge.convert(packed, tmp_path / "kept.gguf")
    assert len({move.tensor for move in result.moves} | {loss.tensor for loss in result.losses}) == 7
    with llamacpp.Model(tmp_path / "kept.gguf") as model:
        kept = model.logits(ids)
    assert np.mean((kept - want) ** 2) / np.var(want) < 0.01
    assert {move.target for move in result.moves} == LIBRARIES[library][2]
    if "hqq" in library:
        assert all("in planes" in loss.message for loss in result.losses)
