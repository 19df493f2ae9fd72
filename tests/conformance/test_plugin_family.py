"""A family that a package adds with one table and one entry point is in every command, as a shipped one is."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.architecture.house import ROOT
from tests.plugins import TOYS, environment, installed, toy_family
from tests.programs import load_program

import weighbridge as wb
from weighbridge.models.arch import registry
from weighbridge.models.arch.registry import family_of_gguf, family_of_hf
from weighbridge.reports import arch

CONFIG = {
    "architectures": ["ToyForCausalLM"], "model_type": "toy", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
}  # fmt: skip


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    with installed(toy_family(tmp_path / "packages")) as folder:
        yield folder


@pytest.fixture
def model(packages: Path, tmp_path: Path) -> Path:
    family, rng, path = registry.family("toy"), np.random.default_rng(1), tmp_path / "toy-1b"
    shapes = family.names("hf", family.sizes_from_hf(CONFIG))
    path.mkdir()
    save_file({n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def run(packages: Path, *arguments: str | Path) -> str:
    """The output of a command in a process with the plug-in."""
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge", *map(str, arguments)], env=environment(packages), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_costs_one_table_and_one_entry_point(packages: Path) -> None:
    """A Llama look-alike with norms on q and k; the numbers that docs/extending.md quotes."""
    assert len((TOYS / "toy_family.toml").read_text("utf-8").splitlines()) <= 15
    entries = (packages / "toy_families-1.0.dist-info/entry_points.txt").read_text().splitlines()
    assert entries == ["[weighbridge.families]", "toy = toy_families"]


def test_it_is_found_and_listed(packages: Path) -> None:
    assert family_of_hf(CONFIG).name == family_of_gguf({"general.architecture": "toy"}).name == "toy"
    assert "toy" in [line.name for line in arch.list_families()]
    assert [*registry.family("toy").rows][:5] == ["embed", "attn_norm", "q", "q_norm", "k"]


def test_it_converts_there_and_back(model: Path, tmp_path: Path) -> None:
    assert arch.check(model).ok
    wb.convert(model, tmp_path / "toy.gguf", dtype="f32", tokenizer=False)
    wb.convert(tmp_path / "toy.gguf", tmp_path / "back", to="hf", tokenizer=False)
    first, back = (load_file(path / "model.safetensors") for path in (model, tmp_path / "back"))
    assert first.keys() == back.keys()
    assert all(np.array_equal(first[name], back[name]) for name in first)
    assert json.loads((tmp_path / "back/config.json").read_text())["architectures"] == ["ToyForCausalLM"]


@pytest.mark.slow
def test_every_command_knows_it(packages: Path, model: Path, tmp_path: Path) -> None:
    assert "toy" in run(packages, "arch", "list")
    assert "blk.{l}.attn_q_norm.weight" in run(packages, "arch", "show", "toy")
    assert "all fit" in run(packages, "arch", "check", model)
    run(packages, "convert", model, tmp_path / "toy.gguf", "--no-tokenizer")
    for command in ("identify", "inspect"):
        assert "toy" in run(packages, command, tmp_path / "toy.gguf")


def test_the_docs_generator_lists_it(packages: Path) -> None:
    module = load_program(ROOT / "docs" / "generate.py", "generate_with_toy")
    assert "`toy`" in "\n".join(module.models_part(tomllib.loads((ROOT / "docs/supported.toml").read_text())))
