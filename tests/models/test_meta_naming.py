"""What names and model cards say, held against gguf-py's own reading of them."""

from __future__ import annotations

import string
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples

from weighbridge.base.limits import MODEL_CARD
from weighbridge.models.arch.registry import families
from weighbridge.models.config.card import front_matter, read_card, read_card_as_written, scalar, write_card
from weighbridge.models.config.general import count_parameters, general_to_gguf, parse_model_id, size_label, title

gguf = pytest.importorskip("gguf")
LLAMA = families()["llama"]

_TEXT = (
    "Llama llama 2 3.1 v0.1 v1 iter2 7B 7b 8x7B A3B 1_5B 7b1 128k 16K large small xl Instruct chat lora vision hf GGUF"
    " q4_0 Q4_K_M fp16 bf16 base Mistral o Mini x8 405B 500M it"
)
_WORDS = st.sampled_from(_TEXT.split())
_IDS = st.tuples(
    st.sampled_from(["", "org/", "./", "../", "/", "a b/"]), st.lists(_WORDS, max_size=6).map("-".join)
).map("".join)


@examples(300)
@given(
    st.one_of(_IDS, st.text(string.ascii_letters + string.digits + "-._/ ", max_size=24)),
    st.sampled_from([0, 7_000_000_000, -(10**9), 130_000, 1_500_000_000]),
)
@example("Mixtral-8x7B-Instruct-v0.1", 46_700_000_000)
@example("bloom-7b1-petals", 7_000_000_000)
@example("Phi-3-mini-4k-instruct", 3_800_000_000)
@example("delphi-suite/v0-llama2-12.8m", 12_800_000)
@example("llama-lora-adapter-7B-lora", -7_000_000)
@example("--", 0)
@example("", 0)
def test_a_name_is_read_as_the_reference_reads_it(model_id: str, parameters: int) -> None:
    assert tuple(parse_model_id(model_id, parameters)) == gguf.Metadata.get_model_id_components(model_id, parameters)


def test_no_name_says_nothing() -> None:
    assert tuple(parse_model_id(None)) == gguf.Metadata.get_model_id_components(None)


@given(st.one_of(_IDS, st.text(max_size=20)))
def test_titles_are_the_reference_s(name: str) -> None:
    assert title(name) == gguf.Metadata.id_to_title(name)


@given(
    st.one_of(
        st.integers(0, 10**13),
        st.sampled_from([999, 1000, 10**6, 10**6 + 1, 99_500, 9_949_999, 10**9, 10**12, 10**12 + 1]),
    )
)
def test_sizes_are_the_reference_s(count: int) -> None:
    counts = count_parameters({"a": (count,)})
    assert size_label(counts) == gguf.size_label(count, count, 0, 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["blk.0.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight", "blk.0.x_exps.bias", "o", "q"]),
            st.lists(st.integers(1, 40), min_size=1, max_size=3),
        ),
        unique_by=lambda t: t[0],
    )
)
def test_parameters_are_counted_as_the_reference_counts(tensors) -> None:
    writer = gguf.GGUFWriter(None, "llama")
    for name, shape in tensors:
        writer.add_tensor_info(name, shape, __import__("numpy").dtype("float32"), 4)
    found = count_parameters({name: tuple(shape) for name, shape in tensors})
    assert tuple(found) == writer.get_total_parameter_count()
    assert size_label(found) == gguf.size_label(*writer.get_total_parameter_count())


# ---------------------------------------------------------------------- cards


@pytest.mark.parametrize(
    ("readme", "want"),
    [
        (None, {}),
        (b"", {}),
        (b"# Title\n", {}),
        (b"--- \nlicense: mit\n---\n", {}),
        (b"---\n---\n", {}),
        (b"---\nlicense: mit\n---\n# T\n---\nx: y\n", {"license": "mit"}),
        (b"---\r\nlicense: mit\r\n---\r\n", {"license": "mit"}),
        (b"---\nlanguage:\n- no\n- en\n---\n", {"language": ["no", "en"]}),
        (b"---\na:\n\t- b\n---\n", {"a": ["b"]}),
        (b"---\nlicense: mit\n", {"license": "mit"}),
        (b"---\n1: x\n---\n", {"1": "x"}),
    ],
)
def test_front_matter(readme, want) -> None:
    assert read_card(readme) == (want, None)


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.costly
@pytest.mark.parametrize(
    "front",
    [
        "a: [",
        "a: !!python/object/apply:os.system [true]",
        "- a\n- b",
        "a: " + "1" * 5000,
        "a: 2020-99-99",
        "[" * 50_000,
        "x" * (MODEL_CARD + 1),
        "a: *b",
    ],
)
def test_a_card_that_cannot_be_read_is_a_note_and_nothing_else(front: str) -> None:
    card, note = read_card(f"---\n{front}\n---\n".encode())
    assert card == {}
    assert note


def test_nested_aliases_are_not_unfolded() -> None:
    """Sixty doublings: 2^60 words, if anyone wrote them out."""
    card, note = read_card(f"---\n{BOMB}name: *a59\ntags: *a59\nbase_model: *a59\n---\n".encode())
    assert note is None
    out = general_to_gguf(LLAMA, directory="x", config={}, shapes={}, card=card)
    assert scalar(card["name"]) is None
    assert len(out) < 10


def test_a_card_of_strange_values_is_text_or_left_out() -> None:
    card = {
        "name": ["a"],
        "version": 1.5,
        "license": ["mit", "other"],
        "tags": [2024, None, ["x"]],
        "base_model": [{"name": 3}, 5],
        "datasets": None,
        "author": "",
    }
    out = {k: kv.value for k, kv in general_to_gguf(LLAMA, directory="m-1B", config={}, shapes={}, card=card).items()}
    assert out == {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "M 1B",
        "general.version": "1.5",
        "general.basename": "m",
        "general.size_label": "1B",
        "general.license": "mit,other",
        "general.base_model.count": 2,
        "general.base_model.0.name": "3",
        "general.dataset.count": 0,
        "general.tags": ["2024"],
    }


@pytest.mark.costly
@given(
    st.dictionaries(
        st.sampled_from(
            ["name", "author", "version", "license", "license.name", "source.url", "finetune", "description"]
        ),
        st.text(min_size=1),
        min_size=1,
    ),
    st.lists(st.text(max_size=5), max_size=3),
)
def test_a_card_that_we_write_says_the_same_again(said: dict[str, str], tags: list[str]) -> None:
    metadata = {f"general.{key}": value for key, value in said.items()} | ({"general.tags": tags} if tags else {})
    card, note = read_card(write_card(metadata))
    assert note is None
    out = {k: kv.value for k, kv in general_to_gguf(LLAMA, directory="x", config={}, shapes={}, card=card).items()}
    assert all(out[key] == value for key, value in metadata.items())


def test_nothing_said_writes_no_card() -> None:
    assert write_card({"general.architecture": "llama"}) is None


# A model card that is written again keeps texts as texts, whatever YAML takes them for.


#: What people write, and what the Hub reads there.
WRITTEN: dict[str, Any] = {
    "language: no": "no",
    "language:\n- no\n- en\n- on": ["no", "en", "on"],
    "tags: [2024, 1.5, yes, gguf, 0x10, 12:30, 2024-01-01]": [
        "2024", "1.5", "yes", "gguf", "0x10", "12:30", "2024-01-01"
    ],
    "version: 1.10": "1.10",
    "license: off": "off",
    "model_name: 3": "3",
    "datasets: [1_000]": ["1_000"],
    "license: null": None,
    "license:": None,
}  # fmt: skip


@pytest.mark.parametrize("line", WRITTEN)
def test_a_text_stays_as_it_was_written(line: str) -> None:
    found, trouble = read_card_as_written(f"---\n{line}\n---\n# x".encode())
    assert trouble is None
    (key,) = found
    assert found[key] == WRITTEN[line]
    assert yaml.safe_load(front_matter(found).strip("-\n")) == {key: WRITTEN[line]}
    assert read_card(front_matter(found).encode())[0] == found


@pytest.mark.parametrize(
    "text",
    ["inference: false", "co2_eq_emissions: 1.5", "model-index: [{name: a, results: [1, null]}]", "date: 2024-01-01",
     "gated: null", "a: {b: yes}"],
)  # fmt: skip
def test_other_values_are_written_whatever_they_are(text: str) -> None:
    found, _ = read_card_as_written(f"---\n{text}\n---\n".encode())
    back = yaml.safe_load(front_matter(found).strip("-\n"))
    assert back == found or "2024" in text
