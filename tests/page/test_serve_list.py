"""What a browser shows of `wb serve`: readable on a phone, by day and by night."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.remote.test_serve import models, serving

pytestmark = pytest.mark.costly

__all__ = ["models"]
_COLORS = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"


def luminance(page: Any, selector: str, name: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(n) / 255 for n in re.findall(r"\d+", page.evaluate(_COLORS, [selector, name]))[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_lists_are_readable(scheme: str, visit: Callable[..., Any], models: Path) -> None:
    for url in serving(models):
        for path in ("/", "/local/tiny-GGUF"):
            page = visit(url + path, wait="table", color_scheme=scheme, viewport={"width": 390, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            behind = luminance(page, "table", "backgroundColor")
            assert (behind > 0.5) == (scheme == "light")
            for selector in ("h1", "p", "pre", "a"):
                text = luminance(page, selector, "color")
                light, dark = max(text, behind), min(text, behind)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, selector
            page.context.close()
