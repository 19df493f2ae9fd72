"""docs/claims.md, run: statements on safety, loading and conversion. `test_claims.py` has those on formats."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.containers import ggml_files
from tests.docs.test_claims import header, load, save, start, write_gguf

import weighbridge as wb
from weighbridge.base.dtypes import dtype
from weighbridge.tensors import kernels

st = pytest.importorskip("safetensors")
gguf = pytest.importorskip("gguf")
SAFETENSORS_HEADER = 100_000_000  # the reference's limit


class Runs:
    """A pickle of it calls `list`, which is harmless, on loading."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ("ran",)


def test_torch_load_is_restricted_by_default() -> None:
    torch = pytest.importorskip("torch")
    data = io.BytesIO()
    torch.save({"x": Runs()}, data)
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        torch.load(io.BytesIO(data.getvalue()))
    assert torch.load(io.BytesIO(data.getvalue()), weights_only=False) == {"x": list("ran")}


def test_four_bytes_do_not_identify_a_format(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    np.savez(tmp_path / "a.npz", a=np.zeros(1))
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt")
    assert len({(tmp_path / name).read_bytes()[:4] for name in ("a.npz", "a.pt")}) == 1  # both are zip archives
    assert len({save({"k": "x" * n})[:4] for n in range(0, 64, 8)}) == 8  # safetensors begins with a length


def test_bf16_to_f16_is_exact_or_out_of_range() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    values = every[np.isfinite(every)]
    with np.errstate(over="ignore", under="ignore"):
        same = values.astype(np.float16).astype(np.float32) == values
    inside = (np.abs(values) >= 2.0**-14) & (np.abs(values) <= 65504)
    assert same[inside].all()
    assert not same[~inside & (values != 0)].all()


def test_safetensors_headers_may_have_100_mb() -> None:
    wide = header('{"__metadata__":{"k":"' + "x" * 20_000_000 + '"}}')
    assert load(wide) == {}
    with pytest.raises(st.SafetensorError, match="header too large"):
        load((SAFETENSORS_HEADER + 1).to_bytes(8, "little") + b"{}")


def test_the_hubs_command_is_hf() -> None:
    pytest.importorskip("huggingface_hub")
    commands = {e.name for e in importlib.metadata.entry_points(group="console_scripts") if "huggingface" in e.value}
    assert "hf" in commands
    assert "huggingface-cli" not in commands


def test_whisper_cpp_has_a_format_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ggml-tiny.bin").write_bytes(ggml_files.whisper())
    found = wb.identify(tmp_path / "ggml-tiny.bin")
    assert (found.format, found.variant, found.damage) == ("ggml", "whisper", ())


def test_transformers_has_the_conversion_of_the_hub() -> None:
    pytest.importorskip("transformers")
    assert importlib.util.find_spec("transformers.safetensors_conversion")


def test_gguf_holds_plain_floats(tmp_path: Path) -> None:
    plain = {"F32", "F16", "BF16", "F64"}
    assert plain <= {kind.name for kind in gguf.GGMLQuantizationType}


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_quantizing_can_not_be_undone(name: str) -> None:
    quantization = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(1).normal(size=(1, 256)).astype(np.float32)
    block, size = gguf.GGML_QUANT_SIZES[quantization]
    data = np.zeros((1, 256 // block * size), np.uint8)
    kernels.encode(dtype(name), values, data)
    assert not np.array_equal(gguf.dequantize(data, quantization), values)


def test_no_format_has_a_checksum(tmp_path: Path) -> None:
    changed = bytearray(save())
    changed[-1] ^= 0x40
    assert bytes(load(bytes(changed))["a"]["data"]) != bytes(load(save())["a"]["data"])
    data = bytearray(write_gguf(tmp_path / "m.gguf"))
    data[-1] ^= 0x40
    (tmp_path / "m.gguf").write_bytes(data)
    assert len(gguf.GGUFReader(tmp_path / "m.gguf").tensors)


def test_safetensors_refuses_strided_tensors() -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save as save_torch

    with pytest.raises(ValueError, match="contiguous"):
        save_torch({"a": torch.zeros(2, 3).t()})


def test_safetensors_has_a_4_bit_type() -> None:
    four = header('{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', b"\0")
    assert load(four)["a"]["dtype"] == "F4"
    with pytest.raises(st.SafetensorError):
        load(header('{"a":{"dtype":"I4","shape":[2],"data_offsets":[0,1]}}', b"\0"))


def test_a_gguf_may_be_several_files(tmp_path: Path) -> None:
    arrays = {name: np.zeros((2, 32), np.float32) for name in "abcd"}
    wb.save(arrays, tmp_path / "m.gguf", metadata={"general.architecture": "mine"})
    wb.split(tmp_path / "m.gguf", tmp_path / "parts", max_shard_tensors=2)
    assert sorted(p.name[-20:] for p in (tmp_path / "parts").iterdir()) == [
        "-00001-of-00002.gguf",
        "-00002-of-00002.gguf",
    ]


def test_safetensors_mixes_types() -> None:
    from safetensors.numpy import save as save_numpy

    made = save_numpy({"a": np.zeros(1, np.float32), "b": np.zeros(1, np.int8)})
    assert {t["dtype"] for t in load(made).values()} == {"F32", "I8"}
    assert start(made) > 8


def test_ggml_files_are_not_gguf(tmp_path: Path) -> None:
    (tmp_path / "old.bin").write_bytes(ggml_files.llama("ggjt3"))
    with pytest.raises(ValueError, match="magic"):
        gguf.GGUFReader(tmp_path / "old.bin")


def test_an_mlx_model_is_safetensors(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"a": mx.zeros((2,))})
    assert list(load((tmp_path / "model.safetensors").read_bytes())) == ["a"]
