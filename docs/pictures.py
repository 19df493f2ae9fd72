"""Takes the pictures of docs/guide-view.md: `python docs/pictures.py ORIGINAL QUANTIZED [RELATIVE...]`.

ORIGINAL and QUANTIZED are forms of one model, the others are of its family. `--measured REPORT` adds saved reports and
a plan.
Needs the extra `view`, playwright and chromium.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import weighbridge as wb

FOLDER = Path(__file__).resolve().parent / "pictures"
WIDE = (1040, 660)


class Picture(NamedTuple):
    """`first`, `last`: the page's models, as a slice of all. `top`: the element that is scrolled to the top of the
    window (CSS); "": none."""

    first: int
    last: int | None
    place: str
    scheme: str = "light"
    top: str = ""
    size: tuple[int, int] = WIDE


PICTURES: dict[str, Picture] = {
    "view-summary.png": Picture(1, 2, "panel=summary"),
    "view-layout.png": Picture(0, 2, "panel=layout", "dark"),
    "view-block.png": Picture(1, 2, "panel=microscope&tensor=2&block=3"),
    "view-operators.png": Picture(1, 2, "panel=graph", top=".graph section:nth-of-type(2)", size=(1040, 900)),
    "view-weights.png": Picture(0, 2, "panel=microscope&tensor=9&block=900"),
    "view-differences.png": Picture(0, 2, "panel=diff", "dark", "section:has(.heat)", size=(1120, 660)),
    "view-family.png": Picture(0, None, "panel=lineage", size=(1040, 780)),
    "view-quality.png": Picture(0, None, "panel=quality", "dark", "section:has-text('Size against divergence')"),
    "view-types.png": Picture(0, None, "panel=quality", top="section:has(.types)"),
}


def take(browser: Any, url: str, picture: Picture, target: Path) -> None:
    """One picture, when the page reads nothing any more."""
    width, height = picture.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=picture.scheme)
    page = context.new_page()
    page.goto(f"{url}&{picture.place}")
    page.wait_for_selector("nav")
    while page.locator(".waiting").count() or page.get_by_text("Checking whether").count():
        page.wait_for_timeout(50)
    if picture.top:
        page.locator(picture.top).first.evaluate("element => element.scrollIntoView({ block: 'start' })")
    page.wait_for_timeout(200)
    page.screenshot(path=target)
    context.close()


def main(models: list[str], measured: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    flags = ["--headless", "--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, picture in PICTURES.items():
            first, *others = models[picture.first : picture.last]
            with wb.view(first, others, quality_report=measured if picture.last is None else (), browser=False) as view:
                take(browser, view.url, picture, FOLDER / name)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--measured", action="append", default=[])
    given = parser.parse_args()
    main(given.models, given.measured)
