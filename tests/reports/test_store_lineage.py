"""`wb ls --lineage`: the families of stored models, how many pairs are compared, and models that can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.mutation import Fault, assert_seen
from tests.reports.lineage_models import Arrays, folder, narrowed, random_model, stored, wide

import weighbridge as wb
from weighbridge.cli.main import main
from weighbridge.reports.lineage import report, stores, thresholds
from weighbridge.reports.lineage.model import LineagePair, StoreLineage
from weighbridge.reports.lineage.relation import relate
from weighbridge.reports.lineage.sampling import Sampler


def _tuned(arrays: Arrays, seed: int, amount: float = 0.001) -> Arrays:
    rng = np.random.default_rng(seed)
    return stored({name: values + rng.normal(0, amount, values.shape) for name, values in wide(arrays).items()})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two families, one of them in several formats, and a model of another size."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("oak", "elm")):
        base = stored(random_model(seed))
        folder(Path("models", name), base)
        folder(Path("models", f"{name}-tuned"), _tuned(base, 9 + seed))
    wb.quantize("models/oak", "models/oak-q4_0.gguf", "Q4_0")
    folder(Path("models/oak-narrow"), narrowed(stored(random_model(0)), 384), intermediate_size=384)
    wb.slice("models/elm", "models/elm-top", layers="2-3", renumber=True)
    folder(Path("models/alone"), stored(random_model(5)))
    return Path("models")


def lineage_of(path: Path) -> StoreLineage:
    found = wb.ls([path], lineage=True).lineage
    assert found is not None
    return found


def members(lineage: StoreLineage) -> list[set[str]]:
    return sorted(({model.name for model in family.models} for family in lineage.families), key=min)


OAK = {"oak", "oak-tuned", "oak-q4_0.gguf", "oak-narrow"}
ELM = {"elm", "elm-tuned", "elm-top"}


@pytest.mark.costly
def test_families(store: Path) -> None:
    found = lineage_of(store)
    assert members(found) == [ELM, OAK]
    assert found.single == ("alone",)
    assert (found.uncompared, found.contradictions, bool(found)) == ((), (), True)
    above = {branch.name: branch.above for family in found.families for branch in family.tree if branch.is_parent}
    assert {"oak-q4_0.gguf": "oak", "oak-narrow": "oak", "elm-top": "elm"}.items() <= above.items()


@pytest.mark.costly
def test_the_families_are_those_of_all_pairs(store: Path) -> None:
    """Every relation is the one that `wb lineage` reports of all models together."""
    everything = wb.lineage(sorted(path for path in store.iterdir()))
    for family in lineage_of(store).families:
        for pair in family.pairs:
            whole = everything.pair(pair.a, pair.b)
            assert (whole.relation, whole.parent) == (pair.relation, pair.parent), pair
    kin = {frozenset((p.a, p.b)) for family in lineage_of(store).families for p in family.pairs}
    for pair in everything.pairs:
        assert frozenset((pair.a, pair.b)) in kin or pair.relation in ("unrelated", "different-shapes"), pair


@pytest.mark.costly
def test_only_models_that_are_alike_are_compared(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[set[str]] = []

    def counted(a: Sampler, b: Sampler) -> LineagePair:
        compared.append({a.name, b.name})
        return relate(a, b)

    monkeypatch.setattr(report, "relate", counted)
    found = lineage_of(store)
    assert len(compared) == sum(len(names) * (len(names) - 1) // 2 for names in (OAK, ELM))
    assert all(pair <= OAK or pair <= ELM for pair in compared)
    assert found.bytes_read < 2 * 1024 * 1024 * len(OAK | ELM)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["RELATED", "SAME_LAYER"])
def test_both_measures_are_needed(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over layers of one number finds long trainings, layers of any number find pruned models."""
    base = wide(stored(random_model(5)))
    folder(store / "alone-far", _tuned(stored(base), 3, 0.3))

    def check() -> None:
        assert members(lineage_of(store)) == [{"alone", "alone-far"}, ELM, OAK]

    assert_seen(Fault(thresholds, name, 2.0, check), monkeypatch)


@pytest.mark.costly
def test_a_stranger_that_metadata_names_is_a_contradiction(store: Path) -> None:
    (store / "alone" / "README.md").write_text("---\nbase_model: org/elm\n---\n")
    found = lineage_of(store)
    assert not found
    assert found.contradictions == ("alone: README.md names elm as its base, but their weights are unrelated",)
    assert found.single == ("alone",)
    assert members(found) == [ELM, OAK]
    assert main(["ls", str(store), "--lineage"]) == 1
    assert main(["ls", str(store)]) == 0


def _damaged(arrays: Arrays, part: str) -> Arrays:
    return {name: np.full_like(v, np.nan) if part in name else v for name, v in arrays.items()}


@pytest.mark.costly
@pytest.mark.parametrize("part", ["k_proj", "down_proj"])  # read for the groups, read for the pairs
def test_a_model_with_damaged_values_is_left_out_and_named(part: str, store: Path) -> None:
    folder(store / "oak-broken", _damaged(_tuned(stored(random_model(0)), 4), part))
    found = lineage_of(store)
    assert members(found) == [ELM, OAK]
    assert len(found.uncompared) == 1
    assert found.uncompared[0].startswith("oak-broken: ")
    assert "NaN or Inf" in found.uncompared[0]


def test_a_model_without_matrices_and_a_damaged_file_are_named(store: Path) -> None:
    (store / "norms").mkdir()
    wb.save({"norm": np.ones(8, np.float32)}, store / "norms" / "norms.safetensors")
    (store / "cut.gguf").write_bytes((store / "oak-q4_0.gguf").read_bytes()[:-999])
    found = lineage_of(store)
    assert {line.partition(":")[0] for line in found.uncompared} == {"norms", "cut.gguf"}
    assert members(found) == [ELM, OAK]


def test_a_large_family_is_compared_in_part(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST", 3)
    found = lineage_of(store)
    assert [len(family.models) for family in found.families] == [3, 3]
    assert "more than 3 models" in found.uncompared[0]


@pytest.mark.costly
def test_models_of_one_name_have_their_addresses(store: Path) -> None:
    folder(Path("other/models/oak"), _tuned(stored(random_model(0)), 8))
    found = wb.ls([store, Path("other/models")], lineage=True).lineage
    assert found is not None
    names = {model.name for family in found.families for model in family.models}
    assert {str(store / "oak"), "other/models/oak"} <= names


def test_one_model_alone_has_no_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path / "one", stored(random_model(0)))
    assert main(["ls", str(tmp_path), "--lineage"]) == 0
    assert "without relatives here: one" in capsys.readouterr().err


@pytest.mark.costly
def test_the_command_prints_trees_and_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(store), "--lineage"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "   oak-q4_0.gguf  Q4_0, quantized: BF16 to Q4_0" in "\n".join(lines)
    assert main(["ls", str(store), "--lineage", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["lineage"]
    assert [family["schema"] for family in data["families"]] == ["weighbridge/lineage/1"] * 2
    assert main(["ls", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lineage"] is None


def test_components() -> None:
    assert stores.components(5, [(3, 1), (4, 3)]) == [[0], [1, 3, 4], [2]]
    assert stores.components(0, []) == []


def test_a_family_is_without_the_strangers_that_were_compared(store: Path) -> None:
    (store / "alone" / "README.md").write_text("---\nbase_model: org/elm\n---\n")
    families = lineage_of(store).families
    for family in families:
        names = {model.name for model in family.models}
        assert all({pair.a, pair.b} <= names for pair in family.pairs)
    assert all({branch.name for branch in f.tree} == {model.name for model in f.models} for f in families)
