"""Models for devices (ExecuTorch, Core ML) as their libraries wrote them (`record_devices.py`), MindSpore's checkpoints
as described; and hostile and broken ones."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.containers.framework_files import GOLDEN, message, mindspore
from tests.containers.test_frameworks import tensors

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers.devices import coreml, coreml_weights, executorch
from weighbridge.containers.frameworks import mindspore as checkpoint
from weighbridge.containers.frameworks.tensor_list import PACKED
from weighbridge.containers.opening import parse
from weighbridge.io.source import BytesSource


@cache
def golden() -> dict[str, bytes]:
    with zipfile.ZipFile(GOLDEN.with_name("devices.zip")) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


EXPECTED: dict[str, dict[str, list[Any]]] = json.loads(golden()["expected.json"])
TYPES: dict[str, dict[str, int]] = json.loads(golden()["types.json"])
FORMATS = {
    "a.pte": "executorch", "mutable.pte": "executorch", "external.pte": "executorch", "xnnpack.pte": "executorch",
    "external.ptd": "executorch-data", "half.mlpackage": "coreml", "int4.mlpackage": "coreml",
    "w.bin": "coreml-weights",
}  # fmt: skip
FINDINGS = {
    "external.pte": {"executorch/external"},
    "xnnpack.pte": {"executorch/opaque"},
    "int4.mlpackage": {"coreml/packed", "coreml-weights/packed"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in golden().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def test_every_recorded_file_is_expected() -> None:
    assert set(EXPECTED) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_equal_those_of_the_library(name: str, folder: Path) -> None:
    assert tensors(folder / name) == EXPECTED[name]


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversion_keeps_every_tensor(name: str, folder: Path, tmp_path: Path) -> None:
    wb.convert(folder / name, out := tmp_path / "out.safetensors")
    assert tensors(out) == EXPECTED[name]


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_recognised_and_verified(name: str, folder: Path) -> None:
    report = wb.identify(folder / name)
    assert report.format == FORMATS[name] if "." in name and "package" not in name else "coreml-package"
    assert (report.readable, report.damage, report.name_lies) == (True, (), None)
    found = wb.verify(folder / name, values=True).findings
    assert {f.rule for f in found if not f.rule.startswith("values/")} == FINDINGS.get(name, set())


def test_named_data_of_a_delegate_is_given_and_other_data_counted(folder: Path) -> None:
    found = [f.message for f in wb.verify(folder / "xnnpack.pte").findings]
    assert sum("given as" in text for text in found) == sum(len(n) == 64 for n in EXPECTED["xnnpack.pte"])
    assert sum("left out" in text for text in found) == 1


def _type_name(name: str) -> str:
    """A library's name of a type, as Weighbridge's."""
    scalar = {"BYTE": "U8", "CHAR": "I8", "SHORT": "I16", "INT": "I32", "LONG": "I64", "HALF": "F16", "FLOAT": "F32",
              "DOUBLE": "F64", "BFLOAT16": "BF16", "FLOAT8E4M3FN": "F8_E4M3", "FLOAT8E5M2": "F8_E5M2",
              "FLOAT8E5M2FNUZ": "F8_E5M2FNUZ", "FLOAT8E4M3FNUZ": "F8_E4M3FNUZ"}  # fmt: skip
    return scalar.get(name) or re.sub(r"^(U?)(?:INT|FLOAT)(\d+)$", lambda m: f"{m[1] or name[0]}{m[2]}", name)


@pytest.mark.parametrize(("module", "table"), [("executorch", executorch.DTYPES), ("coreml", coreml.DTYPES)])
def test_the_types_are_those_of_the_library(module: str, table: dict[int, str]) -> None:
    numbers = {number: _type_name(name) for name, number in TYPES[module].items()}
    assert {number: numbers[number] for number in table} == dict(table)
    left_out = {name for number, name in numbers.items() if number not in table}
    assert not left_out & {*BY_NAME, *PACKED}


def test_the_types_of_blobs_have_the_bits_of_their_names() -> None:
    names = list(coreml_weights.DTYPES.values())
    assert len(set(names)) == len(names) == 17
    assert set(names) - {*BY_NAME, *PACKED} == {"U6"}


# ---- MindSpore ----

W = struct.pack("<6f", *range(6))


def test_a_checkpoint_of_mindspore(tmp_path: Path) -> None:
    values = [
        ("net.w", "Float32", (2, 3), W),
        ("step", "Int32", (), b"\7\0\0\0"),
        ("b", "BFloat16", (2,), b"\x80\x3f" * 2),
    ]
    for packed in (False, True):
        (path := tmp_path / "m.ckpt").write_bytes(mindspore(values, packed))
        assert wb.identify(path).format == "mindspore"
        assert tensors(path) == {n: [list(shape), data.hex()] for n, _, shape, data in sorted(values)}
        assert wb.verify(path).ok
        assert wb.scan(path).verdict == "data-only"


def test_pieces_of_a_tensor_are_joined(tmp_path: Path) -> None:
    pieces = [("w", "Float32", (2, 3), W[:10]), ("other", "Int8", (1,), b"x"), ("w", "Float32", (2, 3), W[10:])]
    (path := tmp_path / "m.ckpt").write_bytes(mindspore(pieces))
    assert tensors(path) == {"w": [[2, 3], W.hex()], "other": [[1], "78"]}


@pytest.mark.parametrize("kind", checkpoint.DTYPES)
def test_every_type_of_mindspore(kind: str) -> None:
    row = BY_NAME[checkpoint.DTYPES[kind]]
    (entry,) = parse(BytesSource(mindspore([("a", kind, (4,), bytes(4 * row.size))]))).entries
    assert (entry.dtype, entry.shape) == (row, (4,))
    family = {"B": "BOOL" if kind == "Bool" else "BF", "I": "I", "U": "U", "F": "F", "C": "C"}[kind[0]]
    digits = re.search(r"\d+", kind)
    assert row.name.startswith(family)
    assert digits is None or digits[0] in row.name


# ---- broken files ----


def changed(name: str, at: int, data: bytes) -> bytes:
    raw = bytearray(golden()[name])
    raw[at : at + len(data)] = data
    return bytes(raw)


def cut(name: str) -> bytes:
    return golden()[name][: len(golden()[name]) // 2]


ONE = mindspore([("a", "Int8", (1,), b"x")])
MODEL = "half.mlpackage/Data/com.apple.CoreML/model.mlmodel"
BAD: dict[str, tuple[Callable[[], bytes], type[WeighbridgeError], str]] = {
    "blob count": (lambda: changed("w.bin", 0, b"\xff\xff\xff\x7f"), FormatError, "more blobs"),
    "blob sentinel": (lambda: changed("w.bin", 192, b"\0"), FormatError, "no sentinel"),
    "blob place": (lambda: changed("w.bin", 64 + 16, b"\0\0"), FormatError, "doesn't follow"),
    "blob size": (lambda: changed("w.bin", 64 + 8, b"\xff" * 7), FormatError, "ends too early"),
    "blob elements": (lambda: changed("w.bin", 64 + 8, b"\x0f"), FormatError, "whole number"),
    "segment base": (lambda: changed("a.pte", 24, b"\xff" * 6), FormatError, "ends too early"),
    "cut program": (lambda: cut("a.pte"), FormatError, "ends too early"),
    "cut data": (lambda: cut("external.ptd"), FormatError, "ends too early"),
    "cut model": (lambda: cut(MODEL), FormatError, "longer than its message"),
    "neural network": (lambda: b"\x08\x04" + message(2, b"") + message(500, b""), UnsupportedError,
                       "without an ML program"),
    "value without a tensor": (lambda: ONE + message(1, message(1, b"b")), FormatError, "no tag or no tensor"),
    "another field": (lambda: ONE + message(2, b""), FormatError, "no value"),
    "negative shape": (lambda: mindspore([("a", "Int8", (-1,), b"x")]), FormatError, "impossible"),
    "short data": (lambda: mindspore([("a", "Float32", (2,), b"x")]), FormatError, "another size"),
    "pieces differ": (lambda: mindspore([("a", "Int8", (2,), b"x"), ("a", "Int8", (3,), b"y")]), FormatError,
                      "different shapes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_broken_files_are_named_errors(name: str) -> None:
    make, error, words = BAD[name]
    with pytest.raises(error, match=words):
        parse(BytesSource(make(), "x.ckpt" if "mind" in name else "x"))


def test_a_blob_outside_the_folder_is_refused(tmp_path: Path) -> None:
    data = golden()[MODEL].replace(b"@model_path/weights/weight.bin", b"@model_path/../../../evil/a.bi")
    (tmp_path / "m.mlmodel").write_bytes(data)
    with pytest.raises(FormatError, match="lead out of the folder"):
        wb.open(tmp_path / "m.mlmodel")


def test_a_map_and_an_unknown_type_are_left_out_with_a_finding() -> None:
    data = mindspore([("a", "Int8", (1,), b"x"), ("s", "String", (1,), b"x")])
    index = parse(BytesSource(data + message(1, message(1, b"m") + message(3, b""))))
    assert [e.name for e in index.entries] == ["a"]
    assert {f.rule for f in index.findings} == {"mindspore/map", "mindspore/dtype"}
