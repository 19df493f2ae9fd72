"""`wb merge` of models with different tokens: the rows of their embeddings meet by token, as in mergekit."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.conversion.merging_cases import TOKEN_RECIPES, TOKENS, write_models, write_models_with_tokens
from tests.conversion.record_templates import rendered
from tests.llama import make_folder
from transformers import AutoTokenizer, LlamaForCausalLM

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.conversion.merging.tokenizer_files import TEMPLATES

GOLDEN = Path(__file__).parent / "golden" / "merging_tokens.npz"
MATRICES = {"embedding": "model.embed_tokens.weight", "head": "lm_head.weight"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models_with_tokens(tmp_path_factory.mktemp("tokens") / "models")


@pytest.fixture(autouse=True)
def here(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)


def rows_by_token(folder: Path, vocab: Mapping[str, int]) -> dict[str, dict[str, np.ndarray]]:
    values = load_file(folder / "model.safetensors")
    return {key: {token: values[name][row] for token, row in vocab.items()} for key, name in MATRICES.items()}


def convicts(recipe: Mapping[str, Any], name: str, out: Path) -> str | None:
    """The first token whose rows differ from mergekit's."""
    wb.merge(recipe, f"{out}/", dtype="f32")
    vocab = AutoTokenizer.from_pretrained(out).get_vocab()
    golden = np.load(GOLDEN)
    tokens = list(map(str, golden[f"{name}/tokens"]))
    assert set(vocab) == set(tokens)
    for key, rows in rows_by_token(out, vocab).items():
        for row, token in enumerate(tokens):
            if not np.allclose(rows[token], golden[f"{name}/{key}"][row], atol=1e-6):
                return f"{key}: {token}"
    return None


@pytest.mark.parametrize("name", TOKEN_RECIPES)
def test_embeddings_are_mergekits(name: str, tmp_path: Path) -> None:
    assert convicts(TOKEN_RECIPES[name], name, tmp_path / "out") is None
    assert np.load(GOLDEN).files == [f"{name}/{part}" for name in TOKEN_RECIPES for part in ("tokens", *MATRICES)]


def test_rows_that_fill_up_are_the_mean(tmp_path: Path) -> None:
    name = "a model, padded"
    wb.merge(TOKEN_RECIPES[name], f"{tmp_path / 'out'}/", dtype="f32")
    values, golden = load_file(tmp_path / "out" / "model.safetensors"), np.load(GOLDEN)
    for key, tensor in MATRICES.items():
        np.testing.assert_allclose(values[tensor][10:], golden[f"{name}/{key}"][10:], atol=1e-6)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 16


@pytest.mark.costly
def test_each_source_of_a_token_matters(tmp_path: Path) -> None:
    """A seeded fault: without a token's entry, or with another one, its rows differ."""
    name = "tokens with sources"
    for number, token in enumerate(TOKEN_RECIPES[name]["tokenizer"]["tokens"]):
        recipe: Any = copy.deepcopy(dict(TOKEN_RECIPES[name]))
        entry = recipe["tokenizer"]["tokens"][token]
        entry["source"] = "base" if token in TOKENS["base"][0] else "one"
        entry["source"] = {"kind": "model_token", "model": "two", "token": "c"} if token == "<new>" else entry["source"]
        assert convicts(recipe, name, tmp_path / f"{number}") == f"embedding: {token}"


@pytest.mark.parametrize("name", TOKEN_RECIPES)
def test_the_result_loads_and_knows_its_tokens(name: str, tmp_path: Path) -> None:
    """Rows, config and tokenizer agree; special tokens stay special; a GGUF is the folder converted."""
    recipe = TOKEN_RECIPES[name]
    wb.merge(recipe, f"{tmp_path / 'out'}/", dtype="f32")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0] >= len(tokenizer)
    for _, added, _ in TOKENS.values():
        for token, special in added:
            if token in tokenizer.get_vocab():
                (row,) = tokenizer(token, add_special_tokens=False).input_ids
                assert tokenizer.convert_ids_to_tokens(row) == token
                assert (tokenizer.decode(row, skip_special_tokens=True) == "") is special
    wb.convert(tmp_path / "out", tmp_path / "a.gguf", dtype="f32", pre="gpt-2")
    wb.merge(recipe, tmp_path / "b.gguf", dtype="f32", pre="gpt-2")
    with wb.open(tmp_path / "a.gguf") as a, wb.open(tmp_path / "b.gguf") as b:
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            assert list(a.metadata[key]) == list(b.metadata[key])
        assert all(bytes(a[tensor].raw()) == bytes(b[tensor].raw()) for tensor in a)


def test_equal_tokens_are_copied(models: Path, tmp_path: Path) -> None:
    wb.merge(["base", "base"], f"{tmp_path / 'a'}/", method="linear", tokenizer_source="union")
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (models / "base" / "tokenizer.json").read_bytes()
    expected = load_file(models / "base" / "model.safetensors")
    for name, values in load_file(tmp_path / "a" / "model.safetensors").items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_one_model_with_another_ones_tokens(tmp_path: Path) -> None:
    """passthrough: the layers of one model, unchanged, with the tokens of two."""
    recipe = {"merge_method": "passthrough", "models": [{"model": "one"}], "tokenizer_source": "union"}
    wb.merge(recipe, f"{tmp_path / 'out'}/")
    expected = load_file("one/model.safetensors")
    for name, values in load_file(tmp_path / "out" / "model.safetensors").items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


# ------------------------------------------------------------------------------------------------ chat templates


def template_of(folder: Path) -> str:
    return str(AutoTokenizer.from_pretrained(folder).chat_template)


@pytest.mark.parametrize("stored", ["tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize(("choice", "expected"), [("auto", "{{ 'o' }}"), ("{{ bos_token }}", "{{ bos_token }}")])
def test_chat_templates(stored: str, choice: str, expected: str, tmp_path: Path) -> None:
    write_models_with_tokens(tmp_path)
    for name in TOKENS:
        settings = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        settings["chat_template"] = "{{ 'o' }}" if name != "base" else "{{ 'b' }}"
        if stored == "chat_template.jinja":
            (tmp_path / name / stored).write_text(settings.pop("chat_template"))
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(settings))
    models = [{"model": str(tmp_path / name), "parameters": {"weight": 1}} for name in ("base", "one", "two")]
    recipe = {"merge_method": "linear", "models": models, "tokenizer_source": "base"}
    wb.merge(recipe, f"{tmp_path / 'same'}/")
    assert template_of(tmp_path / "same") == "{{ 'b' }}"
    wb.merge({**recipe, "chat_template": choice}, f"{tmp_path / 'out'}/")
    assert template_of(tmp_path / "out") == expected
    wb.merge({**recipe, "chat_template": choice}, tmp_path / "out.gguf", pre="gpt-2")
    with wb.open(tmp_path / "out.gguf") as model:
        assert model.metadata["tokenizer.chat_template"] == expected


# ------------------------------------------------------------------------------------------------ refused

_RECIPE: Mapping[str, Any] = TOKEN_RECIPES["union"]
#: What is wrong -> (keys of the recipe, words of the message).
BAD: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "an unknown model": ({"tokenizer_source": "three"}, "isn't among the merged models"),
    "both keys": ({"tokenizer": {"source": "base"}}, "exclude each other"),
    "an unknown key": ({"tokenizer_source": None, "tokenizer": {"from": "base"}}, "'from'"),
    "a token without a source": ({"tokenizer_source": None, "tokenizer": {"tokens": {"a": {"force": True}}}}, "source"),
    "a force of text": (
        {"tokenizer_source": None, "tokenizer": {"tokens": {"a": {"source": "one", "force": "yes"}}}}, "force",
    ),
    "a token of no model": (
        {"tokenizer_source": None, "tokenizer": {"tokens": {"a": {"source": "three"}}}}, "isn't among",
    ),
    "a token that the model lacks": (
        {"tokenizer_source": None, "tokenizer": {"tokens": {"d": {"source": "base"}}}}, "base has no token 'd'",
    ),
    "an id outside": (
        {"tokenizer_source": None, "tokenizer": {
            "tokens": {"d": {"source": {"kind": "model_token", "model": "one", "token_id": 99}}}}},
        "no token 99",
    ),
    "a token and an id": (
        {"tokenizer_source": None, "tokenizer": {
            "tokens": {"d": {"source": {"kind": "model_token", "model": "one", "token_id": 1, "token": "a"}}}}},
        "either",
    ),
    "a multiple of none": ({"tokenizer_source": None, "tokenizer": {"pad_to_multiple_of": 0}}, "pad_to_multiple_of"),
    "a template's name": ({"chat_template": "chatmt"}, "no template is called 'chatmt'"),
    "a template that puts blanks between turns": ({"chat_template": "exaone"}, "no template is called 'exaone'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_tokenizers(name: str, tmp_path: Path) -> None:
    changes, words = BAD[name]
    with pytest.raises(UsageError, match=words):
        wb.merge({**_RECIPE, **changes}, f"{tmp_path / 'out'}/")
    assert not (tmp_path / "out").exists()


def test_models_whose_tokens_cant_be_mapped(models: Path, tmp_path: Path) -> None:
    write_models(tmp_path / "bare")
    with pytest.raises(UsageError, match="has no tokenizer that can be read"):
        wb.plan_merge(["base", tmp_path / "bare" / "one"], tmp_path / "o/", method="linear", tokenizer_source="union")
    wb.convert("base", tmp_path / "base.gguf", pre="gpt-2")
    for source, words in (("union", "another tokenizer"), ("one", "another tokenizer")):
        with pytest.raises(UsageError, match=words):
            wb.plan_merge(
                [tmp_path / "base.gguf", "one"], tmp_path / "o.gguf", method="linear", tokenizer_source=source
            )
    write_models_with_tokens(tmp_path / "wordpiece")
    path = tmp_path / "wordpiece" / "one" / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"] = {"type": "WordPiece", "unk_token": "t", "vocab": data["model"]["vocab"]}
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"of different kinds|no tokenizer that can be read"):
        wb.plan_merge(["base", path.parent], tmp_path / "o/", method="linear", tokenizer_source="union")


def test_tokens_of_a_gguf_meet_those_of_a_folder(models: Path, tmp_path: Path) -> None:
    """A GGUF among the models adds its tokens like the folder that it was made of."""
    wb.convert("one", tmp_path / "one.gguf", dtype="f32", pre="gpt-2")
    for name, path in (("folder", "one"), ("gguf", tmp_path / "one.gguf")):
        out = f"{tmp_path / name}/"
        wb.merge(["base", path], out, method="linear", tokenizer_source="union", dtype="f32")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("folder", "gguf"))
    for name, values in a.items():
        np.testing.assert_array_equal(values, b[name], err_msg=name)


# ------------------------------------------------------------------------------------------ named templates


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_named_template_renders_as_mergekit_s(name: str) -> None:
    recorded = json.loads((Path(__file__).parent / "golden" / "merging_templates.json").read_text())
    assert rendered(TEMPLATES[name]) == recorded[name]
    assert len({text for text in recorded[name].values() if text}) >= 3


def test_a_named_template_is_written(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", words=True)
    recipe = {"merge_method": "linear", "models": [{"model": str(tmp_path / "a"), "parameters": {"weight": 1}}]}
    wb.merge({**recipe, "chat_template": "chatml"}, f"{tmp_path / 'out'}/")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATES["chatml"]
