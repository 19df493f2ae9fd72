"""The recorded checkpoints of DeepSpeed (record_zero.py): how each was made, and where it is."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final, NamedTuple

GOLDEN: Final = Path(__file__).parent / "golden" / "zero.zip"
STEPS: Final = 2


class ZeroCase(NamedTuple):
    """`group`: elements of a flat group of stage 3; `groups`: of the optimizer; `universal`: also converted."""

    stage: int
    ranks: int
    bf16: bool = True
    groups: int = 1
    group: int = 1000
    universal: bool = False


CASES: Final = {
    "one": ZeroCase(2, 1),
    "stage1": ZeroCase(1, 2, groups=2),
    "stage2": ZeroCase(2, 2, groups=2, universal=True),
    "stage3": ZeroCase(3, 2, universal=True),
    "four": ZeroCase(3, 4, groups=2, group=20),
    "float": ZeroCase(2, 3, bf16=False),
}


def unpack(case: str, folder: Path) -> Path:
    """The folder of one case, extracted below `folder`."""
    with zipfile.ZipFile(GOLDEN) as archive:
        for name in archive.namelist():
            if name.startswith(f"{case}/"):
                archive.extract(name, folder)
    return folder / case
