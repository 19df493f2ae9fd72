"""Builds the page as one HTML document: ES modules linked into one script, styles, and a strict security policy.

The sources are the modules in `static/`. A page on disk may not load modules from files, so the document contains them
all: each module becomes a function that returns its exports, in dependency order. Modules use named imports, and export
only functions, classes and constants.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).with_name("static")
MAIN: Final = "main.js"
WIDGET: Final = "widget.js"  # runs in notebooks, outside the page
_STYLES: Final = ("vendor/uplot.css", "style.css", "panels.css")

#: Third-party scripts and the notices of their licences.
_VENDORED: Final = MappingProxyType(
    {
        "vendor/htm-preact.js": "/*! htm 3.1.1, Apache-2.0, (c) Google Inc.; preact, MIT, (c) Jason Miller */",
        "vendor/uplot.js": "/*! uPlot 1.6.32, MIT, (c) Leon Sorokin */",
    }
)
_IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "(\./|\.\./)([\w/-]+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?:async )?(?:function\*? |const |class )(\w+)", re.MULTILINE)
_LIST: Final = re.compile(r"export\{([^}]*)\};?\s*$")  # in a minified module: `export{a as h,b as html};`


class Module(NamedTuple):
    """A source: (names, module) of its imports, its text without them, and (name, local name) of its exports."""

    imports: tuple[tuple[str, str], ...]
    body: str
    exports: tuple[tuple[str, str], ...]


class Page(NamedTuple):
    """A document and its content security policy, which is sent as a header or is part of the document."""

    html: str
    policy: str


def read_module(name: str) -> Module:
    """Parses a module in `static/`."""
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
    exports = tuple((export, export) for export in _EXPORT.findall(text))
    body = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)
    return Module(imports, body, exports)


def linked(main: str = MAIN) -> str:
    """Returns one script of a module and everything that it imports."""
    script = ["const $ = {};\n"]
    for name, module in _ordered(main, {}):
        imports = "".join(f'const {names} = $["{imported}"];\n' for names, imported in module.imports)
        exports = ", ".join(new if new == old else f"{new}: {old}" for new, old in module.exports)
        script.append(f'$["{name}"] = (() => {{\n{imports}{module.body}\nreturn {{ {exports} }};\n}})();\n')
    return "".join(script)


def _ordered(name: str, seen: dict[str, Module]) -> Iterator[tuple[str, Module]]:
    """Yields the modules, each after its imports."""
    if name in seen:
        return
    seen[name] = module = read_module(name)
    for _, imported in module.imports:
        yield from _ordered(imported, seen)
    yield name, module


@cache
def _parts() -> tuple[str, str]:
    """Returns the script and the style."""
    script = linked()
    style = "\n".join((STATIC / name).read_text("utf-8") for name in _STYLES)
    if "</script" in script or "</style" in style:  # HTML ends the element there, even inside a JavaScript string
        raise RuntimeError("the page's own code would end its element")
    return script, style


def policy(script: str, style: str, *, connect: str) -> str:
    """Returns a content security policy that allows these two texts and connections to `connect`, nothing else."""
    rules: Mapping[str, str] = {
        "default-src": "'none'", "script-src": _hashed(script), "style-src": _hashed(style), "connect-src": connect,
        "img-src": "'self' data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(title: str, data: str = "") -> Page:
    """Returns the document. `data`: elements with the answers of an exported page; without them it asks its server."""
    script, style = _parts()
    rules = policy(script, style, connect="'none'" if data else "'self'")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n' if data else ""
    shown = escape("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in title))
    text = (
        (STATIC / "index.html").read_text("utf-8")
        .replace("{{policy}}", meta).replace("{{title}}", shown).replace("{{style}}", style)
        .replace("{{data}}", data).replace("{{script}}", script)
    )  # fmt: skip
    return Page(text, rules)


def widget_script() -> str:
    """Returns the ES module of the notebook widget."""
    return (STATIC / WIDGET).read_text("utf-8")
