"""Reports on NumPy's files: what `np.load` gives is what is told, taken out and pointed at, compressed or not, in
either byte order."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from weighbridge.reports import get
from weighbridge.reports.anatomy import anatomy
from weighbridge.reports.inspect.report import inspect
from weighbridge.reports.verify.report import verify

RNG = np.random.default_rng(11)
ARRAYS = {
    "layer/w": RNG.standard_normal((67, 33)).astype("f4"),
    "h": RNG.standard_normal((5, 4, 3)).astype("f2"),
    "ids": np.arange(-3, 9),
    "one": np.array(2.5),
    "none": np.empty((0, 4), "f4"),
    "flags": np.array([True, False, True]),
}
PLAIN = [name for name, array in ARRAYS.items() if array.size]


def swapped(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(array.dtype.newbyteorder(">")) for name, array in arrays.items()}


def make(kind: str, path: Path) -> Path:
    arrays = swapped(ARRAYS) if "big" in kind else ARRAYS
    save = np.savez_compressed if "deflated" in kind else np.savez
    save(path, **arrays)  # type: ignore[arg-type]
    return path


@pytest.fixture(params=["stored", "deflated", "stored big", "deflated big"])
def npz(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make(request.param, tmp_path / "x.npz")


@pytest.fixture(params=["<", ">"])
def npy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    np.save(tmp_path / "w.npy", ARRAYS["layer/w"].astype(f"{request.param}f4"))
    return tmp_path / "w.npy"


def test_an_archive_is_listed(npz: Path) -> None:
    report = inspect(npz)
    assert [(t.name, tuple(t.shape), t.nbytes) for t in report.tensors] == [
        (name, array.shape, array.nbytes) for name, array in ARRAYS.items()
    ]
    assert report.parameters == sum(array.size for array in ARRAYS.values())


def test_an_array_is_listed(npy: Path) -> None:
    (tensor,) = inspect(npy).tensors
    assert (tensor.name, tensor.dtype, tuple(tensor.shape)) == ("w", "F32", (67, 33))


def test_whole_files_have_no_findings(npz: Path, npy: Path) -> None:
    for path in (npz, npy):
        assert verify(path, values=True).findings == ()


CUTS = [(name, key) for name in ARRAYS for key in (None, "[1:3]", "[::-1]") if ARRAYS[name].shape or key is None]


@pytest.mark.parametrize(("name", "key"), CUTS)
def test_what_is_taken_out_is_what_numpy_saves(npz: Path, name: str, key: str | None) -> None:
    wanted = ARRAYS[name] if key is None else ARRAYS[name][slice(1, 3) if ":3" in key else slice(None, None, -1)]
    with get.Picked(f"{npz}::{name}", key) as picked:
        found = b"".join(get.chunks(picked))
        assert len(found) == get.size_of(picked)
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(wanted).reshape(wanted.shape))
    assert found == out.getvalue()


@pytest.mark.parametrize("name", ["layer/w", "h", "ids"])
def test_statistics_are_numpys(npz: Path, name: str) -> None:
    found, array = get.stats(f"{npz}::{name}"), ARRAYS[name].astype("f8")
    assert (found.count, found.minimum, found.maximum) == (array.size, array.min(), array.max())
    assert found.mean == pytest.approx(array.mean())
    assert found.std == pytest.approx(array.std())


def test_every_byte_is_named(npz: Path, npy: Path) -> None:
    for path in (npz, npy):
        report = anatomy(path, head=1 << 20)
        assert b"".join(bytes.fromhex(p.head) for p in report.parts) == path.read_bytes()
        assert "unknown" not in {p.kind for p in report.parts}


@pytest.mark.parametrize("name", PLAIN)
def test_a_byte_is_told_to_the_element_where_it_is_one(npz: Path, name: str) -> None:
    (part,) = anatomy(f"{npz}::{name}", kind=["tensor"]).parts
    array, size = ARRAYS[name], ARRAYS[name].itemsize
    at = part.start + (array.size - 1) * size
    found = anatomy(npz, at=min(at, part.end - 1)).place
    if "deflated" in part.value:
        assert found is None, "a byte of compressed data is no element's"
        return
    assert found is not None
    assert (found.tensor, found.element, found.byte) == (name, array.size - 1, 0)
    assert tuple(found.index) == tuple(n - 1 for n in array.shape)
    assert np.frombuffer(npz.read_bytes()[at : at + size], np.load(npz)[name].dtype)[0] == array.reshape(-1)[-1]


def test_damage_is_told_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    """A compressed array that doesn't unpack hides nothing of the others."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=RNG.integers(0, 256, 90_000, "u1"), b=np.array([[1, np.nan]]))
    data = bytearray(path.read_bytes())
    data[70_000:70_100] = bytes(100)
    path.write_bytes(data)
    assert verify(path).ok, "without --values no byte of them is read"
    found = verify(path, values=True).findings
    assert sorted((f.rule, f.tensor) for f in found) == [("npz/checksum", "a"), ("values/nan", "b")]
