"""examples/engine.py runs one prompt from every format, with the logits of transformers for the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.engine import Engine

import weighbridge as wb

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)
transformers: Any = pytest.importorskip("transformers", reason=NOTHING)
ROOT = Path(__file__).parents[2]
PROMPT = [3, 17, 42, 5, 61, 8]
KINDS = ("hf", "q8_0.gguf", "mlx", "torch", "f16.gguf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with every parameter random, grouped heads and llama3 scaling, in every format."""
    path = tmp_path_factory.mktemp("engine")
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=64, rope_parameters=scaling, rms_norm_eps=1e-5, attention_bias=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (1.0 if "norm" in name else 0.0))
    model.to(torch.bfloat16).save_pretrained(path / "hf")
    for kind in ("q8_0", "f16"):
        wb.convert(path / "hf", path / f"{kind}.gguf", dtype=kind, tokenizer=False)
    wb.convert(path / "hf", path / "mlx", to=wb.MlxOptions(q_bits=4, q_group_size=32))
    wb.convert(path / "hf", path / "torch", to=wb.TorchFolderOptions())
    return path


def expected(source: Path) -> Any:
    """transformers' logits of the weights as they are stored."""
    model = wb.from_pretrained(transformers.LlamaForCausalLM, source, dtype="f32").eval()
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, folder: Path) -> None:
    with wb.provider(folder / kind) as weights:
        found = Engine(weights).forward(PROMPT)
    want = expected(folder / kind)
    assert np.abs(found - want).max() <= 2e-4 * np.abs(want).max()
    if kind in ("hf", "torch", "f16.gguf"):  # and of the model itself, by transformers alone
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
        with torch.no_grad():
            whole = model(torch.tensor([PROMPT])).logits[0].numpy()
        assert np.abs(found - whole).max() <= (2e-3 if kind == "f16.gguf" else 2e-4) * np.abs(whole).max()


def test_quantized_logits_are_near(folder: Path) -> None:
    want = expected(folder / "hf")
    for kind, bound in (("q8_0.gguf", 0.05), ("mlx", 0.8)):
        with wb.provider(folder / kind) as weights:
            assert 0 < np.abs(Engine(weights).forward(PROMPT) - want).max() <= bound * np.abs(want).max()


def test_tokens_one_by_one_give_the_same(folder: Path) -> None:
    with wb.provider(folder / "hf") as weights:
        whole, engine = Engine(weights).forward(PROMPT), Engine(weights)
        steps = np.concatenate([engine.forward([token]) for token in PROMPT])
    assert np.abs(whole - steps).max() <= 1e-4 * np.abs(whole).max()


def test_it_runs_as_a_script(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "engine.py"), str(folder / "mlx"), "3", "17", "--count", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert len(done.stdout.split()) == 3, done.stderr
    config = json.loads((folder / "hf" / "config.json").read_text())
    assert all(0 <= int(token) < config["vocab_size"] for token in done.stdout.split())


def test_the_engine_is_small() -> None:
    assert len((ROOT / "examples" / "engine.py").read_text(encoding="utf-8").splitlines()) <= 150
