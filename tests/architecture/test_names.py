"""Names are the field's: one class name means one thing, and no identifier is of a private language."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

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
}
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def identifiers(path: Path) -> Iterator[tuple[str, int]]:
    """What a module names itself: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(house.tree(path)):
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


def test_a_class_name_means_one_thing() -> None:
    """Of public classes; a private one is known in its module alone."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in house.modules():
        for node in house.tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(house.short(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
