"""LoRAs of image and video models merged into them: judged by diffusers' conversions of the model and of the LoRA."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.models.lora import lycoris
from weighbridge.models.lora import pictures as ours

torch = pytest.importorskip("torch")
Tensors = dict[str, Any]
DENOISERS = ("flux", "sd1", "sd2", "sdxl", "sd3", "wan", "ltx")
RANK = 3


def both(model: str) -> dict[str, Tensors]:
    """A model's tensors under the names of its single file and of diffusers."""
    original = {name: tensor * 0.2 for name, tensor in pictures.values(pictures.MODELS[model]()).items()}
    return {"original": original, "diffusers": pictures.DIFFUSERS[model](dict(original))}


def targets(tensors: Tensors) -> list[str]:
    """Every third module with a matrix or a convolution."""
    names = [n.removesuffix(".weight") for n, t in tensors.items() if n.endswith(".weight") and t.dim() in (2, 4)]
    return sorted(names)[::3]


def changes(tensors: Tensors, modules: list[str], rank: int = RANK) -> dict[str, tuple[Any, Any]]:
    """down and up of modules; down of a convolution has its kernel."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    out = {}
    for module in modules:
        rows, *columns = tensors[f"{module}.weight"].shape
        out[module] = draw(rank, *columns), draw(rows, rank, *(1 for _ in columns[1:]))
    return out


def applied(tensors: Tensors, pairs: Mapping[str, tuple[Any, Any]], scale: float) -> Tensors:
    """The tensors with their changes, in torch."""
    out = dict(tensors)
    for module, (down, up) in pairs.items():
        name = f"{module}.weight"
        out[name] = tensors[name] + scale * (up.flatten(1) @ down.flatten(1)).reshape(tensors[name].shape)
    return out


def kohya(pairs: Mapping[str, tuple[Any, Any]], alpha: float | None) -> Tensors:
    out: Tensors = {}
    for module, (down, up) in pairs.items():
        key = f"lora_unet_{module.replace('.', '_')}"
        out |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
        out |= {} if alpha is None else {f"{key}.alpha": torch.tensor(alpha)}
    return out


def dotted(prefix: str, ends: tuple[str, str]) -> Any:
    def write(pairs: Mapping[str, tuple[Any, Any]], alpha: float | None) -> Tensors:
        out: Tensors = {}
        for module, (down, up) in pairs.items():
            out |= {f"{prefix}{module}{ends[0]}.weight": down, f"{prefix}{module}{ends[1]}.weight": up}
            out |= {} if alpha is None else {f"{prefix}{module}.alpha": torch.tensor(alpha)}
        return out

    return write


#: dialects of LoRAs, and whose names of modules each has
WRITERS = {
    "kohya": (kohya, ("original", "diffusers")),
    "diffusers": (dotted("transformer.", (".lora_A", ".lora_B")), ("diffusers",)),
    "unet": (dotted("unet.", (".lora.down", ".lora.up")), ("diffusers",)),
    "comfy": (dotted("diffusion_model.", (".lora_A", ".lora_B")), ("original",)),
    "comfy down": (dotted("diffusion_model.", (".lora_down", ".lora_up")), ("original",)),
    "peft": (dotted("base_model.model.transformer.", (".lora_A.default", ".lora_B.default")), ("diffusers",)),
    "layer": (dotted("unet.", (".lora_linear_layer.down", ".lora_linear_layer.up")), ("diffusers",)),
}
PRODUCT = [
    (model, base, writer, names)
    for model in DENOISERS
    for base in ("original", "diffusers")
    for writer, (_, dialects) in WRITERS.items()
    for names in dialects
]


def convicts(path: Path, model: str, base: str, writer: str, names: str, alpha: float | None = 1.5) -> str | None:
    """The first tensor of a merge that differs from torch's, in the dialect of the LoRA's names."""
    forms = both(model)
    pairs = changes(forms[names], targets(forms[names]))
    expected = applied(forms[names], pairs, 1.0 if alpha is None else alpha / RANK)
    pictures.save(path / "base.safetensors", forms[base])
    pictures.save(path / "lora.safetensors", WRITERS[writer][0](pairs, alpha))
    try:
        wb.convert(path / "base.safetensors", path / "m.safetensors", lora=path / "lora.safetensors", overwrite=True)
    except (FormatError, UsageError, UnsupportedError) as error:
        return error.message
    found = load(path / "m.safetensors")
    if base == "original" and names == "diffusers":
        found = pictures.DIFFUSERS[model](found)
    elif base == "diffusers" and names == "original":
        expected = pictures.DIFFUSERS[model](expected)
    assert set(found) == set(expected)
    wrong = [n for n in expected if not torch.allclose(found[n], expected[n], rtol=1e-5, atol=1e-5)]
    return wrong[0] if wrong else None


def load(path: Path) -> Tensors:
    return dict(pytest.importorskip("safetensors.torch").load_file(path))


@pytest.mark.costly
@pytest.mark.parametrize(("model", "base", "writer", "names"), PRODUCT)
def test_a_merge_is_torch_s(model: str, base: str, writer: str, names: str, tmp_path: Path) -> None:
    assert convicts(tmp_path, model, base, writer, names) is None


def test_without_alpha_the_factor_is_one(tmp_path: Path) -> None:
    assert convicts(tmp_path, "flux", "original", "comfy", "original", alpha=None) is None


def module_key(key: str) -> str:
    """A key of diffusers with a module's name in place of an attention processor's."""
    key = re.sub(r"\.processor\.(to_[a-z]+)_lora", r".\1.lora", key).replace(".to_out.lora", ".to_out.0.lora")
    return key.replace(".lora.down.weight.alpha", ".alpha")


@pytest.mark.parametrize(
    ("model", "function", "names"),
    [
        ("sd1", "_convert_non_diffusers_lora_to_diffusers", "diffusers"),
        ("wan", "_convert_non_diffusers_wan_lora_to_diffusers", "original"),
    ],
)
def test_diffusers_reads_the_lora_as_we_do(model: str, function: str, names: str, tmp_path: Path) -> None:
    """The LoRA as diffusers' own function converts it, applied in torch to the model as diffusers has it."""
    utilities = pytest.importorskip("diffusers.loaders.lora_conversion_utils")
    forms = both(model)
    modules = [m for m in targets(forms[names]) if m.startswith(("blocks", "down", "mid", "up")) and "vace" not in m]
    pairs = changes(forms[names], [m for m in modules if forms[names][f"{m}.weight"].dim() == 2])
    writer = "kohya" if model == "sd1" else "comfy"
    tensors = WRITERS[writer][0](pairs, 1.5 if writer == "kohya" else None)
    pictures.save(tmp_path / "lora.safetensors", tensors)
    pictures.save(tmp_path / "base.safetensors", forms["diffusers"])
    wb.convert(tmp_path / "base.safetensors", tmp_path / "m.safetensors", lora=tmp_path / "lora.safetensors")
    converted = getattr(utilities, function)(dict(tensors))
    state, alphas = converted if isinstance(converted, tuple) else (converted, {})
    state, alphas = ({module_key(key): value for key, value in part.items()} for part in (state, alphas))
    expected = dict(forms["diffusers"])
    ends = next((a, b) for a, b in ((".lora_A.weight", ".lora_B.weight"), (".lora.down.weight", ".lora.up.weight"))
                if any(key.endswith(a) for key in state))  # fmt: skip
    for key, down in state.items():
        if key.endswith(ends[0]):
            module = key.removesuffix(ends[0])
            name = f"{module.split('.', 1)[1]}.weight"
            scale = alphas.get(f"{module}.alpha", RANK) / RANK
            expected[name] = expected[name] + scale * (state[module + ends[1]] @ down)
    found = load(tmp_path / "m.safetensors")
    changed = [name for name in expected if not torch.equal(expected[name], forms["diffusers"][name])]
    assert len(changed) == len(pairs)
    assert all(torch.allclose(found[name], expected[name], rtol=1e-5, atol=1e-5) for name in expected)


# ---------------------------------------------------------------------- other forms, and what is refused


FLUX = "double_blocks.1.img_attn.qkv"


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    tensors = both("flux")["original"]
    return pictures.save(tmp_path_factory.mktemp("flux") / "flux.safetensors", tensors), tensors


def merge(base: Path, lora: Tensors, folder: Path, metadata: dict[str, str] | None = None, **options: Any) -> Any:
    torch_file = pytest.importorskip("safetensors.torch")
    torch_file.save_file(lora, folder / "lora.safetensors", metadata)
    return wb.convert(base, folder / options.pop("name", "m.safetensors"), lora=folder / "lora.safetensors", **options)


def test_the_header_has_alpha(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    base, _ = flux
    tensors = both("flux")["diffusers"]
    pairs = changes(tensors, ["proj_out"])
    lora = WRITERS["diffusers"][0](pairs, None)
    merge(
        base, lora, tmp_path, {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 6, "transformer.r": 3})}
    )
    expected = applied(tensors, pairs, 2.0)
    found = pictures.DIFFUSERS["flux"](load(tmp_path / "m.safetensors"))
    assert torch.allclose(found["proj_out.weight"], expected["proj_out.weight"], atol=1e-5)


def test_the_header_has_alphas_by_module(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    base, _ = flux
    tensors = both("flux")["diffusers"]
    one, other = "proj_out", "x_embedder"
    pairs = changes(tensors, [one, other])
    settings = {"lora_alpha": 6, "r": 3, "alpha_pattern": {"x_embedder": 1.5}}
    header = {"lora_adapter_metadata": json.dumps({f"transformer.{key}": value for key, value in settings.items()})}
    merge(base, WRITERS["diffusers"][0](pairs, None), tmp_path, header)
    found = pictures.DIFFUSERS["flux"](load(tmp_path / "m.safetensors"))
    for module, scale in ((one, 2.0), (other, 0.5)):
        expected = applied(tensors, {module: pairs[module]}, scale)[f"{module}.weight"]
        assert torch.allclose(found[f"{module}.weight"], expected, atol=1e-5)
    header = {"lora_adapter_metadata": json.dumps({"transformer.alpha_pattern": 3})}
    with pytest.raises(FormatError, match="an alpha for each module"):
        merge(base, WRITERS["diffusers"][0](pairs, None), tmp_path, header, overwrite=True)


def test_old_names_of_attention(tmp_path: Path) -> None:
    forms = both("sd1")
    block = "down_blocks.1.attentions.0.transformer_blocks.0.attn1"
    pairs = changes(forms["diffusers"], [f"{block}.to_q", f"{block}.to_out.0"])
    lora: Tensors = {}
    for module, (down, up) in pairs.items():
        layer = module.removeprefix(f"{block}.").removesuffix(".0")
        lora |= {f"unet.{block}.processor.{layer}_lora.{half}.weight": t for half, t in (("down", down), ("up", up))}
    base = pictures.save(tmp_path / "base.safetensors", forms["diffusers"])
    merge(base, lora, tmp_path)
    found, expected = load(tmp_path / "m.safetensors"), applied(forms["diffusers"], pairs, 1.0)
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)


def test_lengths_of_columns_of_a_square_matrix(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    """LyCORIS with wd_on_out=False: [1, in] has as many numbers as a square matrix has rows."""
    base, tensors = flux
    module = "double_blocks.0.img_attn.proj"
    rows, columns = tensors[f"{module}.weight"].shape
    assert rows == columns
    lora = kohya(changes(tensors, [module]), 3.0)
    key = f"lora_unet_{module.replace('.', '_')}.dora_scale"
    with pytest.raises(UnsupportedError, match="lengths of columns"):
        merge(base, {**lora, key: torch.ones(1, columns)}, tmp_path)
    assert not (tmp_path / "m.safetensors").exists()
    merge(base, {**lora, key: torch.ones(rows, 1)}, tmp_path)


def test_dora_of_a_convolution_in_pefts_shape(tmp_path: Path) -> None:
    """PEFT stores the lengths of a convolution's rows as [1, out, 1, 1]."""
    tensors = both("sd1")["diffusers"]
    base = pictures.save(tmp_path / "base.safetensors", tensors)
    module = next(n for n, t in tensors.items() if n.endswith("conv1.weight") and t.dim() == 4).removesuffix(".weight")
    pairs = changes(tensors, [module])
    rows = tensors[f"{module}.weight"].shape[0]
    lengths = torch.rand(1, rows, 1, 1) + 0.5
    write = dotted("unet.", (".lora_A", ".lora_B"))
    merge(base, {**write(pairs, None), f"unet.{module}.lora_magnitude_vector": lengths}, tmp_path)
    changed = applied(tensors, pairs, 1.0)[f"{module}.weight"].flatten(1)
    expected = lengths.reshape(-1, 1) * changed / changed.norm(dim=1, keepdim=True)
    assert torch.allclose(load(tmp_path / "m.safetensors")[f"{module}.weight"].flatten(1), expected, atol=1e-5)


def test_dora_sets_the_rows_lengths(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    """As PEFT's and LyCORIS': the changed row divided by its length, times the stored one."""
    base, tensors = flux
    pairs = changes(tensors, [FLUX])
    lengths = torch.rand(tensors[f"{FLUX}.weight"].shape[0], 1) + 0.5
    key = f"lora_unet_{FLUX.replace('.', '_')}.dora_scale"
    merge(base, {**kohya(pairs, 3.0), key: lengths}, tmp_path)
    changed = applied(tensors, pairs, 1.0)[f"{FLUX}.weight"]
    expected = lengths * changed / changed.norm(dim=1, keepdim=True)
    assert torch.allclose(load(tmp_path / "m.safetensors")[f"{FLUX}.weight"], expected, atol=1e-5)


def test_text_encoders_of_a_checkpoint(tmp_path: Path) -> None:
    """SDXL's checkpoint: the UNet, transformers' CLIP and OpenCLIP, whose q, k and v are one matrix."""
    unet = both("sdxl")["original"]
    clip = both("open-clip")
    first = {name: t for name, t in clip["diffusers"].items() if name != "text_projection.weight"}
    prefixes = {"model.diffusion_model.": unet, "conditioner.embedders.0.transformer.": first}
    prefixes["conditioner.embedders.1.model."] = clip["original"]
    whole = {prefix + name: t.clone() for prefix, part in prefixes.items() for name, t in part.items()}
    base = pictures.save(tmp_path / "base.safetensors", whole)
    layer = "text_model.encoder.layers.1"
    pairs = changes(clip["diffusers"], [f"{layer}.self_attn.k_proj", f"{layer}.mlp.fc1"])
    lora: Tensors = {}
    for number in (1, 2):
        lora |= {key.replace("lora_unet_", f"lora_te{number}_"): t.clone() for key, t in kohya(pairs, 1.5).items()}
    merge(base, lora, tmp_path)
    found = load(tmp_path / "m.safetensors")
    second = {n.removeprefix("conditioner.embedders.1.model."): t for n, t in found.items() if ".embedders.1." in n}
    expected = applied(clip["diffusers"], pairs, 0.5)
    for name, tensor in expected.items():
        if name in first:
            assert torch.allclose(found[f"conditioner.embedders.0.transformer.{name}"], tensor, atol=1e-5), name
        assert torch.allclose(pictures.DIFFUSERS["open-clip"](dict(second))[name], tensor, atol=1e-5), name
    unchanged = [name for name in whole if "diffusion_model" in name]
    assert all(torch.equal(found[name], whole[name]) for name in unchanged)


def test_an_absent_text_encoder_is_listed(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    base, tensors = flux
    lora = kohya(changes(tensors, [FLUX]), 1.0)
    text = {key.replace("lora_unet_", "lora_te1_"): tensor.clone() for key, tensor in lora.items()}
    result = merge(base, {**lora, **text}, tmp_path)
    said = [*result.notes, *(loss.message for loss in result.losses)]
    assert any("1 module of text encoder 1" in text for text in said)
    with pytest.raises(UsageError, match="changes only text encoders"):
        merge(base, text, tmp_path, overwrite=True)


def test_one_pass_to_a_quantized_gguf(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    """The sum is rounded once: as if torch's merge were converted."""
    base, tensors = flux
    pairs = changes(tensors, [FLUX, "single_blocks.0.linear2"])
    merge(base, kohya(pairs, 1.5), tmp_path, name="one.gguf", dtype="q8_0")
    pictures.save(tmp_path / "whole.safetensors", load_merged(base, pairs, tmp_path))
    wb.convert(tmp_path / "whole.safetensors", tmp_path / "two.gguf", dtype="q8_0")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def load_merged(base: Path, pairs: Mapping[str, tuple[Any, Any]], folder: Path) -> Tensors:
    merge(base, kohya(pairs, 1.5), folder, name="f32.safetensors")
    return load(folder / "f32.safetensors")


def without(part: str) -> Any:
    return lambda lora: {key: tensor for key, tensor in lora.items() if part not in key}


def added(key: str, *shape: int) -> Any:
    return lambda lora: {**lora, key: torch.ones(shape)}


KEY = f"lora_unet_{FLUX.replace('.', '_')}"
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "down without up": (without("lora_up"), FormatError, "has no up matrix"),
    "up without down": (without("lora_down"), FormatError, "has no down matrix"),
    "ranks": (added(f"{KEY}.lora_up.weight", 192, 4), FormatError, "different ranks"),
    "alpha": (added(f"{KEY}.alpha", 2), FormatError, "isn't one number"),
    "shape": (added(f"{KEY}.lora_up.weight", 191, 3), UsageError, r"as \[191, 64\], the model as \[192, 64\]"),
    "module": (without("none"), UsageError, "changes 1 module that"),
    "OFT": (added("lora_unet_x.oft_blocks", 3, 3), UnsupportedError, "OFT"),
    "IA3": (added("lora_unet_x.on_input", 1), UnsupportedError, "IA3"),
    "GLoRA": (added("lora_unet_x.a1.weight", 3, 3), UnsupportedError, "GLoRA"),
    "two kinds": (added(f"{KEY}.hada_w1_a", 3, 3), FormatError, "besides the parts of a LoRA"),
    "bias": (added("transformer.x.lora_B.bias", 3), UnsupportedError, "bias"),
    "unknown": (added("lora_unet_x.weight", 3), UnsupportedError, "unknown"),
    "columns' lengths": (added(f"{KEY}.dora_scale", 1, 64), UnsupportedError, "lengths of columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_others_are_refused(name: str, flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    change, error, message = BAD[name]
    base, tensors = flux
    lora = kohya(changes(tensors, [FLUX]), 1.5)
    lora = {key.replace("double", "triple"): t for key, t in lora.items()} if name == "module" else change(lora)
    with pytest.raises(error, match=message):
        merge(base, lora, tmp_path)
    assert not (tmp_path / "m.safetensors").exists()


@pytest.mark.costly
@pytest.mark.parametrize("model", DENOISERS)
def test_a_lora_of_another_model_is_refused(model: str, tmp_path: Path) -> None:
    """Each model's LoRA on every other: its modules are missing, or have other sizes."""
    forms = both(model)["original"]
    pictures.save(tmp_path / "lora.safetensors", kohya(changes(forms, targets(forms)), 1.5))
    for other in (name for name in DENOISERS if name != model):
        base = pictures.save(tmp_path / f"{other}.safetensors", both(other)["original"])
        with pytest.raises((FormatError, UsageError, UnsupportedError)) as caught:
            wb.convert(base, tmp_path / "m.safetensors", lora=tmp_path / "lora.safetensors")
        assert "lora" in str(caught.value).lower()
        assert not (tmp_path / "m.safetensors").exists()


@pytest.mark.parametrize("setting", [{"transformer.use_rslora": True}, {"transformer.lora_bias": True}], ids=str)
def test_settings_that_change_the_result(setting: dict[str, Any], flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    pairs = changes(both("flux")["diffusers"], ["proj_out"])
    metadata = {"lora_adapter_metadata": json.dumps({f"transformer.{key}": value for key, value in setting.items()})}
    with pytest.raises(UnsupportedError, match="isn't an alpha"):
        merge(flux[0], WRITERS["diffusers"][0](pairs, None), tmp_path, metadata)
    with pytest.raises(FormatError, match="isn't a JSON object"):
        merge(flux[0], WRITERS["diffusers"][0](pairs, None), tmp_path, {"lora_adapter_metadata": "["})


def test_a_quantized_base_is_refused(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    base, tensors = flux
    wb.convert(base, tmp_path / "q.gguf", dtype="q8_0")
    with pytest.raises(RefusedError, match="is quantized"):
        merge(tmp_path / "q.gguf", kohya(changes(tensors, [FLUX]), 1.5), tmp_path, name="m.gguf")


def test_no_lora_and_no_picture(flux: tuple[Path, Tensors], tmp_path: Path) -> None:
    base, tensors = flux
    with pytest.raises(UsageError, match="isn't a LoRA of an image or video model"):
        merge(base, {"x.weight": tensors[f"{FLUX}.weight"]}, tmp_path)


@pytest.mark.parametrize("name", ["lora_unet_", "unet.", "transformer.", "diffusion_model."])
def test_each_prefix_is_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = {"lora_unet_": "kohya", "unet.": "unet", "transformer.": "diffusers", "diffusion_model.": "comfy"}[name]
    names = WRITERS[writer][1][-1]
    monkeypatch.setattr(ours, "PREFIXES", tuple(prefix for prefix in ours.PREFIXES if prefix.text != name))
    assert convicts(tmp_path, "flux", "original", writer, names) is not None


@pytest.mark.parametrize("end", [end for end in ours.ENDS if end not in lycoris.ENDS])
def test_each_end_is_needed(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if end in (".dora_scale", ".lora_magnitude_vector"):
        monkeypatch.setattr(ours, "ENDS", {key: part for key, part in ours.ENDS.items() if key != end})
        lora = kohya(changes(both("flux")["original"], [FLUX]), 1.0) | {KEY + end: torch.ones(192, 1)}
        base = pictures.save(tmp_path / "base.safetensors", both("flux")["original"])
        with pytest.raises(UnsupportedError):
            merge(base, lora, tmp_path)
        return
    writer = next(
        name for name, (write, _) in WRITERS.items()
        if any(key.endswith(end) for key in write({"x": (torch.ones(1, 1), torch.ones(1, 1))}, 1.0))
    )  # fmt: skip
    monkeypatch.setattr(ours, "ENDS", {key: part for key, part in ours.ENDS.items() if key != end})
    assert convicts(tmp_path, "flux", "original", writer, WRITERS[writer][1][-1]) is not None
