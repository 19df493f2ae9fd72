"""Devices: their memory, the share that a model may use, and their bandwidth.

device("rtx4090"), device("m3-max-36gb"), device("8GB"), device("this")
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec

from weighbridge.base.errors import UsageError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.limits import GIB, MIB
from weighbridge.base.records import dataclass
from weighbridge.io.page_cache import available_memory

#: Memory of the driver and the runtime (Ollama's `MinimumMemory`), and the memory that `--fit-target` leaves free.
RESERVED: Final = 512 * MIB
COMFORTABLE: Final = GIB


class DeviceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of devices.toml. `memory`: sizes in GiB, the default first. `bandwidth`, `cut`: GB/s."""

    name: str
    kind: str
    memory: tuple[int, ...]
    bandwidth: float
    cut: float | None = None


class WorkingSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of a Mac's memory that its GPU may use."""

    memory: int
    share: float
    newer: float | None = None


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: tuple[DeviceRow, ...]
    working_set: tuple[WorkingSet, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """`memory`: total bytes. `usable`: bytes for a model. `bandwidth`: bytes per second, None if unknown. `separate`:
    whether the device has memory separate from the host's. `notes`: the origin of the numbers."""

    name: str
    kind: str
    memory: int
    usable: int
    bandwidth: float | None = None
    separate: bool = True
    notes: tuple[str, ...] = ()


@cache
def _table() -> _Table:
    return msgspec.convert(read_table(__file__, "devices.toml"), _Table)


def device_names() -> tuple[str, ...]:
    """Returns the names in the table in the spelling of `--device`."""
    return tuple(row.name.lower().replace(" ", "-") for row in _table().device)


def device(text: str) -> Device:
    """Returns the device of this name. Raises UsageError, with the nearest names, for an unknown one, and for a memory
    size that it isn't sold with."""
    if text == "this":
        return this_device()
    if size_only := re.fullmatch(r"(\d{1,6})\s*(?:gb|gib|g)", text.strip(), re.IGNORECASE):
        size = int(size_only[1]) * GIB
        return Device(f"{text} of memory", "gpu", size, size - RESERVED, notes=("1 GB of a GPU is 1 GiB",))
    sized = re.fullmatch(r"(.+?)[\s_-]*(\d{1,4})\s*gi?b", text.strip(), re.IGNORECASE)  # `m3-max-36gb`
    name, gib = (_plain(sized[1]), int(sized[2])) if sized else (_plain(text), None)
    rows = {_plain(row.name): row for row in _table().device}
    if (row := rows.get(name)) is None:
        near = difflib.get_close_matches(name, rows, n=4, cutoff=0.4)
        names = ", ".join(rows[n].name.lower().replace(" ", "-") for n in near) or ", ".join(device_names()[:8])
        raise UsageError(f"unknown device {text!r}", hint=f"try {names}, a size such as 24GB, or this")
    if gib is not None and gib not in row.memory:
        sizes = ", ".join(f"{n}GB" for n in sorted(row.memory))
        raise UsageError(f"{row.name} isn't sold with {gib} GB", hint=f"sizes: {sizes}")
    gib = gib or row.memory[0]
    memory, bandwidth = gib * GIB, row.bandwidth * 1e9
    notes = () if len(row.memory) == 1 else (f"{row.name} with {gib} GB",)
    if row.kind == "metal":
        return metal(row.name, memory, bandwidth, notes=notes)
    if row.kind in ("cpu", "unified"):
        usable = memory - max(RESERVED, memory // 8)
        return Device(row.name, row.kind, memory, usable, bandwidth, False, (*notes, "an eighth is left to the system"))
    return Device(row.name, row.kind, memory, memory - RESERVED, bandwidth, True, notes)


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).lower().removeprefix("nvidia").removeprefix("geforce").removeprefix("apple")


def metal(
    name: str, memory: int, bandwidth: float | None, *, limit: int | None = None, notes: Sequence[str] = ()
) -> Device:
    """Returns a Mac, whose GPU may use a share of the memory, or `limit` if `iogpu.wired_limit_mb` is set."""
    if limit:
        notes = (*notes, f"iogpu.wired_limit_mb is {limit // MIB}")
        return Device(name, "metal", memory, min(limit, memory) - RESERVED, bandwidth, False, notes)
    row = max((r for r in _table().working_set if r.memory * GIB <= memory), key=lambda r: r.memory, default=None)
    row = row or _table().working_set[0]
    newer = (f"{row.newer:.0%} was seen on macOS 15 and later",) if row.newer else ()
    notes = (*notes, f"its GPU may use {row.share:.0%} of the memory", *newer)
    notes = (*notes, "sudo sysctl iogpu.wired_limit_mb=N raises it")
    return Device(name, "metal", memory, int(memory * row.share) - RESERVED, bandwidth, False, notes)


# -- this machine ----------------------------------------------------------------------------------------------------


def this_device() -> Device:
    """Returns the first NVIDIA GPU, a Mac's GPU, or the memory of this machine."""
    if gpu := _nvidia() or (_mac() if sys.platform == "darwin" else None):
        return gpu
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    free = available_memory() or total
    notes = (f"no GPU was found; {free // MIB:,} MiB of memory are available now",)
    return Device("this machine's CPU", "cpu", total, max(free - RESERVED, 0), None, False, notes)


def _output(*command: str) -> str:
    """Returns the output of a command; empty if it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _nvidia() -> Device | None:
    """Parses lines such as `NVIDIA GeForce RTX 4090, 24564, 23000`: name, total and free MiB."""
    lines = _output("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
    rows = ([field.strip() for field in line.split(",")] for line in lines.splitlines())
    gpus = [row for row in rows if len(row) == 3 and row[1].isdecimal() and row[2].isdecimal()]
    if not gpus:
        return None
    name, total, free = gpus[0][0], int(gpus[0][1]) * MIB, int(gpus[0][2]) * MIB
    rows_of_gpu = [row for row in _table().device if _plain(row.name) in _plain(name)]
    bandwidth = max(rows_of_gpu, key=lambda row: len(row.name)).bandwidth * 1e9 if rows_of_gpu else None
    notes = (f"{free // MIB:,} MiB are free now", *([f"the first of {len(gpus)} GPUs"] if len(gpus) > 1 else []))
    return Device(name, "cuda", total, free - RESERVED, bandwidth, True, notes)


def _mac() -> Device | None:
    memory = _output("sysctl", "-n", "hw.memsize")
    if not memory.isdecimal():
        return None
    name = _output("sysctl", "-n", "machdep.cpu.brand_string") or "Mac"
    limit = _output("sysctl", "-n", "iogpu.wired_limit_mb")
    bandwidth = next((row.bandwidth * 1e9 for row in _table().device if _plain(row.name) == _plain(name)), None)
    return metal(name, int(memory), bandwidth, limit=int(limit) * MIB if limit.isdecimal() else None)
