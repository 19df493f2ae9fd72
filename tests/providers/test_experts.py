"""Experts are stacked, and gate and up fused, whatever the dialect and the packing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.adapters.numpy import to_numpy
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UsageError

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
GATE, UP = (f"layers.0.moe.experts.{x}.weight" for x in ("gate", "up"))


def arrays(experts: int = 4) -> dict[str, np.ndarray]:
    rng, p = np.random.default_rng(0), "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (80, 64), "lm_head.weight": (80, 64)}
    shapes |= {"model.norm.weight": (64,), p + "block_sparse_moe.gate.weight": (experts, 64)}
    shapes |= {p + f"{x}_layernorm.weight": (64,) for x in ("input", "post_attention")}
    shapes |= {p + f"self_attn.{x}_proj.weight": (64 if x in "qo" else 32, 64) for x in "qkvo"}
    for e in range(experts):
        expert = f"{p}block_sparse_moe.experts.{e}."
        shapes |= {expert + "w1.weight": (96, 64), expert + "w3.weight": (96, 64), expert + "w2.weight": (64, 96)}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def made(kind: str, folder: Path) -> Path:
    """A model of four experts: Hugging Face's, or made of that."""
    hf, source = folder / "hf", folder / kind
    wb.save(arrays(), hf)
    (hf / "config.json").write_text(json.dumps(CONFIG))
    if kind == "mlx":
        wb.convert(hf, source, to=wb.MlxOptions(q_bits=4, q_group_size=32))
    elif kind != "hf":
        wb.convert(hf, source, dtype="q8_0", tokenizer=False)
    return source


@pytest.mark.parametrize(("kind", "type_name"), [("hf", "F32"), ("q8_0.gguf", "Q8_0"), ("mlx", "mlx-affine-4")])
def test_gate_and_up_are_one_stack(kind: str, type_name: str, tmp_path: Path) -> None:
    with wb.provider(made(kind, tmp_path)) as weights:
        assert (weights.config.experts, weights.config.experts_used) == (4, 2)
        assert weights.shape(GATE) == (4, 96, 64)
        fused = weights.fuse(GATE, UP)
        assert (fused.single, fused.reason, fused.axis) == (True, "", 1)
        assert fused.parts[0].type.name == type_name
        want = np.concatenate([weights.get(name, dtype="f32") for name in (GATE, UP)], axis=1)
        assert np.array_equal(to_numpy(fused.tensor, F32), want)
        assert weights.buffer(GATE, UP).nbytes == weights.nbytes(GATE) + weights.nbytes(UP)


@pytest.mark.parametrize("kind", ["hf", "q8_0.gguf", "mlx"])
def test_experts_are_dealt_out_whole(kind: str, tmp_path: Path) -> None:
    """Each expert is one rank's, as it is; the rest is cut as without experts, the router everybody's."""
    with wb.open(made(kind, tmp_path)) as model:
        parts = [model.rank(r, of=2, experts="whole") for r in range(2)]
        experts = [name for name in model if ".experts." in name or "_exps" in name or "switch_mlp" in name]
        for name in experts:
            have = [part[name].numpy() for part in parts if name in part]
            whole = model[name].numpy()
            if kind == "hf":  # each its own tensor, under its own number
                assert [name in part for part in parts] == [(f"experts.{e}." in name or f"experts.{e + 1}." in name)
                                                            for e in (0, 2)]  # fmt: skip
            else:
                assert [a.shape for a in have] == [(2, *whole.shape[1:])] * 2
                have = [np.concatenate(have)]
            assert [np.array_equal(a, whole) for a in have] == [True]
        assert len(experts) == (12 if kind == "hf" else 3)
        (router,) = (name for name in model if model[name].shape == (4, 64))
        assert all(np.array_equal(part[router].numpy(), model[router].numpy()) for part in parts)
        (query,) = (name for name in model if "q_proj.weight" in name or "attn_q.weight" in name)
        assert parts[1][query].shape == (32, 64)
        again = pickle.loads(pickle.dumps(parts[1]))
        assert {name: t.shape for name, t in again.items()} == {name: t.shape for name, t in parts[1].items()}
        with pytest.raises(UsageError, match="experts can't be"):
            model.rank(0, of=2, experts="some")  # type: ignore[arg-type]


def test_experts_that_the_ranks_do_not_divide(tmp_path: Path) -> None:
    wb.save(arrays(3), tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(json.dumps({**CONFIG, "num_local_experts": 3}))
    with wb.open(tmp_path / "m") as model:
        assert model.rank(1, of=2)["model.layers.0.block_sparse_moe.experts.2.w1.weight"].shape == (48, 64)
        with pytest.raises(UsageError, match="3 experts can't be divided among 2 ranks"):
            model.rank(1, of=2, experts="whole")
