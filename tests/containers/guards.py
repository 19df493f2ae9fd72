"""Seeds faults in a module's own source: each of its guards (an `if` that ends in a raise) is taken out in turn.

The mutated source runs in the module's own namespace, so that whoever holds the module sees it; then all is put back.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

Check = Callable[[], object]


def _is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise)


def _tree(module: ModuleType) -> ast.Module:
    assert module.__file__ is not None
    return ast.parse(Path(module.__file__).read_text("utf-8"), module.__file__)


def guards(module: ModuleType) -> list[str]:
    """The condition of each guard, after the function that it stands in."""
    found = []
    for function in ast.walk(_tree(module)):
        if isinstance(function, ast.FunctionDef):
            inside = (n for n in ast.walk(function) if _is_guard(n))
            found += [f"{function.name}: {ast.unparse(n.test)}" for n in inside if isinstance(n, ast.If)]
    return found


@contextmanager
def without(module: ModuleType, guard: str) -> Iterator[None]:
    """`module` as if this guard were never true."""
    tree, (name, _, test), hits = _tree(module), guard.partition(": "), 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name != name:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.If) and _is_guard(node) and ast.unparse(node.test) == test:
                node.test, hits = ast.copy_location(ast.Constant(False), node.test), hits + 1
    assert hits == 1, f"{hits} guards are {guard!r}"
    saved: dict[str, Any] = dict(vars(module))
    try:
        exec(compile(tree, str(module.__file__), "exec"), vars(module))
        yield
    finally:
        vars(module).clear()
        vars(module).update(saved)


def cases(test: Callable[..., object]) -> Iterator[Check]:
    """The calls that a test with one table of parameters makes."""
    (mark,) = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
    names = mark.args[0] if not isinstance(mark.args[0], str) else mark.args[0].split(",")
    for row in mark.args[1]:
        values = row.values if hasattr(row, "values") and not isinstance(row, dict) else row
        values = values if len(names) > 1 else (row,)
        yield lambda values=values: test(*values)  # type: ignore[misc]


def red(check: Check) -> bool:
    """Whether a check fails, in whatever way."""
    try:
        check()
    except BaseException as error:  # pytest's own failures are no Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        return True
    return False
