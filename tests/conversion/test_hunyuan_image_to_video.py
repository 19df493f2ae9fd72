"""HunyuanVideo from a picture: its text encoder is a Llava, of which ComfyUI has the language model in text_encoders/
and the tower in clip_vision/. diffusers and transformers make the pipeline and read what returns."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conversion.test_comfy_folders import Tensors, differs, load
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.conversion.pipelines import comfy_folders
from weighbridge.models.diffusion import places as file_places
from weighbridge.models.diffusion import set_parts

torch = pytest.importorskip("torch")
_LLAVA = "LlavaForConditionalGeneration"
_VISION = "clip_vision/llava_llama3_vision.safetensors"
_TEXT = "text_encoders/llava_llama3.safetensors"
_LANGUAGE = "language_model.model."
#: Spellings of a Llava's names: transformers 4 to 4.51, 4.52, and 5 -> beginnings of the first, in order.
SPELLINGS: dict[str, dict[str, str]] = {
    "4": {_LANGUAGE: _LANGUAGE, "vision_tower.": "vision_tower.vision_model."},
    "4.52": {
        _LANGUAGE: "model.language_model.", "language_model.lm_head.": "lm_head.",
        "vision_tower.": "model.vision_tower.vision_model.", "multi_modal_projector.": "model.multi_modal_projector.",
    },
    "5": {},
    "5, in memory": {
        _LANGUAGE: "model.language_model.", "language_model.lm_head.": "lm_head.",
        "vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector.",
    },
}  # fmt: skip


def spelled(name: str, spelling: str) -> str:
    begin = next((begin for begin in SPELLINGS[spelling] if name.startswith(begin)), "")
    return SPELLINGS[spelling].get(begin, "") + name.removeprefix(begin)


def made(channels: int) -> Any:
    """A small pipeline. `channels`: 33 if the picture is joined to the noise, 16 if it replaces the first frame."""
    diffusers, transformers = pytest.importorskip("diffusers"), pytest.importorskip("transformers")
    torch.manual_seed(channels)
    transformer = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=channels, out_channels=16, num_attention_heads=2, attention_head_dim=16, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, text_embed_dim=32, pooled_projection_dim=32,
        rope_axes_dim=(4, 6, 6), image_condition_type="latent_concat" if channels == 33 else "token_replace",
    )  # fmt: skip
    vae = diffusers.AutoencoderKLHunyuanVideo(block_out_channels=(8, 8, 8, 8), norm_num_groups=4, layers_per_block=1)
    clip = {"intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    vision = transformers.CLIPVisionConfig(hidden_size=16, image_size=28, patch_size=14, **clip)
    text = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64,
    )  # fmt: skip
    llava = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(vision_config=vision, text_config=text))
    second = transformers.CLIPTextModel(transformers.CLIPTextConfig(hidden_size=32, vocab_size=100, **clip))
    return diffusers.HunyuanVideoImageToVideoPipeline(
        text_encoder=llava, text_encoder_2=second, transformer=transformer, vae=vae, tokenizer=None, tokenizer_2=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), image_processor=transformers.CLIPImageProcessor(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, Any]]:
    known: dict[int, tuple[Path, Any]] = {}

    def model(channels: int) -> tuple[Path, Any]:
        if channels not in known:
            pipeline = made(channels)
            pipeline.save_pretrained(path := tmp_path_factory.mktemp("hunyuan") / "Model")
            known[channels] = path, pipeline
        return known[channels]

    return model


@pytest.mark.parametrize("channels", [16, 33])
def test_a_set_and_back(channels: int, models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    source, whole = models(channels)
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    vision, text = load(tmp_path / "set" / _VISION), load(tmp_path / "set" / _TEXT)
    llava = whole.text_encoder
    assert differs(text, {f"model.{n}": t for n, t in llava.model.language_model.state_dict().items()}
                   | {"lm_head.weight": llava.lm_head.weight}) is None  # fmt: skip
    tower = {n.removeprefix("vision_model."): t for n, t in llava.model.vision_tower.state_dict().items()}
    projector = llava.model.multi_modal_projector.state_dict().items()
    assert differs(vision, {f"vision_model.{n}": t for n, t in tower.items()}
                   | {f"multi_modal_projector.{n}": t for n, t in projector}) is None  # fmt: skip
    denoiser = pictures.DIFFUSERS["hunyuan-video"](load(tmp_path / "set/diffusion_models/Model.safetensors"))
    assert differs(denoiser, dict(whole.transformer.state_dict())) is None
    wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=source)
    other = type(whole).from_pretrained(tmp_path / "back", local_files_only=True, tokenizer=None, tokenizer_2=None)
    for part in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        assert differs(dict(getattr(other, part).state_dict()), dict(getattr(whole, part).state_dict())) is None


def respelled(source: Path, target: Path, spelling: str) -> Path:
    """The pipeline with a spelling of the text encoder's names."""
    shutil.copytree(source, target)
    file = target / "text_encoder/model.safetensors"
    pictures.save(file, {spelled(name, spelling): tensor for name, tensor in load(file).items()})
    return target


def unlike_set(source: Path, spelling: str, folder: Path) -> str | None:
    """The first tensor of the text encoder's files, and of the folder that returns, that isn't the one of transformers
    4 (`spelling` only has other names)."""
    first, other = (respelled(source, folder / name / "Model", name) for name in ("4", spelling))
    try:
        wb.convert(other, f"{folder / 'set'}/", comfy_folders=True)
        wb.convert(folder / "set", f"{folder / 'back'}/", config=first)
    except WeighbridgeError as error:
        return error.message
    wanted = load(first / "text_encoder/model.safetensors")
    if "lm_head.weight" not in load(folder / "set" / _TEXT):
        return "lm_head.weight"
    return differs(load(folder / "back/text_encoder/model.safetensors"), wanted)


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if name != "4"])
def test_every_spelling_of_llava(spelling: str, models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    assert unlike_set(models(33)[0], spelling, tmp_path) is None


def columns() -> list[Any]:
    row = next(row for row in file_places.tables() if row["models"] == ["hunyuan-video"])
    known = row["text_encoder"]["classes"][_LLAVA]
    keys = [("renamed", key) for key in known["renamed"]]
    keys += [("sidecar", key) for key in ("file", "folder", *known["sidecar"]["renamed"])]
    return [pytest.param(column, key, id=f"{column}-{key}") for column, key in keys]


@pytest.mark.mutation
@pytest.mark.parametrize(("column", "key"), columns())
def test_every_column_is_seen(
    column: str, key: str, models: Callable[[int], tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(copy.deepcopy(row) for row in file_places.tables() if row["models"] == ["hunyuan-video"])
    place = row["text_encoder"]["classes"][_LLAVA]
    if key in ("file", "folder"):
        place["sidecar"][key] = "x"
    else:
        del (place["renamed"] if column == "renamed" else place["sidecar"]["renamed"])[key]
    for module in (comfy_folders, set_parts):
        monkeypatch.setattr(module, "places", lambda model: file_places.build_places(row))
    found = []
    for spelling in ("5", "4.52", "5, in memory"):
        found.append(unlike_set(models(33)[0], spelling, tmp_path / spelling))
        found.append(None if (tmp_path / spelling / "set" / _VISION).exists() else "no such file")
    assert any(found)


def test_a_language_model_in_a_gguf(models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    source, _ = models(16)
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    (tmp_path / "set" / _TEXT).unlink()
    gguf = tmp_path / "set/text_encoders/llava_llama3.gguf"
    wb.convert(source / "text_encoder", gguf, dtype="f32", tokenizer=False)
    wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=source)
    back = load(tmp_path / "back/text_encoder/model.safetensors")
    wanted = load(respelled(source, tmp_path / "4", "4") / "text_encoder/model.safetensors")
    assert differs(back, wanted) is None


def test_a_single_file_has_no_tower(models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    """ComfyUI reads none from a checkpoint, and Llava has one."""
    source, _ = models(33)
    result = wb.convert(source, one := tmp_path / "one.safetensors")
    assert any("43 tensors of text_encoder" in loss.message and "clip_vision" in loss.message for loss in result.losses)
    assert not any("vision" in name or "projector" in name for name in load(one))
    with pytest.raises(UsageError, match=r"has no vision_model\.\* and multi_modal_projector\.\*") as raised:
        wb.convert(one, f"{tmp_path / 'back'}/", config=source)
    assert "clip_vision/llava_llama3_vision.safetensors" in (raised.value.hint or "")
    assert not (tmp_path / "back").exists()


def test_the_towers_file_decides_which_pipeline(models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    """Two of the three models have the same tensors in their denoiser."""
    source, _ = models(16)
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)

    def hint(**options: Any) -> str:
        with pytest.raises(UsageError) as raised:
            wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", **options)
        return raised.value.hint or ""

    assert "hunyuanvideo-community/HunyuanVideo-I2V:" in hint()
    texts = respelled(source, tmp_path / "texts", "5")
    index = json.loads((texts / "model_index.json").read_text()) | {"text_encoder": ["transformers", "LlamaModel"]}
    (texts / "model_index.json").write_text(json.dumps(index))
    result = wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=texts)
    assert any(f"left out: {_VISION}" in loss.message for loss in result.losses)
    assert not any("vision" in name for name in load(tmp_path / "back/text_encoder/model.safetensors"))
    shutil.rmtree(tmp_path / "back")
    (tmp_path / "set" / _VISION).rename(tmp_path / "away")
    assert "hunyuanvideo-community/HunyuanVideo:" in hint()
    assert _VISION in hint(config=source)
    assert wb.identify(source / "transformer").title is not None


def test_concatenated_channels_have_a_pipeline_of_their_own(
    models: Callable[[int], tuple[Path, Any]], tmp_path: Path
) -> None:
    source, _ = models(33)
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    with pytest.raises(UsageError) as raised:
        wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/")
    assert "HunyuanVideo-I2V-33ch" in (raised.value.hint or "")
    with pytest.raises(UsageError, match="in_channels = 16, but"):
        wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=models(16)[0])


@pytest.mark.parametrize("how", ["convert", "quantize"])
def test_ggufs_without_a_tokenizer(how: str, models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    """The denoiser has none to leave out; the tower has no place in the language model's GGUF."""
    source, _ = models(16)
    if how == "convert":
        plan = wb.plan_convert(source, f"{tmp_path / 'out'}/", to="gguf", dtype="q8_0", tokenizer=False)
    else:
        plan = wb.plan_quantize(source, tmp_path / "out", "Q4_0", tokenizer=False)
    plan.run()
    assert {path.stem for path in (tmp_path / "out").rglob("*.gguf")} == {"transformer", "text_encoder"}
    assert any("vision_tower" in loss.message for loss in plan.losses)


def test_looking_at_the_set(models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    source, _ = models(33)
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    report = wb.identify(tmp_path / "set")
    files = sorted(path.relative_to(tmp_path / "set").as_posix() for path in (tmp_path / "set").glob("*/*"))
    assert (report.format, report.readable, report.detail["components"]) == ("comfyui", True, files)
    assert "HunyuanVideo image to video" in wb.identify(tmp_path / "set/diffusion_models/Model.safetensors").evidence
    assert wb.verify(tmp_path / "set").ok


def test_quantized_parts_are_decoded(models: Callable[[int], tuple[Path, Any]], tmp_path: Path) -> None:
    """ComfyUI publishes the language model with scaled FP8 matrices."""
    source, _ = models(16)
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    text: Tensors = load(tmp_path / "set" / _TEXT)
    name = "model.layers.0.mlp.up_proj"
    scaled = (text[f"{name}.weight"] / 0.5).to(torch.float8_e4m3fn)
    more = {
        f"{name}.weight": scaled,
        f"{name}.scale_weight": torch.tensor(0.5),
        "scaled_fp8": scaled.flatten()[:2].clone(),
    }
    pictures.save(tmp_path / "set" / _TEXT, text | more)
    wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=source)
    back = load(tmp_path / "back/text_encoder/model.safetensors")
    assert torch.equal(back[f"{_LANGUAGE}{name.removeprefix('model.')}.weight"], scaled.float() * 0.5)
    assert not any("scale" in key for key in back)
