"""Seeds faults in functions as they stand: each guard (an `if` that ends in a raise or a `fail`) is taken out in turn.

The code of every function object that came of the guard's function is replaced, so that tables, closures and classes
that hold it see the fault; then it is put back.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType


def _ends(node: ast.stmt) -> bool:
    """Raises, calls something's `fail`, or returns an `UnexpectedOpcode`."""
    if isinstance(node, ast.Raise):
        return True
    call = node.value if isinstance(node, ast.Expr | ast.Return) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("fail", "UnexpectedOpcode")


def _guards(tree: ast.Module) -> Iterator[ast.If]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _ends(node.body[-1]):
            yield node


def _tree(module: ModuleType) -> ast.Module:
    assert module.__file__ is not None
    return ast.parse(Path(module.__file__).read_text("utf-8"), module.__file__)


def guards(module: ModuleType) -> list[str]:
    return [f"{node.lineno}: {ast.unparse(node.test)}" for node in _guards(_tree(module))]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


@contextmanager
def without(module: ModuleType, guard: str) -> Iterator[None]:
    """`module` as if this guard were never true."""
    tree = _tree(module)
    (node,) = [n for n in _guards(tree) if f"{n.lineno}: {ast.unparse(n.test)}" == guard]
    node.test = ast.copy_location(ast.BoolOp(ast.And(), [ast.Constant(False), node.test]), node.test)
    ast.fix_missing_locations(tree)
    changed = {(c.co_qualname, c.co_firstlineno): c for c in _codes(compile(tree, str(module.__file__), "exec"))}
    mine = [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == module.__file__]
    saved = [(f, f.__code__) for f in mine]
    try:
        for function, code in saved:
            new = changed.get((code.co_qualname, code.co_firstlineno))
            if new is not None and new.co_code != code.co_code:
                function.__code__ = new
        yield
    finally:
        for function, code in saved:
            function.__code__ = code
