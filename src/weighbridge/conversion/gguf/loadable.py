"""A planned GGUF is checked by the rules of `wb verify` before anything is written: none is made that llama.cpp would
refuse, unless its source is refused for the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from weighbridge.base.errors import RefusedError
from weighbridge.containers.base import Finding, Index, Layout
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.source import Source
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.llamacpp.verdict import refusals, verdict

_HINT: Final = "write .safetensors, which holds any tensors; wb verify explains the rule"


class LayoutSource(Source):
    """A file that is only planned: its header, and zeros where its tensors will be."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.name, self.size, self.pieces = name, layout.size, layout.pieces

    def _readinto(self, offset: int, out: memoryview) -> int:
        out[:] = bytes(len(out))
        for at, piece in self.pieces:
            first, last = max(at, offset), min(at + len(piece), offset + len(out))
            if first < last:
                out[first - offset : last - offset] = piece[first - at : last - at]
        return len(out)


def check_loadable(files: Iterable[tuple[str, Layout]], source: Checkpoint) -> list[str]:
    """RefusedError where llama.cpp would refuse the planned files. What it refuses the source for as well comes back
    as notes."""
    planned = [gguf.parse(LayoutSource(name, layout), level="lenient") for name, layout in files]
    found, unmapped = verdict(planned)
    before = _own(source) if found and source.format == "gguf" else ()
    return [*(f.message for f in unmapped), *refuse_new(found, before)]


def refuse_new(found: Sequence[Finding], before: Sequence[Finding], option: str | None = None) -> list[str]:
    """RefusedError for the first finding whose rule isn't broken before; the others in words."""
    inherited = {finding.rule for finding in before}
    for finding in found:
        if finding.rule not in inherited:
            place = f" ({finding.tensor})" if finding.tensor else ""
            words = f"llama.cpp would refuse the GGUF: {finding.message}{place} [{finding.rule}]"
            raise RefusedError(words, option=option, hint=None if option else finding.hint or _HINT)
    return [f"llama.cpp refuses the result as it does the source: {finding.message}" for finding in found]


def _own(source: Checkpoint) -> tuple[Finding, ...]:
    """Why llama.cpp refuses the source itself, before anything was changed in it."""
    opened: Sequence[Index] = [gguf.parse(file, level="lenient") for file in source.index.files]
    return refusals(opened)
