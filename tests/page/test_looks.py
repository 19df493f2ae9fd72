"""Faults that were seen in pictures of the panels, in exported pages: what they lack, cut names, colours, units."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.projector_cases import golden, write_folder
from tests.page.conftest import Visits, until, violations
from tests.page.samples import llama
from tests.page.test_assemble import answers_of
from tests.page.test_browser import settled
from tests.page.test_layout import drawn, mapped
from tests.page.test_views import adapter
from tests.reports.lineage_models import folder, random_model, stored

import weighbridge as wb
from weighbridge.page.data import PageData

pytestmark = pytest.mark.costly

PHONE = {"viewport": {"width": 390, "height": 844}}


class Runs:
    """Runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported pages: of a pickle, a truncated file, and an adapter with its base model."""
    folder = tmp_path_factory.mktemp("looks")
    tensors = {f"layer.{n}": np.ones((4, 4), np.float32) for n in range(20)}
    (folder / "evil.pkl").write_bytes(pickle.dumps({**tensors, "x": Runs()}))
    wb.export_view(folder / "evil.pkl", folder / "evil.html")
    llama(folder / "base")
    adapter(folder / "lora")
    wb.export_view(folder / "base", folder / "lora.html", folder / "lora", values=True)
    weights = (folder / "base" / "model.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(weights[:-100_000])
    wb.export_view(folder / "cut.safetensors", folder / "cut.html")
    return folder


def opened(visit: Visits, pages: Path, name: str, panel: str, **settings: Any) -> Any:
    return settled(visit(f"{(pages / name).as_uri()}#panel={panel}", **settings))


def test_the_banner_of_an_exported_page_leads_to_the_step(visit: Visits, pages: Path) -> None:
    """The list of steps takes no room outside of its box."""
    page = opened(visit, pages, "evil.html", "summary")
    assert "protocol 4" in page.locator(".answers").inner_text()
    page.locator(".banner button").click()
    until(page, "document.querySelector('.steps .picked.judged.danger')")
    inside = "Math.max(innerHeight, document.querySelector('#app').scrollHeight)"
    assert page.evaluate(f"document.documentElement.scrollHeight <= {inside} + 1")


def test_the_map_of_a_pickle_is_coloured_by_opcode(visit: Visits, pages: Path) -> None:
    """The legend has what occurs, and nothing else."""
    page = mapped(visit, f"{(pages / 'evil.html').as_uri()}#")
    assert page.locator(".keyed").inner_text().split() == ["import", "call", "structure", "memo", "frame", "value"]
    page.get_by_role("group", name="Colour by").get_by_role("button", name="Type").click()
    until(page, "document.querySelector('.keyed').innerText === 'header'")
    assert "SHORT_BINUNICODE" in drawn(page)[0]


def test_damage_has_one_banner(visit: Visits, pages: Path) -> None:
    page = opened(visit, pages, "cut.html", "layout")
    assert page.locator(".banner").count() == 1
    assert page.locator(".banner").inner_text().count("cut off") == 1


def test_large_numbers_of_a_message_have_separators(visit: Visits, pages: Path) -> None:
    """In the banner and in the findings."""
    text = opened(visit, pages, "cut.html", "summary").locator("body").inner_text()
    assert len(re.findall(r"expected \d(,\d{3})+ bytes, found \d(,\d{3})+\)", text)) == 2


def test_a_list_is_no_higher_than_its_rows(visit: Visits, pages: Path) -> None:
    page = opened(visit, pages, "cut.html", "tensors")
    page.get_by_role("searchbox").fill("norm.weight")
    until(page, "document.querySelectorAll('.rows [role=row]').length < 9")
    assert page.locator(".rows").bounding_box()["height"] <= 26 * page.locator(".rows [role=row]").count() + 18


def test_the_end_of_a_long_name_is_seen_on_a_phone(visit: Visits, pages: Path) -> None:
    page = opened(visit, pages, "cut.html", "tensors", **PHONE)
    cut = page.locator(".rows .ends").evaluate_all("""all => all.filter(name => {
      const end = name.children[1].getBoundingClientRect(), cell = name.parentElement.getBoundingClientRect();
      return end.width === 0 || end.right > cell.right;
    }).map(name => name.textContent)""")
    assert cut == []


def test_a_phone_shows_the_size_of_each_role(visit: Visits, pages: Path) -> None:
    page = opened(visit, pages, "cut.html", "architecture", **PHONE)
    row = page.locator(".box li").first
    name, size = row.locator(":scope > :first-child").bounding_box(), row.locator(":scope > :last-child").bounding_box()
    assert abs(name["y"] - size["y"]) < 6
    assert size["x"] + size["width"] <= 390
    assert "model.layers" not in page.locator(".layer").first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_of_a_heat_map_stand_out(visit: Visits, pages: Path, scheme: str) -> None:
    """On a dark card, the lowest colour too; and their texts can be read."""
    page = opened(visit, pages, "lora.html", "numbers", color_scheme=scheme, bypass_csp=True)
    page.get_by_label("Statistic").select_option("absmax")
    settled(page)
    found = page.locator(".heat td.n").evaluate_all("""all => all.map(cell => {
      const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      const light = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(linear)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const style = getComputedStyle(cell), card = light(getComputedStyle(cell.closest(".card")).backgroundColor);
      return [contrast(light(style.backgroundColor), card), contrast(light(style.backgroundColor), light(style.color))];
    })""")
    assert min(text for _, text in found) >= 4.5
    assert scheme == "light" or min(ground for ground, _ in found) >= 3  # on white, yellow is next to it as anywhere


def test_what_is_chosen_looks_chosen_under_the_pointer(visit: Visits, pages: Path) -> None:
    page = opened(visit, pages, "cut.html", "layout")
    tab, color = page.locator("nav [aria-current]"), "e => getComputedStyle(e).backgroundColor"
    before = tab.evaluate(color)
    tab.hover()
    assert tab.evaluate(color) == before


def test_a_table_that_scrolls_sideways_fades_out(visit: Visits, pages: Path) -> None:
    mask = "e => getComputedStyle(e).getPropertyValue('--after')"
    wide, narrow = (opened(visit, pages, "lora.html", "numbers", **size) for size in ({}, PHONE))
    assert [page.locator(".heat").first.evaluate(mask) for page in (wide, narrow)] == ["0px", "32px"]


def test_what_accompanies_a_model_is_not_compared_with_it(visit: Visits, pages: Path, tmp_path: Path) -> None:
    """An adapter, whose changes are in the exported page; and a projector."""
    page = opened(visit, pages, "lora.html", "adapter")
    assert "of the weight’s" in page.locator("main").inner_text()
    tabs = page.locator("nav li button").all_inner_texts()
    assert "Adapter" in tabs
    assert not {"Differences", "Lineage", "Microscope", "Tokenizer"} & set(tabs)  # neither has a tokenizer
    wb.convert(write_folder(golden()["gemma3"], tmp_path / "model"), tmp_path / "p.gguf", mmproj=True)
    with PageData(tmp_path / "p.gguf") as data:
        assert json.loads(data.answer("start", {}))["models"][0]["projector"] is True
        answers = json.loads(data.answer("findings", {"model": "0"}))["answers"]
        assert "accompanies a model: llama.cpp takes it as --mmproj" in [answer["text"] for answer in answers]
    wb.export_view(tmp_path / "p.gguf", tmp_path / "p.html")
    page = opened(visit, tmp_path, "p.html", "summary", **PHONE)
    assert "Tokenizer" not in page.locator("nav").inner_text()
    option = page.locator(".answers .unbroken")
    assert (option.inner_text(), option.evaluate("it => getComputedStyle(it).display")) == ("--mmproj", "inline")
    first = answers_of((pages / "cut.html").read_text())["start?"]["answer"]["models"][0]
    assert first["projector"] is False


@pytest.mark.parametrize(("form", "kind", "runs"), [
    ("lora", "PEFT adapter, LoRA", "PEFT applies it"),
    ("lora.gguf", "GGUF LoRA adapter, llama", "llama.cpp takes it as --lora"),
])  # fmt: skip
def test_an_adapter_is_told_from_a_model(
    visit: Visits, pages: Path, tmp_path: Path, form: str, kind: str, runs: str
) -> None:
    """It has no memory, family or architecture of its own."""
    if form == "lora.gguf":
        wb.convert(pages / "lora", tmp_path / form, base=pages / "base")
    wb.export_view(pages / "lora" if form == "lora" else tmp_path / form, tmp_path / "page.html")
    page = opened(visit, tmp_path, "page.html", "summary")
    answers = page.locator(".answers li").all_inner_texts()
    told = [answer.splitlines()[-1] for answer in answers]
    assert [kind, f"accompanies a model: {runs}"] == [text for text in told if text.startswith((kind, "accomp"))]
    assert "Family" not in page.locator("main").inner_text()
    assert "Architecture" not in page.locator("nav li button").all_inner_texts()
    with PageData(pages / "lora" if form == "lora" else tmp_path / form) as data:
        answers = json.loads(data.answer("findings", {"model": "0"}))["answers"]
    assert ("info", "memory depends on that model") in [(answer["level"], answer["text"]) for answer in answers]


def test_a_tokenizer_that_cannot_be_read_is_not_hidden(visit: Visits, tmp_path: Path) -> None:
    llama(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"no protobuf")
    wb.export_view(tmp_path / "model", tmp_path / "page.html")
    assert "Not shown: " in opened(visit, tmp_path, "page.html", "tokenizer").locator("main").inner_text()


def test_an_algorithm_has_one_name(visit: Visits, tmp_path: Path) -> None:
    """In the table of both tokenizers, and below it."""
    folder(tmp_path / "model", stored(random_model(0)))
    wb.convert(tmp_path / "model", tmp_path / "model.gguf", dtype="f16")
    wb.export_view(tmp_path / "model.gguf", tmp_path / "page.html", tmp_path / "model")
    text = opened(visit, tmp_path, "page.html", "tokenizer").locator("main").inner_text()
    both, one = re.findall(r"Algorithm\s+(\S+)(?:\s+(\S+))?", text)
    assert both[0] == both[1] == one[0] == "BPE"


def test_values_of_a_header_are_shown_as_written(pages: Path) -> None:
    """In JSON, not in Python."""
    with PageData(pages / "base") as data:
        bytes_of = json.loads(data.answer("bytes", {"model": "0", "file": "0", "offset": "0", "length": "400"}))
    values = {region["label"]: region["value"] for region in bytes_of["regions"]}
    assert values["format"] == '"pt"'
    assert values["lm_head.weight"].startswith('{"dtype":"F32","shape":[64,256],')


def test_a_legend_on_a_phone_begins_with_the_line(visit: Visits, pages: Path) -> None:
    page = mapped(visit, f"{(pages / 'cut.html').as_uri()}#", **PHONE)
    legend, tools = (page.locator(name).first.bounding_box() for name in (".keyed", ".tools"))
    assert legend["x"] == tools["x"]


def test_operators_are_those_of_the_model_alone(visit: Visits, pages: Path) -> None:
    """An adapter beside it has none."""
    page = opened(visit, pages, "lora.html", "graph")
    assert page.locator("svg.operators").count() == 3
    assert "RMS, ε 1e-5" in page.locator("svg.operators").nth(1).text_content()
    assert page.locator(".graphs").count() == page.get_by_text("Not known").count() == 0


def test_panels_have_something_to_say(visit: Visits, tmp_path: Path) -> None:
    """A pickle without layers has no drawing, and a model whose layers all have a window has no cost per token."""
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": np.ones(4, np.float32)}))
    wb.export_view(tmp_path / "a.pkl", tmp_path / "pickle.html")
    assert "Architecture" not in opened(visit, tmp_path, "pickle.html", "tensors").locator("nav").inner_text()
    wb.export_view(write_folder(golden()["gemma3"], tmp_path / "model"), tmp_path / "gemma.html")
    cache = opened(visit, tmp_path, "gemma.html", "architecture").locator("section", has_text="Cache of keys")
    assert "0 B" not in cache.inner_text()
    assert "4,096 tokens" in cache.inner_text()


def test_axe_sees_a_fault_in_one_of_many_rows(visit: Visits, pages: Path) -> None:
    """Rows alike are checked once; one that differs is checked, too."""
    page = opened(visit, pages, "cut.html", "summary", bypass_csp=True)
    assert violations(page) == []
    page.locator("tbody tr").last.evaluate("row => { row.lastElementChild.style.color = '#eee' }")
    assert [rule for rule, _ in violations(page)] == ["color-contrast"]
