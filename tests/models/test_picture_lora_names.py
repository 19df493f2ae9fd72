"""LoRAs of image and video models from every dialect to every other: the merge stays the same, and the names are those
that diffusers reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.models.test_picture_lora import RANK, WRITERS, applied, both, changes, kohya, load, module_key, targets
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.lora import picture_dialects

torch = pytest.importorskip("torch")
Tensors = dict[str, Any]
MODELS = ("sd1", "sdxl", "flux", "sd3", "qwen-image", "wan")
#: Dialects of the sources, with the names of modules in each.
SOURCES = [(writer, names) for writer, (_, dialects) in WRITERS.items() for names in dialects]
BEGINS = {"comfy": "diffusion_model.", "kohya": "lora_unet_", "diffusers": "", "peft": "base_model.model."}


def pairs_of(model: str, names: str) -> tuple[dict[str, Tensors], dict[str, tuple[Any, Any]]]:
    """The forms of a model, and changes of its matrices: of all parts of a matrix that diffusers splits."""
    forms = both(model)
    tensors = forms["original"]
    modules = [m for m in targets(tensors) if tensors[f"{m}.weight"].dim() == 2]
    pairs = changes(tensors, modules)
    if names == "original":
        return forms, pairs
    split: dict[str, tuple[Any, Any]] = {}
    for module, (down, up) in pairs.items():  # the rows of a whole matrix mark those of its parts
        marked = {**{n: torch.zeros_like(t) for n, t in tensors.items()}, f"{module}.weight": up @ down}
        for name, tensor in pictures.DIFFUSERS[model](marked).items():
            if tensor.any():
                part = torch.linalg.lstsq(down.T, tensor.T).solution.T
                split[name.removesuffix(".weight")] = down.clone(), part.contiguous()
    return forms, split


def merged(base: Path, lora: Path, out: Path) -> Tensors:
    wb.convert(base, out, lora=lora, overwrite=True)
    return load(out)


@pytest.mark.costly
@pytest.mark.parametrize("target", picture_dialects.DIALECTS)
@pytest.mark.parametrize(("writer", "names"), SOURCES)
@pytest.mark.parametrize("model", MODELS)
def test_the_merge_stays_the_same(model: str, writer: str, names: str, target: str, tmp_path: Path) -> None:
    forms, pairs = pairs_of(model, names)
    base = pictures.save(tmp_path / "base.safetensors", forms["original"])
    lora = pictures.save(tmp_path / "lora.safetensors", WRITERS[writer][0](pairs, 1.5))
    wb.rename(lora, tmp_path / "new.safetensors", to_names=target)
    before, after = (merged(base, tmp_path / f"{n}.safetensors", tmp_path / "m.safetensors") for n in ("lora", "new"))
    assert set(before) == set(after)
    assert all(torch.allclose(before[name], after[name], rtol=1e-6, atol=1e-6) for name in before)
    changed = [name for name in before if not torch.equal(before[name], forms["original"][name])]
    assert changed
    written = load(tmp_path / "new.safetensors")
    assert all(key.startswith(BEGINS[target]) for key in written)
    assert (".alpha" in {key[key.rfind(".") :] for key in written}) == (target in ("kohya", "comfy"))
    wb.rename(tmp_path / "new.safetensors", tmp_path / "twice.safetensors", to_names=target)
    assert load(tmp_path / "twice.safetensors").keys() == written.keys()


@pytest.mark.parametrize("target", ["comfy", "diffusers"])
@pytest.mark.parametrize("model", MODELS)
def test_there_and_back(model: str, target: str, tmp_path: Path) -> None:
    """From kohya's names and back: the same names, ranks, alphas and bytes."""
    names = "diffusers" if model == "sd1" else "original"
    _, pairs = pairs_of(model, names)
    tensors = kohya(pairs, 1.5)
    lora = pictures.save(tmp_path / "lora.safetensors", tensors)
    wb.rename(lora, tmp_path / "there.safetensors", to_names=target)
    wb.rename(tmp_path / "there.safetensors", tmp_path / "back.safetensors", to_names="kohya")
    back = load(tmp_path / "back.safetensors")
    assert set(back) == set(tensors)
    assert all(torch.equal(back[key].flatten(), tensor.flatten()) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    ("model", "function", "writer"),
    [
        ("flux", "_convert_kohya_flux_lora_to_diffusers", "kohya"),
        ("sd1", "_convert_non_diffusers_lora_to_diffusers", "kohya"),
        ("wan", "_convert_non_diffusers_wan_lora_to_diffusers", "comfy"),
        ("qwen-image", "_convert_non_diffusers_qwen_lora_to_diffusers", "kohya"),
    ],
)
def test_the_names_are_those_of_diffusers(model: str, function: str, writer: str, tmp_path: Path) -> None:
    """diffusers' own conversion of the same file names the same modules, and its factors have the same product."""
    utilities = pytest.importorskip("diffusers.loaders.lora_conversion_utils")
    names = "diffusers" if model in ("sd1", "qwen-image") else "original"
    _, pairs = pairs_of(model, names)
    inside = ("double_", "single_", "blocks", "down", "mid", "up", "transformer_blocks")
    kept = {m: p for m, p in pairs.items() if m.startswith(inside) and not m.startswith("vace")}
    tensors = WRITERS[writer][0](kept, 1.5 if writer == "kohya" else None)
    lora = pictures.save(tmp_path / "lora.safetensors", tensors)
    wb.rename(lora, tmp_path / "new.safetensors", to_names="diffusers")
    found = load(tmp_path / "new.safetensors")
    converted = getattr(utilities, function)({key: t.clone() for key, t in tensors.items()})
    state, alphas = converted if isinstance(converted, tuple) else (converted, {})
    state, alphas = ({module_key(key): value for key, value in (part or {}).items()} for part in (state, alphas))
    products = {}
    for key, down in state.items():
        for end, other in ((".lora_A.weight", ".lora_B.weight"), (".lora.down.weight", ".lora.up.weight")):
            if key.endswith(end):
                alpha = alphas.get(f"{key.removesuffix(end)}.alpha", RANK)
                product = state[key.removesuffix(end) + other] @ down * (alpha / RANK)
                products[key.removesuffix(end)] = product
    with_alpha = json.loads(header(tmp_path / "new.safetensors")["lora_adapter_metadata"])
    prefix = next(iter(found)).partition(".")[0]
    ours = {
        key.removesuffix(".lora_A.weight"): found[key.replace("lora_A", "lora_B")] @ down
        * (with_alpha[f"{prefix}.lora_alpha"] / RANK)
        for key, down in found.items() if key.endswith(".lora_A.weight")
    }  # fmt: skip
    changed = {name for name, product in products.items() if product.any()}
    assert {name for name, product in ours.items() if product.any()} == changed
    assert all(torch.allclose(ours[name], products[name], atol=1e-5) for name in changed)


def header(path: Path) -> Mapping[str, str]:
    with pytest.importorskip("safetensors").safe_open(path, "pt") as file:
        metadata: Mapping[str, str] = file.metadata()
    return metadata


def test_diffusers_loads_it(tmp_path: Path) -> None:
    """A small FLUX.1 of diffusers with the renamed LoRA, fused by PEFT, is our merge."""
    diffusers = pytest.importorskip("diffusers")
    pytest.importorskip("peft")
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=True,
    )  # fmt: skip
    model.save_pretrained(tmp_path / "base")
    wb.rename(tmp_path / "base", tmp_path / "file.safetensors", to_names="original")
    tensors = load(tmp_path / "file.safetensors")
    modules = ["double_blocks.0.img_attn.qkv", "single_blocks.0.linear1", "double_blocks.0.txt_mlp.0"]
    lora = {**kohya(changes(tensors, modules[:2]), 1.5), **kohya(changes(tensors, modules[2:], rank=2), 4.0)}
    pictures.save(tmp_path / "lora.safetensors", lora)
    with pytest.raises(UsageError, match=r"fits flux and flux2/.*, whose names differ"):
        wb.rename(tmp_path / "lora.safetensors", tmp_path / "new.safetensors", to_names="diffusers")
    wb.rename(
        tmp_path / "lora.safetensors", tmp_path / "new.safetensors", to_names="diffusers", lora_base=tmp_path / "base"
    )
    wb.convert(tmp_path / "base", f"{tmp_path}/merged/", lora=tmp_path / "lora.safetensors")
    loader = diffusers.loaders.lora_pipeline.FluxLoraLoaderMixin
    state, alphas, settings = loader.lora_state_dict(
        str(tmp_path / "new.safetensors"), return_alphas=True, return_lora_metadata=True
    )
    loader.load_lora_into_transformer(state, alphas, model, metadata=settings)
    model.fuse_lora()
    model.unload_lora()
    expected = model.state_dict()
    found = load(tmp_path / "merged/diffusion_pytorch_model.safetensors")
    assert set(found) == set(expected)
    assert [n for n, tensor in expected.items() if not torch.allclose(found[n], tensor, atol=1e-5)] == []
    assert not torch.equal(
        found["transformer_blocks.0.ff_context.net.0.proj.weight"],
        load(tmp_path / "base/diffusion_pytorch_model.safetensors")[
            "transformer_blocks.0.ff_context.net.0.proj.weight"
        ],
    )


def test_parts_with_factors_of_their_own(tmp_path: Path) -> None:
    """q, k and v that were trained apart: blocks, of the sum of the ranks; also with alphas of their own."""
    forms = both("flux")
    block = "transformer_blocks.0.attn"
    pairs = {m: p for n, m in enumerate(("to_q", "to_k", "to_v"))
             for m, p in changes(forms["diffusers"], [f"{block}.{m}"], rank=n + 2).items()}  # fmt: skip
    base = pictures.save(tmp_path / "base.safetensors", forms["original"])
    for alphas in ((1.5, 1.5, 1.5), (2.0, 3.0, 4.0)):
        lora: Tensors = {}
        for (module, pair), alpha in zip(pairs.items(), alphas, strict=True):
            lora |= WRITERS["diffusers"][0]({module: pair}, alpha)
        path = pictures.save(tmp_path / "lora.safetensors", lora)
        wb.rename(path, tmp_path / "new.safetensors", to_names="comfy", overwrite=True, lora_base=base)
        new = load(tmp_path / "new.safetensors")
        assert new["diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight"].shape[0] == 9
        one, other = (merged(base, tmp_path / f"{n}.safetensors", tmp_path / "m.safetensors") for n in ("lora", "new"))
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
        scale = [a / r for a, r in zip(alphas, (2, 3, 4), strict=True)]
        expected = forms["diffusers"]
        for (module, pair), factor in zip(pairs.items(), scale, strict=True):
            expected = applied(expected, {module: pair}, factor)
        found = pictures.DIFFUSERS["flux"](other)
        assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)
    del lora[f"transformer.{block}.to_k.lora_A.weight"], lora[f"transformer.{block}.to_k.lora_B.weight"]
    del lora[f"transformer.{block}.to_k.alpha"]
    pictures.save(tmp_path / "lora.safetensors", lora)
    with pytest.raises(UnsupportedError, match=r"doesn't change transformer_blocks\.0\.attn\.to_k"):
        wb.rename(tmp_path / "lora.safetensors", tmp_path / "no.safetensors", to_names="comfy", lora_base=base)
    assert not (tmp_path / "no.safetensors").exists()


def test_text_encoders(tmp_path: Path) -> None:
    clip = both("open-clip")["diffusers"]
    layer = "text_model.encoder.layers.1"
    pairs = changes(clip, [f"{layer}.self_attn.k_proj", f"{layer}.mlp.fc1"])
    for model, names, number, name in (("sd1", "diffusers", "", ""), ("sdxl", "original", "2", "_2")):
        forms = both(model)
        base = pictures.save(tmp_path / f"{model}.safetensors", forms["original"])
        main = kohya(changes(forms[names], targets(forms[names])[:3]), 1.5)
        text = {key.replace("lora_unet_", f"lora_te{number}_"): t.clone() for key, t in kohya(pairs, 1.5).items()}
        path = pictures.save(tmp_path / "lora.safetensors", {**main, **text})
        wb.rename(path, tmp_path / "d.safetensors", to_names="diffusers", overwrite=True, lora_base=base)
        found = load(tmp_path / "d.safetensors")
        for module, (down, up) in pairs.items():
            assert torch.equal(found[f"text_encoder{name}.{module}.lora_A.weight"], down)
            assert torch.equal(found[f"text_encoder{name}.{module}.lora_B.weight"], up)
        wb.rename(
            tmp_path / "d.safetensors", tmp_path / "k.safetensors", to_names="kohya", overwrite=True, lora_base=base
        )
        back = load(tmp_path / "k.safetensors")
        assert set(back) == {*main, *text}
        assert all(torch.equal(back[key].flatten(), t.flatten()) for key, t in {**main, **text}.items())
    t5 = {"lora_te2_encoder_block_3_layer_0_SelfAttention_q": (torch.ones(2, 4), torch.ones(4, 2))}
    tensors = {
        f"{key}.lora_{part}.weight": t for key, pair in t5.items() for part, t in zip(("down", "up"), pair, strict=True)
    }
    pictures.save(tmp_path / "t5.safetensors", tensors)
    wb.rename(tmp_path / "t5.safetensors", tmp_path / "t5d.safetensors", to_names="diffusers")
    assert "text_encoder_2.encoder.block.3.layer.0.SelfAttention.q.lora_A.weight" in load(tmp_path / "t5d.safetensors")


def test_dora_keeps_its_lengths(tmp_path: Path) -> None:
    tensors = both("flux")["original"]
    module = "double_blocks.0.img_attn.qkv"
    rows = tensors[f"{module}.weight"].shape[0]
    lengths = torch.rand(rows, 1) + 0.5
    lora = {**kohya(changes(tensors, [module]), 3.0), "lora_unet_double_blocks_0_img_attn_qkv.dora_scale": lengths}
    pictures.save(tmp_path / "lora.safetensors", lora)
    base = pictures.save(tmp_path / "base.safetensors", tensors)
    wb.rename(tmp_path / "lora.safetensors", tmp_path / "d.safetensors", to_names="diffusers", lora_base=base)
    found = load(tmp_path / "d.safetensors")
    parts = [
        found[f"transformer.transformer_blocks.0.attn.{p}.lora_magnitude_vector"] for p in ("to_q", "to_k", "to_v")
    ]
    assert torch.equal(torch.cat(parts), lengths.flatten())
    assert json.loads(header(tmp_path / "d.safetensors")["lora_adapter_metadata"])["transformer.use_dora"] is True
    wb.rename(tmp_path / "d.safetensors", tmp_path / "k.safetensors", to_names="kohya", lora_base=base)
    back = load(tmp_path / "k.safetensors")
    assert set(back) == set(lora)
    assert all(torch.equal(back[key].flatten(), t.flatten()) for key, t in lora.items())


LYCORIS = {
    "LoHa": {"hada_w1_a": (64, 2), "hada_w1_b": (2, 64), "hada_w2_a": (64, 2), "hada_w2_b": (2, 64)},
    "LoKr": {"lokr_w1": (8, 8), "lokr_w2": (8, 8)},
    "full difference": {"diff": (64, 64)},
}


@pytest.mark.parametrize("kind", LYCORIS)
def test_lycoris_moves_where_names_exist(kind: str, tmp_path: Path) -> None:
    parts = {end: torch.rand(shape) for end, shape in LYCORIS[kind].items()}
    lora = {f"lora_unet_double_blocks_0_img_attn_proj.{end}": t for end, t in parts.items()}
    pictures.save(tmp_path / "lora.safetensors", lora)
    base = pictures.save(tmp_path / "base.safetensors", both("flux")["original"])
    wb.rename(tmp_path / "lora.safetensors", tmp_path / "c.safetensors", to_names="comfy", lora_base=base)
    found = load(tmp_path / "c.safetensors")
    assert {f"diffusion_model.double_blocks.0.img_attn.proj.{end}" for end in parts} <= set(found)
    one, other = (merged(base, tmp_path / f"{n}.safetensors", tmp_path / "m.safetensors") for n in ("lora", "c"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    for target in ("diffusers", "peft"):
        with pytest.raises(UnsupportedError, match=f"{target} has no names for a {kind}"):
            wb.rename(tmp_path / "lora.safetensors", tmp_path / "no.safetensors", to_names=target, lora_base=base)
    assert not (tmp_path / "no.safetensors").exists()


def test_what_is_refused(tmp_path: Path) -> None:
    pictures.save(tmp_path / "lora.safetensors", kohya(changes(both("flux")["original"], ["img_in"]), 1.0))
    with pytest.raises(UsageError, match="no program names LoRAs as 'hf'"):
        wb.rename(tmp_path / "lora.safetensors", tmp_path / "no.safetensors", to_names="hf")
    strange = {
        "lora_unet_no_such_module.lora_down.weight": torch.ones(2, 4),
        "lora_unet_no_such_module.lora_up.weight": torch.ones(4, 2),
    }
    pictures.save(tmp_path / "lora.safetensors", strange)
    with pytest.raises(UsageError, match="no table of names has: no_such_module"):
        wb.rename(tmp_path / "lora.safetensors", tmp_path / "no.safetensors", to_names="comfy")
    assert not (tmp_path / "no.safetensors").exists()
