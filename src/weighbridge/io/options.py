"""The options of everything that writes files, and of everything that computes in threads."""

from __future__ import annotations

import os
from typing import Final

from weighbridge.base.options import option
from weighbridge.base.records import dataclass

_WRITING: Final = "Writing"
# More threads gain nothing: the disk bounds a conversion, and each thread holds slabs.
_MAX_JOBS: Final = 8


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions:
    overwrite: bool = option("Replace an existing target.", False, section=_WRITING, aliases="f force")


@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    jobs: int | None = option(
        "Threads [all cores].", metavar="N", least=1, most=1024, section=_WRITING, letter="j",
        aliases="t threads nthread",
    )  # fmt: skip

    @property
    def workers(self) -> int:
        return self.jobs or min(os.cpu_count() or 1, _MAX_JOBS)
