"""The rules for special tokens, held against the reference's own class (`SpecialVocab` of gguf-py) on random files, and
each role and flag seen in the GGUF and by llama.cpp.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.models._tokenizers import llamacpp_ids, reading, tokenizers_ids, trained, uncut
from tests.oracles import tree
from tests.programs import load_program

from weighbridge.base.errors import FormatError
from weighbridge.models.tokenizer import ChatTemplate, Vocab, from_gguf, to_gguf, to_hf
from weighbridge.models.tokenizer import gguf as gguf_form
from weighbridge.models.tokenizer.hf.folder import TokenizerFolder
from weighbridge.models.tokenizer.hf.special import normalizer_flags, special, templates


@cache
def reference() -> Any:
    """vocab.py of the tree's gguf-py, under another name: the installed package is older."""
    path = tree.require() / "gguf-py" / "gguf" / "vocab.py"
    return load_program(path, "gguf.reference_vocab")


TEXTS = ("<s>", "</s>", "[CLS]", "[SEP]", "<x>")
token = st.sampled_from(TEXTS)
entry = st.one_of(token, token.map(lambda t: {"content": t, "lstrip": False}), st.none(), st.just(5))
piece = st.one_of(
    token.map(lambda t: {"SpecialToken": {"id": t, "type_id": 0}}),
    st.sampled_from("AB").map(lambda s: {"Sequence": {"id": s, "type_id": 0}}),
)
template = st.fixed_dictionaries(
    {"type": st.just("TemplateProcessing"), "single": st.lists(piece, max_size=4), "pair": st.lists(piece, max_size=6)}
)
usual = st.tuples(st.lists(token, max_size=2), st.lists(token, max_size=2), st.lists(token, max_size=2)).map(
    lambda t: {
        "type": "TemplateProcessing",
        "single": [sp(x) for x in t[0]] + [seq("A")] + [sp(x) for x in t[2]],
        "pair": [sp(x) for x in t[0]] + [seq("A")] + [sp(x) for x in t[1]] + [seq("B")] + [sp(x) for x in t[2]],
    }
)
roberta = st.fixed_dictionaries(
    {"type": st.just("RobertaProcessing")}, optional={k: token.map(lambda t: [t, 1]) for k in ("cls", "sep")}
)
one = st.one_of(usual, template, roberta, st.just({"type": "ByteLevel"}), st.just({"type": "BertProcessing"}))
many = st.lists(one, min_size=1, max_size=3).map(lambda p: {"type": "Sequence", "processors": p})
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
settings_file = st.dictionaries(
    st.sampled_from([f"{r}_token" for r in ROLES] + ["eot_token"]), entry, max_size=6
).flatmap(
    lambda d: st.dictionaries(
        st.sampled_from(["add_bos_token", "add_eos_token", "add_sep_token"]), st.one_of(st.booleans(), st.none())
    ).map(lambda flags: {**d, **flags})
)
ids = st.one_of(st.none(), st.integers(0, 12), st.just([1, 2]))
config_file = st.dictionaries(st.sampled_from([f"{r}_token_id" for r in ROLES]), ids, max_size=5)


def sp(text: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": text, "type_id": 0}}


def seq(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


@pytest.mark.oracle
@examples(400)
@given(
    processor=st.one_of(st.none(), one, many),
    config=st.one_of(st.none(), settings_file),
    model=config_file,
    nested=config_file,
    count=st.sampled_from([None, 4, 100]),
    with_tokenizer=st.booleans(),
)
def test_special_tokens_are_those_of_the_reference(
    processor: Any, config: Any, model: Any, nested: Any, count: int | None, with_tokenizer: bool
) -> None:
    files: dict[str, Any] = {"config.json": {**model, **({"text_config": nested} if nested else {})}}
    if config is not None:
        files["tokenizer_config.json"] = config
    if with_tokenizer:
        added = [{"id": i, "content": t} for i, t in enumerate(TEXTS)] + [{"id": 9, "content": "<s>"}]
        files["tokenizer.json"] = {"model": {"vocab": {}}, "added_tokens": added, "post_processor": processor}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(json.dumps(content))
        expected = reference().SpecialVocab(folder, n_vocab=count)
    found = special(TokenizerFolder(reading(files)), count)
    assert list(found.ids.items()) == list(expected.special_token_ids.items())
    assert list(found.add.items()) == list(expected.add_special_token.items())


normalizer = st.recursive(
    st.one_of(
        st.just({"type": "Lowercase"}),
        st.just({"type": "StripAccents"}),
        st.just({"type": "NFC"}),
        st.fixed_dictionaries(
            {"type": st.just("BertNormalizer")},
            optional={"lowercase": st.booleans(), "strip_accents": st.one_of(st.none(), st.booleans())},
        ),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: {"type": "Sequence", "normalizers": items}),
    max_leaves=6,
)


@pytest.mark.oracle
@examples(150)
@given(normalizer)
def test_normalizer_flags_are_those_of_the_reference(item: Any) -> None:
    expected = reference().SpecialVocab.__new__(reference().SpecialVocab)
    expected.normalizer_lowercase = expected.normalizer_strip_accents = None
    expected._parse_normalizer(item)
    found = normalizer_flags(item)
    assert found.get("lowercase") == expected.normalizer_lowercase
    # A null overwrites in the reference; it means "as lowercase says", like an absent key.
    if expected.normalizer_strip_accents is not None:
        assert found.get("strip_accents") == expected.normalizer_strip_accents


TEMPLATE_FILES: tuple[tuple[str, dict[str, Any], list[tuple[str, str]]], ...] = (
    ("none", {"tokenizer_config.json": {"a": 1}}, []),
    (
        "in the settings",
        {"tokenizer_config.json": {"chat_template": "x"}, "chat_template.jinja": b"y"},
        [("default", "x")],
    ),
    ("null in the settings", {"tokenizer_config.json": {"chat_template": None}, "chat_template.jinja": b"y"}, []),
    ("of its own", {"tokenizer_config.json": {"a": 1}, "chat_template.jinja": "ü{{".encode()}, [("default", "ü{{")]),
    ("no settings", {"chat_template.jinja": b"y"}, []),
    ("json", {"tokenizer_config.json": {"a": 1}, "chat_template.json": {"chat_template": "z"}}, [("default", "z")]),
    (
        "list",
        {"tokenizer_config.json": {"chat_template": [
            {"name": "default", "template": "d"}, {"name": "rag-1", "template": "r"}, {"name": "", "template": "n"}, 3,
        ]}},
        [("rag_1", "r"), ("default", "d")],
    ),
    (
        "additional",
        {"tokenizer_config.json": {"a": 1}, "chat_template.jinja": b"d", "additional_chat_templates/rag.jinja": b"r"},
        [("rag", "r"), ("default", "d")],
    ),
)  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), [c[1:] for c in TEMPLATE_FILES], ids=[c[0] for c in TEMPLATE_FILES])
def test_templates(files: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert [(t.name, t.text) for t in templates(TokenizerFolder(reading(files)))] == expected


def test_templates_survive_both_ways() -> None:
    for names in (("default",), ("tool_use", "default"), ("rag",)):
        vocab = replace(uncut(), templates=tuple(ChatTemplate(n, "{{ " + n + " }}") for n in names))
        read = reading(to_hf(vocab))
        assert templates(TokenizerFolder(read)) == vocab.templates
        plain = {k: kv.value for k, kv in to_gguf(vocab).items()}
        assert from_gguf(plain).templates == vocab.templates


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("kind", ["spm", "spm-json", "bpe", "wordpiece"])
@pytest.mark.parametrize("role", ["bos", "eos", "sep"])
def test_an_add_flag_is_seen_by_llamacpp_and_transformers(kind: str, role: str) -> None:
    """Each flag, set either way: tokenizer.json and llama.cpp put the same tokens around a text."""
    vocab = trained(kind)
    for value in (True, False):
        flagged = replace(vocab, add={**vocab.add, role: value})
        assert to_gguf(flagged)[gguf_form.ADD[role]].value is value
        found = llamacpp_ids(flagged, ["hello"], add_special=True)
        assert tokenizers_ids(to_hf(flagged), ["hello"], add_special=True) == found
    if role in ("bos", "eos") and kind != "wordpiece":  # WordPiece: [CLS] and [SEP] always (llama-vocab.cpp, tokenize)
        off = replace(vocab, add={**vocab.add, role: False})
        assert llamacpp_ids(off, ["hello"], add_special=True) != llamacpp_ids(
            replace(vocab, add={**vocab.add, role: True}), ["hello"], add_special=True
        )


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("role", ["bos", "eos"])
def test_a_special_id_is_seen(role: str) -> None:
    vocab = replace(trained("bpe"), add={"bos": True, "eos": True})
    other = replace(vocab, special={**vocab.special, role: 703})
    found = tokenizers_ids(to_hf(other), ["hello"], add_special=True)
    assert found == llamacpp_ids(other, ["hello"], add_special=True)
    assert found != llamacpp_ids(vocab, ["hello"], add_special=True)


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("value", [True, False, None])
def test_the_space_prefix_is_seen(value: bool | None) -> None:
    for kind in ("spm", "spm-json"):
        vocab = replace(trained(kind), add_space_prefix=value)
        sample = ["hello world", " x"]
        assert tokenizers_ids(to_hf(vocab), sample) == llamacpp_ids(vocab, sample)
    if value is False:
        vocab = trained("spm")
        assert llamacpp_ids(replace(vocab, add_space_prefix=False), ["hello"]) != llamacpp_ids(vocab, ["hello"])


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [True, False, None])
def test_the_normalizer_flags_are_seen(lowercase: bool, strip: bool | None) -> None:
    vocab = replace(trained("wordpiece"), lowercase=lowercase, strip_accents=strip)
    sample = ["Hello Résumé ÀÉ", "the The"]
    assert tokenizers_ids(to_hf(vocab), sample) == llamacpp_ids(vocab, sample)


KEYS = tuple(gguf_form.ROLES.items())


@pytest.mark.mutation
@pytest.mark.parametrize(("role", "key"), KEYS, ids=[r for r, _ in KEYS])
def test_each_special_id_has_its_key(role: str, key: str) -> None:
    """The keys are llama.cpp's (llama-arch.cpp, LLM_KV_TOKENIZER_*)."""
    known = {
        "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask",
        "eot": "eot", "eom": "eom", **{f"fim_{x}": f"fim_{x}" for x in ("pre", "suf", "mid", "pad", "rep", "sep")},
    }  # fmt: skip
    assert key == f"tokenizer.ggml.{known[role]}_token_id"
    plain = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], key: 1}
    vocab: Vocab = from_gguf(plain)
    assert vocab.special == {role: 1}
    assert to_gguf(vocab)[key] == ("u32", 1)


def test_old_names_of_fill_in_the_middle_are_read() -> None:
    plain = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.prefix_token_id": 1}
    assert from_gguf(plain).special == {"fim_pre": 1}


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_an_id_that_no_u32_holds_is_a_format_error(value: int) -> None:
    with pytest.raises(FormatError, match="pad_token_id"):
        special(TokenizerFolder(reading({"config.json": {"pad_token_id": value}})), None)
