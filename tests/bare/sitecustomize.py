"""On PYTHONPATH, hides libraries of the system, as on a machine where none is installed. `.ci/bare` uses it."""

from __future__ import annotations

import ctypes.util

_PLAIN = ("c", "m", "dl", "pthread")  # every system has them
_find = ctypes.util.find_library


def find_library(name: str) -> str | None:
    return _find(name) if name in _PLAIN else None


ctypes.util.find_library = find_library
