"""The part of Go's text/template that chat templates use, written from its documentation: actions with trim markers,
`range`, `if`/`else if`/`else`, variables, fields, strings, brackets, `eq`, `not`, `and`, `or`, `len`, `slice`; and
Ollama's `currentDate` and `yesterdayDate` (template/template.go)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any, NamedTuple

_ACTION = re.compile(r"\{\{(-?)\s?(.*?)\s?(-?)\}\}", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|:=|=|\(|\)|\$?[\w.]+|\$')


class Node(NamedTuple):
    kind: str  # text, action, if, range
    text: str = ""
    body: tuple[Node, ...] = ()
    other: tuple[Node, ...] = ()


def render(template: str, data: Mapping[str, Any], day: date = date(2026, 1, 2)) -> str:
    """What Go writes for the template and `data`, on a day."""
    pieces = list(_pieces(template))
    body, rest = _block(pieces, 0)
    assert rest == len(pieces), "an {{ end }} too many"
    today = {"currentDate": day.isoformat(), "yesterdayDate": (day - timedelta(days=1)).isoformat()}
    return _write(body, data, [{"$": data, **today}])


def _pieces(template: str) -> Iterator[tuple[str, str]]:
    """Texts and actions, the texts trimmed as the markers say."""
    at, trim = 0, False
    for found in _actions(template):
        start, end, left, inside, right = found
        text = template[at:start]
        text = text.lstrip() if trim else text
        yield "text", text.rstrip() if left else text
        yield "action", inside
        at, trim = end, right
    yield "text", template[at:].lstrip() if trim else template[at:]


def _actions(template: str) -> Iterator[tuple[int, int, bool, str, bool]]:
    """Actions; the braces in a string don't end one."""
    at = 0
    while (start := template.find("{{", at)) >= 0:
        end = start + 2
        while not template.startswith("}}", end):
            string = _STRING.match(template, end)
            end = string.end() if string else end + 1
            assert end < len(template), "unclosed action"
        inside = template[start + 2 : end]
        left, right = inside.startswith("-"), inside.endswith("-")
        yield start, end + 2, left, inside.strip("-").strip() if not _STRING.search(inside) else _bare(inside), right
        at = end + 2


def _bare(inside: str) -> str:
    return inside.removeprefix("-").removesuffix("-").strip()


def _block(pieces: list[tuple[str, str]], at: int) -> tuple[tuple[Node, ...], int]:
    """The nodes up to the end, or the else, of a block."""
    found = []
    while at < len(pieces):
        kind, text = pieces[at]
        word = text.split(maxsplit=1)[0] if kind == "action" and text else ""
        if word in ("end", "else"):
            break
        if word in ("if", "range"):
            node, at = _branch(word, text[len(word) :].strip(), pieces, at + 1)
            found.append(node)
            continue
        found.append(Node(kind, text))
        at += 1
    return tuple(found), at


def _branch(kind: str, condition: str, pieces: list[tuple[str, str]], at: int) -> tuple[Node, int]:
    body, at = _block(pieces, at)
    other: tuple[Node, ...] = ()
    text = pieces[at][1]
    if text.startswith("else if"):
        inner, at = _branch("if", text.removeprefix("else if").strip(), pieces, at + 1)
        return Node(kind, condition, body, (inner,)), at
    if text == "else":
        other, at = _block(pieces, at + 1)
    assert pieces[at][1] == "end"
    return Node(kind, condition, body, other), at + 1


def _write(body: tuple[Node, ...], dot: Any, scopes: list[dict[str, Any]]) -> str:
    out = ""
    for node in body:
        if node.kind == "text":
            out += node.text
        elif node.kind == "action":
            out += _act(node.text, dot, scopes)
        elif node.kind == "if":
            chosen = node.body if _value(node.text, dot, scopes) else node.other
            out += _write(chosen, dot, [*scopes, {}])
        else:
            named = re.match(r"(\$\w+), (\$\w+) := (.*)", node.text)
            for number, item in enumerate(_value(named[3] if named else node.text, dot, scopes)):
                scope = {named[1]: number, named[2]: item} if named else {}
                out += _write(node.body, item, [*scopes, scope])
    return out


def _act(text: str, dot: Any, scopes: list[dict[str, Any]]) -> str:
    assigned = re.match(r"(\$\w+)\s*(:?=)\s*(.*)", text, re.DOTALL)
    if assigned is None:
        return str(_value(text, dot, scopes))
    name, sign, value = assigned.groups()
    scope = scopes[-1] if sign == ":=" else next(s for s in reversed(scopes) if name in s)
    scope[name] = _value(value, dot, scopes)
    return ""


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "eq": lambda a, *b: any(a == x for x in b),
    "not": lambda a: not a,
    "and": lambda *a: next((x for x in a if not x), a[-1]),
    "or": lambda *a: next((x for x in a if x), a[-1]),
    "len": len,
    "slice": lambda a, start=0, end=None: a[start:end],
}


def _value(text: str, dot: Any, scopes: list[dict[str, Any]]) -> Any:
    tokens = _TOKEN.findall(text)
    found = _call(tokens, dot, scopes)
    assert not tokens, text
    return found


def _call(tokens: list[str], dot: Any, scopes: list[dict[str, Any]]) -> Any:
    """The value of a call or an operand, up to the end or the closing bracket; takes its tokens away."""
    function = _FUNCTIONS.get(tokens[0]) if tokens[0] != "(" else None
    if function is not None:
        tokens.pop(0)
    operands = []
    while tokens and tokens[0] != ")":
        if tokens[0] == "(":
            tokens.pop(0)
            operands.append(_call(tokens, dot, scopes))
            assert tokens.pop(0) == ")"
        else:
            operands.append(_operand(tokens.pop(0), dot, scopes))
    assert function or len(operands) == 1, operands
    return function(*operands) if function else operands[0]


def _operand(token: str, dot: Any, scopes: list[dict[str, Any]]) -> Any:
    if token.startswith('"'):
        return json.loads(token)
    if token.isdecimal():
        return int(token)
    if token == ".":
        return dot
    if token.startswith("."):
        return dot[token[1:]]
    name, _, field = token.partition(".")
    found = next(s[name] for s in reversed(scopes) if name in s)
    return found[field] if field else found
