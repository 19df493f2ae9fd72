"""Memory for large results.

numpy requests huge pages from 4 MiB on, and the system clears a page when it is first touched. In a virtual machine
that reports its free memory to the host (a balloon with free page reporting), the host has reclaimed just those blocks
that are large enough for huge pages, and finding each again takes longer than anything else. Small pages come from
memory that the machine still has.
"""

from __future__ import annotations

import mmap
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.limits import MIB

#: The size from which numpy requests huge pages.
LARGE: Final = 4 * MIB
_DEVICES: Final = Path("/sys/bus/virtio/devices")
_BALLOON, _REPORTING = "0x0005", 5  # virtio 1.2, 5.5: the device id, and VIRTIO_BALLOON_F_PAGE_REPORTING


def new_bytes(size: int) -> NDArray[np.uint8]:
    """U8 [size] with undefined values."""
    if size < LARGE or not reports_free_memory():
        return np.empty(size, np.uint8)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


@cache
def reports_free_memory(devices: Path = _DEVICES) -> bool:
    """Whether this is a Linux virtual machine whose host reclaims free memory."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return False
    try:
        return any(
            (device / "device").read_text().strip() == _BALLOON
            and (device / "features").read_text()[_REPORTING : _REPORTING + 1] == "1"
            for device in devices.iterdir()
        )
    except OSError:  # no virtio, or no permission to read it
        return False
