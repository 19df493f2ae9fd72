"""One tensor out: what numpy reads back is what the format's own reader gives, in one piece or cut; statistics are
numpy's."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports import makers as m

from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.models.open import open_model
from weighbridge.reports import get
from weighbridge.reports.statistics import tensor

RNG = np.random.default_rng(5)
W = RNG.standard_normal((37, 24)).astype("f4")
ODD = np.array([[1.0, np.nan, np.inf, -np.inf], [0.0, -0.0, 2.5, -7.25]], "f4")


def bf16(array: np.ndarray) -> bytes:
    return (array.view("u4") >> 16).astype("u2").tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    tensors: dict[str, Any] = {
        "w": ("F32", W.shape, W.tobytes()), "b": ("BF16", W.shape, bf16(W)), "odd": ("F32", ODD.shape, ODD.tobytes()),
        "i": ("I64", (5,), np.arange(5).astype("i8").tobytes()), "s": ("F32", (), struct.pack("<f", 3.5)),
        "none": ("F32", (0, 4), b""), "same": ("F32", (3,), np.full(3, 2, "f4").tobytes()),
    }  # fmt: skip
    path.write_bytes(m.safetensors(tensors))
    return path


def loaded(picked: get.Picked) -> np.ndarray:
    return np.load(io.BytesIO(b"".join(get.chunks(picked))))


@pytest.mark.parametrize(
    ("name", "key", "wanted"),
    [
        ("w", None, W),
        ("w", "[3]", W[3]),
        ("w", "[2:9]", W[2:9]),
        ("w", "0:10, :", W[0:10, :]),
        ("w", "[-4:, 3:20:5]", W[-4:, 3:20:5]),
        ("w", "[..., 1]", W[..., 1]),
        ("w", "[::-1]", W[::-1]),
        ("w", "[5, 6]", W[5, 6]),
        ("i", "[1:3]", np.array([1, 2])),
        ("s", None, np.array(3.5, "f4")),
        ("none", None, np.empty((0, 4), "f4")),
    ],
)
def test_arrays(file: Path, name: str, key: str | None, wanted: np.ndarray, tmp_path: Path) -> None:
    with get.Picked(f"{file}::{name}", key) as picked:
        found = loaded(picked)
        assert found.dtype == wanted.dtype
        assert found.shape == np.shape(wanted) == tuple(picked.shape)
        np.testing.assert_array_equal(found, wanted)
        assert get.save(picked, tmp_path / "o.npy") == get.size_of(picked) == (tmp_path / "o.npy").stat().st_size
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), wanted)


def test_types_that_numpy_lacks_come_as_f32(file: Path) -> None:
    with get.Picked(f"{file}::b") as picked:
        found = loaded(picked)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (np.frombuffer(bf16(W), "u2").astype("u4") << 16).view("f4").reshape(W.shape))


def test_a_dtype_that_is_asked_for(file: Path) -> None:
    with get.Picked(f"{file}::w", None, "f16") as picked:
        np.testing.assert_array_equal(loaded(picked), W.astype("f2"))
    with get.Picked(f"{file}::w", None, "bf16") as picked, pytest.raises(UnsupportedError, match="NumPy"):
        loaded(picked)


def raw(path: str, key: str | None = None) -> bytes:
    with get.Picked(path, key, raw=True) as picked:
        data = b"".join(get.chunks(picked))
        assert len(data) == get.size_of(picked)
        return data


@pytest.mark.costly
def test_raw_bytes_are_the_files(file: Path) -> None:
    assert raw(f"{file}::b") == bf16(W)
    assert raw(f"{file}::w") == W.tobytes()
    assert raw(f"{file}::w", "[1:3]") == W[1:3].tobytes()
    with pytest.raises(UsageError):
        raw(f"{file}::w", "[:, 1:3]")


def test_quantized_blocks(tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    block = struct.pack("<e", 0.5) + bytes(i % 256 for i in range(-16, 16))
    path.write_bytes(m.gguf({}, {"q": ("Q8_0", (2, 32), block * 2)}))
    with get.Picked(f"{path}::q") as picked:
        np.testing.assert_array_equal(loaded(picked), np.stack([np.arange(-16, 16, dtype="f4") / 2] * 2))
    assert raw(f"{path}::q") == block * 2
    assert get.stats(f"{path}::q").minimum == -8


@pytest.mark.oracle
def test_mlx_parts_are_one_tensor(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    packed, scales, biases = mx.quantize(mx.array(RNG.standard_normal((16, 128)).astype("f4")), group_size=64, bits=4)
    tensors = {"l.weight": packed, "l.scales": scales, "l.biases": biases}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors, {"format": "mlx"})
    (tmp_path / "config.json").write_text('{"quantization": {"bits": 4, "group_size": 64}}')
    with get.Picked(f"{tmp_path}::l.weight") as picked:
        np.testing.assert_array_equal(loaded(picked), np.array(mx.dequantize(packed, scales, biases, 64, 4)))
    with get.Picked(f"{tmp_path}::l.scales") as picked:
        np.testing.assert_array_equal(loaded(picked), np.array(scales))
    assert raw(f"{tmp_path}::l.weight") == np.array(packed).tobytes()
    assert get.stats(f"{tmp_path}::l.weight").nbytes == sum(np.array(a).nbytes for a in (packed, scales, biases))


@pytest.mark.parametrize(("name", "values"), [("w", W), ("odd", ODD), ("i", np.arange(5)), ("same", np.full(3, 2.0))])
@pytest.mark.parametrize("slab", [tensor._RUN, 100])
def test_statistics_are_numpys(
    file: Path, name: str, values: np.ndarray, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor, "_RUN", slab)
    found, good = get.stats(f"{file}::{name}"), values[np.isfinite(values)].astype("f8")
    assert (found.count, found.nan, found.inf) == (values.size, np.isnan(values).sum(), np.isinf(values).sum())
    assert found.zeros == (values == 0).sum()
    assert (found.minimum, found.maximum) == (good.min(), good.max())
    assert found.mean == pytest.approx(good.mean(), rel=1e-12, abs=1e-12)
    assert found.std == pytest.approx(good.std(), rel=1e-12, abs=1e-12)
    assert sum(found.histogram.counts) == good.size
    wanted = np.histogram(good, np.array(found.histogram.edges))[0]
    assert np.abs(np.cumsum(found.histogram.counts) - np.cumsum(wanted)).max() <= good.size * 2**-8
    np.testing.assert_array_equal(found.first, values.reshape(-1)[:8])


@pytest.mark.parametrize("key", ["[3]", "[2:9]", "[-4:, 3:20:5]", "[..., 1]", "[5, 6]"])
def test_statistics_of_a_slice(file: Path, key: str) -> None:
    found, wanted = get.stats(f"{file}::w", key), W[get.parse_slice(key)].astype("f8")
    assert (found.count, found.shape, found.nbytes) == (wanted.size, wanted.shape, wanted.size * 4)
    assert (found.minimum, found.maximum) == (wanted.min(), wanted.max())
    assert found.std == pytest.approx(wanted.std(), rel=1e-12)


def test_statistics_are_those_of_wb_stats(file: Path) -> None:
    with open_model(file) as model:
        for name in ("w", "b", "odd", "i", "none"):
            assert repr(get.stats(f"{file}::{name}")) == repr(tensor.tensor_statistics(model, name))  # NaN is not NaN


def test_what_f32_would_round_or_lose(tmp_path: Path) -> None:
    values = np.array([1e300, -1e-300, 2.0**24 + 1, 0.0])
    large = np.array([2**40 + 1, -(2**31) - 1, 3], "i8")
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors({"f": ("F64", (4,), values.tobytes()), "i": ("I64", (3,), large.tobytes())}))
    found = get.stats(f"{path}::f")
    assert (found.minimum, found.maximum, found.zeros, found.inf) == (-1e-300, 1e300, 1, 0)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.first == tuple(values)
    assert (get.stats(f"{path}::i").minimum, get.stats(f"{path}::i").maximum) == (large.min(), large.max())


def test_statistics_of_nothing(file: Path) -> None:
    found = get.stats(f"{file}::none")
    assert (found.count, found.minimum, found.mean, found.histogram.counts) == (0, None, None, ())


def test_existing_files_stay(file: Path, tmp_path: Path) -> None:
    (tmp_path / "o.npy").write_text("mine")
    with get.Picked(f"{file}::w") as picked:
        with pytest.raises(RefusedError, match="exists"):
            get.save(picked, tmp_path / "o.npy")
        assert (tmp_path / "o.npy").read_text() == "mine"
        get.save(picked, tmp_path / "o.npy", overwrite=True)
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), W)


@pytest.mark.parametrize("text", ["", "[", "a", "1:2:0", "1.5", "[1,,2]", "[0]; x", "::::", "[1 2]"])
def test_slices_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        get.parse_slice(text)


@pytest.mark.parametrize("key", ["[99]", "[0, 0, 0]", "[-38]"])
def test_slices_out_of_range(file: Path, key: str) -> None:
    with pytest.raises(UsageError):
        get.Picked(f"{file}::w", key)


def test_a_path_must_name_a_tensor(file: Path) -> None:
    with pytest.raises(UsageError, match="names no tensor"):
        get.Picked(file)
    with pytest.raises(UsageError, match="no tensor"):
        get.Picked(f"{file}::nothing")


def test_progress_reaches_the_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor, "_RUN", 100)
    seen: list[tuple[int, int]] = []
    get.stats(f"{file}::w", progress=lambda done, total, label: seen.append((done, total)))
    assert seen[-1] == (W.nbytes, W.nbytes)
    assert len(seen) > 3
