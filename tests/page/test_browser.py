"""The page in chromium: what it shows, that it complains about nothing, and that everybody can use it. Each test ends
with a check that no page wrote to the console or asked another site (`visit`)."""

from __future__ import annotations

import json
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.page.conftest import Visits, running, serving, until, violations
from tests.page.samples import HOSTILE, MANY, llama, sparse

import weighbridge as wb

pytestmark = pytest.mark.costly

PANELS = ("summary", "tensors", "layout", "microscope", "numbers", "tokenizer", "architecture")
#: Rows of the list that are in the document.
ROWS = ".rows [role=row]"


#: What shows that a panel has its data.
SHOWN = {"summary": ".figures b", "tensors": ROWS, "layout": "canvas", "numbers": ".heat td", "architecture": ".box li"}


def at(url: str, panel: str, **place: object) -> str:
    return f"{url}&panel={panel}" + "".join(f"&{key}={value}" for key, value in place.items())


def settled(page: Any) -> Any:
    """The page, when nothing is being read any more."""
    until(page, "!document.querySelector('.waiting')")
    return page


@pytest.mark.slow
@pytest.mark.parametrize("panel", PANELS)
def test_everybody_can_use_a_panel(visit: Visits, request: pytest.FixtureRequest, panel: str) -> None:
    """axe finds nothing, in light and dark; and nothing is wider than a phone."""
    url = request.getfixturevalue("chat_url" if panel == "tokenizer" else "model_url")
    page = settled(visit(at(url, panel, tensor=4), bypass_csp=True))
    for scheme, rules in (("Light", None), ("Dark", {"runOnly": ["color-contrast"]})):
        page.get_by_role("button", name=scheme).click()
        assert violations(page, rules) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    until(page, "document.documentElement.scrollWidth <= 390")


def test_a_plain_file_of_tensors_has_no_tokenizer_and_no_cache(
    visit: Visits, tmp_path: Path, model_url: str, chat_url: str
) -> None:
    """Nor has a GGUF without a tokenizer one; what is a model has what it needs."""
    np.savez(tmp_path / "x.npz", a=np.ones((4, 8)), b=np.ones(3))
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": np.ones(3), "step": 3}))
    for file in ("x.npz", "x.pkl"):
        with running(tmp_path / file) as (url, _):
            for panel in ("architecture", "tokenizer"):
                told = settled(visit(at(url, panel))).locator("body").inner_text()
                assert "Tensors" in told
                assert "Tokenizer" not in told
                assert "Cache of keys" not in told
                assert f"{(tmp_path / file).stat().st_size} B" in told  # decoded arrays are no file on disk
    told = settled(visit(at(model_url, "architecture"))).locator("body").inner_text()
    assert "Cache of keys" in told
    assert "Tokenizer" not in told
    assert "Tokenizer" in settled(visit(at(chat_url, "architecture"))).locator("nav").inner_text()


def test_the_summary_is_that_of_inspect(visit: Visits, models: Path, model_url: str) -> None:
    page = settled(visit(model_url))
    report = wb.inspect(models / "q4.gguf")
    figures = page.locator(".figures").inner_text().split("\n")
    assert f"{report.bits_per_weight:.2f}" in figures
    assert str(report.tensor_count) in figures
    types = page.locator("section", has_text="Number types").locator("tbody th").all_inner_texts()
    assert sorted(types) == sorted(row.dtype for row in report.dtypes)
    assert page.locator(".verdicts").inner_text().split("\n") == ["scan: data only", "verify: ok"]
    facts = page.locator(".facts").first.inner_text().split("\n")
    assert dict(zip(facts[::2], facts[1::2], strict=True))["Family"] == "llama"


def test_the_summary_has_licence_context_tokenizer_and_findings(visit: Visits, tmp_path: Path) -> None:
    """Of a folder whose file lacks its last bytes, with a call hidden in a pickle beside it."""
    llama(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    (tmp_path / "model" / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (tmp_path / "model" / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})
    )
    (tmp_path / "model" / "extra.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with visit.served(tmp_path / "model") as url:
        page = settled(visit(url))
        facts = page.locator(".facts").first.inner_text().split("\n")
        named = dict(zip(facts[::2], facts[1::2], strict=True))
        assert (named["Licence"], named["Tokenizer"]) == ("apache-2.0", "BPE")
        assert "2,048\ntokens of context" in page.locator(".figures").inner_text()
        found = page.locator(".findings").inner_text()
        until(page, "document.querySelectorAll('[role=alert]').length === 2")
        alerts = page.get_by_role("alert").all_inner_texts()
        assert "os.system('true')" in alerts[0]
        assert "Broken: " in alerts[1]
        assert all(words in found for words in ("the file is cut off", "os.system")), found


def test_equal_layers_are_folded_and_opened(visit: Visits, many_url: str) -> None:
    page = visit(at(many_url, "tensors"))
    page.wait_for_selector(ROWS)
    assert page.locator(ROWS, has_text="0–520").locator(".times").inner_text() == "× 521"
    before = page.locator("[role=treegrid]").get_attribute("aria-rowcount")
    page.locator(ROWS).first.click()  # closes the root
    until(page, f"document.querySelector('[role=treegrid]')?.ariaRowCount !== '{before}'")
    assert page.locator(ROWS).count() == 1


def test_a_hundred_thousand_tensors_are_scrolled(visit: Visits, many_url: str) -> None:
    page = visit(at(many_url, "tensors"))
    page.get_by_role("button", name="List").click()
    until(page, f"document.querySelector('[role=treegrid]')?.ariaRowCount === '{len(MANY) + 1}'")
    assert page.locator(ROWS).count() < 100
    page.locator(".rows").evaluate("e => { e.scrollTop = e.scrollHeight }")
    page.wait_for_selector(f"[role=row][aria-rowindex='{len(MANY) + 1}']")
    assert MANY[-1][0] == page.locator(ROWS).last.locator(".name").inner_text()
    page.locator(".rows").evaluate("e => { e.scrollTop = e.scrollHeight / 2 }")
    until(page, f"[...document.querySelectorAll('{ROWS}')].some(r => Math.abs(r.ariaRowIndex - {len(MANY) // 2}) < 50)")
    index = int(page.locator(ROWS).first.get_attribute("aria-rowindex"))
    assert page.locator(ROWS).first.locator(".name").inner_text() == MANY[index - 2][0]


def test_a_hundred_thousand_tensors_are_searched_and_filtered(visit: Visits, many_url: str) -> None:
    page = visit(at(many_url, "tensors"))
    page.get_by_role("searchbox").fill("LAYERS.77. down")
    wanted = [row for row in MANY if "layers.77." in row[0] and "down" in row[0]]
    until(page, f"document.querySelector('[role=treegrid]')?.ariaRowCount === '{len(wanted) + 1}'")
    page.get_by_label("Number type").select_option(label="F32")
    scales = [name for name, dtype, _ in wanted if dtype == "F32"]
    until(page, f"document.querySelector('[role=treegrid]')?.ariaRowCount === '{len(scales) + 1}'")
    assert page.locator(ROWS).first.locator(".name").inner_text() == scales[0]
    page.get_by_label("Size").select_option(label="≥ 1 MB")
    page.get_by_text("No tensor matches.").wait_for()
    assert page.get_by_role("status").inner_text().startswith("0 of 100,032 tensors")


def test_the_list_is_sorted(visit: Visits, models: Path, model_url: str) -> None:
    page = visit(at(model_url, "tensors"))
    page.get_by_role("button", name="size").click()
    page.wait_for_selector("[role=columnheader][aria-sort=descending]")
    tensors = wb.inspect(models / "q4.gguf").tensors
    largest = sorted(tensors, key=lambda t: -t.nbytes)[:5]
    assert page.locator(f"{ROWS} .name").all_inner_texts()[:5] == [t.name for t in largest]


def test_the_list_is_used_from_the_keyboard(visit: Visits, model_url: str) -> None:
    page = visit(at(model_url, "tensors"))
    page.get_by_role("button", name="List").click()
    page.locator(f"{ROWS}[tabindex='0']").focus()
    focused = "document.activeElement.getAttribute('aria-rowindex')"
    page.keyboard.press("End")
    until(page, f"{focused} === document.querySelector('[role=treegrid]')?.ariaRowCount")
    page.keyboard.press("Home")
    until(page, f"{focused} === '2'")
    page.keyboard.press("ArrowDown")
    until(page, f"{focused} === '3'")
    name = page.evaluate("document.activeElement.querySelector('.name').textContent")
    page.keyboard.press("Enter")
    assert (
        page.get_by_role("complementary", name="Selected tensor").get_by_role("heading").inner_text().startswith(name)
    )
    page.keyboard.type("out")  # the first letters of a name
    until(page, "document.activeElement.querySelector('.name').textContent.startsWith('out')")


def test_names_of_files_do_nothing(visit: Visits, hostile_url: str) -> None:
    page = settled(visit(at(hostile_url, "summary")))
    page.get_by_role("button", name="Tensors").click()
    page.get_by_role("button", name="List").click()
    until(page, f"document.querySelector('[role=treegrid]')?.ariaRowCount === '{len(HOSTILE) + 1}'")
    shown = set(page.locator(f"{ROWS} .name").all_inner_texts())
    written = {"\u202e": "\\u202e", "\n": "\\n", "\t": "\\t", "\u2028": "\\u2028"}
    assert shown == {"".join(written.get(c, c) for c in name) for name in HOSTILE}
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img, script').length") == 1
    styles = page.locator(f"{ROWS} .name").evaluate_all(
        "all => all.map(e => getComputedStyle(e)).map(s => `${s.unicodeBidi} ${s.direction}`)"
    )
    assert set(styles) == {"isolate ltr"}


def test_the_map_is_that_of_anatomy(visit: Visits, models: Path, model_url: str) -> None:
    page = settled(visit(at(model_url, "layout")))
    regions = wb.anatomy(models / "q4.gguf").parts
    canvas = page.locator("canvas")
    canvas.focus()
    for region in regions[1:4]:
        page.keyboard.press("]")
        until(page, f"document.querySelector('.readout b').textContent === '{region.start:,}'")
    page.get_by_role("button", name="This region").click()
    until(page, "!document.querySelector('.tools .quiet').textContent.includes('whole file')")
    page.locator("summary").click()
    rows = page.locator("details tbody tr").all()
    assert len(rows) >= 3
    listed = [int(row.locator("td.n").first.inner_text().replace(",", "")) for row in rows]
    assert set(listed) <= {region.start for region in regions}


def test_every_pixel_of_the_map_is_of_the_right_region(visit: Visits, model_url: str) -> None:
    """Against the plain definition: of the regions that a piece of the file meets, the one with most bytes in it."""
    page = settled(visit(at(model_url, "layout")))
    random = np.random.default_rng(5)
    starts = [0, *sorted(random.choice(np.arange(1, 5000), 60, replace=False).tolist())]
    size, lo, hi, cells = 5000, 137, 4700, 333
    found = page.evaluate(
        "([starts, size, lo, hi, cells]) => Array.from(window.weighbridge.prevailing(starts, size, lo, hi, cells))",
        [starts, size, lo, hi, cells],
    )
    ends = [*starts[1:], size]
    for cell, region in enumerate(found):
        start, end = lo + (hi - lo) * cell / cells, lo + (hi - lo) * (cell + 1) / cells
        inside = [max(0.0, min(e, end) - max(s, start)) for s, e in zip(starts, ends, strict=True)]
        assert inside[region] >= max(inside) - 1e-9


def test_bytes_are_those_of_the_file(visit: Visits, models: Path, model_url: str) -> None:
    page = settled(visit(at(model_url, "microscope", mode="bytes", at=0)))
    shown = bytes.fromhex("".join(page.locator(".hex i").all_inner_texts()))
    assert shown == (models / "q4.gguf").read_bytes()[: len(shown)]
    assert len(shown) == 512
    assert "magic" in page.locator(".meaning").inner_text()


@pytest.mark.parametrize("tensor", ["token_embd.weight", "output_norm.weight", "output.weight"])
def test_values_of_a_block_are_those_of_numpy(visit: Visits, models: Path, model_url: str, tensor: str) -> None:
    with wb.open(models / "q4.gguf") as model:
        number = list(model).index(tensor)
        values = model[tensor].numpy("f32").reshape(-1)
    page = settled(visit(at(model_url, "microscope", tensor=number, block=1)))
    shown = page.locator(".v").all_inner_texts()
    wanted = values[len(shown) : 2 * len(shown)]
    assert len(shown) in (1, 256)
    assert np.allclose([float(text.replace(",", "")) for text in shown], wanted, rtol=6e-3, atol=1e-9)


def test_the_bits_of_a_code_stand_out(visit: Visits, models: Path, model_url: str) -> None:
    """Element 32 of a block of Q4_K is the high nibble of its first code."""
    with wb.open(models / "q4.gguf") as model:
        number = list(model).index("token_embd.weight")
    page = settled(visit(at(model_url, "microscope", tensor=number, block=1)))
    page.locator(".v").nth(32).click()
    page.get_by_text("its code is the high nibble of byte 16").wait_for()
    codes = page.locator(".fields tr", has_text="qs").locator(".raw")
    assert codes.locator("b.own").all_inner_texts() == [codes.inner_text()[:2]]


def test_a_name_is_copied(visit: Visits, models: Path, model_url: str) -> None:
    page = visit(at(model_url, "tensors", tensor=2), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy name").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == wb.inspect(models / "q4.gguf").tensors[2].name


def test_counting_is_stopped(visit: Visits, tmp_path: Path) -> None:
    """A tensor that takes long is counted when that is asked for, and no longer than that."""
    sparse(tmp_path / "model.safetensors", [("large", "F32", (1 << 20, 1 << 12))])
    with visit.served(tmp_path / "model.safetensors") as url:
        page = visit(at(url, "numbers", tensor=0))
        page.get_by_role("button", name="Count them").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Count them").wait_for()
        page.goto("about:blank")


def test_it_is_dark_where_the_system_is(visit: Visits, model_url: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    dark, light = (visit(model_url, color_scheme=scheme) for scheme in ("dark", "light"))
    assert max(dark.evaluate(ground)) < 40
    assert min(light.evaluate(ground)) > 220
    dark.get_by_role("button", name="Light").click()
    until(dark, f"Math.min(...{ground}) > 220")


def test_the_token_leaves_the_address_and_outlives_a_reload(visit: Visits, model_url: str) -> None:
    page = visit(at(model_url, "layout"))
    token = model_url.partition("#t=")[2]
    assert token not in page.url
    page.reload()
    page.wait_for_selector("canvas")
    assert page.get_by_role("button", name="Layout").get_attribute("aria-current") == "page"


def test_without_the_token_it_says_what_to_open(visit: Visits, browser: Any, model_url: str) -> None:
    context = browser.new_context()
    page = context.new_page()  # not by `visit`: the browser itself reports each answer of 403
    page.goto(model_url.partition("#")[0] + "#t=wrong")
    page.get_by_role("alert").wait_for()
    assert "wb view" in page.get_by_role("alert").inner_text()
    context.close()


def test_two_tabs_show_what_each_was_asked(visit: Visits, model_url: str) -> None:
    one, two = visit(at(model_url, "layout")), visit(at(model_url, "tensors"))
    assert one.get_by_role("button", name="Layout").get_attribute("aria-current") == "page"
    assert two.get_by_role("button", name="Tensors").get_attribute("aria-current") == "page"
    one.get_by_role("button", name="Summary").click()
    settled(one)
    assert two.locator("[role=treegrid]").count() == 1


def test_back_leads_to_the_panel_before(visit: Visits, model_url: str) -> None:
    page = visit(model_url)
    page.get_by_role("button", name="Layout").click()
    page.wait_for_selector("canvas")
    page.go_back()
    page.wait_for_selector(".figures")


@pytest.fixture(scope="module")
def exported(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "page.html"
    wb.export_view(models / "q4.gguf", path)
    return path


@pytest.mark.parametrize("panel", ["summary", "tensors", "layout", "numbers", "architecture"])
def test_an_exported_page_works_from_disk(visit: Visits, exported: Path, panel: str) -> None:
    page = settled(visit(f"{exported.as_uri()}#panel={panel}"))
    assert page.get_by_role("heading", level=1).inner_text() == "q4.gguf"
    assert page.locator(".problem").count() == 0
    assert page.locator(SHOWN[panel]).count() > 0


def test_an_exported_page_says_what_it_lacks(visit: Visits, exported: Path) -> None:
    """And has no panels and buttons for it."""
    page = settled(visit(f"{exported.as_uri()}#panel=layout"))
    assert "wb view shows each byte" in page.locator("footer").inner_text()
    assert page.get_by_role("button", name="microscope").count() == 0
    page.get_by_role("button", name="Numbers").click()
    assert settled(page).get_by_label("Statistic").locator("option").count() == 3
    assert page.locator("main .card").count() == 1


def test_an_exported_page_has_the_values_that_were_asked_for(visit: Visits, models: Path, tmp_path: Path) -> None:
    wb.export_view(models / "f16.gguf", tmp_path / "page.html", models / "q4.gguf", values=True)
    url = (tmp_path / "page.html").as_uri()
    page = settled(visit(f"{url}#panel=numbers"))
    page.wait_for_selector(".u-wrap canvas")
    page.get_by_label("Statistic").select_option("rms")
    settled(page)
    assert page.locator(".problem").count() == 0
    assert page.locator(".heat td.n").count() == 2 * len(wb.inspect(models / "q4.gguf").tensors)
    page.get_by_role("button", name="Differences").click()
    page.wait_for_selector(".changes")


def test_an_exported_page_of_hostile_names(visit: Visits, models: Path, tmp_path: Path) -> None:
    wb.export_view(models / "hostile.safetensors", tmp_path / "page.html")
    page = settled(visit(f"{(tmp_path / 'page.html').as_uri()}#panel=tensors"))
    assert page.evaluate("window.pwned") is None
    assert "</script>" in page.locator(".rows").inner_text()


def test_a_notebook_shows_the_page(visit: Visits, models: Path, tmp_path: Path) -> None:
    from weighbridge.page.data import PageData
    from weighbridge.page.export import notebook_html

    with PageData(models / "q4.gguf") as data:
        text = notebook_html(data)
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{text}", "utf-8")
    page = visit((tmp_path / "notebook.html").as_uri(), wait="iframe")
    frame = page.frame_locator("iframe")
    frame.get_by_role("button", name="Layout").click()
    frame.locator("canvas").wait_for()


@pytest.fixture(scope="module")
def pair_url(models: Path) -> Iterator[str]:
    yield from serving(models / "f16.gguf", models / "q4.gguf")


def test_histograms_of_two_models_are_laid_over_each_other(visit: Visits, models: Path, pair_url: str) -> None:
    """Both as shares of all values, on the edges of both; with a legend, and the same colours from either side."""
    name = "blk.1.ffn_down.weight"
    numbers = [[e.name for e in wb.inspect(models / f).tensors].index(name) for f in ("f16.gguf", "q4.gguf")]
    for model, number in enumerate(numbers):
        page = settled(visit(at(pair_url, "numbers", model=model, tensor=number)))
        page.wait_for_selector(".u-wrap canvas")
        page.get_by_text("as shares of each model").wait_for()
        legend = {row.inner_text(): row.locator(".dot").evaluate("e => e.style.background")
                  for row in page.locator(".tools .keyed > span").all()}  # fmt: skip
        assert legend == {"A f16.gguf": "var(--c1)", "B q4.gguf": "var(--c2)"}
        page.get_by_text("The histogram as a table").click()
        for side in "AB":
            cells = page.get_by_label(f"Histogram of {side}").locator("td.n").all_inner_texts()
            assert sum(int(text.replace(",", "")) for text in cells) == 512 * 256
        drawn = page.locator(".u-wrap canvas").evaluate(
            """canvas => { const copy = document.createElement('canvas');
            copy.width = canvas.width;
            const context = copy.getContext('2d', { willReadFrequently: true });  // chromium warns of reading the other
            context.drawImage(canvas, 0, -Math.floor(canvas.height / 2));
            return new Set(new Uint32Array(context.getImageData(0, 0, copy.width, 1).data.buffer)).size }"""
        )
        assert drawn > 3  # the ground, either alone, both


def test_two_models_are_shown_one_above_the_other(visit: Visits, pair_url: str) -> None:
    page = settled(visit(at(pair_url, "layout")))
    assert page.locator("canvas").count() == 2
    moved = page.locator("section", has_text="What moved").locator("tbody tr").count()
    assert moved > 0
    page.get_by_role("button", name="B", exact=True).click()
    page.get_by_role("button", name="Tensors").click()
    page.wait_for_selector(ROWS)
    assert "Q4_K" in page.locator(".rows").inner_text()


def test_steps_of_a_pickle_are_walked(visit: Visits, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(2, 3)}, tmp_path / "model.pt")
    with visit.served(tmp_path / "model.pt") as url:
        page = settled(visit(at(url, "microscope")))
        assert page.locator(".steps tbody tr").count() == wb.explain(tmp_path / "model.pt").pickles[0].steps
        page.locator(".steps").focus()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        until(page, "document.querySelector('.meaning h3').textContent.startsWith('Step 3')")


def test_stack_and_memo_are_shown_forward_and_back(visit: Visits, tmp_path: Path) -> None:
    """After the step that fills the list, the memo shows it filled; a step back, empty again."""
    (tmp_path / "model.pkl").write_bytes(
        pickle.dumps([1, "x"], 2)
    )  # PROTO EMPTY_LIST BINPUT MARK 1 'x' BINPUT APPENDS STOP
    with visit.served(tmp_path / "model.pkl") as url:
        page = settled(visit(at(url, "microscope", mode="pickle")))
        memo = page.get_by_role("region", name="Memo").locator("tr")
        stack = page.locator(".pile li")
        forward = page.get_by_role("button", name="Next step")
        for _ in range(7):
            forward.click()
        assert (memo.all_inner_texts(), stack.all_inner_texts()) == (
            ["1\t'x'", "0\tlist of 2\n, by this step"],
            ["list of 2"],
        )
        page.get_by_role("button", name="Previous step").click()
        assert memo.all_inner_texts() == ["1\t'x'\n, by this step", "0\tlist of 0"]
        assert stack.all_inner_texts() == ["'x'", "1", "— mark —", "list of 0"]


def test_differences_are_those_of_diff(visit: Visits, models: Path, pair_url: str) -> None:
    page = settled(visit(at(pair_url, "diff")))
    report = wb.diff(models / "f16.gguf", models / "q4.gguf")
    figures = page.locator(".figures").inner_text().split("\n")
    assert [figures[i : i + 2] for i in range(0, len(figures), 2)] == [
        [str(n), {"values": "retyped, changed", "equal": "the same"}[kind]] for kind, n in report.counts.items() if n
    ]
    worst = page.locator(".changes .rows [role=row]").first.locator("[role=cell]").all_inner_texts()
    assert worst[0] == report.tensors[0].name
    assert report.tensors[0].nmse is not None
    assert worst[5] == f"{-10 * np.log10(report.tensors[0].nmse):.1f} dB"
    errors = page.locator("section", has_text="Errors by layer and role")
    assert errors.locator(".heat td.n").count() == sum(change.snr is not None for change in report.tensors)
    layers = errors.get_by_role("region", name="Layers that lost most").locator("tbody tr").all_inner_texts()
    assert [row.split()[0] for row in layers] == [str(row.layer) for row in report.layers]


def test_what_else_differs_stands_side_by_side(visit: Visits, tmp_path: Path) -> None:
    """A renamed tensor, a retyped one, both templates line by line."""
    from safetensors.numpy import save_file

    values = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float16)
    for side, tensors in (
        ("a", {"old": values, "cast": values[:2], "same": values[:1]}),
        ("b", {"new": values, "cast": values[:2].astype(np.float32), "same": values[:1]}),
    ):
        (tmp_path / side).mkdir()
        save_file(tensors, tmp_path / side / "model.safetensors")
        (tmp_path / side / "config.json").write_text('{"model_type": "none"}')
        (tmp_path / side / "chat_template.jinja").write_text(f"{{{{ messages }}}}\n</script>{side}\nend\n")
    with visit.served(tmp_path / "a", tmp_path / "b") as url:
        page = settled(visit(at(url, "diff")))
        rows = [
            row.locator("[role=cell]").all_inner_texts()[:2] for row in page.locator(".changes .rows [role=row]").all()
        ]
        assert [(" ".join(name.split()), kind) for name, kind in rows] == [
            ("old → new", "renamed"),
            ("cast", "retyped"),
        ]
        template = page.get_by_role("region", name="Chat templates side by side")
        assert template.locator("tbody tr").count() == 3
        differ = template.locator("td.differs").all_inner_texts()
        assert ["</script>a" in differ[0], "</script>b" in differ[1], len(differ)] == [True, True, 2]


def test_the_cache_of_a_token_is_that_of_the_formula(visit: Visits, model_url: str) -> None:
    """Keys and values of 2 heads of 64 numbers in 16 bits, in each of 3 layers."""
    page = settled(visit(at(model_url, "architecture")))
    shown = page.locator("section", has_text="Cache of keys and values").locator(".figures").inner_text().split("\n")
    each = 2 * 2 * 64 * 2 * 3
    assert shown == [f"{each / 1000:.2f} kB", "per token of context", f"{each * 2048 / 1e6:.2f} MB", "for 2,048 tokens"]


def test_bits_per_weight_by_layer_are_those_of_the_types(visit: Visits, models: Path, model_url: str) -> None:
    page = settled(visit(at(model_url, "numbers")))
    shown = sorted(page.locator(".heat td.n").all_inner_texts())
    tensors = wb.inspect(models / "q4.gguf").tensors
    assert shown == sorted(f"{t.nbytes * 8 / t.parameters:.2f}" for t in tensors)


TEMPLATE = (
    "{% for m in messages %}<|im|>{{ m.role }}\n{{ m.content }}{{ m.thinking }}{% endfor %}"
    "{% if tools %}{{ 'a' * 10**10 }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A file with three tokens, and a template that needs 10 GB where there are tools."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("chat") / "chat.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<|im|>", "hello\u202e", "</script>"])
    writer.add_token_types([3, 1, 1])
    writer.add_token_merges([])
    writer.add_chat_template(TEMPLATE)
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    yield from serving(path)


def test_a_template_is_rendered_and_one_that_eats_memory_is_stopped(visit: Visits, chat_url: str) -> None:
    pytest.importorskip("jinja2")
    page = settled(visit(at(chat_url, "tokenizer")))
    page.wait_for_selector(".rendered")
    assert page.get_by_label("Rendered template").inner_text() == "<|im|>user\nWhat is the capital of France?"
    assert page.get_by_label("Rendered template").locator(".token").all_inner_texts() == ["<|im|>"]
    page.get_by_role("button", name="tools").click()
    page.get_by_text("It took too much memory.").first.wait_for()


def test_the_rendering_of_transformers_stands_beside_ours(visit: Visits, chat_url: str) -> None:
    pytest.importorskip("transformers")
    page = settled(visit(at(chat_url, "tokenizer")))
    page.get_by_text("the same", exact=True).wait_for()
    ours, theirs = (page.get_by_label(name).inner_text() for name in ("Rendered template", "Rendered by transformers"))
    assert ours == theirs == "<|im|>user\nWhat is the capital of France?"
    page.get_by_role("button", name="thinking", exact=True).click()
    page.get_by_text("1 line differs").wait_for()
    page.get_by_text("Line by line").click()
    rows = page.get_by_role("region", name="Both renderings side by side").locator("td.differs").all_inner_texts()
    assert "Half of a dozen" in rows[-1]


def test_tokens_are_found(visit: Visits, chat_url: str) -> None:
    page = settled(visit(at(chat_url, "tokenizer")))
    assert page.locator("section", has_text="Special tokens").last.locator("tbody .token").all_inner_texts() == [
        "<|im|>"
    ]
    page.get_by_label("Search tokens").fill("hell")
    page.locator("section", has_text="Search").locator("tbody th", has_text="hello\\u202e").wait_for()


@pytest.mark.parametrize("tensor", ["token_embd.weight", "output_norm.weight"])
def test_statistics_are_those_of_numpy(visit: Visits, models: Path, model_url: str, tensor: str) -> None:
    with wb.open(models / "q4.gguf") as model:
        number = list(model).index(tensor)
        values = model[tensor].numpy("f32").astype(np.float64)
    page = settled(visit(at(model_url, "numbers", tensor=number)))
    page.wait_for_selector(".u-wrap canvas")
    text = page.locator("main section").first.locator(".facts").inner_text().split("\n")
    facts = {name: value.replace(",", "") for name, value in zip(text[::2], text[1::2], strict=True)}
    assert float(facts["Values"]) == values.size
    for name, wanted in (("Mean", values.mean()), ("Standard deviation", values.std()), ("Smallest", values.min()),
                         ("Largest", values.max())):  # fmt: skip
        assert np.isclose(float(facts[name]), wanted, rtol=1e-3, atol=1e-7), name
    page.get_by_text("The histogram as a table").click()
    counts = page.locator("[aria-label=Histogram] tbody td.n").all_inner_texts()
    assert sum(int(count.replace(",", "")) for count in counts) == values.size


def test_a_statistic_of_all_layers_is_read_when_asked(visit: Visits, models: Path, model_url: str) -> None:
    page = settled(visit(at(model_url, "numbers")))
    page.get_by_label("Statistic").select_option("absmax")
    page.get_by_role("button", name="Read them").click()
    page.wait_for_selector(".heat td.n")
    settled(page)
    with wb.open(models / "q4.gguf") as model:
        largest = max(float(np.abs(model[name].numpy("f32")).max()) for name in model)
    shown = [float(text) for text in page.locator(".heat td.n").all_inner_texts()]
    assert np.isclose(max(shown), largest, rtol=1e-2)


@pytest.mark.parametrize("panel", ["tensors", "layout", "microscope"])
def test_the_token_stays_out_of_the_address(visit: Visits, model_url: str, panel: str) -> None:
    """At the start, after each click, and when the address with it is opened in a tab that is there already."""
    token = model_url.partition("#t=")[2]
    page = settled(visit(model_url))
    assert token not in page.url
    for name in (panel.capitalize(), "Summary", panel.capitalize()):
        page.get_by_role("navigation").get_by_role("button", name=name).click()
        settled(page)
        assert token not in page.url
    page.goto(model_url)
    settled(page)
    until(page, "!location.hash.includes('t=')")
    page.go_back()
    assert token not in page.url


def test_a_server_that_has_ended_is_named(browser: Any, models: Path) -> None:
    """What a browser says of it ("Failed to fetch") helps nobody. The console of such a page isn't empty."""
    with running(models / "q4.gguf") as (url, process):
        page = browser.new_page()
        page.goto(url)
        settled(page)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        page.get_by_role("navigation").get_by_role("button", name="Architecture").click()
        page.get_by_text("the server has ended").first.wait_for()
        assert page.get_by_text("wb view again").count()
        assert not page.get_by_text("Failed to fetch").count()
        page.close()


def test_each_stepper_has_a_label(visit: Visits, model_url: str) -> None:
    page = settled(visit(at(model_url, "microscope", tensor=4)))
    labels = [text.split() for text in page.locator(".stepper").all_inner_texts()]
    assert [next(word for word in words if word.isalpha()) for words in labels] == ["tensor", "block"]
