"""The quality loss of each file type, as published and as measured by this project (quality.toml)."""

from __future__ import annotations

from functools import cache

import msgspec

from weighbridge.base.imports.tables import read_table


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
    return msgspec.convert(read_table(__file__, "quality.toml"), QualityTable)
