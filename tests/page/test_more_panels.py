"""Operators, folder, adapter, lineage, and both models of a comparison, in chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.family_judges import golden
from tests.page.conftest import Visits, serving, until, violations
from tests.page.samples import CONFIG, llama, sparse
from tests.page.test_browser import at, settled
from tests.page.test_views import adapter

import weighbridge as wb

pytestmark = pytest.mark.costly

CONTRAST = {"runOnly": ["color-contrast"]}


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that a folder may have."""
    path = llama(tmp_path_factory.mktemp("described") / "model")
    (path / "config.json").write_text(json.dumps({**CONFIG, "odd_setting": 3}))
    (path / "generation_config.json").write_text('{"temperature": 0.5}')
    (path / "README.md").write_text("---\nlicense: mit\n---\n")
    (path / "modeling_own.py").write_text("")
    adapter(path.parent / "lora")
    return path


@pytest.fixture(scope="module")
def folder_url(described: Path) -> Iterator[str]:
    yield from serving(described)


@pytest.fixture(scope="module")
def pair_url(described: Path, models: Path) -> Iterator[str]:
    yield from serving(described, models / "q4.gguf")


@pytest.fixture(scope="module")
def adapter_url(described: Path) -> Iterator[str]:
    yield from serving(described, described.parent / "lora")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "panel"),
    [("folder", "folder"), ("folder", "graph"), ("pair", "summary"), ("pair", "tensors"), ("pair", "architecture"),
     ("pair", "graph"), ("pair", "lineage"), ("adapter", "adapter"), ("adapter", "folder")],
)  # fmt: skip
def test_everybody_can_use_a_panel(visit: Visits, request: pytest.FixtureRequest, kind: str, panel: str) -> None:
    """axe finds nothing at both widths, in light and dark, and nothing is wider than the window."""
    page = settled(visit(at(request.getfixturevalue(f"{kind}_url"), panel), bypass_csp=True))
    for width, scheme, rules in (
        (1280, "Light", None),
        (1280, "Dark", CONTRAST),
        (390, "Dark", CONTRAST),
        (390, "Light", None),
    ):
        page.set_viewport_size({"width": width, "height": 844})
        page.get_by_role("button", name=scheme).click()
        assert violations(page, rules) == [], (width, scheme)
        until(page, f"document.documentElement.scrollWidth <= {width}")
    assert page.locator(".problem").count() == (1 if panel == "folder" else 0)  # a lost setting


def test_an_operator_leads_to_its_tensors(visit: Visits, folder_url: str) -> None:
    page = settled(visit(at(folder_url, "graph")))
    page.get_by_role("button", name="query: 256 → 256").click()
    side = page.get_by_role("complementary", name="Operator")
    assert side.locator("li .name").all_inner_texts() == ["model.layers.0.self_attn.q_proj.weight"]
    side.get_by_role("button").click()
    until(page, "document.querySelector('[aria-label=\"Selected tensor\"] h2') !== null")
    assert "q_proj" in page.get_by_role("complementary", name="Selected tensor").inner_text()


def test_an_operator_is_chosen_by_the_keyboard(visit: Visits, folder_url: str) -> None:
    page = settled(visit(at(folder_url, "graph")))
    page.get_by_role("button", name="down: 512 → 256").focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('[aria-label=Operator]').textContent.includes('mlp.down_proj')")


def test_the_drawing_has_the_operators_of_the_layer(visit: Visits, folder_url: str) -> None:
    page = settled(visit(at(folder_url, "graph")))
    titles = page.locator("svg[aria-label='Operators: A layer'] .node .title").all_text_contents()
    assert [titles.count(title) for title in ("+", "×", "rotate", "attention", "SiLU", "norm")] == [2, 1, 2, 1, 1, 2]
    shapes = page.locator("svg[aria-label='Operators: A layer'] .shape").all_text_contents()
    assert {"4 × 64", "2 × 64", "512", "256"} == set(shapes)


def test_every_text_of_the_drawing_fits_its_box(visit: Visits, folder_url: str) -> None:
    page = settled(visit(at(folder_url, "graph")))
    wide = page.locator("svg .node:not(.sign)").evaluate_all("""all => all.filter(node => {
      const box = node.querySelector("rect").getBBox().width - 6;
      return [...node.querySelectorAll("text")].some(text => text.getBBox().width > box);
    }).map(node => node.textContent)""")
    assert wide == []


def test_layers_that_differ_are_chosen(visit: Visits, tmp_path: Path) -> None:
    """A hybrid of state space and attention, with experts in some layers."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(golden()["jamba"]["config"]))
    rows = [(name, "F32", shape) for name, shape in golden()["jamba"]["hf"].items()]
    sparse(tmp_path / "model" / "model.safetensors", rows)
    with visit.served(tmp_path / "model") as url:
        page = settled(visit(at(url, "graph")))
        kinds = page.get_by_role("list", name="Kinds of layers").get_by_role("button")
        assert kinds.first.inner_text().replace("\n", " ").startswith("× 2 state space, feed forward")
        assert kinds.count() == 4
        titles = page.locator("svg[aria-label='Operators: A layer'] .title")
        assert "state space scan" in titles.all_text_contents()
        kinds.nth(1).click()
        until(
            page,
            "document.querySelector('svg[aria-label=\"Operators: A layer\"]').textContent.includes('choose experts')",
        )
        assert "state space scan" not in titles.all_text_contents()
        page.get_by_role("button", name="router: 64 → 4").click()
        assert "router" in page.get_by_role("complementary", name="Operator").locator("li").inner_text()


def test_a_folder_shows_settings_and_files(visit: Visits, folder_url: str) -> None:
    page = settled(visit(at(folder_url, "folder")))
    rows = page.locator("section", has_text="config.json, and defaults").locator("tbody tr")
    row = rows.filter(has=page.get_by_text("hidden_size", exact=True))
    assert "llama.embedding_length" in row.inner_text()
    assert "width of the states" in row.inner_text()
    assert "lost" in rows.filter(has=page.get_by_text("odd_setting", exact=True)).inner_text()
    page.get_by_role("button", name="Lost 1").click()
    assert rows.count() == 1
    files = page.get_by_role("region", name="Files of the folder").inner_text()
    assert all(
        word in files for word in ("model.safetensors", "trust_remote_code", "modeling_own.py", "what the model is")
    )
    assert "mit" in page.locator("section", has_text="Card and licence").inner_text()


def test_a_gguf_has_no_folder(visit: Visits, model_url: str) -> None:
    page = settled(visit(model_url))
    assert page.get_by_role("button", name="Folder").count() == 0
    assert page.get_by_role("button", name="Operators").count() == 1


def rows_of(page: Any, label: str) -> dict[str, list[str]]:
    rows = page.get_by_role("region", name=label).locator("tbody tr").all()
    texts = ((row.locator("th").inner_text(), row.locator("td").all_inner_texts()) for row in rows)
    return {what: [text.replace("\n", " ") for text in values] for what, values in texts}


def test_both_numbers_are_in_the_summary(visit: Visits, pair_url: str, described: Path, models: Path) -> None:
    page = settled(visit(pair_url))
    a, b = (wb.inspect(path) for path in (described, models / "q4.gguf"))
    rows = rows_of(page, "Both models")
    assert rows["Bits per weight"] == [f"{a.bits_per_weight:.2f}", f"{b.bits_per_weight:.2f} differs"]
    assert rows["Tensors"] == [str(a.tensor_count), str(b.tensor_count)]
    assert rows["Format"] == ["safetensors", "gguf differs"]
    assert rows["Layers"] == ["3", "3"]
    assert rows["scan"] == ["data only", "data only"]


def test_both_have_their_tensors_by_role(visit: Visits, pair_url: str) -> None:
    """Whatever the names in the files."""
    page = settled(visit(at(pair_url, "tensors")))
    rows = rows_of(page, "Tensors of both, by role")
    assert rows["mlp.gate.weight"][:3] == ["3", "F32", "512 × 256"]
    assert rows["mlp.gate.weight"][4:7] == ["3", "Q4_K", "512 × 256"]
    assert rows["attention.norm.weight"][-1] == "100 %"
    assert len(rows) == 12


def test_both_architectures_and_caches(visit: Visits, pair_url: str, models: Path) -> None:
    """The size of a layer is a range where its layers differ."""
    rows = rows_of(settled(visit(at(pair_url, "architecture"))), "Both architectures")
    assert rows["Cache per token"][0] == rows["Cache per token"][1]
    assert rows["A layer"][0].startswith("× 3: 590 K weights, 2.36 MB")
    sizes = [0, 0, 0]
    for tensor in wb.inspect(models / "q4.gguf").tensors:
        if tensor.name.startswith("blk."):
            sizes[int(tensor.name.split(".")[1])] += tensor.nbytes
    assert min(sizes) < max(sizes)
    assert rows["A layer"][1] == f"× 3: 590 K weights, {min(sizes) / 1000:.0f}–{max(sizes) / 1000:.0f} kB differs"


def test_both_operators_are_beside_each_other(visit: Visits, pair_url: str) -> None:
    page = settled(visit(at(pair_url, "graph")))
    assert page.locator("svg[aria-label$=': A layer']").count() == 2


def test_the_descent_of_two_is_drawn(visit: Visits, pair_url: str) -> None:
    page = settled(visit(at(pair_url, "lineage")))
    tree = page.get_by_role("list", name="Family tree").inner_text()
    assert "q4.gguf" in tree
    assert "quantized" in page.locator("main").inner_text()


def test_an_adapter_shows_its_changes(visit: Visits, adapter_url: str) -> None:
    page = settled(visit(at(adapter_url, "adapter")))
    text = page.locator("main").inner_text()
    assert "model.layers.1.self_attn.q_proj.weight" in text
    assert "of the weight’s" in text
    page.get_by_role("button", name="Largest first").click()
    shares = page.locator(".norms td:nth-child(5)").all_inner_texts()
    numbers = [float(text.removesuffix(" %")) for text in shares]
    assert numbers == sorted(numbers, reverse=True)


def test_a_model_has_no_adapter_panel(visit: Visits, pair_url: str) -> None:
    page = settled(visit(pair_url))
    assert page.get_by_role("button", name="Adapter").count() == 0
    assert page.get_by_role("button", name="Lineage").count() == 1


def test_an_exported_page_has_them_too(visit: Visits, described: Path, models: Path, tmp_path: Path) -> None:
    wb.export_view(described, tmp_path / "page.html", other=models / "q4.gguf")
    url = (tmp_path / "page.html").as_uri()
    for panel, shown in (
        ("graph", "svg.operators"),
        ("folder", ".belongs"),
        ("tokenizer", "section"),
        ("summary", ".compared"),
    ):
        page = settled(visit(f"{url}#panel={panel}"))
        assert page.locator(shown).count() > 0, panel
        assert page.locator("main > .problem").count() == 0
    assert page.get_by_role("button", name="Lineage").count() == 0  # needs values
