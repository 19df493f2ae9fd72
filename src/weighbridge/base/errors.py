"""The exception tree. An error means that work can't continue; findings of a check are data, not exceptions.

    WeighbridgeError
    +- FormatError       the file is wrong: path, offset, field, expected, found
    +- UnsupportedError  the file may be right, we can't: what, and what would work
    +- RefusedError      policy (would overwrite, would requantize): names the option that allows it
    +- UsageError        the caller is wrong
    +- RemoteError       the network, or the server at its other end, failed: what was asked, the next step

`OSError` passes through untouched: the operating system's own words are the best ones. A `LeftoverWarning` is about
work that succeeded.
"""

from __future__ import annotations

from typing import Any


class WeighbridgeError(Exception):
    """Base of every error that Weighbridge raises deliberately. `hint` is the next step for the user."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"


class FormatError(WeighbridgeError):
    """The file violates its format. Names the place: `path`, byte `offset`, `field`, what was `expected` and
    `found`."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        field: str | None = None,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
    ) -> None:
        where = [] if path is None else [path]
        where += [] if offset is None else [f"byte {offset}"]
        where += [] if field is None else [field]
        text = f"{', '.join(where)}: {message}" if where else message
        if expected is not None:
            text += f" (expected {expected}, found {found})"
        elif found is not None:
            text += f" (found {found})"
        super().__init__(text, hint=hint)
        self.reason = message
        self.path, self.offset, self.field = path, offset, field
        self.expected, self.found = expected, found


class UnsupportedError(WeighbridgeError):
    """The input may be valid, but this version can't handle it; the message says what would work."""


class RefusedError(WeighbridgeError):
    """Policy forbids it; `option` names the switch that allows it."""

    def __init__(self, message: str, *, option: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or (f"use {option} to allow it" if option else None))
        self.option = option


class UsageError(WeighbridgeError):
    """The caller's request is invalid."""


class RemoteError(WeighbridgeError):
    """A server or the way to it failed: not there, not allowed, cut off, changed under way."""


class LeftoverWarning(UserWarning):
    """The result is whole, but something beside it couldn't be deleted: what, and how to delete it."""
