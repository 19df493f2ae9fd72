"""Recognises safetensors files, and their content by the names in the header."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.limits import MIB, SAFETENSORS_HEADER, SNIFF_WHOLE
from weighbridge.base.words import plural
from weighbridge.containers.formats import ZIPNN, ZIPNN_KEY
from weighbridge.containers.safetensors.container import read_tensors
from weighbridge.containers.safetensors.exact import LENGTH, SPACE
from weighbridge.containers.sniff import diffusion, tensor_names
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
    evidence: tuple[str, ...] = (f"bytes 0-7 are a header length ({length:,}), and a JSON object follows",)
    if LENGTH + length > probe.size:
        lack = f"the header ends at byte {LENGTH + length:,} but the file has {probe.size:,}"
        return Hit("safetensors", evidence=evidence, confidence="likely", damage=(lack,))
    if length > SNIFF_WHOLE:
        return Hit("safetensors", evidence=evidence)
    header = read_tensors(probe.at(LENGTH, length), exactly=length <= _EXACT)
    if header is None:
        return Hit("safetensors", evidence=evidence, confidence="likely", damage=("the header is not valid JSON",))
    infos, metadata, whole = header
    ends = [LENGTH + length + info.data_offsets[1] for info in infos.values()]
    expected = max(ends, default=LENGTH + length)
    damage: tuple[str, ...] = ()
    if whole and expected > probe.size:
        lost = sum(end > probe.size for end in ends)
        damage = (f"truncated: has {probe.size:,} of {expected:,} bytes, {lost} of {plural(len(ends), 'tensor')} are "
                  "incomplete or missing",)  # fmt: skip
    elif whole and expected < probe.size:
        damage = (f"{probe.size - expected:,} bytes follow the last tensor",)
    framework = metadata.get("format")
    detail: dict[str, Any] = {"tensors": len(infos)}
    if framework is not None:
        detail["metadata_format"] = framework
        evidence += (f'format "{framework}" in __metadata__',)
    names = tensor_names.distinct(infos)
    adapter, family = (tensor_names.first(table, names) for table in (tensor_names.ADAPTERS, tensor_names.FAMILIES))
    packings = tensor_names.packings(infos)
    pictures = None
    if adapter is None:
        shapes = {name: info.shape for name, info in infos.items()}
        pictures = diffusion.title_of(shapes, family.id if family else None)
    look = pictures or (family.evidence if family else None)
    evidence += tuple(pattern.evidence for pattern in (adapter,) if pattern)
    evidence += (look,) if look else ()
    evidence += tuple(pattern.evidence for pattern in packings)
    codings = [pattern.id for pattern in packings]
    if ZIPNN_KEY in metadata:
        codings, evidence = [*codings, ZIPNN], (*evidence, "tensors in ZipNN's codes, by __metadata__")
    detail |= {"family": family.id} if family else {}
    detail |= {"packings": codings} if codings else {}
    variant = adapter.id if adapter else "mlx" if framework == "mlx" else ""
    return Hit("safetensors", variant, evidence, detail=detail, damage=damage)
