"""The walks of docs/architecture.md lead through code that exists."""

from __future__ import annotations

import importlib
import re

import pytest
from tests.architecture.house import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
WALKS = PAGE.partition("## Three walks")[2].partition("\n## ")[0]
STOPS = re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", WALKS)


def test_a_walk_is_short() -> None:
    for walk in WALKS.split("**")[1:]:
        assert len(re.findall(r"^\| \d+ \|", walk, re.MULTILINE)) < 25
    assert len(STOPS) >= 50


@pytest.mark.parametrize(("file", "name"), STOPS)
def test_a_stop_exists(file: str, name: str) -> None:
    found = importlib.import_module("weighbridge." + file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)
