"""The trees of a Jinja template's expressions, by jinja2's grammar (jinja2.parser)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JINJA_DEPTH
from weighbridge.reports.scan.template.tokens import Token, wrong


@dataclass(frozen=True, slots=True)
class Node:
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
    parts: tuple[Node | None, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        stack: list[Node] = [self]
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

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.place, self.depth = tokens, 0, 0

    @property
    def now(self) -> Token:
        return self.tokens[self.place]

    def is_op(self, *ops: str) -> bool:
        return self.now.kind == "op" and self.now.value in ops

    def is_name(self, *names: str) -> bool:
        return self.now.kind == "name" and self.now.value in names

    def next(self) -> Token:
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

    def expression(self, conditional: bool = True) -> Node:
        self.depth += 1
        if self.depth > JINJA_DEPTH:
            raise self.wrong("an expression is nested too deeply")
        node = self._either()
        while conditional and self.is_name("if"):
            at = self.next().at
            test = self._either()
            other = self.expression() if self.skip_name("else") else None
            node = Node("op", at, "if", (test, node, other))
        self.depth -= 1
        return node

    def _either(self) -> Node:
        return self._joined(("or",), lambda: self._joined(("and",), self._not))

    def _joined(self, words: tuple[str, ...], below: Callable[[], Node]) -> Node:
        node = below()
        while self.is_name(*words):
            token = self.next()
            node = Node("op", token.at, token.value, (node, below()))
        return node

    def _not(self) -> Node:
        if not self.is_name("not"):
            return self._compare()
        at = self.next().at
        self.depth += 1
        if self.depth > JINJA_DEPTH:
            raise self.wrong("an expression is nested too deeply")
        node = Node("op", at, "not", (self._not(),))
        self.depth -= 1
        return node

    def _compare(self) -> Node:
        node = self._sum()
        while True:
            at, word = self.now.at, self.now.value
            if self.is_op(*_COMPARE) or self.is_name("in"):
                self.next()
            elif self.is_name("not") and self.tokens[self.place + 1][:2] == ("name", "in"):
                self.place, word = self.place + 2, "not in"
            else:
                return node
            node = Node("op", at, word, (node, self._sum()))

    def _sum(self) -> Node:
        return self._binary(("+", "-"), self._concat)

    def _concat(self) -> Node:
        return self._binary(("~",), self._product)

    def _product(self) -> Node:
        return self._binary(("*", "/", "//", "%"), lambda: self._binary(("**",), self._unary))

    def _binary(self, ops: tuple[str, ...], below: Callable[[], Node]) -> Node:
        node = below()
        while self.is_op(*ops):
            token = self.next()
            node = Node("op", token.at, token.value, (node, below()))
        return node

    def _unary(self, filtered: bool = True) -> Node:
        if self.is_op("-", "+"):
            token = self.next()
            self.depth += 1
            if self.depth > JINJA_DEPTH:
                raise self.wrong("an expression is nested too deeply")
            node = Node("op", token.at, token.value, (self._unary(filtered=False),))
            self.depth -= 1
        else:
            node = self._primary()
        node = self._postfix(node)
        return self._filtered(node) if filtered else node

    def _primary(self) -> Node:
        token = self.next()
        if token.kind == "name":
            return Node("const", token.at, _WORDS[token.value]) if token.value in _WORDS else Node(*_name(token))
        if token.kind == "string":
            text = [token.value]
            while self.now.kind == "string":  # neighbours are joined
                text.append(self.next().value)
            return Node("const", token.at, "".join(text))
        if token.kind in ("integer", "float"):
            return Node("const", token.at, token.value)
        if token.kind == "op" and token.value == "(":
            node = self.several(closing=True)
            self.need(")")
            return node
        if token.kind == "op" and token.value in "[{":
            return self._list(token.at) if token.value == "[" else self._dict(token.at)
        raise wrong("an expression is missing", token.at)

    def several(self, closing: bool = False, conditional: bool = True) -> Node:
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
        return Node("tuple", at, None, tuple(items))

    def _list(self, at: int) -> Node:
        items: list[Node] = []
        while not self.is_op("]"):
            if items:
                self.need(",")
            if self.is_op("]"):
                break
            items.append(self.expression())
        self.need("]")
        return Node("list", at, None, tuple(items))

    def _dict(self, at: int) -> Node:
        items: list[Node] = []
        while not self.is_op("}"):
            if items:
                self.need(",")
            if self.is_op("}"):
                break
            items.append(self.expression())
            self.need(":")
            items.append(self.expression())
        self.need("}")
        return Node("dict", at, None, tuple(items))

    def _postfix(self, node: Node) -> Node:
        while True:
            if self.is_op(".", "["):
                node = self._subscript(node)
            elif self.is_op("("):
                node = Node("call", self.now.at, None, (node, *self._arguments()))
            else:
                return node

    def _filtered(self, node: Node) -> Node:
        while True:
            if self.is_op("|"):
                node = self._filter(node)
            elif self.is_name("is"):
                node = self._test(node)
            elif self.is_op("("):
                node = Node("call", self.now.at, None, (node, *self._arguments()))
            else:
                return node

    def _subscript(self, node: Node) -> Node:
        token = self.next()
        if token.value == ".":
            inner = self.next()
            if inner.kind == "name":
                return Node("attr", inner.at, inner.value, (node,))
            if inner.kind != "integer":
                raise wrong("a name is missing", inner.at)
            return Node("item", inner.at, None, (node, Node("const", inner.at, inner.value)))
        parts = [self._subscribed()]
        while not self.is_op("]"):
            self.need(",")
            parts.append(self._subscribed())
        self.need("]")
        part = parts[0] if len(parts) == 1 else Node("tuple", token.at, None, tuple(parts))
        return Node("item", token.at, None, (node, part))

    def _subscribed(self) -> Node:
        at = self.now.at
        parts: list[Node | None] = [None]
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
        return Node("slice", at, None, tuple(parts))

    def _arguments(self) -> tuple[Node, ...]:
        self.need("(")
        out: list[Node] = []
        while not self.is_op(")"):
            if out:
                self.need(",")
                if self.is_op(")"):
                    break
            at = self.now.at
            if self.is_op("*", "**"):
                stars = self.next().value
                out.append(Node("keyword", at, stars, (self.expression(),)))
            elif self.now.kind == "name" and self.tokens[self.place + 1][:2] == ("op", "="):
                word = self.name()
                self.next()
                out.append(Node("keyword", at, word, (self.expression(),)))
            else:
                out.append(self.expression())
        self.need(")")
        return tuple(out)

    def dotted(self) -> str:
        name = self.name()
        while self.skip("."):
            name += f".{self.name()}"
        return name

    def _filter(self, node: Node | None) -> Node:
        at = self.next().at
        name = self.dotted()
        return Node("filter", at, name, (node, *(self._arguments() if self.is_op("(") else ())))

    def filters(self) -> Node:
        """The filters of a `{% filter %}` or of a `{% set %}` with a body."""
        at = self.now.at
        name = self.dotted()
        node = Node("filter", at, name, (None, *(self._arguments() if self.is_op("(") else ())))
        while self.is_op("|"):
            node = self._filter(node)
        return node

    def _test(self, node: Node) -> Node:
        at = self.next().at
        negated = self.skip_name("not")
        name = self.dotted()
        arguments: tuple[Node, ...] = ()
        if self.is_op("("):
            arguments = self._arguments()
        elif self._argument_follows():
            if self.is_name("is"):
                raise self.wrong("a test follows a test")
            arguments = (self._postfix(self._primary()),)
        test = Node("test", at, name, (node, *arguments))
        return Node("op", at, "not", (test,)) if negated else test

    def _argument_follows(self) -> bool:
        if self.now.kind == "name":
            return self.now.value not in _TEST_STOPS
        return self.now.kind in ("string", "integer", "float") or self.is_op("(", "[", "{")


def _name(token: Token) -> tuple[str, int, str]:
    return "name", token.at, token.value
