"""Work on texts that grows with their bytes: calls of functions are counted, which no busy machine changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from tests.costs import calls, traced_memory

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source


def _many(count: int, form: str) -> str:
    return "".join(form.replace("#", str(i)) for i in range(count))


def _macro(count: int) -> str:
    """A macro of many parameters that is called as often."""
    names = ", ".join(f"p{i}" for i in range(count))
    return f"{{% macro f({names}) %}}{{{{ p0 }}}}{{% endmacro %}}" + "{{ f() }}" * count


#: Name, size, and the text of a size.
CASES: dict[str, tuple[str, int, Callable[[int], str]]] = {
    "blank lines": ("a.yaml", 400, lambda n: "a: 1 # !\n" + "\n" * 10 * n),
    "ampersands": ("a.yaml", 400, lambda n: "target: " + "&" * 10 * n),
    "anchors and aliases": ("a.yaml", 100, lambda n: _many(n, "a#: &a# x.y\n") + _many(n, "b#: {target: *a#}\n")),
    "one anchor, many aliases": ("a.yaml", 200, lambda n: "a: &a {target: os.system}\n" + _many(n, "b#: *a\n")),
    "an alias of aliases": ("a.yaml", 100, lambda n: "a0: &a0 [x]\n" + _many(n, "- [*a#, *a#]\n").replace("- ", "b: ")),
    "laughs": ("a.yaml", 50, lambda n: "- &a0 [!x y]\n" + "".join(f"- &a{i + 1} [*a{i}, *a{i}]\n" for i in range(n))),
    "keys of one mapping": ("a.yaml", 200, lambda n: _many(n, "k#: {target: a.b#}\n")),
    "one key, again": ("a.yaml", 200, lambda n: _many(n, "target: a.b\n")),
    "tags": ("a.yaml", 200, lambda n: _many(n, "- !!python/name:os.x#\n")),
    "open brackets": ("a.yaml", 500, lambda n: "! " + "[" * n),
    "dashes": ("a.yaml", 50, lambda n: "! \n" + "- " * n),
    "documents": ("a.yaml", 200, lambda n: "---\n! a\n" * n),
    "comments": ("a.yaml", 400, lambda n: "a: ! 1\n" + "# c\n" * n),
    "a long quote": ("a.yaml", 400, lambda n: 'a: "' + "\\x41\\\n " * n + '"'),
    "expressions": ("a.yaml", 200, lambda n: _many(n, "- $os.system(#)\n")),
    "targets in JSON": ("a.json", 200, lambda n: json.dumps([{"_target_": f"a.b{i}"} for i in range(n)])),
    "a macro that is called": ("a.jinja", 50, _macro),
    "arguments": ("a.jinja", 200, lambda n: "{% macro f(a) %}{{ a }}{% endmacro %}" + _many(n, "{{ f('#') }}")),
    "findings": ("a.jinja", 100, lambda n: _many(n, "{{ x.__a#__ }}\n")),
    "names": ("a.jinja", 200, lambda n: _many(n, "{% set a# = 'x#' %}")),
    "a chain of names": ("a.jinja", 100, lambda n: "".join(f"{{% set a{i} = a{i + 1} %}}" for i in range(n))),
    "names in loops": ("a.jinja", 100, lambda n: _many(n, "{% for i in x %}{% set a# = i %}{% endfor %}")),
    "branches": ("a.jinja", 100, lambda n: "{% if a %}{% set b = 1 %}" + _many(n, "{% elif a# %}{% set b# = 1 %}")
                 + "{% endif %}"),
    "a long sum": ("a.jinja", 200, lambda n: "{{ " + " + ".join(["'a'"] * n) + " }}"),
    "text that is built": ("a.jinja", 100, lambda n: "{% set a = '' %}" + "{% set a = a ~ 'x' %}" * n),
    "fields": ("a.jinja", 100, lambda n: "{% set n = namespace() %}" + _many(n, "{% set n.a# = n.a ~ '#' %}")),
    "maps": ("a.jinja", 100, lambda n: "{% set n = namespace() %}"
             + _many(n, "{% set n.a# = [n]|map(attribute='b') %}")),
    "lists in lists": ("a.jinja", 100, lambda n: "{% set a = [] %}" + "{% set a = [a, 'x'] %}" * n),
    "appended": ("a.jinja", 100, lambda n: "{% set a = [] %}" + _many(n, "{% set _ = a.append([a, '#']) %}")),
    "set blocks": ("a.jinja", 100, lambda n: _many(n, "{% set a# %}x{% endset %}")),
    "comments of a template": ("a.jinja", 200, lambda n: "{# c #}" * n),
}  # fmt: skip


def _scan(name: str, text: str) -> None:
    scan_source(BytesSource(text.encode()), name)


@pytest.mark.parametrize(("name", "size", "make"), CASES.values(), ids=CASES)
def test_four_times_the_text_takes_four_times_the_work(name: str, size: int, make: Callable[[int], str]) -> None:
    _scan(name, make(size))  # imports, caches
    counts, peaks = [], []
    for text in (make(size), make(4 * size)):
        counts.append(calls(partial(_scan, name, text)))
        with traced_memory() as memory:
            _scan(name, text)
        peaks.append(memory.peak)
    assert counts[1] < 4.6 * counts[0]
    assert peaks[1] < 5 * peaks[0] + 500_000
