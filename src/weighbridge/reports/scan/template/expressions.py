"""The trees of a Jinja template's expressions, by jinja2's grammar (jinja2.parser)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JINJA_DEPTH
from weighbridge.reports.scan.template.tokens import JinjaToken, wrong


@dataclass(frozen=True, slots=True)
class Expr:
    """Part of an expression. `kind` and what `value` is of it:

    name, const       the name, the value          attr     `x.value` (parts: x)
    item              `x[part]` (x, part)          slice    parts (None where left out)
    call              parts: callee, arguments     filter   `x|value(...)`: x, arguments
    test              `x is value ...`             op       the operator; parts: operands
    list, tuple, dict parts: items (a dict's keys and values in turn)
    keyword           `value=part`, `*part`, `**part` of a call"""

    kind: str
    at: int
    value: Any = None
    parts: tuple[Expr | None, ...] = ()

    def walk(self) -> Iterator[Expr]:
        """This node and all below it."""
        stack: list[Expr] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += [part for part in reversed(node.parts) if part is not None]


_COMPARE: Final = frozenset({"==", "!=", ">", ">=", "<", "<="})
_WORDS: Final = MappingProxyType(
    {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
)
# Names that begin no argument of a test: `x is defined and ...` (jinja2's parse_test).
_TEST_STOPS: Final = frozenset({"else", "or", "and"})


class Parser:
    """The expressions of one block's tokens, by jinja2's grammar (jinja2.parser)."""

    def __init__(self, tokens: list[JinjaToken]) -> None:
        self.tokens, self.place, self.depth = tokens, 0, 0

    @property
    def now(self) -> JinjaToken:
        return self.tokens[self.place]

    def is_op(self, *ops: str) -> bool:
        return self.now.kind == "op" and self.now.value in ops

    def is_name(self, *names: str) -> bool:
        return self.now.kind == "name" and self.now.value in names

    def next(self) -> JinjaToken:
        token = self.now
        if token.kind != "end":
            self.place += 1
        return token

    def skip(self, op: str) -> bool:
        if self.is_op(op):
            self.place += 1
            return True
        return False

    def skip_name(self, name: str) -> bool:
        if self.is_name(name):
            self.place += 1
            return True
        return False

    def need(self, op: str) -> None:
        if not self.skip(op):
            raise self.wrong(f"{op!r} is missing")

    def name(self) -> str:
        if self.now.kind != "name":
            raise self.wrong("a name is missing")
        return str(self.next().value)

    def wrong(self, why: str) -> FormatError:
        return wrong(f"{why} before {self.now.value!r}" if self.now.kind != "end" else why, self.now.at)

    # Each level of precedence reads the one below it.

    def expression(self, conditional: bool = True) -> Expr:
        self.depth += 1
        if self.depth > JINJA_DEPTH:
            raise self.wrong("an expression is nested too deeply")
        node = self._either()
        while conditional and self.is_name("if"):
            at = self.next().at
            test = self._either()
            other = self.expression() if self.skip_name("else") else None
            node = Expr("op", at, "if", (test, node, other))
        self.depth -= 1
        return node

    def _either(self) -> Expr:
        return self._joined(("or",), lambda: self._joined(("and",), self._not))

    def _joined(self, words: tuple[str, ...], below: Callable[[], Expr]) -> Expr:
        node = below()
        while self.is_name(*words):
            token = self.next()
            node = Expr("op", token.at, token.value, (node, below()))
        return node

    def _not(self) -> Expr:
        if not self.is_name("not"):
            return self._compare()
        at = self.next().at
        self.depth += 1
        if self.depth > JINJA_DEPTH:
            raise self.wrong("an expression is nested too deeply")
        node = Expr("op", at, "not", (self._not(),))
        self.depth -= 1
        return node

    def _compare(self) -> Expr:
        node = self._sum()
        while True:
            at, word = self.now.at, self.now.value
            if self.is_op(*_COMPARE) or self.is_name("in"):
                self.next()
            elif self.is_name("not") and self.tokens[self.place + 1][:2] == ("name", "in"):
                self.place, word = self.place + 2, "not in"
            else:
                return node
            node = Expr("op", at, word, (node, self._sum()))

    def _sum(self) -> Expr:
        return self._binary(("+", "-"), self._concat)

    def _concat(self) -> Expr:
        return self._binary(("~",), self._product)

    def _product(self) -> Expr:
        return self._binary(("*", "/", "//", "%"), lambda: self._binary(("**",), self._unary))

    def _binary(self, ops: tuple[str, ...], below: Callable[[], Expr]) -> Expr:
        node = below()
        while self.is_op(*ops):
            token = self.next()
            node = Expr("op", token.at, token.value, (node, below()))
        return node

    def _unary(self, filtered: bool = True) -> Expr:
        if self.is_op("-", "+"):
            token = self.next()
            self.depth += 1
            if self.depth > JINJA_DEPTH:
                raise self.wrong("an expression is nested too deeply")
            node = Expr("op", token.at, token.value, (self._unary(filtered=False),))
            self.depth -= 1
        else:
            node = self._primary()
        node = self._postfix(node)
        return self._filtered(node) if filtered else node

    def _primary(self) -> Expr:
        token = self.next()
        if token.kind == "name":
            return Expr("const", token.at, _WORDS[token.value]) if token.value in _WORDS else Expr(*_name(token))
        if token.kind == "string":
            text = [token.value]
            while self.now.kind == "string":  # neighbours are joined
                text.append(self.next().value)
            return Expr("const", token.at, "".join(text))
        if token.kind in ("integer", "float"):
            return Expr("const", token.at, token.value)
        if token.kind == "op" and token.value == "(":
            node = self.several(closing=True)
            self.need(")")
            return node
        if token.kind == "op" and token.value in "[{":
            return self._list(token.at) if token.value == "[" else self._dict(token.at)
        raise wrong("an expression is missing", token.at)

    def several(self, closing: bool = False, conditional: bool = True) -> Expr:
        """One expression, or several with commas. `closing`: in parentheses, where nothing is the empty tuple."""
        at, items, comma = self.now.at, [], False
        while not (self.now.kind == "end" or self.is_op(")") or self.is_name("in")):
            items.append(self.expression(conditional))
            comma = self.skip(",")
            if not comma:
                break
        if len(items) == 1 and not comma:
            return items[0]
        if not items and not closing:
            raise self.wrong("an expression is missing")
        return Expr("tuple", at, None, tuple(items))

    def _list(self, at: int) -> Expr:
        items: list[Expr] = []
        while not self.is_op("]"):
            if items:
                self.need(",")
            if self.is_op("]"):
                break
            items.append(self.expression())
        self.need("]")
        return Expr("list", at, None, tuple(items))

    def _dict(self, at: int) -> Expr:
        items: list[Expr] = []
        while not self.is_op("}"):
            if items:
                self.need(",")
            if self.is_op("}"):
                break
            items.append(self.expression())
            self.need(":")
            items.append(self.expression())
        self.need("}")
        return Expr("dict", at, None, tuple(items))

    def _postfix(self, node: Expr) -> Expr:
        while True:
            if self.is_op(".", "["):
                node = self._subscript(node)
            elif self.is_op("("):
                node = Expr("call", self.now.at, None, (node, *self._arguments()))
            else:
                return node

    def _filtered(self, node: Expr) -> Expr:
        while True:
            if self.is_op("|"):
                node = self._filter(node)
            elif self.is_name("is"):
                node = self._test(node)
            elif self.is_op("("):
                node = Expr("call", self.now.at, None, (node, *self._arguments()))
            else:
                return node

    def _subscript(self, node: Expr) -> Expr:
        token = self.next()
        if token.value == ".":
            inner = self.next()
            if inner.kind == "name":
                return Expr("attr", inner.at, inner.value, (node,))
            if inner.kind != "integer":
                raise wrong("a name is missing", inner.at)
            return Expr("item", inner.at, None, (node, Expr("const", inner.at, inner.value)))
        parts = [self._subscribed()]
        while not self.is_op("]"):
            self.need(",")
            parts.append(self._subscribed())
        self.need("]")
        part = parts[0] if len(parts) == 1 else Expr("tuple", token.at, None, tuple(parts))
        return Expr("item", token.at, None, (node, part))

    def _subscribed(self) -> Expr:
        at = self.now.at
        parts: list[Expr | None] = [None]
        if self.is_op(":"):
            self.next()
        else:
            node = self.expression()
            if not self.skip(":"):
                return node
            parts = [node]
        for _ in range(2):
            if self.is_op("]", ","):
                break
            if self.is_op(":"):
                parts.append(None)
            else:
                parts.append(self.expression())
            if not self.skip(":"):
                break
        return Expr("slice", at, None, tuple(parts))

    def _arguments(self) -> tuple[Expr, ...]:
        self.need("(")
        out: list[Expr] = []
        while not self.is_op(")"):
            if out:
                self.need(",")
                if self.is_op(")"):
                    break
            at = self.now.at
            if self.is_op("*", "**"):
                stars = self.next().value
                out.append(Expr("keyword", at, stars, (self.expression(),)))
            elif self.now.kind == "name" and self.tokens[self.place + 1][:2] == ("op", "="):
                word = self.name()
                self.next()
                out.append(Expr("keyword", at, word, (self.expression(),)))
            else:
                out.append(self.expression())
        self.need(")")
        return tuple(out)

    def dotted(self) -> str:
        name = self.name()
        while self.skip("."):
            name += f".{self.name()}"
        return name

    def _filter(self, node: Expr | None) -> Expr:
        at = self.next().at
        name = self.dotted()
        return Expr("filter", at, name, (node, *(self._arguments() if self.is_op("(") else ())))

    def filters(self) -> Expr:
        """The filters of a `{% filter %}` or of a `{% set %}` with a body."""
        at = self.now.at
        name = self.dotted()
        node = Expr("filter", at, name, (None, *(self._arguments() if self.is_op("(") else ())))
        while self.is_op("|"):
            node = self._filter(node)
        return node

    def _test(self, node: Expr) -> Expr:
        at = self.next().at
        negated = self.skip_name("not")
        name = self.dotted()
        arguments: tuple[Expr, ...] = ()
        if self.is_op("("):
            arguments = self._arguments()
        elif self._argument_follows():
            if self.is_name("is"):
                raise self.wrong("a test follows a test")
            arguments = (self._postfix(self._primary()),)
        test = Expr("test", at, name, (node, *arguments))
        return Expr("op", at, "not", (test,)) if negated else test

    def _argument_follows(self) -> bool:
        if self.now.kind == "name":
            return self.now.value not in _TEST_STOPS
        return self.now.kind in ("string", "integer", "float") or self.is_op("(", "[", "{")


def _name(token: JinjaToken) -> tuple[str, int, str]:
    return "name", token.at, token.value
