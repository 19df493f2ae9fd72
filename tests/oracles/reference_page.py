"""docs/reference-differences.md: the closed list of what may differ from the reference converter, as the tests read it.

A row names models (the names of the cases, `minilm`, or `any`) and one key or tensor in backticks.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference-differences.md"
_ROW = re.compile(r"^\| (?P<models>[^|]+?) \| `(?P<key>[^`|]+)` \|", re.MULTILINE)


def rows() -> list[tuple[set[str], str]]:
    return [(set(re.split(r",\s*", m["models"])), m["key"]) for m in _ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def excused(name: str) -> set[str]:
    """Keys and tensors that may differ for a model; the storage type (`NAME@bfloat16`) makes no difference."""
    return {key for models, key in rows() if models & {name.partition("@")[0], "any"}}
