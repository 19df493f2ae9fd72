"""Code stays small enough to be read: functions, files, folders, and the median function."""

from __future__ import annotations

import ast
import statistics
from collections import Counter

from tests.architecture import house

MAX_FUNCTION, MAX_FILE, MEDIAN_FUNCTION, P90_FUNCTION = 60, 500, 7, 18
MAX_FOLDER = 14  # "about a dozen": files of Python that one sentence covers
# One file for each command, family or projector with rules of its own is the whole order of the first three.
LARGE_FOLDERS = {"cli/commands", "models/arch/rules", "models/arch/rules/projectors", "models"}


def test_files_are_short() -> None:
    lines = {house.short(p): p.read_text("utf-8").count("\n") for p in house.modules()}
    assert {name: n for name, n in lines.items() if n > MAX_FILE} == {}


def test_functions_are_short() -> None:
    assert [f for p in house.modules() for f in house.functions(p) if f.lines > MAX_FUNCTION] == []


def test_the_median_function_is_short() -> None:
    lines = sorted(f.lines for path in house.modules() for f in house.functions(path))
    assert statistics.median(lines) <= MEDIAN_FUNCTION
    assert lines[int(len(lines) * 0.9)] <= P90_FUNCTION


def test_folders_are_small() -> None:
    files = Counter(house.short(p).rpartition("/")[0] for p in house.modules() if p.name != "__init__.py")
    assert {folder: n for folder, n in files.items() if n > MAX_FOLDER and folder not in LARGE_FOLDERS} == {}


def test_every_module_has_a_docstring() -> None:
    code = [p for p in house.modules() if house.tree(p).body]
    assert [house.short(p) for p in code if not ast.get_docstring(house.tree(p))] == []


def test_annotations_are_not_evaluated() -> None:
    code = [p for p in house.modules() if any(not _is_docstring(node) for node in house.tree(p).body)]
    assert [house.short(p) for p in code if "from __future__ import annotations" not in p.read_text("utf-8")] == []


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
