"""Links out of training checkpoints, for reports that read no weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from weighbridge.base.errors import WeighbridgeError
from weighbridge.io.filesystem import LinkOutsideError
from weighbridge.models.locate import locate


def check_links(folder: Path) -> None:
    """Raises LinkOutsideError if `folder` is a training checkpoint, or a run, with a link to something outside of it.
    Raises no other error."""
    try:
        locate(folder)
    except LinkOutsideError:
        raise
    except (WeighbridgeError, OSError):
        pass


def links_outside(paths: Iterable[Path]) -> Iterator[str]:
    """Yields the message of `check_links` for each path."""
    for path in paths:
        try:
            check_links(path)
        except LinkOutsideError as error:
            yield error.message
