"""Texts that run, for the fuzzer: YAML with tags, and chat templates that reach for Python's insides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

Made = tuple[bytes, str]

# ---- YAML

_TAGS: Final = (
    "python/object/apply:os.system",
    "python/name:os.system",
    "python/module:os",
    "python/object:os.Thing",
    "python/object/new:os.system",
    "python/name:no_such.x",
    "python/tuple",
    "python/object/apply:builtins.eval",
    "python/object/new:builtins.type",
)
_YAML_NAMES: Final = ("hparams.yaml", "config.yml", "MLmodel", "hyperparams.yaml", "x.dvc")


def yamls(rng: random.Random) -> Iterator[Made]:
    while True:
        text = _yaml(rng)
        if rng.random() < 0.2:
            at = rng.randint(0, len(text))
            text = (
                text[:at]
                + rng.choice(
                    (
                        "!",
                        "%",
                        ":",
                        "\n",
                        " ",
                        "#",
                        "&a ",
                        "*a",
                        "|",
                        "'",
                        '"',
                        "{",
                        "]",
                        "\\",
                        "\ufeff",
                        "\x85",
                        "\u2028",
                        "<",
                        ">",
                    )
                )
                + text[at + rng.randint(0, 1) :]
            )
        codec = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"))
        mark = {"utf-16-be": b"\xfe\xff", "utf-16-le": b"\xff\xfe"}.get(codec, b"")
        yield mark + text.encode(codec, "replace"), rng.choice(_YAML_NAMES)


def _yaml(rng: random.Random) -> str:
    tag, head = rng.choice(_TAGS), ""
    spelled = _percent(rng, tag) if rng.random() < 0.4 else tag
    way = rng.random()
    if way < 0.5:
        spelled = "!!" + spelled
    elif way < 0.7:
        spelled = "!<tag:yaml.org,2002:" + (spelled if rng.random() < 0.5 else _percent(rng, spelled)) + ">"
    elif way < 0.8:
        head = rng.choice(("%TAG !p! tag:yaml.org,2002:python/\n--- ", "%TAG\t!p! tag:yaml.org,2002:python/\n---\n",
                           "%YAML 1.1\n%TAG !p! tag:yaml.org,2002:python/\n--- ",
                           "%TAG !p! tag:yaml.org,2002:%70ython/\n--- "))  # fmt: skip
        spelled = "!p!" + spelled.removeprefix("python/")
    elif way < 0.9:
        head = rng.choice(("%TAG ! tag:yaml.org,2002:\n--- ", "%TAG !! tag:yaml.org,2002:python/\n--- "))
        spelled = ("!" if head.startswith("%TAG ! ") else "!!") + spelled.removeprefix(
            "python/" if "!!" in head else ""
        )
    else:
        head, spelled = "a: 1\n---\n", "!!" + spelled
    body = rng.choice((" ['true']", " [true]", " {args: [x]}", "\n  - x", " ''", " x", "", "\n", "  # c\n  [x]"))
    place = rng.choice(
        (
            "{}",
            "a: {}",
            "- {}",
            "[{}]",
            "{{a: {}}}",
            "? {}\n: 1",
            "a: &x {}",
            "a: |\n  x\nb: {}",
            "a:\n  - b: {}",
            "a: 'x'\nb: {}",
            "&x {}",
            "a: {} # c",
            "# c\na: {}",
            '"k": {}',
            "? a\n: {}",
            "{}: 1",
        )
    )
    return head + place.format(spelled + body) + "\n"


def _percent(rng: random.Random, text: str) -> str:
    return "".join(f"%{ord(c):02{rng.choice('xX')}}" if rng.random() < 0.2 else c for c in text)


# ---- templates

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
        "[<base>]|sort(attribute=<>)", "[<base>]|selectattr(<>)|list", "[<base>]|sum(attribute=<>)",
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


def _through_name(t: _Template, text: str, depth: int) -> str:
    name, inner = t.fresh(), t.spell(text, depth)
    way = t.rng.randrange(9)
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
        text = _Template(rng).text()
        if rng.random() < 0.1:
            at = rng.randint(0, len(text))
            text = (
                text[:at] + rng.choice((" ", "-", "|", "~", "_", "'", "}", "(", ".")) + text[at + rng.randint(0, 1) :]
            )
        yield text.encode(), "chat_template.jinja"
