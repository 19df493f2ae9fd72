"""The page as one HTML document: modules linked to one script, styles, and the policy that lets nothing else run.

The sources are ES modules in `static/`. One document has to hold them all, because a page on disk may not load modules
from files: each module becomes a function that returns its exports, and they follow in the order of their imports. A
module imports by name, exports functions and constants, and has no other form of either.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).with_name("static")
MAIN: Final = "main.js"
WIDGET: Final = "widget.js"  # of notebooks: outside of the page
_STYLES: Final = ("vendor/uplot.css", "style.css")

#: Third-party scripts -> what makes them a module of ours: lines that replace their export, or follow them.
_VENDORED: Final = MappingProxyType(
    {
        "vendor/htm-preact.js": "/*! htm 3.1.1, Apache-2.0, (c) Google Inc.; preact, MIT, (c) Jason Miller */",
        "vendor/uplot.js": "/*! uPlot 1.6.32, MIT, (c) Leon Sorokin */",
    }
)
_IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "(\./|\.\./)([\w/-]+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?:async )?(?:function\*? |const |class )(\w+)", re.MULTILINE)
_LIST: Final = re.compile(r"export\{([^}]*)\};?\s*$")  # of a minified module: `export{a as h,b as html};`


class Module(NamedTuple):
    """A source: the names it takes, by module, its text without them, and the names it gives."""

    imports: tuple[tuple[str, str], ...]
    body: str
    exports: tuple[tuple[str, str], ...]


class Page(NamedTuple):
    """A document, and its content security policy (for a header; the document may state it, too)."""

    html: str
    policy: str


def read_module(name: str) -> Module:
    """The module of a file of `static/`."""
    text = (STATIC / name).read_text("utf-8")
    if name == "vendor/uplot.js":
        return Module((), f"{_VENDORED[name]}\n{text}", (("uPlot", "uPlot"),))
    if (listed := _LIST.search(text)) is not None:
        pairs = (item.split(" as ") for item in listed[1].split(","))
        return Module((), f"{_VENDORED[name]}\n{text[: listed.start()]}", tuple((new, old) for old, new in pairs))
    folder = name.rpartition("/")[0]
    imports = tuple(
        (re.sub(r"(\w+) as (\w+)", r"\1: \2", taken), f"{folder}/{file}" if near == "./" and folder else file)
        for taken, near, file in _IMPORT.findall(text)
    )
    exports = tuple((found, found) for found in _EXPORT.findall(text))
    body = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)
    return Module(imports, body, exports)


def linked(main: str = MAIN) -> str:
    """One script of a module and all that it imports."""
    return "const $ = {};\n" + "".join(_wrapped(name, module) for name, module in _ordered(main, {}))


def _ordered(name: str, seen: dict[str, Module]) -> Iterator[tuple[str, Module]]:
    """The modules, each after those that it imports."""
    if name in seen:
        return
    seen[name] = module = read_module(name)
    for _, other in module.imports:
        yield from _ordered(other, seen)
    yield name, module


def _wrapped(name: str, module: Module) -> str:
    taken = "".join(f'const {names} = $["{other}"];\n' for names, other in module.imports)
    given = ", ".join(new if new == old else f"{new}: {old}" for new, old in module.exports)
    return f'$["{name}"] = (() => {{\n{taken}{module.body}\nreturn {{ {given} }};\n}})();\n'


@cache
def _parts() -> tuple[str, str]:
    """Script and style."""
    script = linked()
    style = "\n".join((STATIC / name).read_text("utf-8") for name in _STYLES)
    if "</script" in script or "</style" in style:  # an element ends there, whatever JavaScript says
        raise RuntimeError("the page's own code would end its element")
    return script, style


def policy(script: str, style: str, *, connect: str) -> str:
    """The content security policy: these two texts, no other script or style, no connection but `connect`."""
    rules: Mapping[str, str] = {
        "default-src": "'none'", "script-src": _hashed(script), "style-src": _hashed(style), "connect-src": connect,
        "img-src": "'self' data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(title: str, data: str = "") -> Page:
    """The document. `data`: elements with what an exported page shows; a page without asks its server."""
    script, style = _parts()
    rules = policy(script, style, connect="'none'" if data else "'self'")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n' if data else ""
    text = (
        (STATIC / "index.html").read_text("utf-8")
        .replace("{{policy}}", meta).replace("{{title}}", _escaped(title)).replace("{{style}}", style)
        .replace("{{data}}", data).replace("{{script}}", script)
    )  # fmt: skip
    return Page(text, rules)


def widget_script() -> str:
    """The front end of a notebook's widget: an ES module."""
    return (STATIC / WIDGET).read_text("utf-8")


def _escaped(text: str) -> str:
    from html import escape

    return escape("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text))
