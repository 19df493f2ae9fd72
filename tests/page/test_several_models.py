"""Two models in every panel, and the family tree of more: answers against numpy and `wb lineage`, and the page in
chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.page.conftest import Visits, serving, until, violations
from tests.page.samples import llama
from tests.page.test_browser import at, settled
from tests.page.test_more_panels import CONTRAST, rows_of

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.page.data import PageData
from weighbridge.page.several.shared_weights import SHOWN

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model, a fine-tune of it that names it, files made from both, and a stranger."""
    root = tmp_path_factory.mktemp("family")
    base = llama(root / "base")
    tuned = root / "tuned"
    tuned.mkdir()
    (tuned / "config.json").write_bytes((base / "config.json").read_bytes())
    (tuned / "README.md").write_text("---\nbase_model: someone/base\n---\n")
    random = np.random.default_rng(2)
    tensors = {
        name: value + random.normal(0, 0.003, value.shape).astype(np.float32)
        for name, value in load_file(base / "model.safetensors").items()
    }
    save_file(tensors, tuned / "model.safetensors", metadata={"format": "pt"})
    wb.convert(base, root / "f16.gguf", dtype="f16", tokenizer=False)
    wb.quantize(root / "f16.gguf", root / "q4.gguf", "Q4_K_M")
    save_file({"x.weight": random.normal(size=(64, 96)).astype(np.float32)}, root / "stranger.safetensors")
    return [base, root / "f16.gguf", root / "q4.gguf", tuned, root / "stranger.safetensors"]


@pytest.fixture(scope="module")
def family_url(family: list[Path]) -> Iterator[str]:
    yield from serving(*family)


@pytest.fixture(scope="module")
def pair_url(family: list[Path]) -> Iterator[str]:
    """A folder and a GGUF of it, whose rows of query and key are in another order."""
    yield from serving(family[0], family[2])


# ---- the same weights of both ----

#: Names in the folder and in the GGUF.
STORED = {"self_attn.q_proj": "attn_q", "self_attn.o_proj": "attn_output", "mlp.down_proj": "ffn_down",
          "input_layernorm": "attn_norm"}  # fmt: skip


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("role", STORED)
def test_weights_of_both_are_the_same_ones(family: list[Path], role: str, flip: bool) -> None:
    """Those of the folder as numpy reads them, and close to them in the GGUF, though its rows are in another order."""
    paths = [family[0], family[2]]
    name = f"model.layers.1.{role}.weight"
    values = load_file(family[0] / "model.safetensors")[name]
    stored = f"blk.1.{STORED[role]}.weight" if flip else name
    with PageData(*(reversed(paths) if flip else paths)) as data:
        number = [entry.name for entry in data.models[0].index.entries].index(stored)
        row, column = (5, 33) if values.ndim > 1 else (0, 33)
        found = data.shared_weights(0, 1).at(number, row, column)
    folder, gguf = (found.b, found.a) if flip else (found.a, found.b)
    expected = values[row, column : column + SHOWN] if values.ndim > 1 else values[column : column + SHOWN]
    assert np.array_equal(np.array(folder, np.float32), expected)
    assert np.linalg.norm(np.array(gguf) - expected) < 0.1 * np.linalg.norm(expected)
    assert found.moved == tuple("q_proj" in role and side == flip for side in (True, False))


def test_weights_outside_are_moved_inside(family: list[Path]) -> None:
    with PageData(family[0], family[2]) as data:
        found = data.shared_weights(0, 1).at(0, 10**18, 10**18)
        shape = found.shape
    assert (found.row, found.column, len(found.a)) == (shape[0] - 1, shape[1] - 1, 1)


def test_weights_that_both_do_not_have(family: list[Path]) -> None:
    with PageData(family[0], family[4]) as data:
        pairs = data.shared_weights(0, 1)
        with pytest.raises(UnsupportedError, match="isn't a whole tensor of one shape in both"):
            pairs.at(0, 0, 0)
        with pytest.raises(UsageError, match="unknown tensor 999"):
            pairs.at(999, 0, 0)


# ---- questions about a pair ----


@pytest.mark.parametrize("name", ["diff", "token_pair", "moves", "weights"])
def test_a_pair_is_two_of_the_models(family: list[Path], name: str) -> None:
    rest = {"moves": {"file": "0"}, "weights": {"tensor": "0", "row": "0", "column": "0"}}.get(name, {})
    with PageData(*family) as data:
        for a, b, good in (
            ("0", "1", True),
            ("3", "2", True),
            ("0", "9", False),
            ("9", "0", False),
            ("-1", "0", False),
        ):
            if good:
                assert json.loads(data.answer(name, {"a": a, "b": b, **rest}))
            else:
                with pytest.raises(UsageError):
                    data.answer(name, {"a": a, "b": b, **rest})


def test_a_page_has_at_most_64_models(models: Path) -> None:
    with pytest.raises(UsageError, match="1 to 64 models, not 65"):
        wb.view(models / "q4.gguf", [models / "q4.gguf"] * 64, browser=False)


# ---- the family ----


def test_the_family_is_that_of_lineage(family: list[Path]) -> None:
    report = wb.lineage(family)
    with PageData(*family) as data:
        view = json.loads(data.answer("lineage", {}))
    names = [model["name"] for model in view["models"]]
    assert names == [model.name for model in report.models]
    shown = [(names[row["model"]], None if row["above"] is None else names[row["above"]]) for row in view["rows"]]
    assert shown == [(row.name, row.above) for row in report.tree]
    related = [pair for pair in report.pairs if pair.relation not in ("unrelated", "different-shapes")]
    assert len(view["pairs"]) == len(related)
    assert view["apart"] == len(report.pairs) - len(related) == 4
    assert view["sentence"] == ""


def test_the_tree_of_several_is_drawn_and_leads_to_each(visit: Visits, family_url: str) -> None:
    """It is what the page shows first; a name leads to that model alone, a button to the differences."""
    page = settled(visit(family_url))
    tree = page.get_by_role("list", name="Family tree").first
    assert tree.locator(".member .name").all_inner_texts()[:2] == ["base", "f16.gguf"]
    q4 = page.locator(".tree li", has_text="q4.gguf").last
    assert "quantized: F16 to Q4_K" in q4.inner_text()
    assert page.locator(".tree li.root").count() == 2
    names = page.get_by_role("region", name="Relations").get_by_role("button")
    assert len(set(names.evaluate_all("all => all.map(name => name.offsetHeight)"))) == 1  # no name is broken
    assert page.get_by_role("button", name="Tokenizer").count() == 0  # none has one
    q4.get_by_role("button", name="Differences").click()
    until(page, "location.hash.includes('panel=diff')")
    settled(page)
    assert [b.inner_text() for b in page.locator("header h1 .name").all()] == ["f16.gguf", "q4.gguf"]
    page.get_by_role("button", name="Lineage").click()
    settled(page).get_by_role("button", name="tuned", exact=True).click()
    until(page, "document.querySelector('main .figures') !== null")
    assert page.locator("header h1 .name").all_inner_texts() == ["tuned"]
    assert page.get_by_role("button", name="Differences").count() == 0


def test_any_two_of_several_are_chosen(visit: Visits, family_url: str) -> None:
    page = settled(visit(at(family_url, "summary")))
    page.get_by_label("Model B").select_option(label="q4.gguf")
    page.get_by_label("Model A").select_option(label="tuned")
    settled(page)
    rows = rows_of(page, "Both models")
    assert [value.split()[0] for value in rows["Format"]] == ["safetensors", "gguf"]
    assert page.get_by_role("list", name="Verdict on B").inner_text().count("llama.cpp loads it") == 1
    page.reload()
    settled(page)
    assert page.locator("header h1 .name").all_inner_texts() == ["tuned", "q4.gguf"]
    page.get_by_label("Model B").select_option(label="no other")
    until(page, "document.querySelectorAll('header h1 .name').length === 1")


def test_a_size_is_drawn_against_a_distance(visit: Visits, family_url: str) -> None:
    page = settled(visit(family_url))
    drawing = page.locator("section", has_text="Size against distance")
    drawing.locator("svg .name").nth(2).wait_for(state="attached")  # drawn once the width is known
    assert sorted(drawing.locator("svg .name").all_text_contents()) == ["f16.gguf", "q4.gguf", "tuned"]
    heights = {c.locator("title").text_content().partition(":")[0]: float(c.get_attribute("cy"))
               for c in drawing.locator("circle").all()}  # fmt: skip
    assert heights["q4.gguf"] < heights["tuned"] < heights["f16.gguf"]  # the largest distance is on top


def test_an_exported_family_has_its_tree(visit: Visits, family: list[Path], tmp_path: Path) -> None:
    wb.export_view(family[0], tmp_path / "page.html", family[1:])
    page = settled(visit((tmp_path / "page.html").as_uri()))
    assert page.locator(".member").count() == 5
    page.get_by_role("button", name="q4.gguf", exact=True).click()
    settled(page)
    assert "Q4_K" in page.locator("main").inner_text()
    assert page.locator(".problem").count() == 0


# ---- both in each panel ----


@pytest.mark.slow
@pytest.mark.parametrize("panel", ["numbers", "layout", "microscope", "microscope&mode=bytes", "diff"])
def test_everybody_can_use_a_panel_of_two(visit: Visits, pair_url: str, panel: str) -> None:
    check(visit, at(pair_url, panel, tensor=3))


@pytest.mark.slow
@pytest.mark.parametrize("panel", ["lineage", "summary"])
def test_everybody_can_use_a_panel_of_several(visit: Visits, family_url: str, panel: str) -> None:
    check(visit, at(family_url, panel))


def check(visit: Visits, url: str) -> None:
    """axe finds nothing at both widths, in light and dark, and nothing is wider than the window."""
    page = settled(visit(url, bypass_csp=True))
    for width, scheme, rules in ((1280, "Light", None), (1280, "Dark", CONTRAST), (390, "Light", CONTRAST)):
        page.set_viewport_size({"width": width, "height": 844})
        page.get_by_role("button", name=scheme).click()
        assert violations(page, rules) == [], (width, scheme)
        until(page, f"document.documentElement.scrollWidth <= {width}")
    assert page.locator(".problem").count() == 0


def test_numbers_of_both_are_in_one_table(visit: Visits, family: list[Path], pair_url: str) -> None:
    page: Any = settled(visit(at(pair_url, "numbers", tensor=3)))
    page.wait_for_selector("[aria-label='Both tensors']")
    settled(page)
    rows = rows_of(page, "Both tensors")
    with wb.open(family[0]) as a, wb.open(family[2]) as b:
        name = list(a)[3]
        twin = STORED[name.removeprefix("model.layers.0.").removesuffix(".weight")]
        values = [a[name].numpy("f32"), b[f"blk.0.{twin}.weight"].numpy("f32")]
    for what, measure in (("Mean", np.mean), ("Standard deviation", np.std), ("Largest", np.max)):
        shown = [float(text.split()[0]) for text in rows[what]]
        assert np.allclose(shown, [measure(v.astype(np.float64)) for v in values], rtol=1e-3, atol=1e-7), what
    quantiles = page.get_by_role("region", name="Quantiles")
    assert quantiles.locator("thead th").all_inner_texts() == ["share below", "A", "B"]
    cells = np.array([float(text) for text in quantiles.locator("tbody :is(th, td)").all_inner_texts()]).reshape(-1, 3)
    assert np.allclose(cells[:, 1], np.quantile(values[0], cells[:, 0]), atol=0.01)
    for side in "AB":
        assert page.get_by_role("region", name=f"Layers and roles of {side}").locator("td.n").count() == 30
        assert (
            page.get_by_role("region", name=f"Largest columns of {side}").locator("tbody tr").count() > 0
            or values[0].ndim < 2
        )
    heads = [
        page.get_by_role("region", name=f"Layers and roles of {side}").locator("thead").inner_text() for side in "AB"
    ]
    assert heads[0] == heads[1]  # one order of columns


def test_a_heat_map_of_values_shows_both(visit: Visits, pair_url: str) -> None:
    page = settled(visit(at(pair_url, "numbers")))
    page.get_by_label("Statistic", exact=True).select_option("rms")
    page.get_by_role("button", name="Read them").click()
    page.wait_for_selector("[aria-label='Layers and roles of B'] td.n")
    assert settled(page).get_by_role("region", name="Layers and roles of A").locator("td.n").count() == 30


def test_a_map_marks_what_the_other_is_at(visit: Visits, pair_url: str) -> None:
    page = settled(visit(at(pair_url, "layout", tensor=1)))
    rows = rows_of(page, "Both layouts")
    assert rows["Files"] == ["1", "1"]
    assert rows["Tensors"][1].endswith("%) differs")
    page.locator("canvas").first.focus()
    readouts = page.locator(".readout")
    page.keyboard.press("[")  # from the second tensor to the first
    until(page, "document.querySelector('.readout').textContent.includes('64 × 256')")
    assert "lm_head.weight" in readouts.first.inner_text()
    until(page, "document.querySelectorAll('.readout')[1].textContent.includes('output.weight')")
    assert "Q6_K" in readouts.nth(1).inner_text()


def test_blocks_of_both_have_the_same_weights(visit: Visits, family: list[Path], pair_url: str) -> None:
    """And the grid has them one over the other."""
    page: Any = settled(visit(at(pair_url, "microscope", tensor=0, block=600)))
    page.wait_for_selector(".paired-values")
    settled(page)
    assert page.get_by_text("Row 2, from column 88: 168 weights.").count() == 1
    rest = page.locator(".paired-values").evaluate("""box => {
      const [first, below] = [...box.children].filter((v, i, all) => i === 0 || v.offsetTop > all[0].offsetTop);
      return (box.clientHeight - (first.offsetTop - box.offsetTop)) / (below.offsetTop - first.offsetTop) % 1;
    }""")
    assert 0.2 < rest < 0.8  # a part of a row tells that there are more
    value = load_file(family[0] / "model.safetensors")["lm_head.weight"][2, 88]
    first = page.locator(".paired-values .v").first.inner_text().split("\n")
    assert np.isclose(float(first[0]), value, rtol=6e-3)
    assert np.isclose(float(first[1]), value, atol=0.01)
    sections = page.locator("main > section.card").all_inner_texts()
    assert sections[1].startswith("A lm_head.weight")
    assert sections[2].startswith("B output.weight")
    assert "elements from [2, 0]" in sections[2]


def test_bytes_of_both_are_those_of_one_tensor(visit: Visits, family: list[Path], pair_url: str) -> None:
    with wb.open(family[0]) as model:
        start = model.source.index.entries[0].offset
    page = settled(visit(at(pair_url, "microscope", mode="bytes", at=start)))
    page.wait_for_selector(".line")
    meanings = page.locator(".meaning").all_inner_texts()
    assert "lm_head.weight" in meanings[0]
    assert "output.weight" in meanings[1]
