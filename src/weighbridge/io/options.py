"""The options of everything that writes files, and of everything that computes in threads."""

from __future__ import annotations

import os
from typing import Final

from weighbridge.base.options import option
from weighbridge.base.records import dataclass

_WRITING: Final = "Writing"
# More threads gain nothing if bytes are copied or cast: the disk is the limit, and each thread holds slabs.
_MAX_JOBS: Final = 8


def cores() -> int:
    """The processors that this process may use: those of its cpuset, if the system has cpusets."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions:
    overwrite: bool = option("Replace an existing target.", False, section=_WRITING, aliases="f force")


@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    jobs: int | None = option(
        "Threads [all cores; at most 8 if the disk is the limit].", metavar="N", least=1, most=1024,
        section=_WRITING, letter="j", aliases="t threads nthread",
    )  # fmt: skip

    @property
    def workers(self) -> int:
        """The threads if the disk is the limit."""
        return self.jobs or min(cores(), _MAX_JOBS)
