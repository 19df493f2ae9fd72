"""What a Gemma 3n's config says in ways of its own: lists by layer, shares of sparse layers, tokens without embeddings
for the layers; and what wrong files say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden
from tests.models.record_families import values

import weighbridge as wb
from weighbridge.base.dtypes import BF16, F32, Q8_0
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.models.arch.registry import families
from weighbridge.models.config.keys import from_value, quantile, rules
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.tensors.layouts import layout
from weighbridge.tensors.nodes import Const, const, zeros

FAMILY = families()["gemma3n"]
CONFIG: dict[str, Any] = golden()["gemma3n"]["config"]
(SPARSITY,) = (row for row in rules(FAMILY).keys if row.quantile)


def read(config: dict[str, Any]) -> None:
    FAMILY.sizes_from_hf(config)
    config_to_gguf(config, FAMILY, file_type=0)


SHARES = [i / 1000 for i in range(1001)]


def test_a_quantile_is_torch_s_or_a_neighbour() -> None:
    """torch's erfinv in F32 isn't the nearest number, and differs in the last bit from processor to processor."""
    import torch

    theirs = torch.distributions.normal.Normal(0, 1).icdf(torch.tensor(SHARES, dtype=torch.float32)).numpy()
    ours = np.array([quantile(share, "x") for share in SHARES], np.float32)
    apart = np.abs(ours.view(np.int32).astype(np.int64) - theirs.view(np.int32))
    assert apart.max() <= 1


def test_a_quantile_does_not_depend_on_the_processor() -> None:
    """The steps in F64 may differ in their last bits between C libraries. No result is so near to the middle of two F32
    that a thousand times that would change it."""
    for share in np.array(SHARES, np.float32)[1:-1]:
        exact = NormalDist().inv_cdf(float(np.float32(2 * share - 1) + 1.0) / 2) / math.sqrt(2)
        near = np.float32(exact)
        middles = [(float(near) + float(np.nextafter(near, np.float32(end)))) / 2 for end in (-np.inf, np.inf)]
        assert min(abs(exact - m) for m in middles) > 1000 * math.ulp(exact), share


@given(st.lists(st.integers(0, 1000), max_size=5))
def test_shares_come_back(thousandths: list[int]) -> None:
    shares = [n / 1000 for n in thousandths]
    assert from_value(SPARSITY, [quantile(share, "x") for share in shares]) == shares


def test_a_silent_config_means_what_its_class_means() -> None:
    """The published sizes: 35 layers, of which 10 are sparse, 15 take others' keys and every fifth sees all."""
    facts = FAMILY.effective({"architectures": ["Gemma3nForCausalLM"]})
    theirs = golden()["gemma3n"]["defaults"]
    assert [facts["activation_sparsity_pattern"], facts["layer_types"]] == [
        theirs["activation_sparsity_pattern"],
        theirs["layer_types"],
    ]
    assert (facts["sparse_layers"], facts["unshared_kv_layers"], facts["full_attention_every"]) == (10, 20, 5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": None}, "num_kv_shared_layers"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers"),
        ({"num_hidden_layers": 1 << 30, "activation_sparsity_pattern": None}, "num_hidden_layers"),
        ({"activation_sparsity_pattern": [0.95]}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": 0.95}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": [1.5, 0, 0, 0]}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": ["x", 0, 0, 0]}, "activation_sparsity_pattern"),
        ({"intermediate_size": [160, 96, 160, 160]}, "intermediate_size"),
        ({"intermediate_size": [160]}, "intermediate_size"),
        ({"intermediate_size": []}, "intermediate_size"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"layer_types": ["x"] * 4}, "layer_types"),
        ({"altup_num_inputs": 1}, "altup_num_inputs"),
        ({"laurel_rank": 0}, "laurel_rank"),
    ],
    ids=str,
)
def test_a_config_of_nonsense_is_a_format_error_that_names_the_key(change: dict[str, Any], field: str) -> None:
    config = {**CONFIG, **change}
    with pytest.raises(FormatError) as error:
        read(config)
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"attention.shared_kv_layers": 5}, "shared_kv_layers"),
        ({"attention.shared_kv_layers": "x"}, "shared_kv_layers"),
        ({"feed_forward_length": [160, 96, 160, 160]}, "feed_forward_length"),
        ({"altup.num_inputs": 0}, "altup.num_inputs"),
        ({"altup.num_inputs": 1 << 31}, "altup.num_inputs"),
    ],
    ids=str,
)
def test_a_gguf_of_nonsense_is_a_format_error_that_names_the_key(change: dict[str, Any], field: str) -> None:
    keys = {k: v.value for k, v in config_to_gguf(CONFIG, FAMILY, file_type=0).items()}
    keys |= {"tokenizer.ggml.tokens": ["x"] * CONFIG["vocab_size"]}
    with pytest.raises(FormatError) as error:
        FAMILY.sizes_from_gguf({**keys, **{f"gemma3n.{key}": value for key, value in change.items()}})
    assert field in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), "x", None])
def test_a_quantile_of_nonsense_is_a_format_error(value: Any) -> None:
    with pytest.raises(FormatError):
        from_value(SPARSITY, [value])


# ---------------------------------------------------------------------- rows of zeros


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 5))
def test_rows_of_zeros_are_put_behind_and_taken_away(rows: int, more: int, width: int) -> None:
    plain = np.arange(1, rows * width + 1, dtype="<f4").reshape(rows, width)
    way = layout("padded", rows, rows + more)
    there = way.apply(const(plain, F32))
    found = there.read(0, rows + more).view("<f4").reshape(rows + more, width)
    assert np.array_equal(found, np.pad(plain, ((0, more), (0, 0))))
    assert way.undo(there).read(0, rows).tobytes() == plain.tobytes()


def test_what_cannot_be_put_behind_is_told() -> None:
    """More rows than tokens are wrong; blocks are decoded, as zeros are no block of every type."""
    with pytest.raises(FormatError, match="tokens"):
        layout("padded", 5, 4).apply(zeros((5, 2), F32))
    blocks = Const(Spec((2, 32), Q8_0), bytes(range(68)))
    assert layout("padded", 2, 3).apply(blocks).spec == Spec((3, 32), F32)
    assert layout("padded", 2, 2).apply(blocks) is blocks


def test_zeros_cost_no_memory() -> None:
    node = zeros((1 << 20, 1 << 20), BF16)
    assert not node.read(5, 6).any()
    assert node.scratch(0, 4) < 1 << 16


# ---------------------------------------------------------------------- ranks


def test_ranks_share_heads_and_widths_and_are_joined_again(tmp_path: Path) -> None:
    """What layers add for every token, and the streams, are whole on every rank."""
    shapes = golden()["gemma3n"]["hf"]
    arrays = {name: values(name, tuple(shape)) for name, shape in shapes.items()}
    (tmp_path / "gemma3n").mkdir()
    save_file(arrays, tmp_path / "gemma3n" / "model.safetensors", {"format": "pt"})
    (tmp_path / "gemma3n" / "config.json").write_text(json.dumps(CONFIG))
    wb.split(tmp_path / "gemma3n", tmp_path / "ranks", tp=2)
    held = [load_file(path) for path in sorted((tmp_path / "ranks").glob("*.safetensors"))]
    cut = {name for name in arrays if held[0][name].shape != arrays[name].shape}
    parts = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.split(".")[-2] for name in cut if "layers." in name} == parts
    assert all(any(f"layers.{n}.self_attn.{part}_proj." in name for name in cut) for n in (2, 3) for part in "kv")
    wb.convert(tmp_path / "ranks", tmp_path / "joined")
    joined = load_file(tmp_path / "joined" / "model.safetensors")
    assert all(np.array_equal(joined[name], array) for name, array in arrays.items())
    assert joined.keys() == arrays.keys()
