"""What must not be in the tree: other people's machines, secrets, big files, leftovers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.architecture import house

# Paths of machines, addresses of registries, keys: nothing of a maker's surroundings belongs in the project.
FORBIDDEN = {
    "a path of a machine": re.compile(r"(?<![\w.])/(?:work|home/\w+|Users/\w+|root)/"),
    "a registry's address": re.compile(r"(?:pypi|pythonhosted|artifactory|devpi|jfrog)\.\w|index-url"),
    "a private address": re.compile(r"(?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}\b"),
    "a key": re.compile(r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_\w{30,}|AKIA[A-Z0-9]{16})\b|BEGIN [A-Z ]*PRIVATE KEY"),
    "a marker of a merge": re.compile(r"^(?:<{7} |>{7} )", re.MULTILINE),
}
LARGEST = 512 * 1024
HERE = Path(__file__).resolve()


def files() -> list[Path]:
    return [p for p in house.tracked() if p != HERE and not p.is_symlink()]


def content(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_in_the_tree_is(what: str) -> None:
    hits = [
        f"{p.relative_to(house.ROOT)}: {match[0]}" for p in files() for match in FORBIDDEN[what].finditer(content(p))
    ]
    assert hits == []


BAD = [
    "cd /work/x",
    "/home/me/y",
    "http://pypi.org/simple",
    "--index-url",
    "10.1.2.3",
    "192.168.0.1",
    "hf_" + "a" * 34,
]
GOOD = ["a/work/x", "homework/", "models/root/", "10.5 GB", "1.10.2.3", "hf_hub", "10.0", "https://x.y/home/"]


@pytest.mark.parametrize("text", BAD)
def test_the_patterns_see_what_they_forbid(text: str) -> None:
    assert any(pattern.search(text) for pattern in FORBIDDEN.values())


@pytest.mark.parametrize("text", GOOD)
def test_the_patterns_let_the_rest_pass(text: str) -> None:
    assert not any(pattern.search(text) for pattern in FORBIDDEN.values())


def test_files_are_small() -> None:
    assert [str(p) for p in files() if p.stat().st_size > LARGEST] == []


def test_scripts_end_in_a_newline_and_have_no_carriage_returns() -> None:
    for path in files():
        if path.suffix in (".py", ".md", ".toml", ".cpp", ".hpp", ".txt") or path.name == "Makefile":
            data = path.read_bytes()
            assert not data or data.endswith(b"\n"), path
            assert b"\r\n" not in data, path


def test_nothing_is_left_to_do() -> None:
    """A stub is no implementation; what is missing is said in the docs."""
    words = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
    hits = [f"{house.short(p)}: {m[0]}" for p in house.modules() for m in words.finditer(content(p))]
    assert hits == []
