"""Work that grows with the bytes, not faster: four times the input takes at most five times the calls. Calls are
counted, so that a busy machine changes nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.costs import calls
from tests.reports.scan import vectors

import weighbridge as wb
from weighbridge.base.errors import WeighbridgeError

_CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
           "num_attention_heads": 1, "vocab_size": 8, "intermediate_size": 8}  # fmt: skip


def missing_shards(folder: Path, n: int) -> Path:
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    shards = {f"t.{i}.weight": f"model-{i + 1:06d}-of-{n:06d}.safetensors" for i in range(n)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder


def header(folder: Path, pairs: list[bytes]) -> Path:
    text = b"{" + b",".join(pairs) + b"}"
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 * len(pairs)))
    return path


def repeated_names(folder: Path, n: int) -> Path:
    entry = b'"k%d":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    return header(folder, [entry % (i // 2, 4 * i, 4 * i + 4) for i in range(n)])


def repeated_keys(folder: Path, n: int) -> Path:
    (folder / "config.json").write_text('{"model_type": "llama"' + "".join(f', "k{i // 2}": 1' for i in range(n)) + "}")
    header(folder, [b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'])
    return folder


def gguf_keys(folder: Path, n: int) -> Path:
    pairs = b"".join(struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 1)
                     for key in (b"key.%d" % i for i in range(n)))  # fmt: skip
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, n) + pairs)
    return path


def many_layers(folder: Path, n: int) -> Path:
    (folder / "config.json").write_text(json.dumps(_CONFIG | {"num_hidden_layers": n}))
    header(folder, [b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'])
    return folder


def findings(folder: Path, n: int) -> Path:
    """More than are kept."""
    path = folder / "x.pkl"
    path.write_bytes(vectors.p(b"".join(vectors.g("m", f"n{i}") + b"0" for i in range(n)) + b"N"))
    return path


def _anatomy(path: Path) -> Any:
    return wb.anatomy(path, limit=10)


CASES: dict[str, tuple[Callable[[Path, int], Path], int, Callable[[Path], Any]]] = {
    "verify, missing shards": (missing_shards, 500, wb.verify),
    "inspect, missing shards": (missing_shards, 500, wb.inspect),
    "verify, names that are repeated": (repeated_names, 500, wb.verify),
    "inspect, names that are repeated": (repeated_names, 500, wb.inspect),
    "verify, keys that are repeated": (repeated_keys, 2000, wb.verify),
    "inspect, keys that are repeated": (repeated_keys, 2000, wb.inspect),
    "anatomy, keys": (gguf_keys, 1000, _anatomy),
    "inspect, keys": (gguf_keys, 1000, wb.inspect),
    "verify, layers": (many_layers, 200, wb.verify),
    "scan, findings": (findings, 1500, wb.scan),
}


@pytest.mark.parametrize(("make", "size", "work"), CASES.values(), ids=CASES)
def test_four_times_the_input_takes_its_share(
    make: Callable[[Path, int], Path], size: int, work: Callable[[Path], Any], tmp_path: Path
) -> None:
    counts = []
    for number, n in enumerate((size, size, 4 * size)):  # the first one imports
        folder = tmp_path / str(number)
        folder.mkdir()
        counts.append(calls(partial(work, make(folder, n)), WeighbridgeError))
    assert counts[2] <= 5 * counts[1]


def test_layers_beyond_all_models_are_refused_at_once(tmp_path: Path) -> None:
    folder = many_layers(tmp_path, 1_048_576)
    counts = [calls(lambda: wb.plan_convert(folder, tmp_path / "x.gguf"), WeighbridgeError) for _ in range(2)]
    assert counts[1] < 100_000  # the first one imports
