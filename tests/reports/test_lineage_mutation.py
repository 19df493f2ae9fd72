"""Each number that decides between relations has a fault that a test sees."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.conversion.product_models import write_seeing
from tests.mutation import Fault, assert_seen
from tests.reports.lineage_models import Arrays, folder, random_model, stored, wide, with_lora

import weighbridge as wb
from weighbridge.reports.lineage import family_tree, mixing, relation, sparse, thresholds, values
from weighbridge.reports.lineage.model import LineagePair
from weighbridge.reports.lineage.sampling import Sample

pytestmark = pytest.mark.mutation


def _rows(seed: int, count: int = 64, width: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, (count, width)).astype(np.float32)


def _bf16(rows: np.ndarray) -> np.ndarray:
    return stored({"x": rows})["x"].astype(np.float32)


def _changed(seed: int, amount: float) -> Arrays:
    rng = np.random.default_rng(seed)
    return stored({n: v + amount * rng.normal(0, 0.1, v.shape) for n, v in wide(stored(random_model(0))).items()})


def _low_rank(rank: int, size: float) -> np.ndarray:
    rng = np.random.default_rng(rank)
    change: np.ndarray = rng.normal(0, size, (64, rank)) @ rng.normal(0, size, (rank, 256))
    return change.astype(np.float32)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder(Path("base"), stored(random_model(0)))
    folder(Path("near"), _changed(1, 0.01))
    folder(Path("far"), _changed(2, 3.0))
    folder(Path("stranger"), stored(random_model(5)))
    folder(Path("lora"), with_lora(stored(random_model(0)), 1, 60, "q v"))
    return tmp_path


def relation_of(name: str, expected: str) -> Callable[[], None]:
    def check() -> None:
        assert wb.lineage(["base", name]).pairs[0].relation == expected

    return check


def _bytes(least: int, most: int) -> Callable[[], None]:
    def check() -> None:
        assert least <= wb.lineage(["base", "near"]).bytes_read <= most

    return check


#: Threshold -> a wrong value, the model that is compared with the base, and the relation that is right.
RELATIONS: Mapping[str, tuple[float, str, str]] = {
    "SAME_LAYER": (0.01, "far", "related"),
    "RELATED": (0.9, "far", "related"),
    "RANK_ROWS": ((16,), "lora", "lora-merged"),  # type: ignore[dict-item]
    "LOW_RANK": (0.1, "lora", "lora-merged"),
    "NORM": (10.0, "norm", "fine-tuned"),
    "PERMUTED": (0.01, "near", "fine-tuned"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", RELATIONS)
def test_a_wrong_threshold_gives_another_relation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = stored(random_model(0))
    folder(Path("norm"), {**arrays, "model.norm.weight": (wide(arrays)["model.norm.weight"] * 1.1).astype(np.float32)})
    wrong, model, expected = RELATIONS[name]
    assert_seen(Fault(thresholds, name, wrong, relation_of(model, expected)), monkeypatch)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("ANCHOR_ELEMENTS", 1 << 20), ("MATRIX_ELEMENTS", 1 << 20), ("LAYERS", 2), ("MODEL_BYTES", 1), ("ALWAYS", 1)],
)
def test_a_wrong_amount_is_read(name: str, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "ALWAYS":
        monkeypatch.setattr(thresholds, "MODEL_BYTES", 1)
    usual = wb.lineage(["base", "near"]).bytes_read
    assert_seen(Fault(thresholds, name, wrong, _bytes(usual, usual)), monkeypatch)


# ------------------------------------------------------------------------------------------ quantized


def _quantized(source: np.ndarray, kind: str) -> Sample:
    from weighbridge.base.dtypes import dtype
    from weighbridge.tensors import nodes

    node = nodes.cast(nodes.const(source, dtype("F32")), dtype(kind))
    return Sample(nodes.decode(node).read_all().view(np.float32).reshape(source.shape), kind)


def _drifted() -> None:
    source = _rows(1)
    assert values.compare_samples(Sample(source, "F32"), _quantized(source, "Q8_0")) == "to b"
    near = (source + 0.0001 * _rows(2)).astype(np.float32)
    assert values.compare_samples(Sample(near, "F32"), _quantized(source, "Q8_0")) == "within"


def _packed() -> None:
    """MLX computes codes with scales and biases that it then rounds to BF16."""
    source = _rows(1, 8)
    low = source.reshape(-1, 64).min(1, keepdims=True)
    scale = np.ptp(source.reshape(-1, 64), axis=1, keepdims=True) / 15
    codes = np.rint((source.reshape(-1, 64) - low) / scale)
    decoded = (codes * _bf16(scale) + _bf16(low)).reshape(source.shape).astype(np.float32)
    assert values.compare_samples(Sample(source, "F32"), Sample(decoded, "mlx-affine 4")) == "to b"


@pytest.mark.parametrize(
    ("name", "wrong", "check"),
    [("OFF", 9999, _drifted), ("SLACK_GGML", 0.0, _drifted), ("SLACK_PACKED", 0.0, _packed)],
)
def test_rounding(name: str, wrong: float, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_seen(Fault(thresholds, name, wrong, check), monkeypatch)


# ------------------------------------------------------------------------------------------ ranks


def _rank(expected: int | None, change: np.ndarray) -> Callable[[], None]:
    def check() -> None:
        source = _bf16(_rows(1))
        assert relation.rank_of_change(source, _bf16(source + change), ["BF16", "BF16"]) == expected

    return check


RANKS: Mapping[str, tuple[float, Callable[[], None]]] = {
    "EDGE": (0.3, _rank(4, _low_rank(4, 0.05))),
    "LOUD": (1e9, _rank(4, _low_rank(4, 0.05))),
    "TAIL": (0.1, _rank(4, _low_rank(4, 0.05))),
    "GAP": (1e9, _rank(4, _low_rank(4, 0.05))),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, check = RANKS[name]
    assert_seen(Fault(thresholds, name, wrong, check), monkeypatch)


# ------------------------------------------------------------------------------------------ mixtures


def _sum(
    expected: dict[str, float] | None, size: float, rounds: Any = _bf16, *, twin: bool = False
) -> Callable[[], None]:
    """Whether 0.6 x + 0.4 y is recognised among four models."""

    def check() -> None:
        places = [(0, "a"), (0, "b")]
        rows = {n: [_bf16(_rows(i) + size * _rows(10 * k + i)) for i in (1, 2)] for k, n in enumerate("xyz", 1)}
        if twin:
            rows["z"] = [_bf16(values + 1e-5 * _rows(8)) for values in rows["x"]]
        rows["m"] = [rounds(0.6 * x + 0.4 * y) for x, y in zip(rows["x"], rows["y"], strict=True)]
        fakes = {name: _fake(name, dict(zip(places, parts, strict=True))) for name, parts in rows.items()}
        pairs = [LineagePair(a, b, "fine-tuned", distance=0.1) for a in rows for b in rows if a < b]
        merged = {row.name: row for row in mixing.find_merged(fakes, pairs) if row.relation == "merged"}
        weights = {source.name: source.weight for source in merged["m"].sources} if "m" in merged else None
        assert weights == expected
        assert expected is None or merged["m"].detail == "0.6 x + 0.4 y"  # the same weights in all matrices

    return check


def _fake(name: str, rows: Mapping[tuple[int, str], np.ndarray]) -> Any:
    nodes = {place: wb_node(values) for place, values in rows.items()}
    return SimpleNamespace(
        name=name, layers=(0,), matrices=nodes, lossy=False, float_type=next(iter(nodes.values())).spec.dtype,
        node=nodes.__getitem__, read=lambda requests: list(requests), rows=lambda place, elements: rows[place],
    )  # fmt: skip


def wb_node(rows: np.ndarray) -> Any:
    from weighbridge.base.dtypes import BF16
    from weighbridge.tensors import nodes

    return nodes.const(stored({"x": rows})["x"], BF16)


def _noisy(rows: np.ndarray) -> np.ndarray:
    return _bf16(rows + 0.0015 * _rows(7))


def _by_matrix(expected: dict[str, float] | None, *weights: tuple[float, float]) -> Callable[[], None]:
    """Whether sums of x and y with other weights in each matrix are recognised among four models."""

    def check() -> None:
        places = [(0, chr(97 + i)) for i in range(len(weights))]
        rows = {
            n: [_bf16(_rows(i, 16) + 0.1 * _rows(10 * k + i, 16)) for i in range(len(weights))]
            for k, n in enumerate("xyz", 2)
        }
        rows["m"] = [_bf16(a * x + b * y) for (a, b), x, y in zip(weights, rows["x"], rows["y"], strict=True)]
        fakes = {name: _fake(name, dict(zip(places, parts, strict=True))) for name, parts in rows.items()}
        pairs = [LineagePair(a, b, "fine-tuned", distance=0.1) for a in rows for b in rows if a < b]
        merged = {row.name: row for row in mixing.find_merged(fakes, pairs) if row.relation == "merged"}
        actual = {source.name: source.weight for source in merged["m"].sources} if "m" in merged else None
        assert actual == (None if expected is None else pytest.approx(expected, abs=0.01))
        assert merged.keys() <= {"m"}

    return check


def test_a_matrix_that_is_one_models_counts_in_the_weights_only() -> None:
    _by_matrix({"x": 0.5, "y": 0.5}, (0, 1), (0.3, 0.7), (0.7, 0.3), (1, 0))()
    _by_matrix(None, (0, 1), (0, 1), (1, 0), (1, 0))()


def test_values_that_change_in_the_last_bit_are_not_in_another_order(here: Path) -> None:
    arrays = {n: v.view(np.uint16).copy() for n, v in stored(random_model(0)).items()}
    for values_ in arrays.values():
        values_.ravel()[::97] ^= 1
    folder(Path("flipped"), {n: v.view(stored({"x": np.zeros(1)})["x"].dtype) for n, v in arrays.items()})
    assert wb.lineage(["base", "flipped"]).pairs[0].relation == "fine-tuned"


RIGHT = {"x": 0.6, "y": 0.4}
MIXTURES: Mapping[str, tuple[float, Callable[[], None]]] = {
    "MIX_REST": (1e-9, _sum(RIGHT, 0.1)),
    "MIX_NOISE": (1e-3, _sum(RIGHT, 0.1)),
    "MIX_WEIGHT": (0.5, _sum(RIGHT, 0.1)),
    "MIX_EQUAL": (1.1, _sum(RIGHT, 0.02)),
    "MIX_CLEAR": (0.0, _sum(None, 0.1, twin=True)),
    "MIX_SOURCES": (1, _sum(RIGHT, 0.1)),
    "MIX_SIZE": (1, _sum(RIGHT, 0.1)),
    "MIX_PROOF": (10.0, _sum(None, 0.05, _noisy)),
    "MIX_FEWER": (0.1, _sum(RIGHT, 0.1)),
    "MIX_SPHERE": (1.0, _by_matrix(None, (0.9, 0.4), (0.4, 0.9), (0.7, 0.6), (0.6, 0.7))),
    "MIX_MATRICES": (0.0, _by_matrix(None, *[(1, 0)] * 10, (0.3, 0.7), (0.6, 0.4))),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, check = MIXTURES[name]
    assert_seen(Fault(thresholds, name, wrong, check), monkeypatch)


# ------------------------------------------------------------------------------------------ sparse merges


def _sparse(
    expected: set[str] | None, factors: tuple[float, ...] = (1.0, 0.7), *, twin: bool = False, odd: bool = False,
    rounds: Any = _bf16,
) -> Callable[[], None]:  # fmt: skip
    """Whether b + surviving changes of x and y are recognised. `twin`: instead of x a model of which 3 % of the
    elements differ is given; `odd`: in one matrix nothing follows."""

    def check() -> None:
        places = [(0, "a"), (0, "b"), (0, "c")]
        rows = {"b": [_bf16(_rows(i, 16)) for i in (1, 2, 3)]}
        rows |= {
            n: [_bf16(v + 0.05 * _rows(10 * k + i, 16)) for i, v in enumerate(rows["b"])]
            for k, n in enumerate("xyz", 1)
        }
        merged = []
        for i, base in enumerate(rows["b"]):
            total = np.zeros_like(base)
            for k, factor in enumerate(factors):
                kept = np.random.default_rng(100 * k + i).random(base.shape) < 0.5
                total = rounds(total + rounds(factor * (rows["xy"[k]][i] - base)) * kept)
            merged.append(_bf16(base + total))
        if odd:
            merged[1] = _bf16(rows["b"][1] + 0.05 * _rows(77, 16))
        if twin:
            spot = np.random.default_rng(5).random(rows["x"][0].shape) < 0.03
            rows["x"] = [_bf16(v + 0.02 * _rows(9, 16) * spot) for v in rows["x"]]
        rows["m"] = merged
        fakes = {name: _fake(name, dict(zip(places, parts, strict=True))) for name, parts in rows.items()}
        pairs = [LineagePair(a, b, "fine-tuned", distance=0.1) for a in rows for b in rows if a < b]
        found = {row.name: row for row in sparse.find_sparse(fakes, pairs, {}) if row.relation == "merged"}
        assert ({source.name for source in found["m"].sources} if "m" in found else None) == expected
        assert found.keys() <= {"m"}

    return check


TRIPLE = {"b", "x", "y"}
SPARSE: Mapping[str, tuple[float, Callable[[], None]]] = {
    "SPARSE_MATRICES": (2, _sparse(None, odd=True)),
    "SPARSE_ARITHMETIC": (-(2.0**-8), _sparse(TRIPLE, rounds=_bf16)),
    "SPARSE_VISIBLE": (1.1, _sparse(TRIPLE)),
    "SPARSE_DROPPED": (0.9, _sparse(TRIPLE)),
    "SPARSE_NEEDED": (0.9, _sparse(TRIPLE)),
    "SPARSE_OFF": (10.0, _sparse(None, twin=True)),
    "SPARSE_WHOLE": (9.0, _sparse(None, (2.0,))),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_merges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, check = SPARSE[name]
    assert_seen(Fault(thresholds, name, wrong, check), monkeypatch)


def test_the_change_of_one_model_has_a_direction_only_if_it_is_whole() -> None:
    _sparse({"b", "x"}, (1.0,))()
    _sparse(None, (0.5,))()


def test_a_weighted_sum_is_not_sparse_over_a_relative() -> None:
    """In a sum whose weights add up to 1 any base cancels out."""
    places = [(0, "a"), (0, "b")]
    x, y = ([_bf16(_rows(i, 16) + 0.05 * _rows(k + i, 16)) for i in (1, 2)] for k in (10, 20))
    picks = [np.random.default_rng(i).random(v.shape) < 0.5 for i, v in enumerate(x)]
    rows = {"x": x, "y": y, "mixed": [np.where(p, v, w) for p, v, w in zip(picks, x, y, strict=True)],
            "m": [_bf16(0.6 * v + 0.4 * w) for v, w in zip(x, y, strict=True)]}  # fmt: skip
    fakes = {name: _fake(name, dict(zip(places, parts, strict=True))) for name, parts in rows.items()}
    pairs = [LineagePair(a, b, "fine-tuned", distance=0.1) for a in rows for b in rows if a < b]
    assert "m" not in {row.name for row in sparse.find_sparse(fakes, pairs, {})}


def _tie() -> None:
    """Distances that differ by less than the noise don't decide."""
    pairs = [LineagePair(name, "q", "quantized", name, distance=d) for name, d in (("a", 0.1), ("b", 0.10001))]
    assert family_tree.choose_parents(["a", "b", "q"], pairs, {}, [], {}) == {}


def test_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_seen(Fault(thresholds, "TIE", 0.0, _tie), monkeypatch)


def test_towers_that_are_not_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_seeing("gemma3", tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    changed = {n: tensor * np.float32(1 + n.startswith("vision_tower.")) for n, tensor in tensors.items()}
    tuned = shutil.copytree(base, tmp_path / "tuned")
    save_file(changed, tuned / "model.safetensors", {"format": "pt"})

    def check() -> None:
        assert wb.lineage([base, tuned]).pairs[0].relation == "fine-tuned"

    assert_seen(Fault(thresholds, "OTHERS", 0, check), monkeypatch)


def test_every_threshold_has_a_fault() -> None:
    names = {name for name in vars(thresholds) if name.isupper()} - {"MIB"}
    read = {"ANCHOR_ELEMENTS", "MATRIX_ELEMENTS", "LAYERS", "MODEL_BYTES", "ALWAYS", "OTHERS"}
    assert names == {*RELATIONS, *read, "OFF", "SLACK_GGML", "SLACK_PACKED", *RANKS, *MIXTURES, *SPARSE, "TIE"}
