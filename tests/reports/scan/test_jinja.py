"""Our reader of Jinja templates against jinja2's own: the same expressions in whatever both take, and what jinja2 takes
we take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import ext, nodes
from jinja2.parser import Parser
from tests.examples import examples
from tests.reports.scan.other_vectors import TEMPLATES
from tests.reports.scan.test_scanners import HONEST

from weighbridge.base.errors import FormatError
from weighbridge.reports.scan.template import jinja
from weighbridge.reports.scan.template.jinja import Expr


class Generation(ext.Extension):
    """`{% generation %}` as transformers defines it."""

    tags = {"generation"}  # noqa: RUF012 - as its base has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


THEIRS = jinja2.Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do", Generation]
)
_OPERATORS: dict[type[nodes.Node], str] = {
    nodes.Add: "+", nodes.Sub: "-", nodes.Mul: "*", nodes.Div: "/", nodes.FloorDiv: "//", nodes.Mod: "%",
    nodes.Pow: "**", nodes.And: "and", nodes.Or: "or", nodes.Not: "not", nodes.Neg: "-", nodes.Pos: "+",
    nodes.CondExpr: "if",
}  # fmt: skip
_COMPARED = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}


def facts_of_theirs(text: str) -> Counter[tuple[str, Any]]:
    """What jinja2's tree holds, as (kind, value) of our nodes."""
    found: Counter[tuple[str, Any]] = Counter()
    for node in THEIRS.parse(text).find_all(nodes.Node):
        found.update(_theirs(node))
    return found


def _theirs(node: nodes.Node) -> Iterator[tuple[str, Any]]:
    match node:
        case nodes.Name(ctx="load"):
            yield "name", node.name
        case nodes.Const():
            yield "const", repr(node.value)
        case nodes.Getattr():
            yield "attr", node.attr
        case nodes.Getitem():
            yield "item", None
        case nodes.Filter() | nodes.Test():
            yield type(node).__name__.lower(), node.name
            yield from _stars(node)
        case nodes.Call():
            yield "call", None
            yield from _stars(node)
        case nodes.Keyword() if node.key != "autoescape":  # how it writes that statement
            yield "keyword", node.key
        case nodes.Concat():
            yield from (("op", "~") for _ in node.nodes[1:])
        case nodes.Operand():
            yield "op", _COMPARED[node.op]
        case _ if type(node) in _OPERATORS:
            yield "op", _OPERATORS[type(node)]
        case nodes.List() | nodes.Dict() | nodes.Slice():
            yield type(node).__name__.lower(), None
        case nodes.Tuple(ctx="load"):
            yield "tuple", None


def _stars(node: Any) -> Iterator[tuple[str, Any]]:
    yield from (("keyword", star) for star, there in (("*", node.dyn_args), ("**", node.dyn_kwargs)) if there)


def facts_of_ours(text: str) -> Counter[tuple[str, Any]]:
    return Counter((n.kind, repr(n.value) if n.kind == "const" else n.value) for n in jinja.read(text).nodes())


def agree(text: str) -> bool:
    """Whether jinja2 takes a template; if so we must, and see the same in it."""
    try:
        theirs = facts_of_theirs(text)
    except jinja2.TemplateSyntaxError:
        return False
    assert facts_of_ours(text) == theirs
    return True


CASES = [
    *HONEST,
    *(text for text, _, rule in TEMPLATES if rule not in ("template/unreadable", "template/loading")),
    "{{ () }}{{ (1,) }}{{ 1, 2 }}{{ a.0 }}{{ a[1,2] }}{{ 1.5e3 }}{{ 0x1F }}{{ 1_000 }}{{ '\\x5f' }}{{ a == b < c }}",
    "{{ x[::-1] }}{{ x[1:] }}{{ x[:1] }}{{ x[a:b:c] }}{{ x[:] }}{{ a if b else c }}{{ a if b }}{{ -x.y|abs }}",
    "{{ a is not defined and b is divisibleby 3 or c is string }}{{ x is in [1] }}{{ x is sameas y.z }}",
    "{{ not a in b }}{{ a not in b }}{{ not (a or b) }}{{ 2 ** 3 ** 4 }}{{ -2 ** 2 }}{{ a ~ b ~ c + d }}",
    "{{ f(1, *c, **d) }}{{ f(a=1, b=2,) }}{{ a|b(c)(d) }}{{ {'a': 1, 'b': [1, 2,],} }}{{ a|b.c(d=1) }}",
    "{% for k, v in d.items() if k recursive %}{{ loop(v) }}{% else %}x{% endfor %}{% for (a, b) in c %}{% endfor %}",
    "{% set a, b = 1, 2 %}{% set ns.x = 1 %}{% set x %}a{% endset %}{% set x | upper|trim(1) %}a{% endset %}",
    "{% macro f(a, b='x') %}{{ a }}{% endmacro %}{% call(u) f(1) %}{% endcall %}{% call f() %}{% endcall %}",
    "{% with a=1, b=c %}{% endwith %}{% block x scoped %}{% endblock x %}{% autoescape true %}{% endautoescape %}",
    "{% raw %}{{ no }}{% endraw %}{# {{ no }} #}{%- raw -%}{% no %}{%- endraw +%}{{- a -}}{%+ if a +%}{% endif %}",
    "{{ 'a' \"b\" 'c' }}{{ '%}' }}{{ '}}' ~ {'a': {}} }}{% do x.append(1) %}",
    "{% for i in x %}{% break %}{% continue %}{% endfor %}",
]


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_the_same_is_seen_as_jinja2_sees(text: str) -> None:
    assert agree(text)


NAMES = st.sampled_from(["a", "b", "messages", "loop", "__class__", "e", "true", "None", "é"])
WORDS = st.sampled_from(
    ["'x'", '"y"', "'__cla' 'ss__'", "'\\x5f'", "'a\\'b'", "1", "0x1f", "1_0", "2.5", "1e3", "'}}'"]
)


def _more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "not in", "and", "or"])
    return st.one_of(
        st.builds("{} {} {}".format, inner, operator, inner),
        st.builds("({})".format, inner), st.builds("not {}".format, inner), st.builds("-{}".format, inner),
        st.builds("{}.{}".format, inner, NAMES), st.builds("{}[{}]".format, inner, inner),
        st.builds("{}[{}:{}]".format, inner, inner, inner), st.builds("{}[::{}]".format, inner, inner),
        st.builds("{}|{}".format, inner, NAMES), st.builds("{}|map(attribute={})".format, inner, inner),
        st.builds("{} is {}".format, inner, NAMES), st.builds("{} is not {} {}".format, inner, NAMES, inner),
        st.builds("{}({}, k={})".format, inner, inner, inner), st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{{}: {}}}".format, inner, inner), st.builds("{} if {} else {}".format, inner, inner, inner),
        st.builds("{}, {}".format, inner, inner), st.builds("{} {}".format, inner, inner),
    )  # fmt: skip


EXPRESSIONS = st.recursive(st.one_of(NAMES, WORDS), _more, max_leaves=8)
FORMS = st.sampled_from(
    [
        "{{{{ {} }}}}",
        "{{%- if {} %}}x{{% endif -%}}",
        "{{% set q = {} %}}",
        "{{% for i in {} %}}{{% endfor %}}",
        "{{{{{}}}}}",
    ]
)


@given(FORMS, EXPRESSIONS)
@examples(600)
def test_in_any_expression_the_same_is_seen(form: str, expression: str) -> None:
    agree(form.format(expression))


@given(st.text(alphabet="{}%#'\"|.()[]~=- \n_abisx0", max_size=60))
@examples(600)
def test_in_any_text_the_same_is_seen(text: str) -> None:
    if not agree(text):
        try:
            jinja.read(text)
        except FormatError:
            return


def test_what_is_drawn_is_mostly_taken_by_jinja2() -> None:
    taken: list[bool] = []

    @given(EXPRESSIONS)
    @settings(max_examples=100, database=None)
    def draw(expression: str) -> None:
        taken.append(agree("{{ " + expression + " }}"))

    draw()
    assert sum(taken) > len(taken) // 3


@pytest.mark.mutation
@pytest.mark.parametrize("word", sorted(set(jinja._STATEMENTS) - jinja.LOADING))
def test_each_statement_is_one_of_jinja2s(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(t for t in CASES if f"{word}" in {s.word for s in jinja.read(t).statements})
    assert agree(text)
    monkeypatch.setattr(jinja, "_STATEMENTS", {w: f for w, f in jinja._STATEMENTS.items() if w != word})
    with pytest.raises(FormatError):
        jinja.read(text)


def test_places_are_those_of_the_text() -> None:
    text = "{{ a }}\n{% if x['__class__'] %}{% endif %}"
    node = next(n for n in jinja.read(text).nodes() if n.kind == "const")
    assert isinstance(node, Expr)
    assert text[node.at :].startswith("'__class__'")
