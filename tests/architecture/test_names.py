"""Names and texts use the terms of the field: one meaning per class name, no private words in identifiers or prose."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture import house

# Words that nobody would search the web for, and what to call it instead.
BANNED = {
    "told": "configured (a value), reported (a verb)",
    "tell": "report, warn",
    "telling": "detection",
    "said": "declared, given",
    "unsaid": "default",
    "held": "borrowed, kept",
    "lent": "scratch, borrow",
    "blame": "mismatch, diagnose",
    "beside": "sidecar, extra",
    "unlooked": "unscanned, skipped",
    "crumbs": "two_bit_codes",
    "regrid": "the name of what is converted",
    "dealt": "interleaved",
    "surgery": "transform",
    "mergelists": "merges",
    "maker": "packer",
}

# The same for docstrings, comments, messages and pages: pattern -> what to write.
BANNED_PROSE = {
    r"told": "reported, configured, known",
    r"unsaid": "default",
    r"lent": "borrowed",
    r"shall": "must, will",
    r"dealt": "interleaved",
    r"somebody": "a user",
    r"gone on with": "resumed",
    r"says yes": "accepts",
    r"says no": "isn't a",
    r"as it stands": "unchanged",
    r"lies? otherwise": "has another layout",
    r"is of no": "has no",
    r"unlooked": "not scanned",
    r"the way (out|back|in)": "the inverse, writing, reading",
    r"crumbs": "two-bit codes",
    r"(is|are|was|as) said": "stated, reported",
    r"says of": "states about",
    r"held (against|to)": "compared with, checked by",
    r"looked (at|into)": "read, checked, scanned",
}
_PROSE = re.compile(rf"\b({'|'.join(BANNED_PROSE)})\b", re.IGNORECASE)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def identifiers(path: Path) -> Iterator[tuple[str, int]]:
    """What a module names itself: functions, classes, parameters, variables, attributes."""
    for node in house.nodes(path):
        match node:
            case ast.FunctionDef(name=name, lineno=line) | ast.ClassDef(name=name, lineno=line):
                yield name, line
            case ast.arg(arg=name, lineno=line):
                yield name, line
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield name, line
            case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
                yield name, line
    yield path.stem, 1


def banned(name: str) -> list[str]:
    return [word for part in _PARTS.findall(name) if (word := part.lower()) in BANNED]


def test_no_identifier_is_of_a_private_language() -> None:
    hits = [
        f"{house.short(path)}:{line} {name}: say {BANNED[word]}"
        for path in house.modules()
        for name, line in identifiers(path)
        for word in banned(name)
    ]
    assert hits == []


def test_the_words_are_seen_in_a_name() -> None:
    assert banned("_told_by") == ["told"]
    assert banned("HeldBytes") == ["held"]
    assert banned("threshold") == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="f-strings are several tokens")
def test_texts_are_the_tokens_of_python() -> None:
    for path in house.modules()[::20]:
        with tokenize.open(path) as file:
            tokens = [*tokenize.generate_tokens(file.readline)]
        kinds = (tokenize.COMMENT, tokenize.STRING)
        assert [*house.texts(path)] == [(t.start[0], t.string) for t in tokens if t.type in kinds]


def prose(path: Path) -> Iterator[tuple[str, int]]:
    """The comments and strings of a module that have spaces: docstrings and messages, with their lines."""
    for start, text in house.texts(path):
        if " " in text:
            for offset, line in enumerate(text.split("\n")):
                yield line, start + offset


def test_no_text_is_of_a_private_language() -> None:
    texts = [(path, line, text) for path in house.modules() for text, line in prose(path)]
    pages = [p for p in (*(house.ROOT / "docs").glob("*.md"), *house.ROOT.glob("*.md")) if p.name != "CHANGELOG.md"]
    texts += [(p, i, text) for p in pages for i, text in enumerate(p.read_text("utf-8").splitlines(), 1)]
    hits = [f"{path.name}:{line} {found[0]!r}: {text.strip()[:80]}" for path, line, text in texts
            if (found := _PROSE.search(text))]  # fmt: skip
    assert hits == [], BANNED_PROSE


def test_the_words_are_seen_in_a_text() -> None:
    assert _PROSE.search("what is lost is told")
    assert _PROSE.search("Shall it be?")
    assert not _PROSE.search("threshold, untold")


def test_a_class_name_means_one_thing() -> None:
    """Of public classes; a private one is known in its module alone."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in house.modules():
        for node in house.tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(house.short(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
