"""Statistics of tensors are numpy's over all values, in every form that a model comes in; heat maps are these by layer
and role."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.reports import makers as m
from tests.reports.test_microscope import GROUPS, _random
from tests.reports.test_view import CONFIG, DENSE, LAYER, MIXTRAL, SPARSE, folder

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.models.open import open_model
from weighbridge.reports.statistics import tensor as statistics
from weighbridge.reports.statistics.heat import STATISTICS, HeatMap, heat_map
from weighbridge.reports.statistics.tensor import (
    CancelledError,
    TensorStatistics,
    channel_report,
    describe_tensor,
    tensor_statistics,
)
from weighbridge.tensors import counting
from weighbridge.tensors.nodes import cast

KINDS: dict[str, Any] = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64, "I8": np.int8,
    "U8": np.uint8, "I64": np.int64, "F8_E4M3": ml_dtypes.float8_e4m3fn,
}  # fmt: skip


def values_of(dtype: str) -> Any:
    rng = np.random.default_rng(6)
    values = rng.standard_t(4, (96, 64)) * (40 if dtype.startswith(("I", "U")) else 0.05)
    values[3, 5], values[:4, 9] = 0.0, 3.0
    return np.abs(values).astype(KINDS[dtype]) if dtype.startswith("U") else values.astype(KINDS[dtype])


def of_file(path: Path, dtype: str, values: Any) -> TensorStatistics:
    path.write_bytes(m.safetensors({"t": (dtype, values.shape, values.tobytes())}))
    with open_model(path) as model:
        return describe_tensor(model, "t", bins=16)


def check(found: TensorStatistics, wide: Any) -> None:
    assert (found.count, found.zeros, found.nan, found.inf) == (wide.size, (wide == 0).sum(), 0, 0)
    assert (found.minimum, found.maximum, found.absmax) == (wide.min(), wide.max(), np.abs(wide).max())
    assert found.mean == pytest.approx(wide.mean(), rel=1e-6, abs=1e-9)
    for name, want in (("std", wide.std()), ("rms", np.sqrt((wide**2).mean()))):
        assert getattr(found, name) == pytest.approx(want, rel=1e-9 if found.exact else 2e-5), name
    want = np.quantile(wide, [float(q) for q in found.quantiles], method="inverted_cdf")
    np.testing.assert_allclose(list(found.quantiles.values()), want, rtol=0 if found.exact else 2**-8)
    assert sum(found.histogram.counts) == wide.size
    assert sum(b.count for b in found.magnitudes) == (wide != 0).sum()
    if found.exact:
        np.testing.assert_array_equal(found.histogram.counts, np.histogram(wide, 16)[0])


@pytest.mark.parametrize("dtype", KINDS)
def test_statistics_are_numpys(dtype: str, tmp_path: Path) -> None:
    values = values_of(dtype)
    found = of_file(tmp_path / "x.safetensors", dtype, values)
    check(found, values.astype(np.float64))
    assert found.exact == (dtype in ("F16", "BF16"))
    assert found.channels is not None
    columns = np.abs(values.astype(np.float32)).max(axis=0)
    assert found.channels.median == np.median(columns)
    assert [c.index for c in found.channels.largest] == np.argsort(-columns, kind="stable")[:10].tolist()
    assert found.channels.outliers == (columns > 6 * np.median(columns)).sum()


@pytest.mark.parametrize("name", GROUPS)
def test_a_packed_weight_is_decoded(name: str, tmp_path: Path) -> None:
    tensors, config, _ = GROUPS[name]
    rng = np.random.default_rng(8)
    filled = {f"m.{n}": (d, s, _random(rng, d, s)) for n, (d, s) in tensors.items()}
    (tmp_path / "model.safetensors").write_bytes(m.safetensors(filled))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_model(tmp_path) as model:
        node: Any = model.logical["m.weight"]
        check(describe_tensor(model, "m.weight", bins=16), node.decode().read_all().view(np.float32).astype(np.float64))
        assert tensor_statistics(model, "m.scales").dtype in ("F16", "BF16")


@pytest.mark.parametrize("name", GROUPS)
def test_a_packed_weight_is_found_without_the_others(name: str, tmp_path: Path) -> None:
    """By its own name and by those of its stored tensors, as among all groups of the model."""
    tensors, config, _ = GROUPS[name]
    rng = np.random.default_rng(8)
    filled = {f"{p}.{n}": (d, s, _random(rng, d, s)) for p in ("a.m", "b.m") for n, (d, s) in tensors.items()}
    (tmp_path / "model.safetensors").write_bytes(m.safetensors(filled))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_model(tmp_path) as whole:
        wanted = {n: g for n, g in whole.packed.items() if n.startswith("a.")}
        assert wanted
        for asked in ("a.m.weight", *wanted):
            with open_model(tmp_path) as model:
                found = model.packed_near([asked])
                assert "packed" not in vars(model)
                assert found.keys() == wanted.keys()
                for stored, group in found.items():
                    assert (group.name, group.stored) == ("a.m.weight", wanted[stored].stored)
                    assert group.node.spec == wanted[stored].node.spec
                    node, expected = (cast(g.node, F32) for g in (group, wanted[stored]))
                    assert (node.read_all() == expected.read_all()).all()
                assert not model.packed_near(["c.m.weight"])


def test_ggml_blocks_are_decoded(tmp_path: Path) -> None:
    data = np.random.default_rng(2).integers(0, 120, (8, 34), dtype=np.uint8)
    (tmp_path / "x.gguf").write_bytes(m.gguf({}, {"t": ("Q8_0", (4, 64), data.tobytes())}))
    with open_model(tmp_path / "x.gguf") as model:
        scales = data[:, :2].copy().view(np.float16).astype(np.float32)
        want = (data[:, 2:].view(np.int8).astype(np.float32) * scales).astype(np.float64)
        check(describe_tensor(model, "t", bins=16), want)


def test_broken_values_stand_apart(tmp_path: Path) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 1.0], [2.0, -0.0, 0.0, 1e-40]], np.float32)
    found = of_file(tmp_path / "x.safetensors", "F32", values)
    assert (found.nan, found.inf, found.zeros, found.negative_zeros, found.subnormals) == (1, 2, 2, 1, 1)
    assert (found.minimum, found.maximum) == (0.0, 2.0)
    assert found.channels is not None
    assert [c.absmax for c in found.channels.largest] == [2.0, 1.0, 0.0, 0.0]
    nothing = of_file(tmp_path / "y.safetensors", "F32", np.full((2, 2), np.nan, np.float32))
    assert (nothing.mean, nothing.minimum, nothing.quantiles, nothing.histogram.counts) == (None, None, {}, ())
    empty = of_file(tmp_path / "z.safetensors", "F16", np.empty((0, 4), np.float16))
    assert (empty.count, empty.mean) == (0, None)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F32", "I64"])
def test_many_slabs_are_one_tensor(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit where counts tell all; sums of f64 depend on their order."""
    values = values_of(dtype)
    whole = of_file(tmp_path / "x.safetensors", dtype, values)
    monkeypatch.setattr(statistics, "_RUN", 200)
    found = of_file(tmp_path / "x.safetensors", dtype, values)
    sums = {name: getattr(found, name) for name in ("mean", "std", "rms")}
    if dtype in ("F32", "I64"):
        assert sums == pytest.approx({name: getattr(whole, name) for name in sums}, rel=1e-12)
        whole = replace(whole, **sums)
    assert found == whole


def test_it_stops_when_it_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_RUN", 64)
    (tmp_path / "x").write_bytes(m.safetensors({"t": ("F32", (96, 64))}))
    calls: list[int] = []

    def fourth() -> bool:
        calls.append(1)
        return len(calls) > 3

    with open_model(tmp_path / "x") as model:
        for job in (tensor_statistics, channel_report):
            calls.clear()
            with pytest.raises(CancelledError):
                job(model, "t", cancelled=fourth)
            assert len(calls) == 4
        with pytest.raises(CancelledError):
            heat_map(model, "rms", cancelled=lambda: True)


def test_what_has_no_statistics(tmp_path: Path) -> None:
    tensors = {"c": {"dtype": "C64", "shape": [2], "data_offsets": [0, 16]}}
    (tmp_path / "x").write_bytes(m.raw_safetensors(tensors, bytes(16)))
    with open_model(tmp_path / "x") as model:
        with pytest.raises(UnsupportedError, match="complex"):
            tensor_statistics(model, "c")
        with pytest.raises(UnsupportedError, match="isn't a matrix"):
            channel_report(model, "c")
        with pytest.raises(UsageError, match="no tensor"):
            tensor_statistics(model, "d")
        with pytest.raises(UsageError, match="unknown statistic"):
            heat_map(model, "size")


def random_folder(path: Path, config: dict[str, Any], layer: dict[str, Any]) -> Path:
    folder(path, config, layer, "F32")
    data = (path / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    values = np.random.default_rng(5).standard_t(5, (len(data) - start) // 4).astype(np.float32)
    (path / "model.safetensors").write_bytes(data[:start] + values.tobytes())
    return path


def cell(found: HeatMap, layer: int, role: str) -> float | None:
    return found.cells[found.layers.index(layer)][found.roles.index(role)]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_heat_map_has_every_layer_and_role(statistic: str, tmp_path: Path) -> None:
    path = random_folder(tmp_path / "m", MIXTRAL, LAYER | SPARSE)
    with open_model(path) as model:
        found = heat_map(model, statistic)
        values = {n: node.read_all().view(np.float32) for n, node in model.stored.items()}
    assert found.layers == (-1, 0, 1)
    assert cell(found, 0, "embed.weight") is None
    experts = np.concatenate([v for n, v in values.items() if n.startswith("model.layers.1.") and ".w2." in n])
    wide = experts.astype(np.float64)
    want = {
        "bytes": wide.size * 4, "parameters": wide.size, "bits": 32.0, "mean": wide.mean(), "std": wide.std(),
        "rms": np.sqrt((wide**2).mean()), "absmax": np.abs(wide).max(), "zeros": 0.0, "nonfinite": 0.0,
        "kurtosis": (((wide - wide.mean()) / wide.std()) ** 4).mean(),
    }  # fmt: skip
    assert cell(found, 1, "moe.experts.down.weight") == pytest.approx(want[statistic], 1e-5)


def test_experts_of_a_layer_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer may have hundreds, and counters take a megabyte."""
    path, made = random_folder(tmp_path / "m", MIXTRAL, LAYER | SPARSE), []

    class Counted(counting.ValueCounts):
        def __init__(self, dtype: DType) -> None:
            made.append(dtype)
            super().__init__(dtype)

    monkeypatch.setattr(counting, "ValueCounts", Counted)
    with open_model(path) as model:
        found = heat_map(model, "mean")
    cells = [c for row in found.cells for c in row if c is not None]
    assert len(made) == len(cells) < len(model.index.entries)


def test_what_a_heat_map_leaves_out_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"c": {"dtype": "C64", "shape": [2], "data_offsets": [0, 16]},
               "f": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}}  # fmt: skip
    (tmp_path / "x").write_bytes(m.raw_safetensors(tensors, bytes(32)))
    with open_model(tmp_path / "x") as model:
        assert heat_map(model, "absmax").skipped == ("c",)
        assert heat_map(model, "bytes").skipped == ()
    assert main(["stats", str(tmp_path / "x")]) == 0
    assert "can't be decoded: c" in capsys.readouterr().out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = random_folder(tmp_path / "m", CONFIG, LAYER | DENSE)
    assert main(["stats", str(path), "--statistic", "bytes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(v or 0 for row in report["cells"] for v in row) == sum(p.stat().st_size for p in path.glob("*.s*")) - (
        int.from_bytes((path / "model.safetensors").read_bytes()[:8], "little") + 8
    )
    assert main(["stats", str(path)]) == 0
    assert "attention.q.weight" in capsys.readouterr().out
    name = "model.layers.0.mlp.up_proj.weight"
    assert main(["stats", f"{path}::{name}", "--json"]) == 0
    one = capsys.readouterr().out
    assert main(["stats", str(path), "--tensor", name, "--json"]) == 0
    assert capsys.readouterr().out == one
    assert main(["stats", f"{path}::{name}"]) == 0
    assert "kurtosis" in capsys.readouterr().out
    for wrong in (
        [str(path), "--bins", "3"],
        [f"{path}::{name}", "--tensor", name],
        [f"{path}::{name}", "--statistic", "rms"],
    ):
        assert main(["stats", *wrong]) == 2
    assert main(["stats", str(path), "--statistic", "size"]) == 2
