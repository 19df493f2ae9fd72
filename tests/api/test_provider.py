"""The weight provider: one mapping over all formats, views where they can be views, no more read than asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.llama import llama_tensors, make_folder, write

import weighbridge as wb
from weighbridge.base.dtypes import BF16, F32
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.io.source import BytesSource
from weighbridge.tensors import nodes
from weighbridge.tensors.slicing import narrow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama folder without a tokenizer, written by our own writer through the sink."""
    return make_folder(tmp_path_factory.mktemp("m") / "llama")


def test_a_model_is_a_mapping_of_its_tensors(folder: Path) -> None:
    arrays = llama_tensors()
    with wb.open(folder) as model:
        assert set(model) == set(arrays)
        assert len(model) == len(arrays)
        assert "lm_head.weight" in model
        assert "nothing" not in model
        assert model.get("nothing") is None
        assert model["lm_head.weight"].dtype == "BF16"
        assert model.config["hidden_size"] == 64
        assert model.metadata["format"] == "pt"
        assert model["lm_head.weight"].shape == (80, 64)
        for name, want in arrays.items():
            got = model[name].numpy()
            assert got.dtype == want.dtype
            assert got.tobytes() == want.tobytes()


def test_a_view_copies_nothing_and_is_read_only(folder: Path) -> None:
    with wb.open(folder) as model:
        a, b = (model["lm_head.weight"].numpy() for _ in range(2))
        assert a.__array_interface__["data"][0] == b.__array_interface__["data"][0]  # the same pages
        assert not a.flags.writeable
        assert not a.flags.owndata
    assert a.tobytes() == llama_tensors()["lm_head.weight"].tobytes()  # and it outlives the model


def test_torch_shares_the_pages_and_writing_changes_no_file(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    before = (folder / "model.safetensors").read_bytes()
    with wb.open(folder) as model:
        tensor = model["lm_head.weight"].torch()
        assert tensor.dtype == torch.bfloat16
        assert tensor.view(torch.int16).numpy().tobytes() == llama_tensors()["lm_head.weight"].tobytes()
        tensor.zero_()
        assert model["lm_head.weight"].torch(dtype="f32").dtype == torch.float32
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_dtype_can_be_asked_for(folder: Path) -> None:
    with wb.open(folder) as model:
        got = model["lm_head.weight"].numpy("f32")
    assert got.dtype == np.float32
    assert np.array_equal(got, llama_tensors()["lm_head.weight"].astype(np.float32))


def test_canonical_names_are_the_same_whatever_the_file(folder: Path) -> None:
    arrays = llama_tensors()
    with wb.open(folder, names="canonical") as model:
        assert (
            model["layers.0.attention.q.weight"].numpy().tobytes()
            == arrays["model.layers.0.self_attn.q_proj.weight"].tobytes()
        )
        assert len(model) == len(arrays)
    with wb.open(folder, names="gguf") as model:
        q = model["blk.0.attn_q.weight"].numpy()
        assert q.tobytes() != arrays["model.layers.0.self_attn.q_proj.weight"].tobytes()  # ggml's rotary order
        assert sorted(q.tobytes()) == sorted(arrays["model.layers.0.self_attn.q_proj.weight"].tobytes())
    with pytest.raises(UsageError, match="canonical"):
        wb.open(folder, names="nonsense")  # type: ignore[arg-type]


def test_fusing_reads_into_one_buffer(folder: Path) -> None:
    arrays, names = llama_tensors(), [f"model.layers.1.self_attn.{x}_proj.weight" for x in "qkv"]
    with wb.open(folder) as model:
        fused = model.concat(names)
        assert fused.shape == (128, 64)
        assert fused.numpy().tobytes() == b"".join(arrays[x].tobytes() for x in names)
        assert fused[60:70].tobytes() == fused.numpy()[60:70].tobytes()
        with pytest.raises(UsageError):
            model.concat([names[0], "model.norm.weight"])
        with pytest.raises(UsageError):
            model.concat([])


def test_a_cache_keeps_arrays_until_it_is_dropped(folder: Path) -> None:
    with wb.open(folder) as model:
        assert model["lm_head.weight"].numpy("f32") is not model["lm_head.weight"].numpy("f32")
        model.cache()
        first = model["lm_head.weight"].numpy("f32")
        assert model["lm_head.weight"].numpy("f32") is first
        model.clear_cache()
        assert model["lm_head.weight"].numpy("f32") is not first


def test_mlx_parts_are_one_tensor_and_fuse_as_one(tmp_path: Path) -> None:
    from weighbridge.tensors.reference import affine

    rng = np.random.default_rng(3)
    arrays: dict[str, np.ndarray] = {}
    for name in ("q", "k"):
        weight, scales, biases = affine.affine_encode(4, 64, "F16", rng.normal(size=8 * 128).astype(np.float32))
        arrays[f"{name}.weight"] = weight.view(np.uint32).reshape(8, 16)
        arrays[f"{name}.scales"], arrays[f"{name}.biases"] = (
            x.view(np.float16).reshape(8, 2) for x in (scales, biases)
        )
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {"bits": 4, "group_size": 64}}))
    write(tmp_path / "model.safetensors", arrays)
    with wb.open(tmp_path) as model:
        assert sorted(model) == ["k.weight", "q.weight"]
        q, fused = model["q.weight"], model.concat(["q.weight", "k.weight"])
        assert (q.shape, q.dtype, q.nbytes) == ((8, 128), "mlx-affine-4", 8 * 64 + 2 * 32)
        assert fused.shape == (16, 128)
        for part in ("weight", "scales", "biases"):
            joined = np.concatenate([arrays[f"q.{part}"], arrays[f"k.{part}"]])
            assert fused.parts()[part].numpy().tobytes() == joined.tobytes()
        assert np.array_equal(fused.numpy(), np.concatenate([model[x].numpy() for x in ("q.weight", "k.weight")]))
        with pytest.raises(UsageError, match="decode"):
            q.raw()
    with wb.open(tmp_path, names="stored") as model:
        assert sorted(model) == sorted(arrays)


@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=4),
    st.lists(
        st.one_of(
            st.integers(-5, 5),
            st.just(...),
            st.builds(slice, *[st.one_of(st.none(), st.integers(-6, 6))] * 2, st.sampled_from([None, 1, 2, -1, -2])),
        ),
        max_size=5,
    ),
)
@examples(500)
def test_indexing_is_numpys(shape: list[int], key: list[object]) -> None:
    """Whatever numpy says to an index of integers, slices and `...`, we say."""
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    from weighbridge import Tensor

    tensor = Tensor("t", {"t": nodes.const(array, F32)})
    index = tuple(key)
    try:
        want = array[index]  # type: ignore[index]
    except IndexError:
        with pytest.raises((IndexError, UsageError)):
            tensor[index]
        return
    got = tensor[index]
    assert got.shape == want.shape
    assert np.array_equal(got, want)


def test_indexing_reads_only_the_rows_it_names() -> None:
    seen: list[int] = []

    class Watched(BytesSource):
        def _readinto(self, offset: int, out: memoryview) -> int:
            seen.append(len(out))
            return super()._readinto(offset, out)

    array = np.arange(6 * 50 * 8, dtype=np.float32).reshape(6, 50, 8)
    node = nodes.Stored(nodes.const(array, F32).spec, Watched(array.tobytes()), 0)
    from weighbridge import Tensor

    assert np.array_equal(Tensor("t", {"t": node})[4, 10:13], array[4, 10:13])
    assert sum(seen) == 3 * 8 * 4
    with pytest.raises(IndexError):
        Tensor("t", {"t": node})[6]
    for bad in (True, None, [1], "a", 1.0):
        with pytest.raises(UsageError):
            narrow(node, bad)


def test_rows_are_a_tensor_of_their_own(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    want = llama_tensors()["lm_head.weight"]
    with wb.open(folder) as model:
        part = model["lm_head.weight"].rows(3, 7)
        assert (part.shape, part.dtype, part.nbytes) == ((4, 64), "BF16", 4 * 64 * 2)
        assert part.torch().view(torch.int16).numpy().tobytes() == want[3:7].tobytes()
        assert part.rows(1, 2).numpy().tobytes() == want[4:5].tobytes()
        for lo, hi in ((-1, 2), (3, 2), (0, 81)):
            with pytest.raises(UsageError):
                model["lm_head.weight"].rows(lo, hi)


def test_iterating_a_tensor_ends() -> None:
    from weighbridge import Tensor

    assert len(list(Tensor("t", {"t": nodes.const(np.zeros((3, 2), np.float32), F32)}))) == 3  # type: ignore[call-overload]


def test_notebook_output_escapes_names(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"<script>alert(1)</script>.0.weight": np.zeros((2, 2), np.float32)})
    with wb.open(tmp_path / "x.safetensors") as model:
        html = model._repr_html_() + next(iter(model.values()))._repr_html_()
    html += wb.inspect(tmp_path / "x.safetensors")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "1 tensor" in html
    assert repr(model).endswith("1 tensor>")


def test_a_notebook_shows_the_shares_of_the_page(tmp_path: Path) -> None:
    """Types and parts of the summary panel, the folded tree of the tensors panel."""
    from tests.page.samples import llama

    from weighbridge.reports.summary import summary

    with wb.open(llama(tmp_path / "m")) as model:
        html, found = model._repr_html_(), summary(model.source)
    for row in (*found.dtypes, *(part.part for part in found.parts)):
        assert f"{row.name} {row.nbytes / found.report.tensor_nbytes:.1%}" in html
    assert "<code>0-2</code> <b>× 3</b>" in html
    assert html.count("<details") == html.count("</details>") == 5  # model, layers, 0-2, self_attn, mlp


def test_errors_are_ours_or_the_systems(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        wb.open(tmp_path / "no")
    with pytest.raises(UsageError, match="no weights"):
        wb.open(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="doesn't read"):
        wb.open(tmp_path)
    (tmp_path / "junk.safetensors").write_bytes(os.urandom(64))
    with pytest.raises((FormatError, UnsupportedError)):
        wb.open(tmp_path / "junk.safetensors")
    for start in (b"\xff" * 8, b"\x05" + bytes(7) + b"[1,2]"):  # nothing by its bytes: the name's reader says where
        (tmp_path / "named.safetensors").write_bytes(start + bytes(20))
        with pytest.raises(FormatError, match=r"named\.safetensors"):
            wb.open(tmp_path / "named.safetensors")
    (tmp_path / "set-00001-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(FormatError, match=r"file 2 of 3 of the set is missing: set-00002-of-00003\.gguf"):
        wb.open(tmp_path / "set-00001-of-00003.gguf")
    with pytest.raises(AttributeError):
        wb.nothing  # noqa: B018
    assert BF16.torch == "bfloat16"


def test_models_and_tensors_pickle_as_their_path(folder: Path) -> None:
    import pickle

    with wb.open(folder, names="stored") as model:
        name = next(iter(model))
        again = pickle.loads(pickle.dumps(model))
        one = pickle.loads(pickle.dumps(model[name]))
        assert list(again) == list(model)
        assert np.array_equal(one.numpy(), model[name].numpy())
        assert (one.ndim, one.size) == (len(one.shape), model[name].numpy().size)
        with pytest.raises(TypeError, match="can't be pickled"):
            pickle.dumps(model[name].rows(0, 1))


def test_a_report_is_true_where_all_is_well(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0")
    assert bool(wb.diff(folder, folder))
    assert not wb.verify(tmp_path / "cut.gguf")
    assert repr(wb.inspect(folder)).startswith("<InspectReport ")


def test_everything_prints_as_one_line(folder: Path, tmp_path: Path) -> None:
    with wb.plan_convert(folder, tmp_path / "m.gguf", tokenizer=False) as plan, wb.open(folder) as model:
        shown = [plan, plan.run(), model, *model.values()]
    with wb.plan_quantize(folder, tmp_path / "q.gguf", "Q8_0", tokenizer=False) as quantized:
        shown.append(quantized)
    with wb.plan_slice(folder, tmp_path / "s", layers="0") as sliced:
        shown.append(sliced)
    shown += [f(folder) for f in (wb.identify, wb.inspect, wb.verify, wb.scan, wb.hash)]
    shown += [wb.hash(folder, tensors=True), wb.diff(folder, tmp_path / "m.gguf")]
    for thing in shown:
        line = repr(thing).replace(str(tmp_path), "")
        assert line.startswith(f"<{type(thing).__name__} ")
        assert len(line) < 120, line
