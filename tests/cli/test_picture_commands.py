"""Every command over every form of image models: it answers, or refuses with a next step, and nothing is a fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conversion import test_comfy_folders as sets
from tests.oracles import pictures, pipelines

import weighbridge as wb
from weighbridge.cli.main import main

torch = pytest.importorskip("torch")
#: Model -> its denoiser's folder, and a module that a LoRA changes.
MODELS = {
    "sd1": ("unet", "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"),
    "flux": ("transformer", "transformer_blocks.0.attn.to_out.0"),
}
_SAFETENSORS = "{out}/file.safetensors"
#: Words of a command; {src} is the model, {pipe} its pipeline, {out} an empty folder.
COMMANDS = [
    "identify {src}", "inspect {src}", "verify {src}", "scan {src}", "hash {src}", "stats {src}", "fit {src}",
    "diff {src} {pipe}", "prove {src} {pipe} --no-run", "prove {src} {src}", "view {src} -o {out}/page.html",
    f"slice {{src}} {_SAFETENSORS} --keep *", f"slice {{src}} {_SAFETENSORS} --layers 0",
    f"rename {{src}} {_SAFETENSORS} --to-names diffusers", f"rename {{src}} {_SAFETENSORS} --to-names original",
    f"convert {{src}} {_SAFETENSORS} --dtype bf16", "convert {src} {out}/folder/ --dtype bf16 --config {pipe}",
    "convert {src} {out}/file.gguf --dtype q8_0", "quantize {src} {out}/file.gguf Q4_0",
    "quantize {src} {out}/folder Q4_0 --config {pipe}", "ship ollama {src} me/x --store {out}/store",
    f"merge {{src}} {{src}} {_SAFETENSORS} --method linear", "split {src} {out}/shards/ --max-shard-size 100KB",
    "lineage {src} {pipe}", "sbom {src}", "pack {src} {out}/packed", "convert {src} {out}/set/ --comfy-folders",
    f"strip {{src}} {_SAFETENSORS}", "extract-lora {pipe} {src} {out}/lora",
]  # fmt: skip
FORMS = ["pipe", "part", "one.safetensors", "denoiser.gguf", "fp8.safetensors", "ggufs", "set",
         "lora_peft.safetensors", "lora_kohya.safetensors", "lora_comfy.safetensors"]  # fmt: skip


def write(folder: Path, model: str) -> Path:
    part, module = MODELS[model]
    whole = pipelines.write(folder / "pipe", pipelines.PIPELINES[model]()) if model == "sd1" else None
    source = whole or sets.write(folder / "pipe", model)
    wb.convert(source, folder / "one.safetensors")
    wb.convert(source / part, folder / "denoiser.gguf", dtype="q8_0")
    wb.convert(source / part, folder / "fp8.safetensors", comfy_quant="fp8_scaled")
    wb.convert(source, f"{folder / 'ggufs'}/", to="gguf", dtype="q8_0")
    if model == "flux":  # Stable Diffusion 1 has no such set
        wb.convert(source, f"{folder / 'set'}/", comfy_folders=True)
    rows, columns = sets.load(source / part / "diffusion_pytorch_model.safetensors")[f"{module}.weight"].shape
    pair = {"A": torch.ones(4, columns), "B": torch.ones(rows, 4)}
    lora = {f"{part}.{module}.lora_{half}.weight": tensor for half, tensor in pair.items()}
    pictures.save(folder / "lora_peft.safetensors", lora)
    for names in ("kohya", "comfy"):
        target = folder / f"lora_{names}.safetensors"
        wb.rename(folder / "lora_peft.safetensors", target, to_names=names, lora_base=source / part)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("pictures")
    made: dict[str, Path] = {}

    def model(name: str) -> Path:
        if name not in made:
            (base / name).mkdir()
            made[name] = write(base / name, name)
        return made[name]

    return model


@pytest.mark.costly
@pytest.mark.parametrize(
    ("model", "form"), [*(("flux", form) for form in FORMS), *(("sd1", form) for form in ("pipe", "one.safetensors"))]
)
def test_every_command_answers_or_names_a_next_step(
    model: str, form: str, models: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = models(model)
    source = folder / "pipe" / MODELS[model][0] if form == "part" else folder / form
    faults = []
    for words in COMMANDS:
        out = tmp_path / "out"
        out.mkdir()
        names = {"src": source, "pipe": folder / "pipe", "out": out}
        code = main([word.format_map(names) for word in words.split()])
        printed = capfd.readouterr()
        text = printed.out + printed.err
        refused = code == 2
        if (
            code not in (0, 1, 2)
            or "Traceback" in text
            or (refused and "hint" not in text and "not checked" not in text)
        ):
            faults.append((words, code, text[:500]))
        if refused and any(out.iterdir()):
            faults.append((words, code, f"left {list(out.iterdir())}"))
        shutil.rmtree(out)
    assert not faults


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fit {one}", "makes pictures"), ("fit {gguf}", "makes pictures"), ("fit {part}", "makes pictures"),
        ("rename {pipe} {out} --to-names original", "several models"),
        ("slice {pipe} {out} --layers 0", "no single stack"),
        ("convert {gguf} {out}/ --config {pipe}", "one part of a pipeline"),
        ("convert {pipe} {out}/ --config {pipe}", "its own configs"),
        ("convert {lora} {out}/ --config {pipe}", "no image or video model"),
        ("ship ollama {pipe} me/x --store {out}", "no program on llama.cpp runs it"),
        ("ship ollama {set} me/x --store {out}", "no program on llama.cpp runs it"),
        ("ship llama-server {pipe}", "llama-server runs no pipeline"), ("fit {lora}", "is a LoRA"),
    ],
)  # fmt: skip
def test_refusals_name_the_cause(
    words: str, expected: str, models: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = models("flux")
    names = {
        "one": folder / "one.safetensors", "gguf": folder / "denoiser.gguf", "part": folder / "pipe/transformer",
        "pipe": folder / "pipe", "lora": folder / "lora_peft.safetensors", "out": tmp_path / "out",
        "set": folder / "set",
    }  # fmt: skip
    assert main([word.format_map(names) for word in words.split()]) == 2
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize("model", MODELS)
def test_forms_of_one_model_are_compared_under_the_same_names(
    model: str, models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = models(model)
    pipe, one, gguf = folder / "pipe", folder / "one.safetensors", folder / "denoiser.gguf"
    part = pipe / MODELS[model][0]
    wb.rename(part, original := tmp_path / "original.safetensors", to_names="original")
    for first, second in ((pipe, one), (one, pipe), (part, original), (original, part)):
        counts = wb.diff(first, second).counts
        assert counts["equal"] == sum(counts.values()) > 0
    for first, second in ((pipe, one), (one, pipe), (part, original), (part, gguf), (original, gguf)):
        checks = wb.prove(first, second, run=False).checks
        assert [(check.name, check.verdict) for check in checks] == [("settings", "not-checked"), ("tensors", "same")]
    stored = sets.load(one)
    name = max(stored, key=lambda key: stored[key].numel())
    pictures.save(changed := tmp_path / "changed.safetensors", stored | {name: -stored[name]})
    (found,) = (change for change in wb.diff(pipe, changed).tensors if change.kind != "equal")
    assert (found.name, found.kind) == (name, "values")
    assert wb.prove(pipe, changed, run=False).checks[-1].verdict == "different"
