"""The docs as a site: every page is in its menu once, and links out of the docs become text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.architecture import house
from tests.programs import load_program

DOCS = house.ROOT / "docs"
SETTINGS: dict[str, Any] = yaml.safe_load((house.ROOT / "mkdocs.yml").read_text("utf-8"))


def leaves(menu: Any) -> Iterator[str]:
    for item in menu.values() if isinstance(menu, dict) else menu:
        if isinstance(item, str):
            yield item
        else:
            yield from leaves(item)


def test_every_page_is_in_the_menu_once() -> None:
    assert sorted(leaves(SETTINGS["nav"])) == sorted(page.name for page in DOCS.glob("*.md"))


def test_the_menu_begins_with_what_a_newcomer_needs() -> None:
    first = next(iter(SETTINGS["nav"]))
    assert [*leaves(first)] == ["index.md", "installation.md", "why.md", "choosing.md", "troubleshooting.md"]


def test_a_broken_link_stops_the_build_and_nothing_comes_from_elsewhere() -> None:
    assert SETTINGS["strict"] is True
    assert set(SETTINGS["validation"]["links"].values()) == {"warn"}  # which strict makes an error
    assert SETTINGS["theme"]["font"] is False


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_the_site_stay_in_the_docs(page: Any) -> None:
    hook = load_program(DOCS / "site.py", "docs_site").on_page_markdown
    text = hook(page.read_text("utf-8"), page=None, config=None, files=None)
    assert re.findall(r"\]\(\.\./[^)]*\)", text) == []


def test_only_links_out_of_the_docs_become_text() -> None:
    hook = load_program(DOCS / "site.py", "docs_site").on_page_markdown
    assert hook("[a](../tests/a.py) [b](b.md#c) [d](https://e.org/../f)") == "a [b](b.md#c) [d](https://e.org/../f)"
