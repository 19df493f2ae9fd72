"""Leftovers of killed processes, and which processes are alive."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PARTIAL = re.compile(r"\.(\d+)\.partial\Z")


def remove_stale(target: Path) -> None:
    """The staged files that killed processes left for this target."""
    for stale in _partials(target):
        match = _PARTIAL.search(stale.name)
        if match and not is_alive(int(match[1])):
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)


def _partials(target: Path) -> Iterator[Path]:
    prefix = f".{target.name}."
    with contextlib.suppress(OSError):
        yield from [p for p in target.parent.iterdir() if p.name.startswith(prefix) and p.name.endswith(".partial")]


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    if not 0 < pid < 1 << 31:  # 0 and less mean groups of processes; more isn't a valid process number
        return False
    if sys.platform == "win32":
        return _alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _alive_on_windows(pid: int) -> bool:
    """Windows has no signal 0: `os.kill` would terminate the process there."""
    import ctypes

    kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return bool(kernel.GetLastError() == 5)  # ERROR_ACCESS_DENIED: it runs under another user
    try:
        code = ctypes.c_ulong()
        kernel.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(code))
        return code.value == 259  # STILL_ACTIVE
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))
