"""Names of the files of a numbered set: `model-00002-of-00003.safetensors`. (llama.cpp's stricter form is in
`gguf/split.py`.)"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<no>[0-9]{5,6})-of-(?P<of>[0-9]{5,6})(?P<suffix>\.[A-Za-z0-9]+)")


class Numbered(NamedTuple):
    """A numbered file name: file `no` (from 1, if it is right) `of` a total, both as written."""

    stem: str
    no: str
    of: str
    suffix: str

    @property
    def number(self) -> int:
        return int(self.no)

    @property
    def total(self) -> int:
        return int(self.of)

    @property
    def set(self) -> str:
        """The common part of the names in the set."""
        return f"{self.stem}-*-of-{self.of}{self.suffix}"

    def names(self) -> Iterator[str]:
        """The names of all files in the set. The total comes from a name: check it against `limits.SHARDS` first."""
        width = len(self.no)
        return (f"{self.stem}-{i:0{width}d}-of-{self.of}{self.suffix}" for i in range(1, self.total + 1))


def numbered(name: str) -> Numbered | None:
    """The parsed name; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else Numbered(**match.groupdict())


def sets(names: Iterable[str]) -> dict[str, list[Numbered]]:
    """The numbered files among `names`, by their set."""
    out: dict[str, list[Numbered]] = {}
    for name in filter(None, map(numbered, names)):
        out.setdefault(name.set, []).append(name)
    return out
