"""Code stays small enough to be read: functions, files, and the median function."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from tests.architecture import house

MAX_FUNCTION, MAX_FILE, MEDIAN_FUNCTION, P90_FUNCTION = 60, 500, 10, 30


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_size_of_a_file_and_its_functions(path: Path) -> None:
    assert path.read_text("utf-8").count("\n") <= MAX_FILE
    assert [f for f in house.functions(path) if f.lines > MAX_FUNCTION] == []


def test_the_median_function_is_short() -> None:
    lines = sorted(f.lines for path in house.modules() for f in house.functions(path))
    assert statistics.median(lines) <= MEDIAN_FUNCTION
    assert lines[int(len(lines) * 0.9)] <= P90_FUNCTION


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_every_module_says_its_strategy(path: Path) -> None:
    """A docstring on top of each file that holds code."""
    import ast

    module = house.tree(path)
    if module.body:
        assert ast.get_docstring(module), f"{house.short(path)} has no docstring"


@pytest.mark.parametrize("path", house.modules(), ids=house.short)
def test_annotations_are_not_evaluated(path: Path) -> None:
    text = path.read_text("utf-8")
    code = [line for line in house.tree(path).body if not _is_docstring(line)]
    assert not code or "from __future__ import annotations" in text


def _is_docstring(node: object) -> bool:
    import ast

    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
