"""Quantized models shared out: a rank's values are the share of the whole's values, the codes come back byte for byte,
and a cut inside a word, a block or a group of columns is refused with the numbers of ranks that would do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.packings import makers

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.models.arch.registry import families
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.tensor_parallel.partition import partition_tensors
from weighbridge.packings.schema import gptq
from weighbridge.packings.schema.base import Match, Shared
from weighbridge.tensors import nodes

F32 = NDArray[np.float32]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 256,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 64, "intermediate_size": 512,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}  # fmt: skip
MLX: dict[str, dict[str, Any]] = {
    **{f"{bits} bits": {"q_bits": bits, "q_group_size": 64} for bits in (2, 3, 4, 5, 6, 8)},
    "mxfp4": {"q_mode": "mxfp4"}, "mxfp8": {"q_mode": "mxfp8"}, "nvfp4": {"q_mode": "nvfp4"},
}  # fmt: skip
SCHEMES = ("w2a16", "w3a16", "w4a16", "w5a16", "w6a16", "w7a16", "w8a16", "w8a8", "fp8_dynamic", "fp8_block",
           "mxfp4a16", "mxfp6a16", "mxfp8a16", "nvfp4a16", "gptq", "awq", "fp8")  # fmt: skip


def model(folder: Path, **said: Any) -> Path:
    config = LLAMA | said
    family = next(f for f in families().values() if f.architecture(config))
    rng = np.random.default_rng(7)
    folder.mkdir()
    shapes = family.names("hf", family.sizes_from_hf(config))
    save_file({name: rng.normal(size=s).astype("f4") for name, s in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("packed")
    return cache(lambda kind: model(root / kind, **(MIXTURE if kind == "mixture" else {})))


def values(opened: OpenModel) -> Iterator[tuple[str, F32]]:
    for name, node in opened.logical.items():
        wide = nodes.cast(nodes.decode(node), BY_NAME["F32"])
        yield name, wide.read_all().view(np.float32).reshape(node.spec.shape)


def part(whole: F32, share: Any, rank: int, ranks: int) -> F32:
    if share is None:
        return whole
    runs = [np.take(whole, range(*run), axis=share.axis) for run in share.ranges(rank, ranks)]
    return np.concatenate(runs, axis=share.axis)


def shared_out(folder: Path, out: Path, ranks: int = 2) -> None:
    """The law: a rank's values are its share of the values; and together they are the file that it was."""
    end = folder.suffix  # of a GGUF; a folder has none
    wb.convert(folder, again := out / f"again{end}", to="gguf" if end else "hf")
    wb.split(folder, split := out / "split", tp=ranks)
    wb.convert(split, back := out / f"back{end}", to="gguf" if end else "hf")
    names = [p.name for p in sorted(again.iterdir()) if p.suffix == ".safetensors"] if again.is_dir() else [""]
    for name in names:
        assert (again / name).read_bytes() == (back / name).read_bytes() if name else again.read_bytes()
    with open_weights(folder) as opened:
        how = partition_tensors(opened.family, opened.dialect, opened.sizes, dict.fromkeys(opened.logical), ranks)
        whole = dict(values(opened))
    assert any(share is not None and share.axis == whole[name].ndim - 1 for name, share in how.items())
    for rank in range(ranks):
        with open_weights(next(split.glob(f"model-rank-{rank}-of-*"))) as opened:
            found = dict(values(opened))
        assert found.keys() == whole.keys()
        for name, value in found.items():
            assert np.array_equal(value, part(whole[name], how[name], rank, ranks)), (name, rank)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(scheme: str, source: Any, tmp_path: Path) -> None:
    wb.convert(source("llama"), tmp_path / "packed", to="hf", scheme=scheme)
    shared_out(tmp_path / "packed", tmp_path)


@pytest.mark.parametrize(("how", "kind"), [*((how, "llama") for how in MLX), ("3 bits", "mixture"),
                                           ("mxfp4", "mixture")])  # fmt: skip
def test_mlx(how: str, kind: str, source: Any, tmp_path: Path) -> None:
    wb.convert(source(kind), tmp_path / "packed", to="mlx", **MLX[how])
    shared_out(tmp_path / "packed", tmp_path)


@pytest.mark.parametrize(("dtype", "kind"), [("q4_0", "llama"), ("q8_0", "mixture"), ("iq4_nl", "mixture"),
                                             ("q4_k", "llama"), ("mxfp4_moe", "mixture")])  # fmt: skip
def test_blocks_of_a_gguf(dtype: str, kind: str, source: Any, tmp_path: Path) -> None:
    wb.convert(source(kind), whole := tmp_path / "whole.gguf", dtype="f16", tokenizer=False)
    wb.quantize(whole, quantized := tmp_path / "m.gguf", dtype, pure=True)
    if dtype == "q4_k":  # blocks of 256, and a rank has 128 columns of the attention's output
        with pytest.raises(UsageError, match=r"attn_output.* 128 of 256 columns, but 256 share a block"):
            wb.split(quantized, tmp_path / "split", tp=2)
        return
    shared_out(quantized, tmp_path)


# ------------------------------------------------------------------------------------------------ by hand


def by_hand(folder: Path, source: Path, made: Any, method: dict[str, Any]) -> Path:
    """The model with linear layers as `made(out, in)` gives them: parts behind the module's name."""
    from safetensors.numpy import load_file

    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix("weight")
        parts = made(*tensors.pop(name).shape)
        for part_name, node in parts.items():
            kind = {"I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "U8": "u1"}[node.spec.dtype.name]
            raw = node.read_all().view(kind).reshape(node.spec.shape)
            tensors[module + part_name.removeprefix("m.")] = np.ascontiguousarray(raw)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": method}))
    return folder


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
HANDS: dict[str, Any] = {
    "zeros": (lambda o, i: makers.gptq(4, inner=i, outer=o).tensors, GPTQ),
    "3 bits": (lambda o, i: makers.gptq(3, inner=i, outer=o).tensors, GPTQ | {"bits": 3}),
    "in the order of activations": (lambda o, i: makers.gptq(4, inner=i, outer=o, order=True).tensors, GPTQ),
    "8 bits": (lambda o, i: makers.gptq(8, inner=i, outer=o).tensors, GPTQ | {"bits": 8}),
    "planes": (lambda o, i: makers.gptq(5, inner=i, outer=o, stored_zero=0).tensors,
               GPTQ | {"bits": 5, "checkpoint_format": "gptq_p"}),
    "one group": (lambda o, i: makers.gptq(4, inner=i, outer=o, group=i).tensors, GPTQ),
    "AWQ": (lambda o, i: makers.awq(inner=i, outer=o).tensors, {"quant_method": "awq", "bits": 4}),
    "AWQ without zeros": (lambda o, i: {k: t for k, t in makers.awq(inner=i, outer=o, zeros=False).tensors.items()
                                        if "zeros" not in k}, {"quant_method": "awq", "bits": 4}),
}  # fmt: skip


@pytest.mark.parametrize("case", HANDS)
def test_gptq_and_awq(case: str, source: Any, tmp_path: Path) -> None:
    made, method = HANDS[case]
    shared_out(by_hand(tmp_path / "model", source("llama"), made, method), tmp_path)


@pytest.mark.parametrize("case", ["zeros in words", "padded words", "order said", "order never set", "8 bits, zeros"])
def test_compressed_tensors_in_other_forms(case: str, source: Any, tmp_path: Path) -> None:
    from tests.packings.stored import of_numpy

    rng = np.random.default_rng(2)

    def made(outer: int, inner: int) -> dict[str, Any]:
        groups = inner // 64
        scales = of_numpy(rng.normal(size=(outer, groups)).astype("<f4"), "F32")
        shape = of_numpy(np.array([outer, inner], "<i8"), "I64")
        if case == "8 bits, zeros":
            return {"weight_packed": of_numpy(rng.integers(-9, 9, (outer, inner // 4), "<i4"), "I32"),
                    "weight_scale": scales, "weight_shape": shape,
                    "weight_zero_point": of_numpy(rng.integers(-9, 9, (outer // 4, groups), "<i4"), "I32")}  # fmt: skip
        words = -(-inner // 10) if case == "padded words" else inner // 8
        out = {"weight_packed": of_numpy(rng.integers(-9, 9, (outer, words), "<i4"), "I32"), "weight_scale": scales,
               "weight_shape": shape}  # fmt: skip
        if case == "zeros in words":
            out["weight_zero_point"] = of_numpy(rng.integers(-9, 9, (outer // 8, groups), "<i4"), "I32")
        if case.startswith("order"):
            order = np.full(inner, -1) if "never" in case else rng.permutation(inner) // 64
            out["weight_g_idx"] = of_numpy(order.astype("<i4"), "I32")
        return out

    bits = {"padded words": 3, "8 bits, zeros": 8}.get(case, 4)
    method = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": bits}}}}
    folder = by_hand(tmp_path / "model", source("llama"), made, method)
    if case == "padded words":  # ten codes a word: no number of ranks has whole words of 256 columns
        with pytest.raises(UsageError, match="10 share a word") as caught:
            wb.split(folder, tmp_path / "out", tp=2)
        assert "no number of ranks" in str(caught.value)
        return
    shared_out(folder, tmp_path)


# ------------------------------------------------------------------------------------------------ refusals

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str, str]] = {
    # what the model is, how it is converted, ranks, what is said, what would do
    "MLX's groups": ({}, {"to": "mlx", "q_bits": 4, "q_group_size": 128}, 8, r"\(attention head\)", "2 ranks"),
    "MLX's scales": (
        {"intermediate_size": 384}, {"to": "mlx", "q_bits": 4, "q_group_size": 128}, 2,
        r"down_proj.*each of 2 ranks would get 192 of 384 columns, but 128 share a scale", "among 3 ranks",
    ),
    "FP8's rows": (
        {"head_dim": 64, "num_attention_heads": 4}, {"to": "hf", "scheme": "fp8"}, 4,
        "o_proj.*each of 4 ranks would get 64 of 256 columns, but 128 share a scale", "among 2 ranks",
    ),
    "GPTQ's zeros": (
        {"intermediate_size": 640, "head_dim": 64}, {"to": "hf", "scheme": "gptq", "q_group_size": 128}, 2,
        "down_proj.* each of 2 ranks would get 320 of 640 columns, but 128 share a scale", "among 5 ranks",
    ),
    "blocks": (
        {"intermediate_size": 96}, {"to": "gguf", "dtype": "q8_0", "tokenizer": False}, 2,
        "ffn_down.weight: each of 2 ranks would get 48 of 96 columns, but 32 share a block", "among 3 ranks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_cut_inside_what_is_shared_is_refused(case: str, tmp_path: Path) -> None:
    said, how, ranks, words, hint = REFUSED[case]
    target = tmp_path / ("m.gguf" if how["to"] == "gguf" else "packed")
    wb.convert(model(tmp_path / "model", **said), target, **how)
    with pytest.raises(UsageError, match=words) as caught:
        wb.split(target, tmp_path / "out", tp=ranks)
    assert hint in (caught.value.hint or "")
    assert not (tmp_path / "out").exists()


def test_a_packing_that_does_not_lie_along_its_matrix_is_refused(source: Any, tmp_path: Path) -> None:
    from tests.packings.stored import of_numpy

    def made(outer: int, inner: int) -> dict[str, Any]:
        one = np.zeros(1, "<i8")
        return {"W_q": of_numpy(np.zeros((outer * inner // 128, 64), "u1"), "U8"),
                "scale": of_numpy(np.zeros((outer * inner // 64, 1), "<f4"), "F32"),
                "zero": of_numpy(np.zeros((outer * inner // 64, 1), "<f4"), "F32"),
                "nbits": of_numpy(one + 4, "I64"), "axis": of_numpy(one + 1, "I64"),
                "shape": of_numpy(np.array([outer, inner], "<i8"), "I64")}  # fmt: skip

    folder = by_hand(tmp_path / "model", source("llama"), made, {"quant_method": "hqq"})
    with pytest.raises(UnsupportedError, match="don't follow its rows and columns"):
        wb.split(folder, tmp_path / "out", tp=2)


# ------------------------------------------------------------------------------------------------ faults


def _other(lies: Any) -> Any:
    """Every axis one step off: what is shared by so many columns is by half as many, and the sides change places."""
    return {name: tuple(a and a._replace(side=1 - a.side) for a in lie) for name, lie in lies.items()}


@pytest.mark.parametrize("options", [
    {"to": "mlx", "q_bits": 4}, {"scheme": "gptq"}, {"scheme": "awq"}, {"scheme": "w4a16"}, {"scheme": "fp8"},
    {"scheme": "mxfp4a16"}, {"scheme": "mxfp6a16"}, {"scheme": "nvfp4a16"},
], ids=str)  # fmt: skip
def test_a_form_that_lies_otherwise_is_seen(options: dict[str, Any], source: Any, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    wb.convert(source("llama"), tmp_path / "packed", **({"to": "hf"} | options))
    right: Any = Match.storage_axes
    monkeypatch.setattr(Match, "storage_axes", property(lambda match: _other(right.fget(match))))
    with pytest.raises((AssertionError, WeighbridgeError)):
        shared_out(tmp_path / "packed", tmp_path)


def test_a_word_of_another_size_is_seen(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wb.convert(source("llama"), tmp_path / "packed", to="hf", scheme="gptq")
    monkeypatch.setattr(gptq, "in_words", lambda *_: Shared(16, 1, "a word"))
    with pytest.raises((AssertionError, WeighbridgeError)):
        shared_out(tmp_path / "packed", tmp_path)
