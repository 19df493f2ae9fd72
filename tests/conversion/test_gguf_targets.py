"""GGUFs of other kinds: big-endian ones, judged by gguf-py's reader, and generic ones, under the tensors' own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import llama_tensors, make_folder

import weighbridge as wb
from weighbridge.base.dtypes import TABLE
from weighbridge.base.errors import UnsupportedError, UsageError

gguf = pytest.importorskip("gguf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "hf")


def read(path: Path) -> Any:
    return gguf.GGUFReader(path)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_gguf_py_reads_the_same_from_both_orders(folder: Path, tmp_path: Path, dtype: str) -> None:
    for endian in ("little", "big"):
        wb.convert(folder, tmp_path / f"{endian}.gguf", dtype=dtype, endian=endian, tokenizer=False)
    little, big = read(tmp_path / "little.gguf"), read(tmp_path / "big.gguf")
    assert (little.endianess, big.endianess) == (gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG)
    assert list(little.fields) == list(big.fields)
    for name in (name for name in little.fields if not name.startswith("GGUF.")):
        assert little.fields[name].contents() == big.fields[name].contents(), name
    for one, other in zip(little.tensors, big.tensors, strict=True):
        assert (one.name, one.tensor_type, one.data_offset) == (other.name, other.tensor_type, other.data_offset)
        assert np.array_equal(one.data, other.data), one.name


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_there_and_back(folder: Path, tmp_path: Path, dtype: str) -> None:
    if dtype.startswith(("q4", "q5")):
        wb.quantize(folder, tmp_path / "little.gguf", dtype.upper(), tokenizer=False)
    else:
        wb.convert(folder, tmp_path / "little.gguf", dtype=dtype, tokenizer=False)
    wb.convert(tmp_path / "little.gguf", tmp_path / "big.gguf", endian="big")
    wb.convert(tmp_path / "big.gguf", tmp_path / "again.gguf")
    wb.convert(tmp_path / "big.gguf", tmp_path / "kept.gguf", endian="big")
    data = {name: (tmp_path / f"{name}.gguf").read_bytes() for name in ("little", "big", "again", "kept")}
    assert data["little"] == data["again"] != data["big"] == data["kept"]
    assert len(data["little"]) == len(data["big"])
    assert wb.diff(tmp_path / "little.gguf", tmp_path / "big.gguf")


def test_shards_and_arrays_too(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "parts", to="gguf", endian="big", tokenizer=False, max_shard_tensors=4)
    names = sorted(tmp_path.glob("parts/*.gguf"))
    assert len(names) > 1
    assert {read(path).endianess for path in names} == {gguf.GGUFEndian.BIG}
    with wb.open(names[0], names="hf") as model:
        for name, array in llama_tensors().items():
            assert np.array_equal(model[name].numpy().astype(np.float32), array.astype(np.float32)), name


def test_a_type_without_an_order_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    odd = [t.name for t in TABLE if t.ggml is not None and any(f.scalar == "mixed" for f in t.fields)]
    assert odd == ["IQ2_XXS"]
    writer = gguf.GGUFWriter(tmp_path / "iq.gguf", "mine")
    kind = gguf.GGMLQuantizationType.IQ2_XXS
    writer.add_tensor("w", np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), raw_dtype=kind)
    for write_part in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write_part()
    writer.close()
    with pytest.raises(UnsupportedError, match="w: the byte order of IQ2_XXS"):
        wb.convert(tmp_path / "iq.gguf", tmp_path / "out.gguf", endian="big")
    assert not (tmp_path / "out.gguf").exists()


def test_an_unknown_order_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="middle"):
        wb.convert(folder, tmp_path / "x.gguf", endian="middle")  # type: ignore[arg-type]


# ---- generic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "auto", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("source", ["folder", "file", "npz"])
def test_every_tensor_has_its_own_name(folder: Path, tmp_path: Path, source: str, dtype: str | None) -> None:
    path = {"folder": folder, "file": folder / "model.safetensors", "npz": tmp_path / "w.npz"}[source]
    arrays: dict[str, Any] = {name: array.astype(np.float32) for name, array in llama_tensors().items()}
    np.savez(tmp_path / "w.npz", **arrays)
    plan = wb.plan_convert(path, tmp_path / "out.gguf", arch="my-model", dtype=dtype, name="Mine")
    plan.run()
    found = read(tmp_path / "out.gguf")
    assert {t.name for t in found.tensors} == set(llama_tensors())
    keys = {name: field.contents() for name, field in found.fields.items() if not name.startswith("GGUF.")}
    assert keys == {"general.architecture": "my-model", "general.type": "model", "general.name": "Mine"}
    for tensor in found.tensors:
        own = llama_tensors()[tensor.name]
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(own.shape)
        assert np.allclose(values, own.astype(np.float32), atol=0 if dtype in (None, "auto") else 0.05)
    lost = [loss for loss in plan.losses if "config.json" in loss.message]
    assert len(lost) == (source != "npz")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"arch": "My Model"}, "not the name of an architecture"), ({"arch": ""}, "not the name of an architecture"),
     ({"arch": "a", "pre": "qwen2"}, "pre"), ({"arch": "a", "vocab_only": True}, "vocab"),
     ({"arch": "a", "tokenizer": False}, "tokenizer")],
)  # fmt: skip
def test_what_does_not_apply_is_refused(folder: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wb.plan_convert(folder, tmp_path / "x.gguf", **options)


def test_a_gguf_is_never_made_generic(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "a.gguf", tokenizer=False)
    with pytest.raises(UsageError, match="arch doesn't apply"):
        wb.plan_convert(tmp_path / "a.gguf", tmp_path / "x.gguf", arch="mine")
    with pytest.raises(UsageError, match="arch doesn't apply"):
        wb.plan_convert(folder, tmp_path / "x.safetensors", arch="mine")
