"""Writes api.md: every public name of the package with its signature and description. Called by docs/generate.py."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import weighbridge

WIDTH = 100


def api() -> Iterator[str]:
    yield "# Python API\n"
    yield "<!-- Made by docs/generate.py from the code. Don't edit: run `make docs`. -->\n"
    yield "Every public name of `weighbridge`. [The guide](guide-python.md) shows how they work together.\n"
    public = {name: getattr(weighbridge, name) for name in weighbridge.__all__}
    yield "## Functions\n"
    for name, one in public.items():
        if inspect.isfunction(one):
            yield from entry(f"weighbridge.{name}", one, "###")
    yield "## Objects\n"
    for name, one in public.items():
        if inspect.isclass(one):
            yield from entry(f"weighbridge.{name}", one, "###")
            for member, method in vars(one).items():
                if not member.startswith("_") and inspect.isfunction(method):
                    yield from entry(f"{name}.{member}", method, "####")


def entry(name: str, one: Any, heading: str) -> Iterator[str]:
    """Heading, signature and description of a name."""
    yield f"{heading} {name.rpartition('.')[2] if heading == '###' else name}\n"
    yield f"```text\n{name}{signature(one)}\n```\n"
    if text := one.__doc__ if isinstance(one, type) else inspect.getdoc(one):  # a class has no base class's
        yield f"{described(inspect.cleandoc(text))}\n"


def signature(one: Any) -> str:
    """The parameters, one a line if they are many. Types are written as in the code."""
    shown = inspect.signature(one)
    parts, star = [], False
    for parameter in shown.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        plain = parameter.replace(annotation=str(parameter.annotation).strip("'"))
        written = f"{plain}" if parameter.annotation is parameter.empty else unquoted(str(plain), plain.annotation)
        parts += [written] if parameter.name != "self" else []
    result = shown.return_annotation
    after = f" -> {str(result).strip(chr(39))}" if isinstance(result, str) and inspect.isfunction(one) else ""
    line = f"({', '.join(parts)}){after}"
    return line if len(line) <= WIDTH else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){after}"


def unquoted(parameter: str, annotation: str) -> str:
    """A parameter whose type, a string because it isn't evaluated, is written without quotes."""
    return parameter.replace(repr(annotation), annotation, 1)


def described(text: str) -> str:
    """A docstring as Markdown: its options as a list, its indented paragraphs as code."""
    body, _, options = text.partition("\nOptions:\n")
    paragraphs = []
    body = inspect.cleandoc(body) if options else body  # the lines of the options are flush left, so it wasn't cleaned
    for paragraph in body.split("\n\n"):
        code = paragraph.startswith("    ")
        paragraphs.append(f"```text\n{textwrap.dedent(paragraph)}\n```" if code else paragraph)
    listed = [re.sub(r"^(\w+):", r"- `\1`:", line) for line in textwrap.dedent(options).splitlines()]
    return "\n\n".join([*paragraphs, *(["\n".join(listed)] if listed else [])])
