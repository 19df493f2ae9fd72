"""The tensors of the recorded distributed checkpoints: bytes that follow from a name, in every type and layout."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

#: The folders that `record_dcp.py` recorded: one for each case.
GOLDEN = Path(__file__).with_name("golden") / "dcp.zip"


class Saved(NamedTuple):
    """A tensor of a case: torch's name of its type, its shape, and how it was distributed."""

    dtype: str
    shape: tuple[int, ...]
    placement: str = ""


SIZES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
    "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_SHAPES = ((6, 4), (7, 5), (1, 9), (3, 2, 5), (2, 3, 2, 2), (11,))
#: Layouts on one axis of processes, and on two: `S0` is cut along the first axis, `R` is copied.
ONE_AXIS = ("S0", "S1", "R")
TWO_AXES = ("S0,S1", "S1,S0", "S0,S0", "R,S0", "S1,R", "R,R")


def _layouts(placements: tuple[str, ...]) -> dict[str, Saved]:
    out = {}
    for placement in placements:
        for shape in _SHAPES:
            if not ("S1" in placement and len(shape) < 2):
                name = f"{placement.replace(',', '')}.{'x'.join(map(str, shape))}"
                out[name] = Saved("float32", shape, placement)
    return out


def _types(placement: str) -> dict[str, Saved]:
    return {f"{dtype}.{placement}": Saved(dtype, (5, 6), placement) for dtype in SIZES}


#: Case -> number of processes, and tensors. `hf` is in safetensors; `threads` has two files of one process.
CASES: dict[str, tuple[int, dict[str, Saved]]] = {
    "one": (1, {**_types("R"), "scalar": Saved("float32", (), "R"), "empty": Saved("float32", (0, 4), "R")}),
    "two": (2, {**_layouts(ONE_AXIS), **_types("S0"), **_types("S1")}),
    "four": (4, _layouts(ONE_AXIS)),
    "mesh": (4, {**_layouts(TWO_AXES), **_types("S0,S1")}),
    "threads": (2, _layouts(("S0", "S1"))),
    "hf": (2, {**_layouts(("S0", "S1")), **{f"{d}.S1": Saved(d, (5, 6), "S1") for d in ("float32", "bfloat16")}}),
}
#: Models that torch sharded: of FSDP 2, FSDP 2 over tensor parallelism, FSDP 1.
MODELS: dict[str, tuple[int, dict[str, Saved]]] = {
    "fsdp2": (4, {
        "0.weight": Saved("float32", (6, 5)), "0.bias": Saved("float32", (6,)),
        "1.weight": Saved("float32", (3, 6)), "1.bias": Saved("float32", (3,)),
    }),
    "fsdp2-tp": (4, {
        "0.weight": Saved("float32", (8, 6)), "0.bias": Saved("float32", (8,)),
        "1.weight": Saved("float32", (6, 8)), "1.bias": Saved("float32", (6,)),
    }),
    "fsdp1": (2, {
        "0.weight": Saved("float32", (5, 3)), "0.bias": Saved("float32", (5,)),
        "1.weight": Saved("float32", (4, 5)), "1.bias": Saved("float32", (4,)),
    }),
}  # fmt: skip


def data(name: str, saved: Saved) -> bytes:
    """The tensor's bytes."""
    size = SIZES[saved.dtype] * math.prod(saved.shape)
    seed = zlib.crc32(name.encode())
    if saved.dtype == "bool":
        return bytes((seed >> i % 31) & 1 for i in range(size))
    return bytes((seed + 37 * i + i * i // 7) % 251 for i in range(size))


def unpack(case: str, folder: Path) -> Path:
    """Writes a recorded folder."""
    target = folder / case
    with zipfile.ZipFile(GOLDEN) as archive:
        for name in archive.namelist():
            top, _, file = name.partition("/")
            if top == case:
                target.mkdir(parents=True, exist_ok=True)
                (target / file).write_bytes(archive.read(name))
    return target
