"""Takes the pictures of docs/guide-view.md: `python docs/pictures.py ORIGINAL QUANTIZED`, two forms of one model. Needs
the extra `view`, playwright and chromium."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import weighbridge as wb

FOLDER = Path(__file__).resolve().parent / "pictures"
WIDE = (1040, 660)
#: File -> what is in it: of the pair or of the second model alone, the place, the size of the window, the colours, and
#: what stands at the top (CSS; "" for the page's own).
PICTURES: dict[str, tuple[bool, str, tuple[int, int], str, str]] = {
    "view-summary.png": (False, "panel=summary", WIDE, "light", ""),
    "view-layout.png": (True, "panel=layout", WIDE, "dark", ""),
    "view-block.png": (False, "panel=microscope&tensor=2&block=3", WIDE, "light", ""),
    "view-differences.png": (True, "panel=diff", WIDE, "dark", "section:has(.heat)"),
}


def take(browser: Any, url: str, place: str, size: tuple[int, int], scheme: str, top: str, target: Path) -> None:
    """One picture, when the page reads nothing any more."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{url}&{place}")
    page.wait_for_selector("nav")
    while page.locator(".waiting").count():
        page.wait_for_timeout(50)
    if top:
        page.locator(top).evaluate("element => element.scrollIntoView({ block: 'start' })")
        page.wait_for_timeout(200)
    page.screenshot(path=target)
    context.close()


def main(original: str, quantized: str) -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    flags = ["--headless", "--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, (pair, place, size, scheme, top) in PICTURES.items():
            models = (original, quantized) if pair else (quantized,)
            with wb.view(*models, browser=False) as view:
                take(browser, view.url, place, size, scheme, top, FOLDER / name)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
