"""Formats whose files hold one encoded file of another format, and pass it to that format."""

from __future__ import annotations

from collections.abc import Callable

from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Finding, Index
from weighbridge.containers.format import Format
from weighbridge.containers.opening import format_of
from weighbridge.io.source import Source


@dataclass(frozen=True)
class EnclosingFormat:
    """`names`: the formats that may not be inside. `original`: decodes the file inside; `hint`: how a user does."""

    names: frozenset[str]
    original: Callable[[Source], Source]
    hint: str

    def inside(self, source: Source) -> tuple[Format, Source]:
        """The format of the file inside, and its bytes. FormatError if it is encoded again."""
        inside = self.original(source)
        format = format_of(inside)
        if format.name in self.names:
            raise FormatError(f"a {format.title} is inside another", path=source.name, hint=self.hint)
        return format, inside

    def parse(self, source: Source) -> Index:
        """The index of the original."""
        format, inside = self.inside(source)
        return format.parse(inside)

    def examine(self, source: Source) -> tuple[Index, tuple[Finding, ...]]:
        """The readable part of the original, with all its problems."""
        format, inside = self.inside(source)
        return format.examine(inside)

    def headers(self, source: Source) -> tuple[Index, tuple[Finding, ...]]:
        """As `examine`, including tensors with incomplete data."""
        format, inside = self.inside(source)
        return format.headers(inside)
