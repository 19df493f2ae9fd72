"""A count and its noun agree: one function words both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.architecture.house import modules, short

from weighbridge.base.words import plural

#: Words after a number that aren't plurals, or whose number is never 1.
_NO_PLURAL = frozenset(
    {"is", "was", "has", "as", "needs", "bytes", "bits", "times", "floats", "exists", "takes", "says"}
)
_PLURAL = re.compile(r" (?:(?:more|other|further) )?([a-z]+s)\b")


def _counts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines where a count stands before a plural as it is: `{len(files)} files`, `{n:,} tensors`."""
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        for value, following in pairwise(text.values):
            if not (isinstance(value, ast.FormattedValue) and isinstance(following, ast.Constant)):
                continue
            counted = isinstance(value.value, ast.Call) and getattr(value.value.func, "id", "") == "len"
            grouped = isinstance(value.format_spec, ast.JoinedStr) and ast.unparse(value.format_spec) in (
                "f','",
                'f","',
            )
            constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
            match = _PLURAL.match(str(following.value))
            if (counted or grouped) and not constant and match and match[1] not in _NO_PLURAL:
                yield value.lineno, match[0].strip()


def test_a_count_is_worded_by_the_one_function() -> None:
    """`1 files` is said nowhere: base/words.py knows the singular. (Sizes of arrays, below, are seldom 1.)"""
    rooms = [path for path in modules() if not short(path).startswith(("tensors/", "base/", "unpickle/"))]
    found = [f"{short(path)}:{line} {words}" for path in rooms for line, words in _counts(ast.parse(path.read_text()))]
    assert found == []


@pytest.mark.parametrize(("n", "noun", "verb", "words"), [
    (0, "file", "", "0 files"), (1, "file", "", "1 file"), (1204, "file", "", "1,204 files"),
    (2, "matrix", "", "2 matrices"), (2, "more entry", "", "2 more entries"), (1, "key", "are", "1 key is"),
    (2, "key", "are", "2 keys are"), (2, "copy", "", "2 copies"),
])  # fmt: skip
def test_the_words_of_a_count(n: int, noun: str, verb: str, words: str) -> None:
    assert plural(n, noun, verb) == words
