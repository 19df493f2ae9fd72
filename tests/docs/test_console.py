"""The outputs that the guides show are those of their commands."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.architecture import house
from tests.programs import load_program


@pytest.fixture(scope="module")
def console() -> Any:
    return load_program(house.ROOT / "docs" / "console.py", "docs_console")


@pytest.mark.slow
def test_the_outputs_are_those_of_the_commands(console: ModuleType) -> None:
    assert console.stale_pages(write=False) == [], "run `make docs`"


def test_a_changed_output_is_seen(console: ModuleType, tmp_path: Path) -> None:
    page = "```console\n$ echo one\none\n$ echo two\nthree\n```\n"
    assert console.with_output(page, tmp_path) == page.replace("three", "two")
