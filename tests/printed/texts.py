"""Every text that is printed or published: strings of the code, help, pages, with the commands and calls in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.architecture import house

from weighbridge.cli.main import COMMANDS, load

PAGES = tuple(sorted([*house.ROOT.glob("*.md"), *(house.ROOT / "docs").glob("*.md")]))
#: Stands for what a message fills in.
FILLED = "\N{FULL BLOCK}"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Text(NamedTuple):
    """`whole`: a command fills it from its start to its end. Otherwise it is prose that may name commands."""

    where: str
    text: str
    whole: bool


@cache
def messages() -> tuple[Text, ...]:
    """Strings of the package but docstrings; what an f-string fills in is `FILLED`."""
    return tuple(text for path in house.modules() for text in _strings(path))


def _strings(path: Path) -> Iterator[Text]:
    tree, skipped = house.tree(path), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
    for node in ast.walk(tree):
        if node not in skipped and (text := _literal(node)):
            yield Text(f"{house.short(path)}:{getattr(node, 'lineno', 0)}", text, False)


def _literal(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_literal(value) or FILLED for value in values)
    return None


@cache
def helps() -> tuple[Text, ...]:
    """Help and examples of every command."""
    found = []
    for row in COMMANDS:
        command = load(row)
        lines = (command.epilog or "").splitlines()
        found += [Text(f"wb {row.name} --help", line.strip(), True) for line in lines if line.startswith("  ")]
        found.append(Text(f"wb {row.name} --help", command.help or "", False))
    return tuple(found)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Code blocks of a page in one of these languages; "" is none."""
    for language, block in _FENCE.findall(page.read_text("utf-8")):
        if language in languages:
            yield block


def spans(page: Path) -> Iterator[str]:
    """Code within a page's sentences."""
    yield from _SPAN.findall(_FENCE.sub("", page.read_text("utf-8")))


@cache
def shell_lines() -> tuple[Text, ...]:
    """Lines of the pages' code blocks, with continued ones joined, and code within sentences."""
    found = []
    for page in PAGES:
        for block in blocks(page, "", "sh", "bash", "console"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [Text(page.name, line.removeprefix("$ ").partition("  #")[0].strip(), True) for line in lines]
        found += [Text(page.name, span, True) for span in spans(page)]
    return tuple(found)
