"""Faults in a template's expressions: names that lead to Python internals, names that are assembled, and expressions
that block a renderer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from string import Formatter
from typing import Any, Final, NamedTuple

from jinja2 import nodes

from weighbridge.reports.scan.template.callables import BY_ATTRIBUTE
from weighbridge.reports.scan.template.values import (
    ANY,
    BEGUN,
    DATA,
    DERIVED,
    METHOD,
    OBJECT,
    SPACE,
    TEXT,
    Value,
    flattened,
    is_inner,
)


class Fault(NamedTuple):
    """A broken rule, the message, and the line (0 if unknown)."""

    rule: str
    message: str
    line: int


Faults = Iterator[Fault]
Values = Mapping[int, Value]

#: Names that only web frameworks provide, or that jinja2 provides beyond the functions that templates need.
FOREIGN: Final = frozenset(
    {"lipsum", "self", "url_for", "get_flashed_messages", "request", "session", "g", "config", "app", "environment",
     "caller_globals", "cycler", "joiner"}
)  # fmt: skip
_DUNDER: Final = re.compile(r"__[A-Za-z]\w*__")
_WIDE: Final = re.compile(r"%[-+ #0]*\d{6,}|[:<>^=]\d{6,}")
_TEXTS: Final = (("template/underscored-text", _DUNDER, "the text"), ("template/bomb", _WIDE, "a field of"))
_SEPARATORS: Final = re.compile(r"[.,]")  # `sort` takes several attributes
_STEP: Final = re.compile(r"[.\[]\s*(\w+)")
_LARGE: Final = 1_000_000
_REPEATED: Final = 10_000  # of text that is long already
_DOUBLINGS: Final = 20
_MANY: Final = 1 << 62


def check_attribute_name(name: str, line: int) -> Faults:
    if is_inner(name):
        yield Fault("template/underscored", f"attribute {name!r}", line)


def _attribute(node: nodes.Getattr, values: Values) -> Faults:
    yield from check_attribute_name(node.attr, node.lineno)
    if node.attr == "format":
        yield from _format(Value(values[id(node.node)].texts), node.lineno)


def _item(node: nodes.Getitem, values: Values) -> Faults:
    """`x[part]`, which for a text is the attribute of that name."""
    if isinstance(node.arg, nodes.Slice):
        return
    base, key = values[id(node.node)], values[id(node.arg)]
    yield from (Fault("template/underscored", f"item {n!r}", node.lineno) for n in key.constants if is_inner(n))
    if "format" in key.texts:
        yield from _format(Value(base.texts), node.lineno)
    if key.flags & (TEXT | ANY):
        yield Fault("template/built-name", "an item's name is assembled", node.lineno)
    elif key.flags & (DATA | DERIVED):
        special = base.flags & (DERIVED | METHOD | OBJECT | SPACE | ANY) or base.constants
        if special or (base.items and not base.mapping):
            yield Fault("template/unproven-name", "an item has an unknown name", node.lineno)


def _filter(node: nodes.Filter | nodes.Test, values: Values) -> Faults:
    if node.name == "attr":
        yield Fault("template/attr", "the filter `attr`", node.lineno)
    by_attribute = isinstance(node, nodes.Filter) and node.name in BY_ATTRIBUTE
    names = [values[id(a)] for at, a in enumerate(node.args) if by_attribute or (node.name == "join" and at)]
    names += [values[id(keyword)] for keyword in node.kwargs if by_attribute or keyword.key == "attribute"]
    names += [flattened([values[id(star)]]) for star in (node.dyn_args, node.dyn_kwargs) if star is not None]
    for name in names:
        yield from _looked_up(node.name, name, node.lineno)


def _looked_up(filter: str, name: Value, line: int) -> Faults:
    """Checks the argument of a filter that looks up the attribute it names."""
    for text in name.texts:
        if text == "attr":  # map('attr', ...)
            yield Fault("template/attr", "the filter `attr`, by its name", line)
        elif any(is_inner(step) for step in _SEPARATORS.split(text)):
            yield Fault("template/underscored", f"attribute {text!r}", line)
    if name.flags & (TEXT | BEGUN | ANY):  # a dot and another name may follow the beginning
        yield Fault("template/built-name", f"an attribute's name for `{filter}` is assembled", line)
    elif name.flags & (DATA | DERIVED):
        yield Fault("template/unproven-name", f"an attribute's name for `{filter}` is unknown", line)


def _format(text: Value, line: int) -> Faults:
    """Checks the text of a `format`, whose fields look up attributes and items."""
    for template in text.texts:
        try:
            parts = [part for _, name, spec, _ in Formatter().parse(template) for part in (name, spec) if part]
        except ValueError:
            parts = [template]
        steps = [step for part in parts for step in _STEP.findall(part)]
        yield from (Fault("template/underscored", f"a field with {step!r}", line) for step in steps if is_inner(step))
    if text.flags & (TEXT | BEGUN | ANY):
        yield Fault("template/built-name", "the text of a `format` is assembled", line)
    elif text.flags & (DATA | DERIVED):
        yield Fault("template/unproven-name", "the text of a `format` is unknown", line)


def _call(node: nodes.Call, values: Values) -> Faults:
    callee = node.node
    if isinstance(callee, nodes.Getattr | nodes.Getitem):
        name = (callee.attr,) if isinstance(callee, nodes.Getattr) else values[id(callee.arg)].texts
        if "format" in name:
            yield from _format(Value((), values[id(callee.node)].flags), node.lineno)
    if isinstance(callee, nodes.Name) and callee.name == "range":
        counts = [v for a in node.args for v in values[id(a)].constants if isinstance(v, int)]
        if any(abs(count) >= _LARGE for count in counts):
            yield Fault("template/bomb", f"a loop over {max(counts, key=abs)} numbers", node.lineno)


def _texts(constants: Iterable[Any], line: int) -> Faults:
    for value in constants:
        if isinstance(value, str):
            for rule, pattern, noun in _TEXTS:
                match = pattern.search(value)
                if match is not None:
                    yield Fault(rule, f"{noun} {match[0]!r}", line)
        elif isinstance(value, int) and abs(value) >= _LARGE * 1000:
            yield Fault("template/bomb", "a number larger than any length or count", line)


def _product(node: nodes.Mul | nodes.Pow, values: Values) -> Faults:
    sides = [values[id(node.left)], values[id(node.right)]]
    numbers = [constant for side in sides for constant in side.constants or (None,)]
    built = any(side.flags & TEXT for side in sides)
    if isinstance(node, nodes.Pow):
        if not all(isinstance(n, int) and abs(n) < 100 for n in numbers):
            yield Fault("template/bomb", "a power", node.lineno)
    elif any(isinstance(n, int) and abs(n) >= (_REPEATED if built else _LARGE) for n in numbers):
        yield Fault("template/bomb", "a multiplication by a very large number", node.lineno)


def _folded(node: nodes.Node, values: Values) -> Faults:
    return _texts(values[id(node)].constants, node.lineno)


#: The checks of each kind of node in an expression. `values`: of the node and its children, by id.
CHECKS: Final[Mapping[type[nodes.Node], Callable[[Any, Values], Faults]]] = {
    nodes.Getattr: _attribute, nodes.Getitem: _item, nodes.Filter: _filter, nodes.Test: _filter, nodes.Call: _call,
    nodes.Const: lambda node, values: _texts((node.value,), node.lineno), nodes.Concat: _folded, nodes.Add: _folded,
    nodes.Mod: _folded, nodes.Mul: _product, nodes.Pow: _product,
}  # fmt: skip


# ---- loops


class Loops:
    """Checks nested loops over constant ranges, whose counts multiply, and text that doubles."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.doublings = 0

    @contextmanager
    def inside(
        self, node: nodes.For, value_of: Callable[[nodes.Node], Value], report: Callable[[Faults], None]
    ) -> Iterator[None]:
        count = _count(node.iter, value_of)
        total = min(count * (self.totals[-1] if self.totals else 1), _MANY)
        self.totals.append(total)
        if total >= _LARGE and count > 1:
            message = f"loops that run {total} times" if total < _MANY else "loops that never end"
            report(iter([Fault("template/bomb", message, node.lineno)]))
        yield
        self.totals.pop()

    def doubled(self, node: nodes.Assign) -> Faults:
        """Reports text that contains its old value twice, again and again."""
        if _doubles(node):
            self.doublings += _DOUBLINGS if self.totals else 1
            if self.doublings >= _DOUBLINGS:
                name = next(_names(node.target), "a name")
                yield Fault("template/bomb", f"{name} keeps doubling", node.lineno)


def _names(target: nodes.Node) -> Iterator[str]:
    """The names that an assignment sets; the field of a namespace with the namespace's name."""
    if isinstance(target, nodes.Name | nodes.NSRef):
        yield target.name if isinstance(target, nodes.Name) else f"{target.name}.{target.attr}"
    for child in target.iter_child_nodes():
        yield from _names(child)


def _doubles(node: nodes.Assign) -> bool:
    targets = set(_names(node.target))
    with_old_text: set[int] = set()  # expressions that contain the old text
    stack: list[tuple[nodes.Node, bool]] = [(node.node, False)]
    while stack:
        part, ready = stack.pop()
        if not ready:
            stack.append((part, True))
            stack += [(child, False) for child in part.iter_child_nodes()]
            continue
        inner = sum(id(child) in with_old_text for child in part.iter_child_nodes())
        if inner > 1 and isinstance(part, nodes.Concat | nodes.Add):
            return True
        name = part.name if isinstance(part, nodes.Name) else ""
        if isinstance(part, nodes.Getattr) and isinstance(part.node, nodes.Name):
            name = f"{part.node.name}.{part.attr}"
        if inner or name in targets:
            with_old_text.add(id(part))
    return False


def _count(over: nodes.Node, value_of: Callable[[nodes.Node], Value]) -> int:
    """How often a loop over `range(...)` runs; 1 for any other loop."""
    if not isinstance(over, nodes.Call) or not isinstance(over.node, nodes.Name) or over.node.name != "range":
        return 1
    bounds = [[c for c in value_of(a).constants if isinstance(c, int)] for a in over.args]
    numbers = [max(constants, key=abs) for constants in bounds if constants]
    if not numbers or len(numbers) != len(bounds) or numbers[2:] == [0]:
        return 1
    return max(len(range(*[max(min(n, _MANY), -_MANY) for n in numbers[:3]])), 1)
