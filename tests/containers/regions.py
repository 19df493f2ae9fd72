"""The law of regions: they name every byte of a file, once."""

from __future__ import annotations

from collections.abc import Iterable

from weighbridge.containers.base import Region


def check_regions(regions: Iterable[Region], size: int) -> list[Region]:
    """The regions, if they cover [0, size) without gap or overlap."""
    checked, at = [], 0
    for region in regions:
        assert at == region.start <= region.end, f"a gap or overlap at byte {at}: {region}"
        checked.append(region)
        at = region.end
    assert at == size, f"the regions end at byte {at} of {size}"
    return checked
