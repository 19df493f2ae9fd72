"""The options of `wb edit`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.conversion.edit.values import Edit
from weighbridge.io.options import OverwriteOptions


@dataclass(frozen=True, kw_only=True)
class EditOptions(OverwriteOptions):
    """`set` may be values by key: lists become arrays, and a key keeps its type."""

    set: Sequence[Edit] | Mapping[str, Any] = option("Set KEY.", (), metavar="KEY=[TYPE:]VALUE", kind="assignment")
    remove: Sequence[str] = option("Remove KEY.", (), metavar="KEY")
    chat_template: str | None = option("Set the chat template to the content of a file.", metavar="PATH", kind="path")
    output: str | os.PathLike[str] | None = option(
        "Write the result to another file and don't change FILE.", metavar="FILE", kind="file", letter="o"
    )
    rewrite: bool = option("Rewrite the file even if the edit fits in place.", False)
    reserve: int = option("Rewrite the file with space for later edits, such as 64k.", 0, kind="size")
    backup: bool = option("Rewrite the file and keep the old one as FILE.bak.", False)
    allow_guarded: bool = option("Change protected things: a key's type, a store's blob, structural keys.", False)
