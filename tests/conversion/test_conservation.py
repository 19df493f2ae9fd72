"""The law of conservation: whatever a command writes, every tensor that goes in comes out or is listed, in the plan's
JSON and on the screen. Every command that writes, and every target of `wb convert`, over models of several parts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)
for oracle in ("transformers", "safetensors", "gguf"):
    pytest.importorskip(oracle, reason=NOTHING)

from tests.oracles import adapters, parts  # noqa: E402

from weighbridge.cli.main import COMMANDS, main  # noqa: E402
from weighbridge.containers import writable  # noqa: E402

# Command -> its lines over a model: {m} its folder, {file} its file, {gguf} a GGUF of it, {mlx} and {packed} folders,
# {shards} and {ranks} parts of it, {training} a checkpoint of its training, {adapter} a LoRA for it. Each ends with the
# target.
LINES: Mapping[str, tuple[str, ...]] = {
    "convert": (
        "{m} {out}", "{m} {out} --dtype f16", "{m} {out} --lora {adapter}", "{m} {out} --lora {adapter} --dtype bf16",
        "{m} {out}.gguf --no-tokenizer", "{m} {out}.gguf --no-tokenizer --lora {adapter}", "{m} {out} --to mlx",
        "{m} {out} --to torch", "{m} {out} --scheme w8a8", "{file} {out}.safetensors --dtype f16", "{file} {out}.npz",
        "{file} {out}.msgpack",
        "{gguf} {out} --no-tokenizer", "{mlx} {out} --to hf",
        "{packed} {out} --dtype f16", "{packed} {out}",
    ),
    "quantize": ("{m} {out}.gguf Q8_0 --no-tokenizer",
        "{m} {out}.gguf Q8_0 --no-tokenizer --lora {adapter}", "{gguf} {out}.gguf F16",
                 "{gguf} {out}.gguf F16 --prune-layers 1"),
    "split": ("{m} {out} --max-shard-tensors 5", "{m} {out} --tp 2"),
    "merge": ("{shards} {out}", "{shards} {out}.safetensors", "{ranks} {out}"),
    "strip": ("{training} {out}.safetensors",),
    "rename": ("{m} {out} --add-prefix x.", "{m} {out} --replace weight kernel", "{m} {out} --to-names canonical",
               "{m} {out} --to-names mlx", "{m} {out} --to-names gguf"),
    "slice": ("{m} {out} --layers 0-0", "{m} {out} --layers 1- --renumber", "{m} {out} --drop *.0.*"),
    "edit": ("{file} --set a=b -o {out}.safetensors",),
}  # fmt: skip
# Commands that write no model of their own.
OTHERS = {
    "imatrix": "writes sums of activations, no tensor of the model: tests/forward/test_imatrix.py",
    "extract-lora": "writes an adapter: tests/models/test_lora_extract.py", "sign": "writes a signature",
    "plan": "writes nothing", "fetch": "copies files", "dedupe": "changes no byte", "ship": "copies files",
    "pack": "keeps every byte: tests/conversion/test_archive.py", "unpack": "restores every byte",
    "fleet": "runs convert and quantize", "serve": "runs convert", "mount": "runs convert", "completion": "no model",
}  # fmt: skip
# (line, models): refused, with the words; nothing is written.
REFUSED: tuple[tuple[str, str, str], ...] = (
    # ... no table describes these
    (
        r"--to mlx|\.gguf|\{gguf\}|\{mlx\}|scheme|\{packed\}|--tp|\{ranks\}|--to-names",
        "whisper|clip|tokens",
        "no family has the",
    ),
    (r"--to mlx|\{mlx\}|--to-names mlx", "bert|masked|qwen2vl", "has no (MLX tensor|'mlx') names"),
    (r"--tp|\{ranks\}", "bert|masked", "no tensor-parallel rule"),
    (r"--scheme|\{packed\}", "masks", "no linear layers"),
    # ... a tensor that nobody knows may be a part of what the model computes
    (
        r"--to mlx|\.gguf|\{gguf\}|\{mlx\}|--tp|\{ranks\}|--to-names",
        "stranger",
        "without a rule: nobody.knows.me",
    ),
    (r"--layers", "clip", "several stacks of layers"),
    (r"--layers", "whisper", "ambiguous layer numbers"),
)


def of_change() -> set[str]:
    return {row.name for row in COMMANDS if row.section in ("Change", "Other")}


def test_every_command_is_held() -> None:
    assert of_change() == LINES.keys() | OTHERS.keys()
    assert not LINES.keys() & OTHERS.keys()
    targets = {"safetensors", "gguf", "npz", "torch", "flax"}
    assert {f.target for f in writable().values()} <= targets | {"npy"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    here = tmp_path_factory.mktemp("models")
    yield {name: parts.make(name, here / name) for name in parts.MODELS}
    shutil.rmtree(here)


def expected(line: str, model: str) -> str | None:
    """The words of a refusal; None if the line is carried out."""
    return next((words for way, which, words in REFUSED if re.search(way, line) and re.fullmatch(which, model)), None)


def made(word: str, folder: Path, place: Path) -> Path:
    """A form of the model that a line begins with, or an adapter for it."""
    ways = {"gguf": "{m} {o}.gguf --no-tokenizer", "mlx": "{m} {o} --to mlx", "shards": "{m} {o} --max-shard-tensors 5",
            "ranks": "{m} {o} --tp 2", "packed": "{m} {o} --scheme w8a8"}  # fmt: skip
    target = place / word
    if word == "file":
        return folder / "model.safetensors"
    if word == "adapter":
        conv = any("c_attn" in name for name in parts.elements(folder / "model.safetensors"))
        return adapters.make(folder, target, r"q_proj$|c_attn$|query$|score$|fc1$", fan_in_fan_out=conv)
    if word == "training":
        from safetensors.torch import load_file

        weights = load_file(folder / "model.safetensors")
        torch.save({"model": weights, "optimizer": {"state": {}, "param_groups": []}, "step": 3}, place / "all.pt")
        return place / "all.pt"
    command = "split" if word in ("shards", "ranks") else "convert"
    argv = ways[word].format(m=folder, o=target).split()
    assert main([command, *argv]) == 0
    return target.with_suffix(".gguf") if word == "gguf" else target


def strings(value: Any) -> Iterator[str]:
    """The texts of a report, without the names of what is written."""
    without = ("files", "tensors", "renamed", "source", "target")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(item) if key not in without else ()
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def is_listed(name: str, texts: list[str]) -> bool:
    """Whether a word of a loss or a note is the name, or a pattern of at least a few letters that it fits."""
    words = (word.strip(",:;()") for text in texts for word in text.split())
    return any(len(word.replace("*", "")) > 3 and fnmatchcase(name, word) for word in words)


@pytest.mark.costly
@pytest.mark.parametrize(("command", "line"), [(c, line) for c, lines in LINES.items() for line in lines])
def test_every_tensor_comes_out_or_is_listed(
    command: str, line: str, models: Mapping[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = []
    for name, folder in models.items():
        (place := tmp_path / name).mkdir()
        refused = expected(line, name)
        words = re.findall(r"\{(gguf|mlx|shards|ranks|training|adapter|file|packed)\}", line)
        if refused and {"gguf", "mlx", "ranks", "packed"} & set(words):
            continue  # there is nothing to begin with
        given = {word: made(word, folder, place) for word in words}
        begun = given[words[0]] if line.startswith(("{gguf}", "{mlx}")) else folder / "model.safetensors"
        source = parts.elements(begun)
        argv = [command, *(word.format(m=folder, out=place / "out", **given) for word in line.split())]
        capfd.readouterr()
        code = main([*argv, "--json"]) if command != "edit" else main(argv)
        out, err = capfd.readouterr()
        if refused or code:
            if not (refused and code == 2 and re.search(refused, err)) or [*place.glob("out*")]:
                broken.append(f"{name}: exit {code}, {err.strip()[:300]}")
            continue
        broken += [f"{name}: {words}" for words in fault(source, next(place.glob("out*")), out, command)]
        if listed := [n for n in source if is_listed(n, list(strings(report(out))))]:
            shutil.rmtree(place / "out", ignore_errors=True)
            main([*argv, "--overwrite"])
            if not re.search("left out|omitted|not copied|carry nothing|has no|dropped", "".join(capfd.readouterr())):
                broken.append(f"{name}: {listed[0]} is listed in the JSON and not on the screen")
    assert broken == [], "\n".join(broken)


def report(out: str) -> Any:
    return json.loads(out) if out.startswith("{") else {}


def fault(source: Mapping[str, int], target: Path, out: str, command: str) -> Iterator[str]:
    """What is lost without a word. Names that a target keeps are compared; of others the numbers of elements."""
    texts = list(strings(report(out)))
    kept = {n: count for n, count in source.items() if not is_listed(n, texts)}
    found = parts.elements(target)
    if kept.keys() <= found.keys():
        return
    if sum(kept.values()) != sum(found.values()):
        lost = [n for n in kept if n not in found]
        yield f"{len(source)} tensors became {len(found)}, {len(source) - len(kept)} are listed; without: {lost[:3]}"


@pytest.mark.costly
@pytest.mark.parametrize("line", ["{m} {out}", "{m} {out} --dtype f16", "{m} {out} --lora {adapter}"])
def test_a_folder_that_is_written_is_the_whole_model(line: str, models: Mapping[str, Path], tmp_path: Path) -> None:
    """transformers finds every weight in it, and the files beside the weights are there."""
    for name in ("llava", "qwen2vl", "gemma3", "idefics3", "whisper", "clip", "classifier"):
        folder, out = models[name], tmp_path / name / "out"
        out.parent.mkdir()
        adapter = made("adapter", folder, out.parent)
        assert main(["convert", *line.format(m=folder, out=out, adapter=adapter).split()]) == 0
        _, info = parts.class_of(folder).from_pretrained(out, output_loading_info=True)
        assert {key: info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")} == {
            "missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()
        }, name  # fmt: skip
        assert {f: (out / f).read_bytes() for f in parts.COPIED} == parts.COPIED


ADAPTED = {
    "llava": "q_proj|fc1|multi_modal_projector", "qwen2vl": "q_proj|qkv|merger", "gemma3": "q_proj|out_proj",
    "idefics3": "v_proj|modality_projection", "whisper": "q_proj|fc1|proj_out", "clip": "q_proj|visual_projection",
    "classifier": "down_proj|score", "tokens": "o_proj|score", "reward": "k_proj|score", "bert": "query|classifier",
    "tied": "up_proj|embed_tokens", "stranger": "q_proj|lm_head",
}  # fmt: skip


@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapter_changes_what_it_names_and_nothing_else(
    name: str, models: Mapping[str, Path], tmp_path: Path
) -> None:
    """Text, towers and heads, as B @ A and whole; the values are those of peft's formula."""
    from safetensors.torch import load_file

    base = models[name]
    adapter = adapters.make(base, tmp_path / "adapter", ADAPTED[name], whole=r"(norm|bias|patch_embedding\.weight)$")
    want = load_file(adapters.merged(base, adapter, tmp_path / "want") / "model.safetensors")
    assert main(["convert", str(base), str(tmp_path / "out"), "--lora", str(adapter)]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == want.keys()
    assert [key for key in want if not torch.allclose(found[key], want[key], atol=1e-5)] == []


def test_adapters_name_modules_as_transformers_does(models: Mapping[str, Path], tmp_path: Path) -> None:
    """Files keep names of older versions, modules and so adapters have today's."""
    from safetensors.torch import load_file, save_file

    for name, spelled in (
        ("llava", {"language_model.model.": "model.language_model.", "vision_tower.": "model.vision_tower."}),
        ("qwen2vl", {"model.layers.": "model.language_model.layers.", "visual.": "model.visual."}),
        ("idefics3", {}),
    ):
        (place := tmp_path / name).mkdir()
        adapter = adapters.make(models[name], place / "adapter", ADAPTED[name])
        want = load_file(adapters.merged(models[name], adapter, place / "want") / "model.safetensors")
        file, front = adapter / "adapter_model.safetensors", adapters.PREFIX
        tensors = {key.removeprefix(front): value for key, value in load_file(file).items()}
        for old, new in spelled.items():
            tensors = {new + k.removeprefix(old) if k.startswith(old) else k: v for k, v in tensors.items()}
        save_file({front + key: value for key, value in tensors.items()}, file, {"format": "pt"})
        assert main(["convert", str(models[name]), str(place / "out"), "--lora", str(adapter)]) == 0
        found = load_file(place / "out" / "model.safetensors")
        assert [key for key in want if not torch.allclose(found[key], want[key], atol=1e-5)] == []


def test_files_that_are_not_copied_are_noted(models: Mapping[str, Path], tmp_path: Path, capfd: Any) -> None:
    assert main(["convert", str(models["llava"]), str(tmp_path / "out")]) == 0
    assert "not copied from the source's folder: filters.npz, onnx/" in capfd.readouterr().err
