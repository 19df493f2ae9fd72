"""docs/extending.md quotes the plug-ins in tests/toys: its code is theirs, and so are its numbers."""

from __future__ import annotations

import re

import pytest
from tests.architecture.house import ROOT
from tests.plugins import TOYS

PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
QUOTED = re.findall(r"\[(toy_\w+\.\w+)\]\([^)]*\): (\d+) lines", PAGE)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_every_toy_is_quoted() -> None:
    assert {name for name, _ in QUOTED} == {p.name for p in TOYS.iterdir() if p.name.startswith("toy_")}


@pytest.mark.parametrize(("name", "count"), QUOTED)
def test_the_page_counts_their_lines(name: str, count: str) -> None:
    assert len(lines((TOYS / name).read_text("utf-8"))) == int(count), "correct the number in docs/extending.md"


def test_the_page_shows_their_code() -> None:
    code = {line for path in TOYS.glob("toy_*") for line in lines(path.read_text("utf-8"))}
    tests = "".join(p.read_text("utf-8") for p in (TOYS.parent / "plugins.py", *TOYS.parent.glob("conformance/*.py")))
    for block in re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL):
        for line in lines(block):
            entry = line.startswith("[project.entry-points") or line.partition(" = ")[2].strip('"') in tests
            assert line in code or entry, line
