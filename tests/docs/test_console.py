"""The outputs that the guides show are those of their commands."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.architecture import house


@pytest.fixture(scope="module")
def console() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_console", house.ROOT / "docs" / "console.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_outputs_are_those_of_the_commands(console: ModuleType) -> None:
    assert console.stale_pages(write=False) == [], "run `make docs`"


def test_a_changed_output_is_seen(console: ModuleType, tmp_path: Path) -> None:
    page = "```console\n$ echo one\none\n$ echo two\nthree\n```\n"
    assert console.with_output(page, tmp_path) == page.replace("three", "two")
