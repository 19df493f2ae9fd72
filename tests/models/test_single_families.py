"""Baichuan: what the last converter that took it made of it, and what tells its four models apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden, metadata_of
from tests.models.record_families import values
from tests.oracles.families import CASES

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError
from weighbridge.models.arch.derived import RESTORED, proportional_factors
from weighbridge.models.arch.registry import families, family_of_gguf, family_of_hf
from weighbridge.models.arch.tables.expression import shared_value
from weighbridge.models.config.mapping import config_to_gguf, gguf_to_config
from weighbridge.models.model import open_weights
from weighbridge.tensors.nodes import cast, const

OLDER: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "baichuan-older.json").read_text("utf-8"))
SETTLED = "baichuan.attention.head_count_kv"  # which the older one says too: as many as of queries


def test_an_older_converter_wrote_the_same() -> None:
    """The recorded one is b11549's with a line mended: the older one needs none."""
    now = golden()["baichuan"]
    assert [[name, shape, digest] for name, _, shape, digest in now["gguf"]] == OLDER["tensors"]
    then = {key: value for key, *value in OLDER["keys"]}
    assert then.pop(SETTLED) == then["baichuan.attention.head_count"]
    assert then == {key: value for key, *value in now["keys"] if not key.startswith("general.")}


def folder(parent: Path, **said: Any) -> Path:
    recorded, out = golden()["baichuan"], parent / "hf"
    out.mkdir()
    save_file({n: values(n, tuple(s)) for n, s in recorded["hf"].items()}, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps({**recorded["config"], **said}))
    return out


@pytest.mark.parametrize("name", ["BaichuanForCausalLM", "BaiChuanForCausalLM"])
def test_both_spellings_are_known(name: str) -> None:
    assert family_of_hf({"architectures": [name]}).name == "baichuan"


@pytest.mark.parametrize(("said", "unit"), [({}, False), ({"z_loss_weight": 0}, True), ({"z_loss_weight": 0.0}, True)])
def test_baichuan_2_has_an_output_of_length_1(said: dict[str, Any], unit: bool, tmp_path: Path) -> None:
    source = folder(tmp_path, **said)
    wb.convert(source, tmp_path / "a.gguf", dtype="f32", tokenizer=False)
    rows = values("lm_head.weight", tuple(golden()["baichuan"]["hf"]["lm_head.weight"]))
    with wb.open(tmp_path / "a.gguf") as model:
        found = np.asarray(model["output.weight"])
    assert np.array_equal(found, rows) is not unit
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6) is unit
    wb.convert(tmp_path / "a.gguf", tmp_path / "back", tokenizer=False)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert "z_loss_weight" not in config
    assert config["max_position_embeddings"] == config["model_max_length"] == 256
    assert np.array_equal(load_file(tmp_path / "back" / "model.safetensors")["lm_head.weight"], found)


def test_layers_that_llama_cpp_gives_no_positions_are_told(tmp_path: Path) -> None:
    losses = [x.message for x in wb.plan_convert(folder(tmp_path), tmp_path / "a.gguf", tokenizer=False).losses]
    assert any("num_hidden_layers = 2" in what and "32 layers" in what for what in losses)


# GPT-J in a GGUF is a Phi-2: what tells them apart, and what must be zero.


def _gguf(parent: Path, model: str) -> Path:
    recorded, folder = golden()[model], parent / model
    folder.mkdir()
    arrays = {n: values(n, tuple(shape)) for n, shape in recorded["hf"].items()}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(recorded["config"]))
    wb.convert(folder, parent / f"{model}.gguf", dtype="f32", tokenizer=False)
    return parent / f"{model}.gguf"


@pytest.mark.parametrize(("model", "family"), [("gptj", "gptj"), ("gptj-wide", "gptj"), ("phi2", "phi2")])
def test_each_is_known_by_its_biases(model: str, family: str, tmp_path: Path) -> None:
    with open_weights(_gguf(tmp_path, model)) as found:
        assert found.metadata["general.architecture"] == "phi2"
        assert found.family.name == family


def test_a_phi2_of_older_files_is_one() -> None:
    """They have queries, keys and values in one tensor."""
    names = ["token_embd.weight", "blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias"]
    assert family_of_gguf({"general.architecture": "phi2"}, names=names).name == "phi2"


def test_biases_of_zeros_go_and_others_are_told(tmp_path: Path) -> None:
    gguf = _gguf(tmp_path, "gptj")
    with wb.open(gguf) as model:
        assert all(not np.asarray(model[f"blk.{i}.attn_output.bias"]).any() for i in (0, 1))
    assert not any("attn_output" in (loss.tensor or "") for loss in wb.plan_convert(gguf, tmp_path / "a").losses)
    data = bytearray(gguf.read_bytes())
    with open_weights(gguf) as model:
        at = model.index.by_name["blk.1.attn_output.bias"].offset
    data[at : at + 4] = np.float32(0.5).tobytes()
    (tmp_path / "other.gguf").write_bytes(data)
    told = [
        loss for loss in wb.plan_convert(tmp_path / "other.gguf", tmp_path / "c").losses if "no place" in loss.message
    ]
    assert [loss.tensor for loss in told] == ["blk.1.attn_output.bias"]
    wb.convert(gguf, tmp_path / "hf", tokenizer=False)
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == golden()["gptj"]["hf"].keys()


def test_heads_go_to_ranks_in_both_forms(tmp_path: Path) -> None:
    """A rank's queries are those of its heads, whichever way they lie."""
    gguf = _gguf(tmp_path, "gptj")
    for source, name in ((gguf, "blk.0.attn_q.weight"), (tmp_path / "gptj", "transformer.h.0.attn.q_proj.weight")):
        wb.split(source, tmp_path / f"{source.name}-ranks", tp=2)
        rank = sorted(p for p in (tmp_path / f"{source.name}-ranks").iterdir() if "rank-1-of-2" in p.name)[0]
        with open_weights(rank) as part, open_weights(source) as whole:
            assert part.stored[name].read(0, 32).tobytes() == whole.stored[name].read(32, 64).tobytes()


# What a Gemma 4's config says in ways of its own: what layers that attend to all tokens have, layer by layer or once
# for all; lists by layer in a GGUF; and what wrong files say.


FAMILY = families()["gemma4"]
BY_LAYER: dict[str, Any] = golden()["gemma4"]["config"]
IN_WORDS: dict[str, Any] = golden()["gemma4-experts"]["config"]


def keys(config: dict[str, Any]) -> dict[str, Any]:
    return {key: (kv.type, kv.value) for key, kv in config_to_gguf(config, FAMILY, file_type=0).items()}


def test_a_silent_config_means_what_its_class_means() -> None:
    """The published sizes, and that the last layer attends to all tokens whatever is said."""
    facts = FAMILY.effective({"architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 32})
    full = [i for i, kind in enumerate(facts["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11, 17, 23, 29, 31]
    theirs = golden()["gemma4"]["defaults"]
    assert {own["head_dim"] for own in theirs["per_layer_config"].values()} == {facts["global_head_dim"]}
    assert facts["rope"] == theirs["rope_parameters"]["full_attention"]
    assert facts["rope_sliding"] == theirs["rope_parameters"]["sliding_attention"]


def test_keys_that_are_values_have_their_own_number_of_heads_and_others_havent() -> None:
    """transformers asks `attention_k_eq_v` before it looks at the number."""
    other = IN_WORDS | {"attention_k_eq_v": False}
    assert keys(IN_WORDS)["gemma4.attention.head_count_kv"] == ("arr[i32]", [2, 2, 1])
    assert keys(other)["gemma4.attention.head_count_kv"] == ("u32", 2)
    shapes = FAMILY.names("hf", FAMILY.sizes_from_hf(other))
    assert shapes["model.layers.2.self_attn.v_proj.weight"] == (128, 64)
    assert "model.layers.2.self_attn.v_proj.weight" not in FAMILY.names("hf", FAMILY.sizes_from_hf(IN_WORDS))


def test_numbers_of_layers_may_be_padded() -> None:
    padded = {key.zfill(2): own for key, own in BY_LAYER["per_layer_config"].items()}
    assert keys(BY_LAYER | {"per_layer_config": padded}) == keys(BY_LAYER)


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"2": 64},
        {"x": {"head_dim": 64}},
        {"1": {"head_dim": 64}, "2": {"head_dim": 64}, "5": {"head_dim": 64}},
        {"2": {"head_dim": 64}, "5": {"head_dim": 48}},
        {"2": {"head_dim": 64}},
        {"2": {"intermediate_size": 64}, "5": {"intermediate_size": 64}},
    ],
)
def test_what_else_is_said_layer_by_layer_is_refused(said: Any) -> None:
    with pytest.raises(FormatError, match="per_layer_config"):
        keys(BY_LAYER | {"per_layer_config": said})


@pytest.mark.parametrize(
    "change",
    [
        {"feed_forward_length": [96, 96, 96, 192, 192]},
        {"feed_forward_length": [96, 48, 96, 192, 192, 192]},
        {"attention.head_count_kv": [2, 2, 1, 4, 4, 1]},
        {"attention.sliding_window_pattern": [True]},
        {"attention.shared_kv_layers": 7},
        {"attention.shared_kv_layers": [3]},
    ],
)
def test_a_gguf_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    known = {**metadata_of("gemma4"), **{f"gemma4.{key}": value for key, value in change.items()}}
    with pytest.raises(FormatError):
        FAMILY.sizes_from_gguf(known, [name for name, *_ in golden()["gemma4"]["gguf"]])


@pytest.mark.parametrize("said", [None, 0.0, 12.0])
def test_a_gguf_that_says_no_cap_caps_as_llama_cpp_takes_it(said: float | None) -> None:
    """At 30, where the key is absent; at nothing where it is 0."""
    model = "gemma4-experts"
    known = {k: v for k, v in metadata_of(model).items() if not k.endswith("final_logit_softcapping")}
    known |= {} if said is None else {"gemma4.final_logit_softcapping": said}
    names = [name for name, *_ in golden()[model]["gguf"]]
    config = gguf_to_config(known, FAMILY, names, vectors=lambda _: [1.0] * 8 + [1e30] * 24).config
    assert config["final_logit_softcapping"] == {None: 30.0, 0.0: None, 12.0: 12.0}[said]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 1.0])
def test_shares_that_turn_come_back(share: float) -> None:
    """As transformers counts the pairs (`_compute_proportional_rope_parameters`)."""
    rope = {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": 1e6}
    factors = proportional_factors({"rope": rope, "global_head_dim": 64})
    assert factors is not None
    assert factors.count(1.0) == int(share * 64 // 2)
    back = RESTORED["proportional_factors"](factors, 1e6)
    assert back is not None
    assert proportional_factors({"rope": {**back, "rope_theta": 1e6}, "global_head_dim": 64}) == factors


@pytest.mark.parametrize("factors", [[], [1.0, 2.0], [1e30, 1.0], [0.0, 0.0]])
def test_other_factors_are_no_share(factors: list[float]) -> None:
    assert RESTORED["proportional_factors"](factors, 1e6) is None


@pytest.mark.parametrize("share", [-0.5, 1.5, "x"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    rope = {"rope_type": "proportional", "partial_rotary_factor": share}
    with pytest.raises(FormatError, match="partial_rotary_factor"):
        proportional_factors({"rope": rope, "global_head_dim": 64})


def test_what_some_layers_have() -> None:
    assert shared_value([2, 2, 1], "x", {0, 1}) == 2
    assert shared_value(2, "x", {0, 1}) == 2
    assert shared_value([2, 2, 1], "x", frozenset()) is None
    assert shared_value(None, "x", {0}) is None
    for wrong in ([2, 1, 1], [2], ["2", "2"]):
        with pytest.raises(FormatError):
            shared_value(wrong, "x", {0, 1})


# DeepSeek V4's settings in the words of its publisher and of transformers 5, and its tables of experts.


PUBLISHED: dict[str, Any] = CASES["deepseek4"].options
SAID = ("num_hash_layers", "qk_rope_head_dim", "compress_rope_theta")


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    return families()["deepseek4"].effective({"architectures": ["DeepseekV4ForCausalLM"], **config})


def _transformers(config: dict[str, Any]) -> dict[str, Any]:
    """The config as transformers 5 writes it again."""
    from transformers import DeepseekV4Config

    return dict(DeepseekV4Config(**config).to_dict())


@pytest.mark.parametrize(
    "without", [(), ("compress_ratios",), ("num_hash_layers",), ("qk_rope_head_dim",), ("rope_scaling",)], ids=str
)
@pytest.mark.oracle
def test_the_words_of_transformers_mean_the_same(without: tuple[str, ...]) -> None:
    config = {key: value for key, value in PUBLISHED.items() if key not in without}
    theirs = _transformers(config)
    silent = {key: value for key, value in theirs.items() if key != "qk_rope_head_dim"}
    ours = _facts(config)
    for written in (theirs, silent):
        found = _facts(written)
        assert found["compress_ratios"] == ours["compress_ratios"][:4]
        assert {key: found[key] for key in SAID} == {key: ours[key] for key in SAID}
        same = {"rope_type", "rope_theta", "factor", "beta_fast", "beta_slow"} & {*ours["rope"]}
        assert {key: found["rope"][key] for key in same} == {key: ours["rope"][key] for key in same}


def test_rates_of_its_own_count() -> None:
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"]
    config = {key: value for key, value in PUBLISHED.items() if key != "compress_ratios"} | {"layer_types": kinds}
    assert _facts(config)["compress_ratios"] == [0, 4, 128, 0]
    rates = {"compress_rates": {"heavily_compressed_attention": 64}}
    assert _facts(config | rates)["compress_ratios"] == [0, 4, 64, 0]
    with pytest.raises(FormatError, match="layer_types: is not a list of known kinds"):
        _facts(config | {"layer_types": [*kinds[:3], "full_attention"]})


def test_a_table_s_numbers_fit_or_are_refused() -> None:
    numbers = np.array([[1, -2], [2**31 - 1, -(2**31)]], np.int64)
    narrow = cast(const(numbers, BY_NAME["I64"]), BY_NAME["I32"])
    assert np.array_equal(narrow.read_all().view("<i4").reshape(2, 2), numbers)
    assert np.array_equal(cast(narrow, BY_NAME["I64"]).read_all().view("<i8").reshape(2, 2), numbers)
    for wrong in (2**31, -(2**31) - 1, 2**40):
        with pytest.raises(FormatError, match="a number is too large for I32"):
            cast(const(np.array([[0, wrong]], np.int64), BY_NAME["I64"]), BY_NAME["I32"]).read_all()


# Jais: the slopes of its biases are a number in a GGUF.


@pytest.mark.parametrize(("slope", "told"), [(None, False), (1.001, False), (1.25, True)])
def test_slopes_that_llama_cpp_does_not_compute_are_told(slope: float | None, told: bool, tmp_path: Path) -> None:
    recorded, name = golden()["jais"], "transformer.relative_pe.slopes"
    arrays = {n: values(n, tuple(shape)) for n, shape in recorded["hf"].items()}
    if slope is not None:
        arrays[name] = arrays[name] * np.array([[1], [1], [1], [1], [1], [slope]], np.float32)
    save_file(arrays, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(recorded["config"]))
    losses = wb.plan_convert(tmp_path, tmp_path / "a.gguf", tokenizer=False).losses
    assert [x.tensor for x in losses if "computes other numbers" in x.message] == [name] * told


# Nemotron-H Puzzle: the first release has another name of the router's bias, and another prefix.


def test_the_first_puzzle_is_the_same_model(tmp_path: Path) -> None:
    recorded = golden()["nemotron-h-puzzle"]
    arrays = {n: values(n, tuple(shape)) for n, shape in recorded["hf"].items()}
    first = {n.replace("model.", "backbone.", 1).replace("correction_bias", "correction.bias"): n for n in arrays}
    assert sum("correction.bias" in name for name in first) == 3
    for path, tensors in ("now", arrays), ("first", {name: arrays[n] for name, n in first.items()}):
        (tmp_path / path).mkdir()
        save_file(tensors, tmp_path / path / "model.safetensors", {"format": "pt"})
        (tmp_path / path / "config.json").write_text(json.dumps(recorded["config"]))
        wb.convert(tmp_path / path, tmp_path / f"{path}.gguf", tokenizer=False, dtype="f32", name="puzzle")
    assert wb.diff(tmp_path / "now.gguf", tmp_path / "first.gguf")
    assert wb.verify(tmp_path / "first.gguf").verdicts[0].accepts is not False
