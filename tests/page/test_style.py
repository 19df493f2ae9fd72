"""The page's styles: contrast and colours by arithmetic, one scale of sizes, and paper."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from tests.page.conftest import Visits
from tests.page.test_browser import at, settled

from weighbridge.page.assemble import STATIC

pytestmark = pytest.mark.costly

STYLES = "\n".join((STATIC / name).read_text("utf-8") for name in ("style.css", "panels.css"))
SCHEMES = ("light", "dark")
COLORS = [f"c{n}" for n in range(1, 9)]
#: Texts and what they stand on.
TEXTS = [("ink", "paper"), ("ink", "card"), ("ink", "sunk"), ("ink", "tint"), ("ink", "hover"), ("quiet", "paper"),
         ("quiet", "card"), ("quiet", "sunk"), ("quiet", "hover"), ("accent", "card"), ("accent", "tint"),
         ("accent", "paper"), ("bad", "card"), ("good", "card"), ("good", "sunk"), ("warn", "card"),
         ("warn", "sunk")]  # fmt: skip
#: What a dichromat sees of linear red, green and blue: Machado, Oliveira and Fernandes, "A Physiologically-based Model
#: for Simulation of Color Vision Deficiency", 2009, severity 1.
VISIONS = {
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(name: str, scheme: str) -> np.ndarray:
    """The linear red, green and blue of a custom property."""
    value = re.search(rf"--{name}: (?:light-dark\((#\w+), (#\w+)\)|(#\w+));", STYLES)
    assert value is not None, name
    text = value[3] or value[1 + SCHEMES.index(scheme)]
    channels = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str, scheme: str) -> float:
    low, high = sorted(float(_XYZ[1] @ linear(name, scheme)) for name in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(color: np.ndarray) -> np.ndarray:
    ratios = _XYZ @ np.clip(color, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("text", "ground"), TEXTS)
def test_texts_can_be_read(text: str, ground: str, scheme: str) -> None:
    assert contrast(text, ground, scheme) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("color", COLORS)
def test_colors_of_drawings_stand_out_from_a_card(color: str, scheme: str) -> None:
    assert contrast(color, "card", scheme) >= 3


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("vision", VISIONS)
def test_colors_stay_apart_for_the_color_blind(vision: str, scheme: str) -> None:
    """Differences of CIE 1976; 10 is seen at a glance."""
    seen = {name: lab(np.array(VISIONS[vision]) @ linear(name, scheme)) for name in COLORS}
    nearest = min((float(np.linalg.norm(seen[a] - seen[b])), a, b) for a, b in combinations(COLORS, 2))
    assert nearest[0] > 18, nearest


def test_sizes_and_spaces_are_those_of_the_scale() -> None:
    """Text, gaps, paddings, margins and corners are custom properties; only hairlines are pixels."""
    rule = re.compile(r"(?<![-\w])(font-size|font|gap|padding[a-z-]*|margin[a-z-]*|border-radius): ([^;{}]*)")
    stray = [m[0] for m in rule.finditer(STYLES) for n in re.findall(r"([\d.]+)px", m[2]) if float(n) > 1]
    assert stray == []


def test_every_property_of_the_scale_is_used() -> None:
    declared = set(re.findall(r"^\s*(?:/\*.*\*/\s*)?(--[a-z]\w*):", STYLES, re.MULTILINE)) | set(
        re.findall(r"(--[trs]\d):", STYLES)
    )
    scripts = "".join(path.read_text("utf-8") for path in STATIC.rglob("*.js"))
    assert [
        name for name in sorted(declared) if f"var({name}" not in STYLES + scripts and f'"{name}"' not in scripts
    ] == []


def test_paper_shows_all_in_black_on_white(visit: Visits, model_url: str) -> None:
    """No controls, nothing cut off, light even if the screen is dark."""
    page: Any = settled(visit(at(model_url, "numbers"), color_scheme="dark"))
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.get_by_role("navigation").is_visible()
    assert page.locator(".choice:visible").count() == 0
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollHeight > e.clientHeight + 1).length"
    )
    assert cut == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_no_size_is_cut_off(visit: Visits, model_url: str, width: int) -> None:
    page: Any = settled(visit(at(model_url, "tensors"), viewport={"width": width, "height": 844}))
    cut = page.locator(".rows [role=row] > .n").evaluate_all(
        "all => all.filter(e => getComputedStyle(e).visibility === 'visible' && e.scrollWidth > e.clientWidth)"
        ".map(e => e.innerText)"
    )
    assert cut == []


def test_units_are_below_one_another(visit: Visits, model_url: str) -> None:
    """Numbers of a column end at one place, whatever their units."""
    page: Any = settled(visit(at(model_url, "tensors")))
    ends = page.locator(".rows [role=row] > :nth-child(4) .unit").evaluate_all(
        "all => all.map(e => Math.round(e.getBoundingClientRect().left))"
    )
    assert len(ends) > 10
    assert max(ends) - min(ends) <= 1
