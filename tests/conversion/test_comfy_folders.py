"""Pipelines as ComfyUI's files: one per part in its folders, and all in one. The denoisers and VAEs begin as the files
that ComfyUI reads, and diffusers' own functions make the pipelines of them; names of text encoders are spelled out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import pictures, pipelines

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.conversion.pipelines import comfy_folders, single_file
from weighbridge.models.diffusion import names
from weighbridge.models.diffusion import places as file_places

torch = pytest.importorskip("torch")
Tensors = dict[str, Any]
SPIECE = bytes(range(200))
T5 = "encoder.block.0.layer.0.SelfAttention.q.weight"
QWEN = (
    "model.embed_tokens.weight",
    "model.layers.0.mlp.up_proj.weight",
    "visual.blocks.0.attn.qkv.weight",
    "lm_head.weight",
)
LLAMA = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight")
MISTRAL = (*LLAMA, "lm_head.weight", "vision_tower.patch_conv.weight")


def in_qwen_folder(name: str) -> str:
    """The names of transformers since 4.52."""
    begins = {"model.": "model.language_model.", "visual.": "model.visual."}
    return next((new + name.removeprefix(old) for old, new in begins.items() if name.startswith(old)), name)


def without_model(name: str) -> str:
    return name.removeprefix("model.")


def in_mistral_folder(name: str) -> str:
    """The names of Mistral3ForConditionalGeneration in transformers 4 and 5."""
    return f"language_model.{name}" if name.startswith(("model.", "lm_head.")) else name


#: Model -> its VAE and its text encoders: part, name of the file, prefix in a checkpoint, names there, and the function
#: that makes those of the folder.
SETS: dict[str, tuple[str, list[tuple[str, str, str, Any, Any]]]] = {
    "flux": ("vae", [
        ("text_encoder", "clip_l", "clip_l", None, None), ("text_encoder_2", "t5xxl", "t5xxl", (T5,), str),
    ]),
    "sd3": ("vae", [
        ("text_encoder", "clip_l", "clip_l", None, None), ("text_encoder_2", "clip_g", "clip_g", None, None),
        ("text_encoder_3", "t5xxl", "t5xxl", (T5,), str),
    ]),
    "wan": ("wan-vae", [("text_encoder", "umt5_xxl", "umt5xxl", (T5,), str)]),
    "qwen-image": ("wan-vae", [("text_encoder", "qwen_2.5_vl_7b", "qwen25_7b", QWEN, in_qwen_folder)]),
    "lumina2": ("vae", [("text_encoder", "gemma_2_2b", "gemma2_2b", LLAMA, without_model)]),
    "z-image": ("vae", [("text_encoder", "qwen_3_4b", "qwen3_4b", LLAMA, without_model)]),
    "ltx": ("ltx-vae", [("text_encoder", "t5xxl", "t5xxl", (T5,), str)]),
    "hunyuan-video": ("hunyuan-video-vae", [
        ("text_encoder", "llava_llama3", "llama", LLAMA, without_model),
        ("text_encoder_2", "clip_l", "clip_l", None, None),
    ]),
    "flux2": ("flux2-vae", [("text_encoder", "mistral_3_small_flux2", "", MISTRAL, in_mistral_folder)]),
    "flux2-klein": ("flux2-vae", [("text_encoder", "qwen_3_4b", "", LLAMA, without_model)]),
    "flux2-klein-9b": ("flux2-vae", [("text_encoder", "qwen_3_8b", "", LLAMA, without_model)]),
}  # fmt: skip
#: VAEs of other versions of a model.
OTHER_VAES = {"wan": ("wan22-vae",), "ltx": ("ltx-vae-0.9.1", "ltx-vae-0.9.5")}
ALONE = ("flux", "sd3", "wan", "qwen-image", "lumina2", "z-image", "ltx", "hunyuan-video")
#: Model -> its tokenizer's tensor, and file.
TOKENIZERS = {
    "wan": ("spiece_model", "spiece.model"), "lumina2": ("spiece_model", "tokenizer.model"),
    "flux2": ("tekken_model", "tekken.json"),
}  # fmt: skip
#: The class of a VAE; that of a denoiser is its table's.
CLASSES = {
    "vae": "AutoencoderKL", "wan-vae": "AutoencoderKLWan", "ltx-vae": "AutoencoderKLLTXVideo",
    "flux2-vae": "AutoencoderKLFlux2", "hunyuan-video-vae": "AutoencoderKLHunyuanVideo",
}  # fmt: skip


def load(path: Path) -> Tensors:
    return dict(pytest.importorskip("safetensors.torch").load_file(path))


def denoiser(model: str) -> Tensors:
    return pictures.values(pictures.MODELS[model]())


def encoder(model: str, part: str) -> tuple[Tensors, Tensors]:
    """A text encoder as ComfyUI and the folder have it."""
    _, _, _, known, folder = next(row for row in SETS[model][1] if row[0] == part)
    if known is None:
        tensors = pipelines.clip(True, 5)
        return tensors, {name.removeprefix("text_model."): t for name, t in tensors.items()}
    tensors = pictures.values(dict.fromkeys(known, (8, 8)), seed=len(part))
    return tensors, {folder(name): t for name, t in tensors.items()}


def write(folder: Path, model: str, noise: bool = False, vae: str | None = None) -> Path:
    parts = {"transformer": pictures.DIFFUSERS[model](denoiser(model))}
    if noise:
        parts["transformer_2"] = {name: t + 1 for name, t in parts["transformer"].items()}
    usual, encoders = SETS[model]
    parts["vae"] = pictures.DIFFUSERS[vae or usual](pictures.values(pictures.MODELS[vae or usual](), seed=2))
    parts |= {part: encoder(model, part)[1] for part, *_ in encoders}
    known = names.table(model)
    assert known is not None
    classes = {**dict.fromkeys(("transformer", "transformer_2"), known.class_name), "vae": CLASSES[usual]}
    pipelines.write(folder, parts, classes=classes)
    if model in TOKENIZERS:
        (folder / "tokenizer" / TOKENIZERS[model][1]).write_bytes(SPIECE)
    return folder


def expected(model: str, noise: bool = False, vae: str | None = None) -> dict[str, Tensors]:
    """The tensors of ComfyUI's files, by their names in its folders."""
    stems = ["Model_high_noise", "Model_low_noise"] if noise else ["Model"]
    files = {f"diffusion_models/{stem}": {n: t + k for n, t in denoiser(model).items()} for k, stem in enumerate(stems)}
    usual, encoders = SETS[model]
    files["vae/Model_vae"] = pictures.values(pictures.MODELS[vae or usual](), seed=2)
    for part, file, *_ in encoders:
        files[f"text_encoders/{file}"] = encoder(model, part)[0] | spiece(model, part)
    return files


def spiece(model: str, part: str) -> Tensors:
    given = model in TOKENIZERS and part == "text_encoder"
    return {TOKENIZERS[model][0]: torch.frombuffer(bytearray(SPIECE), dtype=torch.uint8)} if given else {}


def differs(found: Tensors, wanted: Tensors) -> str | None:
    if set(found) != set(wanted):
        return sorted(set(found) ^ set(wanted))[0]
    return next((name for name, t in wanted.items() if not torch.equal(found[name], t)), None)


def unlike_set(folder: Path, model: str, noise: bool = False, vae: str | None = None) -> str | None:
    """The first file or tensor of a set that isn't ComfyUI's."""
    source = write(folder / "Model", model, noise, vae)
    try:
        wb.convert(source, f"{folder / 'out'}/", comfy_folders=True)
    except (WeighbridgeError, LookupError) as error:
        return repr(error)
    wanted = expected(model, noise, vae)
    made = {path.relative_to(folder / "out").with_suffix("").as_posix(): path for path in (folder / "out").rglob("*.*")
            if path.suffix == ".safetensors"}  # fmt: skip
    if set(made) != set(wanted):
        return f"files {sorted(set(made) ^ set(wanted))}"
    return next((f"{name}: {what}" for name, path in made.items() if (what := differs(load(path), wanted[name]))), None)


def unlike_checkpoint(folder: Path, model: str) -> str | None:
    """The first tensor of a checkpoint that isn't ComfyUI's."""
    source = write(folder / "Model", model)
    try:
        wb.convert(source, folder / "one.safetensors")
    except (WeighbridgeError, LookupError) as error:
        return repr(error)
    wanted = {f"model.diffusion_model.{name}": t for name, t in denoiser(model).items()}
    vae, encoders = SETS[model]
    prefix = "first_stage_model." if model == "sd3" else "vae."
    wanted |= {prefix + name: t for name, t in pictures.values(pictures.MODELS[vae](), seed=2).items()}
    for part, _, key, *_ in encoders:
        wanted |= {f"text_encoders.{key}.transformer.{name}": t for name, t in encoder(model, part)[0].items()}
        wanted |= {f"text_encoders.{name}": t for name, t in spiece(model, part).items()}
    return differs(load(folder / "one.safetensors"), wanted)


@pytest.mark.parametrize("model", SETS)
def test_a_file_for_each_part(model: str, tmp_path: Path) -> None:
    assert unlike_set(tmp_path, model) is None


@pytest.mark.parametrize(("model", "vae"), [(model, vae) for model, each in OTHER_VAES.items() for vae in each])
def test_vaes_of_other_versions(model: str, vae: str, tmp_path: Path) -> None:
    assert unlike_set(tmp_path, model, vae=vae) is None


def test_two_denoisers_are_those_of_high_and_low_noise(tmp_path: Path) -> None:
    assert unlike_set(tmp_path, "wan", noise=True) is None


@pytest.mark.parametrize("model", ALONE)
def test_all_parts_in_one_file(model: str, tmp_path: Path) -> None:
    assert unlike_checkpoint(tmp_path, model) is None


@pytest.mark.parametrize("model", [model for model in SETS if model not in ALONE])
def test_a_checkpoint_without_its_vae_is_refused(model: str, tmp_path: Path) -> None:
    source = write(tmp_path / "Model", model)
    with pytest.raises(UnsupportedError, match="no single file") as raised:
        wb.convert(source, tmp_path / "one.safetensors")
    assert "--comfy-folders" in (raised.value.hint or "")


def faults() -> list[Any]:
    """Columns with tests of their own are left out: versions, Wan's image encoder, those of checkpoints and classes."""
    tested_elsewhere = ("whole", "optional", "spare", "classes")
    return [
        pytest.param(number, part, column, id=f"{row['models'][0]}-{part}-{column}")
        for number, row in enumerate(file_places.tables()) if row["models"][0] in SETS
        for part, columns in row.items() if isinstance(columns, dict) and part not in ("versions", "image_encoder")
        for column in columns if column not in tested_elsewhere
    ]  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize(("number", "part", "column"), faults())
def test_every_column_is_seen(
    number: int, part: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = copy.deepcopy(file_places.tables())[number]
    model = row["models"][0]
    if isinstance(row[part][column], str):
        row[part][column] = "x"
    elif isinstance(row[part][column], list):
        row[part][column] = row[part][column][1:]
    else:
        del row[part][column]
    for module in (single_file, comfy_folders):
        monkeypatch.setattr(module, "places", lambda model: file_places.build_places(row))
    found = [unlike_set(tmp_path / "set", model)]
    found += [unlike_set(tmp_path / vae, model, vae=vae) for vae in OTHER_VAES.get(model, ()) if column == "names"]
    if model in ALONE:
        found.append(unlike_checkpoint(tmp_path / "one", model))
    assert any(found)


def test_a_vae_with_other_blocks_is_left_out(tmp_path: Path) -> None:
    """A file with a part of its tensors would be worse than none."""
    source = write(tmp_path / "Model", "wan")
    file = source / "vae" / "diffusion_pytorch_model.safetensors"
    pictures.save(file, {**load(file), "decoder.up_blocks.0.upsampler.resample.1.weight": torch.zeros(4, 4)})
    result = wb.convert(source, f"{tmp_path / 'out'}/", comfy_folders=True)
    assert not (tmp_path / "out" / "vae").exists()
    assert any(loss.message.startswith("left out: vae") for loss in result.losses)


def test_a_denoiser_is_quantized_like_its_own_file(tmp_path: Path) -> None:
    source = write(tmp_path / "Model", "flux")
    wb.convert(source, f"{tmp_path / 'out'}/", comfy_folders=True, comfy_quant="mxfp8", dtype="bf16")
    wb.convert(source / "transformer", tmp_path / "alone.safetensors", comfy_quant="mxfp8", dtype="bf16")
    made = load(tmp_path / "out" / "diffusion_models" / "Model.safetensors")
    alone = load(tmp_path / "alone.safetensors")
    assert {name: t.dtype for name, t in made.items()} == {name: t.dtype for name, t in alone.items()}
    assert all(torch.equal(made[name].view(torch.uint8), t.view(torch.uint8)) for name, t in alone.items() if t.dim())
    text = load(tmp_path / "out" / "text_encoders" / "t5xxl.safetensors")
    assert {t.dtype for t in text.values()} == {torch.bfloat16}


def test_in_is_out_and_what_is_listed(tmp_path: Path) -> None:
    source = write(tmp_path / "Model", "wan")
    (source / "tokenizer" / "spiece.model").unlink()
    result = wb.convert(source, f"{tmp_path / 'out'}/", comfy_folders=True)
    listed = " ".join(loss.message for loss in result.losses)
    assert "scheduler, tokenizer" in listed
    assert "spiece_model" in listed
    assert len(result.files) == 3


def test_what_is_refused(tmp_path: Path) -> None:
    sd1 = pipelines.write(tmp_path / "sd1", pipelines.PIPELINES["sd1"]())
    with pytest.raises(UnsupportedError, match="no set of files"):
        wb.convert(sd1, f"{tmp_path / 'out'}/", comfy_folders=True)
    with pytest.raises(UsageError, match="isn't a pipeline"):
        wb.convert(sd1 / "unet", f"{tmp_path / 'out'}/", comfy_folders=True)
    with pytest.raises(UsageError, match=r"comfy.folders"):
        wb.convert(sd1, tmp_path / "out.gguf", comfy_folders=True)
    assert not list(tmp_path.glob("out*"))
    assert json.loads((sd1 / "model_index.json").read_text())
