"""Diffusers pipelines as a whole: every command on the folder, and conversions of all parts at once."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden_files import tensor_bytes
from tests.oracles import pictures, pipelines, vocabularies

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.conversion.pipelines import folder as pipeline_folder
from weighbridge.conversion.pipelines import single_file
from weighbridge.models.diffusion import pipeline as pipeline_parts
from weighbridge.models.diffusion import places as file_places

torch = pytest.importorskip("torch")
ALL = {**pipelines.PIPELINES, **pipelines.FOLDERS}
MODELS = {name: [part for part in make()] for name, make in ALL.items()}


def load(path: Path) -> dict[str, Any]:
    return dict(pytest.importorskip("safetensors.torch").load_file(path))


def load_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """The tensors of each folder with safetensors."""
    parts: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/*.safetensors")):
        parts.setdefault(path.parent.name, {}).update(load(path))
    return parts


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("pipelines")

    def folder(name: str) -> Path:
        if not (base / name).exists():
            pipelines.write(base / name, ALL[name]())
        return base / name

    return folder


# ---- a single file ----


def convicts(model: str, folder: Path, out: Path) -> str | None:
    """The first tensor of a part that diffusers doesn't read from our single file as the folder has it."""
    expected = ALL[model]()
    try:
        wb.convert(folder, out, overwrite=True)
        found = pipelines.read_single_file(model, load(out))
    except (WeighbridgeError, LookupError) as error:
        return repr(error)
    for part, tensors in expected.items():
        for name, tensor in tensors.items():
            if name not in found[part] or not torch.equal(found[part][name], tensor):
                return f"{part}.{name}"
        if extra := set(found[part]) - set(tensors):
            return f"{part}.{extra.pop()}"
    return None


@pytest.mark.costly
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("model", pipelines.PIPELINES)
def test_diffusers_reads_the_single_file(model: str, flat: bool, tmp_path: Path) -> None:
    """Also with the names of CLIP in transformers 5."""
    parts = ALL[model]()
    folder = pipelines.write(tmp_path / "p", pipelines.flattened(parts) if flat else parts)
    assert convicts(model, folder, tmp_path / "single.safetensors") is None
    report = wb.inspect(tmp_path / "single.safetensors")
    assert report.tensor_count <= sum(map(len, parts.values()))
    assert report.parameters == wb.inspect(folder).parameters
    assert "with VAE" in (report.model.kind or "")


def faults() -> list[Any]:
    found = []
    for number, row in enumerate(file_places.tables()):
        if row["models"][0] not in pipelines.PIPELINES:
            continue  # test_comfy_folders.py has the others
        for part, columns in row.items():
            if isinstance(columns, dict) and part != "versions":
                found += [
                    pytest.param(number, part, column, id=f"{row['models'][0]}-{part}-{column}")
                    for column in columns if column not in ("file", "optional", "spare")
                ]  # fmt: skip
                found.append(pytest.param(number, part, None, id=f"{row['models'][0]}-{part}"))
    return found


@pytest.mark.mutation
@pytest.mark.parametrize(("number", "part", "column"), faults())
def test_every_row_is_seen(
    number: int, part: str, column: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = copy.deepcopy(file_places.tables())
    row = damaged[number]
    if column is None:
        del row[part]
    elif column == "prefix":
        row[part]["prefix"] = "x."
    else:
        del row[part][column]
    monkeypatch.setattr(single_file, "places", lambda model: file_places.build_places(row))
    model = row["models"][0]
    folder = pipelines.write(tmp_path / "p", pipelines.flattened(ALL[model]()))
    assert convicts(model, folder, tmp_path / "single.safetensors") is not None


def test_a_real_pipeline_of_diffusers(tmp_path: Path) -> None:
    """Saved, converted to a file and to another folder, and loaded again by diffusers' own pipeline."""
    diffusers = pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    levels = {"block_out_channels": (16, 16, 32, 32), "norm_num_groups": 8, "layers_per_block": 2}
    unet = diffusers.UNet2DConditionModel(**levels, sample_size=8, cross_attention_dim=768, attention_head_dim=8)
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    vae = diffusers.AutoencoderKL(block_out_channels=[8] * 4, norm_num_groups=4, layers_per_block=2, **blocks)
    config = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=100
    )
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b</w>": 1, "<|startoftext|>": 2, "<|endoftext|>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    whole = diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=transformers.CLIPTextModel(config), tokenizer=tokenizer, unet=unet,
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    whole.save_pretrained(tmp_path / "p")
    wb.convert(tmp_path / "p", tmp_path / "single.safetensors")
    wb.convert(tmp_path / "p", f"{tmp_path}/shards/", max_shard_size=1 << 20)
    options = {"safety_checker": None, "local_files_only": True}
    load_file = diffusers.StableDiffusionPipeline.from_single_file
    for other in (
        load_file(str(tmp_path / "single.safetensors"), config=str(tmp_path / "p"), **options),
        diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "shards", **options),
    ):
        for part in ("unet", "vae", "text_encoder"):
            expected, found = getattr(whole, part).state_dict(), getattr(other, part).state_dict()
            assert set(found) == set(expected)
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


OLD_NAMES = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


@pytest.mark.parametrize("missing", [None, *OLD_NAMES])
def test_a_vae_of_an_old_diffusers(missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of Stable Diffusion 1.5 on the Hub have these names."""
    from weighbridge.models.diffusion import names

    parts = ALL["sd1"]()
    old = {name: t for name, t in parts["vae"].items()}
    for new, former in OLD_NAMES.items():
        old = {name.replace(f"attentions.0.{new}.", f"attentions.0.{former}."): t for name, t in old.items()}
    assert set(old) != set(parts["vae"])
    folder = pipelines.write(tmp_path / "p", {**parts, "vae": old})
    if missing is not None:
        raw = {**names.documents()["vae"], "older": {f".{v}": f".{k}" for k, v in OLD_NAMES.items() if k != missing}}
        damaged = names.build_table(raw)
        monkeypatch.setattr(file_places, "table", lambda model: damaged if model == "vae" else names.table(model))
    assert (convicts("sd1", folder, tmp_path / "single.safetensors") is None) == (missing is None)


# ---- folders ----


@pytest.mark.costly
@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}, {"max_shard_size": 40_000}, {"to": "torch"}], ids=str)
@pytest.mark.parametrize("model", ALL)
def test_a_folder_is_its_parts_converted(
    model: str, options: dict[str, Any], folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """In = out: every file of a part is the one that its own conversion writes; the others are copied."""
    folder, out = folders(model), tmp_path / "out"
    wb.convert(folder, f"{out}/", **options)
    for part in MODELS[model]:
        wb.convert(folder / part, f"{tmp_path}/{part}/", **options)
        one, other = (
            {path.name: path.read_bytes() for path in place.iterdir()} for place in (out / part, tmp_path / part)
        )
        assert one == other
        stem = {"text": "pytorch_model" if "to" in options else "model"}.get(part[:4], "diffusion_pytorch_model")
        assert any(name.startswith(stem) for name in one)
    for name in ("model_index.json", "README.md", "scheduler/scheduler_config.json", "tokenizer/merges.txt"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    assert wb.inspect(out).parameters == wb.inspect(folder).parameters
    assert wb.identify(out).title == wb.identify(folder).title


@pytest.mark.costly
@pytest.mark.parametrize("how", ["convert", "quantize"])
@pytest.mark.parametrize("model", ALL)
def test_ggufs_of_a_folder(model: str, how: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder, out = folders(model), tmp_path / "out"
    if how == "convert":
        plan = wb.plan_convert(folder, f"{out}/", to="gguf", dtype="q8_0")
    else:
        plan = wb.plan_quantize(folder, out, "Q4_0")
    plan.run()
    denoisers = [part for part in MODELS[model] if part.startswith(("unet", "transformer"))]
    for part in denoisers:
        alone = tmp_path / f"{part}.gguf"
        if how == "convert":
            wb.convert(folder / part, alone, dtype="q8_0")
        else:
            wb.quantize(folder / part, alone, "Q4_0")
        assert (out / part / f"{part}.gguf").read_bytes() == alone.read_bytes()
        assert (out / part / "config.json").read_bytes() == (folder / part / "config.json").read_bytes()
    said = " ".join(loss.message for loss in plan.losses)
    for part in set(MODELS[model]) - set(denoisers):
        kept = load_parts(out)[part]
        original = ALL[model]()[part]
        assert set(kept) == set(original)
        assert all(torch.equal(kept[name], original[name]) for name in original)
        assert f"{part}: not a GGUF, written unchanged" in said
    assert wb.inspect(out).parameters == wb.inspect(folder).parameters


GGUFS = ("sd1", "sdxl", "sd3", "flux", "wan", "qwen-image")


def gguf_pipeline(model: str, folder: Path, dtype: str) -> Path:
    """A pipeline in BF16 whose denoisers are GGUFs."""
    parts = {part: {n: t.bfloat16() for n, t in tensors.items()} for part, tensors in ALL[model]().items()}
    source = pipelines.write(folder / "bf16", parts)
    wb.convert(source, f"{folder / 'ggufs'}/", to="gguf", dtype=dtype)
    return folder / "ggufs"


def unlike_parts(model: str, source: Path, out: Path) -> str | None:
    """The first tensor of a denoiser whose values aren't those of its GGUF under diffusers' names."""
    names = {part: set(tensors) for part, tensors in ALL[model]().items()}
    found = load_parts(out)
    for part in (part for part in names if part.startswith(("unet", "transformer"))):
        alone = out.parent / f"{part}.safetensors"
        wb.convert(source / part / f"{part}.gguf", alone, dtype="f32", overwrite=True)
        expected = pictures.DIFFUSERS[model](load(alone))
        if set(found[part]) != names[part] or set(expected) != names[part]:
            return f"names of {part}"
        for name, tensor in expected.items():
            if not torch.equal(found[part][name].float(), tensor):
                return f"{part}.{name}"
    return None


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
@pytest.mark.parametrize("model", GGUFS)
def test_a_part_in_a_gguf_returns_to_the_folder(model: str, dtype: str, tmp_path: Path) -> None:
    source = gguf_pipeline(model, tmp_path, dtype)
    wb.convert(source, f"{tmp_path / 'back'}/", dtype="f32")
    assert unlike_parts(model, source, tmp_path / "back") is None
    for part in MODELS[model]:
        configs = [json.loads((folder / part / "config.json").read_bytes()) for folder in (tmp_path / "back", source)]
        assert configs[0].keys() >= configs[1].keys()
    if dtype == "bf16":  # nothing was rounded
        original = load_parts(tmp_path / "bf16")
        for part, tensors in load_parts(tmp_path / "back").items():
            assert all(torch.equal(tensor, original[part][name].float()) for name, tensor in tensors.items())
    assert wb.inspect(tmp_path / "back").parameters == wb.inspect(tmp_path / "bf16").parameters


@pytest.mark.parametrize("model", ["sd1", "sdxl", "flux", "sd3"])
def test_a_part_in_a_gguf_goes_into_the_single_file(model: str, tmp_path: Path) -> None:
    source = gguf_pipeline(model, tmp_path, "bf16")
    wb.convert(source, tmp_path / "one.safetensors", dtype="f32")
    wb.convert(tmp_path / "bf16", tmp_path / "plain.safetensors", dtype="f32")
    found, expected = load(tmp_path / "one.safetensors"), load(tmp_path / "plain.safetensors")
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    wb.convert(source, f"{tmp_path / 'again'}/", to="gguf", dtype="bf16")
    part = next(part for part in MODELS[model] if part.startswith(("unet", "transformer")))
    again, first = (folder / part / f"{part}.gguf" for folder in (tmp_path / "again", source))
    assert tensor_bytes(first) == tensor_bytes(again)


@pytest.mark.mutation
def test_the_names_of_another_dialect_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = gguf_pipeline("flux", tmp_path, "bf16")
    monkeypatch.setattr(pipeline_parts, "DIFFUSERS", "original")
    wb.convert(source, f"{tmp_path / 'back'}/", dtype="f32")
    assert unlike_parts("flux", source, tmp_path / "back") == "names of transformer"


def test_a_gguf_without_a_config_and_one_without_a_table(tmp_path: Path) -> None:
    source = gguf_pipeline("flux", tmp_path, "bf16")
    (source / "transformer" / "config.json").unlink()
    plan = wb.plan_convert(source, f"{tmp_path / 'back'}/")
    assert any("no config.json" in note for note in plan.notes)
    pair = {f"transformer.x_embedder.lora_{half}.weight": torch.zeros(*shape)
            for half, shape in (("A", (4, 64)), ("B", (64, 4)))}  # fmt: skip
    lora = pictures.save(tmp_path / "lora.safetensors", pair)
    with pytest.raises(UnsupportedError, match="a LoRA isn't merged into"):
        wb.convert(source, tmp_path / "merged.safetensors", lora=[lora])
    names = ("double_layers.0.attn.w1q.weight", "double_layers.0.attn.w2q.weight", "cond_seq_linear.weight")
    aura = pictures.values(dict.fromkeys(names, (64, 64)))
    gguf = source / "transformer" / "transformer.gguf"
    wb.convert(pictures.save(tmp_path / "aura.safetensors", aura), gguf, overwrite=True)
    with pytest.raises(UnsupportedError, match="no table of the names"):
        wb.convert(source, f"{tmp_path / 'back'}/")


#: ComfyUI-GGUF's names of T5's tensors (loader.py, T5_SD_MAP).
COMFY_T5 = {
    "enc.": "encoder.", ".blk.": ".block.", "token_embd": "shared", "output_norm": "final_layer_norm",
    "attn_q": "layer.0.SelfAttention.q", "attn_k": "layer.0.SelfAttention.k", "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o", "attn_norm": "layer.0.layer_norm",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias", "ffn_up": "layer.1.DenseReluDense.wi_1",
    "ffn_down": "layer.1.DenseReluDense.wo", "ffn_gate": "layer.1.DenseReluDense.wi_0",
    "ffn_norm": "layer.1.layer_norm",
}  # fmt: skip
#: The keys that its `gguf_tokenizer_loader` reads.
COMFY_SPIECE = {"model", "add_space_prefix", "remove_extra_whitespaces", "tokens", "scores", "token_type",
                "eos_token_id", "padding_token_id"}  # fmt: skip


def with_t5_tokenizer(folder: Path, model: str) -> tuple[Path, str]:
    """A pipeline whose T5 has a tokenizer in the folder that diffusers gives it, and the part's name."""
    parts = ALL[model]()
    source = pipelines.write(folder / "source", parts)
    part = next(part for part, tensors in parts.items() if "shared.weight" in tensors)
    tokenizer = part.replace("text_encoder", "tokenizer")
    shutil.rmtree(source / tokenizer, ignore_errors=True)
    (source / tokenizer).mkdir()
    vocabularies.write_t5(source / tokenizer)
    size = max(json.loads((source / tokenizer / "tokenizer.json").read_text())["added_tokens"], key=lambda t: t["id"])
    config = json.loads((source / part / "config.json").read_text())
    (source / part / "config.json").write_text(json.dumps({**config, "vocab_size": size["id"] + 1}))
    tensors = load(source / part / "model.safetensors")
    tensors["shared.weight"] = torch.randn(size["id"] + 1, 32, generator=torch.Generator().manual_seed(1))
    pictures.save(source / part / "model.safetensors", tensors)
    index = json.loads((source / "model_index.json").read_text())
    (source / "model_index.json").write_text(json.dumps({**index, tokenizer: ["transformers", "T5TokenizerFast"]}))
    return source, part


@pytest.mark.parametrize("how", ["convert", "quantize"])
@pytest.mark.parametrize("model", ["flux", "sd3", "qwen-image", "wan"])
def test_a_text_encoder_has_its_own_tokenizer(model: str, how: str, tmp_path: Path) -> None:
    """Its GGUF is that of a folder with both, and has ComfyUI-GGUF's names. Wan's is UMT5's encoder, of which
    ComfyUI-GGUF makes a SentencePiece model again."""
    source, part = with_t5_tokenizer(tmp_path, model)
    if how == "convert":
        wb.convert(source, f"{tmp_path / 'out'}/", to="gguf", dtype="q8_0")
    else:
        wb.quantize(source, tmp_path / "out", "Q8_0")
    both = shutil.copytree(source / part, tmp_path / "both")
    for file in (source / part.replace("text_encoder", "tokenizer")).iterdir():
        shutil.copy(file, both)
    alone = tmp_path / f"{part}.gguf"
    if how == "convert":
        wb.convert(both, alone, dtype="q8_0")
    else:
        wb.quantize(both, alone, "Q8_0")
    made = tmp_path / "out" / part / f"{part}.gguf"
    assert tensor_bytes(made) == tensor_bytes(alone)
    with wb.open(made) as one, wb.open(alone) as other:
        keys = [
            {k: v for k, v in each.metadata.items() if k.startswith(("tokenizer.", "t5encoder."))}
            for each in (one, other)
        ]
        assert keys[0] == keys[1]
        assert one.metadata["general.architecture"] == "t5encoder"
        assert {key for key in COMFY_SPIECE if f"tokenizer.ggml.{key}" in one.metadata} == COMFY_SPIECE
    names = set()
    for name in tensor_bytes(made):
        for short, long in COMFY_T5.items():
            name = name.replace(short, long)
        names.add(name)
    assert names == set(load(source / part / "model.safetensors"))
    wb.convert(tmp_path / "out", f"{tmp_path / 'back'}/", dtype="f32")
    back, first = load_parts(tmp_path / "back")[part], load(source / part / "model.safetensors")
    assert set(back) == set(first)
    assert all((back[name] - tensor).norm() <= 0.01 * tensor.norm() for name, tensor in first.items())


@pytest.mark.mutation
def test_the_tokenizer_of_another_encoder_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, part = with_t5_tokenizer(tmp_path, "flux")
    monkeypatch.setattr(pipeline_folder, "with_tokenizer", lambda pipeline, part, each: each)
    plan = wb.plan_convert(source, f"{tmp_path / 'out'}/", to="gguf", dtype="q8_0")
    assert any(f"{part}: not a GGUF" in loss.message for loss in plan.losses)


def test_the_quantize_plan_has_every_tensor(folders: Callable[[str], Path], tmp_path: Path) -> None:
    plan = wb.plan_quantize(folders("wan"), tmp_path / "out", "Q4_0")
    parts = {row.name.partition(".")[0] for row in plan.rows}
    assert parts == {"transformer", "transformer_2"}
    assert plan.ftype == "Q4_0"
    assert plan.describe()["bits_per_weight"] > 4


# ---- looking ----


@pytest.mark.parametrize("model", ALL)
def test_a_pipeline_is_one_model(model: str, folders: Callable[[str], Path]) -> None:
    folder, parts = folders(model), ALL[model]()
    named = {f"{part}.{name}": tuple(t.shape) for part, tensors in parts.items() for name, t in tensors.items()}
    report = wb.inspect(folder)
    assert {tensor.name: tensor.shape for tensor in report.tensors} == named
    assert report.model.architecture == "SmallPipeline"
    assert report.parameters == sum(wb.inspect(folder / part).parameters for part in parts)
    assert wb.verify(folder).ok
    assert bool(wb.scan(folder)) is bool(wb.scan(folder / MODELS[model][0]))
    assert bool(wb.diff(folder, folder))
    first = next(iter(named))
    assert tuple(wb.get(f"{folder}::{first}").shape) == named[first]


def test_fit_names_the_sizes(folders: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedError, match="makes pictures") as caught:
        wb.fit(folders("flux"))
    assert "transformer " in str(caught.value.hint)


def test_variants_and_single_files_next_to_the_parts(tmp_path: Path) -> None:
    """As published repositories have them: the plain files count, and the others are named."""
    parts = ALL["sd1"]()
    folder = pipelines.write(tmp_path / "p", parts)
    other = pictures.save(folder / "v1-5-pruned.safetensors", {"x": torch.zeros(2)})
    for part, stem in (("unet", "diffusion_pytorch_model"), ("text_encoder", "model")):
        shutil.copy(other, folder / part / f"{stem}.fp16.safetensors")
    plan = wb.plan_convert(folder, f"{tmp_path}/out/")
    assert {tensor.name.partition(".")[0] for tensor in wb.inspect(folder).tensors} == set(parts)
    said = " ".join(plan.warnings)
    assert "v1-5-pruned.safetensors" in said
    assert "diffusion_pytorch_model.fp16.safetensors" in said
    plan.run()
    assert not list((tmp_path / "out").rglob("*fp16*"))
    (folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()  # a download with variant="fp16"
    assert wb.inspect(folder).tensor_count == sum(map(len, parts.values())) - len(parts["unet"]) + 1


def test_a_folder_with_an_index_and_without_parts_is_a_model(tmp_path: Path) -> None:
    pictures.save(tmp_path / "flux1.safetensors", {"x": torch.zeros(2)})
    (tmp_path / "model_index.json").write_text('{"_class_name": "X", "vae": ["diffusers", "AutoencoderKL"]}')
    assert [tensor.name for tensor in wb.inspect(tmp_path).tensors] == ["x"]


# ---- what is refused ----


def without(part: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / part)


def emptied(folder: Path) -> None:
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()


def indexed(**entries: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model_index.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return change


def no_json(folder: Path) -> None:
    (folder / "model_index.json").write_text("{")


def a_shard(folder: Path) -> None:
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    path.rename(path.with_name("diffusion_pytorch_model-00001-of-00002.safetensors"))


def truncated(folder: Path) -> None:
    path = folder / "vae" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def a_link(folder: Path) -> None:
    shutil.move(folder / "vae", folder.parent / "elsewhere")
    (folder / "vae").symlink_to(folder.parent / "elsewhere")


BAD: dict[str, tuple[Callable[[Path], None], type[WeighbridgeError], str]] = {
    "a missing part": (without("vae"), FormatError, r"vae \(AutoencoderKL\) has no weights"),
    "a part without weights": (emptied, FormatError, r"vae \(AutoencoderKL\) has no weights"),
    "a class without a folder": (indexed(mine=["me", "Unknown"]), FormatError, r"mine \(Unknown\) has no weights"),
    "a name that leads out": (indexed(**{"../x": ["diffusers", "X"]}), FormatError, "isn't the name of a folder"),
    "too many parts": (indexed(**{f"p{n}": ["d", "XScheduler"] for n in range(99)}), FormatError, "too many parts"),
    "no JSON": (no_json, FormatError, "invalid JSON"),
    "a missing shard": (a_shard, FormatError, "00002-of-00002"),
    "a truncated file": (truncated, FormatError, "bytes"),
    "a link out of the folder": (a_link, WeighbridgeError, "outside"),
}  # fmt: skip


@pytest.mark.parametrize("to", ["out.safetensors", "out/"])
@pytest.mark.parametrize("what", BAD)
def test_a_damaged_pipeline_leaves_nothing(what: str, to: str, tmp_path: Path) -> None:
    change, error, message = BAD[what]
    folder = pipelines.write(tmp_path / "p", ALL["sd1"]())
    change(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        wb.convert(folder, f"{tmp_path}/{to}")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_part_that_is_not_used(tmp_path: Path) -> None:
    """[null, null] marks a part that the pipeline goes without."""
    folder = pipelines.write(tmp_path / "p", ALL["sd3"]())
    without("text_encoder_3")(folder)
    indexed(text_encoder_3=[None, None])(folder)
    plan = wb.plan_convert(folder, tmp_path / "out.safetensors")
    assert any("no text_encoder_3" in note for note in plan.notes)


def test_a_part_without_a_place_is_listed(tmp_path: Path) -> None:
    parts = ALL["sd1"]()
    folder = pipelines.write(tmp_path / "p", {**parts, "controlnet": {"x.weight": torch.zeros(2, 2)}})
    plan = wb.plan_convert(folder, tmp_path / "out.safetensors")
    assert any("left out: controlnet (Model)" in loss.message for loss in plan.losses)
    assert not any(name.startswith("controlnet") for file in plan.files for name in [s.name for s, _ in file.slots])


@pytest.mark.parametrize(
    ("model", "to", "options", "error", "message"),
    [
        ("wan", "out.safetensors", {}, UnsupportedError, "2 denoisers"),
        ("sd1", "out.gguf", {}, UsageError, "a GGUF holds one"),
        ("sd1", "out/", {"to": "mlx"}, UsageError, "an MLX folder"),
        ("sd1", "out/", {"scheme": "fp8"}, UsageError, "quantized Hugging Face folder"),
        ("sd1", "out/", {"to": "gguf", "arch": "mine"}, UsageError, "a generic GGUF"),
    ],
)
def test_targets_that_do_not_fit(
    model: str, to: str, options: dict[str, Any], error: type[Exception], message: str,
    folders: Callable[[str], Path], tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(error, match=message):
        wb.convert(folders(model), f"{tmp_path}/{to}", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"tensor_type": ["x=q8_0"]}, {"target_bpw": 4.5}, {"keep_split": True}], ids=str)
def test_options_about_one_model(options: dict[str, Any], folders: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is about one model"):
        wb.quantize(folders("sd1"), tmp_path / "out", "" if "target_bpw" in options else "Q4_0", **options)


def test_an_unknown_denoiser(tmp_path: Path) -> None:
    folder = pipelines.write(tmp_path / "p", {"transformer": {"x.weight": torch.zeros(4, 4)}, "vae": pipelines.vae()})
    with pytest.raises(UnsupportedError, match="no table has the names of transformer"):
        wb.convert(folder, tmp_path / "out.safetensors")
    with pytest.raises(UnsupportedError, match=r"transformer \(FluxTransformer2DModel\)"):
        wb.convert(folder, f"{tmp_path}/out/", to="gguf")
    wb.convert(folder, f"{tmp_path}/f16/", dtype="f16")
    assert load(tmp_path / "f16/transformer/diffusion_pytorch_model.safetensors")["x.weight"].dtype == torch.float16


@pytest.mark.parametrize("write", [wb.convert, wb.quantize])
def test_a_pipeline_without_a_gguf(write: Callable[..., Any], tmp_path: Path) -> None:
    folder = pipelines.write(tmp_path / "p", {"vae": pipelines.vae()})
    arguments: dict[str, Any] = {"to": "gguf"} if write is wb.convert else {"ftype": "Q4_0"}
    with pytest.raises(UnsupportedError, match="has no part that can be a GGUF"):
        write(folder, f"{tmp_path}/out/", **arguments)
    assert not (tmp_path / "out").exists()
