"""The verdict on top of the page, in Python and in chromium: for every kind of file, at both widths, in both themes."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.page.conftest import Visits, running, serving, until, violations

import weighbridge as wb
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.plain import plain
from weighbridge.page.verdict import _RANKS, Level, PageVerdict, verdict
from weighbridge.reports.scan.model import ScanVerdict

pytestmark = pytest.mark.costly

WIDTHS, THEMES = (1280, 390), ("light", "dark")
#: The kinds of files: the level of the first banner (None: no banner), and words of it.
KINDS = {
    "fine.gguf": (None, ""),
    "evil.pkl": (Level.DANGER, "Loading evil.pkl runs posix.system('true'). Don't load it."),
    "unknown.pkl": (
        Level.UNPROVEN,
        "Loading unknown.pkl runs nobody.knows('x'). Load it only if you trust its author.",
    ),
    "cut.gguf": (Level.ERROR, "Broken: cut.gguf: the file ends inside its tensor data"),
    "refused.gguf": (Level.ERROR, "llama.cpp would refuse this model."),
}


def _call(module: str, name: str, argument: str) -> bytes:
    """A pickle of a list with a call in it."""
    return b"]c" + f"{module}\n{name}\n(V{argument}\ntRa.".encode()


@pytest.fixture(scope="module")
def kinds(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    fine = (models / "q4.gguf").read_bytes()
    (folder / "fine.gguf").write_bytes(fine)
    (folder / "cut.gguf").write_bytes(fine[:-5000])
    # a name of the same length that no table of llama.cpp has
    (folder / "refused.gguf").write_bytes(fine.replace(b"blk.1.attn_norm.weight", b"blk.1.attn_nrom.weight"))
    (folder / "evil.pkl").write_bytes(_call("posix", "system", "true"))
    (folder / "unknown.pkl").write_bytes(_call("nobody", "knows", "x"))
    return folder


@pytest.fixture(scope="module")
def urls(kinds: Path) -> Iterator[dict[str, str]]:
    servers = {kind: serving(kinds / kind) for kind in KINDS}
    yield {kind: next(server) for kind, server in servers.items()}
    for server in servers.values():
        next(server, None)


def judged(visit: Visits, url: str, panel: str = "summary", **settings: Any) -> Any:
    page = visit(f"{url}&panel={panel}", **settings)
    until(page, "document.querySelector('ul.answers') && !document.querySelector('.waiting')")
    return page


def of(path: Path) -> PageVerdict:
    return verdict(str(path), wb.verify(path), wb.scan(path))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_commands(kinds: Path, kind: str) -> None:
    path = kinds / kind
    verified, scanned, found = wb.verify(path), wb.scan(path), of(path)
    what, whole, safe, runs, fits = found.answers
    assert wb.identify(path).title in what.text
    assert (whole.level is Level.ERROR) == (verified.verdict == "failed")
    assert (safe.level is Level.OK) == (scanned.verdict == "data-only" and scanned.complete)
    assert (safe.level is Level.DANGER) == (scanned.verdict == "dangerous")
    refusals = {v.accepts for v in verified.verdicts}
    assert runs.level is (Level.ERROR if False in refusals else Level.OK if True in refusals else Level.UNCHECKED)
    try:
        report = wb.fit(path)
    except WeighbridgeError:
        assert fits.level is Level.UNCHECKED
        assert fits.why
        assert "not checked" in fits.text
        return
    assert fits.nbytes["needs"] == report.needs
    assert (fits.level is Level.OK) == bool(report)


@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_is_first(kinds: Path, kind: str) -> None:
    found = of(kinds / kind)
    for levels in ([f.level for f in found.findings], [b.level for b in found.banners], [r[0] for r in found.reports]):
        assert levels == sorted(levels, key=_RANKS.__getitem__)
    level, _ = KINDS[kind]
    assert (found.banners[0].level if found.banners else None) is level
    assert plain(found)["findings"] == plain(found.findings)


@pytest.mark.parametrize("bad", [v for v in ScanVerdict if v.rank > ScanVerdict.DATA_ONLY.rank])
def test_no_bad_verdict_of_a_scan_is_good(kinds: Path, bad: ScanVerdict) -> None:
    """Whatever else the reports hold."""
    path = kinds / "fine.gguf"
    scanned = replace(wb.scan(path), verdict=bad)
    found = verdict(str(path), wb.verify(path), scanned)
    assert found.answers[2].level in (Level.DANGER, Level.ERROR, Level.UNPROVEN)
    assert found.reports[0][1] == "scan"


def test_what_was_not_scanned_is_not_called_safe(kinds: Path) -> None:
    path = kinds / "fine.gguf"
    found = verdict(str(path), wb.verify(path), replace(wb.scan(path), complete=False))
    assert found.answers[2].level is Level.UNPROVEN
    assert [b.level for b in found.banners] == [Level.UNPROVEN]
    assert verdict(str(path), wb.verify(path), wb.scan(path)).banners == ()


@pytest.mark.parametrize("kind", KINDS)
def test_the_banner_is_over_everything(visit: Visits, urls: dict[str, str], kind: str) -> None:
    page = judged(visit, urls[kind], bypass_csp=True)
    for width, theme in product(WIDTHS, THEMES):
        page.set_viewport_size({"width": width, "height": 844})
        page.emulate_media(color_scheme=theme)
        until(page, f"document.documentElement.scrollWidth <= {width}")
        assert page.locator("ul.answers li").count() == 5
        _check_banner(page, *KINDS[kind])
        if width == WIDTHS[0]:
            assert violations(page) == [], theme


def _check_banner(page: Any, level: Level | None, words: str) -> None:
    banners = page.locator(".banner")
    if level is None:
        assert banners.count() == 0
        return
    assert words in banners.first.inner_text().replace("\n", " ")
    assert f"banner {level}" == banners.first.get_attribute("class")
    box, panels = banners.first.bounding_box(), page.locator("nav").bounding_box()
    assert box["y"] + box["height"] <= panels["y"]
    assert contrast(page, ".banner b") >= 4.5
    if level is Level.DANGER:
        colors = [background(page, s) for s in (".banner.danger", ".chip.danger", ".chip.warning, .chip.info")]
        assert colors[0] == colors[1] != colors[2]
        assert page.locator(".verdicts .chip.ok").count() == 0
        assert page.locator(".verdicts .chip").first.inner_text() == "scan: dangerous"


def test_every_panel_has_the_banner(visit: Visits, urls: dict[str, str]) -> None:
    page = judged(visit, urls["evil.pkl"])
    for panel in page.get_by_role("navigation").locator("li button").all():
        panel.click()
        until(page, "!document.querySelector('.waiting')")
        assert "runs posix.system('true')" in page.locator(".banner.danger").inner_text()
        assert page.locator("ul.answers").inner_text().count("not checked") >= 2


def test_the_banner_leads_to_the_step(visit: Visits, urls: dict[str, str]) -> None:
    """Which is the call, and is marked; the stepper opens there by itself, too."""
    page = judged(visit, urls["evil.pkl"])
    page.locator(".banner button").click()
    for shown in (page, judged(visit, urls["evil.pkl"], "microscope")):
        until(shown, "document.querySelector('.steps .picked.judged.danger')")
        assert "REDUCE" in shown.locator(".steps .picked").inner_text()
        assert "posix.system is called with 'true'" in shown.locator(".meaning").inner_text()
        assert shown.locator(".steps .judged").count() == 1


def test_steps_that_were_not_judged_are_not_marked(visit: Visits, tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps([1, "x"]))
    with visit.served(tmp_path / "x.pkl") as url:
        page = judged(visit, url, "microscope")
        until(page, "document.querySelector('.steps .picked')")
        assert "PROTO" in page.locator(".steps .picked").inner_text()
        assert page.locator(".steps .judged, .banner").count() == 0


def test_the_page_tells_when_its_server_has_ended(browser: Any, kinds: Path) -> None:
    visits = Visits(browser)
    with running(kinds / "fine.gguf") as (url, process):
        page = judged(visits, url)
        process.send_signal(signal.SIGINT)
        process.wait()
        page.get_by_role("button", name="Numbers").click()
        until(page, "document.querySelector('.banner.warning')")
        assert "The server has ended" in page.locator(".banner.warning").inner_text()
    visits.close()


def background(page: Any, selector: str) -> str:
    return str(page.locator(selector).first.evaluate("e => getComputedStyle(e).backgroundColor"))


def contrast(page: Any, selector: str) -> float:
    """The contrast of a text with its banner, as WCAG computes it from the pixels that a canvas mixes."""
    return float(
        page.locator(selector).first.evaluate(
            """element => {
              const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
              const mixed = (...colors) => { for (const c of colors) pen.fillStyle = c, pen.fillRect(0, 0, 1, 1);
                return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3); };
              const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
              const light = (rgb) => rgb.map((c) => linear(c / 255))
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
              const banner = element.closest(".banner");
              const [a, b] = [getComputedStyle(element).color, getComputedStyle(banner).backgroundColor]
                .map((c) => light(mixed(c))).sort((x, y) => y - x);
              return (a + 0.05) / (b + 0.05);
            }"""
        )
    )
