"""Calls of `wb.` functions in code that is shown, and whether their signatures take them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import weighbridge


def faults(code: str, *, mention: bool = False) -> Iterator[str]:
    """Calls that would raise a TypeError, and names that aren't there. Code that isn't Python has neither. `mention`:
    within a sentence, where a call without arguments only names the function."""
    try:
        tree = ast.parse(textwrap.dedent(code))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _dotted(node.func)):
            try:
                _bind(name, node, partly=mention and not node.args)
            except (AttributeError, TypeError) as error:
                yield f"{ast.unparse(node)}: {error}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "weighbridge":
            module = __import__(node.module or "", fromlist=[alias.name for alias in node.names])
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            yield from (f"{node.module} has no {name}" for name in missing)


def _dotted(node: ast.expr) -> str:
    """`wb.open` of a call of it; "" of any other."""
    text = ast.unparse(node)
    return text if re.fullmatch(r"(?:wb|weighbridge)(?:\.\w+)+", text) else ""


def _resolve(name: str) -> Any:
    found: Any = weighbridge
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def _bind(name: str, call: ast.Call, *, partly: bool) -> None:
    function = _resolve(name)
    if any(isinstance(a, ast.Starred) or (isinstance(a, ast.Constant) and a.value is ...) for a in call.args):
        return  # f(...) stands for any arguments
    signature = inspect.signature(function)
    keywords = {k.arg: None for k in call.keywords if k.arg}
    (signature.bind_partial if partly else signature.bind)(*call.args, **keywords)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            unpacked = _unpacked(name, function, parameter.name)
            unknown = keywords.keys() - signature.parameters.keys() - (unpacked or keywords.keys())
            if unknown:
                raise TypeError(f"unknown keywords {sorted(unknown)}")


def _unpacked(name: str, function: Any, keywords: str) -> set[str] | None:
    """The names of `**options: Unpack[Keywords]`, or those of `wb.plan_NAME`, which gets them; None: any others."""
    hint = inspect.get_annotations(function)[keywords]
    if "Unpack" in hint:
        return set(typing.get_args(eval(hint, vars(inspect.getmodule(function))))[0].__annotations__)
    planner = getattr(weighbridge, f"plan_{name.rpartition('.')[2]}", None)
    return set(inspect.signature(planner).parameters) if planner else None
