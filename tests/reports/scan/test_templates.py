"""The abstract values of a template's expressions against jinja2's, and our tables against its lists of nodes, filters
and tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import filters, nodes
from jinja2 import tests as jinja_tests
from tests.examples import examples
from tests.oracles import tree as oracle

from weighbridge.reports.scan.template import callables, expressions, interpreter, tree, values
from weighbridge.reports.scan.template.interpreter import check_template as read
from weighbridge.reports.scan.template.values import Value, is_inner

# ---- the tables

#: Nodes that only extensions or jinja2's optimizer make, and those that are nothing by themselves.
UNUSED = {
    nodes.EvalContextModifier, nodes.OverlayScope, nodes.Literal, nodes.BinExpr, nodes.UnaryExpr, nodes.Helper,
    nodes.ContextReference, nodes.DerivedContextReference, nodes.EnvironmentAttribute, nodes.ExtensionAttribute,
    nodes.ImportedName, nodes.InternalName, nodes.MarkSafe, nodes.MarkSafeIfAutoescape, nodes._FilterTestCommon,
    nodes.Expr, nodes.Stmt, nodes.Template, nodes.TemplateData, nodes.NSRef,
}  # fmt: skip


def _below(kind: type[nodes.Node]) -> Iterator[type[nodes.Node]]:
    for sub in kind.__subclasses__():
        yield from (sub, *_below(sub))


def test_every_node_of_jinja2_is_in_a_table() -> None:
    known = {*interpreter._STATEMENTS, *expressions._EXPRESSIONS}
    made = {k for k in _below(nodes.Node) if k.__module__ == nodes.__name__}
    assert made - known == UNUSED


def test_the_filters_and_tests_are_those_of_jinja2() -> None:
    assert {*callables.FILTERS, "attr", "map"} == set(filters.FILTERS)
    assert set(jinja_tests.TESTS) == callables.TESTS


PLAIN = ("a", [1], {"a": 1}, {1}, 1, 1.5, b"a", range(3), (1, 2))


def test_the_methods_are_those_of_plain_objects() -> None:
    import datetime

    everything = {m for one in (*PLAIN, datetime.datetime(2024, 1, 1)) for m in dir(one)}
    assert set(callables.METHODS) <= everything
    assert not [m for m in callables.METHODS if is_inner(m)]


@pytest.mark.mutation
@pytest.mark.parametrize("kind", [*interpreter._STATEMENTS, *expressions._EXPRESSIONS])
def test_a_node_that_is_in_no_table_is_unproven(kind: type[nodes.Node], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, table in ((interpreter, "_STATEMENTS"), (expressions, "_EXPRESSIONS")):
        monkeypatch.setattr(module, table, {k: v for k, v in getattr(module, table).items() if k is not kind})
    rules = {fault.rule for fault in read(SAMPLE)}
    assert "template/unproven" in rules


SAMPLE = """
{% set a, b = (1, 2) %}{% set n = namespace(k='v') %}{% set n.k = {'x': [1]} %}{% set c | trim %}x{% endset %}
{% for i in x if i %}{{ i }}{% if i %}{% break %}{% elif a %}{% continue %}{% endif %}{% endfor %}
{% macro f(a, b='x') %}{{ a }}{{ caller() }}{% endmacro %}{% call f(1) %}y{% endcall %}{% with d=1 %}{% endwith %}
{% filter upper %}z{% endfilter %}{% generation %}g{% endgeneration %}{% autoescape true %}{% endautoescape %}
{% block e %}{% endblock %}{% do x.append(1) %}{% include 'a' %}{% import 'a' as g %}{% from 'a' import h %}
{% extends 'a' %}{{ a.b[c][1:2:3]|join(',', attribute='d') }}{{ x is sameas y }}{{ f(1, k=2, *l, **m) }}
{{ a ~ b + c * d % e - f / g // h ** -i }}{{ +a and b or not c }}{{ a < b in c }}{{ a if b else c }}
"""


# ---- values

ENVIRONMENT = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
CONTEXT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c,d"}],
    "tools": None,
    "bos_token": "__init__",
    "add_generation_prompt": True,
}


def covers(value: Value, actual: object) -> bool:
    """Whether an abstract value stands for an object."""
    if value.flags & values.ANY:
        return True
    if isinstance(actual, str):
        own = value.flags & values.TEXT or (value.flags & (values.DATA | values.BEGUN) and not is_inner(actual))
        # the text of what is undefined is empty: it hides no name, since names are looked for inside texts too
        return not actual or bool(own) or str(actual) in map(str, value.constants)
    if isinstance(actual, list | tuple | dict | set):
        parts = [*actual, *actual.values()] if isinstance(actual, dict) else [*actual]
        whole = any(isinstance(c, tuple) and list(c) == parts for c in value.constants)
        held = value.is_container or bool(value.flags & values.TEXT)
        given = value.flags & values.DATA and not any(isinstance(p, str) and is_inner(p) for p in parts)
        return not parts or whole or bool(given) or (held and all(covers(value.element, part) for part in parts))
    if callable(actual) and not isinstance(actual, jinja2.Undefined):
        return bool(value.flags & (values.OBJECT | values.METHOD | values.DATA | values.DERIVED))
    return True  # numbers, None, undefined: none of them is a name


def abstract(expression: str) -> Value:
    template = tree.parse("{{ " + expression + " }}", trimmed=True)
    node = template.body[0].nodes[0]  # type: ignore[attr-defined]
    return interpreter._Pass(nodes.Template([]), {}, set(), changing=False).value(node)


def concrete(expression: str) -> object:
    """What jinja2 makes of it; Undefined for what it refuses."""
    try:
        made = ENVIRONMENT.compile_expression(expression, undefined_to_none=False)(**CONTEXT)
        return list(made) if isinstance(made, Iterator) else made
    except Exception:
        return jinja2.Undefined()


TEXTS = st.sampled_from(
    ["'__init__'", "'mro'", "'orm'", "'x'", "''", "'__IN'", "'it__'", "'a,b'", "' mro '", "'\\x5f'"]
)
OTHERS = st.sampled_from(
    ["0", "1", "-1", "2", "true", "none", "messages", "bos_token", "messages[0]", "missing", "1.5"]
)
ARGUMENTLESS = sorted({*callables.FILTERS} - {"random", "pprint"})
METHODS = sorted(set(callables.METHODS) - callables.CHANGING - {"strftime", "isoformat", "decode"})


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["+", "-", "*", "%", "~", "~", "and", "or", "//"])
    one, name = st.sampled_from(ARGUMENTLESS), st.sampled_from(METHODS)
    return st.one_of(
        st.builds("({} {} {})".format, inner, operator, inner), st.builds("[{}, {}]".format, inner, inner),
        st.builds("({}|{})".format, inner, one), st.builds("({}|{}({}))".format, inner, one, inner),
        st.builds("({}|{}({}, {}))".format, inner, one, inner, inner), st.builds("{}.{}()".format, inner, name),
        st.builds("{}.{}({})".format, inner, name, inner), st.builds("{}.{}({}, {})".format, inner, name, inner, inner),
        st.builds("{}[{}]".format, inner, inner), st.builds("{}[{}:{}]".format, inner, inner, inner),
        st.builds("{}[::{}]".format, inner, inner), st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("{{{}: {}}}".format, inner, inner), st.builds("({}, {})".format, inner, inner),
        st.builds("({}|map({}))".format, inner, st.sampled_from([f"'{n}'" for n in ARGUMENTLESS])),
        st.builds("({}|map(attribute={}))".format, inner, inner), st.builds("({}|groupby({}))".format, inner, inner),
        st.builds("({}|sum(start={}))".format, inner, inner), st.builds("dict(a={}, mro={})".format, inner, inner),
        st.builds("({}|replace(new={}, old={}))".format, inner, inner, inner), st.builds("(-{})".format, inner),
        st.builds("({}|default({}, true))".format, inner, inner), st.builds("({} is string)".format, inner),
    )  # fmt: skip


EXPRESSIONS = st.recursive(TEXTS | OTHERS, _larger, max_leaves=6)


@pytest.mark.costly
@given(EXPRESSIONS)
@examples(1500)
def test_an_expression_without_a_finding_is_among_what_it_may_be(expression: str) -> None:
    if not list(read("{{ " + expression + " }}")):
        actual = concrete(expression)
        assert covers(abstract(expression), actual), (actual, abstract(expression))


@pytest.mark.costly
def test_what_is_drawn_is_mostly_something() -> None:
    made: list[bool] = []

    @given(EXPRESSIONS)
    @settings(max_examples=200, database=None, derandomize=True)
    def draw(expression: str) -> None:
        made.append(not isinstance(concrete(expression), jinja2.Undefined))

    draw()
    assert sum(made) > len(made) // 5


# ---- honest templates


@cache
def published() -> dict[str, str]:
    """The chat templates of the source distribution of llama.cpp's Python bindings."""
    folder = oracle.require() / "models" / "templates"
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}


#: Templates that use what jinja2 and transformers don't have, or that put a name together.
EXCEPTIONS = {
    "deepseek-ai-DeepSeek-V3.2.jinja": "template/unproven",  # the filter from_json
    "deepseek-ai-DeepSeek-V4.jinja": "template/unproven",
    "deepseek-ai-DeepSeek-V4-Flash-0731.jinja": "template/unproven",
    "IFM-K2-Horizon.jinja": "template/built-name",  # references of a JSON schema, put together
    "google-translategemma-4b-it.jinja": "template/built-name",  # a language's code, with `replace`
}


@pytest.mark.costly
def test_published_templates_are_silent() -> None:
    loud = {}
    for name, text in published().items():
        found = {fault.rule for fault in read(text)}
        if found:
            loud[name] = found
    assert loud == {name: {rule} for name, rule in EXCEPTIONS.items()}
