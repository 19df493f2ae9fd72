"""Recognises files from before GGUF: GGML, GGMF, GGJT, GGLA (a LoRA adapter), GGSN (a saved session), and importance
matrices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.containers.ggml.container import MAGICS, WHISPER_CPP, model_of
from weighbridge.containers.ggml.imatrix import legacy_names
from weighbridge.containers.sniff.probe import Hit, Probe

# Magic -> name, versions (None: no field). The formats that are read, and their relatives (llama.cpp, March to August
# 2023).
_MAGICS: Final[Mapping[bytes, tuple[str, tuple[int, ...] | None]]] = MappingProxyType(
    {magic: row[:2] for magic, row in MAGICS.items()} | {b"algg": ("ggla", (1,)), b"nsgg": ("ggsn", None)}
)


def recognise(probe: Probe) -> Hit | None:
    """A magic, usually followed by a version."""
    row = _MAGICS.get(probe.head[:4])
    if row is None:
        return None
    kind, versions = row
    model = model_of(probe.source)
    if model in WHISPER_CPP:
        return Hit("ggml", str(model), ("magic GGML", f"the header of whisper.cpp's {model} models"))
    sign = f"magic {kind.upper()} (a format before GGUF)"
    version = probe.number(4, "<I")
    if versions is None or version is None:
        return Hit("ggml", kind, (sign,))
    evidence, detail = (f"{sign}, version {version}",), {"version": version}
    if version in versions:
        return Hit("ggml", f"{kind}-v{version}", evidence, detail=detail)
    return Hit("ggml", kind, evidence, "likely", detail, (f"unknown {kind} version {version}",))


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
