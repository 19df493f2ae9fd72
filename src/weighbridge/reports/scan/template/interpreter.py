"""Tracks abstract values through the tree of a template. Nothing is rendered.

The order of assignments is ignored: a name may have any value assigned to it anywhere, and also that of the caller's
variable unless an assignment certainly came first. Passes over the tree are repeated until no cell (a name, a
namespace's field, a macro's parameter ...) changes; after too many passes every cell may be anything. Anything that
isn't in a table is unproven, and its value may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from jinja2 import TemplateError, nodes

from weighbridge.base.limits import JINJA_SIZE
from weighbridge.reports.scan.template import expressions, faults
from weighbridge.reports.scan.template.callables import CHANGING
from weighbridge.reports.scan.template.expressions import Expressions
from weighbridge.reports.scan.template.faults import Fault
from weighbridge.reports.scan.template.scope import Scope
from weighbridge.reports.scan.template.tree import children, parse
from weighbridge.reports.scan.template.values import (
    ANYTHING,
    BOUND,
    BUILT,
    NOTHING,
    Value,
    constant,
    contained,
    joined,
    text_of,
)

_EXACT, _PASSES = 4, 16  # passes that keep constants, and passes before every cell may be anything


def check_template(text: str) -> Iterator[Fault]:
    """The faults of a template, with the parser options of loaders and with jinja2's own: trimming blocks changes the
    text that a `set` block assigns."""
    if len(text) > JINJA_SIZE:
        yield Fault("template/unproven", f"it is longer than {JINJA_SIZE} characters", 0)
        return
    try:
        tree = parse(text, trimmed=True)
        yield from _faults_of(tree)
        if any(isinstance(node, nodes.AssignBlock) for node in children(tree)):
            yield from _faults_of(parse(text, trimmed=False))
    except RecursionError:
        yield Fault("template/unproven", "it is nested too deeply to be followed", 0)
    except TemplateError as error:
        yield Fault("template/unreadable", error.message or "jinja2 refuses it", getattr(error, "lineno", 0))
    except ValueError as error:  # a number with too many digits, a broken escape
        yield Fault("template/unreadable", str(error), 0)


def _faults_of(tree: nodes.Template) -> list[Fault]:
    attributes = (n for n in children(tree) if isinstance(n, nodes.Getattr | nodes.Getitem))
    changing = any(expressions.method_of(n) in CHANGING for n in attributes)
    cells: dict[Any, Value] = {}
    wide: set[Any] = set()
    for number in range(_PASSES):
        run = _Pass(tree, cells, wide, changing)
        if run.after == cells:
            return run.faults
        if number >= _EXACT:
            wide |= {cell for cell, value in run.after.items() if value != cells.get(cell)}
        cells = {cell: value.generalized if cell in wide else value for cell, value in run.after.items()}
    return _Pass(tree, dict.fromkeys(cells, ANYTHING), wide, changing).faults


class _Pass(Expressions):
    """One pass over a tree."""

    def __init__(self, tree: nodes.Template, cells: Mapping[Any, Value], wide: set[Any], changing: bool) -> None:
        super().__init__(tree, cells, wide, changing)
        self.loops = faults.Loops()
        self.statements(tree.body)

    def statements(self, body: Sequence[nodes.Node]) -> list[Value] | None:
        """The values that statements print; None if they print more than a sequence of expressions and texts."""
        printed: list[Value] | None = []
        for node in body:
            act = _STATEMENTS.get(type(node))
            if act is None:
                self.report_unproven(node, f"unknown statement: {type(node).__name__}")
                continue
            values = act(self, node)
            printed = None if values is None or printed is None else printed + values
        return printed

    def inner(self, body: Sequence[nodes.Node]) -> list[Value] | None:
        """Statements in a new scope."""
        with self.scope.inner():
            return self.statements(body)

    def output(self, node: nodes.Output) -> list[Value]:
        return [constant(n.data) if isinstance(n, nodes.TemplateData) else self.value(n) for n in node.nodes]

    def assign(self, node: nodes.Assign) -> list[Value]:
        value = self.value(node.node)
        self.report(self.loops.doubled(node))
        self.bind(node.target, value)
        return []

    def assign_block(self, node: nodes.AssignBlock) -> list[Value]:
        printed = self.inner(node.body)
        value = BUILT if printed is None else text_of(printed)
        self.bind(node.target, value if node.filter is None else self.value(node.filter, value))
        return []

    def loop(self, node: nodes.For) -> None:
        over = self.value(node.iter)
        if node.recursive:
            over = over.join(self.cells.get(expressions.LOOPED, NOTHING))
        self.put((expressions.NAME, "loop"), BOUND)
        self.put(expressions.NEIGHBOURS, over.element)
        with self.loops.inside(node, self.value, self.report), self.scope.inner("loop"):
            self.bind(node.target, over.element)
            if node.test is not None:
                self.value(node.test)
            self.statements(node.body)
        self.inner(node.else_)

    def branch(self, node: nodes.If) -> None:
        bodies: list[Sequence[nodes.Node]] = []
        for clause in (node, *node.elif_):
            self.value(clause.test)
            bodies.append(clause.body)
        self.scope.branches([partial(self.statements, body) for body in (*bodies, node.else_)])

    def macro(self, node: nodes.Macro) -> list[Value]:
        self.macro_body(node, [(node.name, place) for place in range(len(node.args))], (node.name, None))
        self.put((expressions.NAME, node.name), BOUND)
        self.scope.add(node.name)
        return []

    def call_block(self, node: nodes.CallBlock) -> None:
        self.value(node.call)
        self.macro_body(node, [expressions.CALLER] * len(node.args), expressions.CALLER)

    def macro_body(self, node: nodes.Macro | nodes.CallBlock, cells: Sequence[Any], by_star: Any) -> None:
        """The body of a macro, whose parameters have their defaults or the arguments of calls."""
        defaults = [self.value(default) for default in node.defaults]
        defaults = [NOTHING] * (len(node.args) - len(defaults)) + defaults
        every = self.cells.get(by_star, NOTHING)
        extra = contained(self.cells.get(expressions.EXTRA, NOTHING))
        with self.scope.inner("caller", "varargs", "kwargs"):
            self.put((expressions.NAME, "caller"), BOUND)
            self.put((expressions.NAME, "varargs"), extra)
            self.put((expressions.NAME, "kwargs"), extra)
            for target, cell, default in zip(node.args, cells, defaults, strict=True):
                named = self.cells.get((by_star, target.name), NOTHING)
                self.bind(target, joined([self.cells.get(cell, NOTHING), named, every, default]))
            self.statements(node.body)

    def with_(self, node: nodes.With) -> None:
        values = [self.value(expression) for expression in node.values]
        with self.scope.inner():
            for target, value in zip(node.targets, values, strict=True):
                self.bind(target, value)
            self.statements(node.body)

    def filter_block(self, node: nodes.FilterBlock) -> None:
        self.inner(node.body)
        self.value(node.filter, BUILT)

    def scoped(self, node: nodes.Scope) -> None:
        for child in node.iter_child_nodes(exclude=("body",)):
            self.value(child)
        self.inner(node.body)

    def block(self, node: nodes.Block) -> None:
        outer, self.scope = self.scope, Scope()
        self.statements(node.body)
        self.scope = outer

    def expression(self, node: nodes.ExprStmt) -> list[Value]:
        self.value(node.node)
        return []

    def loading(self, node: nodes.Node) -> None:
        word = type(node).__name__.lower().replace("fromimport", "from")
        self.report([Fault("template/loading", f"`{word}` loads another template", node.lineno)])


_Act = Callable[[_Pass, Any], "list[Value] | None"]
_STATEMENTS: Final[Mapping[type[nodes.Node], _Act]] = MappingProxyType(
    {
        nodes.Output: _Pass.output, nodes.Assign: _Pass.assign, nodes.AssignBlock: _Pass.assign_block,
        nodes.For: _Pass.loop, nodes.If: _Pass.branch, nodes.Macro: _Pass.macro, nodes.CallBlock: _Pass.call_block,
        nodes.With: _Pass.with_, nodes.FilterBlock: _Pass.filter_block, nodes.Scope: _Pass.scoped,
        nodes.ScopedEvalContextModifier: _Pass.scoped, nodes.Block: _Pass.block, nodes.ExprStmt: _Pass.expression,
        nodes.Break: lambda run, node: None, nodes.Continue: lambda run, node: None, nodes.Include: _Pass.loading,
        nodes.Import: _Pass.loading, nodes.FromImport: _Pass.loading, nodes.Extends: _Pass.loading,
    }
)  # fmt: skip
