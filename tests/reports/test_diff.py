"""Two models compared: equal across containers and schemes, each kind of difference seen and measured, worst first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.reports.diff import errors, renames
from weighbridge.reports.diff import report as reports
from weighbridge.reports.diff.model import DiffReport, decibels
from weighbridge.reports.diff.report import diff

Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., DiffReport]:
    def run(a: Arrays, b: Arrays, **options: Any) -> DiffReport:
        save_file(a, tmp_path / "a.safetensors")
        save_file(b, tmp_path / "b.safetensors")
        return diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", **options)

    return run


def normal(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_measures_are_those_of_numpy(compare: Callable[..., DiffReport]) -> None:
    a, b = normal(300, 50), normal(300, 50, seed=2)
    found = compare({"x": a}, {"x": b})
    (change,) = found.tensors
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    assert change.kind == "values"
    assert change.max_abs == pytest.approx(np.abs(x - y).max(), rel=1e-12)
    assert change.nmse == pytest.approx(((x - y) ** 2).sum() / (x**2).sum(), rel=1e-12)
    assert change.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), rel=1e-12)
    assert not found.same


def test_slabs_add_up(compare: Callable[..., DiffReport], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = {"x": normal(97, 13)}, {"x": normal(97, 13, seed=2)}
    whole = compare(a, b).tensors[0]
    monkeypatch.setattr(reports, "_SLAB", 100)
    part = compare(a, b).tensors[0]
    assert part.max_abs == whole.max_abs
    assert part.nmse == pytest.approx(whole.nmse)
    assert part.cosine == pytest.approx(whole.cosine)


def test_each_kind_worst_first(compare: Callable[..., DiffReport]) -> None:
    base = normal(8, 8)
    a = {"gone": base, "shape": base, "near": base, "far": base, "type": base.astype(np.float16), "same": base}
    b = {"new": normal(8, 8, seed=2), "shape": normal(4, 8), "near": base + np.float32(1e-3), "far": base * 2,
         "type": base.astype(np.float16).astype(np.float32), "same": base}  # fmt: skip
    found = compare(a, b)
    assert [(c.name, c.kind) for c in found.tensors] == [
        ("gone", "only in a"), ("new", "only in b"), ("shape", "shape"), ("far", "values"), ("near", "values"),
        ("type", "type"),
    ]  # fmt: skip
    assert found.counts == {
        "only in a": 1, "only in b": 1, "renamed": 0, "shape": 1, "values": 2, "type": 1, "equal": 1,
    }  # fmt: skip


def test_another_type_with_the_same_values_is_no_difference(compare: Callable[..., DiffReport]) -> None:
    x = normal(4, 4).astype(np.float16)
    assert compare({"x": x}, {"x": x.astype(np.float32)}).same


def test_tolerance(compare: Callable[..., DiffReport]) -> None:
    x = normal(4, 4)
    y = x.copy()
    y[0, 0] += np.float32(0.25)
    assert compare({"x": x}, {"x": y}, tolerance=0.26).same
    assert not compare({"x": x}, {"x": y}, tolerance=0.24).same


def test_nan_and_inf_count_only_where_they_stand_alone(compare: Callable[..., DiffReport]) -> None:
    x, y = normal(6), normal(6)
    x[0] = y[0] = np.nan
    x[1] = y[1] = np.inf
    x[2], y[3], y[4] = np.nan, np.inf, -np.inf
    (change,) = compare({"x": x}, {"x": y}).tensors
    assert (change.broken, change.max_abs) == (3, 0.0)


def test_integers_beyond_f32(compare: Callable[..., DiffReport]) -> None:
    x = np.array([2**24, 5], np.int64)
    assert not compare({"x": x}, {"x": x + np.array([1, 0])}).same
    assert compare({"x": x}, {"x": x.copy()}).same


def test_negative_zero_and_empty(compare: Callable[..., DiffReport]) -> None:
    assert compare({"x": np.zeros(3, np.float32), "e": np.zeros((0, 3), np.float32)},
                   {"x": -np.zeros(3, np.float32), "e": np.zeros((0, 3), np.float32)}).same  # fmt: skip


def test_unknown_families_are_compared_by_their_own_names(compare: Callable[..., DiffReport]) -> None:
    found = compare({"x": normal(2)}, {"y": normal(2, seed=2)})
    assert (found.names, found.counts["only in a"], found.counts["only in b"]) == ("logical", 1, 1)
    assert found.notes
    with pytest.raises(WeighbridgeError):
        compare({"x": normal(2)}, {"y": normal(2)}, names="canonical")
    with pytest.raises(UsageError):
        compare({"x": normal(2)}, {"y": normal(2)}, names="mine")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from weighbridge.cli.main import main

    a, b, page = (str(tmp_path / n) for n in ("a.safetensors", "b.safetensors", "page.html"))
    save_file({"<b>x</b>": normal(3)}, a)
    save_file({"<b>x</b>": normal(3, seed=2)}, b)
    assert main(["diff", a, a]) == 0
    capsys.readouterr()
    assert main(["diff", a, b, "--json", "--html", page]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["tensors"][0]["kind"] == "values"
    html = Path(page).read_text()
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "<b>x</b>" not in html
    assert main(["diff", a, b]) == 1
    assert "1 value" in capsys.readouterr().out


def test_metadata_and_templates_are_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal tensors under another key, another config or another chat template: exit code 1, and what differs."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file({"x": np.ones(3, np.float32)}, tmp_path / name / "model.safetensors", {"format": "pt"})
        (tmp_path / name / "config.json").write_text('{"model_type": "none", "layers": 3}')
    assert diff(tmp_path / "a", tmp_path / "b")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    (tmp_path / "b" / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "b" / "config.json").write_text('{"model_type": "none", "layers": 4}')
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (bool(found), found.same, len(found.metadata)) == (False, True, 2)
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "chat template: missing | {{ messages }}" in out
    assert "config.json: layers: 3 | 4" in out


def test_settings_and_tokenizers_beside_the_weights_are_differences(tmp_path: Path) -> None:
    """Of a tokenizer's JSON its value counts, however it is written."""
    beside: dict[str, dict[str, object]] = {
        "generation_config.json": {"top_k": 5},
        "tokenizer_config.json": {"a": 1},
        "tokenizer.json": {"x": [1, 2]},
        "preprocessor_config.json": {"image_mean": [0.5]},
        "processor_config.json": {"image_seq_len": 169},
        "adapter_config.json": {"lora_alpha": 16},
    }
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file({"x": np.ones(3, np.float32)}, tmp_path / name / "model.safetensors")
        for file, settings in beside.items():
            (tmp_path / name / file).write_text(json.dumps(settings, indent=2 if name == "b" else None))
    assert [key for key, *_ in diff(tmp_path / "a", tmp_path / "b").metadata] == []
    for file, settings in beside.items():
        (tmp_path / "b" / file).write_text(json.dumps(dict.fromkeys(settings, 0)))
    found = diff(tmp_path / "a", tmp_path / "b")
    assert not found
    keys = {"tokenizer.json" if file == "tokenizer.json" else f"{file}: {next(iter(s))}" for file, s in beside.items()}
    assert {key for key, *_ in found.metadata} == keys
    alone = diff(tmp_path / "a" / "model.safetensors", tmp_path / "b")
    assert [key for key, *_ in alone.metadata] == []


def test_tensors_that_only_lost_their_names(compare: Callable[..., DiffReport]) -> None:
    """By bytes, type and shape; equal ones in order; what else changed is no rename."""
    x, y, z = (normal(8, 8, seed=seed) for seed in (1, 2, 3))
    found = compare({"old": x, "p": y, "q": y, "cast": z, "flat": z},
                    {"new": x, "r": y, "half": z.astype(np.float16), "line": z.reshape(64)})  # fmt: skip
    renamed = {c.name: (c.name_b, c.a, c.b) for c in found.tensors if c.kind == "renamed"}
    assert renamed == {"old": ("new", "F32[8, 8]", "F32[8, 8]"), "p": ("r", "F32[8, 8]", "F32[8, 8]")}
    assert {c.name for c in found.tensors if c.kind == "only in a"} == {"q", "cast", "flat"}
    assert {c.name for c in found.tensors if c.kind == "only in b"} == {"half", "line"}
    assert (found.counts["renamed"], found.same) == (2, False)


def test_only_tensors_that_could_be_renamed_are_read() -> None:
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes.moves import const

    read: list[str] = []
    nodes = {name: const(normal(*shape), F32) for name, shape in {"a": (2, 2), "b": (3,), "c": (2, 2)}.items()}
    assert renames.find_renamed(nodes, nodes, ["a", "b"], ["c"], read.append) == {"a": "c"}
    assert sorted(read) == ["a", "c"]


def test_another_type_with_other_values_is_both(tmp_path: Path) -> None:
    from tests.page.samples import llama

    from weighbridge.api.writing import convert

    llama(tmp_path / "m")
    convert(tmp_path / "m", tmp_path / "a.gguf", dtype="bf16", tokenizer=False)
    convert(tmp_path / "m", tmp_path / "b.gguf", dtype="q8_0", tokenizer=False)
    found = diff(tmp_path / "a.gguf", tmp_path / "b.gguf")
    changed = [c for c in found.tensors if c.kind == "values"]
    assert changed
    assert all(c.retyped and c.a.startswith("BF16") for c in changed)
    rows = {(c.role, c.layer) for c in changed}
    assert ("attention.q.weight", 1) in rows


def test_errors_of_layers_are_those_of_their_tensors_as_one(compare: Callable[..., DiffReport]) -> None:
    """Against numpy over the joined tensors: a sum of squares over another, not a mean of ratios."""
    names = [f"blocks.{layer}.{part}.weight" for layer in range(3) for part in ("up", "down")]
    a = {name: normal(8, 4, seed=i) * np.float32(10 ** (i % 2)) for i, name in enumerate(names)}
    b = {name: x + normal(8, 4, seed=50) * np.float32(0.01 * (i + 1)) for i, (name, x) in enumerate(a.items())}
    found = compare(a | {"head": normal(3)}, b | {"head": normal(3, seed=9)})
    wanted = {}
    for layer in range(3):
        x, y = (np.concatenate([m[n].astype("f8").ravel() for n in names if f".{layer}." in n]) for m in (a, b))
        wanted[layer] = ((x - y) ** 2).sum() / (x**2).sum()
    assert {row.layer: row.nmse for row in found.layers} == pytest.approx(wanted)
    assert [row.layer for row in found.layers] == sorted(wanted, key=lambda layer: -wanted[layer])
    assert all(row.snr == pytest.approx(-10 * np.log10(row.nmse)) and row.tensors == 2 for row in found.layers)


@pytest.mark.parametrize("statistic", sorted(errors.ERRORS))
def test_each_cell_of_the_error_map(compare: Callable[..., DiffReport], statistic: str) -> None:
    a = {f"blocks.{layer}.{part}.weight": normal(8, 4, seed=layer) for layer in range(2) for part in ("up", "down")}
    b = dict(a) | {"blocks.1.up.weight": a["blocks.1.up.weight"] + normal(8, 4, seed=8) / 50}
    found = compare(a, b)
    heat = errors.error_map(found, statistic)
    (change,) = found.tensors
    wanted = {
        "snr": change.snr, "error": np.sqrt(change.nmse or 0), "max_abs": change.max_abs, "cosine": change.cosine,
    }  # fmt: skip
    assert (heat.layers, heat.roles) == ((1,), ("blocks.*.up.weight",))
    assert [list(row) for row in heat.cells] == [[pytest.approx(wanted[statistic])]]


def test_ratios_without_signal_or_noise_have_no_decibels() -> None:
    assert [decibels(x) for x in (None, 0.0, float("inf"), float("nan"))] == [None] * 4
    assert decibels(0.01) == pytest.approx(20)
