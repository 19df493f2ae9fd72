"""The options of `wb pack` and `wb unpack`."""

from __future__ import annotations

from dataclasses import dataclass

from weighbridge.base.options import option
from weighbridge.conversion.options import Path, WriteOptions


@dataclass(frozen=True, kw_only=True)
class PackOptions(WriteOptions):
    base: Path | None = option(
        "Store tensors as differences to those of this model, if that is smaller; unpacking needs it, too.",
        metavar="MODEL", kind="path",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UnpackOptions(WriteOptions):
    base: Path | None = option("The model that SRC was packed with, as its differences.", metavar="MODEL", kind="path")
