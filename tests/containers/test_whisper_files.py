"""Files of whisper.cpp: the tensors that it wants, and none else."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tests.containers import ggml_files, whisper_files
from tests.containers.regions import check_regions

from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.containers.ggml import container as ggml
from weighbridge.containers.ggml import whisper
from weighbridge.io.source import BytesSource

SIZES = {**dict(zip(whisper.SIZES, (6, 10, 8, 2, 1, 12, 8, 2, 1, 80), strict=True)), "ftype": 1}
KINDS = ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def zeros(kind: str, state: int = 256) -> bytes:
    """A whole file whose matrices have this type; its values are zeros."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    def encode(array: Any, kind: str) -> bytes:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        return bytes(array.size // block * size)

    config = dict(zip(whisper_files.HEADER, (6, 10, state, 2, 1, 12, state, 2, 1, 80), strict=True))
    arrays = {whisper_files.openai_name(n): a * 0 for n, a in whisper_files.weights(config).items()}
    header = [config[key] for key in whisper_files.HEADER]
    return whisper_files.reference(header, arrays, bytes(4 * 80 * 3), kind, (b"a",), encode)


def rules(data: bytes) -> list[str]:
    return [finding.rule for finding in ggml.parse(BytesSource(data)).findings]


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_read(kind: str) -> None:
    data = zeros(kind)
    index = ggml.parse(BytesSource(data))
    assert index.findings == ()
    assert index["encoder.blocks.0.mlp.0.weight"].dtype.name == kind
    assert index["encoder.conv1.weight"].dtype.name == ("F32" if kind == "F32" else "F16")
    assert index.metadata["ftype"] == whisper_files.FILE_TYPES[kind]
    check_regions(ggml.regions(BytesSource(data)), len(data))


GOOD = ggml_files.whisper()
FIRST = GOOD.index(b"encoder.conv1.weight") - 24


def record(name: str, kind: str, *shape: int) -> bytes:
    return ggml_files.record(name, kind, shape, bytes(int(np.prod(shape)) * (2 if kind == "F16" else 4)), 0, False)


def header(size: str, value: int) -> bytes:
    at = 4 + 4 * [*whisper.SIZES, "ftype"].index(size)
    return GOOD[:at] + struct.pack("<I", value) + GOOD[at + 4 :]


LAST = "decoder.ln.bias"
BAD: dict[str, tuple[bytes, set[str]]] = {
    "the last tensor is missing": (GOOD[: GOOD.index(LAST.encode()) - 16], {"missing-tensor"}),
    "an unknown tensor": (GOOD + record("decoder.proj.weight", "F32", 8), {"unknown-tensor"}),
    "another name": (GOOD.replace(LAST.encode(), b"decoder.ln.bjas"), {"missing-tensor", "unknown-tensor"}),
    "a layer more": (header("n_audio_layer", 2), {"missing-tensor"}),
    "billions of layers": (header("n_text_layer", 0xFFFFFFFF), {"missing-tensor"}),
    "a layer less": (header("n_text_layer", 0), {"unknown-tensor"}),
    "another context": (header("n_audio_ctx", 11), {"shape"}),
    "another text context": (header("n_text_ctx", 11), {"shape"}),
    "another state": (header("n_text_state", 16), {"shape"}),
    "another audio state": (header("n_audio_state", 16), {"shape"}),
    "another vocabulary": (header("n_vocab", 7), {"shape"}),
    "quantized by the header": (header("ftype", 2008), {"type"}),
    "floats by the header": (header("ftype", 0), {"type"}),
    "no file type": (header("ftype", 2005), {"ftype"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_reported(name: str) -> None:
    data, expected = BAD[name]
    assert {rule.removeprefix("ggml/") for rule in rules(data)} == expected
    check_regions(ggml.regions(BytesSource(data)), len(data))


def test_every_rule_has_a_bad_file() -> None:
    assert {rule for _, rules in BAD.values() for rule in rules} == {*whisper.RULES}
    assert rules(GOOD) == []


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_the_file_ends_with_its_last_tensor(cut: int) -> None:
    for data in (GOOD[:-cut], GOOD + bytes(cut)):
        with pytest.raises(FormatError):
            ggml.parse(BytesSource(data))


def test_the_layout_is_the_references() -> None:
    index = ggml.parse(BytesSource(GOOD))
    tensors = [(e.name, Spec(e.shape, e.dtype)) for e in index]
    filters = np.arange(240, dtype="<f4").tobytes()
    layout = whisper.layout(tensors, SIZES, filters, (b"a", b"b", b"cc", b""))
    out = bytearray(layout.size)
    for at, piece in layout.pieces:
        out[at : at + len(piece)] = piece
    for slot in layout.slots:
        entry = index[slot.name]
        out[slot.offset : slot.offset + entry.nbytes] = GOOD[entry.offset : entry.offset + entry.nbytes]
    assert bytes(out) == GOOD


@pytest.mark.mutation
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_file_type_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zeros(kind)
    monkeypatch.setattr(whisper, "FTYPES", {**whisper.FTYPES, kind: 99})
    assert rules(data) == ["ggml/ftype"]


_ROWS = [(i, part, n) for i, s in enumerate(whisper.STACKS) for part in ("first", "block", "last")
         for n in range(len(getattr(s, part)))]  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize(("stack", "part", "row"), _ROWS)
def test_a_missing_row_is_seen(stack: int, part: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_rows() -> None:
        stacks: list[Any] = list(whisper.STACKS)
        stacks[stack] = stacks[stack]._replace(**{part: tuple(rows)})
        monkeypatch.setattr(whisper, "STACKS", tuple(stacks))

    rows = list(getattr(whisper.STACKS[stack], part))
    name, axes = rows.pop(row)
    with_rows()
    assert rules(GOOD) == ["ggml/unknown-tensor"]
    rows.insert(row, (name, f"{axes} 2"))
    with_rows()
    assert rules(GOOD) == ["ggml/shape"]


@pytest.mark.mutation
@pytest.mark.parametrize("name", sorted(whisper._F32))
def test_a_matrix_that_is_always_f32_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whisper, "_F32", whisper._F32 - {name})
    assert rules(GOOD) == ["ggml/type"]
