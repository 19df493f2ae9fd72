"""Memory for large results.

numpy asks for huge pages from 4 MiB on, and a page is filled with zeros when it is first touched. In a virtual machine
that reports its free memory to the host (a balloon with free page reporting), the blocks that are large enough for a
huge page are just those that the host has taken back: it has to find each again, which takes longer than all else.
Small pages come from memory that is still there.
"""

from __future__ import annotations

import mmap
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.limits import MIB

#: From here on memory comes in pages of its own, and numpy asks for huge ones.
LARGE: Final = 4 * MIB
_DEVICES: Final = Path("/sys/bus/virtio/devices")
_BALLOON, _REPORTING = "0x0005", 5  # virtio 1.2, 5.5: the device's id, and VIRTIO_BALLOON_F_PAGE_REPORTING


def new_bytes(size: int) -> NDArray[np.uint8]:
    """U8 [size], whose values are undefined."""
    if size < LARGE or not reports_free_memory():
        return np.empty(size, np.uint8)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


@cache
def reports_free_memory(devices: Path = _DEVICES) -> bool:
    """Whether this is a virtual machine of Linux whose host takes free memory back."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return False
    try:
        return any(_is_reporting(device) for device in devices.iterdir())
    except OSError:  # no virtio, or none that may be read
        return False


def _is_reporting(device: Path) -> bool:
    if (device / "device").read_text().strip() != _BALLOON:
        return False
    return (device / "features").read_text()[_REPORTING : _REPORTING + 1] == "1"
