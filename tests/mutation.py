"""Seeds faults and asks whether a check turns red: a constant or a table with another value (`Fault`), or a guard (an
`if` that ends in a raise or a `fail`) taken out (`guards`, `without`).

Without a guard, the code of every function object compiled from the guard's function is replaced, so that tables,
closures and classes that hold it see the fault; then it is put back.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

Check = Callable[[], object]


class Fault(NamedTuple):
    """A wrong value of `where.name`, and the check that must see it."""

    where: Any
    name: str
    wrong: Any
    check: Check


def assert_seen(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """The check passes, and fails once the fault is in."""
    fault.check()
    patch.setattr(fault.where, fault.name, fault.wrong)
    assert red(fault.check)


def red(check: Check) -> bool:
    """Whether a check fails, in whatever way."""
    try:
        check()
    except BaseException as error:  # pytest's own failures are no Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        return True
    return False


def assert_needed(module: ModuleType, guard: str, checks: Iterable[Check]) -> None:
    """Some check fails without the guard."""
    with without(module, guard):
        assert any(map(red, checks)), "no case needs it"


def cases(test: Callable[..., object]) -> Iterator[Check]:
    """The calls that a test with one table of parameters makes."""
    (mark,) = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
    names = mark.args[0] if not isinstance(mark.args[0], str) else mark.args[0].split(",")
    for row in mark.args[1]:
        values = row.values if hasattr(row, "values") and not isinstance(row, dict) else row
        values = values if len(names) > 1 else (row,)
        yield lambda values=values: test(*values)  # type: ignore[misc]


def guards(*modules: ModuleType) -> list[Any]:
    """A parameter (module, guard) for each guard of the modules."""
    return [
        pytest.param(module, label, id=f"{module.__name__.rpartition('.')[2]}.{label}")
        for module in modules
        for label in _guards(_tree(module))
    ]


@contextmanager
def without(module: ModuleType, guard: str) -> Iterator[None]:
    """`module` as if this guard were never true."""
    tree = _tree(module)
    node = _guards(tree)[guard]
    node.test = ast.copy_location(ast.BoolOp(ast.And(), [ast.Constant(False), node.test]), node.test)
    ast.fix_missing_locations(tree)
    changed = {(c.co_qualname, c.co_firstlineno): c for c in _codes(compile(tree, str(module.__file__), "exec"))}
    saved = [(f, f.__code__) for f in _functions(str(module.__file__))]
    try:
        for function, code in saved:
            new = changed.get((code.co_qualname, code.co_firstlineno))
            if new is not None and new.co_code != code.co_code:
                function.__code__ = new
        yield
    finally:
        for function, code in saved:
            function.__code__ = code


@cache
def _functions(path: str) -> list[FunctionType]:
    """The functions compiled from a file. A search of all objects, so it's made once: a fault that is put into too few
    functions isn't seen, which fails the test."""
    gc.unfreeze()  # get_objects leaves out what conftest.py froze
    found = [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == path]
    gc.freeze()
    return found


def _tree(module: ModuleType) -> ast.Module:
    assert module.__file__ is not None
    return ast.parse(Path(module.__file__).read_text("utf-8"), module.__file__)


def _guards(tree: ast.Module) -> dict[str, ast.If]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _ends(node.body[-1])]
    return {f"{node.lineno}: {ast.unparse(node.test)}": node for node in nodes}


def _ends(node: ast.stmt) -> bool:
    """Raises, calls something's `fail`, or returns an `UnexpectedOpcode`."""
    if isinstance(node, ast.Raise):
        return True
    call = node.value if isinstance(node, ast.Expr | ast.Return) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("fail", "UnexpectedOpcode")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)
