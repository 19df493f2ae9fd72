"""Templates by grammar alone, for the fuzzer: any statement, any expression, over few names and pieces of names."""

from __future__ import annotations

import random
from typing import Final

_PIECES: Final = (
    "'__'", "'_'", "'class'", "'__class__'", "'mr'", "'o'", "'orm'", "'ini'", "'t'", "'__INIT__'", "'x'", "''",
    "'{0.'", "'}'", "'%s%s'", "'role'", "'a,b'", "0", "1", "-1", "2", "true", "none", "messages", "messages[0]",
    "bos_token", "range", "namespace", "loop", "dict", "missing",
)  # fmt: skip
_FEW: Final = ("a", "b", "c", "n", "dict", "k")
_FILTERS: Final = (
    "join", "first", "last", "reverse", "list", "string", "lower", "trim", "items", "batch(2)", "slice(2)",
    "sum(start=<>)", "map('first')", "map('lower')", "map(attribute=<>)", "groupby(<>)", "default(<>)",
    "replace(<>, <>)", "sort", "unique", "select", "max", "dictsort", "tojson", "format(<>, <>)", "map(<>)",
    "title", "center(3)", "int(<>)", "random", "selectattr(<>)", "join(<>)", "attr(<>)", "sort(attribute=<>)", "e",
    "striptags", "xmlattr", "truncate(5)", "wordwrap(2)", "indent",
)  # fmt: skip
_METHODS_OF: Final = (
    "append(<>)", "reverse()", "pop()", "update({<>: <>})", "keys()", "values()", "items()", "get(<>)", "join(<>)",
    "strip()", "strip(<>)", "split(<>)", "replace(<>, <>)", "format(<>)", "upper()", "lower()", "insert(0, <>)",
    "extend(<>)", "copy()", "k", "k(<>)", "a", "encode()", "partition(<>)", "setdefault(<>)", "popitem()", "sort()",
    "title()", "removeprefix(<>)", "translate({45: 95})", "name",
)  # fmt: skip
_EXPRESSIONS: Final = (
    "(<> ~ <>)", "(<> + <>)", "(<> * <>)", "(<> % <>)", "<>[<>]", "<>[<>]", "<>[<>:<>]", "<>[::<>]", "[<>, <>]",
    "(<>, <>)", "{<>: <>}", "(<> if <> else <>)", "(<> or <>)", "(<> and <>)", "<n>(<>)", "<n>(a=<>)", "<n>(*<>)",
    "<n>(**{'a': <>})", "dict(k=<>)", "namespace(k=<>)", "namespace(<>)", "loop(<>)", "loop.previtem", "caller(<>)",
    "varargs", "kwargs", "loop.cycle(<>)", "<n>.k", "<n>.a", "(<> - <>)", "(<> is string)", "range(<>)",
)  # fmt: skip
_STATEMENTS: Final = (
    "{{ <> }}", "{% set <n> = <> %}", "{% set <n>, <n> = <> %}", "{% set <n>.k = <> %}",
    "{% set <n> %}#{% endset %}", "{% set <n> | <f> %}#{% endset %}", "{% for <n> in <> %}#{% endfor %}",
    "{% for <n>, <n> in <> %}#{% endfor %}", "{% for <n> in <> recursive %}#{{ loop(<>) }}{% endfor %}",
    "{% if <> %}#{% elif <> %}#{% else %}#{% endif %}", "{% macro <n>(a, b=<>) %}#{% endmacro %}",
    "{% macro <n>(x) %}#{{ caller(x) }}{% endmacro %}", "{% call(a) <n>(<>) %}#{% endcall %}",
    "{% with <n> = <> %}#{% endwith %}", "{% filter <f> %}#{% endfilter %}", "{% raw %}__class__{% endraw %}", "__",
    "class", "mro", "{# c #}", "{% set _ = <n>.append(<>) %}", "#", "#",
    "{% autoescape false %}#{% endautoescape %}",
)  # fmt: skip


_USED: Final = ("{{ <b>[<n>] }}", "{{ [<b>]|map(attribute=<n>)|list }}", "{{ <b>[<n>|join] }}", "{{ <n>.format(<b>) }}")


def _expression(rng: random.Random, depth: int) -> str:
    way = rng.random()
    if depth <= 0 or way < 0.3:
        return rng.choice(_FEW) if rng.random() < 0.45 else rng.choice(_PIECES)
    if way < 0.5:
        form = "(<>|" + rng.choice(_FILTERS) + ")"
    elif way < 0.68:
        form = "(<>)." + rng.choice(_METHODS_OF)
    else:
        form = rng.choice(_EXPRESSIONS)
    return _filled(rng, form, depth)


def _filled(rng: random.Random, form: str, depth: int) -> str:
    parts = form.replace("<n>", rng.choice(_FEW)).replace("<f>", rng.choice(("trim", "lower", "reverse"))).split("<>")
    return parts[0] + "".join(_expression(rng, depth - 1) + part for part in parts[1:])


def _block(rng: random.Random, depth: int) -> str:
    """Some statements; # stands for others inside."""
    out = []
    for _ in range(rng.randint(1, 4)):
        parts = _filled(rng, rng.choice(_STATEMENTS), 2).split("#")
        out.append(parts[0] + "".join((_block(rng, depth - 1) if depth else "") + part for part in parts[1:]))
    return "".join(out)


def program(rng: random.Random) -> str:
    """Any template, with a use of a name that it set at its end."""
    used = rng.choice(
        ("{{ <b>[<n>] }}", "{{ [<b>]|map(attribute=<n>)|list }}", "{{ <b>[<n>|join] }}", "{{ <n>.format(<b>) }}")
    )
    base = rng.choice(("''", "messages", "namespace", "range", "a", "{}", "1"))
    return _block(rng, 2) + used.replace("<n>", rng.choice(_FEW)).replace("<b>", base)
