"""What each file type costs in quality, as published and as measured here (quality.toml)."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec


class PublishedLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ppl`: rise of the perplexity; `kld`: mean divergence of the next token's distribution, nats."""

    ppl: float
    kld: float
    imatrix: bool = False


class PublishedQuality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By the name of the file type. `dominated`: another type is smaller and better. `own`: our own divergences."""

    source: str
    dominated: frozenset[str]
    type: dict[str, PublishedLoss]
    own: dict[str, float]


@cache
def quality() -> PublishedQuality:
    """The parsed table."""
    text = (resources.files(__package__ or "") / "quality.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=PublishedQuality)
