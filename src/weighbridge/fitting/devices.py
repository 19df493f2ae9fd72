"""Devices: how much memory a model may use there, and how fast that is.

device("rtx4090"), device("m3-max-36gb"), device("8GB"), device("this")
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import GIB, MIB
from weighbridge.io.page_cache import available_memory

#: What the driver and the runtime take beside the buffers (Ollama's `MinimumMemory`), and what `--fit-target` leaves.
RESERVED: Final = 512 * MIB
COMFORTABLE: Final = GIB


class DeviceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of devices.toml. `memory`: GiB, the first is meant without a size; `bandwidth`, `cut`: GB/s."""

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
    """`memory`: bytes in all; `usable`: of these for a model. `bandwidth`: bytes a second, None where it isn't known.
    `separate`: whether the device has memory of its own beside the host's. `notes`: where the numbers come from."""

    name: str
    kind: str
    memory: int
    usable: int
    bandwidth: float | None = None
    separate: bool = True
    notes: tuple[str, ...] = ()


@cache
def _table() -> _Table:
    text = (resources.files(__package__ or "") / "devices.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_Table)


def device_names() -> tuple[str, ...]:
    """The names in the table, as `--device` takes them."""
    return tuple(row.name.lower().replace(" ", "-") for row in _table().device)


def device(text: str) -> Device:
    """The device of this name. UsageError, with the nearest names, for one that isn't known or has no such memory."""
    if text == "this":
        return this_device()
    if (size := _gib(text)) is not None:
        return Device(f"{text} of memory", "gpu", size * GIB, size * GIB - RESERVED, notes=("1 GB of a GPU is 1 GiB",))
    name, size = _split(text)
    rows = {_plain(row.name): row for row in _table().device}
    if (row := rows.get(name)) is None:
        near = difflib.get_close_matches(name, rows, n=4, cutoff=0.4)
        known = ", ".join(rows[n].name.lower().replace(" ", "-") for n in near) or ", ".join(device_names()[:8])
        raise UsageError(f"no device is called {text!r}", hint=f"try {known}, a size such as 24GB, or this")
    if size is not None and size not in row.memory:
        sizes = ", ".join(f"{n}GB" for n in sorted(row.memory))
        raise UsageError(f"{row.name} isn't sold with {size} GB", hint=f"sizes: {sizes}")
    return _of_row(row, size or row.memory[0])


def _gib(text: str) -> int | None:
    found = re.fullmatch(r"(\d{1,6})\s*(?:gb|gib|g)", text.strip(), re.IGNORECASE)
    return int(found[1]) if found else None


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).lower().removeprefix("nvidia").removeprefix("geforce").removeprefix("apple")


def _split(text: str) -> tuple[str, int | None]:
    """`m3-max-36gb` -> m3max, 36."""
    found = re.fullmatch(r"(.*?)[\s_-]*(\d{1,4})\s*gi?b", text.strip(), re.IGNORECASE)
    return (_plain(found[1]), int(found[2])) if found and found[1] else (_plain(text), None)


def _of_row(row: DeviceRow, gib: int) -> Device:
    memory, bandwidth = gib * GIB, row.bandwidth * 1e9
    notes = () if len(row.memory) == 1 else (f"{row.name} with {gib} GB",)
    if row.kind == "metal":
        return metal(row.name, memory, bandwidth, notes=notes)
    if row.kind in ("cpu", "unified"):
        usable = memory - max(RESERVED, memory // 8)
        return Device(row.name, row.kind, memory, usable, bandwidth, False, (*notes, "an eighth is left to the system"))
    return Device(row.name, row.kind, memory, memory - RESERVED, bandwidth, True, notes)


def metal(
    name: str, memory: int, bandwidth: float | None, *, limit: int | None = None, notes: Sequence[str] = ()
) -> Device:
    """A Mac: its GPU may use a share of the memory, or `limit` where `iogpu.wired_limit_mb` is set."""
    if limit:
        raised = f"iogpu.wired_limit_mb is {limit // MIB}"
        return Device(name, "metal", memory, min(limit, memory) - RESERVED, bandwidth, False, (*notes, raised))
    row = max((r for r in _table().working_set if r.memory * GIB <= memory), key=lambda r: r.memory, default=None)
    row = row or _table().working_set[0]
    words = [f"its GPU may use {row.share:.0%} of the memory"]
    if row.newer:
        words.append(f"{row.newer:.0%} was seen on macOS 15 and later")
    words.append("sudo sysctl iogpu.wired_limit_mb=N raises it")
    return Device(name, "metal", memory, int(memory * row.share) - RESERVED, bandwidth, False, (*notes, *words))


# -- this machine ----------------------------------------------------------------------------------------------------


def this_device() -> Device:
    """The first NVIDIA GPU, a Mac's GPU, or the memory of this machine."""
    return _nvidia() or (_mac() if sys.platform == "darwin" else None) or _host()


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _nvidia() -> Device | None:
    lines = _ask(
        "nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"
    ).splitlines()
    found = [parsed for line in lines if (parsed := _nvidia_line(line))]
    if not found:
        return None
    more = (f"the first of {len(found)} GPUs",) if len(found) > 1 else ()
    return replace(found[0], notes=(*found[0].notes, *more))


def _nvidia_line(line: str) -> Device | None:
    """`NVIDIA GeForce RTX 4090, 24564, 23000`, MiB."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 3 or not all(field.isdecimal() for field in fields[1:]):
        return None
    total, free = int(fields[1]) * MIB, int(fields[2]) * MIB
    rows = sorted((row for row in _table().device if _plain(row.name) in _plain(fields[0])), key=lambda r: -len(r.name))
    bandwidth = rows[0].bandwidth * 1e9 if rows else None
    return Device(fields[0], "cuda", total, free - RESERVED, bandwidth, True, (f"{free // MIB:,} MiB are free now",))


def _mac() -> Device | None:
    memory = _ask("sysctl", "-n", "hw.memsize")
    if not memory.isdecimal():
        return None
    name = _ask("sysctl", "-n", "machdep.cpu.brand_string") or "Mac"
    limit = _ask("sysctl", "-n", "iogpu.wired_limit_mb")
    rows = [row for row in _table().device if _plain(row.name) == _plain(name)]
    bandwidth = rows[0].bandwidth * 1e9 if rows else None
    return metal(name, int(memory), bandwidth, limit=int(limit) * MIB if limit.isdecimal() else None)


def _host() -> Device:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    free = available_memory() or total
    notes = (f"no GPU was found; {free // MIB:,} MiB of memory are available now",)
    return Device("this machine's CPU", "cpu", total, max(free - RESERVED, 0), None, False, notes)
