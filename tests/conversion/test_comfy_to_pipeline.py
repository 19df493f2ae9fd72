"""ComfyUI's files as a pipeline of diffusers again. diffusers' own functions made the pipelines that the sets are of,
so every tensor and every small file must return."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conversion import test_comfy_folders as sets
from tests.golden_files import tensor_bytes
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.models.diffusion import places as file_places
from weighbridge.models.diffusion import set_parts

torch = pytest.importorskip("torch")
CASES: list[tuple[str, str | None, bool]] = [(model, None, False) for model in sets.SETS]
CASES += [(model, vae, False) for model, each in sets.OTHER_VAES.items() for vae in each] + [("wan", None, True)]


def make(folder: Path, model: str, vae: str | None = None, noise: bool = False) -> tuple[Path, Path]:
    """A pipeline and its set of files."""
    source = sets.write(folder / "Model", model, noise, vae)
    wb.convert(source, f"{folder / 'set'}/", comfy_folders=True)
    return source, folder / "set"


def unlike(found: Path, source: Path, below: tuple[str, ...] = ("text_model.", "model.")) -> str | None:
    """The first file of a pipeline that isn't the source's, or its first tensor. `below`: a beginning of the names of
    text encoders, with and without which transformers reads them."""

    def short(tensors: sets.Tensors, encoder: bool) -> sets.Tensors:
        start = next((b for b in below if encoder and any(name.startswith(b) for name in tensors)), "")
        return {name.removeprefix(start): tensor for name, tensor in tensors.items()}

    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    if other := files ^ {path.relative_to(found) for path in found.rglob("*") if path.is_file()}:
        return f"files: {sorted(map(str, other))[0]}"
    for file in files:
        if file.suffix != ".safetensors":
            if (found / file).read_bytes() != (source / file).read_bytes():
                return str(file)
            continue
        encoder = file.parts[0].startswith("text_encoder")
        one, other_tensors = (short(sets.load(folder / file), encoder) for folder in (found, source))
        if what := sets.differs(one, other_tensors):
            return f"{file}: {what}"
    return None


@pytest.mark.parametrize(("model", "vae", "noise"), CASES)
def test_a_pipeline_returns(model: str, vae: str | None, noise: bool, tmp_path: Path) -> None:
    source, files = make(tmp_path, model, vae, noise)
    wb.convert(files, f"{tmp_path / 'back'}/", config=source)
    assert unlike(tmp_path / "back", source) is None


def faults() -> list[Any]:
    return [
        pytest.param(number, part, column, id=f"{row['models'][0]}-{part}-{column}")
        for number, row in enumerate(file_places.tables()) if row["models"][0] in sets.SETS
        for part in row if isinstance(row[part], dict) and part not in ("versions", "image_encoder")
        for column in row[part] if column in ("names", "renamed", "tokenizer", "file")
    ]  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize(("number", "part", "column"), faults())
def test_every_column_is_seen(
    number: int, part: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = copy.deepcopy(file_places.tables())[number]
    model = row["models"][0]
    made = [
        make(tmp_path / str(vae), model, vae)
        for vae in (None, *sets.OTHER_VAES.get(model, ())) if vae is None or column == "names"
    ]  # fmt: skip
    if column == "names":
        row[part][column] = row[part][column][1:] if isinstance(row[part][column], list) else "x"
    else:
        del row[part][column]
    if column == "tokenizer":  # that of the pipeline is used, if it has one
        (tmp_path / "None/Model/tokenizer" / sets.TOKENIZERS[model][1]).unlink()
    monkeypatch.setattr(set_parts, "places", lambda model: file_places.build_places(row))
    found = []
    for source, files in made:
        try:
            wb.convert(files, f"{files.parent / 'back'}/", config=source)
            found.append(unlike(files.parent / "back", source))
            if column == "tokenizer":
                found.append(None if list((files.parent / "back/tokenizer").glob("*.[jm]*")) else "no tokenizer")
        except WeighbridgeError as error:
            found.append(error.message)
    assert any(found)


def test_a_tokenizer_comes_from_the_file_of_the_encoder(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux2")
    (source / "tokenizer" / "tekken.json").unlink()
    wb.convert(files, f"{tmp_path / 'back'}/", config=source)
    assert (tmp_path / "back/tokenizer/tekken.json").read_bytes() == sets.SPIECE


def rows() -> list[Any]:
    return [pytest.param(row, id=row["models"][0]) for row in file_places.tables() if row["models"][0] in sets.SETS]


def files_of(row: dict[str, Any]) -> dict[str, file_places.PartPlace]:
    """The parts of a row that have a file with a usual name, and those of second files."""
    parts = file_places.build_places(row).parts
    second = {f"{part}, sidecar": place.any_sidecar for part, place in parts.items() if place.any_sidecar}
    return {part: place for part, place in {**parts, **second}.items() if place.file}


def renamed(row: dict[str, Any]) -> dict[str, set[str]]:
    """The encoders of a model in files of other names, each with the tensors by which ComfyUI recognises it."""
    encoders = [place.file for place in files_of(row).values()]
    found = {f"file {n}": {file_places.marks()[name]} for n, name in enumerate(encoders)}
    if "clip_g" in encoders:  # a longer CLIP has the tensor of a shorter one
        found[f"file {encoders.index('clip_g')}"].add(file_places.marks()["clip_l"])
    return found


@pytest.mark.parametrize("row", rows())
def test_encoders_in_files_of_other_names(row: dict[str, Any], tmp_path: Path) -> None:
    known = files_of(row)
    assert set_parts.assign(known, renamed(row), tmp_path) == {part: f"file {n}" for n, part in enumerate(known)}
    known = {part: place for part, place in known.items() if "sidecar" not in part}  # in a folder of its own
    published = {f"{place.file.upper()}_fp8_scaled": set[str]() for place in known.values()}
    assert list(set_parts.assign(known, published, tmp_path)) == list(known)


@pytest.mark.mutation
@pytest.mark.parametrize("name", file_places.marks())
def test_every_mark_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(r for r in file_places.tables() if name in (place.file for place in files_of(r).values()))
    files, known = renamed(row), files_of(row)
    monkeypatch.setattr(set_parts, "marks", lambda: {**file_places.marks(), name: "x"})
    assert len(set_parts.assign(known, files, tmp_path)) < len(files)


def test_every_file_has_a_mark() -> None:
    files = {place.file for row in file_places.tables() for place in files_of(row).values()}
    assert files == set(file_places.marks())


@pytest.mark.parametrize("row", rows())
def test_without_a_config_the_next_step_is_named(row: dict[str, Any], tmp_path: Path) -> None:
    _, files = make(tmp_path, row["models"][0])
    with pytest.raises(UsageError, match=r"has no model_index.json") as raised:
        wb.convert(files, f"{tmp_path / 'back'}/")
    pipelines = {row["configs"], *row.get("versions", {}).values()}
    assert any(f"hf://{name}:" in (raised.value.hint or "") for name in pipelines)
    assert not (tmp_path / "back").exists()


def test_a_real_pipeline_of_diffusers(tmp_path: Path) -> None:
    """Saved, converted to ComfyUI's files and back, and loaded again by diffusers."""
    diffusers, transformers = pytest.importorskip("diffusers"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=True, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    vae = diffusers.AutoencoderKL(block_out_channels=[8] * 4, norm_num_groups=4, layers_per_block=2, **blocks)
    clip = transformers.CLIPTextConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=100
    )
    t5 = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=96)
    whole = diffusers.FluxPipeline(
        transformer=transformer, vae=vae, text_encoder=transformers.CLIPTextModel(clip), tokenizer=None,
        text_encoder_2=transformers.T5EncoderModel(t5), tokenizer_2=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    whole.save_pretrained(tmp_path / "Model")
    wb.convert(tmp_path / "Model", f"{tmp_path / 'set'}/", comfy_folders=True)
    wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=tmp_path / "Model")
    other = diffusers.FluxPipeline.from_pretrained(
        tmp_path / "back", local_files_only=True, tokenizer=None, tokenizer_2=None
    )  # fmt: skip
    for part in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        expected, found = getattr(whole, part).state_dict(), getattr(other, part).state_dict()
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_other_targets_of_a_set(tmp_path: Path) -> None:
    """A checkpoint, a folder of GGUFs and another set are those of the pipeline."""
    source, files = make(tmp_path, "flux")
    targets: dict[str, dict[str, Any]] = {
        "one.safetensors": {}, "ggufs/": {"to": "gguf", "dtype": "q8_0"}, "again/": {"comfy_folders": True},
    }  # fmt: skip
    givens: list[tuple[Path, dict[str, Any]]] = [(source, {}), (files, {"config": source})]
    for name, options in targets.items():
        for folder, more in givens:
            wb.convert(folder, f"{tmp_path / folder.name}-{name}", **options, **more)
    one, other = (sets.load(tmp_path / f"{name}-one.safetensors") for name in ("Model", "set"))
    assert sets.differs(other, one) is None
    gguf = "transformer/transformer.gguf"
    assert tensor_bytes(tmp_path / "set-ggufs" / gguf) == tensor_bytes(tmp_path / "Model-ggufs" / gguf)
    again = sets.load(tmp_path / "set-again/diffusion_models/set.safetensors")
    assert sets.differs(again, sets.load(files / "diffusion_models/Model.safetensors")) is None
    wb.quantize(files, tmp_path / "q4", "Q4_0", config=source)
    assert (tmp_path / "q4" / gguf).exists()


@pytest.mark.parametrize("form", ["fp8_scaled", "nvfp4", "gguf"])
def test_a_quantized_denoiser_is_decoded(form: str, tmp_path: Path) -> None:
    """Under the folder names of older releases of ComfyUI."""
    source, files = make(tmp_path, "flux")
    plain = files / "diffusion_models/Model.safetensors"
    quantized = tmp_path / f"quantized.{'gguf' if form == 'gguf' else 'safetensors'}"
    options: dict[str, Any] = {"dtype": "q8_0"} if form == "gguf" else {"comfy_quant": form}
    wb.convert(plain, quantized, **options)
    wb.convert(quantized, tmp_path / "decoded.safetensors", dtype="f32")
    shutil.rmtree(files / "diffusion_models")
    (files / "unet").mkdir()
    shutil.copy(quantized, files / "unet")
    (files / "text_encoders").rename(files / "clip")
    plan = wb.plan_convert(files, f"{tmp_path / 'back'}/", config=source, dtype="f32")
    plan.run()
    found = sets.load(tmp_path / "back/transformer/diffusion_pytorch_model.safetensors")
    wanted = pictures.DIFFUSERS["flux"](sets.load(tmp_path / "decoded.safetensors"))
    assert sets.differs(found, wanted) is None
    if form != "gguf":
        assert any("transformer: " in note and "decoded" in note for note in plan.notes)


def test_parts_without_a_file_and_files_without_a_part(tmp_path: Path) -> None:
    source, files = make(tmp_path, "wan")
    index = json.loads((source / "model_index.json").read_text())
    index |= {
        "image_encoder": ["transformers", "CLIPVisionModel"],
        "image_processor": ["transformers", "CLIPImageProcessor"],
    }
    (source / "model_index.json").write_text(json.dumps(index))
    shutil.copy(files / "text_encoders/umt5_xxl.safetensors", files / "text_encoders/other.safetensors")
    result = wb.convert(files, f"{tmp_path / 'back'}/", config=source)
    listed = [loss.message for loss in result.losses]
    assert any("image_encoder (CLIPVisionModel)" in message for message in listed)
    assert any("text_encoders/other.safetensors" in message for message in listed)
    assert any("image_processor" in message and "no such folder" in message for message in listed)
    written = json.loads((tmp_path / "back/model_index.json").read_text())
    assert written == {**index, "image_encoder": [None, None]}


@pytest.mark.parametrize("below", ["vision_model.", ""])  # transformers 4, and 5 for the class without a projection
def test_the_image_encoder_has_a_folder(below: str, tmp_path: Path) -> None:
    """That of Wan's image to video, in ComfyUI's clip_vision/."""
    source = sets.write(tmp_path / "Model", "wan")
    known = ("encoder.layers.30.layer_norm1.weight", "embeddings.class_embedding")
    tensors = pictures.values({f"{below}{name}": (8,) for name in known}, seed=7)
    (source / "image_encoder").mkdir()
    (source / "image_encoder/config.json").write_text(json.dumps({"num_hidden_layers": 1, "hidden_size": 8}))
    tensors[f"{below}embeddings.patch_embedding.weight"] = torch.ones(8, 3, 2, 2)
    tensors["visual_projection.weight"] = torch.ones(4, 8)
    pictures.save(source / "image_encoder/model.safetensors", tensors)
    index = json.loads((source / "model_index.json").read_text())
    index["image_encoder"] = ["transformers", "CLIPVisionModelWithProjection"]
    (source / "model_index.json").write_text(json.dumps(index))
    result = wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    assert not any("image_encoder" in loss.message for loss in result.losses)
    made = tmp_path / "set/clip_vision/clip_vision_h.safetensors"
    named = {f"vision_model.{n.removeprefix(below)}" if "visual" not in n else n: t for n, t in tensors.items()}
    assert sets.differs(sets.load(made), named) is None
    for name in ("clip_vision_h_fp16", "other"):  # by its name, and by its tensors
        made = made.rename(made.with_stem(name))
        wb.convert(tmp_path / "set", f"{tmp_path / name}/", config=source)
        back = sets.load(tmp_path / name / "image_encoder/model.safetensors")
        assert sets.differs(back, named) is None
        assert json.loads((tmp_path / name / "model_index.json").read_text()) == index
    one = wb.convert(source, tmp_path / "one.safetensors")
    assert any("left out: image_encoder" in loss.message for loss in one.losses)
    config = source / "image_encoder/config.json"
    config.write_text(json.dumps({"num_hidden_layers": 32, "hidden_size": 8}))
    assert "--config" in refuse(
        tmp_path / "set", source, "num_hidden_layers = 32, but clip_vision/other.safetensors has 1"
    )


def refuse(files: Path, source: Path, what: str) -> str:
    with pytest.raises((UsageError, UnsupportedError), match=what) as raised:
        wb.convert(files, f"{files.parent / 'back'}/", config=source)
    assert not (files.parent / "back").exists()
    return raised.value.hint or ""


def test_what_is_refused(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    for folder, file, what in (
        ("vae", "Model_vae", "several VAEs"), ("diffusion_models", "Model", "has 2 diffusion models"),
        ("text_encoders", "t5xxl", "several files for text_encoder_2"),
    ):  # fmt: skip
        copied = shutil.copy(files / folder / f"{file}.safetensors", files / folder / f"{file}_fp16.safetensors")
        assert "one model" in refuse(files, source, what)
        Path(copied).unlink()
    for name, what, where in (
        ("text_encoders/t5xxl", "no file of text_encoder_2", "text_encoders/t5xxl"),
        ("vae/Model_vae", "no file of vae", "vae"),
    ):  # fmt: skip
        away = (files / f"{name}.safetensors").rename(tmp_path / "away")
        assert where in refuse(files, source, what)
        away.rename(files / f"{name}.safetensors")
    config = (source / "vae/config.json").rename(tmp_path / "config.json")
    refuse(files, source, r"has no vae/config\.json")
    config.rename(source / "vae/config.json")
    wan, _ = make(tmp_path / "wan", "wan")
    assert "FLUX.1-dev" in refuse(files, wan, "of the class WanTransformer3DModel")
    shutil.copy(tmp_path / "wan/set/vae/Model_vae.safetensors", files / "vae/Model_vae.safetensors")
    refuse(files, source, "Wan VAE, which isn't the vae of FLUX")
    pictures.save(files / "vae/Model_vae.safetensors", {"x": torch.zeros(2)})
    refuse(files, source, "no model that is known")
    pictures.save(files / "diffusion_models/Model.safetensors", {"x": torch.zeros(2)})
    refuse(files, source, "no image or video model")
    pictures.save(files / "diffusion_models/Model.safetensors", pictures.values(pictures.MODELS["sd1"]()))
    refuse(files, source, "no set of files of Stable Diffusion 1")


def test_two_denoisers_need_a_pipeline_with_two(tmp_path: Path) -> None:
    source, files = make(tmp_path, "wan", noise=True)
    one, _ = make(tmp_path / "one", "wan")
    refuse(files, one, "has no transformer_2")
    (files / "diffusion_models/Model_low_noise.safetensors").unlink()
    assert "diffusion_models" in refuse(files, source, "no file of transformer_2")


def test_looking_at_a_set(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    report = wb.inspect(files)
    assert report.parameters == wb.inspect(source).parameters
    assert any(tensor.name.startswith("vae/Model_vae.") for tensor in report.tensors)
    assert wb.identify(files).title


def test_a_folder_of_diffusers_without_its_index_is_no_set(tmp_path: Path) -> None:
    source = sets.write(tmp_path / "Model", "flux")
    (source / "model_index.json").unlink()
    (source / "transformer").rename(source / "unet")
    with pytest.raises(UsageError, match="holds no weights"):
        wb.inspect(source)


def test_a_slice_of_a_set_lacks_what_was_dropped(tmp_path: Path) -> None:
    source, files = make(tmp_path, "flux")
    whole, part = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    wb.convert(files, whole, config=source)
    wb.slice(files, part, drop=["diffusion_models/Model.img_in.bias"], config=source)
    assert set(sets.load(whole)) - set(sets.load(part)) == {"model.diffusion_model.img_in.bias"}
    with pytest.raises(UsageError, match="no tensors of a diffusion model"):
        wb.slice(files, tmp_path / "out.safetensors", config=source, keep=["vae/*"])
    with pytest.raises(UsageError, match="no file of vae"):
        wb.slice(files, tmp_path / "out.safetensors", config=source, drop=["vae/*"])
    assert not (tmp_path / "out.safetensors").exists()
