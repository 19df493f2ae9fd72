"""The tree as the tests of the architecture see it: files, parsed modules, functions. Nothing is imported from it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests import system

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "weighbridge"


class Import(NamedTuple):
    """`module` imported at `line`; `top`: when the file itself is imported; `typing`: for type checkers only."""

    module: str
    line: int
    top: bool
    typing: bool = False


class Function(NamedTuple):
    place: str
    name: str
    lines: int


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def short(path: Path) -> str:
    """`containers/gguf/container.py`."""
    return path.relative_to(PACKAGE).as_posix()


def dotted(path: Path) -> str:
    """`weighbridge.containers.gguf`."""
    return "weighbridge." + short(path).removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree: walking it again costs more than the rest of a test."""
    return tuple(ast.walk(tree(path)))


class PythonText(NamedTuple):
    """A comment (with its `#`) or a string (with its quotes) at `line`."""

    line: int
    text: str

    @property
    def comment(self) -> bool:
        return self.text.startswith("#")


# In the syntax of 3.11 a quote inside an f-string's braces isn't the one around it.
_TEXT = re.compile(
    r"""#[^\n]*|(?:\b[bfru]{1,2})?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL | re.IGNORECASE,
)


@cache
def texts(path: Path) -> tuple[PythonText, ...]:
    """The comments and strings of a module, which `tokenize` takes five times as long to find."""
    found, line, end = [], 1, 0
    source = path.read_text("utf-8")
    for match in _TEXT.finditer(source):
        line += source.count("\n", end, match.start())
        end = match.start()
        found.append(PythonText(line, match[0]))
    return tuple(found)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a module, in functions too. Those for type checking only count as not at the top."""

    def visit(node: ast.AST, top: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, top, typing) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                yield from (Import(name, child.lineno, top, typing) for name in _imported(child))
            elif not isinstance(child, ast.expr):  # which holds no statement
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                checking = typing or _is_type_checking(child)
                yield from visit(child, top and not inside and not checking, checking)

    return tuple(visit(tree(path), True, False))


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    """`from weighbridge.io import source` names the module weighbridge.io.source."""
    module = node.module or ""
    for alias in node.names:
        inner = PACKAGE.parent.joinpath(*module.split("."), alias.name)
        yield f"{module}.{alias.name}" if inner.with_suffix(".py").exists() or inner.is_dir() else module


def functions(path: Path) -> Iterator[Function]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield Function(f"{short(path)}:{node.lineno}", node.name, node.end_lineno - node.lineno + 1)


@cache
def calls(path: Path) -> tuple[tuple[ast.Call, str], ...]:
    """Every call with the dotted text of what is called."""
    return tuple((node, ast.unparse(node.func)) for node in nodes(path) if isinstance(node, ast.Call))


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the repository, committed or about to be; all there are in a source archive, which has no git."""
    listing = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, check=False) if system.program("git") else None
    if found and found.returncode == 0 and found.stdout:
        return tuple(p for name in found.stdout.decode().split("\0") if name and (p := ROOT / name).is_file())
    skip = {".git", ".venv", "build", "dist"}
    return tuple(p for p in ROOT.rglob("*") if p.is_file() and not skip & set(p.relative_to(ROOT).parts))
