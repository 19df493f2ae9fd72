"""Evaluates a template's expressions to abstract values: names, items, filters and calls.

Anything that isn't in a table is unproven, and its value may be anything.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from jinja2 import nodes

from weighbridge.reports.scan.template import faults
from weighbridge.reports.scan.template.callables import CALLERS, CHANGING, FILTERS, FOLDED, FUNCTIONS, METHODS, TESTS
from weighbridge.reports.scan.template.faults import Fault, Values
from weighbridge.reports.scan.template.scope import Scope
from weighbridge.reports.scan.template.tree import children
from weighbridge.reports.scan.template.values import (
    ANY,
    ANYTHING,
    BOUND,
    BUILT,
    DATA,
    DERIVED,
    METHOD,
    NOTHING,
    NUMBER,
    NUMERIC,
    OBJECT,
    SPACE,
    TEXT,
    Value,
    constant,
    contained,
    flattened,
    folded,
    joined,
    listed,
    text_of,
    times,
    within,
)

# Cells other than those of names, parameters and fields.
ADDED, ADDED_TO_DATA, LOOPED, NEIGHBOURS, CALLER, EXTRA, EVERY_FIELD, ANY_FIELD = range(8)
FIELD, NAME = "field of a namespace", "name"
_PARTS: Final = (nodes.Keyword, nodes.Pair, nodes.Operand, nodes.Slice)
_SUBJECT: Final = -1
_NUMBERS: Final = contained(NUMERIC)
_PLAIN: Final = (str, list, dict, tuple, int)


class Expressions:
    """Evaluates the expressions of one pass over a tree. `cells`: their values after the previous pass; `after`: their
    values now. `wide`: cells whose constants no longer count. `changing`: whether lists and dicts are ever changed."""

    def __init__(self, tree: nodes.Template, cells: Mapping[Any, Value], wide: set[Any], changing: bool) -> None:
        self.cells, self.wide, self.changing = cells, wide, changing
        self.after: dict[Any, Value] = dict(cells)
        self.faults: list[Fault] = []
        self.scope = Scope()
        self.macros = {n.name: n for n in children(tree) if isinstance(n, nodes.Macro)}
        self.assigned = {n.name for n in children(tree) if isinstance(n, nodes.Name) and n.ctx != "load"}

    # ---- cells

    def put(self, cell: Any, value: Value) -> None:
        self.after[cell] = self.after.get(cell, NOTHING).join(value.widened if cell in self.wide else value)
        if isinstance(cell, tuple) and cell[0] == FIELD:
            self.put(ANY_FIELD, value)

    def bind(self, target: nodes.Node, value: Value) -> None:
        """Assigns to names, to the fields of namespaces, to tuples of them."""
        if isinstance(target, nodes.Tuple):
            element = value.element
            for item in target.items:
                self.bind(item, element)
        elif isinstance(target, nodes.NSRef):
            self.put((FIELD, target.attr), value)
            self.report(faults.check_attribute_name(target.attr, target.lineno))
        elif isinstance(target, nodes.Name):
            self.put((NAME, target.name), value)
            self.scope.add(target.name)
        else:
            self.report_unproven(target, f"assigns to a {type(target).__name__.lower()}")

    def report(self, faults: Iterable[Fault]) -> None:
        self.faults.extend(faults)

    def report_unproven(self, node: nodes.Node, message: str) -> None:
        self.faults.append(Fault("template/unproven", message, node.lineno))

    def value(self, root: nodes.Node, subject: Value = NOTHING) -> Value:
        """Evaluates an expression, children first. `subject`: the value that the first of a chain of filters gets."""
        values: dict[int, Value] = {}
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if not ready:
                stack.append((node, True))
                stack += [(child, False) for child in node.iter_child_nodes()]
                continue
            if isinstance(node, nodes.Filter) and node.node is None:
                values[_SUBJECT] = subject
            evaluate = _EXPRESSIONS.get(type(node))
            if evaluate is None:
                self.report_unproven(node, f"unknown expression: {type(node).__name__}")
                values[id(node)] = ANYTHING
            else:
                result = evaluate(self, node, values)
                is_range = isinstance(node, nodes.Call) and getattr(node.node, "name", None) == "range"
                values[id(node)] = result if result == _NUMBERS and is_range else self.grown(result)
            check = faults.CHECKS.get(type(node))
            if check is not None:
                self.report(check(node, values))
        return values[id(root)]

    def grown(self, value: Value) -> Value:
        """A list or dict into which others may have been put, in any order."""
        if not self.changing:
            return value
        if value.is_container:
            inner = value.element.join(self.cells.get(ADDED, NOTHING))
            value = contained(inner, value.mapping, value.plain.constants, value.flags)
        return value.join(self.cells.get(ADDED_TO_DATA, NOTHING)) if value.flags & (DATA | ANY) else value

    def name(self, node: nodes.Name, values: Values) -> Value:
        """A name: the values assigned to it, and the caller's value unless an assignment certainly came first."""
        name = node.name
        value = self.cells.get((NAME, name), NOTHING)
        if name in self.scope:
            return value
        if name in FUNCTIONS:
            return value.join(BOUND)
        if name in faults.FOREIGN:
            self.report([Fault("template/foreign-global", f"the name {name!r}", node.lineno)])
        return value.join(CALLERS.get(name) or Value(flags=DATA | TEXT))

    def attribute(self, node: nodes.Getattr, values: Values) -> Value:
        base = values[id(node.node)]
        if isinstance(node.node, nodes.Name) and node.node.name == "loop" and base == BOUND:
            near = node.attr in ("previtem", "nextitem")
            return self.cells.get(NEIGHBOURS, NOTHING) if near else NUMERIC
        return self.selected(base, constant(node.attr))

    def item(self, node: nodes.Getitem, values: Values) -> Value:
        base = values[id(node.node)]
        if isinstance(node.arg, nodes.Slice):
            return _sliced(base, node.arg, values)
        return self.selected(base, values[id(node.arg)])

    def selected(self, base: Value, key: Value) -> Value:
        """`base[key]`."""
        base = base.loose
        indices = [k for k in key.constants if isinstance(k, int)]
        unknown = key.flags & ~(OBJECT | METHOD)
        result = base.items or NOTHING
        for text in base.constants:
            if isinstance(text, str | tuple):
                result = joined([result, *(constant(text[i]) for i in indices if -len(text) <= i < len(text))])
                result = result.join(Value((text,)).element) if unknown else result
        if base.flags & SPACE:
            cells = [EVERY_FIELD, *((FIELD, k) for k in key.texts), *((ANY_FIELD,) if unknown else ())]
            result = joined([result, *(self.cells.get(cell, NOTHING) for cell in cells)])
        if base.flags & OBJECT and not unknown:  # of a macro: its name, and those of its parameters
            result = result.join(Value(flags=OBJECT | TEXT, items=BUILT))
        derived = DERIVED if key.flags & (DATA | TEXT | ANY) else 0
        plain = base.constants or base.is_container or base.flags & (TEXT | NUMBER)
        is_method = unknown & ~NUMBER or any(hasattr(kind, name) for name in key.texts for kind in _PLAIN)
        method = METHOD if plain and is_method else 0
        flags = within(base.flags if unknown else base.flags & ~OBJECT)
        flags |= ANY if unknown and base.flags & METHOD else 0
        if not unknown and not indices:  # an attribute of text isn't one of its letters
            flags = flags & ~TEXT | (DATA if flags & TEXT else 0)
        return result.join(Value(flags=flags | derived | method))

    def add(self, node: nodes.Add, values: Values) -> Value:
        sides = [values[id(node.left)], values[id(node.right)]]
        if any(side.is_number for side in sides):
            return folded(operator.add, sides) if all(s.constants and not s.flags for s in sides) else NUMERIC
        return _combined(sides, text_of)

    def multiply(self, node: nodes.Mul, values: Values) -> Value:
        sides = [values[id(node.left)], values[id(node.right)]]
        if all(side.is_number for side in sides):
            return folded(times, sides) if all(s.constants and not s.flags for s in sides) else NUMERIC
        return _combined(sides, lambda plain: folded(times, plain))

    def number(self, node: nodes.BinExpr, values: Values) -> Value:
        """Numbers, or the difference of sets."""
        sides = [values[id(node.left)], values[id(node.right)]]
        kept = [contained(s.element) for s in sides if s.is_container]
        return joined([NUMERIC, *kept, *(Value(flags=s.flags & (DATA | ANY | DERIVED)) for s in sides)])

    def sign(self, node: nodes.Neg | nodes.Pos, values: Values) -> Value:
        value, sign = values[id(node.node)], -1 if isinstance(node, nodes.Neg) else 1
        numbers = tuple(c * sign for c in value.constants if isinstance(c, int | float))
        return Value(numbers).join(NUMERIC if value.flags or len(numbers) != len(value.constants) else NOTHING)

    def sequence(self, node: nodes.List | nodes.Tuple, values: Values) -> Value:
        items = [values[id(item)] for item in node.items]
        exact = all(len(v.constants) == 1 and not v.flags and v.items is None for v in items)
        constants = tuple(v.constants[0] for v in items) if exact else ()
        flat = not any(isinstance(inner, tuple) for c in constants if isinstance(c, tuple) for inner in c)
        if exact and flat and not self.changing:
            return listed(constants)
        return contained(joined(items))

    # ---- calls

    def arguments(self, node: nodes.Call | nodes.Filter | nodes.Test, values: Values) -> list[Value]:
        """All arguments of any kind."""
        arguments = [values[id(argument)] for argument in (*node.args, *node.kwargs)]
        for star in (node.dyn_args, node.dyn_kwargs):
            if star is not None:
                arguments += [values[id(star)].deep, values[id(star)]]
        return arguments

    def filter(self, node: nodes.Filter, values: Values) -> Value:
        subject = values[id(node.node)] if node.node is not None else values[_SUBJECT]
        arguments = self.arguments(node, values)
        if node.name == "map":
            return self.mapped(subject, node, arguments)
        return self.apply(FILTERS, node, node.name, subject, arguments)

    def mapped(self, subject: Value, node: nodes.Filter, arguments: list[Value]) -> Value:
        """`map`: an attribute of each item, or the result of the filter that its first argument names."""
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            return contained(ANYTHING)
        if not node.args:
            by_name = [(k.key, a) for k, a in zip(node.kwargs, arguments, strict=True)]
            unknown = any(a.flags for key, a in by_name if key == "attribute")
            default = [a for key, a in by_name if key == "default"]
            return contained(joined([self.attributes(subject.element, unknown), *default]))
        names, further = arguments[0], arguments[1:]
        results = [self.apply(FILTERS, node, str(n), subject.element, further) for n in names.constants]
        if names.flags or not names.constants:
            self.report_unproven(node, "`map` with a filter whose name is unknown")
            results.append(ANYTHING)
        return contained(joined([*results, ANYTHING] if node.kwargs else results))

    def attributes(self, items: Value, unknown: bool) -> Value:
        """Attributes of items, by names with any number of dots."""
        fields = [self.cells.get(cell, NOTHING) for cell in (EVERY_FIELD, ANY_FIELD)]
        result = flattened([items, *(fields if items.flags & (SPACE | ANY) else ())])
        return joined([result, Value(result.texts).element, Value(flags=DERIVED) if unknown else NOTHING,
                       ANYTHING if items.flags & OBJECT else NOTHING])  # fmt: skip

    def apply(
        self, table: Mapping[str, Any], node: nodes.Node, name: str, subject: Value, arguments: list[Value]
    ) -> Value:
        meaning = table.get(name)
        if meaning is None:
            if name not in ("attr", "format_map"):  # those have their own findings
                self.report_unproven(node, f"the unknown {'filter' if table is FILTERS else 'method'} `{name}`")
            return ANYTHING
        by_name = any(getattr(node, part, None) for part in ("kwargs", "dyn_args", "dyn_kwargs"))
        extra = [BUILT] if by_name and name in FOLDED else []
        result: Value = meaning(subject.loose, [a.loose for a in arguments] + extra)
        return result.join(ANYTHING) if subject.flags & ANY else result

    def test(self, node: nodes.Test, values: Values) -> Value:
        if node.name not in TESTS:
            self.report_unproven(node, f"the unknown test `{node.name}`")
        return NUMERIC

    def call(self, node: nodes.Call, values: Values) -> Value:
        callee, arguments = node.node, self.arguments(node, values)
        if isinstance(callee, nodes.Name):
            return self.called(callee.name, node, arguments)
        if not isinstance(callee, nodes.Getattr | nodes.Getitem) or not (method := method_of(callee)):
            self.report_unproven(node, "calls something unknown before rendering")
            return ANYTHING
        base, is_loop = values[id(callee.node)], isinstance(callee.node, nodes.Name) and callee.node.name == "loop"
        if is_loop and base == BOUND and method in ("cycle", "changed"):
            return joined(arguments)
        if method in CHANGING:
            added = flattened([*arguments, *_keywords(node)])
            self.put(ADDED, added)
            if base.flags & (DATA | ANY | DERIVED):
                self.put(ADDED_TO_DATA, added)
        by_item = isinstance(callee, nodes.Getitem) and (base.is_container or base.flags & ~TEXT)
        stored = base.container.deep.flags & (OBJECT | ANY) and not hasattr(dict, method)
        if by_item or stored or base.flags & (SPACE | ANY):
            self.report_unproven(node, f"calls `{method}`, which may be anything")
            return ANYTHING
        return self.apply(METHODS, node, method, base, arguments)

    def called(self, name: str, node: nodes.Call, arguments: list[Value]) -> Value:
        """The call of a name, which may be a macro, a recursive loop or a function."""
        results: list[Value] = []
        if name in self.macros:
            results.append(self.called_macro(self.macros[name], node, arguments))
        if name == "loop":
            self.put(LOOPED, joined(arguments))
            results.append(BUILT)
        if name == "caller":
            self.put(CALLER, joined([*arguments, *(a.deep for a in arguments if node.dyn_args or node.dyn_kwargs)]))
            results.append(BUILT)
        if name in FUNCTIONS and name not in self.scope:
            if name == "namespace":
                self.put_fields(node, arguments)
            results.append(FUNCTIONS[name](NOTHING, [*arguments, *(_keywords(node) if name == "dict" else ())]))
        if not results or name in self.assigned:
            self.report_unproven(node, f"calls the unknown `{name}`")
            results.append(ANYTHING)
        return joined(results)

    def called_macro(self, macro: nodes.Macro, node: nodes.Call, arguments: list[Value]) -> Value:
        by_place = len(node.args)
        for place, argument in enumerate(arguments[:by_place]):
            self.put((macro.name, place), argument)
        for keyword, argument in zip(node.kwargs, arguments[by_place:], strict=False):
            self.put(((macro.name, None), keyword.key), argument)
        for argument in arguments[by_place + len(node.kwargs) :]:
            self.put((macro.name, None), argument)
        self.put(EXTRA, joined([*arguments, *_keywords(node)]))
        return BUILT

    def put_fields(self, node: nodes.Call, arguments: list[Value]) -> None:
        """Assigns the fields of a new namespace."""
        by_place = len(node.args)
        for keyword, argument in zip(node.kwargs, arguments[by_place:], strict=False):
            self.put((FIELD, keyword.key), argument)
        for argument in (*arguments[:by_place], *arguments[by_place + len(node.kwargs) :]):
            self.put(EVERY_FIELD, flattened([argument]))


def _keywords(node: nodes.Call) -> list[Value]:
    """The names of a call's keywords, which are keys of the dict that it creates."""
    return [constant(keyword.key) for keyword in node.kwargs]


def _combined(sides: list[Value], fold: Callable[[list[Value]], Value]) -> Value:
    """Text, or concatenated lists."""
    lists = [side for side in sides if side.is_container or side.flags & (DATA | ANY)]
    result = contained(joined(side.element for side in lists)) if any(s.is_container for s in lists) else NOTHING
    texts = [side.plain for side in sides]
    if all(text != NOTHING for text in texts):
        result = result.join(fold(texts))
    flags = (sides[0].flags | sides[1].flags) & (DATA | ANY | DERIVED)
    return result.join(Value(flags=flags))


def method_of(callee: nodes.Getattr | nodes.Getitem) -> str | None:
    """The method that `x.method` or `x['method']` names."""
    if isinstance(callee, nodes.Getattr):
        return callee.attr
    name = callee.arg.value if isinstance(callee.arg, nodes.Const) else None
    return name if isinstance(name, str) else None


def _sliced(base: Value, part: nodes.Slice, values: Values) -> Value:
    """A part of a text or list; exact if its bounds are."""
    base = base.loose
    bounds = [values[id(b)] if b is not None else None for b in (part.start, part.stop, part.step)]
    exact = all(b is None or (len(b.constants) == 1 and not b.flags and isinstance(b.constants[0], int | None))
                for b in bounds)  # fmt: skip
    at = [b.constants[0] if b is not None and exact else None for b in bounds]
    if not exact or at[2] == 0:
        stepped = bounds[2] is not None and base.flags & DATA
        flags = base.flags | (TEXT if base.texts or stepped else 0)
        return contained(base.element, False, (), flags) if base.is_container else Value((), flags)
    if at[2] not in (None, 1, -1) and base.flags & DATA:
        base = base.join(BUILT)
    cut = slice(*at)
    constants = tuple(c[cut] for c in base.constants if isinstance(c, str | tuple))  # nothing else has parts
    return Value(constants, base.flags, base.items, False, base.depth)


def _either(_: Expressions, node: nodes.And | nodes.Or, values: Values) -> Value:
    return values[id(node.left)].join(values[id(node.right)])


def _comparison(_: Expressions, node: nodes.Node, values: Values) -> Value:
    return NUMERIC


_E = Expressions
_EXPRESSIONS: Final[Mapping[type[nodes.Node], Callable[[Expressions, Any, Values], Value]]] = (
    MappingProxyType(
        {
            nodes.Const: lambda _, node, values: constant(node.value), nodes.Name: _E.name,
            nodes.Getattr: _E.attribute, nodes.Getitem: _E.item, nodes.Filter: _E.filter, nodes.Test: _E.test,
            nodes.Call: _E.call, nodes.Concat: lambda _, node, values: text_of([values[id(n)] for n in node.nodes]),
            nodes.Add: _E.add, nodes.Mul: _E.multiply, nodes.Sub: _E.number,
            nodes.Mod: lambda _, node, values: NUMERIC if values[id(node.left)].is_number else BUILT,
            nodes.Div: _E.number, nodes.FloorDiv: _E.number, nodes.Pow: _E.number, nodes.Neg: _E.sign,
            nodes.Pos: _E.sign, nodes.And: _either, nodes.Or: _either, nodes.Not: _comparison,
            nodes.Compare: _comparison, nodes.List: _E.sequence, nodes.Tuple: _E.sequence,
            nodes.CondExpr: lambda _, node, values: values[id(node.expr1)].join(
                values[id(node.expr2)] if node.expr2 is not None else NUMERIC),
            nodes.Dict: lambda _, node, values: contained(
                joined(values[id(side)] for pair in node.items for side in (pair.key, pair.value)), True),
            # pieces of an expression, whose owner reads their children
            **dict.fromkeys(_PARTS, _comparison), nodes.Keyword: lambda _, node, values: values[id(node.value)],
        }
    )
)  # fmt: skip
