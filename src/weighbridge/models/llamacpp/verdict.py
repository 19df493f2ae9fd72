"""Decides from the headers whether llama.cpp loads a GGUF, by the rules of the container and of the model loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from weighbridge.containers.base import Finding, Index, Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.models.llamacpp import rules

#: Not a refusal if llama.cpp reads the file (--no-mmap).
UNMAPPED: Final = "gguf/data-start"


class LoadVerdict(NamedTuple):
    """`refused`: findings for which llama.cpp refuses to load files as the model that they are. `unmapped`: findings
    that prevent mapping them into memory."""

    refused: tuple[Finding, ...]
    unmapped: tuple[Finding, ...]


def stage_of(findings: Iterable[Finding]) -> str:
    """Returns the stage at which llama.cpp refuses a file with these findings: "header", "data" or "model"; "" if it
    loads the file or Weighbridge can't decide (`accepts`)."""
    findings = tuple(findings)
    early = gguf.refused_at(findings).value
    return early or ("model" if any(f.rule in rules.REFUSED for f in findings) else "")


def accepts(findings: Iterable[Finding]) -> bool | None:
    """Whether llama.cpp loads a file with these findings as a model; None if Weighbridge can't decide."""
    findings = tuple(findings)
    return False if stage_of(findings) else None if any(f.rule in rules.OPEN for f in findings) else True


def all_findings(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """Returns the findings of the container and of llama.cpp's loader on a file or the files of a set. Reads no
    tensor."""
    keys = [f for index in indexes for f in gguf.check_keys(index)]
    if any(gguf.RULES[f.rule].refused not in (Stage.NEVER, Stage.MODEL) for f in keys if f.rule != UNMAPPED):
        return tuple(keys)
    shapes = {e.name: e.shape for index in indexes for e in index}
    return (*keys, *rules.findings(indexes[0].metadata, shapes, indexes[0].files[0].name))


def refusals(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """Returns the findings for which llama.cpp refuses to load a file or a set as the model that it is. There are none
    for a file that accompanies a model or is for another program."""
    return verdict(indexes).refused


def faults(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """Returns the refusals, and the findings for which llama.cpp loads a different model."""
    return tuple(f for f in all_findings(indexes) if f.rule in rules.LOADED or _refuses(f))


def verdict(indexes: Sequence[Index]) -> LoadVerdict:
    """Returns `refusals`, and the findings for which llama.cpp reads a file but doesn't map it."""
    findings = all_findings(indexes)
    unmapped = tuple(f for f in findings if f.rule == UNMAPPED)
    return LoadVerdict(tuple(filter(_refuses, findings)), unmapped)


def _refuses(finding: Finding) -> bool:
    return finding.rule not in (UNMAPPED, *rules.KINDS) and bool(stage_of([finding]))
