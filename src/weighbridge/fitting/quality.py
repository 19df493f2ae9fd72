"""The quality loss of each file type, as published and as measured by this project (quality.toml)."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec


class PublishedLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ppl`: increase of the perplexity. `kld`: mean divergence of the next token's distribution, in nats."""

    ppl: float
    kld: float
    imatrix: bool = False


class QualityTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Losses by the name of the file type. `dominated`: types for which a smaller and better one exists. `measured`:
    divergences that this project measured."""

    source: str
    dominated: frozenset[str]
    type: dict[str, PublishedLoss]
    measured: dict[str, float]


@cache
def quality() -> QualityTable:
    """Returns the parsed table."""
    text = (resources.files(__package__ or "") / "quality.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=QualityTable)
