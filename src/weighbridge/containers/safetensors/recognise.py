"""What a safetensors file contains, by the names in its header."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from weighbridge.base.limits import MIB, SAFETENSORS_HEADER, SNIFF_WHOLE
from weighbridge.containers.safetensors.container import read_tensors
from weighbridge.containers.safetensors.exact import LENGTH, SPACE, HeaderEntry
from weighbridge.containers.sniff import tensor_names
from weighbridge.containers.sniff.probe import Hit, Probe

_EXACT: Final = MIB  # a longer header is parsed only if it has the usual form


def recognise(probe: Probe) -> Hit | None:
    """`u64 N, N bytes of a JSON object`: any text's first 8 bytes are a number far above the header cap."""
    length = probe.number(0, "<Q")
    if length is None or not 2 <= length <= SAFETENSORS_HEADER:
        return None
    start = probe.at(LENGTH, 4096).lstrip(SPACE)
    if start[:1] != b"{" or start[1:].lstrip(SPACE)[:1] not in (b'"', b"}", b""):
        return None
    evidence = (f"bytes 0-7 are a header length ({length:,}), and a JSON object follows",)
    if LENGTH + length > probe.size:
        lack = f"the header ends at byte {LENGTH + length:,} but the file has {probe.size:,}"
        return Hit("safetensors", evidence=evidence, confidence="likely", damage=(lack,))
    if length > SNIFF_WHOLE:
        return Hit("safetensors", evidence=evidence)
    found = read_tensors(probe.at(LENGTH, length), exactly=length <= _EXACT)
    if found is None:
        return Hit("safetensors", evidence=evidence, confidence="likely", damage=("the header is not valid JSON",))
    infos, metadata, whole = found
    damage = _size_damage(infos.values(), LENGTH + length, probe.size) if whole else ()
    return _hit(infos, metadata, evidence, damage)


def _hit(
    infos: dict[str, HeaderEntry], metadata: dict[str, str], evidence: tuple[str, ...], damage: tuple[str, ...]
) -> Hit:
    made = metadata.get("format")
    detail: dict[str, Any] = {"tensors": len(infos)}
    if made is not None:
        detail["metadata_format"] = made
        evidence += (f'__metadata__ says format "{made}"',)
    names = tensor_names.distinct(infos)
    adapter, family = (tensor_names.first(table, names) for table in (tensor_names.ADAPTERS, tensor_names.FAMILIES))
    packings = tensor_names.packings(infos)
    evidence += tuple(found.words for found in (adapter, family, *packings) if found)
    detail |= {"family": family.what} if family else {}
    detail |= {"packings": [found.what for found in packings]} if packings else {}
    variant = adapter.what if adapter else "mlx" if made == "mlx" else ""
    return Hit("safetensors", variant, evidence, detail=detail, damage=damage)


def _size_damage(infos: Iterable[HeaderEntry], start: int, size: int) -> tuple[str, ...]:
    ends = [start + info.data_offsets[1] for info in infos]
    expected = max(ends, default=start)
    if expected > size:
        lost = sum(end > size for end in ends)
        have = f"has {size:,} of {expected:,} bytes"
        return (f"truncated: {have}, {lost} of {len(ends)} tensors are incomplete or missing",)
    return (f"{size - expected:,} bytes follow the last tensor",) if expected < size else ()
