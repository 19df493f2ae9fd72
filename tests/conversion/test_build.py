"""From a checkpoint to a plan: names, types, refusals and losses, all told before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.llama import CONFIG, VOCAB, llama_tensors, tokenizer, write

import weighbridge as wb
from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, Q8_0
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.container import layout as gguf_layout
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.model import Plan
from weighbridge.tensors import nodes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama folder with the smallest byte-level tokenizer there can be."""
    path = tmp_path / "llama"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (path / "README.md").write_text("# no front matter\n")
    write(path / "model.safetensors", llama_tensors())
    return path


def types(plan: Plan) -> dict[str, str]:
    return {s.name: s.spec.dtype.name for f in plan.files for s in f.layout.slots}


# ------------------------------------------------------------------------------------------------ targets


@pytest.mark.parametrize(("asked", "made"), [("f32", F32), ("bf16", BF16), ("f16", F16), (None, F16), ("auto", F16)])
def test_blocks_are_decoded_to_the_type_that_is_asked_for(
    asked: str | None, made: Any, folder: Path, tmp_path: Path
) -> None:
    wb.convert(folder, tmp_path / "m.gguf", dtype="q8_0", tokenizer=False)
    plan = wb.plan_convert(tmp_path / "m.gguf", tmp_path / "hf", dtype=asked, tokenizer=False)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert types(plan)[name] == made.name
    assert f"decoded from {Q8_0} to {made}" in [loss.message for loss in plan.losses if loss.tensor == name]
    if asked is not None:
        file = wb.plan_convert(tmp_path / "m.gguf", tmp_path / "m.safetensors", dtype=asked)
        assert types(file)["blk.0.attn_q.weight"] == ("F32" if asked == "auto" else made.name)


@pytest.mark.parametrize(
    ("target", "to", "format", "folder_out"),
    [
        ("m.gguf", None, "gguf", False),
        ("m.safetensors", None, "safetensors", False),
        ("m", None, "hf", True),
        ("m-v1.5", None, "hf", True),
        ("m", "gguf", "gguf", False),
        ("m", "safetensors", "safetensors", True),
        ("m/", None, "hf", True),
        ("m/", "gguf", "gguf", True),
    ],
)
def test_the_format_follows_from_the_target_or_is_said(
    folder: Path, tmp_path: Path, target: str, to: str | None, format: str, folder_out: bool
) -> None:
    plan = wb.plan_convert(folder, f"{tmp_path}/{target}", to=to)
    assert (plan.format, plan.folder) == (format, folder_out)


def test_an_unknown_extension_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a format to write"):
        wb.plan_convert(folder, tmp_path / "m.xyz")
    with pytest.raises(UnsupportedError, match="can't be written"):
        wb.plan_convert(folder, tmp_path / "m", to="xyz")


def test_the_source_is_never_the_target(folder: Path) -> None:
    with pytest.raises(RefusedError, match="contains the source"):
        wb.plan_convert(folder, folder / "model.safetensors")
    with pytest.raises(RefusedError, match="contains the source"):
        wb.plan_convert(folder, folder, to="hf")
    linked = folder.parent / "link.safetensors"
    linked.symlink_to(folder / "model.safetensors")
    with pytest.raises(RefusedError, match="contains the source"):
        wb.plan_convert(folder, linked)


def test_bad_options_are_usage_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown option 'nonsense'"):
        wb.plan_convert(folder, tmp_path / "m.gguf", nonsense=1)  # type: ignore[call-arg]
    for field in ("jobs", "max_memory", "max_shard_size", "max_shard_tensors", "align"):
        with pytest.raises(UsageError, match=field):
            wb.plan_convert(folder, tmp_path / "m.gguf", **{field: 0})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no number type"):
        wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f17")
    with pytest.raises(UsageError, match="GGUF"):
        wb.plan_convert(folder, tmp_path / "m.safetensors", dtype="q8_0")


# ------------------------------------------------------------------------------------------------ types


@pytest.mark.parametrize(
    ("name", "shape", "wanted", "chosen"),
    [
        ("blk.0.attn_q.weight", (64, 64), Q8_0, Q8_0),
        ("blk.0.attn_q.weight", (64, 48), Q8_0, F16),  # no whole blocks: as the reference falls back
        ("blk.0.attn_q.bias", (64,), F16, F32),
        ("blk.0.attn_norm.weight", (64,), F16, F32),
        ("token_embd_norm.weight", (2, 64), F16, F32),  # a norm of two dimensions is one all the same
        ("blk.0.ffn_gate_inp.weight", (8, 64), Q8_0, F32),
        ("position_embd.weight", (8, 64), BF16, F32),
        ("token_types.weight", (2, 64), BF16, F32),
        ("rope_freqs.weight", (32,), BF16, F32),
        ("some.thing", (64, 64), BF16, F32),
        ("output.weight", (64, 64), BF16, BF16),
    ],
)
def test_types_of_a_gguf(name: str, shape: tuple[int, ...], wanted, chosen) -> None:
    assert dtype_policy.gguf_dtype(name, Spec(shape, F32), wanted) is chosen


def test_auto_follows_the_first_matrix_that_says_something() -> None:
    specs = [Spec((4,), F16), Spec((4, 4), F32), Spec((4, 4), BF16), Spec((4, 4), F16)]
    assert dtype_policy.requested_gguf_dtype("auto", specs) is BF16
    assert dtype_policy.requested_gguf_dtype(None, specs[:2]) is F16
    assert dtype_policy.requested_gguf_dtype("Q8_0", specs) is Q8_0
    with pytest.raises(UsageError, match="wb convert writes GGUFs in"):
        dtype_policy.requested_gguf_dtype("q4_k", specs)


def test_a_gguf_has_vectors_in_f32_and_the_rest_as_asked(folder: Path, tmp_path: Path) -> None:
    found = types(wb.plan_convert(folder, tmp_path / "m.gguf", dtype="q8_0"))
    assert {v for k, v in found.items() if "norm" in k} == {"F32"}
    assert {v for k, v in found.items() if "norm" not in k} == {"Q8_0"}
    assert {v for k, v in types(wb.plan_convert(folder, tmp_path / "m.gguf")).items() if "norm" not in k} == {"BF16"}


def test_casts_count_what_they_lose(tmp_path: Path) -> None:
    x = np.array([[1e30, 1.0, 1e-30, 0.0]], ml_dtypes.bfloat16)
    write(tmp_path / "a.safetensors", {"x": x, "i": np.arange(3, dtype=np.int64)})
    result = wb.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", dtype="f16")
    assert (result.overflow, result.underflow) == ({"x": 1}, {"x": 1})
    with wb.open(tmp_path / "b.safetensors") as model:
        assert model["i"].dtype == "I64"  # integers are no weights to be cast
        assert np.isinf(model["x"].numpy()[0, 0])


# ------------------------------------------------------------------------------------------------ GGUF sources


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """A GGUF with a Q8_0 matrix and an F32 vector."""
    rng = np.random.default_rng(0)
    tensors = {
        "a.weight": nodes.cast(nodes.const(rng.normal(size=(4, 64)).astype(np.float32), F32), Q8_0),
        "a_norm.weight": nodes.const(rng.normal(size=64).astype(np.float32), F32),
    }
    metadata = {"general.architecture": KV("str", "none"), "x.list": KV("arr[i32]", [1, 2]), "x.one": KV("u8", 7)}
    layout = gguf_layout([(k, v.spec) for k, v in tensors.items()], metadata)
    data = bytearray(layout.size)
    for at, piece in layout.pieces:
        data[at : at + len(piece)] = piece
    for slot in layout.slots:
        data[slot.offset : slot.offset + slot.spec.nbytes] = tensors[slot.name].read_all().tobytes()
    path = tmp_path / "q.gguf"
    path.write_bytes(data)
    return path


def test_a_quantized_tensor_passes_through_bit_for_bit(quantized: Path, tmp_path: Path) -> None:
    result = wb.convert(quantized, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == quantized.read_bytes()
    assert result.losses == ()


def test_quantizing_again_is_refused_unless_allowed(quantized: Path, tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"m.weight": np.zeros((2, 64), np.float32)})
    with wb.open(quantized) as model:
        node = model["a.weight"].node
        from weighbridge.conversion.plan.losses.requantized import losses_of

        twice = nodes.cast(nodes.decode(node), BY_NAME["Q4_0"])
        with pytest.raises(RefusedError, match="allow_requantize=True"):
            losses_of({"a": twice}, False)
        assert [x.tensor for x in losses_of({"a": twice}, True)] == ["a"]
        assert losses_of({"a": nodes.as_node(node), "b": nodes.decode(node)}, False) == []


def test_a_container_without_blocks_gets_values_and_says_so(quantized: Path, tmp_path: Path) -> None:
    plan = wb.plan_convert(quantized, tmp_path / "v.safetensors")
    assert types(plan) == {"a.weight": "F32", "a_norm.weight": "F32"}
    assert "1 tensor is decoded" in plan.notes[0]
    assert "keys, 3 in all" in plan.losses[0].message
    wb.convert(quantized, tmp_path / "v.safetensors")
    with wb.open(quantized) as a, wb.open(tmp_path / "v.safetensors") as b:
        assert np.array_equal(a["a.weight"].numpy(), b["a.weight"].numpy())


def test_alignment_is_kept_or_changed(quantized: Path, tmp_path: Path) -> None:
    wb.convert(quantized, tmp_path / "wide.gguf", align=4096)
    with wb.open(tmp_path / "wide.gguf") as model:
        assert model.metadata["general.alignment"] == 4096
        assert all(e.offset % 4096 == 0 for e in model.source.index)
    wb.convert(tmp_path / "wide.gguf", tmp_path / "kept.gguf")
    assert (tmp_path / "kept.gguf").read_bytes() == (tmp_path / "wide.gguf").read_bytes()


def test_a_name_is_written_where_it_is_given(quantized: Path, tmp_path: Path) -> None:
    wb.convert(quantized, tmp_path / "named.gguf", name="Hugo")
    with wb.open(tmp_path / "named.gguf") as model:
        assert model.metadata["general.name"] == "Hugo"


def test_a_split_set_merges_to_the_same_bytes(quantized: Path, tmp_path: Path) -> None:
    wb.convert(quantized, tmp_path / "set", to="gguf", max_shard_tensors=1)
    names = sorted(p.name for p in (tmp_path / "set").iterdir())
    assert names == ["set-00001-of-00002.gguf", "set-00002-of-00002.gguf"]
    for source in (tmp_path / "set", tmp_path / "set" / names[1]):
        wb.convert(source, tmp_path / "one.gguf", overwrite=True)
        assert (tmp_path / "one.gguf").read_bytes() == quantized.read_bytes()


# ------------------------------------------------------------------------------------------------ plans


def test_a_plan_is_plain_data_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    plan = wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f16")
    data = json.loads(json.dumps(plan.describe()))
    assert sorted(tmp_path.iterdir()) == before
    assert data["schema"] == "weighbridge/plan/1"
    assert data["bytes"] == plan.size
    assert {t["how"] for f in data["files"] for t in f["tensors"]} == {"cast"}
    result = wb.convert(folder, tmp_path / "m.gguf", dtype="f16")
    assert result.bytes == plan.size == (tmp_path / "m.gguf").stat().st_size
    assert plan.memory <= WriteOptions().memory


def test_a_plan_keeps_to_the_memory_it_is_given(folder: Path, tmp_path: Path) -> None:
    plan = wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f16", max_memory=4096, jobs=1)
    assert plan.memory <= 4096
    wb.convert(folder, tmp_path / "a.gguf", dtype="f16", max_memory=4096, jobs=1)
    wb.convert(folder, tmp_path / "b.gguf", dtype="f16")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()  # slabs don't show in the bytes
    with pytest.raises(RefusedError, match="max_memory"):
        wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f16", max_memory=64, jobs=1).memory  # noqa: B018


def test_a_copied_tensor_is_planned_as_a_copy(folder: Path, tmp_path: Path) -> None:
    plan = wb.plan_convert(folder, tmp_path / "m.safetensors")
    assert {t["how"] for f in plan.describe()["files"] for t in f["tensors"]} == {"copy"}


def test_a_folder_brings_its_other_files(folder: Path, tmp_path: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    wb.convert(folder, tmp_path / "copy", max_shard_size=20_000)
    names = {p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    assert {"config.json", "tokenizer.json", "README.md", "1_Pooling/config.json"} < names
    assert (tmp_path / "copy" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    with wb.open(folder) as a, wb.open(tmp_path / "copy") as b:
        assert {k: t.raw() for k, t in a.items()} == {k: t.raw() for k, t in b.items()}


def test_a_file_that_the_file_system_cannot_hold_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weighbridge.conversion.plan import build

    shards = wb.plan_convert(folder, tmp_path / "m", max_shard_size=9_000)
    largest = max(file.layout.size for file in shards.files)
    monkeypatch.setattr(build, "largest_file", lambda path: largest)
    assert "--max-shard-size" in wb.plan_convert(folder, tmp_path / "m.safetensors").notes[-1]
    assert not wb.plan_convert(folder, tmp_path / "m", max_shard_size=9_000).notes
    monkeypatch.setattr(build, "largest_file", lambda path: largest - 1)
    assert "--max-shard-size" in wb.plan_convert(folder, tmp_path / "m", max_shard_size=9_000).notes[-1]


def test_a_cast_folder_says_its_type(folder: Path, tmp_path: Path) -> None:
    """transformers loads in the type that config.json names."""
    wb.convert(folder, tmp_path / "cast", dtype="f16")
    said = json.loads((tmp_path / "cast" / "config.json").read_text())
    assert said == {**CONFIG, "torch_dtype": "float16"}
    with wb.open(tmp_path / "cast") as model:
        assert {t.dtype for t in model.values()} == {"F16"}
    wb.convert(folder, tmp_path / "kept")
    assert (tmp_path / "kept" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_progress_reaches_the_end_and_never_goes_back(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    plan = wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f16")
    plan.run(lambda done, total, label: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


# ------------------------------------------------------------------------------------------------ odd sources


def test_a_big_endian_gguf_comes_out_little_endian(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    arrays: dict[str, Any] = {
        "a.weight": np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32),
        "b.weight": np.arange(64, dtype=np.float16).reshape(2, 32),
        "c": np.arange(5, dtype=np.int32),
    }
    writer = gguf.GGUFWriter(tmp_path / "be.gguf", "none", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("x.number", 0x01020304)
    writer.add_array("x.words", ["one", "two"])
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wb.convert(tmp_path / "be.gguf", tmp_path / "le.gguf")
    read = gguf.GGUFReader(tmp_path / "le.gguf")
    assert read.endianess == gguf.GGUFEndian.LITTLE
    assert read.fields["x.number"].contents() == 0x01020304
    assert read.fields["x.words"].contents() == ["one", "two"]
    found = {t.name: t.data for t in read.tensors}
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    with wb.open(tmp_path / "be.gguf") as model:  # a swapped tensor is no view of the file, and right all the same
        assert all(np.array_equal(model[name].numpy(), array) for name, array in arrays.items())


def test_npz_and_safetensors_there_and_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x/y": rng.normal(size=(3, 4)),
        "i": np.arange(7),
        "flag": np.array(True),
        "e": np.zeros((0, 3), np.float32),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "c.npz", **arrays)
    for source in ("a.npz", "c.npz"):
        wb.convert(tmp_path / source, tmp_path / "b.safetensors", overwrite=True)
        wb.convert(tmp_path / "b.safetensors", tmp_path / "d.npz", overwrite=True)
        with np.load(tmp_path / "d.npz") as back:
            assert {k: (v.dtype, v.shape, v.tobytes()) for k, v in back.items()} == {
                k: (v.dtype, v.shape, v.tobytes()) for k, v in arrays.items()
            }


def test_what_numpy_lacks_goes_into_npz_as_f32(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {"x": np.array([1.5, -2.0], ml_dtypes.bfloat16)})
    plan = wb.plan_convert(tmp_path / "a.safetensors", tmp_path / "a.npz")
    assert "decoded" in plan.notes[0]
    wb.convert(tmp_path / "a.safetensors", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as back:
        assert back["x"].dtype == np.float32
        assert back["x"].tolist() == [1.5, -2.0]


# ------------------------------------------------------------------------------------------------ without a tokenizer


def keys_of(path: Path) -> dict[str, object]:
    with wb.open(path) as model:
        return dict(model.metadata)


def test_a_folder_without_a_tokenizer_is_refused_or_becomes_a_gguf_that_says_so(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    target = tmp_path / "m.gguf"
    with pytest.raises(UnsupportedError, match="tokenizer=False"):
        wb.plan_convert(folder, target)
    plan = wb.plan_convert(folder, target, tokenizer=False)
    assert any("the tokenizer" in loss.message for loss in plan.losses)
    wb.convert(folder, target, tokenizer=False)
    found = keys_of(target)
    assert [key for key in found if key.startswith("tokenizer.")] == ["tokenizer.ggml.model"]
    assert (found["tokenizer.ggml.model"], found["llama.vocab_size"]) == ("none", len(VOCAB))


def test_a_gguf_whose_tokenizer_we_cannot_write_is_refused_or_goes_without(folder: Path, tmp_path: Path) -> None:
    model, odd = tmp_path / "m.gguf", tmp_path / "odd.gguf"
    wb.convert(folder, model)
    wb.edit(model, set={"tokenizer.ggml.model": "hybriddna"}, output=odd)
    with pytest.raises(UnsupportedError, match="tokenizer=False"):
        wb.plan_convert(odd, tmp_path / "back")
    plan = wb.plan_convert(odd, tmp_path / "back", tokenizer=False)
    assert "config.json" in plan.texts
    assert not [name for name in plan.texts if name.startswith(("tokenizer", "special"))]
    assert any("the tokenizer" in loss.message for loss in plan.losses)


def test_weights_alone_name_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(UnsupportedError, match=r"config\.json"):
        wb.plan_convert(folder, tmp_path / "m.gguf")
    assert wb.plan_convert(folder, tmp_path / "m.npz").files


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    layout = gguf_layout((), {"general.architecture": KV("str", "llama")})
    path.write_bytes(b"".join(data for _, data in layout.pieces).ljust(layout.size, b"\0"))
    with pytest.raises(UsageError, match="no tensors"):
        wb.plan_convert(path, tmp_path / "back")


# ------------------------------------------------------------------------------------------------ resharding


def test_resharding_writes_its_own_index_and_never_copies_one(folder: Path, tmp_path: Path) -> None:
    first, again, whole = tmp_path / "first", tmp_path / "again", tmp_path / "whole"
    wb.convert(folder, first, max_shard_tensors=4)
    wb.convert(first, again, max_shard_tensors=3)
    wb.convert(again, whole)
    index = json.loads((again / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {p.name for p in again.glob("*.safetensors")}
    assert not list(whole.glob("*.index.json"))
    with wb.open(whole) as model:
        assert set(model) == set(index["weight_map"])


def test_a_target_that_ends_in_a_slash_is_a_folder(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder / "model.safetensors", f"{tmp_path}/out/")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    wb.convert(folder, f"{tmp_path}/ggufs/", to="gguf")
    assert [p.name for p in (tmp_path / "ggufs").iterdir()] == ["ggufs.gguf"]


def test_parent_folders_are_made_one_level_deep(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "new" / "m.npz")
    with pytest.raises(RefusedError, match="parents=True"):
        wb.convert(folder, tmp_path / "typo" / "new" / "m.npz")
    assert not (tmp_path / "typo").exists()
    wb.convert(folder, tmp_path / "typo" / "new" / "m.npz", parents=True)
