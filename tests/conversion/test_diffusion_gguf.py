"""GGUFs of image and video models: judged by the rules of ComfyUI-GGUF's loader on gguf-py's reader, by
ggml_quantize_chunk of llama.cpp, and by the types that the tool's own rules choose."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kernels import ggml
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME, F16, F32, DType
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.spec import Spec
from weighbridge.conversion.quantize import diffusion_types
from weighbridge.conversion.quantize.ftypes import TypeOptions

torch = pytest.importorskip("torch")


def source(tmp_path: Path, dtype: str = "bfloat16", prefix: str = "") -> tuple[Path, dict[str, Any]]:
    tensors = pictures.values(pictures.flux(width=256, head=128), dtype)
    return pictures.save(tmp_path / "flux.safetensors", {prefix + name: t for name, t in tensors.items()}), tensors


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize(("dtype", "kept"), [("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F16")])
def test_an_unquantized_file_is_that_of_the_converter(tmp_path: Path, dtype: str, kept: str, prefix: str) -> None:
    path, tensors = source(tmp_path, dtype, prefix)
    wb.convert(path, tmp_path / "flux.gguf")
    architecture, loaded = pictures.comfy_load(tmp_path / "flux.gguf")
    assert architecture == "flux"
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        one = tensor.ndim == 1 and dtype != "float16"  # convert.py: 1-D tensors of F32 and BF16 sources are F32
        assert loaded[name].kind == ("F32" if one else kept), name
        assert loaded[name].shape == tuple(tensor.shape), name
        exact = tensor.float().numpy() if one or dtype == "bfloat16" else tensor.half().float().numpy()
        assert np.array_equal(loaded[name].numbers(), exact), name


KEPT = ("txt_in.", "img_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer.")


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q5_1", "q6_k", "q3_k_m", "q4_k_s", "q4_k"])
def test_quantized_bytes_are_those_of_ggml(tmp_path: Path, name: str, dtype: str) -> None:
    path, tensors = source(tmp_path, dtype)
    wb.convert(path, tmp_path / "flux.gguf", dtype=name) if name == "q8_0" else wb.quantize(
        path, tmp_path / "flux.gguf", name
    )
    expected = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q5_1": "Q5_1", "q6_k": "Q6_K", "q3_k_m": "Q3_K", "q4_k_s": "Q4_K",
                "q4_k": "Q4_K"}[name]  # fmt: skip
    fused = {"q3_k_m": "Q4_K", "q4_k": "Q5_K"}.get(name, expected)
    _, loaded = pictures.comfy_load(tmp_path / "flux.gguf")
    quantized = 0
    for key, tensor in tensors.items():
        if tensor.ndim == 1 or key.startswith(KEPT):
            assert loaded[key].kind in ("F32", "F16", "BF16"), key
            continue
        quantized += 1
        kind = fused if "attn.qkv" in key else expected
        assert loaded[key].kind == kind, key
        judged = ggml.quantize(BY_NAME[kind], tensor.float().numpy())
        assert loaded[key].data.tobytes() == judged.tobytes(), key
    assert quantized == 29
    assert wb.inspect(tmp_path / "flux.gguf").model.kind == "FLUX.1 [dev]"


@pytest.mark.costly
def test_a_gguf_is_quantized_like_its_source(tmp_path: Path) -> None:
    path, _ = source(tmp_path)
    wb.convert(path, tmp_path / "base.gguf")
    wb.quantize(tmp_path / "base.gguf", tmp_path / "two.gguf", "Q4_K_S")
    wb.quantize(path, tmp_path / "one.gguf", "Q4_K_S")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    with pytest.raises(RefusedError, match="already quantized"):
        wb.quantize(tmp_path / "one.gguf", tmp_path / "again.gguf", "Q5_K_S")


@pytest.mark.parametrize("dtype", ["q8_0", "bf16"])
def test_there_and_back(tmp_path: Path, dtype: str) -> None:
    path, tensors = source(tmp_path)
    wb.convert(path, tmp_path / "flux.gguf", dtype=dtype)
    wb.convert(tmp_path / "flux.gguf", tmp_path / "back.safetensors", dtype="bf16")
    back = pytest.importorskip("safetensors.torch").load_file(tmp_path / "back.safetensors")
    _, loaded = pictures.comfy_load(tmp_path / "flux.gguf")
    assert set(back) == set(tensors)
    for name in tensors:
        assert torch.equal(back[name], torch.from_numpy(loaded[name].numbers()).bfloat16()), name
        assert dtype == "q8_0" or torch.equal(back[name], tensors[name])


def test_other_parts_of_a_checkpoint_are_listed(tmp_path: Path) -> None:
    tensors = pictures.values(pictures.flux())
    vae = pictures.values({"vae.encoder.conv_in.weight": (4, 3, 3, 3), "vae.encoder.conv_in.bias": (4,)})
    whole = {f"model.diffusion_model.{name}": t for name, t in tensors.items()} | vae
    path = pictures.save(tmp_path / "all.safetensors", whole)
    plan = wb.plan_convert(path, tmp_path / "flux.gguf")
    assert ["vae" in loss.message and "2 tensors" in loss.message for loss in plan.losses] == [True]
    plan.run()
    assert set(pictures.comfy_load(tmp_path / "flux.gguf")[1]) == set(tensors)


def test_a_type_without_rules_is_refused(tmp_path: Path) -> None:
    path, _ = source(tmp_path)
    with pytest.raises(UsageError, match="IQ4_XS"):
        wb.quantize(path, tmp_path / "flux.gguf", "IQ4_XS")
    with pytest.raises(UsageError, match="no tokenizer"):
        wb.convert(path, tmp_path / "flux.gguf", pre="llama-bpe")


def test_rows_that_are_not_whole_blocks_are_f16(tmp_path: Path) -> None:
    tensors = pictures.values(pictures.flux(width=96), "bfloat16")
    path = pictures.save(tmp_path / "flux.safetensors", tensors)
    plan = wb.plan_quantize(path, tmp_path / "flux.gguf", "Q4_K_S")
    plan.run()
    _, loaded = pictures.comfy_load(tmp_path / "flux.gguf")
    assert loaded["double_blocks.0.img_attn.proj.weight"].kind == "F16"
    assert loaded["img_in.weight"].kind == "BF16"
    assert {"double_blocks.0.img_attn.proj.weight"} <= {loss.tensor for loss in plan.losses}


# ---- the rules, row by row ----

# Architecture -> name of a tensor -> whether ComfyUI-GGUF's llama-quantize quantizes it (tools/lcpp.patch).
QUANTIZED = {
    "flux": {
        "double_blocks.0.img_attn.qkv.weight": True, "single_blocks.3.linear1.weight": True,
        "double_blocks.0.img_mod.lin.weight": True, "txt_in.weight": False, "img_in.weight": False,
        "time_in.in_layer.weight": False, "vector_in.out_layer.weight": False, "guidance_in.in_layer.weight": False,
        "final_layer.linear.weight": False,
    },
    "hyvid": {
        "double_blocks.0.img_attn_qkv.weight": True, "txt_in.input_embedder.weight": False,
        "img_in.proj.weight": False, "time_in.mlp.0.weight": False, "vector_in.in_layer.weight": False,
        "guidance_in.mlp.0.weight": False, "final_layer.linear.weight": False,
    },
    "sd1": {
        "input_blocks.1.1.proj_in.weight": True, "out.2.weight": False, "input_blocks.0.0.weight": False,
        "time_embed.0.weight": False, "label_emb.0.0.weight": False, "class_embedding.linear_1.weight": False,
        "time_embedding.linear_1.weight": False, "add_embedding.linear_1.weight": False, "conv_in.weight": False,
        "conv_out.weight": False, "output_blocks.0.0.out.2.weight": True,
    },
    "sd3": {
        "joint_blocks.0.x_block.attn.qkv.weight": True, "final_layer.linear.weight": False, "pos_embed": False,
        "time_text_embed.x.weight": False, "context_embedder.weight": False, "t_embedder.mlp.0.weight": False,
        "y_embedder.mlp.0.weight": False, "x_embedder.proj.weight": False, "proj_out.weight": False,
        "joint_blocks.0.proj_out.weight": True,
    },
    "aura": {
        "double_layers.0.attn.w1q.weight": True, "t_embedder.mlp.0.weight": False, "init_x_linear.weight": False,
        "modF.1.weight": False, "cond_seq_linear.weight": False, "final_linear.weight": False,
        "positional_encoding": False, "register_tokens": False, "double_layers.0.modF.1.weight": True,
    },
    "ltxv": {
        "transformer_blocks.0.attn1.to_q.weight": True, "adaln_single.linear.weight": False,
        "caption_projection.linear_1.weight": False, "patchify_proj.weight": False, "proj_out.weight": False,
        "scale_shift_table": False, "transformer_blocks.0.scale_shift_table.weight": False,
    },
    "wan": {
        "blocks.0.self_attn.q.weight": True, "blocks.0.modulation.weight": False, "patch_embedding.weight": False,
        "text_embedding.0.weight": False, "time_projection.1.weight": False, "time_embedding.0.weight": False,
        "img_emb.proj.1.weight": False, "head.head.weight": False,
    },
    "hidream": {
        "double_stream_blocks.0.block.attn1.to_q.weight": True, "p_embedder.pooled_embedder.linear_1.weight": False,
        "t_embedder.mlp.0.weight": False, "x_embedder.proj.weight": False,
        "final_layer.linear.weight": False, "double_stream_blocks.0.block.ff_i.gate.weight": False,
        "caption_projection.0.linear.weight": False,
    },
    "cosmos": {
        "blocks.0.self_attn.q_proj.weight": True, "p_embedder.a.weight": False, "t_embedder.1.linear_1.weight": False,
        "t_embedding_norm.a.weight": False, "x_embedder.proj.1.weight": False, "pos_embedder.seq.weight": False,
        "final_layer.linear.weight": False,
    },
    "lumina2": {
        "layers.0.attention.qkv.weight": True, "t_embedder.mlp.0.weight": False, "x_embedder.weight": False,
        "final_layer.linear.weight": False, "cap_embedder.1.weight": False,
        "context_refiner.0.attention.qkv.weight": False, "noise_refiner.0.attention.qkv.weight": False,
    },
    "qwen_image": {
        "transformer_blocks.0.attn.to_q.weight": True, "time_text_embed.timestep_embedder.linear_1.weight": False,
        "txt_in.weight": False, "img_in.weight": False, "txt_norm.weight": False, "norm_out.linear.weight": False,
        "proj_out.weight": False,
    },
}  # fmt: skip
QUANTIZED["sdxl"] = QUANTIZED["sd1"]
# Names that no weight has: the patch excludes them, and the rule that only weights are quantized does so before.
UNUSED = {("sd3", "pos_embed"), ("aura", "positional_encoding"), ("aura", "register_tokens")}

# Architecture, name -> base type of a BF16 tensor, None if it is left out (tools/convert.py).
BASE: dict[tuple[str, str], DType | None] = {
    ("hidream", "double_stream_blocks.0.block.ff_i.gate.weight"): F32,
    ("hidream", "img_emb.emb_pos"): F32,
    ("cosmos", "pos_embedder.seq"): F32,
    ("cosmos", "blocks.0.self_attn.q_norm._extra_state"): None,
    ("cosmos", "accum_video_sample_counter"): None,
    ("wan", "blocks.0.modulation"): F32,
    ("ltxv", "transformer_blocks.0.scale_shift_table"): F32,
    ("flux", "img_in.weight"): BY_NAME["BF16"],
}

# Group of a mixture -> real names in it; file type -> the types of four tensors of it in a row (img_tensor_get_type).
GROUPS = {
    "v": ["x.attn_v.weight", "x.attn2.to_v.weight", "blocks.0.self_attn.v.weight", "x.attn.w1v.weight",
          "x.attn.w2v.weight", "blocks.0.self_attn.v_proj.weight"],
    "qkv": ["x.attn_qkv.weight", "x.x_block.attn.qkv.weight", "layers.0.attention.qkv.weight"],
    "down": ["x.ffn_down.weight", "x.experts.0.w2.weight", "blocks.0.ffn.2.weight", "x.ff.net.2.weight",
             "blocks.0.mlp.layer2.weight", "blocks.0.adaln_modulation_mlp.2.weight", "layers.0.feed_forward.w2.weight"],
    "": ["x.experts.0.w1.weight", "x.w2.weight", "blocks.0.ffn.0.weight"],
}  # fmt: skip
MIXED = {
    "v": {"Q2_K": "Q3_K", "Q3_K_M": "Q5_K Q5_K Q4_K Q4_K Q4_K Q4_K", "Q3_K_L": "Q5_K", "Q4_K_M": "Q6_K",
          "Q5_K_M": "Q6_K", "Q4_K_S": "Q5_K Q5_K Q5_K Q5_K Q4_K Q4_K"},
    "qkv": {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"},
    "down": {"Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "Q4_K_S": "Q5_K", "Q4_K_M": "Q6_K", "Q5_K_M": "Q6_K", "Q4_0": "Q4_1",
             "Q5_0": "Q5_1"},
    "": {},
}  # fmt: skip
FILE_TYPE_NAMES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K"


def convicts() -> str | None:
    """The first rule that contradicts the cases above."""
    for architecture, names in QUANTIZED.items():
        for name, expected in names.items():
            if diffusion_types.quantizable(architecture, name, Spec((512, 512), F16)) != expected:
                return f"{architecture} {name}"
    rules = diffusion_types.table().architectures
    for (architecture, name), wanted in BASE.items():
        ignored = diffusion_types.is_ignored(rules[architecture], name)
        base = diffusion_types.base_dtype(rules[architecture], name, Spec((64, 64), BY_NAME["BF16"]), None)
        if (None if ignored else base) is not wanted:
            return f"{architecture} {name}"
    for architecture, row in rules.items():
        shape = diffusion_types.stored_shape(row, (320, 320, 3, 3))
        if shape != ((3600, 256) if architecture in ("sd1", "sdxl") else (320, 320, 3, 3)):
            return f"{architecture} shape"
    return mixture_convicts()


def mixture_convicts() -> str | None:
    for name in FILE_TYPE_NAMES.split():
        default = FILE_TYPES[name].type
        assert default is not None
        for group, names in GROUPS.items():
            for shift in range(len(names)):  # each name comes first once
                turned = names[shift:] + names[:shift]
                expected = MIXED[group].get(name, default.name).split() * len(names)
                specs = [(n, Spec((512, 512), F16)) for n in turned]
                try:
                    types = diffusion_types.choose_types(specs, "flux", FILE_TYPES[name], TypeOptions()).types
                except UsageError:
                    return f"no {name}"
                if [t.name for t in types.values()] != expected[: len(names)]:
                    return f"{name} {group}"
    return None


def test_the_rules_are_those_of_the_tools() -> None:
    assert convicts() is None
    assert set(diffusion_types.table().architectures) == pictures.ARCHITECTURES
    assert sorted(diffusion_types.table().file_types) == sorted(FILE_TYPE_NAMES.split())


RAW = tomllib.loads((resources.files("weighbridge.conversion.quantize") / "diffusion_types.toml").read_text("utf-8"))
Fault = Callable[[dict[str, Any]], None]


def faults() -> Iterator[tuple[str, Fault]]:
    for name, row in RAW["architecture"].items():
        for column, value in row.items():
            for at in range(len(value)) if isinstance(value, list) else [None]:
                if at is None or (name, value[at]) not in UNUSED:
                    yield f"{name}-{column}-{at}", partial(_take, ("architecture", name, column), at)
    for number, group in enumerate(RAW["group"]):
        for at in range(len(group["parts"])):
            yield f"group-{number}-part-{at}", partial(_take, ("group", number, "parts"), at)
        for column in ("types", "first"):
            for ftype in group.get(column, {}):
                yield f"group-{number}-{column}-{ftype}", partial(_take, ("group", number, column), ftype)
    for at, ftype in enumerate(RAW["file_types"]):
        yield f"no-{ftype}", partial(_take, ("file_types",), at)


def _take(path: tuple[Any, ...], key: Any, raw: dict[str, Any]) -> None:
    """Takes away an entry of the list or table at a path; all of it without a key."""
    at: Any = raw
    for step in path[:-1] if key is None else path:
        at = at[step]
    at.pop(path[-1] if key is None else key)


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "fault"), [pytest.param(*f, id=f[0]) for f in faults()])
def test_every_rule_is_seen(name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = copy.deepcopy(RAW)
    fault(raw)
    broken = diffusion_types.build_table(raw)
    monkeypatch.setattr(diffusion_types, "table", lambda: broken)
    assert convicts() is not None, name


def test_long_names_and_five_dimensions_are_written_with_a_note(tmp_path: Path) -> None:
    """HunyuanVideo: llama.cpp's reader takes neither, ComfyUI-GGUF's does."""
    long = "txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1"
    shapes: pictures.Shapes = {f"{long}.weight": (64, 32), f"{long}.bias": (64,), "img_in.proj.weight": (8, 4, 1, 2, 2)}
    shapes.update(pictures.linear("double_blocks.0.img_attn_proj", 64, 64))
    tensors = pictures.values(shapes, "bfloat16")
    path = pictures.save(tmp_path / "video.safetensors", tensors)
    plan = wb.plan_convert(path, tmp_path / "video.gguf", dtype="q8_0")
    assert [words for words in ("2 names longer", "of 5 dimensions") if not any(words in n for n in plan.notes)] == []
    plan.run()
    architecture, loaded = pictures.comfy_load(tmp_path / "video.gguf")
    assert architecture == "hyvid"
    assert {name: t.shape for name, t in loaded.items()} == shapes
    assert loaded["img_in.proj.weight"].kind == "F32"
    wb.convert(tmp_path / "video.gguf", tmp_path / "back.safetensors", dtype="bf16")
    back = pytest.importorskip("safetensors.torch").load_file(tmp_path / "back.safetensors")
    assert torch.equal(back["img_in.proj.weight"], tensors["img_in.proj.weight"])
