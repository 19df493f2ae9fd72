"""Checks a planned GGUF by the rules of `wb verify` before anything is written.

No GGUF is made that llama.cpp would refuse, unless llama.cpp refuses its source for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from weighbridge.base.errors import RefusedError
from weighbridge.containers.base import Finding, Layout
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.sniff import diffusion
from weighbridge.io.source import Source
from weighbridge.models.llamacpp.rules import refusals, stage_of, verdict
from weighbridge.models.model import OpenModel

_BIG_ENDIAN: Final = "gguf/big-endian"
# What llama.cpp refuses and ComfyUI-GGUF reads.
_PICTURES: Final = frozenset({"gguf/name-length", "gguf/name-64", "gguf/dims-count"})
_HINT: Final = "write .safetensors, which holds any tensors; wb verify explains the rule"


class LayoutSource(Source):
    """A planned file: its header, and zeros instead of its tensors."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.name, self.size, self.pieces = name, layout.size, layout.pieces

    def _readinto(self, offset: int, out: memoryview) -> int:
        out[:] = bytes(len(out))
        for at, piece in self.pieces:
            first, last = max(at, offset), min(at + len(piece), offset + len(out))
            if first < last:
                out[first - offset : last - offset] = piece[first - at : last - at]
        return len(out)


def check_loadable(files: Iterable[tuple[str, Layout]], source: OpenModel, *, big_endian: bool = False) -> list[str]:
    """Raises RefusedError if llama.cpp would refuse the planned files.

    Returns notes: the findings that the source has as well, and the byte order if `big_endian` was requested.
    """
    planned = [gguf.parse(LayoutSource(name, layout), level="lenient") for name, layout in files]
    findings, unmapped = verdict(planned)
    if planned and planned[0].metadata.get("general.architecture") in diffusion.architectures():
        findings = tuple(f for f in findings if f.rule not in _PICTURES)  # noted by the plan
    before: Sequence[Finding] = ()
    if findings and source.format == "gguf":
        before = refusals([gguf.parse(file, level="lenient") for file in source.index.files])
    requested = [f for f in findings if big_endian and f.rule == _BIG_ENDIAN]
    unrequested = [f for f in findings if f not in requested]
    return [*(f.message for f in (*unmapped, *requested)), *refuse_new(unrequested, before)]


def refuse_new(findings: Sequence[Finding], before: Sequence[Finding], option: str | None = None) -> list[str]:
    """Raises RefusedError for the first finding by a rule that isn't in `before`. Returns the others as notes."""
    inherited = {finding.rule for finding in before}
    for finding in findings:
        if finding.rule not in inherited:
            place = f" ({finding.tensor})" if finding.tensor else ""
            effect = "refuse the GGUF" if stage_of([finding]) else "compute another model"
            message = f"llama.cpp would {effect}: {finding.message}{place} [{finding.rule}]"
            raise RefusedError(message, option=option, hint=None if option else finding.hint or _HINT)
    return [f"llama.cpp refuses the result as it does the source: {finding.message}" for finding in findings]
