"""Buffers, fusion, quantization, names and the cache of a provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import jax_process
from tests.conformance.test_providers import make_sources
from tests.llama import llama_tensors, write

import weighbridge as wb
from weighbridge.adapters.numpy import to_numpy
from weighbridge.base.dtypes import BF16, F32, dtype
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.base import Severity
from weighbridge.models.names import ALIASES, alias
from weighbridge.packings.read.affine import Affine
from weighbridge.packings.write.packers import AffineOf
from weighbridge.providers import fusion
from weighbridge.providers.cache import ByteCache
from weighbridge.providers.dtypes import AFFINE, PACKED, PLAIN, code_of
from weighbridge.tensors import nodes as n
from weighbridge.tensors.reference import affine

Q, K, V = (f"layers.0.attention.{x}.weight" for x in "qkv")
GATE, UP = (f"layers.0.mlp.{x}.weight" for x in ("gate", "up"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return make_sources(tmp_path_factory.mktemp("buffers"))


# ---------------------------------------------------------------------- names


def test_akunu_names_are_those_of_its_book(sources: Mapping[str, Any]) -> None:
    with wb.provider(sources["q8_0"], names="akunu") as weights, wb.open(sources["hf"], names="akunu") as model:
        names = {"token_embedding.weight", "output_norm.weight", "output.weight"}
        for layer in range(2):
            inner = ("attention.q", "attention.k", "attention.v", "attention.output", "ffn.gate", "ffn.up", "ffn.down")
            names |= {f"layers.{layer}.{x}.weight" for x in (*inner, "attention_norm", "ffn_norm")}
        assert set(weights) == set(model) == names
    for row in ALIASES["akunu"]:
        name = row.replace("{n}", "31")
        assert alias("akunu", name) != name
    assert alias("akunu", "layers.3.moe.router.weight") == "layers.3.moe.router.weight"


def test_every_file_has_the_same_canonical_names_and_shapes(sources: Mapping[str, Any]) -> None:
    shapes = {}
    for kind, source in sources.items():
        with wb.provider(source) as weights:
            shapes[kind] = {name: weights.shape(name) for name in weights}
    assert all(found == shapes["hf"] for found in shapes.values())


def test_metadata_has_unified_keys(sources: Mapping[str, Any]) -> None:
    for source in sources.values():
        with wb.provider(source) as weights:
            assert weights.metadata("context_length") == 128
            assert weights.metadata("llama.attention.head_count_kv") == 2
            assert weights.config.tied_embeddings is False
            assert weights.config.vocab == 80


def test_a_gguf_that_nobody_knows_has_its_own_metadata(tmp_path: Path) -> None:
    keys = {"general.architecture": "mine", "mine.context_length": 7}
    wb.save({"w": np.ones(32, np.float32)}, tmp_path / "m.gguf", metadata=keys)
    with wb.provider(tmp_path / "m.gguf", names="stored") as weights:
        assert weights.metadata("general.architecture") == "mine"
        assert (weights.metadata("context_length"), weights.metadata("mine.context_length")) == (7, 7)
        assert (weights.metadata("block_count"), weights.metadata("block_count", 3)) == (None, 3)


def test_a_style_of_names_that_is_none_is_refused_at_once(sources: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="unknown names 'zz'"):
        wb.provider(sources["hf"], names="zz")


# ---------------------------------------------------------------------- types


def test_codes_mean_one_thing() -> None:
    plain = [code_of(t) for t in (dtype(name) for name in PLAIN)]
    codes = [*plain, *AFFINE.values(), *(base + bits for base in PACKED.values() for bits in (1, 2, 3, 4, 6, 8))]
    assert len(codes) == len(set(codes))
    assert (AFFINE[3], AFFINE[4], AFFINE[8], AFFINE[6]) == (99, 100, 101, 102)
    assert code_of(dtype("q4_k")) == 12
    assert code_of(dtype("f16")) == 1


def test_quantization_names_bits_group_and_mode(sources: Mapping[str, Any]) -> None:
    want = {"hf": None, "q8_0": (8.5, 32, "Q8_0"), "mlx": (4, 32, "mlx-affine"), "gptq": (4, 32, "gptq")}
    for kind, found in want.items():
        with wb.provider(sources[kind]) as weights:
            assert weights.quantization() == found
            assert weights.quantization("layers.0.attention.norm.weight") is None


# ---------------------------------------------------------------------- quantization from shapes


def test_bits_and_group_follow_from_shapes(sources: Mapping[str, Any], tmp_path: Path) -> None:
    """Without a word in config.json, where the family's table settles what shapes leave open, for every command; and
    overridden, to other numbers."""
    copy = tmp_path / "mlx"
    copy.mkdir()
    for path in Path(sources["mlx"]).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    (copy / "config.json").write_text(json.dumps(config))
    with wb.open(copy, names="canonical") as settled, wb.open(sources["mlx"], names="canonical") as known:
        assert np.array_equal(settled[Q].numpy(), known[Q].numpy())
    wrong = {f.rule for f in wb.verify(copy).findings if f.severity is Severity.ERROR}
    assert wrong == {"mlx/quantized"}
    assert [s.bits for s in wb.inspect(copy).schemes] == [s.bits for s in wb.inspect(sources["mlx"]).schemes]
    with wb.provider(copy) as weights, wb.provider(sources["mlx"]) as stated:
        assert weights.quantized_by == "shapes"  # type: ignore[attr-defined]
        assert stated.quantized_by == "config"  # type: ignore[attr-defined]
        assert weights.quantization() == stated.quantization() == (4, 32, "mlx-affine")
        assert np.array_equal(weights.get(Q), stated.get(Q))
    with wb.provider(copy, names="logical", quantization={"bits": 2, "group_size": 64}) as other:
        name = "model.layers.0.self_attn.q_proj.weight"
        assert other.shape(name) == (64, 128)
        assert other.quantization(name) == (2, 64, "mlx-affine")
    (copy / "config.json").unlink()  # no family, no table
    with pytest.raises(FormatError, match="are ambiguous"), wb.open(copy, names="logical") as opened:
        opened["model.layers.0.self_attn.q_proj.weight"].numpy()
    with pytest.raises(FormatError, match="are ambiguous"), wb.provider(copy, names="logical") as bare:
        bare.quantization()


# ---------------------------------------------------------------------- fusion


@pytest.mark.parametrize("kind", ["hf", "q8_0", "q4_0", "f16", "mlx", "gptq", "torch"])
@pytest.mark.parametrize("names", [(Q, K, V), (GATE, UP)], ids=["qkv", "gate_up"])
def test_fused_weights_keep_their_type(kind: str, names: tuple[str, ...], sources: Mapping[str, Any]) -> None:
    with wb.provider(sources[kind]) as weights:
        fused = weights.fuse(*names)
        assert fused.single
        assert not fused.reason
        assert fused.parts[0].type == weights.dtype(names[0])
        want = np.concatenate([to_numpy(weights.tensor(name), F32) for name in names])
        assert np.array_equal(to_numpy(fused.tensor, F32), want)
        for name, section in weights.buffer(*names).sections.items():  # member by member, each part in its order
            own = b"".join(weights.buffer(x).part(name).tobytes() for x in names)
            assert weights.buffer(*names).part(name).tobytes() == own
            assert section.nbytes == len(own)


def test_mixed_types_come_apart_with_the_reason() -> None:
    rng = np.random.default_rng(0)
    nodes: dict[str, Any] = {k: n.const(rng.normal(size=(4, 256)).astype(np.float32), F32) for k in "abcd"}
    kinds = {"a": "q4_k", "b": "q4_k", "c": "q6_k", "d": "f32"}
    arrays = {k: n.cast(node, dtype(kinds[k])) for k, node in nodes.items()}
    with wb.provider(arrays) as weights:
        fused = weights.fuse("a", "b", "c", "d")
        assert [p.names for p in fused.parts] == [("a", "b"), ("c",), ("d",)]
        assert [p.type.code for p in fused.parts] == [12, 14, 0]
        assert "a Q4_K, b Q4_K, c Q6_K, d F32" in fused.reason
        with pytest.raises(UsageError, match="several types"):
            weights.buffer("a", "c")
        decoded = weights.fuse("a", "c", mixed="decode")
        assert decoded.single
        assert decoded.reason.startswith("decoded, since")
        assert np.array_equal(to_numpy(decoded.tensor), np.concatenate([weights.get("a"), weights.get("c")]))
        assert weights.fuse("a", "c", dtype="bf16").tensor.spec.dtype is BF16


def stacked_affine(rng: np.random.Generator, experts: int, rows: int, bits: int = 4) -> n.QuantizedTensor:
    w, s, b = affine.affine_encode(bits, 64, "F16", rng.normal(size=experts * rows * 128).astype(np.float32))
    shape = (experts, rows)
    members = {
        "weight": n.const(w.view(np.uint32).reshape(*shape, 128 * bits // 32), dtype("u32")),
        "scales": n.const(s.view(np.float16).reshape(*shape, 2), dtype("f16")),
        "biases": n.const(b.view(np.float16).reshape(*shape, 2), dtype("f16")),
    }
    spec = n.const(np.zeros((*shape, 128), np.float32), F32).spec
    return n.QuantizedTensor(spec, Affine(bits, 64, dtype("f16")), members)


def test_stacks_of_packed_experts_are_joined_expert_by_expert() -> None:
    rng = np.random.default_rng(1)
    with wb.provider({"gate": stacked_affine(rng, 3, 5), "up": stacked_affine(rng, 3, 7)}) as weights:
        fused = weights.fuse("gate", "up")
        assert isinstance(fused.tensor, n.QuantizedTensor)
        assert fused.tensor.spec.shape == (3, 12, 128)
        want = np.concatenate([weights.get("gate"), weights.get("up")], axis=1)
        assert np.array_equal(to_numpy(fused.tensor), want)
    with wb.provider({"gate": stacked_affine(rng, 3, 5), "up": stacked_affine(rng, 3, 5, 8)}) as weights:
        assert not weights.fuse("gate", "up").single
    with pytest.raises(UsageError, match="can't be joined"):
        fusion.join([stacked_affine(rng, 3, 5), stacked_affine(rng, 2, 5)], 1)


# ---------------------------------------------------------------------- layouts


def test_the_worked_example_of_mlx() -> None:
    """4096 x 4096, 4 bits, groups of 64: 8,388,608 bytes of words, 524,288 of scales and as many of biases."""
    weight = n.zeros((4096, 4096), F32)
    with wb.provider({"w": weight}) as weights:
        made = weights.buffer("w", layout="mlx", bits=4, group=64, scales="f16")
    assert [(s.offset, s.nbytes) for s in made.sections.values()] == [
        (0, 8_388_608), (8_388_608, 524_288), (8_912_896, 524_288),
    ]  # fmt: skip
    assert (made.nbytes, made.type) == (9_437_184, ("mlx-affine-4", 100))


def test_mlx_buffers_are_read_by_mlx(sources: Mapping[str, Any]) -> None:
    mx = pytest.importorskip("mlx.core", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    for kind, bits in (("mlx", 4), ("q8_0", 8)):
        with wb.provider(sources[kind]) as weights:
            made = weights.buffer(Q, K, V, layout="mlx", scales="f16")
            parts = [mx.array(made.part(name)) for name in ("weight", "scales", "biases")]
            found = np.array(mx.dequantize(*parts, group_size=32, bits=bits).astype(mx.float32))
            want = np.concatenate([weights.get(x) for x in (Q, K, V)])
            assert np.abs(found - want).max() <= 2e-3 * np.abs(want).max()


def test_scales_that_f16_lacks_are_named(sources: Mapping[str, Any]) -> None:
    with wb.provider(sources["mlx"]) as weights:
        assert weights.buffer(Q, layout="mlx").rounded == ()
        assert weights.buffer(Q, layout="mlx", scales="bf16").rounded == ()
    big = n.const(np.full((2, 64), 1e30, np.float32) * np.arange(64, dtype=np.float32), F32)
    packed = n.pack(big, AffineOf(4, 64, F32))
    with wb.provider({"w": n.QuantizedTensor(big.spec, Affine(4, 64, F32), packed)}) as weights:
        assert weights.buffer("w", layout="mlx", scales="f16").rounded[0] == "scales: F32 as F16"


@pytest.mark.parametrize(("kind", "layout"), [
    ("mlx", "ggml"), ("gptq", "ggml"), ("q8_0", "gptq"), ("q4_0", "awq"), ("q4_0", "gptq"), ("gptq", "awq"),
])  # fmt: skip
def test_another_layout_keeps_the_codes(kind: str, layout: str, sources: Mapping[str, Any], tmp_path: Path) -> None:
    """What a layout makes is read back as what it is, and has the weight's values."""
    with wb.provider(sources[kind]) as weights:
        made, want = weights.buffer(Q, layout=layout), weights.get(Q)
    if layout == "ggml":
        node = n.Const(n.const(want, F32).spec.with_dtype(dtype(made.type.name)), made.data.tobytes())
        found = to_numpy(node, F32)
    else:
        arrays = {f"m.{name}": made.part(name) for name in made.sections}
        write(tmp_path / "model.safetensors", arrays)
        config = {"quant_method": layout, "bits": int(made.type.name[-1]), "group_size": 32, "zero_point": True}
        config |= {
            "checkpoint_format": "gptq" if "symmetric" else "",
            "desc_act": False,
            "version": "gemm",
            "sym": True,
        }
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        found = wb.open(tmp_path)["m.weight"].numpy()
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= (2e-3 if made.rounded else 0) * np.abs(want).max()


def test_a_layout_that_does_not_hold_the_codes_says_why(sources: Mapping[str, Any]) -> None:
    with (
        wb.provider(sources["hf"]) as plain,
        wb.provider(sources["q8_0"]) as blocks,
        wb.provider(sources["mlx"]) as mlx,
    ):
        with pytest.raises(UnsupportedError, match="isn't quantized"):
            plain.buffer(Q, layout="mlx")
        with pytest.raises(UnsupportedError, match="8 bits"):
            blocks.buffer(Q, layout="awq")
        with pytest.raises(UnsupportedError, match="a second time"):
            blocks.buffer(Q, layout="ggml", dtype="q4_0")
        with pytest.raises(UnsupportedError, match="doesn't hold the codes"):
            mlx.buffer(Q, layout="ggml", dtype="q4_0")
        with pytest.raises(UnsupportedError, match="doesn't have integer codes"):
            plain.buffer(Q, layout="gptq")
        with pytest.raises(UsageError, match="isn't a plain type"):
            plain.buffer(Q, layout="plain", dtype="q8_0")
        with pytest.raises(UsageError, match="no section"):
            plain.buffer(Q).part("scales")
        assert plain.buffer(Q, layout="ggml", dtype="q8_0").type.code == 8


def test_a_buffer_is_a_view_where_the_file_allows(sources: Mapping[str, Any]) -> None:
    with wb.provider(sources["hf"]) as weights:
        one, two = weights.buffer("embed.weight"), weights.buffer("embed.weight")
        assert one.address % 64 == 0
        if one.shared:
            assert one.address == two.address
        assert np.from_dlpack(one).nbytes == one.nbytes if not one.shared else True
    assert one.data.tobytes() == llama_tensors()["model.embed_tokens.weight"].tobytes()  # and it outlives the provider


# ---------------------------------------------------------------------- cache, devices


def test_the_cache_is_bounded_and_counts(sources: Mapping[str, Any]) -> None:
    with wb.provider(sources["q8_0"], cache=40_000) as weights:
        first = weights.get(Q)
        assert weights.get(Q) is first
        stats = weights.cache.stats
        assert (stats.hits, stats.misses, stats.entries, stats.bytes) == (1, 1, 1, 64 * 64 * 4)
        for name in (K, V, GATE):
            weights.get(name)
        stats = weights.cache.stats
        assert stats.evictions > 0
        assert stats.bytes <= 40_000
        weights.cache.clear()
        assert weights.cache.stats.bytes == 0
    with wb.provider(sources["q8_0"], cache=0) as weights:
        assert weights.get(Q) is not weights.get(Q)
    with wb.provider(sources["q8_0"]) as weights:  # one is there by default, and what is shared can't be written to
        assert weights.get(Q) is weights.get(Q)
        with pytest.raises(ValueError, match="read-only"):
            weights.get(Q)[0] = 1
    with pytest.raises(UsageError, match="cache"):
        wb.provider(sources["q8_0"], cache=-1)


def test_a_value_beyond_the_bound_is_not_kept() -> None:
    cache = ByteCache(10)
    assert cache.get("a", lambda: b"x" * 11, len) == b"x" * 11
    assert cache.stats.entries == 0
    for key in "bcd":
        cache.get(key, lambda: b"1234", len)
    assert (cache.stats.bytes, cache.stats.evictions) == (8, 1)


def test_devices_and_types(sources: Mapping[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    with wb.provider(sources["q8_0"], device="torch", dtype="bf16") as weights:
        found = weights.get(Q)
        assert found.dtype == torch.bfloat16
        assert torch.equal(weights.get(Q, slice(3, 5)), found[3:5])
        assert torch.equal(weights.get(Q, (3, slice(1, 4))), found[3, 1:4])
    with pytest.raises(UsageError, match="no device"):
        wb.provider(sources["hf"], device="abacus").get(Q)
    mx = pytest.importorskip("mlx.core", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    with wb.provider(sources["hf"], device="mlx") as weights:
        assert weights.get(Q).dtype == mx.bfloat16


PLACED = [("gptq", None), ("mlx", "mlx"), ("q8_0", "ggml"), ("hf", "plain")]


@pytest.mark.parametrize("kind", ["gptq", "mlx"])
def test_parts_are_what_the_file_stores(kind: str, sources: Mapping[str, Any]) -> None:
    with wb.provider(sources[kind]) as weights, wb.open(sources[kind], names="stored") as file:
        made, front = weights.buffer(K, layout="parts"), "model.layers.0.self_attn.k_proj"
        stored = {name.removeprefix(f"{front}."): file[name] for name in file if name.startswith(f"{front}.")}
        assert set(made.sections) == set(stored)
        for name, tensor in stored.items():
            assert made.part(name).tobytes() == tensor.raw(), name
            assert made.part(name).shape == tensor.shape
        with pytest.raises(UnsupportedError, match="fused"):
            weights.buffer(Q, K, layout="parts")


@pytest.mark.oracle
@pytest.mark.parametrize("device", ["numpy", "torch", "torch:cpu", "mlx"])
@pytest.mark.parametrize(("kind", "layout"), PLACED)
def test_buffers_on_a_device(kind: str, layout: str | None, device: str, sources: Mapping[str, Any]) -> None:
    framework = pytest.importorskip({"mlx": "mlx.core"}.get(device, device.partition(":")[0]), reason="not installed")
    with wb.provider(sources[kind]) as weights:
        here = weights.buffer(K, layout=layout)
        there = here.to(device)
        assert (there.sections, there.layout, there.nbytes) == (here.sections, here.layout, here.nbytes)
        assert np.array_equal(np.asarray(there.data), here.data)
        for name in here.sections:
            part = there.part(name)
            assert tuple(part.shape) == here.part(name).shape
            assert np.asarray(part.view(framework.uint8)).tobytes() == here.part(name).tobytes(), name
        with pytest.raises(UsageError, match="no section"):
            there.part("nothing")


JAX = """
with wb.provider(sys.argv[1]) as weights:
    layout = sys.argv[3] if len(sys.argv) > 3 else None
    here = weights.buffer(sys.argv[2], layout=layout)
    there = here.to("jax")
    assert isinstance(there.data, jax.Array) and np.asarray(there.data).tobytes() == here.data.tobytes()
    for name in here.sections:
        part = np.asarray(there.part(name))
        assert (part.shape, part.tobytes()) == (here.part(name).shape, here.part(name).tobytes()), name
print("equal")
"""


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize(("kind", "layout"), PLACED)
def test_buffers_in_jax(kind: str, layout: str | None, sources: Mapping[str, Any]) -> None:
    assert jax_process.run(JAX, str(sources[kind]), K, *([layout] if layout else [])) == "equal\n"
