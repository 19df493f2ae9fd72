"""Importance matrices and saved measurements: answers against numpy and the reports, bad files, and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.page.conftest import Visits, serving, until
from tests.page.test_browser import at, settled
from tests.page.test_several_models import check

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix, encode, read
from weighbridge.io.source import BytesSource, FileSource
from weighbridge.page.control import Control
from weighbridge.page.data import PageData
from weighbridge.page.views.importance import importance
from weighbridge.page.views.measured import read_measured

pytestmark = pytest.mark.costly

ROLES = ("attn_q", "ffn_down_exps")


@pytest.fixture(scope="module")
def sums() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sums and counts: of three layers, one of them with experts of which one saw nothing."""
    random = np.random.default_rng(8)
    found = {}
    for layer in range(3):
        for role, matrices in zip(ROLES, (1, 4), strict=True):
            counts = np.full(matrices, 100) if matrices == 1 else np.array([50, 0, 25, 25])
            found[f"blk.{layer}.{role}.weight"] = (random.lognormal(0, 1, (matrices, 200)).astype(np.float32), counts)
    found["output.weight"] = (np.ones((1, 64), np.float32), np.array([7]))
    return found


@pytest.fixture(scope="module")
def imatrix(sums: dict[str, tuple[np.ndarray, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imatrix") / "imatrix.gguf"
    entries = {name: ImatrixSums(values, counts) for name, (values, counts) in sums.items()}
    path.write_bytes(encode(ImportanceMatrix(entries, ("text.txt",), 2, 512), "gguf"))
    return path


@pytest.fixture(scope="module")
def older(imatrix: Path) -> Path:
    """The same matrix in the older format."""
    path = imatrix.with_name("imatrix.dat")
    with FileSource(imatrix) as source:
        path.write_bytes(encode(read(source), "legacy"))
    return path


@pytest.fixture(scope="module")
def imatrix_url(imatrix: Path, older: Path, models: Path) -> Iterator[str]:
    yield from serving(models / "q4.gguf", imatrix, older)


def test_importance_is_the_mean_square(imatrix: Path, sums: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    with PageData(imatrix) as data:
        assert json.loads(data.answer("start", {}))["models"][0]["imatrix"] is True
        view = json.loads(data.answer("importance", {"model": "0"}))
    assert (view["datasets"], view["chunks"], view["chunk_size"]) == (["text.txt"], 2, 512)
    assert {entry["name"] for entry in view["entries"]} == {*sums}
    for entry in view["entries"]:
        values, counts = sums[entry["name"]]
        means = (values[counts > 0].astype(np.float64).T / counts[counts > 0]).T
        assert entry["mean"] == pytest.approx(means.mean())
        assert entry["most"] == pytest.approx(means.max())
        assert means[[*np.flatnonzero(counts > 0)].index(entry["at"][0]), entry["at"][1]] == means.max()
        assert entry["unused"] == (counts == 0).sum()
        assert entry["seen"] == [counts.min(), counts.max()]
        highest = np.sort(means.max(axis=0))[::-1]
        assert entry["top"] == pytest.approx(highest[: max(1, round(len(highest) / 100))].sum() / highest.sum())
        assert max(entry["profile"]) == pytest.approx(means.max())
        assert len(entry["profile"]) == min(96, values.shape[1])
    places = {(entry["layer"], entry["role"]) for entry in view["entries"]}
    assert places == {*((layer, role) for layer in range(3) for role in ROLES), (-1, "output")}


def test_the_older_format_has_the_same_importance(imatrix: Path, older: Path) -> None:
    views = []
    for path in (imatrix, older):
        with PageData(path) as data:
            assert json.loads(data.answer("start", {}))["models"][0]["imatrix"] is True
            views.append(json.loads(data.answer("importance", {"model": "0"})))
            calls = json.loads(data.answer("metadata", {"model": "0"})).get("imatrix.calls", "{}")
            assert set(json.loads(calls).values()) <= {1}
            layout = json.loads(data.answer("layout", {"model": "0", "file": "0"}))
            assert (layout["size"], layout["start"][0]) == (path.stat().st_size, 0)
    new, old = ({entry["name"]: entry for entry in view["entries"]} for view in views)
    assert [view["unit"] for view in views] == ["tokens", "calls"]
    assert {*old} == {*new}
    for name, entry in old.items():
        assert entry["seen"] == [1, 1]
        assert (entry["layer"], entry["role"]) == (new[name]["layer"], new[name]["role"])
        if new[name]["matrices"] == 1:  # of experts without tokens, the older file has ones
            assert entry["mean"] == pytest.approx(new[name]["mean"])
            assert entry["profile"] == pytest.approx(new[name]["profile"])


@pytest.mark.parametrize("cut", [5, 40, 400])
def test_an_older_matrix_that_ends_early_is_refused(older: Path, tmp_path: Path, cut: int) -> None:
    (tmp_path / "cut.dat").write_bytes(older.read_bytes()[:cut])
    with pytest.raises((FormatError, UnsupportedError)):
        PageData(tmp_path / "cut.dat")


def test_an_older_matrix_is_shown_beside_a_model_and_alone(
    visit: Visits, imatrix_url: str, older: Path, tmp_path: Path
) -> None:
    """Its heat comes first when it is alone; with a model, both aren't compared as two models."""
    page = settled(visit(f"{at(imatrix_url, 'importance')}&a=0&b=2"))
    assert page.get_by_role("region", name="Importance by layer and role").locator("td.n").count() == 7
    assert "Calls\n1" in page.locator(".facts").inner_text()
    assert page.get_by_role("button", name="Differences", exact=True).count() == 0
    until(
        page, "document.querySelectorAll('.answers').length === 2 && !document.querySelector('.verdict [role=status]')"
    )
    assert "llama.cpp takes it as --imatrix" in page.locator(".verdict").inner_text()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator(".answers .unbroken").evaluate("option => option.getClientRects().length") == 1
    assert page.locator(".norms tbody th").first.bounding_box()["width"] >= 150
    wb.export_view(older, tmp_path / "page.html")
    page = settled(visit((tmp_path / "page.html").as_uri()))
    assert page.locator("nav [aria-current]").inner_text() == "Importance"
    assert page.get_by_role("button", name="Architecture").count() == 0


def test_a_matrix_without_tokens_has_no_importance(tmp_path: Path) -> None:
    entries = {"blk.0.x.weight": ImatrixSums(np.zeros((2, 8), np.float32), np.array([0, 0]))}
    data = encode(ImportanceMatrix(entries, ("t",), 1, 512), "gguf")
    entry = importance(BytesSource(data, "x.gguf"), Control()).entries[0]
    assert (entry.mean, entry.most, entry.unused, entry.profile) == (0, 0, 2, (0,) * 8)


def test_another_file_is_no_importance_matrix(models: Path) -> None:
    data = (models / "q4.gguf").read_bytes()
    with pytest.raises(UnsupportedError, match="isn't an importance matrix"):
        importance(BytesSource(data, "q4.gguf"), Control())


def test_a_cell_shows_its_columns(
    visit: Visits, imatrix_url: str, sums: dict[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    page = settled(visit(at(imatrix_url, "importance")))
    heat = page.get_by_role("region", name="Importance by layer and role")
    assert heat.locator("td.n").count() == 7
    page.get_by_role("button", name="blk.1.attn_q.weight").click()
    values, counts = sums["blk.1.attn_q.weight"]
    drawing = page.locator(".profile").get_attribute("aria-label")
    assert drawing is not None
    assert f"in column {(values / counts[0]).argmax()}" in drawing
    assert page.locator(".profile i").count() == 96
    page.get_by_label("Importance by", exact=True).select_option("seen")
    assert "100" in heat.inner_text()


def test_a_file_beside_a_model_is_no_refused_model(imatrix: Path) -> None:
    """Such as an importance matrix, an adapter or a projector."""
    with PageData(imatrix) as data:
        verdict = json.loads(data.answer("findings", {"model": "0"}))
    assert verdict["banners"] == []
    answers = {answer["question"]: (answer["level"], answer["text"]) for answer in verdict["answers"]}
    assert answers["What runs it"] == ("info", "accompanies a model: llama.cpp takes it as --imatrix")


@pytest.mark.slow
def test_everybody_can_use_the_importance(visit: Visits, imatrix_url: str) -> None:
    check(visit, at(imatrix_url, "importance"))


# ---- saved reports ----

TEXT = {"schema": "weighbridge/text-quality/1", "reference": "/x/base", "model": "/x/q4.gguf",
        "reference_perplexity": {"value": 9.5, "error": 0.1}, "perplexity": {"value": 9.75, "error": 0.1},
        "kl": {"value": 0.0125, "error": 0.001}, "same_top": {"value": 0.94, "error": None}}  # fmt: skip


EXPECTED = [{"bytes": 900, "kl": 0.02}, {"bytes": 700, "kl": 0.1}, {"bytes": 1100, "kl": 0.0}]


@pytest.fixture(scope="module")
def reports(models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What `wb quantize --report` writes, a plan, and three of `wb quality --json`, one about a model that isn't on the
    page."""
    root = tmp_path_factory.mktemp("reports")
    wb.compare_quantized(models / "f16.gguf", models / "q4.gguf")
    report = wb.compare_quantized(models / "f16.gguf", models / "q4.gguf")
    (root / "errors.json").write_text(json.dumps(report.describe()))
    plan = wb.plan_quantize(models / "f16.gguf", root / "new.gguf", target_bpw=5)
    (root / "plan.json").write_text(json.dumps(plan.describe() | {"expected": EXPECTED}, default=str))
    for name, kl in (("q4.gguf", 0.0125), ("f16.gguf", 0.0), ("q2.gguf", 0.25)):
        row = {**TEXT, "model": f"/x/{name}", "kl": {"value": kl, "error": None}}
        (root / f"{name}.json").write_text(json.dumps(row))
    return sorted(root.iterdir())


@pytest.fixture(scope="module")
def reports_url(models: Path, reports: list[Path]) -> Iterator[str]:
    options = [word for path in reports for word in ("--quality-report", str(path))]
    yield from serving(models / "f16.gguf", models / "q4.gguf", *options)


def test_reports_are_read(models: Path, reports: list[Path]) -> None:
    found = read_measured(reports, {"q4.gguf": 1000})
    report = wb.compare_quantized(models / "f16.gguf", models / "q4.gguf")
    assert [(t.name, t.type, t.bytes, t.bits, t.nmse) for t in found.tensors[0].tensors] == [
        (q.name, q.type, q.bytes, q.bits, q.nmse) for q in report.tensors
    ]
    by_name = {model.name: model for model in found.models}
    assert {name: (m.nbytes, m.kl) for name, m in by_name.items()} == {
        "q4.gguf": (1000, 0.0125), "f16.gguf": (None, 0.0), "q2.gguf": (None, 0.25)
    }  # fmt: skip
    assert (by_name["q4.gguf"].perplexity, by_name["q4.gguf"].reference_perplexity) == (9.75, 9.5)


def test_a_plan_has_the_types_and_the_errors_that_are_known(models: Path, reports: list[Path]) -> None:
    """Those of a report of the page before those that the plan expects."""
    plan = wb.plan_quantize(models / "f16.gguf", models / "new.gguf", target_bpw=5)
    read = read_measured(reports, {})
    errors = {(t.name, t.type): t.nmse for t in read.tensors[0].tensors}
    rows = read.plans[0].tensors
    assert [(t.name, t.source, t.type, t.bytes) for t in rows] == [
        (row.name, row.source, row.target, row.target_bytes) for row in plan.rows
    ]
    assert [t.nmse for t in rows] == [errors.get((row.name, row.target), row.error) for row in plan.rows]
    chosen = [row for row in plan.rows if row.source != row.target]
    assert all(row.error is not None and row.error > 0 for row in chosen)
    assert [(e.bytes, e.kl) for e in read.plans[0].expected] == [(900, 0.02), (700, 0.1), (1100, 0.0)]
    named = {t.name: (t.layer, t.role) for t in rows}
    assert (named["blk.2.attn_q.weight"], named["output.weight"]) == ((2, "attn_q"), (-1, "output"))


def test_a_plan_is_drawn(visit: Visits, reports_url: str, reports: list[Path]) -> None:
    page = settled(visit(at(reports_url, "quality")))
    rows = json.loads(next(path for path in reports if path.name == "plan.json").read_text())["tensors"]
    grid = page.get_by_role("region", name="Types by layer and role")
    assert sorted(grid.locator("td.n").all_inner_texts()) == sorted(row["target"] for row in rows)
    legend = page.get_by_role("region", name="Bytes by type")
    assert not re.search(r"NMSE (\S+) to \1$", legend.inner_text(), re.MULTILINE)
    assert sorted(legend.locator("th .name").all_inner_texts()) == sorted({row["target"] for row in rows})
    curve = page.locator("svg[aria-label^='Size against expected']")
    assert "this plan" in (curve.text_content() or "")
    assert curve.locator(".rule.zero").count() == 1  # no divergence is no small one
    page.get_by_text("Sizes as a table").click()
    assert page.locator("tbody", has_text="1,100").locator("td").all_inner_texts()[:2] == ["700", "0.100"]
    page.set_viewport_size({"width": 390, "height": 844})
    tops = legend.locator("tbody th").evaluate_all(
        "all => all.map(th => [...th.children].map(child => child.getBoundingClientRect().top))"
    )
    assert all(abs(dot - name) < 12 for dot, name in tops)  # a type stays on the line of its dot


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "not a saved report"), ("[]", "not a saved report"), ("{", "not a saved report"),
     ("\xff", "not a saved report"),
     ("{}", "not a report of errors"), ('{"schema": "weighbridge/scan/1"}', "not a report of errors"),
     ('{"schema": []}', "not a report of errors"), ('{"schema": "weighbridge/quality/1"}', "incomplete"),
     ('{"schema": "weighbridge/quantize/1"}', "incomplete"),
     (json.dumps({"schema": "weighbridge/quantize/1", "bits_per_weight": 4, "tensors": [
         {"name": "a", "source": "F32", "target": "Q9_Z", "target_bytes": 1}]}), "unknown type"),
     ('{"schema": "weighbridge/quality/1", "nmse": 1, "bytes": "x", "tensors": []}', "incomplete"),
     ('{"schema": "weighbridge/quality/1", "nmse": 1, "bytes": 1, "tensors": [{}]}', "incomplete"),
     (json.dumps({**TEXT, "kl": {"value": "much"}}), "incomplete"),
     (json.dumps({**TEXT, "kl": None}), "compares no models"),
     (json.dumps({**TEXT, "model": None}), "compares no models")],
)  # fmt: skip
def test_other_reports_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "report.json").write_text(text, "latin-1")
    with pytest.raises(FormatError, match=words) as caught:
        read_measured([tmp_path / "report.json"], {})
    assert "report.json" in caught.value.message


def test_a_report_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "report.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="too large"):
        read_measured([tmp_path / "report.json"], {})


def test_measurements_are_drawn(visit: Visits, reports_url: str) -> None:
    page = settled(visit(at(reports_url, "quality")))
    models, tensors = (
        page.locator("section", has_text=text) for text in ("Size against divergence", "Errors of the tensors")
    )
    models.locator("svg .name").first.wait_for()
    assert sorted(models.locator("svg .name").all_text_contents()) == ["f16.gguf", "q4.gguf"]
    assert models.locator("tbody tr").count() == 3
    assert "1 measured model isn’t among them" in models.inner_text()
    counts = re.findall(r"× (\d+)", tensors.locator(".keyed").inner_text())
    tensors.locator("summary").click()
    spots = tensors.locator("circle").evaluate_all("all => all.map(c => `${c.cx.baseVal.value} ${c.cy.baseVal.value}`)")
    assert len(set(spots)) == len(spots)
    assert sum(map(int, counts)) == tensors.locator("circle").count() == tensors.locator("tbody tr").count() == 23


@pytest.mark.slow
def test_everybody_can_use_the_quality(visit: Visits, reports_url: str) -> None:
    check(visit, at(reports_url, "quality"))


def test_an_exported_page_has_measurements(visit: Visits, models: Path, reports: list[Path], tmp_path: Path) -> None:
    wb.export_view(models / "q4.gguf", tmp_path / "page.html", quality_report=[str(path) for path in reports])
    page = settled(visit(f"{(tmp_path / 'page.html').as_uri()}#panel=quality"))
    assert page.locator("circle").count() > 20
