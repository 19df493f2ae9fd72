"""The packages of `weighbridge[remote]`, imported when they are first needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any, Final, TypeVar

from weighbridge.base.errors import RemoteError, UnsupportedError

_T = TypeVar("_T")
#: Seconds for which a place keeps its version when it is named again: one job reads one version.
_SAME_JOB: Final = 300.0
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def package(name: str, purpose: str, extra: str = "remote") -> Any:
    """Imports a package of an extra. Raises UnsupportedError with the extra to install if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{purpose} needs the package {name.partition('.')[0]} ({error})",
            hint=f'pip install "weighbridge[{extra}]"',
        ) from None


def is_offline() -> bool:
    """Whether no connection may be made (`--offline`, HF_HUB_OFFLINE)."""
    return any(os.environ.get(name, "0").lower() in ("1", "true", "yes", "on") for name in _OFFLINE)


def check_online(what: str) -> None:
    """Raises RemoteError in offline mode."""
    if is_offline():
        raise RemoteError(f"{what} isn't on this machine, and --offline (HF_HUB_OFFLINE) forbids the network",
                          hint="fetch it first, or go online")  # fmt: skip


_kept: Final[dict[Hashable, tuple[float, Any]]] = {}


def same_job(key: Hashable, make: Callable[[], _T]) -> _T:
    """What `make` made for this key a while ago, or makes now."""
    when, found = _kept.get(key, (0.0, None))
    if found is None or time.monotonic() - when > _SAME_JOB:
        found = make()
        _kept[key] = time.monotonic(), found
    return found  # type: ignore[no-any-return]


def forget(title: str) -> None:
    """Forget what was kept for a place, by the first item of its key: it has changed."""
    for key in [key for key in _kept if isinstance(key, tuple) and key[:1] == (title,)]:
        del _kept[key]
