"""What is cut along what, by shapes; sets of ranks that don't divide, don't fit, or aren't whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.tensor_parallel.partition import Partition, Segment, partition_tensors
from weighbridge.models.tensor_parallel.rank_set import RankStatus

BASE = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
    "vocab_size": 48, "intermediate_size": 96, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True,
}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"]} | BASE
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 3} | BASE,
    "qwen2moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 3, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    } | BASE,
    "deepseek2": {
        "architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 4, "moe_intermediate_size": 32,
        "q_lora_rank": 32, "n_shared_experts": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 24,
    } | BASE,
    "mistral4": {
        "architectures": ["Mistral4ForCausalLM"], "n_routed_experts": 4, "moe_intermediate_size": 32,
        "q_lora_rank": 32, "n_shared_experts": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 24,
    } | BASE,
    "afmoe": {
        "architectures": ["AfmoeForCausalLM"], "num_experts": 4, "moe_intermediate_size": 32, "num_dense_layers": 1,
        "num_shared_experts": 2,
    } | BASE,
    "mimo2": {
        "architectures": ["MiMoV2FlashForCausalLM"], "n_routed_experts": 4, "moe_intermediate_size": 32,
        "layer_types": ["full_attention", "sliding_attention"], "moe_layer_freq": [0, 1],
        "swa_num_key_value_heads": 4, "v_head_dim": 8,
    } | BASE,
    "gpt-oss": {"architectures": ["GptOssForCausalLM"], "num_local_experts": 3} | BASE,
    "mamba": {"architectures": ["MambaForCausalLM"], "time_step_rank": 6, "state_size": 8} | BASE,
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"], "state_size": 8, "num_heads": 8, "n_groups": 4, "head_dim": 16,
    } | {k: v for k, v in BASE.items() if "head" not in k},
    "qwen3next": {
        "architectures": ["Qwen3NextForCausalLM"], "num_experts": 3, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    } | BASE,
    "qwen35": {
        "architectures": ["Qwen3_5ForCausalLM"], "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    } | BASE,
    "falcon-h1": {
        "architectures": ["FalconH1ForCausalLM"], "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_n_groups": 4,
        "mamba_d_state": 8, "mamba_d_head": 16, "mamba_rms_norm": True,
    } | BASE,
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_kv_shared_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8, "num_global_key_value_heads": 4, "global_head_dim": 32,
        "use_double_wide_mlp": True, "vocab_size_per_layer_input": 48,
    } | BASE | {"num_hidden_layers": 6},
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "num_layers": 1, "num_decoder_layers": 1, "d_model": 64,
        "num_heads": 4, "d_kv": 16, "d_ff": 96, "vocab_size": 48, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
}  # fmt: skip
_SHARED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "vocab_size",
           "shared_expert_intermediate_size", "num_heads", "n_groups", "linear_num_key_heads",
           "linear_num_value_heads", "num_global_key_value_heads", "swa_num_key_value_heads",
           "mamba_d_ssm", "mamba_n_heads", "mamba_n_groups", "d_ff")  # fmt: skip


def expected(name: str, ranks: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a model of a rank's own sizes, by the family's table."""
    config = {k: v // ranks if k in _SHARED else v for k, v in CONFIGS[name].items()}
    family = next(f for f in families().values() if f.architecture(config))
    return dict(family.names("hf", family.sizes_from_hf(config)))


def found(name: str, ranks: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a rank's shares."""
    family = next(f for f in families().values() if f.architecture(CONFIGS[name]))
    sizes = family.sizes_from_hf(CONFIGS[name])
    whole = family.names("hf", sizes)
    out = {}
    for tensor, share in partition_tensors(family, "hf", sizes, whole, ranks).items():
        shape = list(whole[tensor])
        if share is not None:
            shape[share.axis] = sum(hi - lo for lo, hi in share.ranges(ranks - 1, ranks))
        out[tensor] = tuple(shape)
    return out


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_share_has_the_shape_of_a_smaller_model(name: str, ranks: int) -> None:
    assert found(name, ranks) == expected(name, ranks)


SEEN = {
    "llama": (
        "q",
        "q_bias",
        "k",
        "k_bias",
        "v",
        "v_bias",
        "o",
        "gate",
        "gate_bias",
        "up",
        "up_bias",
        "down",
        "embed",
        "head",
    ),
    "mixtral": ("gate_exp", "up_exp", "down_exp"),
    "qwen2moe": ("gate_shared", "up_shared", "down_shared"),
    "deepseek2": ("q_b", "k_b", "v_b"),
    "gpt-oss": ("sinks", "gate_exp_bias", "up_exp_bias"),
    "mamba": ("in", "x", "dt", "conv", "conv_bias", "dt_bias", "a_log", "d", "out"),
    "afmoe": ("attn_gate",),
    "mimo2": ("k_swa", "v_swa"),
    "mamba2": ("ssm_norm",),
    "qwen3next": ("lin_q", "lin_k", "lin_v", "lin_z", "lin_ba", "lin_out"),
    "qwen35": ("lin_a", "lin_b", "conv_q", "conv_k", "conv_v"),
    "gemma4": ("q_full", "k_full", "v_full", "o_full", "gate_wide", "up_wide", "down_wide"),
    "falcon-h1": ("in_gate", "in_x", "in_b", "in_c", "in_dt"),
    "t5": (
        "bias",
        "dec_bias",
        *(f"{part}_{role}" for part in ("cross", "dec") for role in "qkvo"),
        "dec_gate",
        "dec_up",
        "dec_down",
    ),
}
# Fused queries, keys and values: tests/proof/test_parallel.py; the others are vectors or as rare as their families.
REST = {"unused_k", "unused_v", "unused_k_full", "unused_v_full", "qkv",
        "qkv_bias", "head_bias", "next_embed", "next_head", "further_embed", "further_head", "kv_b", "only",
        "dec_only", "q_norm", "k_norm", "q_swa", "o_swa", "attn_gate_swa",
        "q_b_swa", "k_b_swa", "v_b_swa",
        "vision_qkv", "vision_o", "vision_gate", "vision_up", "vision_down", "lightning_qkv", "lightning_norm",
        "lightning_o", "v_moe", "v_exp", "q_gain", "res_gate", "res_up", "res_down", "q_pairs", "k_pairs"}  # fmt: skip
NORMS = {"ssm_norm"}


SPLITS = {
    role
    for f in families().values()
    for role, how in f.document.tensor_parallel.items()
    if how != "whole" and role in f.rows
}


@pytest.mark.parametrize("role", sorted(SPLITS))
def test_a_wrong_rule_shows(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next((n for n, roles in SEEN.items() if role in roles), None)
    if name is None:
        assert role in REST
        return
    splits = family_of_hf(CONFIGS[name]).document.tensor_parallel
    monkeypatch.delitem(splits, role)
    if role not in NORMS:
        with pytest.raises(UnsupportedError, match=f"no tensor-parallel rule for the role '{role}'"):
            found(name, 2)
    monkeypatch.setitem(splits, role, "whole")
    with pytest.raises((AssertionError, UnsupportedError)):
        assert found(name, 2) == expected(name, 2)


def cut_into(record: str, ranks: int) -> dict[str, Partition | None]:
    said = json.loads((GOLDEN / f"{record}.json").read_text())
    family = family_of_hf(said["config"])
    return partition_tensors(family, "hf", family.sizes_from_hf(said["config"]), said["hf"], ranks)


def test_layers_with_a_window_have_heads_of_their_own() -> None:
    """MiMo-V2: one key/value head, two where there is a window. Step 3.5: 4 heads and 6."""
    how = cut_into("mimo2", 4)
    assert how["model.layers.0.self_attn.k_proj.weight"] == Partition(0, (Segment(24, 4),))
    assert how["model.layers.1.self_attn.k_proj.weight"] == Partition(0, (Segment(48, 2),))
    with pytest.raises(UsageError, match=r"layers\.1\.self_attn\.g_proj\.weight: 6 units"):
        cut_into("step3.5", 4)


def test_norms_of_several_heads_go_with_the_heads() -> None:
    config = {"architectures": ["CohereForCausalLM"], "use_qk_norm": True} | BASE | {"num_key_value_heads": 2}
    family = families()["command-r"]
    sizes = family.sizes_from_hf(config)
    how = partition_tensors(family, "hf", sizes, family.names("hf", sizes), 2)
    front = "model.layers.0.self_attn"
    assert how[f"{front}.q_norm.weight"] == Partition(0, (Segment(4),))
    assert how[f"{front}.k_norm.weight"] == Partition(0, (Segment(2),))
    how = partition_tensors(family, "hf", sizes, family.names("hf", sizes), 4)
    assert how[f"{front}.k_norm.weight"] == Partition(0, (Segment(2, 2),))


def test_runs_of_parts_and_copies() -> None:
    share = Partition(0, (Segment(8), Segment(4, 2), Segment(4, 4)))
    assert [share.ranges(rank, 4) for rank in range(4)] == [
        [(0, 2), (8, 10), (12, 16)], [(2, 4), (8, 10), (12, 16)], [(4, 6), (10, 12), (12, 16)],
        [(6, 8), (10, 12), (12, 16)],
    ]  # fmt: skip
    assert share.local_sizes(4) == (2, 2, 4)


# ------------------------------------------------------------------------------------------------ sets of files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    family, rng = families()["llama"], np.random.default_rng(4)
    folder = tmp_path / "model"
    folder.mkdir()
    shapes = family.names("hf", family.sizes_from_hf(LLAMA))
    held = {n: rng.normal(size=s).astype("f2") for n, s in shapes.items()}
    save_file(held, folder / "model.safetensors", {"format": "pt", "who": "me"})
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    return {n: t.shape for n, t in load_file(folder / "model.safetensors").items()}


def test_the_files_tell_how_they_were_cut(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["split", str(model), str(tmp_path / "four"), "--tp", "4", "--dry-run"]) == 0
    assert not (tmp_path / "four").exists()
    assert main(["split", str(model), str(tmp_path / "four"), "--tp", "4"]) == 0
    names = [f"model-rank-{rank}-of-4.safetensors" for rank in range(4)]
    assert sorted(p.name for p in (tmp_path / "four").iterdir()) == ["config.json", *names]
    with safe_open(tmp_path / "four" / names[2], "np") as file:
        said = file.metadata()
    assert (said["tensor_parallel.rank"], said["tensor_parallel.size"], said["who"]) == ("2", "4", "me")
    split = json.loads(said["tensor_parallel.split"])
    assert split["model.layers.0.self_attn.o_proj.weight"] == {"axis": 1, "parts": [[64, 1]]}
    assert split["model.norm.weight"] is None
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "four"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)  # one model, whole
    assert {t["name"]: tuple(t["shape"]) for t in shown["tensors"]} == _shapes(model)
    assert main(["merge", str(tmp_path / "four"), str(tmp_path / "one.safetensors")]) == 0
    assert main(["merge", str(tmp_path / "four" / names[1]), str(tmp_path / "two.safetensors")]) == 0
    whole, one = load_file(model / "model.safetensors"), load_file(tmp_path / "one.safetensors")
    assert {n: t.tobytes() for n, t in one.items()} == {n: t.tobytes() for n, t in whole.items()}
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    with safe_open(tmp_path / "one.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "who": "me"}


@pytest.mark.parametrize(
    ("said", "ranks", "words"),
    [
        ({}, 3, r"(48|4) units .* can't be divided evenly among 3 ranks"),
        ({}, 8, "4 units .attention head. can't be divided evenly among 8 ranks"),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3},
            4,
            "3 units .key/value head. can't be divided evenly among 4 ranks",
        ),
        ({"vocab_size": 50}, 4, "50 units .vocabulary."),
        ({"intermediate_size": 98}, 4, "98 units .inner width."),
        ({}, 1, "2 to .* ranks, not 1"),
    ],
)
def test_sizes_that_do_not_divide(said: dict[str, Any], ranks: int, words: str, model: Path, tmp_path: Path) -> None:
    config = LLAMA | said
    family = families()["llama"]
    shapes = family.names("hf", family.sizes_from_hf(config))
    save_file({n: np.zeros(s, "f2") for n, s in shapes.items()}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=words):
        wb.split(model, tmp_path / "out", tp=ranks)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3next", "qwen35", "falcon-h1", "gpt-oss", "t5"])
def test_a_gguf_is_shared_out_as_its_layout_demands(name: str, ranks: int) -> None:
    """What a rank's GGUF would be if the rank's folder were converted has the shapes of the GGUF's shares."""
    family = next(f for f in families().values() if f.architecture(CONFIGS[name]))
    sizes = family.sizes_from_hf(CONFIGS[name])
    config = {k: v // ranks if k in _SHARED else v for k, v in CONFIGS[name].items()}
    wanted, whole = family.names("gguf", family.sizes_from_hf(config)), family.names("gguf", sizes)
    for tensor, share in partition_tensors(family, "gguf", sizes, whole, ranks).items():
        shape = list(whole[tensor])
        if share is not None:
            shape[share.axis] = sum(share.local_sizes(ranks))
        assert tuple(shape) == wanted[tensor], tensor


def test_a_norm_of_one_group_is_cut_inside_it() -> None:
    config = CONFIGS["mamba2"] | {"n_groups": 1}
    family = families()["mamba2"]
    sizes = family.sizes_from_hf(config)
    how = partition_tensors(family, "gguf", sizes, family.names("gguf", sizes), 2)
    assert how["blk.0.ssm_norm.weight"] == Partition(1, (Segment(128),))
    # gate, x, and what the one group has of B and C on both ranks, and the time steps
    parts = (Segment(128), Segment(128), Segment(8, 2), Segment(8, 2), Segment(8))
    assert how["blk.0.ssm_in.weight"] == Partition(0, parts)


def test_value_heads_that_take_turns() -> None:
    """Of Qwen 3.5's GGUF a rank has the value heads of its key heads, wherever they lie."""
    family = families()["qwen35"]
    sizes = family.sizes_from_hf(CONFIGS["qwen35"])
    how = partition_tensors(family, "gguf", sizes, family.names("gguf", sizes), 2)
    assert how["blk.0.attn_gate.weight"] == Partition(0, (Segment(64), Segment(64)))
    assert how["blk.0.ssm_out.weight"] == Partition(1, (Segment(64), Segment(64)))
    gate = how["blk.0.attn_gate.weight"]
    assert gate is not None
    assert gate.ranges(1, 2) == [(32, 64), (96, 128)]


def _again(path: Path, tensors: dict[str, Any] | None = None, **said: str) -> None:
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    save_file(tensors or load_file(path), path, metadata | {f"tensor_parallel.{k}": v for k, v in said.items()})


_O = "model.layers.0.self_attn.o_proj.weight"


def _say(path: Path, **one: Any) -> None:
    """Another share of one tensor."""
    with safe_open(path, "np") as file:
        said = json.loads(file.metadata()["tensor_parallel.split"])
    _again(path, split=json.dumps(said | {_O: one or 3}))


def _each(files: list[Path], change: Any) -> None:
    for file in files:
        change(file)


FAULTS: dict[str, tuple[Any, str]] = {
    "a rank is missing": (lambda f: f[1].unlink(), "missing rank: model-rank-1-of-2"),
    "two sets": (lambda f: f[0].with_name("x-rank-0-of-2.safetensors").touch(), "several sets"),
    "too many": (lambda f: f[0].rename(f[0].with_name("y-rank-0-of-99999.safetensors")), "implausible|several sets"),
    "the same rank twice": (lambda f: f[1].write_bytes(f[0].read_bytes()), "expected 1 of 2, found 0 of 2"),
    "another split": (lambda f: _again(f[1], split="{}"), "belongs to another set"),
    "another name": (lambda f: _again(f[1], {"x": np.zeros(2, "f4")}), "belongs to another set"),
    "another shape": (lambda f: _again(f[1], load_file(f[1]) | {_O: np.zeros((64, 30), "f2")}), "t fit the split"),
    "another type": (lambda f: _again(f[1], load_file(f[1]) | {_O: np.zeros((64, 32), "f4")}), "t fit the split"),
    "no JSON": (lambda f: _each(f, lambda p: _again(p, split="{")), "."),
    "another JSON": (lambda f: _each(f, lambda p: _again(p, split="[]")), "."),
    "no share": (lambda f: _each(f, _say), "invalid"),
    **{
        f"{axis} {parts}": (lambda f, a=axis, b=parts: _each(f, lambda p: _say(p, axis=a, parts=b)), words)
        for axis, parts, words in (
            (9, [[64, 1]], "invalid"), (1, [], "invalid"), (1, [[64, 0]], "invalid"), (1, [[64, 3]], "invalid"),
            (1, [[63, 1]], "invalid"), (1, [[1 << 62, 1]], "t fit the split"), (True, [[64, 1]], "invalid"),
            (3, [[64, 1]], "t fit the split"), (1, [[64.0, 1]], "invalid"), (1, [[-64, 1]], "invalid"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_set_that_is_wrong_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    fault, words = FAULTS[name]
    wb.split(model, tmp_path / "two", tp=2)
    fault(sorted((tmp_path / "two").glob("*.safetensors")))
    with pytest.raises(FormatError, match=words) as caught:
        wb.convert(tmp_path / "two", tmp_path / "out")
    assert isinstance(caught.value, WeighbridgeError)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ what a set is


def test_a_rank_may_be_a_set_of_files(model: Path, tmp_path: Path) -> None:
    assert main(["split", str(model), str(tmp_path / "two"), "--tp", "2", "--max-shard-size", "30KB"]) == 0
    names = sorted(p.name for p in (tmp_path / "two").iterdir())
    assert "model-rank-1-of-2.safetensors.index.json" in names
    assert "model-rank-1-of-2-00002-of-00003.safetensors" in names
    wb.convert(model, tmp_path / "whole")
    for number, part in enumerate(("", "model-rank-0-of-2-00001-of-00003.safetensors")):
        wb.convert(tmp_path / "two" / part, tmp_path / f"{number}.safetensors")
        back = (tmp_path / f"{number}.safetensors").read_bytes()
        assert back == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert {f.rule for f in wb.verify(tmp_path / "two").findings} == {"ranks/whole"}
    (tmp_path / "two" / "model-rank-1-of-2-00002-of-00003.safetensors").unlink()
    with pytest.raises(FormatError, match="file 2 of 3 of the set is missing"):
        wb.convert(tmp_path / "two", tmp_path / "out")
    assert not wb.verify(tmp_path / "two").ok


def test_a_gguf_may_be_a_set_too(model: Path, tmp_path: Path) -> None:
    wb.convert(model, tmp_path / "m.gguf", tokenizer=False)
    wb.split(tmp_path / "m.gguf", tmp_path / "two", tp=2, max_shard_size=30_000)
    assert "model-rank-0-of-2-00001-of-00003.gguf" in {p.name for p in (tmp_path / "two").iterdir()}
    wb.convert(tmp_path / "two", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    assert wb.inspect(tmp_path / "two").ranks == RankStatus(2)


def test_inspect_and_verify_say_what_it_is(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wb.split(model, tmp_path / "four", tp=4)
    whole, found = wb.inspect(model), wb.inspect(tmp_path / "four")
    assert found.ranks == RankStatus(4)
    assert {t.name: (t.shape, t.dtype) for t in found.tensors} == {t.name: (t.shape, t.dtype) for t in whole.tensors}
    assert (found.parameters, len(found.files)) == (whole.parameters, 4)
    assert found.metadata == whole.metadata
    one = tmp_path / "four" / "model-rank-2-of-4.safetensors"
    assert wb.inspect(one).ranks == RankStatus(4, 2)
    assert [(f.rule, f.message) for f in wb.verify(one).findings] == [
        ("ranks/part", "rank 2 of 4 of one model, split for tensor parallelism")
    ]
    assert [f.rule for f in wb.verify(tmp_path / "four").findings] == ["ranks/whole"]
    for rank in (0, 3):
        (tmp_path / "four" / f"model-rank-{rank}-of-4.safetensors").unlink()
    gone = ("model-rank-0-of-4.safetensors", "model-rank-3-of-4.safetensors")
    assert wb.inspect(tmp_path / "four").ranks == RankStatus(4, None, gone)
    assert wb.inspect(tmp_path / "four").parameters == whole.parameters
    assert main(["inspect", str(tmp_path / "four")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 4 of one model, split for tensor parallelism; missing: " + ", ".join(gone) in said
    assert main(["verify", str(tmp_path / "four")]) == 1
    assert "2 of 4 ranks of one model are missing: " + ", ".join(gone) in " ".join(capsys.readouterr().out.split())


# What verify says of a set that is wrong; the other faults are those of FAULTS.
STRANGE: dict[str, tuple[Any, str]] = {
    "the same rank twice": (FAULTS["the same rank twice"][0], "metadata declares rank 0 of 2"),
    "another split": (FAULTS["another split"][0], "its split differs from that of model-rank-0-of-2"),
    "another name": (FAULTS["another name"][0], "unknown to the set|missing tensor"),
    "another shape": (FAULTS["another shape"][0], r"it is F16\[64, 30\], but the set's split .* 32 entries on axis 1"),
    "another type": (FAULTS["another type"][0], r"it is F32\[64, 32\], but the set's split .*F16"),
    "no share": (FAULTS["no share"][0], "invalid"),
    "no JSON": (FAULTS["no JSON"][0], "tensor_parallel.split"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_verify_tells_ranks_that_do_not_belong_together(name: str, model: Path, tmp_path: Path) -> None:
    fault, words = STRANGE[name]
    wb.split(model, tmp_path / "two", tp=2)
    fault(sorted((tmp_path / "two").glob("*.safetensors")))
    found = [f for f in wb.verify(tmp_path / "two").findings if f.rule == "ranks/apart"]
    assert found
    assert all(re.search(words, f.message) for f in found)


# ------------------------------------------------------------------------------------------------ transformers' plans

GOLDEN = Path(__file__).parent / "golden" / "families"
# What transformers' words mean of a module's weight; of a row-parallel one a bias is whole.
_ROWS, _COLUMNS = ("colwise", "packed_colwise", "colwise_gather_output"), ("rowwise", "packed_rowwise")


def planned(name: str) -> dict[str, tuple[int | None, str]]:
    """Tensor -> the axis that the `base_model_tp_plan` of its config's class cuts, counted from the end, and its word;
    norms left out, and linear attention and indexers, whose results it gathers."""
    import transformers

    said = json.loads((GOLDEN / name).read_text())
    kind, known = said["config"].get("model_type"), transformers.CONFIG_MAPPING
    plan = (known[kind].base_model_tp_plan if kind in known else None) or {}
    rules = {
        re.compile(rf"(?:\w+\.)?{re.escape(k).replace(re.escape('*'), '[0-9]+')}(\.\w+)?"): v for k, v in plan.items()
    }
    out: dict[str, tuple[int | None, str]] = {}
    for tensor, shape in said.get("hf", {}).items():
        word = next((v for rule, v in rules.items() if rule.fullmatch(tensor)), None)
        gathered = "linear_attn" in tensor or (word == "colwise_gather_output" and ".indexer." in tensor)
        if word not in (*_ROWS, *_COLUMNS) or gathered or "norm" in tensor:
            continue
        flat = len(shape) == 1
        out[tensor] = (-1 if flat else -2, word) if word in _ROWS else (None if flat else -1, word)
    return out


@pytest.mark.costly
@pytest.mark.oracle
def test_transformers_cuts_the_same() -> None:
    """The axis of every tensor that a plan of transformers speaks of, in every family recorded."""
    pytest.importorskip("transformers")
    different, families_seen = {}, set()
    for path in sorted(GOLDEN.glob("*.json")):
        plan, said = planned(path.name), json.loads(path.read_text())
        if not plan:
            continue
        family = family_of_hf(said["config"])
        sizes = family.sizes_from_hf(said["config"])
        how = partition_tensors(family, "hf", sizes, said["hf"], 1)
        families_seen.add(family.name)
        for tensor, (axis, word) in plan.items():
            if tensor not in how:
                continue  # of another part of the model
            share, shape = how[tensor], said["hf"][tensor]
            ours = None if share is None else share.axis - len(shape)
            if ours != axis:
                different[f"{path.stem} {tensor}"] = (word, axis, ours)
    assert different == {}
    assert len(families_seen) >= 30
