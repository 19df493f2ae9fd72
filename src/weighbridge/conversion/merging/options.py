"""The options of `wb merge`, other than those of its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.conversion.options import Path

_SECTION: Final = "Merging models"


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """How several models become one. Parameters without a model apply to all of them."""

    method: str | None = option(
        "linear, slerp, ties, dare_ties, ...: wb help guide-merge lists them.", metavar="NAME", section=_SECTION
    )
    merge_base: Path | None = option(
        "The model that differences are taken from, or the end of t = 0 [slerp: the first SRC].", metavar="MODEL",
        kind="path", section=_SECTION,
    )  # fmt: skip
    t: float | None = option("Place between two models, from 0 to 1.", metavar="T", section=_SECTION)
    weight: Sequence[float] = option(
        "Weight of the models; repeat it to give one for each.", (), metavar="W", section=_SECTION
    )
    density: Sequence[float] = option(
        "Share of each difference that stays; repeat it likewise.", (), metavar="D", section=_SECTION
    )
    parameter: Sequence[str] = option(
        "Another parameter of the method, such as lambda=0.8.", (), metavar="NAME=VALUE", section=_SECTION
    )
    tokenizer_source: str | None = option(
        "Map the rows of embeddings to the tokens of the base, of all models (union), or of a MODEL.",
        metavar="base|union|MODEL", section=_SECTION,
    )  # fmt: skip
    seed: int = option("Seed of random masks [0].", 0, metavar="N", section=_SECTION)
