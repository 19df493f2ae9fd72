"""joblib's pickles, in which arrays stand as raw numbers: what joblib wrote is followed to its end, nested arrays of
objects too; what can't be followed is refused."""

from __future__ import annotations

import io
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest
from tests.reports.scan.file_vectors import PAYLOAD, joblib_array

from weighbridge.base.errors import FormatError
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.unpickle import machine
from weighbridge.unpickle.libraries.joblib import JoblibMachine

RECORDS = np.zeros(3, dtype=[("a", "<f4"), ("b", "U3")])
VALUES: dict[str, Any] = {
    "one array": np.arange(10.0),
    "several": {"a": np.ones((3, 4), ">i4"), "b": [np.zeros(0), np.array("text"), RECORDS], "c": "end"},
    "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "dates": np.array(["2020-01-01"], "<M8[D]"),
    "bytes": [np.array([b"abc"]), np.array([True]), np.zeros((), "c16"), np.zeros(2, "V5")],
    "objects": {"o": np.array([{"k": 1}, None, "x"], dtype=object), "z": np.arange(3)},
    "records of objects": np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")]),
    "no array": {"a": [1, 2.5, "x"]},
}


def dumped(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    joblib.dump(value, out, **options)
    return out.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", VALUES)
def test_what_joblib_wrote_is_followed_to_its_end(name: str, protocol: int) -> None:
    data = dumped(VALUES[name], protocol=protocol)
    reader = JoblibMachine(BytesSource(data))
    reader.run()
    assert reader.end == len(data)
    if name != "records of objects":  # whose type is none that a checkpoint has
        assert scan_source(BytesSource(data), "x.joblib").verdict == "data-only"


@pytest.mark.parametrize("how", [("zlib", 3), ("gzip", 3), ("bz2", 3), ("lzma", 3), ("xz", 3)], ids=lambda h: h[0])
def test_compressed_ones_too(how: tuple[str, int]) -> None:
    report = scan_source(BytesSource(dumped(VALUES["several"], compress=how)), "x.joblib")
    assert (report.verdict, report.complete, report.kind) == ("data-only", True, how[0])


def test_a_plain_machine_derails_there() -> None:
    with pytest.raises(FormatError):
        machine.Machine(BytesSource(dumped(VALUES["one array"]))).run()


def test_a_payload_in_an_array_of_objects_is_found() -> None:
    class Bad:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, ("1",)

    data = dumped({"a": np.zeros(2), "o": np.array([Bad()], dtype=object), "z": 1})
    found = scan_source(BytesSource(data), "x.joblib").findings
    assert ("pickle/dangerous-call", "builtins.eval") in [(f.rule, f.name) for f in found]


def test_numbers_that_are_opcodes_are_found() -> None:
    report = scan_source(BytesSource(joblib_array(PAYLOAD[:-1] + b"0")), "x.joblib")
    assert [f.rule for f in report.findings] == ["pickle/array-opcodes"]
    assert scan_source(BytesSource(joblib_array(bytes(9))), "x").verdict == "data-only"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(I23\n", b"(I99\n"),
        (b"(I23\n", b"(I-1\n"),
        (b"S'u1'", b"S'q1'"),
        (b"S'u1'", b"S'i'"),
        (b"'shape'", b"'shapf'"),
    ],
    ids=["longer than the file", "negative", "no type", "no size", "no shape"],
)
def test_what_can_not_be_followed_is_refused(old: bytes, new: bytes) -> None:
    data = joblib_array(b"." * 23)
    assert old in data
    with pytest.raises(FormatError):
        JoblibMachine(BytesSource(data.replace(old, new))).run()
