"""HDF5 files for the fuzzer: Keras' attribute, links and data elsewhere, in every layout that the library writes, with
bytes, numbers and whole blocks changed."""

from __future__ import annotations

import functools
import io
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, Final

Made = tuple[bytes, str]
_CONFIG: Final = json.dumps({"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda"}]}})
_VERSIONS: Final = ("earliest", "earliest", "v108", "v110", "latest")
#: What other files have where one was changed: no bytes, one, all; a signature.
_SIGNS: Final = (b"TREE", b"HEAP", b"SNOD", b"GCOL", b"OHDR", b"\x89HDF\r\n\x1a\n")


def _configured(f: Any) -> None:
    f.attrs["model_config"] = _CONFIG


def _of_fixed_length(f: Any) -> None:
    import numpy as np

    f.attrs["model_config"] = np.bytes_(_CONFIG)


def _linked(f: Any) -> None:
    import h5py

    f["inner/far"] = h5py.ExternalLink("/etc/hostname", "/x")


def _elsewhere(f: Any) -> None:
    f.create_dataset("d", shape=(4,), dtype="u1", external=[("/etc/hostname", 0, 4)])


def _virtual(f: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout(shape=(4,), dtype="u1")
    layout[:] = h5py.VirtualSource("/tmp/x.h5", "d", shape=(4,))
    f.create_virtual_dataset("v", layout)


def _deep(f: Any) -> None:
    _configured(f.create_group("a/b/c"))


_KINDS: Final = (_configured, _of_fixed_length, _linked, _elsewhere, _virtual, _deep)


@functools.cache
def _file(kind: int, version: int, order: bool, objects: int) -> bytes:
    import h5py

    out = io.BytesIO()
    options: dict[str, Any] = {"userblock_size": 512} if objects == 1 else {}
    with h5py.File(out, "w", libver=(_VERSIONS[version], "latest"), track_order=order, **options) as f:
        for number in range(objects):
            f.create_dataset(f"layer_{number}/w", data=[1.0, 2.0]).attrs["units"] = "m"
            f.attrs[f"note {number}"] = f"text {number}"
        _KINDS[kind](f)
    return out.getvalue()


def files(rng: random.Random, /) -> Iterator[Made]:
    while True:
        data = _file(rng.randrange(len(_KINDS)), rng.randrange(len(_VERSIONS)), rng.random() < 0.3,
                     rng.choice((0, 1, 3, 12)))  # fmt: skip
        yield _damaged(rng, data) if rng.random() < 0.9 else data, rng.choice(("m.h5", "m.hdf5", "model.weights.h5"))


def _damaged(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.choice(_marked(data)) + rng.randrange(64) if rng.random() < 0.6 else rng.randrange(len(out))
        at = min(at, len(out) - 8)
        roll = rng.random()
        if roll < 0.4:
            out[at] = rng.choice((0, 1, 2, 3, 6, 12, 64, 255, rng.randrange(256)))
        elif roll < 0.7:
            out[at : at + 8] = struct.pack("<Q", rng.choice((*_marked(data), 0, 1 << 40, (1 << 64) - 1)))
        elif roll < 0.9:
            start, size = rng.randrange(len(out)), rng.choice((1, 2, 8, 40, 400))
            piece = out[start : start + size]
            out[at : at + len(piece)] = piece
        else:
            out = bytearray(rng.choice((b"", b"GGUF", b"PK\3\4")).ljust(512, b"\0") + out)
    return bytes(out)


@functools.lru_cache(256)
def _marked(data: bytes) -> tuple[int, ...]:
    """Where blocks begin."""
    places = [0]
    for sign in _SIGNS:
        at = data.find(sign)
        while at >= 0:
            places.append(at)
            at = data.find(sign, at + 1)
    return tuple(places)
