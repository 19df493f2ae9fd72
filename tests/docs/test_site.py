"""The docs as a site: every page is in its menu once, and links out of the docs become text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytest
import yaml  # type: ignore[import-untyped]
from tests.architecture import house
from tests.programs import load_program

import weighbridge

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


def test_the_api_page_has_every_public_function_and_object() -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    for name in weighbridge.__all__:
        one = getattr(weighbridge, name)
        if inspect.isfunction(one):
            section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
            assert [p for p in inspect.signature(one).parameters if p not in section] == [], name
        elif inspect.isclass(one):
            assert f"\n### {name}\n" in page


def test_a_signature_is_written_as_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    written = load_program(DOCS / "python_api.py", "python_api")

    monkeypatch.setattr(written, "WIDTH", 60)

    def short(a: int, *, b: Literal["x", "y"] = "x") -> str:
        return b

    def long(self: Any, first: Sequence[str] | None = None, *rest: str, name: dict[str, int]) -> None: ...

    assert written.signature(short) == "(a: int, *, b: Literal['x', 'y'] = 'x') -> str"
    parts = ["(", "    first: Sequence[str] | None = None,", "    *rest: str,", "    name: dict[str, int],"]
    assert written.signature(long).splitlines() == [*parts, ") -> None"]
    assert written.described("Adds.\n\n    code") == "Adds.\n\n```text\ncode\n```"
    shown = written.described("Adds.\n\n    More.\n\n        code\n\nOptions:\n    a: Number.")
    assert shown == "Adds.\n\nMore.\n\n```text\ncode\n```\n\n- `a`: Number."
