"""Every recorded model in other forms: shards and back, types of a GGUF by any way, a folder made of a GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conversion.product_models import (
    DRAFTS,
    SEEING,
    TEXT,
    assert_equal,
    errors,
    small_models,
    tensors_of,
    to_gguf,
    turn,
    write_model,
    write_seeing,
)

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.fitting.weights import gguf_model
from weighbridge.models.open import open_headers

GGUFS = sorted({*TEXT} - DRAFTS)
#: One type of each family of block types.
TYPES = ("Q8_0", "Q4_K_M", "IQ4_XS", "MXFP4_MOE", "Q2_K")


@pytest.mark.parametrize("name", [*TEXT, *(f"seeing:{name}" for name in SEEING)])
def test_shards_lead_back(name: str, tmp_path: Path) -> None:
    kind, _, seeing = name.partition(":")
    a = write_seeing(seeing, tmp_path / "a") if seeing else write_model(kind, tmp_path / "a")
    whole = tensors_of(a)
    wb.convert(a, tmp_path / "shards", max_shard_tensors=5)
    assert_equal(tensors_of(tmp_path / "shards"), whole)
    assert errors(tmp_path / "shards") <= errors(a)
    if len(whole) > 5:
        index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == whole.keys()
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    wb.merge(tmp_path / "shards", f"{tmp_path / 'one'}/")
    assert_equal(tensors_of(tmp_path / "one"), whole)
    assert json.loads((tmp_path / "one" / "config.json").read_text()) == json.loads((a / "config.json").read_text())
    ends = (a, tmp_path / "one")  # with the folders of a model's further parts
    files = [{path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in ends]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", GGUFS)
def test_a_gguf_splits_and_joins_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    whole = to_gguf(write_model(name, tmp_path / "a"), tmp_path / "whole.gguf", "q8_0")
    wb.split(whole, tmp_path / "shards", max_shard_tensors=5)
    to_gguf(tmp_path / "a", tmp_path / "direct", "q8_0", max_shard_tensors=5)
    parts, direct = (sorted((tmp_path / folder).iterdir()) for folder in ("shards", "direct"))
    assert [path.read_bytes() for path in parts] == [path.read_bytes() for path in direct]
    assert errors(parts[0]) <= errors(whole)
    wb.merge(parts[0], tmp_path / "joined.gguf")
    assert (tmp_path / "joined.gguf").read_bytes() == whole.read_bytes()


#: Families whose reference ignores the requested type (`kept_dtypes`), which a cast of a GGUF doesn't.
KEPT = {name for name in GGUFS if name.startswith(("deepseek4", "kimi-k3"))}


@pytest.mark.parametrize("name", sorted({*GGUFS} - KEPT))
def test_a_cast_gguf_is_the_one_of_the_folder(name: str, tmp_path: Path) -> None:
    """As the reference converter's: tensors that a family's GGUF has in F32 whatever is requested stay so. It writes no
    file type for some families."""
    whole = to_gguf(write_model(name, tmp_path / "a"), tmp_path / "whole.gguf", "f32")
    for dtype in ("q8_0", turn(name, ["bf16", "f16"])):
        cast = tmp_path / f"{dtype}.gguf"
        with small_models():
            wb.convert(whole, cast, dtype=dtype)
        found = wb.diff(cast, to_gguf(tmp_path / "a", tmp_path / f"direct-{dtype}.gguf", dtype))
        assert not found.tensors, dtype
        assert {key for key, *_ in found.metadata} <= {"general.file_type"}, dtype


@pytest.mark.parametrize("name", SEEING)
def test_a_cast_projector_is_the_one_of_the_folder(name: str, tmp_path: Path) -> None:
    a = write_seeing(name, tmp_path / "a")
    try:
        wb.convert(a, tmp_path / "whole.gguf", mmproj=True, dtype="f32")
    except UnsupportedError:
        return
    for dtype in ("q8_0", turn(name, ["bf16", "f16"])):
        wb.convert(tmp_path / "whole.gguf", tmp_path / f"{dtype}.gguf", dtype=dtype)
        wb.convert(a, tmp_path / f"direct-{dtype}.gguf", mmproj=True, dtype=dtype)
        cast, direct = ((tmp_path / f"{start}{dtype}.gguf").read_bytes() for start in ("", "direct-"))
        assert cast == direct, dtype


#: A GGUF of it lacks a key that `wb quantize` needs, as llama-quantize does.
NOT_QUANTIZED = {"deepseek-v2-lite"}


@pytest.mark.parametrize("name", sorted({*GGUFS} - NOT_QUANTIZED))
def test_a_quantized_gguf_is_the_one_of_the_folder(name: str, tmp_path: Path) -> None:
    """Its bytes, and the bytes that `wb fit` expects of its tensors."""
    a = write_model(name, tmp_path / "a")
    whole = to_gguf(a, tmp_path / "whole.gguf", "f32")
    with open_headers(a).model as folder, open_headers(whole).model as file:
        expected = [gguf_model(folder), gguf_model(file)]
    for ftype in (TYPES[0], turn(name, TYPES[1:])):
        by_file, by_folder = tmp_path / f"{ftype}.gguf", tmp_path / f"direct-{ftype}.gguf"
        with small_models():
            wb.quantize(whole, by_file, ftype)
            wb.quantize(a, by_folder, ftype, tokenizer=False)
        assert by_file.read_bytes() == by_folder.read_bytes(), ftype
        with wb.open(by_file) as model:
            stored = {tensor: model[tensor].nbytes for tensor in model}
        for model_as_gguf in expected:
            sizes = {n: spec.nbytes for n, spec in model_as_gguf.as_type(FILE_TYPES[ftype]).items()}
            assert sizes == stored, ftype


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "kimi-k2.5", "olmoe", "chatglm"])
@pytest.mark.parametrize("ftype", TYPES)
def test_a_quantized_gguf_leads_back(name: str, ftype: str, tmp_path: Path) -> None:
    """Also where a folder joins tensors that the GGUF has in several types: keys and values of latent attention."""
    a = write_model(name, tmp_path / "a")
    with small_models():
        wb.quantize(a, tmp_path / "q.gguf", ftype, tokenizer=False)
    wb.convert(tmp_path / "q.gguf", tmp_path / "back", to="hf", tokenizer=False)
    shapes = {tuple(tensor.shape) for tensor in tensors_of(a).values()}
    assert {tuple(tensor.shape) for tensor in tensors_of(tmp_path / "back").values()} <= shapes
    report = wb.prove(tmp_path / "q.gguf", tmp_path / "back", run=False)
    assert [check for check in report.checks if check.name == "tensors" and check.verdict != "same"] == []


@pytest.mark.parametrize("name", GGUFS)
def test_a_folder_of_a_gguf_makes_the_same_gguf(name: str, tmp_path: Path) -> None:
    first = to_gguf(write_model(name, tmp_path / "a"), tmp_path / "first.gguf", "f32")
    try:
        wb.convert(first, tmp_path / "back", to="hf", tokenizer=False)
    except UnsupportedError:
        assert not (tmp_path / "back").exists()
        return
    assert errors(tmp_path / "back") <= errors(tmp_path / "a")
    found = wb.diff(first, to_gguf(tmp_path / "back", tmp_path / "second.gguf", "f32"))
    assert [c for c in found.tensors if c.kind != "values" or (c.nmse or 0) > 1e-13] == []
    if "general.architecture" not in {key for key, *_ in found.metadata}:  # else of the language model of another class
        checks = {check.name: check for check in wb.prove(first, tmp_path / "second.gguf", static=True).checks}
        assert checks["settings"].verdict == "same", checks["settings"].details
