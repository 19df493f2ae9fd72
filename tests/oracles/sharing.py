"""What one test worker makes, the others use: files that are made once in a session, behind a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The block runs in one process at a time (where the system has such locks)."""
    with open(path, "w") as lock:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(target: Path, make: Callable[[Path], object]) -> Path:
    """`target`, a file or a folder. If it is missing, `make` writes it in another folder, under the same name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    making = target.parent / "making" / target.name
    making.parent.mkdir(exist_ok=True)
    with locked(making.with_name(f"{target.name}.lock")):
        if not target.exists():
            make(making)
            making.rename(target)
    return target
