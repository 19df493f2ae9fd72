"""Names, layers and experts of a model changed: what becomes of config.json, of a GGUF's keys, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.oracles import models, tree
from tests.oracles.families import CASES as CASES_OF_FAMILIES
from tests.oracles.ours import report_of

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.registry import families, family
from weighbridge.models.transform import encoder_decoder as sides
from weighbridge.models.transform import layers, packed_rename, rename
from weighbridge.models.transform.layer_stack import LayerStack, find_stack, parse_numbers
from weighbridge.models.transform.layers import (
    GGUF_RULES,
    RULES,
    LayerSelection,
    gguf_keys,
    hf_config,
)
from weighbridge.models.transform.rename import WRAPPERS, suggestions

GRAPHS = {
    f.gguf: rules
    for f in families().values()
    if (rules := f.document.layer_rules).graph_every > 1 or rules.graph_unrotated > 1
}
COUNT = 8
KEPT = (1, 2, 4, 5, 6)
LETTERS = list("abcdefgh")


def left(kept: tuple[int, ...] = KEPT, count: int = COUNT, stated: int | None = COUNT) -> LayerSelection:
    return LayerSelection(LayerStack("model.layers.", count), kept, stated)


# ------------------------------------------------------------------------------------------------ config.json

# key -> what an eight-layer config says, which layers are left, what it says then
CASES: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    **{
        key: (LETTERS, KEPT, list("bcefg"))
        for key in ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type", "attention_layers",
                    "block_configs", "attn_type_list", "block_types", "activation_sparsity_pattern",
                    "intermediate_size", "num_key_value_heads", "num_attention_heads", "num_query_heads",
                    "num_kv_heads", "ffn_multipliers", "moe_intermediate_size", "moe_topk", "num_shared_expert",
                    "is_moe_layer", "hybrid_layer_pattern", "layer_rope_theta", "num_attention_heads_per_layer",
                    "indexer_types", "compress_ratios", "rope_theta", "partial_rotary_factors", "swiglu_limits",
                    "swiglu_limits_shared", "expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
    },
    "hybrid_override_pattern": ("M-M*M-ME", KEPT, "-MM-M"),
    **{
        key: ([0, 2, 6, 7], KEPT, [1, 4])
        for key in ("mlp_only_layers", "moe_layers", "attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids",
                    "global_attn_layers", "cross_attention_layers")
    },
    **{key: (3, KEPT, 2) for key in ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")},
    "max_window_layers": (5, KEPT, 3),
    **{
        key: (2, (2, 3, 6, 7), 2)
        for key in ("moe_layer_interval", "moe_every_n_layers", "global_attn_every_n_layers", "mamba_step",
                    "layer_group_size")
    },
    "ple_layer_ids": ([1, 3, 8], KEPT, [2]),
    "moe_layers_enum": ("0,2,6,7", KEPT, "1,4"),
    "sparse_attention_config": (
        {"sparse_topk_blocks": 8, "sparse_attention_freq": LETTERS}, KEPT,
        {"sparse_topk_blocks": 8, "sparse_attention_freq": list("bcefg")},
    ),
    "num_kv_shared_layers": (3, (1, 3, 4, 5, 7), 2),
    "per_layer_config": (
        {"02": {"head_dim": 4}, "5": {"head_dim": 8}, "7": {"head_dim": 2}}, KEPT,
        {"1": {"head_dim": 4}, "3": {"head_dim": 8}},
    ),
    "linear_attn_config": (
        {"full_attn_layers": [1, 3, 8], "kda_layers": [2, 4, 5, 6, 7], "head_dim": 4}, (0, 1, 2, 7),
        {"full_attn_layers": [1, 3, 4], "kda_layers": [2], "head_dim": 4},
    ),
    "moe_layer_freq": ([0, 1, 1, 1, 1, 1, 1, 0], (0, 1, 7), [0, 1, 0]),
}  # fmt: skip
STEPS = [key for key, rule in RULES.items() if rule is layers._step]


@pytest.mark.parametrize("key", RULES)
def test_a_key_of_single_layers_follows_them(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, kept, after = CASES[key]
    config = {"num_hidden_layers": COUNT, key: before}
    assert hf_config(config, left(kept))[0] == {"num_hidden_layers": len(kept), key: after}
    monkeypatch.setattr(layers, "RULES", MappingProxyType({k: r for k, r in RULES.items() if k != key}))
    if after != before:
        assert hf_config(config, left(kept))[0][key] != after


@pytest.mark.parametrize("key", STEPS)
def test_layers_that_follow_no_step_any_more_are_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"one layer in 2 differs .{key}."):
        hf_config({"num_hidden_layers": COUNT, key: 2}, left((0, 2, 3)))
    assert hf_config({"num_hidden_layers": COUNT, key: 1}, left((0, 2, 3)))[0][key] == 1


@pytest.mark.parametrize(
    ("kept", "first"), [((1, 2, 3, 4), 0), ((2, 3, 4, 5, 6, 7), 2), ((0, 1, 2, 6, 7), 1), ((0, 2, 3), None)]
)
def test_a_period_begins_elsewhere(kept: tuple[int, ...], first: int | None) -> None:
    """Layers 1, 4 and 7 are of another kind; `first`: the first of what is left, None: they follow no period."""
    said = {"num_hidden_layers": COUNT, "attn_layer_period": 3, "attn_layer_offset": 1}
    if first is None:
        with pytest.raises(UsageError, match=r"one layer in 2 differs .attn_layer_period."):
            hf_config(said | {"attn_layer_period": 2, "attn_layer_offset": 0}, left(kept))
        return
    found = hf_config(said, left(kept))[0]
    assert (found["attn_layer_period"], found["attn_layer_offset"]) == (3, first)
    assert [old % 3 == 1 for old in kept] == [new % 3 == first for new in range(len(kept))]


def test_layers_with_experts_are_told_one_by_one() -> None:
    config = {"num_hidden_layers": COUNT, "interleave_moe_layer_step": 2}
    assert hf_config(config, left((0, 1, 3)))[0]["moe_layers"] == [1, 2]
    assert "moe_layers" not in hf_config(config, left((2, 3, 4, 5)))[0]
    sparse: dict[str, Any] = {"num_hidden_layers": COUNT, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    found = hf_config(sparse, left((1, 2, 3, 5)))[0]
    assert (found["decoder_sparse_step"], found["mlp_only_layers"]) == (1, [1, 2])


def test_layers_that_take_keys_from_others() -> None:
    for key in ("num_kv_shared_layers", "attention.shared_kv_layers"):
        rule = {**RULES, **GGUF_RULES}[key]
        assert rule(key, 3, (3, 4), COUNT) == 0
        assert rule(key, 3, (0, 3, 4, 6), COUNT) == 1
        for kept in ((0, 3, 5), (4, 3, 5), (3, 5, 4), (0, 5)):
            with pytest.raises(UsageError, match=f"of layers 3 and 4 .{key}."):
                rule(key, 3, kept, COUNT)


def test_a_list_without_a_rule_is_told() -> None:
    config = {"strange_list": list(range(9)), "layer_types": ["x"] * 9, "short": [1, 2]}
    notes = layers._notes(config, left((0, 1), 9, 9))
    assert notes == ("strange_list has one entry per original layer and stays unchanged",)
    assert not layers._notes(config, left((0, 1), 2, 2))


def test_what_says_nothing_is_left_alone() -> None:
    config = {
        "num_hidden_layers": COUNT, "layer_types": None, "max_window_layers": 5, "use_sliding_window": False,
        "architectures": ["X"] * COUNT, "layers_block_type": list("abc"),
    }  # fmt: skip
    assert hf_config(config, left())[0] == config | {"num_hidden_layers": len(KEPT)}
    assert hf_config({}, left()) == ({}, ())


def test_leading_layers_stay_the_leading_ones() -> None:
    with pytest.raises(UsageError, match="first 3 layers differ"):
        hf_config({"num_hidden_layers": COUNT, "first_k_dense_replace": 3}, left((0, 4, 2)))


def test_the_text_part_of_a_config() -> None:
    text = {"num_hidden_layers": COUNT, "layer_types": LETTERS}
    config = {"vision_config": {"num_hidden_layers": 3}, "text_config": text}
    found, changes = hf_config(config, left(), path=["text_config"])
    text = {"num_hidden_layers": len(KEPT), "layer_types": list("bcefg")}
    assert found == {"vision_config": {"num_hidden_layers": 3}, "text_config": text}
    assert [c.key for c in changes] == ["num_hidden_layers", "layer_types"]


def test_settings_by_module_follow_their_modules() -> None:
    said = {
        "bits": 4,
        "model.layers.4.mlp": {"bits": 8},
        "model.layers.3.mlp": {"bits": 6},
        "ignore": ["lm_head", "model.layers.3.mlp", "model.layers.6.mlp"],
    }
    config = {"num_hidden_layers": COUNT, "quantization": said}
    assert hf_config(config, left())[0]["quantization"] == {
        "bits": 4, "model.layers.2.mlp": {"bits": 8}, "ignore": ["lm_head", "model.layers.4.mlp"],
    }  # fmt: skip


def test_layers_that_predict_further_tokens() -> None:
    config = {"num_hidden_layers": 7, "num_nextn_predict_layers": 1}
    after = hf_config(config, left((0, 1, 7), stated=7))[0]
    assert after == {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    assert hf_config(config, left((0, 1), stated=7))[0] == {"num_hidden_layers": 2, "num_nextn_predict_layers": 0}
    with pytest.raises(UsageError, match="last"):
        hf_config(config, left((0, 7, 1), stated=7))
    keys = {"general.architecture": KV("str", "x"), "x.nextn_predict_layers": KV("u32", 1)}
    assert gguf_keys(keys, left((0, 7)))["x.nextn_predict_layers"] == KV("u32", 1)
    assert gguf_keys(keys, left((0, 1)))["x.nextn_predict_layers"] == KV("u32", 0)
    with pytest.raises(UsageError, match="last"):
        gguf_keys(keys, left((7, 0)))


# model_type -> its family's table; what a class assumes where a config says nothing.
SILENT = {
    "gemma2": "gemma2", "gemma3_text": "gemma3", "cohere2": "cohere2", "gpt_oss": "gpt-oss", "smollm3": "smollm3",
    "llama4_text": "llama4", "qwen3_next": "qwen3next", "gemma4_text": "gemma4", "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe", "afmoe": "afmoe", "cohere2_moe": "cohere2moe", "qwen4_exp_text": "qwen4exp",
}  # fmt: skip


def test_every_silent_pattern_is_compared() -> None:
    ruled = {name for name, f in families().items() if f.document.layer_rules.every}
    others = {"gemmaembedding", "embeddinggemma2", "gemma4-assistant"}  # like gemma3 and gemma4
    others |= {"plamo3", "clef"}  # without a class in transformers
    assert ruled - others == {*SILENT.values()}


@pytest.mark.oracle
@pytest.mark.parametrize("kind", SILENT)
def test_a_silent_pattern_is_that_of_the_class(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    rules = family(SILENT[kind]).document.layer_rules
    pattern = next(p for p in layers._PATTERNS if p.key in rules.every)
    config = transformers.AutoConfig.for_model(kind, num_hidden_layers=12)
    kept = (0, 1, 2, 4, 6, 9, 11)
    said = {"num_hidden_layers": 12, "model_type": kind}
    expected = [getattr(config, pattern.listed)[i] for i in kept]
    assert hf_config(said, left(kept, 12, 12), rules)[0][pattern.listed] == expected
    assert pattern.listed not in hf_config(said, left(tuple(range(7)), 12, 12), rules)[0]  # the pattern goes on


def test_a_stated_pattern_is_spelled_out() -> None:
    config = {"num_hidden_layers": COUNT, "model_type": "gemma3_text", "sliding_window_pattern": 2}
    full, some = "full_attention", "sliding_attention"
    assert hf_config(config, left((1, 2, 5)))[0]["layer_types"] == [full, some, full]
    config["layer_types"] = [full] * COUNT
    assert hf_config(config, left((1, 2, 5)))[0]["layer_types"] == [full] * 3


# ------------------------------------------------------------------------------------------------ a GGUF's keys


def keys_of(architecture: str, **said: KV) -> Mapping[str, KV]:
    return {"general.architecture": KV("str", architecture)} | {
        f"{architecture}.{key.replace('__', '.')}": kv for key, kv in said.items()
    }


def test_arrays_of_a_gguf_with_an_entry_a_layer() -> None:
    said = keys_of(
        "x", attention__head_count=KV("arr[i32]", list(range(COUNT))), feed_forward_length=KV("arr[u32]", [1] * 3),
        rope__dimension_sections=KV("arr[i32]", [4] * COUNT), block_count=KV("u32", COUNT),
    )  # fmt: skip
    assert gguf_keys(said, left()) == {
        "x.block_count": KV("u32", 5), "x.attention.head_count": KV("arr[i32]", [1, 2, 4, 5, 6]),
    }  # fmt: skip


@pytest.mark.parametrize("key", GGUF_RULES)
def test_numbers_of_a_gguf_that_speak_of_layers(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if GGUF_RULES[key] is layers._shared:
        assert gguf_keys(keys_of("x", **{key: KV("u32", 3)}), left((3, 4, 5)))[f"x.{key}"] == KV("u32", 1)
    elif GGUF_RULES[key] is layers._step:
        with pytest.raises(UsageError, match=key):
            gguf_keys(keys_of("x", **{key: KV("u32", 2)}), left((0, 2, 3)))
        monkeypatch.setattr(layers, "GGUF_RULES", {})
        gguf_keys(keys_of("x", **{key: KV("u32", 2)}), left((0, 2, 3)))
    else:
        assert gguf_keys(keys_of("x", **{key: KV("u32", 3)}), left())[f"x.{key}"] == KV("u32", 2)


def test_an_array_says_more_than_a_step() -> None:
    said = keys_of("x", full_attention_interval=KV("u32", 2))
    with pytest.raises(UsageError, match="full_attention_interval"):
        gguf_keys(said, left((0, 1, 3)))
    said = {**said, "x.attention.recurrent_layers": KV("arr[bool]", [True, False] * 4)}
    found = gguf_keys(said, left((0, 1, 3)))
    assert found["x.attention.recurrent_layers"] == KV("arr[bool]", [True, False, False])


@pytest.mark.oracle
def test_the_patterns_of_graphs_are_those_of_llama_cpp() -> None:
    """Read out of its sources: calls of load_swa_pattern, and n_no_rope_layer_step."""
    folder = tree.require() / "src" / "models"
    found = {}
    for path in folder.glob("*.cpp"):
        if call := re.search(r"load_swa_pattern\(ml, (\d+)(?:, (?:/\*\w+=\*/)?(true))?\)", path.read_text()):
            found[path.stem.replace("openai-moe", "gpt-oss")] = (int(call[1]), call[2] == "true")
    ours = {name: (rules.graph_every, rules.graph_first) for name, rules in GRAPHS.items() if rules.graph_every > 1}
    assert ours.items() <= found.items()
    assert "n_no_rope_layer_step = 4" in (folder / "smollm3.cpp").read_text()
    assert {name for name, rules in GRAPHS.items() if rules.graph_unrotated > 1} == {"smollm3", "llama4", "afmoe"}


@pytest.mark.parametrize("architecture", [name for name, rules in GRAPHS.items() if rules.graph_every > 1])
def test_a_window_is_spelled_out_where_the_graph_would_count_wrong(architecture: str) -> None:
    step, first = GRAPHS[architecture].graph_every, GRAPHS[architecture].graph_first
    key = f"{architecture}.attention.sliding_window_pattern"
    kept, count = (0, *range(2, 3 * step)), 3 * step
    if GRAPHS[architecture].graph_unrotated == 1:
        whole = 0 if first else step - 1
        expected = [old % step != whole for old in kept]
        assert gguf_keys(keys_of(architecture), left(kept, count, count))[key] == KV("arr[bool]", expected)
    assert key not in gguf_keys(keys_of(architecture), left(tuple(range(2 * step)), count, count))
    said = keys_of(architecture, attention__sliding_window_pattern=KV("arr[bool]", [n % 3 == 0 for n in range(count)]))
    assert gguf_keys(said, left((0, 3), count, count) if step == 3 else left((0,), count, count))[key].value[0]


def test_a_graph_that_leaves_a_layer_unrotated_counts_for_itself() -> None:
    with pytest.raises(UsageError, match="doesn't rotate every 4th layer"):
        gguf_keys(keys_of("smollm3"), left((0, 2, 3)))


# ------------------------------------------------------------------------------------------------ layers by name


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{n}.mlp.experts.{e}.w1.weight" for n in range(count) for e in range(3)]


@pytest.mark.parametrize(
    ("tensors", "stated", "expected"),
    [
        ([*names("model.layers.", 4), "lm_head.weight"], 4, LayerStack("model.layers.", 4)),
        (names("blk.", 3), None, LayerStack("blk.", 3)),
        (names("", 5), None, LayerStack("", 5)),
        (names("vision.blocks.", 3) + names("text.layers.", 4), 4, LayerStack("text.layers.", 4)),
        (names("model.layers.", 5), 4, LayerStack("model.layers.", 5)),  # one more, which predicts further tokens
    ],
)
def test_the_layers_are_found(tensors: list[str], stated: int | None, expected: LayerStack) -> None:
    assert find_stack(tensors, stated) == expected


@pytest.mark.parametrize(
    ("tensors", "stated", "words"),
    [
        (["a.weight"], None, "no tensor names are numbered"),
        (names("h.", 3), 4, "The config declares 4"),
        ([n for n in names("h.", 4) if ".2." not in n[:5]], 4, "no tensor names are numbered"),
        (names("encoder.layers.", 4) + names("decoder.layers.", 4), 4, "several stacks"),
        (names("encoder.layers.", 4) + names("decoder.layers.", 3), None, "several stacks"),
    ],
)
def test_layers_that_are_not_found(tensors: list[str], stated: int | None, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        find_stack(tensors, stated)


@pytest.mark.parametrize(
    ("text", "expected"), [("0-2", (0, 1, 2)), ("5-", (5, 6, 7)), ("7, 0 -1,3", (7, 0, 1, 3)), ("0-1,0", (0, 1, 0))]
)
def test_a_selection(text: str, expected: tuple[int, ...]) -> None:
    assert parse_numbers(text, COUNT) == expected


@pytest.mark.parametrize("text", ["", "8", "3-2", "-3", "a", "1,,2", "0-8", "1-2-3", "0x1", "٣", "1" * 30])
def test_no_selection(text: str) -> None:
    with pytest.raises(UsageError):
        parse_numbers(text, COUNT)


# ------------------------------------------------------------------------------------------------ names


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    held = {f"module.layers.{n}.{part}": np.full((2, 3), n, "f4") for n in range(3) for part in ("w", "v")}
    save_file(held | {"module.norm": np.ones(3, "f4"), "head": np.zeros((4, 3), "f2")}, path, {"format": "pt"})
    return path


def written(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(path)


def test_prefixes_and_patterns(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    patterns = [(r"^layers\.(\d)", r"h.\1"), (r"\.w$", ".weight")]
    report = report_of(wb.plan_rename(model, out, strip_prefix="module.", replace=patterns, add_prefix="m."))
    before, after = written(model), written(out)
    assert set(after) == {"m.norm", "m.head"} | {f"m.h.{n}.{part}" for n in range(3) for part in ("weight", "v")}
    assert {r.new: r.old for r in report.renamed}["m.h.1.weight"] == ("module.layers.1.w",)
    for r in report.renamed:
        assert np.array_equal(after[r.new], before[r.old[0]])
    assert wb.verify(out).ok


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_renaming_writes_any_container(model: Path, tmp_path: Path, suffix: str) -> None:
    there, back = tmp_path / f"there{suffix}", tmp_path / "back.safetensors"
    wb.rename(model, there, strip_prefix="module.")
    wb.rename(there, back, replace=[(r"^(layers|norm)", r"module.\1")])
    assert {n: a.tobytes() for n, a in written(back).items()} == {n: a.tobytes() for n, a in written(model).items()}


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"replace": [(r"\.[wv]$", ".x")]}, r"'module\.layers\.0\.[vw]' and 'module\.layers\.0\.[vw]'"),
        ({"strip_prefix": "model."}, "no tensor's name has 'model.'"),
        ({"strip_prefix": ("module.", "model.")}, "no tensor's name has 'model.'"),
        ({"strip_prefix": "head"}, "left without a name"),
        ({"replace": [("(", "x")]}, "in a (--)?replace"),
        ({"replace": [("(w)$", r"\2")]}, "invalid group reference"),
        ({}, "no rename option given"),
    ],
)
def test_names_that_are_refused(model: Path, tmp_path: Path, what: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wb.rename(model, tmp_path / "out.safetensors", **what)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda w: w.part)
def test_a_usual_prefix_is_suggested_with_what_takes_it_away(wrapper: rename.NameWrapper, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    inside = [f"a.{wrapper.part}b", f"{wrapper.part}a.{wrapper.part}c"] if wrapper.anywhere else []
    held = [f"{wrapper.part}a", *inside]
    (found,) = [s for s in suggestions([*held, "plain"]) if s.part == wrapper.part]
    assert found.tensors == len(held)
    save_file({name: np.ones(1, "f4") for name in [*held, "plain"]}, tmp_path / "m.safetensors")
    option, *values = found.options.replace("'", "").split(" ")
    assert main(["rename", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors"), option, *values]) == 0
    assert not any(wrapper.part in name for name in written(tmp_path / "o.safetensors"))


def test_torch_wraps_modules_so() -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    plain = torch.nn.Linear(2, 2)
    for wrapped, part in (
        (torch.nn.DataParallel(plain), "module."),
        (torch.compile(plain), "_orig_mod."),
        (torch.nn.Sequential(checkpoint_wrapper(plain)), "_checkpoint_wrapped_module."),
    ):
        assert all(part in name for name, _ in wrapped.named_parameters())
        assert any(w.part == part for w in WRAPPERS)


def test_the_command_suggests_and_tells(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rename", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tensors"] == 8
    assert [(s["part"], s["tensors"]) for s in found["suggestions"]] == [("module.", 7)]
    target = tmp_path / "out.safetensors"
    assert main(["rename", str(model), str(target), "--strip-prefix", "module.", "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["renamed"]) == 7
    assert not target.exists()
    assert main(["rename", str(model), str(target), "--strip-prefix", "module."]) == 0
    assert "8 tensors" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ slices


def test_a_part_keeps_its_numbers(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    report = report_of(wb.plan_slice(model, out, layers="1-2"))
    assert set(written(out)) == {"module.norm", "head", *(f"module.layers.{n}.{p}" for n in (1, 2) for p in "wv")}
    assert report.dropped == ("module.layers.0.v", "module.layers.0.w")
    assert any("--renumber" in note for note in report.notes)
    wb.slice(model, tmp_path / "anew.safetensors", layers="2,1", renumber=True)
    anew = written(tmp_path / "anew.safetensors")
    assert [float(anew[f"module.layers.{n}.w"][0, 0]) for n in (0, 1)] == [2.0, 1.0]
    with pytest.raises(UsageError, match="needs a new number"):
        wb.slice(model, tmp_path / "twice.safetensors", layers="1,1")


def test_a_tensor_of_the_first_layer_alone_is_not_lost_in_silence(tmp_path: Path) -> None:
    """RWKV 7 names the norm of its embedding after layer 0: a table tells that it stays, without one it is a loss."""
    case, source = models.CASES["rwkv7"], tmp_path / "model"
    models.build(case, source)
    report = report_of(wb.plan_slice(source, tmp_path / "planned", layers="1", renumber=True))
    assert any("without a meaning in the new layer: model.layers.0.attn.v_lora" in note for note in report.notes)
    wb.slice(source, tmp_path / "cut", layers="1", renumber=True)
    kept, before = (written(tmp_path / n / "model.safetensors") for n in ("cut", "model"))
    name = "model.layers.0.pre_norm.weight"
    assert np.array_equal(kept[name], before[name])
    (source / "config.json").write_text(json.dumps({"model_type": "unheard_of", "num_hidden_layers": 2}))
    told = [
        loss
        for loss in report_of(wb.plan_slice(source, tmp_path / "a", layers="1", renumber=True)).losses
        if name in loss
    ]
    assert len(told) == 1
    assert "no remaining layer has" in told[0]
    assert "pre_norm.bias" in told[0]
    assert "ffn_norm" not in told[0]
    whole = report_of(wb.plan_slice(source, tmp_path / "b", layers="0-1", renumber=True))
    assert not [loss for loss in whole.losses if "remaining" in loss]


def test_tensors_by_name(model: Path, tmp_path: Path) -> None:
    wb.slice(model, tmp_path / "a.safetensors", keep=["*.w", "head"], drop=["*.1.*"])
    assert set(written(tmp_path / "a.safetensors")) == {"head", "module.layers.0.w", "module.layers.2.w"}
    for what in ({"drop": ["*"]}, {"keep": ["nothing"]}, {}, {"layers": "3"}, {"layers": "0-9"}):
        with pytest.raises(UsageError):
            wb.slice(model, tmp_path / "b.safetensors", **what)
    with pytest.raises(UnsupportedError):
        wb.slice(model, tmp_path / "b.safetensors", experts="0")


def test_experts_that_share_others_stay_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = models.build(CASES_OF_FAMILIES["grovemoe"], tmp_path / "m")
    with pytest.raises(UnsupportedError, match="groups of experts share other modules"):
        wb.slice(folder, tmp_path / "fewer", experts="0-3")


def mixture(folder: Path, shapes: Mapping[str, int] | None = None, **said: Any) -> Path:
    """A Qwen 3 mixture of eight experts, in names and shapes."""
    from safetensors.numpy import save_file

    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 8,
        "num_experts_per_tok": 4, "hidden_size": 64, "moe_intermediate_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 32,
    } | dict(shapes or {})  # fmt: skip
    from weighbridge.models.arch.registry import families

    family = families()["qwen3moe"]
    generator = np.random.default_rng(3)
    names = family.names("hf", family.sizes_from_hf(config))
    folder.mkdir()
    save_file({n: generator.normal(size=s).astype("f4") for n, s in names.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | said))
    return folder


def test_cutting_and_quantizing_can_change_places(tmp_path: Path) -> None:
    """MLX's codes, scales and biases are cut as the weights are: layers, experts, and the router with its own bits."""
    source = mixture(tmp_path / "model")
    what: Any = {"layers": "1", "renumber": True, "experts": "6,1-2"}
    wb.convert(source, tmp_path / "mlx", to="mlx", q_bits=4, q_group_size=32)
    wb.slice(tmp_path / "mlx", tmp_path / "a", **what)
    wb.slice(source, tmp_path / "cut", **what)
    wb.convert(tmp_path / "cut", tmp_path / "b", to="mlx", q_bits=4, q_group_size=32)
    a, b = (written(tmp_path / n / "model.safetensors") for n in "ab")
    assert {n: (t.shape, t.tobytes()) for n, t in a.items()} == {n: (t.shape, t.tobytes()) for n, t in b.items()}
    assert len(a) > 30
    configs = [json.loads((tmp_path / n / "config.json").read_text()) for n in "ab"]
    assert configs[0] == configs[1]
    assert configs[0]["num_experts"] == 3 == configs[0]["num_experts_per_tok"]


def test_blocks_of_a_gguf_stay_as_they_are(tmp_path: Path) -> None:
    source = mixture(tmp_path / "model")
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    wb.convert(source, whole, dtype="q8_0", tokenizer=False)
    report = report_of(wb.plan_slice(whole, cut, experts="2,5-7", layers="1", renumber=True))
    with wb.open(whole) as before, wb.open(cut) as after:
        stack = before["blk.1.ffn_up_exps.weight"].raw()
        each = len(stack) // 8
        assert after["blk.0.ffn_up_exps.weight"].dtype == "Q8_0"
        assert after["blk.0.ffn_up_exps.weight"].raw() == b"".join(
            stack[n * each : (n + 1) * each] for n in (2, 5, 6, 7)
        )
        router = before["blk.1.ffn_gate_inp.weight"].numpy()
        assert np.array_equal(after["blk.0.ffn_gate_inp.weight"].numpy(), router[[2, 5, 6, 7]])
    wb.slice(source, tmp_path / "model-cut", experts="2,5-7", layers="1", renumber=True)
    wb.convert(tmp_path / "model-cut", tmp_path / "b.gguf", dtype="q8_0", tokenizer=False)
    with wb.open(tmp_path / "b.gguf") as other, wb.open(whole) as before:
        label = "general.size_label"
        assert {c.key: (c.before, c.after) for c in report.changed} == {
            "qwen3moe.block_count": (2, 1), "qwen3moe.expert_count": (8, 4),
            label: (before.metadata[label], other.metadata[label]),
        }  # fmt: skip


@pytest.mark.parametrize(
    ("experts", "words"),
    [("0,0", "selected twice"), ("8", "0 to 7"), ("0-2,7", "keep equally many"), ("4-7,0-3", "equally many")],
)
def test_experts_that_are_refused(tmp_path: Path, experts: str, words: str) -> None:
    source = mixture(tmp_path / "model", n_group=2)
    with pytest.raises(UsageError, match=words):
        wb.slice(source, tmp_path / "out", experts=experts)
    assert not (tmp_path / "out").exists()


def test_a_rename_to_a_dialect_that_is_refused(tmp_path: Path) -> None:
    source = mixture(tmp_path / "model")
    for dialect, words in (("hf", "already"), ("nonsense", "no 'nonsense' names")):
        with pytest.raises(UsageError, match=words):
            wb.rename(source, tmp_path / "out", to_names=dialect)
    wb.convert(source, tmp_path / "m.gguf", dtype="f32", tokenizer=False)
    with pytest.raises(UsageError, match="nothing loads"):
        wb.rename(tmp_path / "m.gguf", tmp_path / "n.gguf", to_names="hf")


# ------------------------------------------------------------------------------------------------ quantized names


def raw(folder: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    with wb.open(folder, names="stored") as model:
        return {name: (model[name].shape, bytes(model[name].raw())) for name in model}


def config_of(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("how", [{"q_bits": 4, "q_group_size": 32}, {"q_mode": "mxfp4"}, {"q_mode": "mxfp8"}])
def test_quantized_stacks_are_parted_and_stacked_again(how: Any, tmp_path: Path) -> None:
    """MLX's names and Hugging Face's: codes as they were, settings of a module under its name there."""
    wb.convert(mixture(tmp_path / "m"), there := tmp_path / "mlx", to="mlx", **how)
    config = config_of(there)
    stack = "model.layers.1.mlp.switch_mlp.up_proj"
    for key in ("quantization", "quantization_config"):
        config[key][stack] = {"group_size": 32, "bits": config[key]["bits"]}
    (there / "config.json").write_text(json.dumps(config))
    report = report_of(wb.plan_rename(there, back := tmp_path / "hf", to_names="hf"))
    held, parted = written(there / "model.safetensors"), written(back / "model.safetensors")
    for part in ("weight", "scales", *(["biases"] if "q_bits" in how else [])):
        for expert in range(8):
            one = parted[f"model.layers.1.mlp.experts.{expert}.up_proj.{part}"]
            assert np.array_equal(one, held[f"{stack}.{part}"][expert])
    assert not any("other values" in note for note in report.notes)
    own = config_of(back)["quantization"]
    each = [f"model.layers.1.mlp.experts.{e}.up_proj" for e in range(8)]
    assert [own[name] for name in each] == [config["quantization"][stack]] * 8
    assert stack not in own
    wb.rename(back, again := tmp_path / "again", to_names="mlx")
    after = written(again / "model.safetensors")
    assert {n: t.tobytes() for n, t in after.items()} == {n: t.tobytes() for n, t in held.items()}
    assert config_of(again) == config


@pytest.mark.parametrize("scheme", ["fp8", "gptq", "awq", "w4a16", "nvfp4a16", "w8a8"])
def test_parts_keep_their_endings(scheme: str, tmp_path: Path) -> None:
    """A tensor that is only called otherwise has its parts called so, too, and so has what the config says of them."""
    wide = {"hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 128}
    wb.convert(mixture(tmp_path / "m", shapes=wide), source := tmp_path / "packed", to="hf", scheme=scheme)
    config = config_of(source)
    lists = [key for key in ("ignore", "modules_to_not_convert") if key in config["quantization_config"]]
    for key in lists[:1]:
        config["quantization_config"][key] = [
            "lm_head",
            "model.layers.0.self_attn",
            "model.layers.0.mlp.gate",
            "re:x.*",
        ]
    (source / "config.json").write_text(json.dumps(config))
    report = report_of(
        wb.plan_rename(source, out := tmp_path / "out", replace=[("self_attn", "attention"), (r"\bmlp\b", "ffn")])
    )
    before, after = raw(source), raw(out)
    assert {n.replace("self_attn", "attention").replace(".mlp.", ".ffn."): t for n, t in before.items()} == after
    for key in lists[:1]:
        assert config_of(out)["quantization_config"][key] == [
            "lm_head", "model.layers.0.attention", "model.layers.0.ffn.gate", "re:x.*",
        ]  # fmt: skip
        assert any("'re:x.*' may match other names now" in note for note in report.notes)


def test_fp8_experts_change_their_spelling(tmp_path: Path) -> None:
    """transformers 4's experts one by one and transformers 5's stacks, blocks of scales with them."""
    wide = {"hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 128}
    source = mixture(tmp_path / "m", shapes=wide, **wide)
    wb.convert(source, there := tmp_path / "fp8", to="hf", scheme="fp8")
    wb.rename(there, five := tmp_path / "five", to_names="hf5")
    held, stacked = raw(there), raw(five)
    front = "model.layers.0.mlp.experts"
    parts = [held[f"{front}.{e}.{p}_proj.weight_scale_inv"][1] for e in range(8) for p in ("gate", "up")]
    assert stacked[f"{front}.gate_up_proj_scale_inv"] == ((8, 2, 1), b"".join(parts))
    assert stacked[f"{front}.gate_up_proj"][0] == (8, 256, 128)
    wb.rename(five, four := tmp_path / "four", to_names="hf")
    assert raw(four) == held


def test_parts_that_no_stack_has_are_refused(tmp_path: Path) -> None:
    wide = {"hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 128}
    wb.convert(mixture(tmp_path / "m", shapes=wide), source := tmp_path / "gptq", to="hf", scheme="gptq")
    with pytest.raises(UnsupportedError, match="fuses or splits tensors packed as gptq"):
        wb.rename(source, tmp_path / "out", to_names="mlx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["scales", "biases", "weight"])
def test_a_part_that_is_another_is_seen(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"scales": "biases", "biases": "scales", "weight": "scales"}[part]
    members = packed_rename._members

    def wrong(*group: Any) -> dict[str, str]:
        return {key: other if member == part else member for key, member in (members(*group) or {}).items()}

    monkeypatch.setattr(packed_rename, "_members", wrong)
    with pytest.raises((AssertionError, UnsupportedError, UsageError)):
        test_quantized_stacks_are_parted_and_stacked_again({"q_bits": 4, "q_group_size": 32}, tmp_path)


# ------------------------------------------------------------------------------------------------ two stacks


def two(folder: Path, **said: Any) -> Path:
    """A T5 of three and two layers, in names and shapes."""
    from safetensors.numpy import save_file

    from weighbridge.models.arch.registry import families

    config = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "num_layers": 3, "num_decoder_layers": 2,
        "d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "vocab_size": 48, "feed_forward_proj": "relu",
    } | said  # fmt: skip
    family = families()["t5"]
    folder.mkdir()
    shapes = family.names("hf", family.sizes_from_hf(config))
    held = {n: np.full(s, len(n), "f4") for n, s in shapes.items()}
    held["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = np.zeros((32, 2), "f4")
    save_file(held, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def test_each_side_is_cut_by_its_name(tmp_path: Path) -> None:
    source = two(tmp_path / "m")
    report = report_of(wb.plan_slice(source, tmp_path / "a", layers="encoder:2,decoder:1,0", renumber=True))
    assert [(c.key, c.before, c.after) for c in report.changed] == [("num_layers", 3, 1)]
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    held = written(tmp_path / "a" / "model.safetensors")
    assert {f"{side}.{bias}" for side in ("encoder", "decoder")} < held.keys()  # of the stack, not of layer 0
    assert sum(name.startswith("encoder.block.") for name in held) == 9
    assert wb.verify(tmp_path / "a").ok
    part = report_of(wb.plan_slice(source, tmp_path / "part", layers="decoder:1"))
    assert any("--renumber" in note for note in part.notes)
    held = written(tmp_path / "part" / "model.safetensors")
    assert {f"decoder.{bias}", "decoder.block.1.layer.0.SelfAttention.q.weight"} < held.keys()
    assert main(["slice", str(source), str(tmp_path / "b"), "--layers", "encoder:0-1", "--layers", "decoder:0"]) == 0
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (config["num_layers"], config["num_decoder_layers"]) == (2, 1)


def test_a_count_of_both_sides_is_spelled_out(tmp_path: Path) -> None:
    source = two(tmp_path / "m", num_layers=2, num_decoder_layers=None)
    changed = wb.plan_slice(source, tmp_path / "a", layers="encoder:0").report.changed
    assert [(c.key, c.before, c.after) for c in changed] == [("num_layers", 2, 1), ("num_decoder_layers", None, 2)]
    changed = wb.plan_slice(source, tmp_path / "b", layers="decoder:0").report.changed
    assert [(c.key, c.before, c.after) for c in changed] == [("num_decoder_layers", None, 1)]


def test_keys_of_two_sides() -> None:
    for side, before, wanted in (
        ("encoder", {"encoder_layers": 3, "decoder_layers": 2, "num_hidden_layers": 3},
         {"encoder_layers": 1, "num_hidden_layers": 1}),
        ("decoder", {"encoder_layers": 3, "decoder_layers": 3}, {"decoder_layers": 1}),
    ):  # fmt: skip
        assert sides.hf_counts(before, side, 3, 1) == wanted
    assert sides.gguf_counts({}, "t5.", "encoder", 3, 1) == {
        "t5.block_count": KV("u32", 1), "t5.decoder_block_count": KV("u32", 3)
    }  # fmt: skip
    assert sides.gguf_counts({}, "t5.", "decoder", 3, 1) == {"t5.decoder_block_count": KV("u32", 1)}


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("0-1", "an encoder of 3 layers and a decoder of 2 layers: ambiguous"),
        ("encoder:3", "there are no layers 3"), ("1,encoder:0", "isn't a selection of encoder and decoder layers"),
        ("tower:0", "isn't a selection of encoder and decoder layers"), 
        ("encoder:0,encoder:1", "selection of encoder and decoder layers"),
        ("encoder:", "isn't a selection of layers"),
    ],
)  # fmt: skip
def test_sides_that_are_refused(layers: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        wb.slice(two(tmp_path / "m"), tmp_path / "out", layers=layers, renumber=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="no encoder side: it has a single stack of layers"):
        wb.slice(mixture(tmp_path / "one"), tmp_path / "out", layers="encoder:0")


def test_a_gguf_that_no_graph_runs_is_refused(tmp_path: Path) -> None:
    wb.convert(two(tmp_path / "m"), tmp_path / "m.gguf", dtype="f32", tokenizer=False)
    with pytest.raises(UsageError, match="a decoder of 2 layers with an encoder of 1"):
        wb.slice(tmp_path / "m.gguf", tmp_path / "out.gguf", layers="encoder:0")
    report = report_of(
        wb.plan_slice(tmp_path / "m.gguf", tmp_path / "out.gguf", layers="encoder:2,decoder:1", renumber=True)
    )
    assert {c.key: c.after for c in report.changed if "count" in c.key} == {
        "t5.block_count": 1, "t5.decoder_block_count": 1
    }  # fmt: skip
