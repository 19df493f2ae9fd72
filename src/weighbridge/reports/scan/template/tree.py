"""Parses a template with jinja2's own parser, which runs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, ext, nodes
from jinja2.parser import Parser


class _Generation(ext.Extension):
    """`{% generation %}` of transformers, whose body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - like the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def parse(text: str, trimmed: bool) -> nodes.Template:
    """Parses a template, `trimmed` as loaders of chat templates do, or with jinja2's defaults. Raises TemplateError or
    ValueError if jinja2 refuses it, RecursionError if it is nested too deeply."""
    extensions: list[str | type[ext.Extension]] = ["jinja2.ext.loopcontrols", "jinja2.ext.do", _Generation]
    return Environment(trim_blocks=trimmed, lstrip_blocks=trimmed, extensions=extensions).parse(text)


def children(node: nodes.Node) -> Iterator[nodes.Node]:
    """A node and all its descendants, without recursion."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack += node.iter_child_nodes()
