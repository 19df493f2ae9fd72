"""The option of commands that write a model: also its bill of materials."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from weighbridge.base.options import option

#: The value of `--sbom` without a FILE: next to the target.
NEXT: Final = "auto"


@dataclass(frozen=True, kw_only=True)
class SbomKeyword:
    sbom: str | os.PathLike[str] | None = option(
        "Also write a bill of materials: CycloneDX, or SPDX if FILE ends in .spdx.json [next to the target].",
        metavar="[FILE]", kind="file", bare=NEXT, section="Output",
    )  # fmt: skip
