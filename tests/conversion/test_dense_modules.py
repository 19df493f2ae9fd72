"""The matrices behind a pooling (2_Dense, 3_Dense): in a GGUF, back in their folders, and copied by casts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import llamacpp, models
from tests.oracles.families import CASES
from tests.oracles.models import probe_of, relative_error
from tests.oracles.reference_converter import Job, convert_apart

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError

IDENTITY = "torch.nn.modules.linear.Identity"
TYPE = "sentence_transformers.models."
Shapes = dict[str, tuple[int, int]]
#: a case of the oracle, and its modules' shapes (out, in)
GEMMA: Shapes = {"2_Dense": (96, 64), "3_Dense": (64, 96)}
LFM: Shapes = {"1_Dense": (32, 64)}
HELD = {"gemmaembedding": GEMMA, "lfm2-bare": LFM, "lfm2-encoder": LFM}
#: those that the reference converts: it needs a tokenizer
JUDGED = {name: CASES[name] for name in HELD} | {
    name: replace(CASES[name], tokenizer="bpe") for name in ("lfm2-bare", "lfm2-encoder")
}


def add_modules(folder: Path, shapes: Shapes, **config: Any) -> None:
    rng = np.random.default_rng(7)
    listed = json.loads(path.read_text()) if (path := folder / "modules.json").exists() else []
    for name, (rows, columns) in shapes.items():
        listed.append({"idx": len(listed), "name": str(len(listed)), "path": name, "type": f"{TYPE}Dense"})
        (folder / name).mkdir()
        weight = rng.normal(0, 0.3, (rows, columns)).astype(np.float32)
        save_file({"linear.weight": weight}, folder / name / "model.safetensors")
        entry = {"in_features": columns, "out_features": rows, "bias": False, "activation_function": IDENTITY}
        (folder / name / "config.json").write_text(json.dumps({**entry, **config}))
    path.write_text(json.dumps(listed))


def build(name: str, folder: Path) -> Path:
    models.build(JUDGED[name], folder)
    add_modules(folder, HELD[name])
    return folder


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("gemmaembedding", tmp_path_factory.mktemp("gemma") / "model")


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "outtype"), [("gemmaembedding", "q8_0"), ("lfm2-bare", "f32"), ("lfm2-encoder", "f16")]
)
def test_the_file_is_the_reference_s(name: str, outtype: str, tmp_path: Path) -> None:
    folder = build(name, tmp_path / "model")
    flags = ("--sentence-transformers-dense-modules",) if name == "gemmaembedding" else ()
    case = JUDGED[name]
    job = Job(str(folder), str(tmp_path / "theirs.gguf"), outtype, case.pre, case.hparams, flags)
    assert convert_apart(job) is None
    wb.convert(folder, tmp_path / "ours.gguf", dtype=outtype, dense_modules=bool(flags) or None)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.costly
@pytest.mark.oracle
def test_llama_cpp_multiplies_by_them(gemma: Path, tmp_path: Path) -> None:
    wb.convert(gemma, tmp_path / "m.gguf", dtype="f32", dense_modules=True)
    assert not wb.verify(tmp_path / "m.gguf").errors
    expected = models.embedding(gemma, probe_of("gemmaembedding"))
    for name in GEMMA:
        expected = load_file(gemma / name / "model.safetensors")["linear.weight"] @ expected
    found = llamacpp.numbers_in_subprocess(tmp_path / "m.gguf", probe_of("gemmaembedding"), embeddings=True)
    assert not isinstance(found, str), found
    assert relative_error(found, expected) < 5e-3  # as test_llama_logits.py, BERT_TOLERANCE


@pytest.mark.parametrize("name", HELD)
def test_they_come_back(name: str, tmp_path: Path) -> None:
    folder = build(name, tmp_path / "model")
    asked = None if name.startswith("lfm2") else True
    wb.convert(folder, tmp_path / "m.gguf", dtype="f32", dense_modules=asked)
    back = wb.convert(tmp_path / "m.gguf", tmp_path / "back", to="hf", dtype="f32")
    assert not [loss for loss in back.losses if "dense" in loss.message.lower() or "embedding_length" in loss.message]
    configs = [json.loads((side / "config.json").read_text()) for side in (folder, tmp_path / "back")]
    expected = ["Lfm2ForCausalLM"] if name == "lfm2-bare" else configs[0]["architectures"]
    assert configs[1]["architectures"] == expected
    unknown = [f.message for f in wb.verify(tmp_path / "back").findings if f.rule == "config/unread"]
    assert unknown == []
    for module in HELD[name]:
        found, expected = (load_file(side / module / "model.safetensors") for side in (tmp_path / "back", folder))
        assert np.array_equal(found["linear.weight"], expected["linear.weight"])
        assert json.loads((tmp_path / "back" / module / "config.json").read_text()) == json.loads(
            (folder / module / "config.json").read_text()
        )
    wb.convert(tmp_path / "back", tmp_path / "again.gguf", dtype="f32", name="m", dense_modules=asked)
    with wb.open(tmp_path / "m.gguf") as one, wb.open(tmp_path / "again.gguf") as other:
        assert list(one.keys()) == list(other.keys())
        for key in (k for k in one.metadata if not k.startswith("general.")):
            assert other.metadata[key] == one.metadata[key], key


@pytest.mark.parametrize("option", [None, False])
def test_what_is_left_out_is_listed(gemma: Path, option: bool | None, tmp_path: Path) -> None:
    result = wb.convert(gemma, tmp_path / "m.gguf", dense_modules=option)
    listed = [loss.message for loss in result.losses if "isn't carried" in loss.message]
    assert [message.split()[1] for message in listed] == [*GEMMA]
    assert all(message.endswith("--dense-modules writes it") is (option is None) for message in listed)
    with wb.open(tmp_path / "m.gguf") as model:
        assert not [name for name in model if name.startswith("dense")]


@pytest.mark.parametrize("options", [{"to": "hf", "dtype": "bf16"}, {"to": "torch"}], ids=str)
def test_a_cast_keeps_their_files(gemma: Path, options: dict[str, Any], tmp_path: Path) -> None:
    wb.convert(gemma, tmp_path / "out", **options)
    for module in GEMMA:
        name = f"{module}/model.safetensors"
        assert (tmp_path / "out" / name).read_bytes() == (gemma / name).read_bytes()


BAD: dict[str, tuple[Shapes, dict[str, Any], str]] = {
    "an activation": (GEMMA, {"activation_function": "torch.nn.modules.activation.Tanh"}, "has activation torch"),
    "another shape": (GEMMA, {"out_features": 5}, "another shape than config.json"),
    "a width": ({"2_Dense": (96, 32)}, {}, "doesn't fit"),
    "a last width": ({"2_Dense": (96, 64)}, {}, "gets 96 numbers; llama.cpp takes 64"),
    "a third": ({**GEMMA, "4_Dense": (64, 64)}, {}, "has places for 2_Dense, 3_Dense"),
    "none": ({}, {}, "the folder has none"),
}


FILES = [f"{name}/model.safetensors" for name in GEMMA]


@pytest.mark.parametrize(
    ("target", "options", "listed"),
    [
        ("m.gguf", {"dense_modules": True}, FILES), ("m.gguf", {"dense_modules": False}, []),
        ("out/", {"to": "hf"}, FILES), ("m.safetensors", {}, []),
    ],
)  # fmt: skip
def test_a_plan_s_sources_have_the_files_that_it_reads(
    target: str, options: dict[str, Any], listed: list[str], gemma: Path, tmp_path: Path
) -> None:
    with wb.plan_convert(gemma, f"{tmp_path}/{target}", **options) as plan:
        sources = [line for line in plan.sources if "_Dense" in line]
    assert [line.rpartition(": ")[0] for line in sources] == [str(gemma / name) for name in listed]


@pytest.mark.parametrize("options", [{"dense_modules": True}, {"to": "hf"}])
def test_a_target_is_not_a_file_that_is_read(options: dict[str, Any], gemma: Path) -> None:
    """The weights of a module would be replaced before they are read."""
    target = gemma / "2_Dense" / "model.safetensors"
    before = target.read_bytes()
    with pytest.raises(UsageError):
        wb.convert(gemma, target, overwrite=True, **({"to": "gguf"} | options))
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", BAD)
def test_others_are_refused(name: str, tmp_path: Path) -> None:
    shapes, config, message = BAD[name]
    models.build(CASES["gemmaembedding"], tmp_path / "model")
    add_modules(tmp_path / "model", shapes, **config)
    with pytest.raises((FormatError, UnsupportedError), match=message):
        wb.convert(tmp_path / "model", tmp_path / "m.gguf", dense_modules=True)
    assert not (tmp_path / "m.gguf").exists()


def test_a_bias_is_refused(tmp_path: Path) -> None:
    folder = build("gemmaembedding", tmp_path / "model")
    path = folder / "2_Dense" / "model.safetensors"
    save_file({**load_file(path), "linear.bias": np.ones(96, np.float32)}, path)
    with pytest.raises(UnsupportedError, match="has a bias"):
        wb.convert(folder, tmp_path / "m.gguf", dense_modules=True)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    folder = build("gemmaembedding", tmp_path / "model")
    (folder / "3_Dense" / missing).unlink()
    with pytest.raises(FormatError, match=f"3_Dense/{missing} is missing"):
        wb.convert(folder, tmp_path / "m.gguf", dense_modules=True)


def test_a_family_without_a_place_for_them(tmp_path: Path) -> None:
    models.build(CASES["bert-rank"], tmp_path / "model")
    with pytest.raises(UnsupportedError, match="has no place for any"):
        wb.convert(tmp_path / "model", tmp_path / "m.gguf", dense_modules=True)
