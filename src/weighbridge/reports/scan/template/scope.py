"""Tracks which names of a template are certainly assigned, so that they aren't the caller's variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Scope:
    """Names that are certainly assigned. A log undoes the additions of a scope, at the cost of these names only."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.log: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def add(self, name: str) -> None:
        if name not in self.names:
            self.names.add(name)
            self.log.append(name)

    def undo(self, mark: int) -> list[str]:
        """Forgets the names added since `mark`, and returns them."""
        added = self.log[mark:]
        del self.log[mark:]
        self.names.difference_update(added)
        return added

    @contextmanager
    def inner(self, *names: str) -> Iterator[None]:
        """Enters a scope in which `names` are assigned."""
        mark = len(self.log)
        for name in names:
            self.add(name)
        yield
        self.undo(mark)

    def branches(self, bodies: Sequence[Callable[[], object]]) -> None:
        """Runs alternative bodies: the names that all of them add are certain afterwards."""
        mark, common = len(self.log), None
        for body in bodies:
            body()
            added = set(self.undo(mark))
            common = added if common is None else common & added
        for name in sorted(common or ()):
            self.add(name)
