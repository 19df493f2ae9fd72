"""`wb lineage`: models of known descent, what is read of them, metadata, and what is refused."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.remote.servers import FileServer
from tests.reports.lineage_models import (
    CONFIG,
    Arrays,
    Descent,
    ancestors,
    confusion,
    folder,
    random_model,
    stored,
    trained,
    truth,
    wide,
    with_lora,
    write_family,
)

import weighbridge as wb
from weighbridge.base.dtypes import BF16
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.cli.main import main
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import FileSource
from weighbridge.reports.lineage.model import LineageReport
from weighbridge.reports.lineage.words import branch_text, sentence

GUIDE = Path(__file__).parents[2] / "docs" / "guide-lineage.md"
Family = tuple[Mapping[str, Descent], LineageReport, LineageReport]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lineage")


@pytest.fixture(scope="module")
def family(root: Path) -> Family:
    """The descents, and the reports on all models, in both orders."""
    with contextlib.chdir(root):
        descents = write_family(Path())
        return descents, wb.lineage(list(descents)), wb.lineage(list(descents)[::-1])


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """A base model, in the current folder `base`."""
    monkeypatch.chdir(tmp_path)
    arrays = stored(random_model(0))
    folder(Path("base"), arrays)
    return arrays


# ------------------------------------------------------------------------------------------ known descent


@pytest.mark.slow
def test_no_parent_is_wrong(family: Family) -> None:
    descents, *reports = family
    for report in reports:
        for model in report.models:
            assert {source.name for source in model.parents} <= ancestors(model.name, descents), model
        for pair in report.pairs:
            assert pair.parent is None or pair.parent in ancestors(pair.counterpart(pair.parent), descents), pair


@pytest.mark.slow
def test_the_parents_that_weights_show_are_named(family: Family) -> None:
    """Of a fine-tune, a LoRA and a permutation they don't show which one came first."""
    descents, *reports = family
    for report in reports:
        for model in report.models:
            kind, parents = descents[model.name]
            unknown = kind in ("root", "fine-tuned", "lora-merged", "permuted")
            assert {source.name for source in model.parents} == (set() if unknown else set(parents)), model


@pytest.mark.slow
def test_the_relations_to_parents_are_right(family: Family) -> None:
    descents, *reports = family
    for report in reports:
        for name, (kind, parents) in descents.items():
            for parent in parents:
                assert report.pair(name, parent).relation == kind, report.pair(name, parent)


@pytest.mark.slow
def test_strangers_and_relatives_are_distinguished(family: Family) -> None:
    descents, *reports = family
    for report in reports:
        for pair in report.pairs:
            kind = truth(pair.a, pair.b, descents)
            assert (pair.relation in ("unrelated", "different-shapes")) == (kind == "strangers"), pair


@pytest.mark.slow
def test_the_guide_has_the_confusion_matrix(family: Family) -> None:
    descents, *reports = family
    assert confusion(reports, descents) in GUIDE.read_text("utf-8"), confusion(reports, descents)


@pytest.mark.slow
def test_details(family: Family) -> None:
    report = family[1]
    weights = {m.name: {source.name: source.weight for source in m.parents} for m in report.models}
    assert weights["linear"] == {"tuned": 0.6, "tuned-long": 0.4}
    assert weights["beyond"] == {"tuned-long": 1.5, "base": -0.5}
    assert weights["task"] == pytest.approx({"base": -0.2, "tuned": 0.7, "tuned-long": 0.5}, abs=0.02)
    assert weights["souped"] == pytest.approx(dict.fromkeys(("tuned", "tuned-long", "lora"), 1 / 3), abs=0.02)
    assert weights["stock"] == pytest.approx({"base": 0.19, "tuned": 0.4, "tuned-twice": 0.41}, abs=0.05)
    detail = report.pair("slerped-by-layer", "tuned").detail
    assert detail == "weights that differ by matrix: tuned 0 to 1, tuned-long 0 to 1"
    lora = report.pair("lora", "base")
    assert (lora.rank, lora.targets) == (4, ("attention.q.weight", "attention.v.weight"))
    assert report.pair("lora-all", "base").rank == 16
    assert len(report.pair("lora-all", "base").targets) == 7
    assert report.pair("pruned", "base").detail == "layers 2 removed"
    assert report.pair("repeated", "base").detail == "layers 0-2, 1-3"
    assert report.pair("stacked", "tuned").detail == "layers 0-2 of tuned, layers 1-3 of stranger"
    assert "mlp.down" in report.pair("permuted", "base").detail


@pytest.mark.slow
def test_the_tree_has_each_model_once_below_its_parent(family: Family) -> None:
    descents, report, _ = family
    assert sorted(row.name for row in report.tree) == sorted(descents)
    seen: set[str] = set()
    for row in report.tree:
        assert row.above is None or row.above in seen
        seen.add(row.name)
    above = {row.name: row.above for row in report.tree if row.is_parent and row.above}
    for model in report.models:
        if model.parents:
            assert above[model.name] == model.parents[0].name


# ------------------------------------------------------------------------------------------ single relations


def test_the_other_source_of_a_merge_is_called_one(base: Arrays) -> None:
    """It hangs on the merge, which was made from it."""
    random = np.random.default_rng(5)
    tuned = stored({name: values + random.normal(0, 0.004, values.shape) for name, values in wide(base).items()})
    folder(Path("tuned"), tuned)
    wb.merge([Path("base"), Path("tuned")], Path("merged"), method="linear")
    report = wb.lineage(["base", "tuned", "merged"])
    assert [(row.name, row.above, row.is_parent) for row in report.tree][-1] == ("tuned", "merged", False)
    assert branch_text(report, "tuned", "merged", False).startswith("BF16, a source of merged: 0.5 base + 0.5 tuned")
    assert branch_text(report, "merged", "base", True).startswith("BF16, merged: 0.5 base + 0.5 tuned")


def test_equal_models_are_the_same(base: Arrays) -> None:
    folder(Path("copy"), base)
    report = wb.lineage(["base", "copy"])
    assert report.pairs[0].relation == "same"
    assert report.models[1].same_as == "base"
    assert [(row.name, row.above) for row in report.tree] == [("base", None), ("copy", "base")]


@pytest.mark.costly
def test_bare_weights_have_the_names_of_the_other_models_config(base: Arrays) -> None:
    wb.quantize("base", "base-q8_0.gguf", "Q8_0")
    wb.convert("base", "dcp", to="dcp")
    Path("bare").mkdir()
    (Path("bare") / "model.safetensors").write_bytes((Path("base") / "model.safetensors").read_bytes())
    for other in ("base", "base-q8_0.gguf"):
        for bare in ("dcp", "bare"):
            pair = wb.lineage([bare, other]).pairs[0]
            assert pair.relation == ("same" if other == "base" else "quantized"), (bare, other)


def test_a_model_without_a_table_is_noted(base: Arrays) -> None:
    Path("part").mkdir()
    save_file({"blocks.0.w.weight": np.ones((8, 8), np.float32)}, "part/model.safetensors")
    assert any("no table names its tensors" in note for note in wb.lineage(["base", "part"]).notes)


def test_a_changed_norm_or_embedding_is_a_fine_tune(base: Arrays) -> None:
    for number, name in enumerate(("model.norm.weight", "model.embed_tokens.weight")):
        changed = {**base, name: (base[name].astype(np.float32) * 1.05).astype(base[name].dtype)}
        folder(Path(f"tuned{number}"), changed)
        pair = wb.lineage(["base", f"tuned{number}"]).pairs[0]
        assert (pair.relation, len(pair.targets)) == ("fine-tuned", 1), name


@pytest.mark.parametrize(("rank", "targets"), [(1, "v"), (8, "q k"), (40, "gate up"), (60, "down"), (12, "o down")])
def test_ranks(base: Arrays, rank: int, targets: str) -> None:
    folder(Path("lora"), with_lora(base, 1, rank, targets))
    pair = wb.lineage(["base", "lora"]).pairs[0]
    assert (pair.relation, pair.rank, len(pair.targets)) == ("lora-merged", rank, len(targets.split()))


def test_a_change_of_low_rank_in_one_part_only_is_a_fine_tune(base: Arrays) -> None:
    rng = np.random.default_rng(3)
    changed = with_lora(base, 1, 4, "q v")
    for name, values in changed.items():
        if ".mlp." in name:
            changed[name] = (values.astype(np.float32) + rng.normal(0, 0.01, values.shape)).astype(values.dtype)
    folder(Path("both"), changed)
    assert wb.lineage(["base", "both"]).pairs[0].relation == "fine-tuned"


def test_a_longer_training_is_related(base: Arrays) -> None:
    rng = np.random.default_rng(3)
    far = {
        name: values + 0.3 * rng.normal(0, 1, values.shape).astype(np.float32) for name, values in wide(base).items()
    }
    folder(Path("far"), stored(far))
    assert wb.lineage(["base", "far"]).pairs[0].relation == "related"


@pytest.mark.costly
def test_two_models_that_fit_equally_well_leave_the_parent_unknown(base: Arrays) -> None:
    """After two steps of training no value of 2 bits differs."""
    pytest.importorskip("torch")
    folder(Path("brief"), trained(base, 3, 2, 2e-5))
    wb.quantize("base", "base-q2_k.gguf", "Q2_K")
    wb.quantize("base", "base-q8_0.gguf", "Q8_0")
    report = wb.lineage(["base", "brief", "base-q2_k.gguf", "base-q8_0.gguf"])
    by_name = {model.name: model for model in report.models}
    assert by_name["base-q2_k.gguf"].parents == ()
    assert [source.name for source in by_name["base-q8_0.gguf"].parents] == ["base"]
    assert report.pair("base", "base-q2_k.gguf").parent is report.pair("brief", "base-q2_k.gguf").parent is None


def test_two_multiples_of_a_lora_are_no_merge(base: Arrays) -> None:
    twice = with_lora(base, 1, 4, "q v")
    half = {n: (wide(base)[n] + (wide(twice)[n] - wide(base)[n]) / 2).astype(v.dtype) for n, v in base.items()}
    folder(Path("twice"), twice)
    folder(Path("half"), half)
    assert not any(model.parents for model in wb.lineage(["base", "half", "twice"]).models)


def test_one_model_reaches_all_formats(base: Arrays) -> None:
    wb.convert("base", "base.gguf", dtype="bf16")
    wb.convert("base", "mlx", to="mlx")
    wb.convert("base", "one.pt")
    report = wb.lineage(["base", "base.gguf", "mlx"])
    assert {pair.relation for pair in report.pairs} == {"same"}


def test_a_model_without_a_table_is_compared_by_its_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"blocks.{n}.w": rng.normal(0, 1, (64, 64)).astype(np.float32) for n in range(3)}
    wb.save(arrays, tmp_path / "a.safetensors")
    wb.save({name: values + 0.01 for name, values in arrays.items()}, tmp_path / "b.safetensors")
    report = wb.lineage([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert report.pairs[0].relation == "lora-merged"
    assert report.pairs[0].rank == 1


def test_models_of_other_architectures_have_other_shapes(base: Arrays, tmp_path: Path) -> None:
    wb.save({"fc.0.weight": np.ones((30, 20), np.float32)}, tmp_path / "mlp.safetensors")
    report = wb.lineage(["base", tmp_path / "mlp.safetensors"])
    assert report.pairs[0].relation == "different-shapes"
    assert report
    assert len([row for row in report.tree if row.above is None]) == 2


# ------------------------------------------------------------------------------------------ metadata


def _card(path: str, base_model: str) -> None:
    (Path(path) / "README.md").write_text(f"---\nbase_model: {base_model}\n---\n")


@pytest.fixture
def tuned(base: Arrays) -> None:
    rng = np.random.default_rng(1)
    changed = {name: values + rng.normal(0, 0.001, values.shape) for name, values in wide(base).items()}
    folder(Path("tuned"), stored(changed))
    folder(Path("stranger"), stored(random_model(5)))


@pytest.mark.usefixtures("tuned")
def test_metadata_names_the_parent_of_a_fine_tune() -> None:
    _card("tuned", "org/Base")
    report = wb.lineage(["tuned", "base"])
    assert report.models[0].parents[0].name == "base"
    assert report.models[0].evidence == "README.md"
    assert report.pairs[0].parent == "base"
    assert report
    assert "according to README.md" in sentence(report.pairs[0])


@pytest.mark.usefixtures("tuned")
def test_a_config_and_the_keys_of_a_gguf_name_parents(tmp_path: Path) -> None:
    path = Path("tuned/config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "_name_or_path": "some/where/base"}))
    assert wb.lineage(["base", "tuned"]).models[1].evidence == "_name_or_path"
    path.write_text(json.dumps(CONFIG))
    _card("tuned", "https://huggingface.co/org/base")
    wb.convert("tuned", "tuned.gguf", dtype="bf16")
    model = wb.lineage(["base", "tuned.gguf"]).models[1]
    assert model.parents[0].name == "base"
    assert str(model.evidence).startswith("general.base_model.0.")


@pytest.mark.usefixtures("tuned")
def test_metadata_that_the_weights_disprove_is_reported() -> None:
    _card("stranger", "org/base")
    report = wb.lineage(["base", "stranger"])
    assert not report
    assert "unrelated" in report.contradictions[0]
    assert report.models[1].parents == ()
    wb.quantize("base", "q.gguf", "Q8_0")
    _card("base", "org/q")
    report = wb.lineage(["base", "q.gguf"])
    assert "was made from base" in report.contradictions[0]
    assert report.models[0].parents == ()


@pytest.mark.usefixtures("tuned")
def test_a_name_that_several_models_have_is_no_evidence() -> None:
    _card("tuned", "org/base")
    folder(Path("other/base"), stored(random_model(5)))
    assert wb.lineage(["base", "tuned", "other/base"]).models[1].parents == ()


@pytest.mark.usefixtures("tuned")
def test_two_models_that_name_each_other_have_one_parent_at_most() -> None:
    _card("tuned", "org/base")
    _card("base", "org/tuned")
    assert sum(bool(model.parents) for model in wb.lineage(["base", "tuned"]).models) < 2


@pytest.mark.parametrize("readme", ["---\nbase_model: [", "---\nbase_model: {a: 1}\n---", "\xff", "---\n" + "a" * 9000])
@pytest.mark.usefixtures("tuned")
def test_unreadable_cards_name_nothing(readme: str) -> None:
    Path("tuned/README.md").write_text(readme, encoding="latin-1")
    assert wb.lineage(["base", "tuned"]).models[1].claims == ()


# ------------------------------------------------------------------------------------------ what is read


def _large(path: Path, seed: int) -> Path:
    """A folder with the shapes of an 8B model, whose bytes are made when they are read."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps({**CONFIG, **sizes, "num_key_value_heads": 8, "vocab_size": 128256, "seed": seed})
    )
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (128256, 4096), "model.norm.weight": (4096,)}
    shapes["lm_head.weight"] = (128256, 4096)
    for layer in range(32):
        p = f"model.layers.{layer}."
        shapes |= {f"{p}{x}.weight": (4096,) for x in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{p}self_attn.{x}_proj.weight": (4096, 4096) for x in "qo"}
        shapes |= {f"{p}self_attn.{x}_proj.weight": (1024, 4096) for x in "kv"}
        shapes |= {f"{p}mlp.{x}_proj.weight": (14336, 4096) for x in ("gate", "up")}
        shapes[f"{p}mlp.down_proj.weight"] = (4096, 14336)
    layout = safetensors.layout([(name, Spec(shape, BF16)) for name, shape in shapes.items()], {"format": "pt"})
    with (path / "model.safetensors").open("wb") as file:
        for offset, piece in layout.pieces:
            file.seek(offset)
            file.write(piece)
        file.truncate(layout.size)
    return path


class Counting:
    """Counts the bytes that are read of weights, and fills them: `change` makes those of b from those of a."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        self.read = 0
        original = FileSource._readinto

        def readinto(source: FileSource, offset: int, out: memoryview) -> int:
            got = original(source, offset, out)
            if source.name.endswith(".safetensors"):
                self.read += len(out)
            if source.name.endswith(".safetensors") and offset > 1 << 20:
                values = np.random.default_rng(offset).normal(0, 0.02, len(out) // 2).astype(np.float32)
                values = change(values, offset) if "/b/" in source.name else values
                out[:] = stored({"x": values})["x"].tobytes()
            return got

        monkeypatch.setattr(FileSource, "_readinto", readinto)


def _tune(values: np.ndarray, offset: int) -> np.ndarray:
    return values + np.random.default_rng(offset + 1).normal(0, 4e-4, len(values)).astype(np.float32)


@pytest.mark.parametrize(
    ("relation", "change", "most"),
    [
        ("same", lambda values, offset: values, 1.5e6),
        ("fine-tuned", _tune, 5e6),
        ("unrelated", lambda values, offset: np.random.default_rng(offset + 1).normal(0, 0.02, len(values)), 1.5e6),
    ],
)
def test_few_bytes_of_large_models_are_read(
    relation: str, change: Any, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [_large(tmp_path / name, seed) for seed, name in enumerate("ab")]
    counted = Counting(monkeypatch, change)
    report = wb.lineage(models)
    assert report.pairs[0].relation == relation
    assert counted.read < most
    assert report.bytes_read <= counted.read < report.bytes_read + 200_000  # and the headers


def test_remote_models_are_read_by_ranges(base: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # others' tests are offline
    rng = np.random.default_rng(1)
    tuned = stored({name: values + rng.normal(0, 0.001, values.shape) for name, values in wide(base).items()})
    folder(Path("tuned"), tuned)
    files: dict[str, bytes | Path] = {
        f"/{name}.safetensors": Path(name, "model.safetensors").read_bytes() for name in ("base", "tuned")
    }
    with FileServer(files).running() as server:
        report = wb.lineage([f"{server.url}/{name}.safetensors" for name in ("base", "tuned")])
    assert report.pairs[0].relation == "fine-tuned"


# ------------------------------------------------------------------------------------------ what is refused


def test_what_is_refused(base: Arrays, tmp_path: Path) -> None:
    for few in ([], ["base"]):
        with pytest.raises(UsageError, match="2 to 64 models"):
            wb.lineage(few)
    with pytest.raises(UsageError, match="several"):
        wb.lineage("base")
    wb.save({"norm": np.ones(8, np.float32)}, tmp_path / "norms.safetensors")
    with pytest.raises(UnsupportedError, match="no weight matrices"):
        wb.lineage(["base", tmp_path / "norms.safetensors"])
    broken = dict(base)
    for name in broken:
        if "k_proj" in name:
            broken[name] = np.full_like(broken[name], np.nan)
    folder(Path("broken"), broken)
    with pytest.raises(FormatError, match="NaN or Inf") as caught:
        wb.lineage(["base", "broken"])
    assert "wb verify --values" in str(caught.value.hint)


# ------------------------------------------------------------------------------------------ the command


@pytest.mark.slow
def test_the_command_prints_a_sentence_or_a_tree(
    family: Family, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert main(["lineage", "base", "base-q8_0.gguf"]) == 0
    assert "base-q8_0.gguf was made from base: quantized: BF16 to Q8_0" in capsys.readouterr().out
    assert main(["lineage", "base", "tuned", "pruned", "stranger", "--svg", "tree.svg", "-v"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[:4] == [
        "base  BF16, 4 layers",
        "   pruned  BF16, pruned: layers 2 removed",
        f"   ~ tuned  BF16, {lines[2].partition('BF16, ')[2]}",
        "stranger  BF16, 4 layers",
    ]
    picture = ElementTree.fromstring(Path("tree.svg").read_text())
    texts = [node.text for node in picture.iter() if node.tag.endswith("text")]
    assert texts[::2] == ["base", "pruned", "tuned", "stranger"]
    assert len([node for node in picture.iter() if node.get("class") == "u"]) == 1
    assert main(["lineage", "base", "tuned", "--svg", "tree.svg"]) == 2
    assert main(["lineage", "base", "tuned", "--overwrite"]) == 2


@pytest.mark.usefixtures("tuned")
def test_the_command_fails_for_wrong_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    _card("stranger", "org/base")
    assert main(["lineage", "base", "stranger", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["contradictions"]


def test_names_are_escaped_in_the_picture(base: Arrays) -> None:
    folder(Path("a<b>&"), base)
    main(["lineage", "base", "a<b>&", "--svg", "out.svg"])
    assert "a&lt;b&gt;&amp;" in Path("out.svg").read_text()


@pytest.mark.usefixtures("tuned")
def test_a_diff_reports_the_lineage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "base", "tuned", "--lineage", "--brief"]) == 1
    assert re.search(r"base and tuned: fine-tuned: .*unknown", capsys.readouterr().out)
    pair = wb.diff("base", "tuned", lineage=True).lineage
    assert pair is not None
    assert pair.relation == "fine-tuned"
    assert wb.diff("base", "tuned").lineage is None
