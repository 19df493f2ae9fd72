"""The programs of the benchmarks find what they measure: else a move shows at the next `make bench` alone."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from tests.architecture import house

PROGRAMS = sorted((house.ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    found = 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weighbridge"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                found += 1
    if path.name in ("unpacking.py", "kernels.py", "tasks.py"):
        assert found
