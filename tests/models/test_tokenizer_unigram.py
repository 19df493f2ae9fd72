"""Unigram: the SentencePiece library, llama.cpp and the tokenizers library split a text alike, whichever file of a
folder says how; each switch and each rule is seen; what is wrong is told with its place.
"""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct
from tests.models._tokenizers import NASTY, folder_files, llamacpp_ids, reading, tokenizers_ids, trained
from tests.oracles import vocabularies

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.tables.schema import TokenizerEntry
from weighbridge.models.tokenizer import TokenType, Vocab, from_hf, losses, to_gguf, to_hf
from weighbridge.models.tokenizer.formats import sentencepiece
from weighbridge.models.tokenizer.hf import folder as tokenizer_folder
from weighbridge.models.tokenizer.hf import unigram

TEXTS = (*NASTY, "e\u0301 \ufb01 \u2167 \uff21\uff22", "a" * 200, "ab " * 60, "tab\there  and\nthere \u00a0 x ")
OWN = {"t5": "spiece.model", "xlmr": "sentencepiece.bpe.model"}
BOTH = tuple(OWN)


@cache
def model(**options: Any) -> bytes:
    """A small model with T5's ids."""
    import sentencepiece as library

    out = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "unigram", "vocab_size": 420, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1,
        "num_threads": 1, "minloglevel": 3, **{k: list(v) if isinstance(v, tuple) else v for k, v in options.items()},
    }  # fmt: skip
    lines = iter(vocabularies.text()[:400])
    library.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=out, **settings)
    return out.getvalue()


def spoken(data: bytes, texts: tuple[str, ...] = TEXTS) -> list[list[int]]:
    import sentencepiece as library

    judge = library.SentencePieceProcessor(model_proto=data)
    return [judge.encode(t) for t in texts]


def alone(data: bytes) -> Vocab:
    return from_hf(reading({"spiece.model": data}))


def shifted(ids: list[list[int]]) -> list[list[int]]:
    """SentencePiece's ids as fairseq counts them."""
    return [[3 if i == 0 else i + 1 for i in row] for row in ids]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("left", ["all", "json", "model"])
def test_every_file_gives_the_pieces_of_sentencepiece(kind: str, left: str) -> None:
    files = dict(folder_files(kind))
    if left != "all":
        files.pop(OWN[kind] if left == "json" else "tokenizer.json")
    vocab = from_hf(reading(files))
    expected = spoken(vocabularies.unigram_model(kind))
    expected = shifted(expected) if kind == "xlmr" else expected
    assert llamacpp_ids(vocab, TEXTS) == expected
    written = to_hf(vocab)
    assert tokenizers_ids(written, TEXTS) == expected
    again = spoken(written[OWN[kind]])
    assert (shifted(again) if kind == "xlmr" else again) == expected


@pytest.mark.parametrize("kind", BOTH)
def test_the_files_of_a_folder_agree(kind: str) -> None:
    """Each source alone gives what both together give; scores within the decimal digits of tokenizer.json."""
    files = folder_files(kind)
    whole = from_hf(reading(files))
    for missing in ("tokenizer.json", OWN[kind]):
        part = from_hf(reading({n: d for n, d in files.items() if n != missing}))
        for name in ("tokens", "scores", "types", "charsmap", "add_space_prefix", "remove_extra_whitespaces"):
            assert getattr(part, name) == getattr(whole, name), name


# Switches of a model: each must reach llama.cpp and tokenizer.json, and each is seen when it is lost.
MODELS: dict[str, dict[str, Any]] = {
    "no prefix": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "spaces kept": {"remove_extra_whitespaces": False},
    "nfkc and case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "as it is": {"normalization_rule_name": "identity"},
    "user-defined": {"user_defined_symbols": ("<TOOL>", "two words")},
}
OWN_TEXTS = (*TEXTS, "a <TOOL> b", "two words, two  words")


def heard(*judges: str) -> tuple[str, ...]:
    """The texts without what a judge takes otherwise. llama.cpp puts no space before a text of nothing but spaces; the
    tokenizers library normalizes CR and LF together."""
    texts = tuple(t for t in OWN_TEXTS if t and not t.isspace())
    return tuple(t for t in texts if "\r\n" not in t) if "tokenizers" in judges else texts


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODELS)
def test_a_models_switches_are_kept(name: str) -> None:
    data = model(**MODELS[name])
    vocab, files = alone(data), to_hf(alone(data))
    assert llamacpp_ids(vocab, heard()) == spoken(data, heard()) == spoken(files["spiece.model"], heard())
    assert tokenizers_ids(files, heard("tokenizers")) == spoken(data, heard("tokenizers"))


@pytest.mark.oracle
def test_added_tokens_are_cut_out_in_both() -> None:
    """Other than SentencePiece's user-defined pieces, and before anything is normalized."""
    files = changed("t5", lambda t: t["added_tokens"].append(ADDED))
    vocab = from_hf(reading(files))
    assert vocab.types[604] == TokenType.USER_DEFINED
    sample = ["a <TOOL> b", "x<TOOL>y", " <TOOL>  <TOOL> "]
    assert llamacpp_ids(vocab, sample) == tokenizers_ids(to_hf(vocab), sample)
    assert 604 in llamacpp_ids(vocab, sample)[0]
    again = from_hf(reading(to_hf(vocab)))
    assert list(again.types) == list(vocab.types)


FAULTS: dict[str, tuple[str, Callable[[Vocab], Vocab]]] = {
    "prefix": ("no prefix", lambda v: replace(v, add_space_prefix=True)),
    "spaces": ("spaces kept", lambda v: replace(v, remove_extra_whitespaces=True)),
    "charsmap": ("nfkc and case", lambda v: replace(v, charsmap=None)),
    "scores": ("as it is", lambda v: replace(v, scores=[*v.scores[:3], *v.scores[:2:-1]])),
    "unknown": ("as it is", lambda v: replace(v, special={**v.special, "unk": 5})),
    "user-defined": (
        "user-defined",
        lambda v: replace(v, types=[4 if "TOOL" in w else k for w, k in zip(v.tokens, v.types, strict=True)]),
    ),
}  # fmt: skip


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_switch_is_seen(fault: str) -> None:
    """By llama.cpp."""
    name, change = FAULTS[fault]
    data, right = model(**MODELS[name]), alone(model(**MODELS[name]))
    assert llamacpp_ids(right, heard()) == spoken(data, heard()) != llamacpp_ids(change(right), heard())


@pytest.mark.oracle
def test_a_user_defined_piece_beyond_ascii_would_tear_characters_apart() -> None:
    """Why such an added token is a normal one: llama.cpp compares it byte by byte, and a part of it is enough."""
    data = model(user_defined_symbols=("\u2581<extra_id_0>",))
    vocab, sample = alone(data), ("it \u2014 and \u201cso\u201d \u2026",)
    index = list(vocab.tokens).index("\u2581<extra_id_0>")
    assert (vocab.types[index], llamacpp_ids(vocab, sample)) == (TokenType.NORMAL, spoken(data, sample))
    types = [TokenType.USER_DEFINED if i == index else t for i, t in enumerate(vocab.types)]
    assert llamacpp_ids(replace(vocab, types=types), sample) != spoken(data, sample)


@pytest.mark.oracle
def test_byte_fallback_is_told_as_lost() -> None:
    """llama.cpp's Unigram has none; the folder keeps it."""
    data = model(byte_fallback=True, vocab_size=700)
    vocab = alone(data)
    assert any("byte fallback" in line for line in vocab.losses)
    texts = ("plain words", "漢字")
    found, expected = llamacpp_ids(vocab, texts), spoken(data, texts)
    assert found[0] == expected[0]
    assert 2 in found[1]
    assert tokenizers_ids(to_hf(vocab), texts) == expected
    again = from_hf(reading(to_hf(vocab)))
    assert (list(again.types), list(again.tokens)) == (list(vocab.types), list(vocab.tokens))


@pytest.mark.oracle
def test_merged_spaces_without_a_prefix_are_told_as_lost() -> None:
    data = model(add_dummy_prefix=False)
    vocab = alone(data)
    assert any("no space before a text" in line for line in vocab.losses)
    assert llamacpp_ids(vocab, ["hello"]) != spoken(data, ("hello",)) == tokenizers_ids(to_hf(vocab), ["hello"])


def test_sentinels_and_mask_have_their_names() -> None:
    """T5's sentinels count down behind the pieces, XLM-R's mask is last, also where no tokenizer.json says so."""
    for kind, missing in (("t5", "tokenizer.json"), ("xlmr", "tokenizer.json")):
        files = {n: d for n, d in folder_files(kind).items() if n != missing}
        config = json.loads(files["tokenizer_config.json"])
        vocab = from_hf(reading(files))
        ends = {"t5": [f"<extra_id_{i}>" for i in (3, 2, 1, 0)], "xlmr": ["<mask>"]}[kind]
        assert list(vocab.tokens[-len(ends) :]) == ends
        del config["tokenizer_class"]
        architecture = {"t5": "T5ForConditionalGeneration", "xlmr": "XLMRobertaForSequenceClassification"}[kind]
        bare = {OWN[kind]: files[OWN[kind]], "config.json": {"architectures": [architecture]}}
        ids = {t: i for i, t in enumerate(from_hf(reading(bare)).tokens)}
        assert ids["<extra_id_0>" if kind == "t5" else "<mask>"] == {"t5": 699, "xlmr": 601}[kind]


def test_what_xlmr_puts_around_a_text_needs_no_tokenizer_json() -> None:
    files = folder_files("xlmr")
    bare = from_hf(reading({n: d for n, d in files.items() if n != "tokenizer.json"}))
    whole = from_hf(reading(files))
    assert dict(bare.special) == dict(whole.special)
    assert bare.add == whole.add == {"bos": True, "eos": True, "sep": True}
    assert llamacpp_ids(bare, ["hello"], add_special=True)[0][::-1][0] == 2


def test_a_pair_of_texts_comes_back() -> None:
    """XLM-R's pair has two separators, T5's one: which is how a conversion back tells them apart."""
    for kind, pair in (("xlmr", ["<s>", "A", "</s>", "</s>", "B", "</s>"]), ("t5", ["A", "</s>", "B", "</s>"])):
        made = json.loads(to_hf(trained(kind))["tokenizer.json"])["post_processor"]["pair"]
        assert [(p.get("SpecialToken") or p["Sequence"])["id"] for p in made] == pair
        assert from_hf(reading(to_hf(trained(kind)))).add == trained(kind).add


def test_unused_pieces_and_padding_survive() -> None:
    """Types that a tokenizer.json doesn't have are in the SentencePiece model beside it."""
    vocab = trained("t5")
    types = [TokenType.UNUSED if i in (7, 9) else t for i, t in enumerate(vocab.types)]
    tokens = [*vocab.tokens, "[PAD604]", "[PAD605]", "<tool>"]
    scores = [*vocab.scores, -10000.0, -10000.0, 0.0]
    kinds = [*types, TokenType.UNUSED, TokenType.UNUSED, TokenType.USER_DEFINED]
    vocab = replace(vocab, tokens=tokens, types=[int(k) for k in kinds], scores=scores)
    again = from_hf(reading(to_hf(vocab)))
    assert (again.tokens, again.types, again.scores) == (tokens, vocab.types, scores)


def test_the_keys_of_token_types_are_those_of_the_class() -> None:
    config = {"architectures": ["XLMRobertaModel"], "type_vocab_size": 3}
    assert from_hf(reading({**folder_files("xlmr"), "config.json": config})).token_type_count == 3
    assert from_hf(reading({**folder_files("t5")})).token_type_count is None


def changed(kind: str, change: Callable[[Any], object]) -> dict[str, Any]:
    """tokenizer.json alone, with a change."""
    tokenizer = json.loads(folder_files(kind)["tokenizer.json"])
    change(tokenizer)
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": folder_files(kind)["tokenizer_config.json"]}


def normalizer(item: Any) -> Callable[[Any], object]:
    return lambda t: t.update(normalizer=item)


ADDED = {
    "id": 604, "content": "<TOOL>", "special": False, "normalized": False, "lstrip": False, "rstrip": False,
    "single_word": False,
}  # fmt: skip
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
# The normalization of published files: what it switches on (prefix, merge).
SPELLINGS: dict[str, tuple[Any, Any, tuple[bool, bool]]] = {
    "xlm-roberta-base": (
        None, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}, (True, True),
    ),
    "before 0.15": (
        None, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "str_rep": "▁"}, (True, False),
    ),
    "no prefix": (
        None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}, (False, False),
    ),
    "converted": (
        {"type": "Sequence", "normalizers": [
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        ]},
        METASPACE, (True, True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_published_spellings_are_understood(name: str) -> None:
    before, cut, (prefix, merge) = SPELLINGS[name]
    vocab = from_hf(reading(changed("t5", lambda t: t.update(normalizer=before, pre_tokenizer=cut))))
    assert (vocab.add_space_prefix, vocab.remove_extra_whitespaces, vocab.charsmap) == (prefix, merge, None)
    assert any("tabs and newlines" in line for line in vocab.losses) == (name == "xlm-roberta-base")


UNKNOWN_STEPS: dict[str, Callable[[Any], object]] = {
    "lowercase": normalizer({"type": "Lowercase"}),
    "quotes": normalizer({"type": "Replace", "pattern": {"String": "``"}, "content": '"'}),
    "nfkd": normalizer({"type": "Sequence", "normalizers": [{"type": "NFKD"}]}),
    "digits": lambda t: t.update(pre_tokenizer={"type": "Digits", "individual_digits": True}),
}


@pytest.mark.parametrize("name", UNKNOWN_STEPS)
def test_a_step_that_llamacpp_hasnt_is_named(name: str) -> None:
    files = changed("t5", UNKNOWN_STEPS[name])
    with pytest.raises(UnsupportedError, match=r"doesn't have.*\n.*pre=.default."):
        from_hf(reading(files))
    assert any("llama.cpp has none" in line for line in from_hf(reading(files), pre="default").losses)


def test_pieces_of_another_class_have_other_ids() -> None:
    """NLLB, mBART and CamemBERT use the file name too, and their ids are another sum."""
    config = {"tokenizer_class": "CamembertTokenizer"}
    data = folder_files("xlmr")["sentencepiece.bpe.model"]
    with pytest.raises(UnsupportedError, match="Camembert"):
        from_hf(reading({"sentencepiece.bpe.model": data, "tokenizer_config.json": config}))


def vocab_row(index: int, row: Any) -> Callable[[Any], object]:
    return lambda t: t["model"]["vocab"].__setitem__(index, row)


def charsmap(data: bytes) -> Callable[[Any], object]:
    return normalizer({"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode()})


SPM = b"spm"
# name -> (files, what the message says)
BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no list": (lambda: changed("t5", lambda t: t["model"].update(vocab={"a": 0})), r"tokenizer\.json, model\.vocab"),
    "empty list": (lambda: changed("t5", lambda t: t["model"].update(vocab=[])), r"tokenizer\.json, model\.vocab"),
    "token twice": (lambda: changed("t5", vocab_row(9, ["▁", -1.0])), r"model\.vocab.*twice, as id 3 and 9"),
    "score too large": (lambda: changed("t5", vocab_row(9, ["q", 1e300])), r"id 9 doesn't fit 32 bits"),
    "score as text": (lambda: changed("t5", vocab_row(9, ["q", "1"])), r"\$\.model\.vocab"),
    "unknown id outside": (
        lambda: changed("t5", lambda t: t["model"].update(unk_id=9999)), r"unk_id.*expected < 604, found 9999",
    ),
    "charsmap of no base64": (
        lambda: changed("t5", normalizer({"type": "Precompiled", "precompiled_charsmap": "?"})), "base64",
    ),
    "charsmap of three bytes": (lambda: changed("t5", charsmap(b"abc")), r"normalizer.*truncated"),
    "charsmap that ends early": (lambda: changed("t5", charsmap(b"\x08\0\0\0" + b"x" * 8)), r"expected > 12 bytes"),
    "model without a trie's end": (
        lambda: {"spiece.model": sentencepiece.dump(
            sentencepiece.SentencePieceModel(["<unk>"], [0.0], [2], model_type=1, charsmap=b"\xff\xff\xff\xff")
        )},
        r"spiece\.model, precompiled_charsmap",
    ),
    "model cut": (lambda: {"spiece.model": folder_files("t5")["spiece.model"][:-9]}, r"^spiece\.model.*ends"),
    "more tokens than the model": (
        lambda: {**folder_files("t5"), "config.json": {"vocab_size": 603}}, r"vocab_size.*expected >= 604, found 603",
    ),
    "extra_ids as text": (
        lambda: {
            "spiece.model": folder_files("t5")["spiece.model"],
            "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": "4"},
        },
        r"tokenizer_config\.json, extra_ids",
    ),
    "extra_ids of 10^9": (
        lambda: {
            "spiece.model": folder_files("t5")["spiece.model"],
            "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**9},
        },
        "extra_ids",
    ),
    "a piece named as fairseq's padding": (
        lambda: {
            "sentencepiece.bpe.model": sentencepiece.dump(
                sentencepiece.SentencePieceModel(
                    ["<unk>", "<s>", "</s>", "<pad>"], [0.0] * 4, [2, 3, 3, 1], model_type=1
                )
            ),
            "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"},
        },
        "fairseq",
    ),
    "added id of 10^9": (
        lambda: {"spiece.model": folder_files("t5")["spiece.model"], "added_tokens.json": {"<x>": 10**9}},
        r"added_tokens\.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "why"), BAD.values(), ids=BAD)
def test_a_bad_file_is_a_format_error(files: Callable[[], dict[str, Any]], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        from_hf(reading(files()))


def test_no_model_is_written_that_sentencepiece_would_refuse() -> None:
    """Without an unknown piece there is tokenizer.json alone."""
    vocab = trained("t5")
    files = to_hf(replace(vocab, types=[TokenType.NORMAL if t == TokenType.UNKNOWN else t for t in vocab.types]))
    assert "spiece.model" not in files
    assert json.loads(files["tokenizer.json"])["model"]["unk_id"] == 2


def bare(kind: str, architecture: str) -> dict[str, Any]:
    """A SentencePiece model and the architecture, which tells the class."""
    return {OWN[kind]: folder_files(kind)[OWN[kind]], "config.json": {"architectures": [architecture]}}


def with_class(name: str, **changes: Any) -> tokenizer_folder.TokenizerTables:
    """The tables with another tokenizer class."""
    known = tokenizer_folder.tables()
    return replace_struct(known, classes={**known.classes, name: replace_struct(known.classes[name], **changes)})


RULES: dict[str, tuple[str, Any, dict[str, Any] | None]] = {
    "fairseq's first tokens": ("FAIRSEQ", (*unigram.FAIRSEQ[1:], unigram.FAIRSEQ[0]), None),
    "which pieces they stand for": ("ALIGNED", ["<unk>", "</s>", "<s>"], None),
    "the file of fairseq's ids": ("FAIRSEQ_FILE", "other.model", None),
    "count of sentinels": ("tables", with_class("T5Tokenizer", extra_ids=99), {"t5": "T5ForConditionalGeneration"}),
    "a class with sentinels": ("tables", with_class("T5Tokenizer", extra_ids=0), {"t5": "T5ForConditionalGeneration"}),
    "a class with fairseq's ids": ("tables", with_class("XLMRobertaTokenizer", fairseq_ids=False), None),
    "classes with token types": ("rules", TokenizerEntry(), None),
    "llama.cpp's unknown token": ("UNKNOWN_ID", 3, {"xlmr": "CamembertModel"}),
}  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize("rule", RULES)
def test_a_fault_in_a_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value, which = RULES[rule]
    kind, architecture = next(iter((which or {"xlmr": "XLMRobertaModel"}).items()))
    files = bare(kind, architecture)
    if architecture == "CamembertModel":  # ids from tokenizer.json, and nothing that names the unknown token
        tokenizer = json.loads(folder_files(kind)["tokenizer.json"])
        files = {"tokenizer.json": tokenizer, "config.json": {"bos_token_id": 0, "eos_token_id": 2}}
    right = to_gguf(from_hf(reading(files)))
    if name == "tables":
        monkeypatch.setattr(tokenizer_folder, "tables", lambda: value)
    elif name == "rules":
        monkeypatch.setattr(tokenizer_folder, "rules_of_class", lambda name: value)
    else:
        monkeypatch.setattr(unigram, name, value)
    try:
        assert to_gguf(from_hf(reading(files))) != right
    except (FormatError, UnsupportedError):
        return


def test_losses_of_a_plain_model_are_none() -> None:
    assert losses(trained("t5")) == losses(trained("xlmr")) == ()
    assert len(unigram.FAIRSEQ) == 4
    assert to_gguf(trained("t5"))["tokenizer.ggml.precompiled_charsmap"].type == "arr[u8]"
