"""A Modelfile with an ADAPTER is its model with the adapter merged, against `wb convert --lora`, whose result is
compared with peft's elsewhere; runtimes that read adapters get the file itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.shipping import ollama_store

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.models.modelfile import parse_modelfile
from weighbridge.reports.get import Picked
from weighbridge.reports.hash.digests import hash_model

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def write_adapter(folder: Path, name: str = Q, width: int = 64) -> Path:
    """A PEFT adapter of rank 2."""
    folder.mkdir()
    numbers = np.random.default_rng(3)
    pair = {f"{name}.lora_A.weight": (2, width), f"{name}.lora_B.weight": (64, 2)}
    tensors = {key: numbers.standard_normal(shape, np.float32) for key, shape in pair.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [name.rpartition(".")[2]]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter")


@pytest.fixture
def file(model: Path, adapter: Path) -> Path:
    """A Modelfile of a folder and a PEFT adapter."""
    path = adapter.parent / "Modelfile"
    path.write_text(f"FROM {model}\nADAPTER ./adapter\n")
    return path


@pytest.fixture
def merged(model: Path, adapter: Path, tmp_path: Path) -> Path:
    wb.convert(model, tmp_path / "merged", to="hf", lora=adapter)
    return tmp_path / "merged"


def test_every_reader_sees_the_merged_weights(file: Path, merged: Path, model: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    with wb.open(file) as found, wb.open(merged) as expected, wb.open(model) as base:
        np.testing.assert_array_equal(found[name].numpy(), expected[name].numpy())
        assert not np.array_equal(found[name].numpy(), base[name].numpy())
    assert hash_model(file).digest == hash_model(merged).digest != hash_model(model).digest
    with Picked(f"{file}::{name}") as one, Picked(f"{merged}::{name}") as other:
        np.testing.assert_array_equal(one.array(), other.array())
    assert wb.diff(file, merged).same
    assert not wb.diff(file, model).same
    assert wb.prove(merged, file, run=False).verdict == "same"
    assert [c.message for c in wb.prove(merged, file).checks if c.name == "run" and "without its adapter" in c.message]
    assert wb.verify(file).verdict == "ok"
    assert any("merged in" in note for note in wb.fit(file, device="24GB").notes)


def test_every_writer_writes_the_merged_weights(file: Path, merged: Path, tmp_path: Path) -> None:
    wb.convert(file, tmp_path / "a", to="hf")
    assert wb.diff(tmp_path / "a", merged)
    for source, target in ((file, "q1"), (merged, "q2")):
        wb.quantize(source, tmp_path / f"{target}.gguf", "Q8_0", name="x")
    assert wb.diff(tmp_path / "q1.gguf", tmp_path / "q2.gguf")
    wb.slice(file, tmp_path / "s1", layers="0")
    wb.slice(merged, tmp_path / "s2", layers="0")
    assert wb.diff(tmp_path / "s1", tmp_path / "s2")
    wb.split(file, tmp_path / "parts", max_shard_tensors=8)
    assert wb.diff(tmp_path / "parts", merged).same


def test_the_adapter_is_a_source_that_no_target_replaces(file: Path, adapter: Path) -> None:
    with pytest.raises(RefusedError, match="contains the source"):
        wb.convert(file, adapter, to="hf", overwrite=True)
    with wb.plan_convert(file, file.parent / "out", to="hf") as plan:
        assert any("adapter_model.safetensors" in state for state in plan.sources)


@pytest.mark.parametrize(
    ("name", "width", "words"),
    [(Q.replace("layers.0", "layers.7"), 64, "layers.7"), (Q, 32, "32"), (f"{Q}x", 64, "q_projx")],
)
def test_verify_sees_an_adapter_of_another_model(
    model: Path, tmp_path: Path, name: str, width: int, words: str
) -> None:
    write_adapter(tmp_path / "other", name, width)
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM {model}\nADAPTER ./other\n")
    report = wb.verify(path)
    assert report.verdict == "failed"
    assert [words in f.message for f in report.findings if f.rule == "file/modelfile"] == [True]


def test_a_whole_model_is_no_adapter(model: Path, gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM {model}\nADAPTER {gguf}\n")
    assert [f.rule for f in wb.verify(path).findings if f.severity == "error"] == ["file/modelfile"]
    with pytest.raises(UsageError, match="isn't a LoRA adapter"):
        wb.open(path)


# ------------------------------------------------------------------------------------------------ shipped


@pytest.fixture
def quantized(gguf: Path, model: Path, adapter: Path, tmp_path: Path) -> Path:
    """A Modelfile of a quantized GGUF and an adapter that is one, too: nothing can be merged."""
    wb.quantize(gguf, tmp_path / "q.gguf", "Q8_0")
    wb.convert(adapter, tmp_path / "adapter.gguf", base=model)
    path = tmp_path / "q.modelfile"
    path.write_text("FROM ./q.gguf\nADAPTER ./adapter.gguf\n")
    return path


def test_an_adapter_of_llama_cpps_own_is_a_layer(quantized: Path, tmp_path: Path) -> None:
    wb.ship("ollama", quantized, "tiny", template="none")
    stored = ollama_store.read(tmp_path / "ollama", "tiny")
    assert stored.one("model") == (tmp_path / "q.gguf").read_bytes()
    assert stored.one("adapter") == (tmp_path / "adapter.gguf").read_bytes()
    for source in (quantized, "ollama://tiny"):
        with pytest.raises(RefusedError, match="is quantized") as caught:
            wb.open(source)
        assert re.search(r"wb convert (\S+) DST, and llama-server -m DST --lora (\S+)", str(caught.value))
    assert wb.verify(quantized).verdict == "ok"


def test_an_adapter_in_the_store_is_merged(
    gguf: Path, adapter: Path, model: Path, merged: Path, tmp_path: Path
) -> None:
    wb.convert(adapter, tmp_path / "adapter.gguf", base=model)
    path = tmp_path / "a.modelfile"
    path.write_text(f"FROM {gguf}\nADAPTER ./adapter.gguf\n")
    wb.ship("ollama", path, "tiny", template="none")
    assert ollama_store.read(tmp_path / "ollama", "tiny").one("model") == gguf.read_bytes()
    report = wb.convert("ollama://tiny", tmp_path / "back", to="hf")
    assert [note for note in report.notes if "adapter" in note and "merged" in note]
    assert not wb.diff(tmp_path / "back", gguf).same
    wb.convert(path, tmp_path / "expected", to="hf")
    assert wb.diff(tmp_path / "back", tmp_path / "expected").same


def test_another_adapter_is_merged_on_the_way(file: Path, merged: Path, tmp_path: Path) -> None:
    wb.ship("ollama", file, "tiny", type="Q8_0")
    wb.convert("ollama://tiny", tmp_path / "back.gguf")
    wb.quantize(merged, tmp_path / "q.gguf", "Q8_0")
    assert wb.diff(tmp_path / "back.gguf", tmp_path / "q.gguf").tensors == ()


def test_a_modelfile_of_a_modelfile_names_the_same_files(
    file: Path, quantized: Path, model: Path, adapter: Path, tmp_path: Path
) -> None:
    own = wb.plan_ship("ollama", quantized, "tiny", template="none", modelfile=tmp_path / "a").report.text
    made = wb.plan_ship("ollama", file, "tiny", template="none", modelfile=tmp_path / "b").report.text
    named = [[(i.command, Path(i.value)) for i in parse_modelfile(text).instructions[:2]] for text in (own, made)]
    assert named[0] == [("FROM", tmp_path / "q.gguf"), ("ADAPTER", tmp_path / "adapter.gguf")]
    assert named[1] == [("FROM", model), ("ADAPTER", adapter)]


def test_llama_server_gets_the_adapter(quantized: Path, file: Path, tmp_path: Path) -> None:
    report = wb.plan_ship("llama-server", quantized, device="24GB").report
    assert f"--lora {tmp_path / 'adapter.gguf'}" in report.text
    file.write_text(f"FROM {tmp_path / 'q.gguf'}\nADAPTER ./adapter\n")
    with pytest.raises(UnsupportedError, match="adapters that are GGUFs"):
        wb.plan_ship("llama-server", file)


@pytest.mark.parametrize("target", ["vllm", "mlx", "lmstudio", "hub"])
def test_programs_that_read_no_modelfile(target: str, file: Path) -> None:
    with pytest.raises(UsageError, match="read Modelfiles"):
        wb.plan_ship(target, file, "" if target in ("vllm", "mlx") else "org/model")
