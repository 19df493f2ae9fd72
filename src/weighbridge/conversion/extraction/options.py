"""The options of `wb extract-lora`, other than those of its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.conversion.options import Bounded

_SECTION: Final = "Adapter"


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(Bounded):
    """How much of a difference an adapter contains."""

    rank: int = option("Largest rank of a matrix [64].", 64, metavar="N", least=1, section=_SECTION)
    energy: float | None = option(
        "Use the smallest rank with this share of a squared difference, such as 0.95 [as much as the rank allows].",
        metavar="SHARE", above=0, most=1, section=_SECTION,
    )  # fmt: skip
    modules_to_save: Sequence[str] = option(
        "Store this module whole: its name or the end of it, such as lm_head; repeat for more.", (), metavar="MODULE",
        section=_SECTION,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.energy is not None and not 0 < self.energy <= 1:
            raise UsageError(f"--energy is a share, above 0 and at most 1, not {self.energy}")
