"""The lifecycle of a write, whatever its target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from weighbridge.base.errors import RefusedError

_Sink = TypeVar("_Sink", bound="Staging")


class Staging(ABC):
    """Staged bytes. Use as a context manager: exiting without an error publishes everything at once. After an error
    they are discarded, or kept for the next run with the same key."""

    def __enter__(self: _Sink) -> _Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._publish()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._settle(error)
            place = None if error is None else self._kept_in()
            if error is not None and place is not None:
                words = f"finished parts are kept in {place}: the same with --resume (resume=True) continues"
                error.add_note(words)
            self._close(kept=place is not None)
            if place is None:
                self._discard()

    @abstractmethod
    def _publish(self) -> None:
        """Makes everything visible under its name."""

    @abstractmethod
    def _settle(self, error: BaseException | None) -> None:
        """Ends the work under way, after publication or an error."""

    @abstractmethod
    def _kept_in(self) -> object | None:
        """Returns the place that the next run resumes from; None if there is nothing to resume."""

    @abstractmethod
    def _close(self, *, kept: bool) -> None:
        """Closes the files. `kept`: the staged bytes stay."""

    @abstractmethod
    def _discard(self) -> None:
        """Removes the staged bytes that aren't published."""


@contextmanager
def refused_if_taken(target: object) -> Iterator[None]:
    """Raises RefusedError if the name was taken since the sink checked it."""
    try:
        yield
    except FileExistsError:
        raise RefusedError(f"{target} has been created in the meantime", option="--overwrite") from None
