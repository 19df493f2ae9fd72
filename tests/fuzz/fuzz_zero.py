"""Invariant: any bytes as the files of a ZeRO checkpoint give weights that can be read, or a WeighbridgeError."""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import harness
from tests.containers.test_zero_parts import write

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.containers.torch.zero import join
from weighbridge.io.source import BytesSource
from weighbridge.models.zero import node_of, read_states

_MOST = 1 << 20  # bytes of a weight that is read
_STAGES = (1, 3)


@cache
def _files(stage: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "step"), 2, 1, stage)
        return {path.name: path.read_bytes() for path in sorted(Path(folder, "step").iterdir())}


def target(data: bytes) -> None:
    """`data`: the stage, the number of the file that it replaces, and that file."""
    if len(data) < 3:
        return
    files = dict(_files(_STAGES[data[0] % 2]))
    files[sorted(files)[data[1] % len(files)]] = data[2:]
    with suppress(WeighbridgeError):
        states = read_states([torch_zip.parse(BytesSource(raw, f"step/{name}")) for name, raw in files.items()])
        faults = list(join.faults(states.parts()))
        for name, weight in ({} if faults else join.join(states.parts())).items():
            if weight.spec.nbytes <= _MOST:
                node = node_of(weight, states.indexes)
                assert node.spec == weight.spec, name
                assert node.read_all().nbytes == weight.spec.nbytes


def seeds() -> list[bytes]:
    return [
        bytes([which, number]) + raw
        for which, stage in enumerate(_STAGES)
        for number, (_, raw) in enumerate(sorted(_files(stage).items()))
    ]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
