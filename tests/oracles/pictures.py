"""Small image and video models under the names of their single files, and the rules by which ComfyUI-GGUF reads a GGUF
(loader.py of 2025-12-18), on the reference's own reader. No code of ours takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# loader.py, IMG_ARCH_LIST
ARCHITECTURES = frozenset(
    {"flux", "sd1", "sdxl", "sd3", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan", "lumina2", "qwen_image"}
)
NAME_MAX = 127  # tools/convert.py, MAX_TENSOR_NAME_LENGTH
Shapes = dict[str, tuple[int, ...]]


def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def flux(width: int = 64, head: int = 32, layers: int = 2, guidance: bool = True, channels: int = 64) -> Shapes:
    """FLUX.1 (black-forest-labs/flux, src/flux/model.py)."""
    out: Shapes = {}
    out.update(linear("img_in", width, channels))
    out.update(linear("txt_in", width, 48))
    for name in ("time_in", "vector_in", *(["guidance_in"] if guidance else [])):
        out.update(linear(f"{name}.in_layer", width, 40 if name == "vector_in" else 256))
        out.update(linear(f"{name}.out_layer", width, width))
    for layer in range(layers):
        for stream in ("img", "txt"):
            block = f"double_blocks.{layer}.{stream}"
            out.update(linear(f"{block}_mod.lin", 6 * width, width))
            out.update(linear(f"{block}_attn.qkv", 3 * width, width))
            out.update(linear(f"{block}_attn.proj", width, width))
            out.update(linear(f"{block}_mlp.0", 4 * width, width))
            out.update(linear(f"{block}_mlp.2", width, 4 * width))
            out |= {f"{block}_attn.norm.{part}_norm.scale": (head,) for part in ("query", "key")}
    for layer in range(layers + 1):
        block = f"single_blocks.{layer}"
        out.update(linear(f"{block}.linear1", 7 * width, width))
        out.update(linear(f"{block}.linear2", width, 5 * width))
        out.update(linear(f"{block}.modulation.lin", 3 * width, width))
        out |= {f"{block}.norm.{part}_norm.scale": (head,) for part in ("query", "key")}
    out.update(linear("final_layer.linear", channels, width))
    out.update(linear("final_layer.adaLN_modulation.1", 2 * width, width))
    return out


def values(shapes: Mapping[str, Sequence[int]], dtype: str = "float32", seed: int = 0) -> dict[str, Any]:
    """Random tensors of torch; no two elements of the model are likely to be equal."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tuple(shape), generator=generator).to(getattr(torch, dtype)) for name, shape in shapes.items()
    }


def save(path: Path, tensors: Mapping[str, Any]) -> Path:
    pytest.importorskip("safetensors.torch").save_file(dict(tensors), path)
    return path


class ComfyTensor:
    """A tensor as ComfyUI-GGUF hands it to the model: its type, its shape in torch's order, and its stored bytes."""

    def __init__(self, kind: str, shape: tuple[int, ...], data: Any, qtype: Any) -> None:
        self.kind, self.shape, self.data, self.qtype = kind, shape, data, qtype

    def numbers(self) -> Any:
        quants = pytest.importorskip("gguf").quants
        return quants.dequantize(self.data, self.qtype).astype(np.float32).reshape(self.shape)


def comfy_load(path: Path) -> tuple[str, dict[str, ComfyTensor]]:
    """The architecture and the tensors of a GGUF, by the rules of gguf_sd_loader; an assertion fails if it refuses."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(path)
    field = reader.fields["general.architecture"]
    assert field.types == [gguf.GGUFValueType.STRING]
    architecture = field.contents()
    assert architecture in ARCHITECTURES
    tensors = {}
    for tensor in reader.tensors:
        assert len(tensor.name) <= NAME_MAX
        assert not tensor.name.startswith("model.diffusion_model.")
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if (known := reader.fields.get(f"comfy.gguf.orig_shape.{tensor.name}")) is not None:
            assert known.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]
            shape = tuple(known.contents())
        assert int(np.prod(shape)) == tensor.n_elements
        tensors[tensor.name] = ComfyTensor(tensor.tensor_type.name, shape, tensor.data, tensor.tensor_type)
    return architecture, tensors


#: Row of diffusion.toml -> the shapes of a small model.
MODELS: dict[str, Callable[[], Shapes]] = {"flux": flux}


def _converted(function: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def convert(tensors: dict[str, Any]) -> dict[str, Any]:
        module = pytest.importorskip("diffusers.loaders.single_file_utils")
        result: dict[str, Any] = getattr(module, function)(dict(tensors))
        return {name: tensor.contiguous() for name, tensor in result.items()}

    return convert


def _flux_to_diffusers(tensors: dict[str, Any]) -> dict[str, Any]:
    """diffusers assumes a width of 3072 here, so the first layers of the single blocks are converted in that width."""
    torch = pytest.importorskip("torch")
    width = tensors["img_in.weight"].shape[0]
    wide = dict(tensors)
    for name, tensor in tensors.items():
        if ".linear1." in name:  # parts of d, d, d and 4 d rows, each padded to the rows that diffusers expects
            parts = zip(torch.split(tensor, [width] * 3 + [4 * width]), (3072, 3072, 3072, 12288), strict=True)
            wide[name] = torch.cat([_padded(torch, part, rows) for part, rows in parts])
    result = _converted("convert_flux_transformer_checkpoint_to_diffusers")(wide)
    for name, tensor in result.items():
        if name.startswith("single_transformer_blocks.") and (".attn.to_" in name or ".proj_mlp." in name):
            result[name] = tensor[: width * (4 if "proj_mlp" in name else 1)].contiguous()
    return result


def _padded(torch: Any, tensor: Any, rows: int) -> Any:
    return torch.cat([tensor, torch.zeros((rows - tensor.shape[0], *tensor.shape[1:]), dtype=tensor.dtype)])


#: Row of diffusion.toml -> diffusers' conversion of a single file's tensors.
DIFFUSERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"flux": _flux_to_diffusers}
