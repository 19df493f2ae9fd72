"""Small image and video models under the names of their single files, and the rules by which ComfyUI-GGUF reads a GGUF
(loader.py of 2025-12-18), on the reference's own reader. No code of ours takes part."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import picture_vaes

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


def sd3(width: int = 32, head: int = 8) -> Shapes:
    """Stable Diffusion 3.5 medium (Stability-AI/sd3.5, mmditx.py): the first layer has a second attention, the last
    one ends the context."""
    out: Shapes = {"pos_embed": (1, 16, width), "x_embedder.proj.weight": (width, 4, 2, 2)}
    out |= {"x_embedder.proj.bias": (width,)}
    out.update(linear("context_embedder", width, 24))
    for name, inputs in (("t_embedder", 16), ("y_embedder", 20)):
        out.update(linear(f"{name}.mlp.0", width, inputs))
        out.update(linear(f"{name}.mlp.2", width, width))
    for layer in range(3):
        for stream in ("x", "context"):
            block, last = f"joint_blocks.{layer}.{stream}_block", stream == "context" and layer == 2
            for attention in ("attn", "attn2") if (stream, layer) == ("x", 0) else ("attn",):
                out.update(linear(f"{block}.{attention}.qkv", 3 * width, width))
                out |= {f"{block}.{attention}.ln_{part}.weight": (head,) for part in "qk"}
                out.update(() if last else linear(f"{block}.{attention}.proj", width, width))
            out.update(linear(f"{block}.adaLN_modulation.1", (2 if last else 6) * width, width))
            out.update(() if last else linear(f"{block}.mlp.fc1", 4 * width, width))
            out.update(() if last else linear(f"{block}.mlp.fc2", width, 4 * width))
    out.update(linear("final_layer.linear", 16, width))
    out.update(linear("final_layer.adaLN_modulation.1", 2 * width, width))
    return out


def wan(width: int = 32) -> Shapes:
    """Wan (Wan-Video/Wan2.1, wan/modules/model.py), with an image encoder, and one block of VACE."""
    out: Shapes = {"patch_embedding.weight": (width, 16, 1, 2, 2), "patch_embedding.bias": (width,)}
    out |= {"vace_patch_embedding.weight": (width, 24, 1, 2, 2), "vace_patch_embedding.bias": (width,)}
    for name, inputs in (("time", 16), ("text", 24)):
        out.update(linear(f"{name}_embedding.0", width, inputs))
        out.update(linear(f"{name}_embedding.2", width, width))
    out.update(linear("time_projection.1", 6 * width, width))
    out |= {f"img_emb.proj.{n}.{part}": (20 if n == 0 else width,) for n in (0, 4) for part in ("weight", "bias")}
    out.update(linear("img_emb.proj.1", 20, 20))
    out.update(linear("img_emb.proj.3", width, 20))
    for block in ("blocks.0", "blocks.1", "vace_blocks.0"):
        for attention in ("self_attn", "cross_attn"):
            images = attention == "cross_attn" and block.startswith("blocks")
            for part in ("q", "k", "v", "o", *(("k_img", "v_img") if images else ())):
                out.update(linear(f"{block}.{attention}.{part}", width, width))
            for part in ("norm_q", "norm_k", *(("norm_k_img",) if images else ())):
                out[f"{block}.{attention}.{part}.weight"] = (width,)
        out |= {
            f"{block}.modulation": (1, 6, width),
            f"{block}.norm3.weight": (width,),
            f"{block}.norm3.bias": (width,),
        }
        out.update(linear(f"{block}.ffn.0", 64, width))
        out.update(linear(f"{block}.ffn.2", width, 64))
    out.update(linear("vace_blocks.0.before_proj", width, width))
    out.update(linear("vace_blocks.0.after_proj", width, width))
    out["head.modulation"] = (1, 2, width)
    out.update(linear("head.head", 64, width))
    return out


def ltx(width: int = 32) -> Shapes:
    """LTX-Video (Lightricks/LTX-Video, ltx_video/models/transformers/transformer3d.py): 28 layers, by which it is
    known."""
    out: Shapes = {"scale_shift_table": (2, width)}
    for name, outputs, inputs in (
        ("patchify_proj", width, 16), ("proj_out", 16, width), ("caption_projection.linear_1", width, 24),
        ("caption_projection.linear_2", width, width), ("adaln_single.linear", 6 * width, width),
        ("adaln_single.emb.timestep_embedder.linear_1", width, 16),
        ("adaln_single.emb.timestep_embedder.linear_2", width, width),
    ):  # fmt: skip
        out.update(linear(name, outputs, inputs))
    for layer in range(28):
        block = f"transformer_blocks.{layer}"
        for attention in ("attn1", "attn2"):
            for part in ("to_q", "to_k", "to_v", "to_out.0"):
                out.update(linear(f"{block}.{attention}.{part}", width, width))
            out |= {f"{block}.{attention}.{part}_norm.weight": (width,) for part in "qk"}
        out.update(linear(f"{block}.ff.net.0.proj", 2 * width, width))
        out.update(linear(f"{block}.ff.net.2", width, 2 * width))
        out[f"{block}.scale_shift_table"] = (6, width)
    return out


def flux2(width: int = 32, head: int = 8, context: int = 0) -> Shapes:
    """FLUX.2 (black-forest-labs/flux2, src/flux2/model.py): no biases, one modulation for all blocks. `context`: the
    width of [klein]'s texts, which has no guidance."""
    out: Shapes = {"img_in.weight": (width, 16), "txt_in.weight": (width, context or 24)}
    for name in ("time_in", *(() if context else ("guidance_in",))):
        out |= {f"{name}.in_layer.weight": (width, 256), f"{name}.out_layer.weight": (width, width)}
    for name, parts in (("double_stream_modulation_img", 6), ("double_stream_modulation_txt", 6),
                        ("single_stream_modulation", 3)):  # fmt: skip
        out[f"{name}.lin.weight"] = (parts * width, width)
    for stream in ("img", "txt"):
        block = f"double_blocks.0.{stream}"
        out |= {f"{block}_attn.qkv.weight": (3 * width, width), f"{block}_attn.proj.weight": (width, width)}
        out |= {f"{block}_attn.norm.{part}_norm.scale": (head,) for part in ("query", "key")}
        out |= {f"{block}_mlp.0.weight": (6 * width, width), f"{block}_mlp.2.weight": (width, 3 * width)}
    out |= {"single_blocks.0.linear1.weight": (9 * width, width), "single_blocks.0.linear2.weight": (width, 4 * width)}
    out |= {f"single_blocks.0.norm.{part}_norm.scale": (head,) for part in ("query", "key")}
    out |= {"final_layer.linear.weight": (16, width), "final_layer.adaLN_modulation.1.weight": (2 * width, width)}
    return out


def hunyuan_video(width: int = 32, head: int = 8) -> Shapes:
    """HunyuanVideo (Tencent/HunyuanVideo, hyvideo/modules/models.py)."""
    out: Shapes = {"img_in.proj.weight": (width, 4, 1, 2, 2), "img_in.proj.bias": (width,)}
    refiner = "txt_in.individual_token_refiner.blocks.0"
    for name, outputs, inputs in (
        ("txt_in.input_embedder", width, 24), ("txt_in.t_embedder.mlp.0", width, 256),
        ("txt_in.t_embedder.mlp.2", width, width), ("txt_in.c_embedder.linear_1", width, 24),
        ("txt_in.c_embedder.linear_2", width, width), (f"{refiner}.self_attn_qkv", 3 * width, width),
        (f"{refiner}.self_attn_proj", width, width), (f"{refiner}.mlp.fc1", 4 * width, width),
        (f"{refiner}.mlp.fc2", width, 4 * width), (f"{refiner}.adaLN_modulation.1", 2 * width, width),
        ("time_in.mlp.0", width, 256), ("time_in.mlp.2", width, width), ("guidance_in.mlp.0", width, 256),
        ("guidance_in.mlp.2", width, width), ("vector_in.in_layer", width, 40), ("vector_in.out_layer", width, width),
        ("single_blocks.0.linear1", 7 * width, width), ("single_blocks.0.linear2", width, 5 * width),
        ("single_blocks.0.modulation.linear", 3 * width, width), ("final_layer.linear", 16, width),
        ("final_layer.adaLN_modulation.1", 2 * width, width),
    ):  # fmt: skip
        out.update(linear(name, outputs, inputs))
    for stream in ("img", "txt"):
        block = f"double_blocks.0.{stream}"
        for name, outputs, inputs in (("mod.linear", 6 * width, width), ("attn_qkv", 3 * width, width),
                                      ("attn_proj", width, width), ("mlp.fc1", 4 * width, width),
                                      ("mlp.fc2", width, 4 * width)):  # fmt: skip
            out.update(linear(f"{block}_{name}", outputs, inputs))
        out |= {f"{block}_attn_{part}_norm.weight": (head,) for part in "qk"}
    out |= {f"{refiner}.norm{n}.{part}": (width,) for n in (1, 2) for part in ("weight", "bias")}
    return out | {f"single_blocks.0.{part}_norm.weight": (head,) for part in "qk"}


def qwen_image(width: int = 32, head: int = 8) -> Shapes:
    """Qwen-Image (diffusers, transformer_qwenimage.py), whose published files have diffusers' names."""
    out: Shapes = {"txt_norm.weight": (16,)}
    embedder = "time_text_embed.timestep_embedder"
    for name, outputs, inputs in (("img_in", width, 16), ("txt_in", width, 16), ("proj_out", 16, width),
                                  ("norm_out.linear", 2 * width, width), (f"{embedder}.linear_1", width, 256),
                                  (f"{embedder}.linear_2", width, width)):  # fmt: skip
        out.update(linear(name, outputs, inputs))
    block = "transformer_blocks.0"
    for stream in ("img", "txt"):
        out.update(linear(f"{block}.{stream}_mod.1", 6 * width, width))
        out.update(linear(f"{block}.{stream}_mlp.net.0.proj", 4 * width, width))
        out.update(linear(f"{block}.{stream}_mlp.net.2", width, 4 * width))
    for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"):
        out.update(linear(f"{block}.attn.{name}", width, width))
    return out | {f"{block}.attn.norm_{name}.weight": (head,) for name in ("q", "k", "added_q", "added_k")}


def next_dit(modulation: int, keys: int, pads: bool, width: int = 24, head: int = 8) -> Shapes:
    """Lumina 2 and Z-Image (Alpha-VLLM/Lumina-Image-2.0, models/model.py). `modulation`: the number of its layer;
    `keys`: rows of keys, and of values; `pads`: with two learned tokens."""
    out: Shapes = {"cap_embedder.0.weight": (40,)}
    out |= {f"{name}_pad_token": (1, width) for name in ("x", "cap") if pads}
    for name, outputs, inputs in (
        ("x_embedder", width, 16), ("t_embedder.mlp.0", width, 16), ("t_embedder.mlp.2", width, width),
        ("cap_embedder.1", width, 40), ("final_layer.linear", 16, width),
        ("final_layer.adaLN_modulation.1", width, width),
    ):  # fmt: skip
        out.update(linear(name, outputs, inputs))
    for block in ("layers.0", "noise_refiner.0", "context_refiner.0", "context_refiner.1"):
        out |= {
            f"{block}.attention.qkv.weight": (width + 2 * keys, width),
            f"{block}.attention.out.weight": (width, width),
        }
        out |= {f"{block}.attention.{part}_norm.weight": (head,) for part in "qk"}
        out |= {f"{block}.feed_forward.w{n}.weight": (64, width) if n != 2 else (width, 64) for n in (1, 2, 3)}
        out |= {f"{block}.{part}_norm{n}.weight": (width,) for part in ("attention", "ffn") for n in (1, 2)}
        if "context" not in block:
            out.update(linear(f"{block}.adaLN_modulation.{modulation}", 4 * width, width))
    return out


def conv(name: str, outputs: int, inputs: int, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs, size, size)
    yield f"{name}.bias", (outputs,)


def unet(
    levels: int, attention: Sequence[int], context: int, labels: bool = False, convolved: bool = False, width: int = 16
) -> Shapes:
    """The UNet of Stable Diffusion (CompVis/stable-diffusion, ldm/modules/diffusionmodules/openaimodel.py).

    `attention`: the levels with it. `convolved`: projections are convolutions."""
    out: Shapes = {}
    for name in ("time_embed", *(["label_emb.0"] if labels else [])):
        out.update(linear(f"{name}.0", width, width))
        out.update(linear(f"{name}.2", width, width))

    def norm(name: str) -> None:
        out.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def resnet(name: str, inputs: int = 16) -> None:
        out.update({f"{name}.in_layers.0.weight": (inputs,), f"{name}.in_layers.0.bias": (inputs,)})
        out.update(conv(f"{name}.in_layers.2", width, inputs, 3))
        out.update(linear(f"{name}.emb_layers.1", width, width))
        norm(f"{name}.out_layers.0")
        out.update(conv(f"{name}.out_layers.3", width, width, 3))
        out.update(conv(f"{name}.skip_connection", width, inputs, 1) if inputs != width else ())

    def transformer(name: str) -> None:
        norm(f"{name}.norm")
        for end in ("proj_in", "proj_out"):
            out.update(conv(f"{name}.{end}", width, width, 1) if convolved else linear(f"{name}.{end}", width, width))
        block = f"{name}.transformer_blocks.0"
        for part, inputs in (("attn1", width), ("attn2", context)):
            out.update({f"{block}.{part}.to_q.weight": (width, width)})
            out.update({f"{block}.{part}.to_{x}.weight": (width, inputs) for x in "kv"})
            out.update(linear(f"{block}.{part}.to_out.0", width, width))
        for part in ("norm1", "norm2", "norm3"):
            norm(f"{block}.{part}")
        out.update(linear(f"{block}.ff.net.0.proj", 8 * width, width))
        out.update(linear(f"{block}.ff.net.2", width, 4 * width))

    out.update(conv("input_blocks.0.0", width, 4, 3))
    for level in range(levels):
        for layer in range(2):
            block = f"input_blocks.{3 * level + layer + 1}"
            resnet(f"{block}.0", 24 if (level, layer) == (1, 0) else width)
            if level in attention:
                transformer(f"{block}.1")
        out.update(conv(f"input_blocks.{3 * level + 3}.0.op", width, width, 3) if level < levels - 1 else ())
    resnet("middle_block.0")
    transformer("middle_block.1")
    resnet("middle_block.2")
    for level in range(levels):
        for layer in range(3):
            block = f"output_blocks.{3 * level + layer}"
            resnet(f"{block}.0", 2 * width)
            attends = levels - 1 - level in attention
            if attends:
                transformer(f"{block}.1")
            up = layer == 2 and level < levels - 1
            out.update(conv(f"{block}.{1 + attends}.conv", width, width, 3) if up else ())
    norm("out.0")
    out.update(conv("out.2", 4, width, 3))
    return out


def vae(width: int = 8) -> Shapes:
    """The VAE of latent diffusion (CompVis/taming-transformers, taming/modules/diffusionmodules/model.py)."""
    out: Shapes = {}

    def resnet(name: str, inputs: int) -> None:
        for number, channels in ((1, inputs), (2, width)):
            out.update({f"{name}.norm{number}.{part}": (channels,) for part in ("weight", "bias")})
            out.update(conv(f"{name}.conv{number}", width, channels, 3))
        out.update(conv(f"{name}.nin_shortcut", width, inputs, 1) if inputs != width else ())

    for half in ("encoder", "decoder"):
        out.update(conv(f"{half}.conv_in", width, 3, 3))
        out.update(conv(f"{half}.conv_out", 8, width, 3))
        for middle in ("mid.block_1", "mid.block_2"):
            resnet(f"{half}.{middle}", width)
        for name in ("norm_out", "mid.attn_1.norm"):
            out.update({f"{half}.{name}.{part}": (width,) for part in ("weight", "bias")})
        for name in ("q", "k", "v", "proj_out"):
            out.update(conv(f"{half}.mid.attn_1.{name}", width, width, 1))
    for level in range(4):
        for layer in range(3):
            inputs = 12 if (level, layer) == (1, 0) else width
            if layer < 2:
                resnet(f"encoder.down.{level}.block.{layer}", inputs)
            resnet(f"decoder.up.{level}.block.{layer}", inputs)
        out.update(conv(f"encoder.down.{level}.downsample.conv", width, width, 3) if level < 3 else ())
        out.update(conv(f"decoder.up.{level}.upsample.conv", width, width, 3) if level else ())
    out.update(conv("quant_conv", 8, 8, 1))
    out.update(conv("post_quant_conv", 4, 4, 1))
    return out


def wan_vae(width: int = 4) -> Shapes:
    """The VAE of Wan 2.1 (Wan-Video/Wan2.1, wan/modules/vae.py)."""
    out: Shapes = {}

    def convolution(name: str, *kernel: int, inputs: int = width) -> None:
        out.update({f"{name}.weight": (width, inputs, *kernel), f"{name}.bias": (width,)})

    def block(name: str) -> None:
        out.update({f"{name}.residual.{part}.gamma": (width, 1, 1, 1) for part in (0, 3)})
        for part in (2, 6):
            convolution(f"{name}.residual.{part}", 3, 3, 3)

    for half in ("encoder", "decoder"):
        for name in ("conv1", "head.2"):
            convolution(f"{half}.{name}", 3, 3, 3, inputs=3)
        out |= {f"{half}.{name}.gamma": (width, 1, 1) for name in ("head.0", "middle.1.norm")}
        for number in (0, 2):
            block(f"{half}.middle.{number}")
        for name in ("to_qkv", "proj"):
            convolution(f"{half}.middle.1.{name}", 1, 1)
    samplers = {"encoder.downsamples": (2, 5), "decoder.upsamples": (3, 7, 11)}
    for name, numbers in samplers.items():
        for number in set(range(15 if "up" in name else 8)) - set(numbers):
            block(f"{name}.{number}")
        for number in numbers:
            convolution(f"{name}.{number}.resample.1", 3, 3)
        convolution(f"{name}.{numbers[1]}.time_conv", 3, 1, 1)
    for name in ("encoder.downsamples.3", "decoder.upsamples.4"):
        convolution(f"{name}.shortcut", 1, 1, 1)
    for name in ("conv1", "conv2"):
        convolution(name, 1, 1, 1)
    return out


def open_clip(width: int = 16) -> Shapes:
    """OpenCLIP's text encoder (mlfoundations/open_clip, src/open_clip/transformer.py)."""
    out: Shapes = {"positional_embedding": (7, width), "token_embedding.weight": (20, width)}
    out |= {"text_projection": (width, 24), "ln_final.weight": (width,), "ln_final.bias": (width,)}
    for layer in range(2):
        block = f"transformer.resblocks.{layer}"
        out |= {f"{block}.{norm}.{part}": (width,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
        out |= {f"{block}.attn.in_proj_weight": (3 * width, width), f"{block}.attn.in_proj_bias": (3 * width,)}
        out.update(linear(f"{block}.attn.out_proj", width, width))
        out.update(linear(f"{block}.mlp.c_fc", 4 * width, width))
        out.update(linear(f"{block}.mlp.c_proj", width, 4 * width))
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
MODELS: dict[str, Callable[[], Shapes]] = {
    "flux": flux, "sd3": sd3, "wan": wan, "ltx": ltx, "vae": vae, "wan-vae": wan_vae, "open-clip": open_clip,
    "sd1": partial(unet, 4, (0, 1, 2), 768, convolved=True), "sd2": partial(unet, 4, (0, 1, 2), 1024),
    "sdxl": partial(unet, 3, (1, 2), 2048, labels=True), "sdxl-refiner": partial(unet, 4, (1, 2), 1280, labels=True),
    "flux2": flux2, "qwen-image": qwen_image, "hunyuan-video": hunyuan_video,
    "lumina2": partial(next_dit, 1, 8, pads=False), "z-image": partial(next_dit, 0, 24, pads=True),
    "flux2-klein": partial(flux2, context=7680), "flux2-klein-9b": partial(flux2, context=12288), **picture_vaes.SHAPES,
}  # fmt: skip


def _converted(
    function: str, *more: Any, prefix: str = "", first: tuple[Any, ...] = ()
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def convert(tensors: dict[str, Any]) -> dict[str, Any]:
        module = pytest.importorskip("diffusers.loaders.single_file_utils")
        named = {prefix + name: tensor for name, tensor in tensors.items()}
        result: dict[str, Any] = getattr(module, function)(*first, named, *more)
        return {name: tensor.contiguous() for name, tensor in result.items()}

    return convert


def _of_sizes(function: str, sizes: Mapping[str, str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function of diffusers with the sizes of the small model in place of the published one's."""

    def convert(tensors: dict[str, Any]) -> dict[str, Any]:
        module = pytest.importorskip("diffusers.loaders.single_file_utils")
        source, place = inspect.getsource(getattr(module, function)), dict(vars(module))
        for published, small in sizes.items():
            assert published in source
            source = source.replace(published, small)
        exec(source, place)
        return {name: tensor.contiguous() for name, tensor in place[function](dict(tensors)).items()}

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


_UNET: dict[str, Any] = {"layers_per_block": 2}
_LABELS: dict[str, Any] = {**_UNET, "addition_embed_type": "text_time"}
_LEVELS: dict[str, Any] = {"down_block_types": range(4), "up_block_types": range(4)}
_LDM = partial(_converted, "convert_ldm_unet_checkpoint", prefix="model.diffusion_model.")

#: Row of diffusion.toml -> diffusers' conversion of a single file's tensors.
DIFFUSERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "flux": _flux_to_diffusers,
    "sd1": _LDM(_UNET), "sd2": _LDM(_UNET), "sdxl": _LDM(_LABELS), "sdxl-refiner": _LDM(_LABELS),
    "sd3": _converted("convert_sd3_transformer_checkpoint_to_diffusers"),
    "wan": _converted("convert_wan_transformer_to_diffusers"),
    "wan-vae": _converted("convert_wan_vae_to_diffusers"),
    "ltx": _converted("convert_ltx_transformer_checkpoint_to_diffusers"),
    "qwen-image": dict,
    **dict.fromkeys(
        ("flux2", "flux2-klein", "flux2-klein-9b"), _converted("convert_flux2_transformer_checkpoint_to_diffusers")
    ),
    "z-image": _converted("convert_z_image_transformer_checkpoint_to_diffusers"),
    "lumina2": _of_sizes("convert_lumina2_to_diffusers", {"q_dim = 2304": "q_dim = 24", "v_dim = 768": "v_dim = 8"}),
    "hunyuan-video": _of_sizes(
        "convert_hunyuan_video_transformer_to_diffusers", {"hidden_size = 3072": "hidden_size = 32"}
    ),
    "vae": _converted("convert_ldm_vae_checkpoint", _LEVELS, prefix="first_stage_model."),
    "open-clip": _converted(
        "convert_open_clip_checkpoint", "conditioner.embedders.1.model.", prefix="conditioner.embedders.1.model.",
        first=(None,),
    ),
    **picture_vaes.DIFFUSERS,
}  # fmt: skip
