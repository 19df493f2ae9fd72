"""The recorded checkpoints of DeepSpeed (record_zero.py): how each was made, and where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tests.golden_files import extracted

GOLDEN: Final = Path(__file__).parent / "golden" / "zero.zip"
STEPS: Final = 2


class ZeroCase(NamedTuple):
    """`group`: elements of a flat group of stage 3; `groups`: of the optimizer; `universal`: also converted. `tensor`:
    parts of AutoTP; `stages`: of a pipeline; `experts`: sets of processes with different experts."""

    stage: int
    ranks: int
    bf16: bool = True
    groups: int = 1
    group: int = 1000
    universal: bool = False
    tensor: int = 1
    stages: int = 1
    experts: int = 1


CASES: Final = {
    "one": ZeroCase(2, 1),
    "stage1": ZeroCase(1, 2, groups=2),
    "stage2": ZeroCase(2, 2, groups=2, universal=True),
    "stage3": ZeroCase(3, 2, universal=True),
    "four": ZeroCase(3, 4, groups=2, group=20),
    "float": ZeroCase(2, 3, bf16=False),
}
#: Other kinds of parallelism: one step each. The weights are those of DeepSpeed's universal form, where it has one.
PARALLEL: Final = {
    "tensor": ZeroCase(1, 4, tensor=2, universal=True),
    "tensor3": ZeroCase(3, 4, tensor=2, universal=True),
    "pipeline": ZeroCase(1, 4, stages=2, universal=True),
    "experts": ZeroCase(1, 4, experts=2),
}


#: The recorded runs: those of `CASES`, and their universal forms, which have only the last step.
RUNS: Final = {
    **{name: tuple(range(1, STEPS + 1)) for name in CASES},
    **{f"{name}-universal": (STEPS,) for name, case in CASES.items() if case.universal},
}


def unpack(folder: Path) -> Path:
    """Extracts the folder of every run, and `<run>-global_step<n>.safetensors`: the weights that DeepSpeed reads."""
    return extracted(GOLDEN, folder)
