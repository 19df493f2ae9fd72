"""What pip can't install is looked for in one place, `tests/system.py`: without it a test is skipped, and says so."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import system
from tests.architecture import house

GUARD = Path(system.__file__)
RECORDERS = tuple(house.ROOT.glob("tests/*/record_*.py"))  # scripts that are run by hand
HIDES = GUARD.parent / "bare" / "sitecustomize.py"
SEARCHES = re.compile(r"^(?:shutil\.which|(?:ctypes\.)?(?:util\.)?find_library)$")
PROGRAMS = {*system.PARTS, "fusermount3", "fusermount", "node", "npm", "openssl", "clang", "make", "cmake"}
_QUOTED = "|".join(map(re.escape, PROGRAMS))
WORDS = re.compile(rf"\b(?:which|find_library|{'|'.join(system.PACKAGES)})\b|\[\s*['\"](?:{_QUOTED})['\"]")


def faults(code: ast.Module) -> Iterator[str]:
    others: set[ast.expr] = set()  # lists that aren't run: "mount" is a command of wb too
    for node in ast.walk(code):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            others.update(node.args if name in ("main", "pytest.mark.parametrize") else ())
            if SEARCHES.match(name):
                yield f"{node.lineno}: {name}"
            if name.endswith("importorskip") and node.args and _package(node.args[0]):
                yield f"{node.lineno}: {ast.unparse(node.args[0])} loads a library: system.require_package"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (f"{node.lineno}: import {name}" for name in names if name in system.PACKAGES)
        elif isinstance(node, ast.List) and node not in others and len(node.elts) > 1 and _program(node.elts[0]):
            yield f"{node.lineno}: {ast.unparse(node.elts[0])} by its name: system.require"


def _package(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).partition(".")[0] in system.PACKAGES


def _program(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in PROGRAMS


@pytest.mark.slow
def test_parts_of_the_system_are_asked_for() -> None:
    files = set((house.ROOT / "tests").rglob("*.py")) - {GUARD, HIDES, Path(__file__), *RECORDERS}
    asking = [p for p in sorted(files) if WORDS.search(p.read_text("utf-8"))]  # few: parsing all takes long
    assert [f"{p.relative_to(house.ROOT)}:{fault}" for p in asking for fault in faults(house.tree(p))] == []


@pytest.mark.parametrize(
    "code",
    ["shutil.which('nginx')", "ctypes.util.find_library('x')", "import mfusepy", "pytest.importorskip('mfusepy')",
     "run(['mount', 'x'])"],
)  # fmt: skip
def test_the_law_sees(code: str) -> None:
    assert WORDS.search(code)
    assert list(faults(ast.parse(code)))


@pytest.mark.parametrize("name", system.PARTS)
def test_without_a_part_a_test_is_skipped_and_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "find", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match="NOT CHECKED") as skipped:
        system.require(name)
    assert name in str(skipped.value)
    assert system.PARTS[name].install in str(skipped.value)


def test_the_last_line_counts_skipped_tests_and_names_packages() -> None:
    reasons = [*map(system.unchecked, ("nginx", "zsh", "nginx")), "could not import 'jax'"]
    assert system.summarize(reasons) == (
        "NOT CHECKED: 3 tests need a part of the system (nginx 2, zsh 1); "
        "to run them, install Debian's nginx-light; Debian's zsh"
    )
    assert system.summarize(reasons[3:]) == ""
    assert all(f"({name} 1)" in system.summarize([system.unchecked(name)]) for name in system.PARTS)


@pytest.mark.slow
def test_the_tests_that_ask_for_parts_are_collected_where_all_are_hidden(tmp_path: Path) -> None:
    files = [p for p in (house.ROOT / "tests").rglob("test_*.py") if "system." in p.read_text("utf-8")]
    bare = {"PATH": str(tmp_path), "PYTHONPATH": str(HIDES.parent), "HOME": os.environ.get("HOME", str(tmp_path))}
    command = [sys.executable, "-m", "pytest", "--quiet", "--collect-only", "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(command, env=bare, cwd=house.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "(libfuse 1); to run them, install " in done.stdout
