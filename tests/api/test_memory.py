"""Memory for large results: pages of the size that is the cheapest to touch on the machine at hand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.tensors import memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="pages of a size of one's choice are Linux's")


def balloon(devices: Path, features: str, kind: str = "0x0005") -> Path:
    """The devices of a virtual machine: a disk, and one with these features."""
    for number, (device, bits) in enumerate((("0x0002", "0010001001"), (kind, features))):
        (devices / f"virtio{number}").mkdir(parents=True)
        (devices / f"virtio{number}" / "device").write_text(f"{device}\n")
        (devices / f"virtio{number}" / "features").write_text(f"{bits.ljust(64, '0')}\n")
    return devices


@linux
@pytest.mark.parametrize(
    ("features", "kind", "found"),
    [("011001", "0x0005", True), ("011010", "0x0005", False), ("", "0x0005", False), ("011001", "0x0004", False)],
)
def test_a_host_that_takes_memory_back_is_known(features: str, kind: str, found: bool, tmp_path: Path) -> None:
    assert memory.reports_free_memory(balloon(tmp_path, features, kind)) is found


@linux
def test_a_machine_without_virtual_devices_is_known(tmp_path: Path) -> None:
    assert not memory.reports_free_memory(tmp_path / "none")
    (tmp_path / "virtio0").mkdir()  # a device that can't be looked at
    assert not memory.reports_free_memory(tmp_path)


def flags_of(address: int) -> set[str]:
    """The flags of the mapping at an address, as proc(5) abbreviates them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            start, end = (int(n, 16) for n in head.split("-"))
            inside = start <= address < end
        elif inside and head == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError("no such mapping")


@linux
@pytest.mark.parametrize("reported", [True, False])
def test_large_results_have_small_pages_there(reported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "reports_free_memory", lambda: reported)
    large, small = memory.new_bytes(memory.LARGE), memory.new_bytes(memory.LARGE - 1)
    assert large.dtype == small.dtype == np.uint8
    assert (large.size, small.size) == (memory.LARGE, memory.LARGE - 1)
    large[:], small[:] = 1, 2
    assert ("nh" in flags_of(large.ctypes.data)) is reported
    assert "nh" not in flags_of(small.ctypes.data)


@pytest.mark.parametrize("reported", [True, False])
def test_results_are_the_same_in_both(reported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    values = np.arange(2 * memory.LARGE // 4, dtype=np.float32).reshape(-1, 1024) % 97
    wb.save({"w": values}, tmp_path / "w.safetensors")
    monkeypatch.setattr(memory, "reports_free_memory", lambda: reported)
    with wb.open(tmp_path / "w.safetensors") as model:
        array, tensor = model["w"].numpy("f16"), model["w"].torch("bf16")
    assert np.array_equal(array, values.astype(np.float16))
    assert array.flags.writeable
    assert torch.equal(tensor, torch.from_numpy(values).to(torch.bfloat16))
    tensor += 1  # the caller's own
