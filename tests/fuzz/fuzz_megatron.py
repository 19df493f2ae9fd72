"""Invariant: any bytes as the files of two ranks of Megatron-LM give parameters that can be read, or an error."""

from __future__ import annotations

import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import harness
from tests.containers.megatron_cases import GOLDEN

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource
from weighbridge.models.locate import Place
from weighbridge.models.megatron import join_ranks

_MOST = 1 << 20  # bytes of a parameter that is read
_SPLIT = b"\0rank\0"
_RUNS = ("tensor", "experts", "whole-experts", "latent", "mixer")
_PLACE = Place(Path("step"), (), Path("step"))


def target(data: bytes) -> None:
    """`data`: the names of the ranks' folders and their files."""
    parts = data.split(_SPLIT, 4)
    if len(parts) < 4:
        return
    names = [name.decode("utf-8", "replace") for name in parts[:2]]
    with suppress(WeighbridgeError):
        pairs = zip(names, parts[2:4], strict=True)
        indexes = [torch_zip.parse(BytesSource(file, f"step/{name}/model.pt")) for name, file in pairs]
        joined = join_ranks(_PLACE, indexes, "")
        assert {entry.name for entry in joined.index} == set(joined.tensors)
        for entry in joined.index:
            if entry.spec.nbytes <= _MOST:
                node = joined.tensors[entry.name]
                assert node.spec == entry.spec
                assert node.read_all().nbytes == entry.spec.nbytes


def seeds() -> list[bytes]:
    out = []
    with zipfile.ZipFile(GOLDEN) as archive:
        for run in _RUNS:
            files = sorted(name for name in archive.namelist() if name.startswith(f"{run}/") and name.endswith(".pt"))
            folders = [name.split("/")[-2].encode() for name in files]
            out.append(_SPLIT.join([*folders, *map(archive.read, files)]))
    return out


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
