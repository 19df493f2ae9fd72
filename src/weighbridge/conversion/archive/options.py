"""The options of `wb pack`, `wb unpack` and `wb fetch`."""

from __future__ import annotations

from collections.abc import Sequence

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.conversion.options import WRITING, Path, WriteOptions


@dataclass(frozen=True, kw_only=True)
class PackOptions(WriteOptions):
    base: Path | None = option(
        "Store tensors as differences to those of this model, if that is smaller; unpacking needs it, too.",
        metavar="MODEL", kind="path",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UnpackOptions(WriteOptions):
    base: Path | None = option("The model that SRC was packed with, as its differences.", metavar="MODEL", kind="path")


@dataclass(frozen=True, kw_only=True)
class FetchOptions(WriteOptions):
    include: Sequence[str] = option("Only files whose path matches.", (), metavar="GLOB")
    exclude: Sequence[str] = option("Not those whose path matches.", (), metavar="GLOB")
    resume: bool = option("Keep finished work when interrupted, and continue from it [yes].", True, section=WRITING)
