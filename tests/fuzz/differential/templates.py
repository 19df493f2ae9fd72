"""Chat templates for the fuzzer that reach for Python's insides, by every way to carry a name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from tests.fuzz.differential.programs import program

Made = tuple[bytes, str]

_WANTED: Final = ("__class__", "__globals__", "__init__", "__mro__", "mro", "__subclasses__", "gi_frame", "_x")
_HONEST: Final = (
    "bos_token",
    "messages[0]['content']",
    "messages[0].role",
    "'a'",
    "1",
    "loop.index",
    "messages",
    "tools",
    "''",
    "eos_token",
    "messages|length",
    "('x', 'y')",
    "['a']",
    "{}",
    "namespace(a='x')",
)


#: Expressions that look up an attribute: `<>` is its name, or a text with the name in it.
_USES: Final = (
    *((form, "%s") for form in (
        "(<base>)[<>]", "(<base>)|attr(<>)", "[<base>]|map(attribute=<>)|list", "[<base>]|groupby(<>)", "(<base>).<>",
        "[<base>]|sort(attribute=<>)", "[<base>]|sort(attribute='x,' ~ <>)",
        "[<base>]|selectattr(<>)|list", "[<base>]|sum(attribute=<>)",
        "[<base>]|rejectattr(<>, 'eq', 1)|list", "[<base>]|unique(attribute=<>)|list", "[<base>]|max(attribute=<>)",
        "[<base>]|join(',', attribute=<>)", "[<base>]|join(',', <>)", "[<base>]|map('attr', <>)|list",
        "(<base>)[<> if true else 'x']", "(<base>)[(<>, 1)[0]]", "[<base>]|map(**{'attribute': <>})|list",
        "[<base>]|min(false, <>)", "[<base>]|unique(false, <>)|list", "[<base>]|sort(false, false, <>)",
    )),
    ("[<base>]|map(attribute=<>)|list", "x.%s"),
    ("<>.format(<base>)", "{0.%s}"), ("<>.format(<base>)", "{0[a].%s}"), ("<>.format(<base>)", "{:{0.%s}}"),
    ("<>.format_map({'a': <base>})", "{a.%s}"),
    ("(<>|attr('format'))(<base>)", "{0.%s}"), ("(<>)['format'](<base>)", "{0.%s}"),
)  # fmt: skip


class _Template:
    """One template: statements that build a name in some way, then use it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.head, self.count = rng, [""], 0

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def spell(self, text: str, depth: int = 3) -> str:
        """An expression whose value is `text`."""
        rng = self.rng
        if depth == 0 or len(text) < 2 or rng.random() < 0.15:
            return rng.choice(("'{}'", '"{}"')).format(self.escaped(text))
        way = rng.choice(_WAYS)
        return way(self, text, depth - 1)

    def escaped(self, text: str) -> str:
        return "".join(f"\\x{ord(c):02x}" if self.rng.random() < 0.1 else c for c in text)

    def halves(self, text: str, depth: int) -> tuple[str, str]:
        at = self.rng.randint(1, len(text) - 1)
        return self.spell(text[:at], depth), self.spell(text[at:], depth)

    def put(self, statement: str) -> None:
        self.head.append(statement)

    def use(self, name: str) -> str:
        """An expression that reaches for the attribute `name`."""
        rng = self.rng
        base = rng.choice(_HONEST) if rng.random() < 0.8 else self.spell("abc", 1)
        form, text = rng.choice(_USES)
        return form.replace("<base>", base).replace("<>", name if "." + "<>" in form else self.spell(text % name, 2))

    def text(self) -> str:
        rng = self.rng
        name = rng.choice(_WANTED) if rng.random() < 0.9 else rng.choice(("role", "content", "x"))
        if rng.random() < 0.2:
            used = rng.choice(
                ("{{ (<b>)[z] }}", "{{ [<b>]|map(attribute=z)|list }}", "{{ [<b>]|sort(attribute=z)|list }}")
            )
            used = used.replace("<b>", rng.choice(_HONEST))
            inside = rng.choice(_INSIDE).replace("<use>", used).replace("<>", self.spell(name, 2))
            return "".join(self.head) + inside
        used = self.use(name)
        place = rng.choice(
            (
                "{{{{ {} }}}}",
                "{{% if {} %}}x{{% endif %}}",
                "{{% for q in [{}] %}}{{% endfor %}}",
                "{{% set zz = {} %}}",
                "{{% macro f(a={}) %}}{{{{ a }}}}{{% endmacro %}}{{{{ f() }}}}",
                "{{% for m in messages %}}{{{{ {} }}}}{{% endfor %}}",
                "{{%- filter upper -%}}{{{{ {} }}}}{{% endfilter %}}",
                "{{% with q = {} %}}{{% endwith %}}",
                "{{% call(x) g() %}}{{% endcall %}}{{{{ {} }}}}",
            )
        )
        return "".join(self.head) + place.format(used)


def _concat(t: _Template, text: str, depth: int) -> str:
    a, b = t.halves(text, depth)
    return t.rng.choice(
        (
            "({} ~ {})",
            "({} + {})",
            "[{}, {}]|join",
            "({}, {})|join('')",
            "''.join([{}, {}])",
            "[{}, {}]|join(d='')",
            "[{}, {}]|list|join",
            "([{}] + [{}])|join",
            "[[{}, {}]]|first|join",
            "'%s%s'|format({}, {})",
            "(({}|list) + ({}|list))|join",
            "'{{}}{{}}'.format({}, {})",
            "('%s%s' % ({}, {}))",
        )
    ).format(a, b)


def _shuffled(t: _Template, text: str, depth: int) -> str:
    a, b = t.halves(text, depth)
    form = t.rng.choice(("([{}, {}]|reverse|join)", "([{}, {}]|reverse|list|join)", "[{}, {}][::-1]|join",
                         "([{}, {}]|reverse|batch(9)|first|join)"))  # fmt: skip
    return form.format(b, a)


#: Expressions whose value is that of `<>`, which is the wanted text, changed: how, and the expression.
_METHODS: Final[tuple[tuple[Callable[[str], str], str], ...]] = (
    (lambda t: t[::-1], "(<>|reverse)"),
    (lambda t: t[::-1], "<>[::-1]"),
    (lambda t: t[:1] + "Q" + t[1:], "<>.replace('Q', '')"),
    (lambda t: t[:2] + "##" + t[2:], "(<>|replace('##', ''))"),
    (lambda t: f" {t} ", "<>.strip()"),
    (lambda t: t + "  ", "(<>|trim)"),
    (lambda t: "  " + t, "<>.lstrip()"),
    (lambda t: t + ",b", "<>.split(',')[0]"),
    (lambda t: "a," + t, "<>.rsplit(',')[-1]"),
    (lambda t: t + "zz", "<>[:-2]"),
    (lambda t: "zz" + t, "<>[2:]"),
    (lambda t: "zz" + t, "<>.removeprefix('zz')"),
    (lambda t: t.replace("_", "-"), "<>.translate({45: 95})"),
    *((str, form) for form in (
        "(<>|string)", "(<>|list|join)", "(<>*1)", "(<>|truncate(99))", "(<>|center(1))", "(<>|default('x'))",
        "<>.ljust(0)", "(<>|e)", "(<>|safe)", "(<>|striptags)", "<>.partition('!')[0]", "(<>|wordwrap(99))",
        "(<>|indent(0))", "(<>|batch(99)|first|join)", "(<>|urlize)", "(<>|urlencode)", "(<>|forceescape)",
        "([<>]|first)", "([<>]|last)", "((<>,)|random)", "([<>]|max)", "([<>]|sort|first)", "[<>].pop()",
        "(<> or 'x')", "('x' and <>)", "(<> if 1 else 2)", "{'k': <>}.k", "{'k': <>}['k']", "{'k': <>}.get('k')",
        "({<>: 1}|list)[0]", "({<>: 1}|first)", "({<>: 1}|items|list)[0][0]", "({'k': <>}|dictsort)[0][1]",
        "({'k': <>}.values()|list)[0]", "dict(k=<>)['k']", "namespace(k=<>).k", "([<>]|map('string')|first)",
        "cycler(<>).next()", "([[<>]]|sum(start=[])|first)", "('a'|int(<>))", "((<>|groupby(0)|first)[1]|join)",
        "(dict(<>=1)|first)", "([[<>, 1]]|map('first')|first)", "([<>]|unique|first)", "([<>]|slice(1)|first|first)",
        "([<>]|tojson)[2:-2]", "([<>]|pprint)[2:-2]", "([<>] + [])[0]", "([<>]*2)[1]", "(<>,)[-1]",
        "([<>]|select|first)", "([<>]|reject('none')|first)", "(['a', <>]|map('replace', 'a', '')|last)",
    )),
)  # fmt: skip


def _method(t: _Template, text: str, depth: int) -> str:
    change, form = t.rng.choice(_METHODS)
    return form.replace("<>", text if "dict(<>=" in form else t.spell(change(text), depth))


#: Statements in which z is the value <> where it is used.
_INSIDE: Final = (
    "{% macro u(z) %}<use>{% endmacro %}{{ u(<>) }}", "{% macro u(z) %}<use>{% endmacro %}{{ u(z=<>) }}",
    "{% macro u(z) %}<use>{% endmacro %}{{ u(*[<>]) }}", "{% macro u(z) %}<use>{% endmacro %}{{ u(**{'z': <>}) }}",
    "{% macro u(z=<>) %}<use>{% endmacro %}{{ u() }}", "{% macro u(q, z) %}<use>{% endmacro %}{{ u(1, <>) }}",
    "{% macro dict(z) %}<use>{% endmacro %}{{ dict(<>) }}",
    "{% macro u() %}{% set z = varargs[0] %}<use>{% endmacro %}{{ u(<>) }}",
    "{% macro u() %}{% set z = kwargs.y %}<use>{% endmacro %}{{ u(y=<>) }}",
    "{% macro u() %}{{ caller(<>) }}{% endmacro %}{% call(z) u() %}<use>{% endcall %}",
    "{% macro u(q) %}{{ caller(q) }}{% endmacro %}{% call(z) u(<>) %}<use>{% endcall %}",
    "{% for z in [<>] recursive %}<use>{% endfor %}", "{% for q, z in [(1, <>)] %}<use>{% endfor %}",
    "{% for z in [''] recursive %}<use>{% if not loop.depth0 %}{{ loop([<>]) }}{% endif %}{% endfor %}",
    "{% for q in ['', <>] %}{% set z = loop.nextitem or '' %}<use>{% endfor %}",
    "{% with z = <> %}<use>{% endwith %}", "{% block u %}{% set z = <> %}<use>{% endblock %}",
    "{% for q, z in {<>: <>}.items() %}<use>{% endfor %}", "{% for z in {<>: 1} %}<use>{% endfor %}",
)  # fmt: skip
#: Statements that carry the value <>, which is the text <raw>, under the name <n>; and the expression that has it.
_CARRIERS: Final = (
    ("{% set <n> | trim %}<raw>{% endset %}", "<n>"),
    ("{% set <n> | replace('Q', '') %}{{ <> }}Q{% endset %}", "<n>"),
    ("{% set <n> %}{% raw %}<raw>{% endraw %}{% endset %}", "<n>"),
    ("{% set <n> %}{# c #}<raw>{# c #}{% endset %}", "<n>"),
    ("{% set <n> %}{% if true %}{{ <> }}{% endif %}{% endset %}", "<n>"),
    ("{% set <n> %}{% filter trim %} {{ <> }} {% endfilter %}{% endset %}", "<n>"),
    ("{% set <n> = namespace(k=<>) %}", "<n>['k']"),
    ("{% set <n> = namespace({'k': <>}) %}", "<n>.k"),
    ("{% set <n> = namespace() %}{% set <n>q = <n> %}{% set <n>q.k = <> %}", "<n>.k"),
    (
        "{% macro <n>(a) %}{{ caller(a) }}{% endmacro %}"
        "{% set <n>q %}{% call(b) <n>(<>) %}{{ b }}{% endcall %}{% endset %}",
        "<n>q",
    ),
    ("{% macro <n>() %}{{ varargs[0] }}{% endmacro %}", "<n>(<>)"),
    ("{% macro <n>() %}{{ kwargs.z }}{% endmacro %}", "<n>(z=<>)"),
    ("{% macro <n>(a) %}{{ a }}{% endmacro %}", "<n>(*[<>])"),
    ("{% macro <n>(a) %}{{ a }}{% endmacro %}", "<n>(**{'a': <>})"),
    ("{% macro <n>(a=<>) %}{{ a }}{% endmacro %}", "<n>()"),
    ("{% macro dict(a) %}{{ a }}{% endmacro %}", "dict(<>)"),
    ("{% macro range(a) %}{{ a }}{% endmacro %}", "range(<>)"),
    (
        "{% set <n> %}{% for a in [<>] recursive %}{% if loop.depth0 %}{{ a }}{% else %}{{ loop([a]) }}{% endif %}"
        "{% endfor %}"
        "{% endset %}",
        "<n>",
    ),
    ("{% set <n> %}{% for a in [<>, 1] %}{{ loop.previtem or '' }}{% endfor %}{% endset %}", "<n>"),
    ("{% set <n> %}{% for a in [1] %}{{ loop.cycle(<>) }}{% endfor %}{% endset %}", "<n>"),
    ("{% set <n> = ['x', <>] %}{% set _ = <n>.reverse() %}", "<n>[0]"),
    ("{% set <n> = [] %}{% set _ = <n>.insert(0, <>) %}", "<n>[0]"),
    ("{% set _ = messages[0].update({'<n>': <>}) %}", "messages[0].<n>"),
    ("{% set <n>, <n>q = {'k': <>}.popitem() %}", "<n>q"),
    ("{% with <n>q = <> %}{% set <n> = <n>q %}{% endwith %}{% set <n> = <> %}", "<n>"),
    ("{% set <n> = {'a': [<>]} %}{% for k, v in <n>.items() %}{% set <n>q = v %}{% endfor %}", "<n>.a[0]"),
    ("{% block <n> %}{% endblock %}{% set <n> = [[[<>]]] %}", "<n>[0][0][0]"),
    ("{% set <n> = 'x' if missing else <> %}", "<n>"),
)


def _through_name(t: _Template, text: str, depth: int) -> str:
    name, inner = t.fresh(), t.spell(text, depth)
    way = t.rng.randrange(9 + len(_CARRIERS))
    if way >= 9:
        statements, used = _CARRIERS[way - 9]
        t.put(statements.replace("<n>", name).replace("<>", inner).replace("<raw>", text))
        return used.replace("<n>", name)
    if way == 0:
        other = t.rng.choice(("", f"{{% set {name} = {t.rng.choice(_HONEST)} %}}"))
        t.put(f"{other}{{% set {name} = {inner} %}}")
    elif way == 1:
        t.put(f"{{% set {name} %}}{{{{ {inner} }}}}{{% endset %}}")
    elif way == 2:
        t.put(f"{{% set {name} %}}{text}{{% endset %}}")
    elif way == 3:
        t.put(f"{{% macro {name}() %}}{{{{ {inner} }}}}{{% endmacro %}}")
        return f"{name}()"
    elif way == 4:
        t.put(
            f"{{% set {name} = namespace(s='') %}}{{% for c in {inner} %}}"
            f"{{% set {name}.s = {name}.s ~ c %}}{{% endfor %}}"
        )
        return f"{name}.s"
    elif way == 5:
        t.put(f"{{% set {name} = [] %}}{{% for c in {inner} %}}{{% set _ = {name}.append(c) %}}{{% endfor %}}")
        return f"({name}|join)"
    elif way == 6:
        t.put(f"{{% set {name}, zq = {inner}, 1 %}}")
    elif way == 7:
        t.put(f"{{% macro {name}(a) %}}{{{{ a }}}}{{% endmacro %}}")
        return f"{name}({inner})"
    else:
        t.put(f"{{% set {name} = {{}} %}}{{% set _ = {name}.update({{'k': {inner}}}) %}}")
        return f"{name}.k"
    return name


_WAYS: Final[tuple[Callable[[_Template, str, int], str], ...]] = (
    _concat, _shuffled, _method, _method, _through_name,
)  # fmt: skip


def templates(rng: random.Random) -> Iterator[Made]:
    while True:
        text = _Template(rng).text() if rng.random() < 0.6 else program(rng)
        if rng.random() < 0.1:
            at = rng.randint(0, len(text))
            text = (
                text[:at] + rng.choice((" ", "-", "|", "~", "_", "'", "}", "(", ".")) + text[at + rng.randint(0, 1) :]
            )
        yield text.encode(), "chat_template.jinja"
