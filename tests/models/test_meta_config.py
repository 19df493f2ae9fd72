"""config.json <-> GGUF key-values: equal to what the reference converter wrote for the same folders, and back."""

from __future__ import annotations

import copy
import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.config_judges import (
    UNSAID,
    judge_case_keys,
    judge_computes,
    judge_configs,
    judge_restored,
    judge_round_trip,
    judge_unsaid,
    metadata,
    restored,
    shapes_of,
)
from tests.models.family_judges import golden as recorded
from tests.models.family_judges import judge_keys, models_of
from tests.models.reference_cases import CASES, GQA, LLAMA, SMALL

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.derived import f32, llama3, llama3_parameters
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.arch.tables import validate
from weighbridge.models.arch.tables.short_forms import key_value, shared
from weighbridge.models.config import keys
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import HfConfig, config_to_gguf, gguf_to_config
from weighbridge.models.config.pooling import pooling_type, sentence_files

BERT, FAMILY = families()["bert"], families()["llama"]


@pytest.mark.parametrize("name", CASES)
def test_keys_types_values_and_order_are_the_reference_s(name: str) -> None:
    judge_case_keys(_owner(name), name)


def _damaged() -> list[Any]:
    """Every default row of key_values.toml, wrong in each of its columns."""
    document = keys.rows()
    cases = []
    for part in ("base", "sampling"):
        for i, row in enumerate(document[part]):
            faults: dict[str, Any] = {"name": row["name"] + "s", "type": "i32" if row["type"] == "u32" else "u32"}
            faults |= {"config": [c + "_" for c in row["config"]]} if "config" in row else {}
            faults |= {"value": True if row["value"] is False else row["value"] + 1} if "value" in row else {}
            faults |= (
                {"map": {k: v + ("s" if isinstance(v, str) else 1) for k, v in row["map"].items()}}
                if "map" in row
                else {}
            )
            faults |= {"when": {k: ["never"] for k in row["when"]}} if "when" in row else {}
            faults |= {"pad_to": 0} if "pad_to" in row else {}
            for column, value in faults.items():
                wrong = copy.deepcopy(document)
                wrong[part][i][column] = value
                cases.append(pytest.param(wrong, id=f"{row['name']}, {i}: {column}"))
            wrong = copy.deepcopy(document)
            wrong[part].insert(0 if i else len(wrong[part]), wrong[part].pop(i))
            cases.append(pytest.param(wrong, id=f"{row['name']}, {i}: place"))
    return cases


def test_a_key_value_is_stated_once() -> None:
    """No default row repeats an entry that families list; a type is stated with its name only."""
    document = shared("key_values.toml")
    names = [name for typed in document["types"].values() for name in typed]
    assert len(names) == len(set(names))
    entries = {name: key_value(name) for name in document["key"]}
    rows = [row for row in (*document["base"], *document["sampling"]) if not (isinstance(row, str) and row in entries)]
    assert not [row for row in rows if key_value(row) in entries.values()]
    parts = [part for row in rows for part in (row if isinstance(row, list) else [row]) if isinstance(part, dict)]
    assert not [part for part in parts if "type" in part]


@pytest.mark.mutation
@pytest.mark.parametrize("document", _damaged())
def test_a_fault_in_a_row_is_seen(document, monkeypatch) -> None:
    wrong = validate.convert(document, keys.KeyTable)
    for module in ("keys", "general", "mapping"):
        monkeypatch.setattr(f"weighbridge.models.config.{module}.table", lambda: wrong)
    with pytest.raises((AssertionError, FormatError, UsageError)):
        judge_all()


def judge_all() -> None:
    for check in _MORE:
        check()
    for family in families().values():
        judge_configs(family)
        for model in models_of(family):
            judge_keys(family, model)


def test_what_only_its_own_case_shows() -> None:
    for check in _MORE:
        check()


def _causal() -> None:
    """A Llama that isn't causal (an embedding model) says so; after head_count_kv, as the reference does."""
    out = config_to_gguf({**LLAMA, **GQA, "is_causal": False}, FAMILY, file_type=0)
    assert list(out)[5:8] == ["llama.attention.head_count_kv", "llama.attention.causal", "llama.rope.freq_base"]
    assert out["llama.attention.causal"] == KV("bool", False)
    assert "llama.attention.causal" not in config_to_gguf({**LLAMA, **GQA, "is_causal": True}, FAMILY, file_type=0)


def _sampling() -> None:
    """Every sampling parameter, in the reference's order (gguf-py `set_gguf_meta_model`)."""
    said = {
        "mirostat_eta": 0.1,
        "mirostat_tau": 5,
        "mirostat": 2,
        "penalty_repeat": 1.5,
        "repetition_penalty": 9.0,
        "penalty_last_n": 64,
        "temperature": 1,
        "xtc_threshold": 0.1,
        "xtc_probability": 0.5,
        "min_p": 0.1,
        "top_p": 0.9,
        "top_k": 40,
        "sequence": "tkp",
    }
    out = general_to_gguf(FAMILY, directory="x", config={}, shapes={}, generation_config=said)
    want = [
        ("sequence", "str", "tkp"),
        ("top_k", "i32", 40),
        ("top_p", "f32", 0.9),
        ("min_p", "f32", 0.1),
        ("xtc_probability", "f32", 0.5),
        ("xtc_threshold", "f32", 0.1),
        ("temp", "f32", 1.0),
        ("penalty_last_n", "i32", 64),
        ("penalty_repeat", "f32", 1.5),
        ("mirostat", "i32", 2),
        ("mirostat_tau", "f32", 5.0),
        ("mirostat_eta", "f32", 0.1),
    ]
    found = [(k.removeprefix("general.sampling."), *kv) for k, kv in out.items() if k.startswith("general.sampling.")]
    assert found == want


def _su() -> None:
    out = config_to_gguf({**LLAMA, **GQA, "rope_scaling": {"type": "su"}}, FAMILY, file_type=0)
    assert out.get("llama.rope.scaling.type") == KV("str", "longrope")
    without = {**LLAMA, **GQA, "rope_scaling": {"type": "yarn"}}
    with pytest.raises(FormatError, match="factor"):
        config_to_gguf(without, FAMILY, file_type=0)


def _sections() -> None:
    """Sections of a rotation, whatever the family: filled up to four, before the base frequency."""
    for said, want in (([2, 1, 1], [2, 1, 1, 0]), ([16, 0, 0, 0], [16, 0, 0, 0]), ([1, 2, 3, 4, 5], [1, 2, 3, 4])):
        out = config_to_gguf({**LLAMA, **GQA, "rope_scaling": {"mrope_section": said}}, FAMILY, file_type=0)
        assert list(out)[6:8] == ["llama.rope.dimension_sections", "llama.rope.freq_base"]
        assert out["llama.rope.dimension_sections"] == KV("arr[i32]", want)


_MORE = (_causal, _sampling, _su, _sections)


# ---------------------------------------------------------------------- and back


@pytest.mark.parametrize("name", CASES)
def test_a_config_that_came_back_converts_to_the_same_keys(name: str) -> None:
    judge_round_trip(_owner(name), name)


@pytest.mark.parametrize("name", CASES)
def test_what_a_model_computes_comes_back_or_is_a_loss(name: str) -> None:
    judge_computes(_owner(name), name)


@pytest.mark.parametrize("name", UNSAID)
def test_what_has_no_key_comes_back_or_is_a_loss(name: str) -> None:
    judge_unsaid(_owner(name), name)
    judge_restored(_owner(name), name)


def _owner(name: str) -> Family:
    return family_of_hf(CASES[name].config)


def back(name: str) -> HfConfig:
    return restored(_owner(name), name)


def test_the_class_is_told_where_it_can_be_and_else_listed_as_a_guess() -> None:
    assert back("mixtral-head").config["architectures"] == ["MixtralForCausalLM"]
    assert back("bert-labels").config["architectures"] == ["BertForSequenceClassification"]
    assert back("bert-dummies").config["architectures"] == ["BertForSequenceClassification"]
    assert not back("bert").losses
    assert not back("mixtral-head").losses
    assert back("mistral").guesses == [
        "assuming the class LlamaForCausalLM: a llama GGUF of MistralForCausalLM is the same"
    ]


def test_presence_and_the_tokenizer_fill_in_what_keys_do_not_say() -> None:
    tied = back("llama-bias").config
    assert [tied[k] for k in ("tie_word_embeddings", "attention_bias", "mlp_bias")] == [True] * 3
    untied = back("llama-v4").config
    assert [untied[k] for k in ("tie_word_embeddings", "attention_bias", "mlp_bias")] == [False] * 3
    tokens = {
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.bos_token_id": 0,
    }
    bert = gguf_to_config({**metadata("bert"), **tokens}, BERT, shapes_of("bert"))
    assert (bert.config["vocab_size"], bert.config["pad_token_id"], bert.generation) == (2, 1, None)
    assert "bos_token_id" not in bert.config
    llama = gguf_to_config({**metadata("mistral"), **tokens}, FAMILY, shapes_of("mistral"))
    assert (llama.config["bos_token_id"], llama.config["eos_token_id"], llama.config["vocab_size"]) == (0, None, 128)
    assert llama.generation == {
        "bos_token_id": 0,
        "pad_token_id": 1,
        "do_sample": True,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "temperature": 0.7,
        "repetition_penalty": 1.1,
    }


def test_unknown_and_partial_keys_are_losses() -> None:
    odd = {**metadata("llama-v4"), "llama.attention.scale": 2.0, "llama.rope.dimension_count": 8}
    assert gguf_to_config(odd, FAMILY, shapes_of("llama-v4")).losses[:2] == [
        "llama.attention.scale is not carried over",
        "llama.rope.dimension_count is 8, but a head has 16: no class of the family rotates a part",
    ]


def test_what_gguf_cannot_say_of_a_config_is_a_loss() -> None:
    said = {**SMALL, "architectures": ["MistralForCausalLM"], "hidden_act": "gelu", "rope_scaling": {"type": "dynamic"}}
    assert [loss.split(" has ")[0] for loss in config_losses(said, FAMILY)] == [
        "config.json: hidden_act = 'gelu'",
        "config.json: sliding_window = 4096",
        "config.json: rope.rope_type = 'dynamic'",
    ]
    assert not config_losses({**LLAMA, **GQA}, FAMILY)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"max_position_embeddings": 1e10}, "max_position_embeddings"),
        ({"max_position_embeddings": 2.5}, "max_position_embeddings"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": [1]}, "rope_theta"),
        ({"head_dim": True}, "head_dim"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_its_key_is_an_error_and_never_cut(change, field: str) -> None:
    with pytest.raises(FormatError) as e:
        config_to_gguf({**LLAMA, **GQA, **change}, FAMILY, file_type=0)
    assert e.value.field == field


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_shortest_decimal_is_the_same_float(value: float) -> None:
    short = keys.shortest(value)
    assert struct.pack("<f", short) == struct.pack("<f", value)
    digits = [len(Decimal(repr(v)).normalize().as_tuple().digits) for v in (short, value)]
    assert digits[0] <= digits[1]


# ---------------------------------------------------------------------- llama3 factors


@given(
    st.sampled_from([10000.0, 500000.0, 1e6]),
    st.sampled_from([16, 64, 128]),
    st.sampled_from([2.0, 8.0, 32.0]),
    st.sampled_from([64, 4096, 8192]),
)
def test_factors_lead_back_to_parameters_that_give_them(base: float, dim: int, factor: float, trained: int) -> None:
    factors = llama3(base, dim, factor, 1.0, 4.0, trained)
    found = llama3_parameters(factors, base)
    if max(factors) == 1.0:  # no wave is long enough to be scaled: the model is as good as unscaled
        assert found is None
        return
    assert found is not None
    low, high, length = found["low_freq_factor"], found["high_freq_factor"], found["original_max_position_embeddings"]
    assert llama3(base, dim, found["factor"], low, high, length) == factors


def test_odd_parameters_are_found_too_and_factors_of_another_kind_refused() -> None:
    factors = llama3(500000.0, 128, 8.0, 1.5, 3.25, 5000)
    assert llama3_parameters(factors, 500000.0) == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 3.25,
        "original_max_position_embeddings": 5000,
    }
    assert llama3_parameters([1.0, 2.0, 1.0, 3.0], 10000.0) is None
    assert llama3_parameters([], 10000.0) is None
    with pytest.raises(FormatError, match="no llama3 rope scaling"):
        gguf_to_config(metadata("llama3-v4"), FAMILY, shapes_of("llama3-v4"), vectors=lambda _: [1.0, 2.0, 1.0])
    with pytest.raises(FormatError, match="no llama3 rope scaling"):
        gguf_to_config(metadata("llama3-v4"), FAMILY, shapes_of("llama3-v4"))


def test_f32_is_the_nearest() -> None:
    assert f32(0.1) == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert f32(1e300) == float("inf")
    assert f32(-1e300) == float("-inf")


# ---------------------------------------------------------------------- pooling


@pytest.mark.parametrize("number", [1, 2, 3])
def test_pooling_comes_back_as_it_went(number: int) -> None:
    files = sentence_files({"bert.pooling_type": number}, "bert", 64)
    assert pooling_type(files.get) == number
    assert json.loads(files["1_Pooling/config.json"])["word_embedding_dimension"] == 64


def test_what_does_not_pool_says_nothing() -> None:
    assert pooling_type(lambda name: None) is None
    assert sentence_files({}, "bert", 64) == {} == sentence_files({"bert.pooling_type": 4}, "bert", 64)


@pytest.mark.parametrize("path", ["../secret", "/etc", "a/../../b", "C:x", "", None, 3, "a\\..\\b"])
def test_a_module_s_path_may_not_leave_the_folder(path) -> None:
    modules = json.dumps([{"type": "x.Pooling", "path": path}]).encode()
    with pytest.raises(FormatError, match="leaves the folder"):
        pooling_type({"modules.json": modules}.get)


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"modules.json": b"{"}, FormatError),
        ({"modules.json": b"[" * 100_000}, FormatError),
        ({"modules.json": b'[{"type": "Pooling", "path": "p"}]'}, FormatError),
        ({"modules.json": b'[{"type": "Pooling", "path": "p"}]', "p/config.json": b"{}"}, UnsupportedError),
        ({"embedding_config.json": b'{"pooling": "max"}'}, UnsupportedError),
    ],
)
def test_a_folder_that_pools_strangely_is_refused(files, error) -> None:
    with pytest.raises(error):
        pooling_type(files.get)


def test_how_far_biases_by_distance_go_is_written_where_a_config_does_not_say_it() -> None:
    """llama.cpp takes a missing one for none."""
    default = recorded()["mpt"]["defaults"]["attn_config"]["alibi_bias_max"]
    found = config_to_gguf({"architectures": ["MptForCausalLM"]}, family_of_hf({"model_type": "mpt"}), file_type=0)
    assert found["mpt.attention.max_alibi_bias"] == KV("f32", default)
