"""Which file from before GGUF: GGML, GGMF, GGJT; GGLA is a LoRA of that time, GGSN a saved session; and importance
matrices of that time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.containers.ggml.container import MAGICS
from weighbridge.containers.ggml.imatrix import legacy_names
from weighbridge.containers.sniff.probe import Hit, Probe

# Magic -> name, versions (None: no field). The formats that are read, and their relatives (llama.cpp, March to August
# 2023).
_MAGICS: Final[Mapping[bytes, tuple[str, tuple[int, ...] | None]]] = MappingProxyType(
    {magic: row[:2] for magic, row in MAGICS.items()} | {b"algg": ("ggla", (1,)), b"nsgg": ("ggsn", None)}
)


def recognise(probe: Probe) -> Hit | None:
    """A magic, and of most a version."""
    row = _MAGICS.get(probe.head[:4])
    if row is None:
        return None
    kind, versions = row
    words = f"magic {kind.upper()} (a format before GGUF)"
    version = probe.number(4, "<I")
    if versions is None or version is None:
        return Hit("ggml", kind, (words,))
    evidence, detail = (f"{words}, version {version}",), {"version": version}
    if version in versions:
        return Hit("ggml", f"{kind}-v{version}", evidence, detail=detail)
    return Hit("ggml", kind, evidence, "likely", detail, (f"{kind} version {version} is not known",))


def imatrix_dat(probe: Probe) -> Hit | None:
    """A count, then records with plausible names; the first two are checked."""
    try:
        count, names = legacy_names(probe.source, 2)
    except FormatError:
        return None
    if count > 100_000 or not all(name.isascii() and name.isprintable() for name in names):
        return None
    evidence = (f"a count ({count}), then named vectors of floats ({', '.join(names)} ...)",)
    return Hit("imatrix-dat", evidence=evidence, confidence="likely", detail={"entries": count})
