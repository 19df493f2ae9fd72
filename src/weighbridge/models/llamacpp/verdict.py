"""Why llama.cpp would refuse a GGUF, by its headers alone: the rules of the container and those of its model loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from weighbridge.containers.base import Finding, Index, Severity, Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.models.llamacpp import rules

#: Loads all the same where llama.cpp reads the file (--no-mmap).
UNMAPPED: Final = "gguf/data-start"


class LoadVerdict(NamedTuple):
    """`refused`: what keeps llama.cpp from loading files as the model that they are. `unmapped`: what keeps it from
    mapping them into memory."""

    refused: tuple[Finding, ...]
    unmapped: tuple[Finding, ...]


def refusals(indexes: Sequence[Index]) -> tuple[Finding, ...]:
    """What keeps llama.cpp from loading the files of a set, or the one file, as the model that it is. No tensor is
    read. A file for another program, or that goes with a model, is refused for nothing."""
    return verdict(indexes).refused


def verdict(indexes: Sequence[Index]) -> LoadVerdict:
    """`refusals`, and what llama.cpp reads but doesn't map."""
    found = [f for index in indexes for f in gguf.check_keys(index)]
    unmapped = tuple(f for f in found if f.rule == UNMAPPED)
    keys = [f for f in found if f.rule != UNMAPPED and gguf.RULES[f.rule].refused is not Stage.NEVER]
    return LoadVerdict((*keys, *_of_loader(indexes, keys)), unmapped)


def _of_loader(indexes: Sequence[Index], keys: Sequence[Finding]) -> Sequence[Finding]:
    """The refusals of the model loader; none where a file doesn't get that far, or isn't a model."""
    if any(gguf.RULES[f.rule].refused is not Stage.MODEL for f in keys):
        return ()
    shapes = {e.name: e.shape for index in indexes for e in index}
    found = rules.findings(indexes[0].metadata, shapes, indexes[0].files[0].name)
    if any(f.rule in rules.KINDS for f in found):
        return ()
    return [f for f in found if f.rule in rules.REFUSED and f.severity is Severity.ERROR]
