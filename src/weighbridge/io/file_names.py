"""File names that Windows takes differently, or not at all."""

from __future__ import annotations

import re
import sys
from typing import Final

from weighbridge.base.errors import UsageError

_DEVICE: Final = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9\u00b9\u00b2\u00b3]) *(?:\..*)?", re.I)
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\\\x00-\x1f]')


def windows_fault(name: str) -> str | None:
    """Why Windows can't have a file of this name; None if it can. A colon would write into a hidden stream of another
    file, and a dot or space at the end be dropped."""
    if found := _FORBIDDEN.search(name):
        return f"Windows allows no {found[0]!r} in a file name"
    if name.endswith((".", " ")):
        return f"Windows drops the last {name[-1]!r} of a file name"
    return "Windows keeps this name for a device" if _DEVICE.fullmatch(name) else None


def check_name(name: str) -> None:
    """Raises UsageError on Windows if it can't have a file of this name."""
    if sys.platform == "win32" and (fault := windows_fault(name)) is not None:
        raise UsageError(f"{name}: {fault}", hint="choose another name")
