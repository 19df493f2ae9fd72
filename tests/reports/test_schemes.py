"""What `inspect` tells of the schemes in a model: which weights, in which layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports import bad_packings
from tests.reports import makers as m

from weighbridge.base.words import ranges
from weighbridge.cli.main import main
from weighbridge.reports.inspect.report import InspectReport, inspect

LAYERS = 6


def mlx(bits: int, group: int = 64) -> bad_packings.Arrays:
    return bad_packings.mlx(bits, group)


def folder(path: Path, modules: dict[str, bad_packings.Arrays], config: dict[str, Any]) -> Path:
    path.mkdir()
    arrays = {f"{module}.{name}": a for module, parts in modules.items() for name, a in parts.items()}
    tensors = {name: (bad_packings._NAMES[str(a.dtype)], a.shape, a.tobytes()) for name, a in arrays.items()}
    (path / "model.safetensors").write_bytes(m.safetensors(tensors, {"format": "mlx"}))
    (path / "config.json").write_text(json.dumps(config))
    return path


def mixed(path: Path) -> Path:
    """Four bits, and six of the first and the last layers' down_proj, in a config that says so; a head in F16."""
    sixes = {f"model.layers.{i}.mlp.down_proj" for i in (0, 1, LAYERS - 1)}
    names = [f"model.layers.{i}.mlp.{role}" for i in range(LAYERS) for role in ("up_proj", "down_proj")]
    modules = {name: mlx(6 if name in sixes else 4) for name in names}
    modules["lm_head"] = {"weight": np.ones((16, 256), np.float16)}
    modules["model.norm"] = {"weight": np.ones(256, np.float16)}
    own = {name: {"bits": 6, "group_size": 64} for name in sixes}
    return folder(path, modules, {"quantization": {"bits": 4, "group_size": 64, **own}})


def found(report: InspectReport) -> list[tuple[Any, ...]]:
    return [(s.scheme, s.bits, s.group, s.weights, s.bits_per_weight) for s in report.schemes]


def test_layers_of_one_scheme_are_together(tmp_path: Path) -> None:
    report = inspect(mixed(tmp_path / "m"))
    assert found(report) == [
        ("mlx", 4, 64, 9, 4.5), ("mlx", 6, 64, 3, 6.5), ("F16", None, None, 1, 16)
    ]  # fmt: skip
    four, six, rest = report.schemes
    assert [(w.role, w.layers, w.weights) for w in four.where] == [
        ("model.layers.*.mlp.up_proj.weight", "0-5", 6), ("model.layers.*.mlp.down_proj.weight", "2-4", 3)
    ]  # fmt: skip
    assert [(w.role, w.layers) for w in six.where] == [("model.layers.*.mlp.down_proj.weight", "0-1, 5")]
    assert [(w.role, w.layers) for w in rest.where] == [("lm_head.weight", "")]
    assert sum(s.parameters for s in report.schemes) == report.parameters - 256


CASES: dict[str, tuple[bad_packings.Arrays, dict[str, Any], tuple[str, float, int | None]]] = {
    name: (arrays(), dict(config), want)
    for name, (arrays, config), want in (
        ("mlx", bad_packings.GOOD["mlx"], ("mlx", 4, 64)),
        ("mxfp4", bad_packings.GOOD["mxfp4"], ("mlx mxfp4", 4, 32)),
        ("nvfp4", bad_packings.GOOD["nvfp4"], ("mlx nvfp4", 4, 16)),
        ("gptq", bad_packings.GOOD["gptq"], ("gptq", 4, 64)),
        ("awq", bad_packings.GOOD["awq"], ("awq", 4, 64)),
        ("int8", bad_packings.GOOD["int8"], ("int8", 8, 64)),
        ("hqq", bad_packings.GOOD["hqq"], ("hqq", 4, 32)),
    )
}


@pytest.mark.parametrize("name", CASES)
def test_bits_and_groups_of_each_scheme(name: str, tmp_path: Path) -> None:
    arrays, config, want = CASES[name]
    (row,) = inspect(folder(tmp_path / "m", {"model.layers.3.mlp.up_proj": arrays}, config)).schemes
    assert (row.scheme, row.bits, row.group) == want
    assert row.nbytes == sum(a.nbytes for a in arrays.values())
    assert row.where[0].layers == "3"


def test_ggml_types_and_plain_models(tmp_path: Path) -> None:
    tensors = {"blk.0.a.weight": ("Q4_K", (2, 512)), "blk.1.a.weight": ("Q8_0", (2, 512)), "c.weight": ("F32", (2, 3))}
    (tmp_path / "m.gguf").write_bytes(m.gguf({}, tensors))
    assert found(inspect(tmp_path / "m.gguf")) == [
        ("Q4_K", None, 256, 1, 4.5), ("Q8_0", None, 32, 1, 8.5), ("F32", None, None, 1, 32)
    ]  # fmt: skip
    assert inspect(m.llama_folder(tmp_path / "plain")).schemes == ()


def test_the_command_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(mixed(tmp_path / "m"))
    assert main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert "mlx, 6 bits, groups of 64" in shown
    assert "down_proj.weight (0-1, 5)" in shown
    assert main(["inspect", path, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["schemes"]
    assert [row["bits"] for row in rows] == [4, 6, None]
    assert rows[1]["where"] == [{"role": "model.layers.*.mlp.down_proj.weight", "layers": "0-1, 5", "weights": 3}]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_name_their_numbers(numbers: set[int]) -> None:
    named = [part.split("-") for part in ranges(numbers, ", ").split(", ")]
    assert [n for part in named for n in range(int(part[0]), int(part[-1]) + 1)] == sorted(numbers)
    assert len(named) == sum(n - 1 not in numbers for n in numbers)
