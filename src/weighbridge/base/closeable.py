"""`with` for everything that has a `close`."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self


class Closing:
    """Closes itself at the end of a `with`, whatever happened in it."""

    def close(self) -> None:
        """Releases all resources. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenTogether(Closing):
    """Everything that a stack has entered, closed together."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()
