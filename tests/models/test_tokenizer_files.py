"""The files themselves: `tokenizer.model` against the SentencePiece library, merges against scores, and what is wrong.

Each bad file is a FormatError that names the place (or an UnsupportedError, where the file may be right), never another
exception, never a large allocation.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples
from tests.models._tokenizers import folder_files, reading
from tests.oracles.vocabularies import text

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import VOCABULARY
from weighbridge.models.tokenizer import TokenType, Vocab, VocabKind, from_gguf, from_hf, to_gguf, to_hf
from weighbridge.models.tokenizer.formats import merges, sentencepiece
from weighbridge.models.tokenizer.formats.sentencepiece import SentencePieceModel, dump, field_bytes, field_int, parse


def model() -> bytes:
    return folder_files("spm")["tokenizer.model"]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("prefix", [True, False])
def test_a_model_is_read_as_the_library_reads_it(kind: str, prefix: bool) -> None:
    import sentencepiece as library

    out = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(text()[:400]), model_writer=out, model_type=kind, vocab_size=420, byte_fallback=True,
        add_dummy_prefix=prefix, user_defined_symbols=["<tool>", "ü"], control_symbols=["<ctl>"], pad_id=3,
        minloglevel=3,
    )  # fmt: skip
    judge = library.SentencePieceProcessor(model_proto=out.getvalue())
    found, ids = parse(out.getvalue()), range(judge.vocab_size())
    assert list(found.pieces) == [judge.id_to_piece(i) for i in ids]
    assert list(found.scores) == [judge.get_score(i) for i in ids]
    kinds = {
        TokenType.UNKNOWN: judge.is_unknown, TokenType.CONTROL: judge.is_control,
        TokenType.UNUSED: judge.is_unused, TokenType.BYTE: judge.is_byte,
    }  # fmt: skip
    for i in ids:
        for value, said in kinds.items():
            assert (found.types[i] == value) == said(i), (i, found.types[i])
    assert found.pieces.index("<tool>") in [i for i in ids if found.types[i] == TokenType.USER_DEFINED]
    assert found.ids == {"unk": judge.unk_id(), "bos": judge.bos_id(), "eos": judge.eos_id(), "pad": judge.pad_id()}
    assert found.model_type == (sentencepiece.BPE if kind == "bpe" else sentencepiece.UNIGRAM)
    assert (found.add_dummy_prefix, found.byte_fallback) == (prefix, True)
    assert found.charsmap  # nmt_nfkc, the default


def test_dump_and_parse_are_inverse() -> None:
    found = parse(model())
    again = parse(dump(found))
    assert again == found


pieces = st.lists(
    st.text(min_size=1, max_size=200).filter(lambda t: t.isprintable()), min_size=1, max_size=8, unique=True
)


@examples(100)
@given(pieces, st.data())
def test_any_model_survives(texts: list[str], data: st.DataObject) -> None:
    """Long pieces too (lengths of two bytes), which take the general path of the reader."""
    types = [
        2,
        *data.draw(st.lists(st.sampled_from([1, 3, 4, 5, 6]), min_size=len(texts) - 1, max_size=len(texts) - 1)),
    ]
    scores = data.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=len(texts), max_size=len(texts)))
    made = SentencePieceModel(
        texts,
        scores,
        types,
        model_type=2,
        charsmap=b"\x01\x02",
        normalizer="x",
        ids={"unk": 0, "bos": -1, "eos": -1, "pad": -1},
    )
    assert parse(dump(made)) == made


def row(text: bytes = b"a", score: float = 0.0, kind: int | None = None) -> bytes:
    body = field_bytes(1, text) + b"\x15" + struct.pack("<f", score)
    return field_bytes(1, body if kind is None else body + field_int(3, kind))


UNK = row(b"<unk>", 0, 2)
# name -> (bytes, what the message says)
BAD_MODELS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a vocabulary"),
    "no unknown piece": (row(), "one unknown piece"),
    "two unknown pieces": (UNK + row(b"b", 0, 2), "one unknown piece"),
    "no pieces": (field_bytes(2, field_int(3, 2)), "not a vocabulary"),
    "ends in a piece": ((UNK + row())[:-1], "ends inside a piece"),
    "ends in a length": (UNK + b"\x0a", "ends inside a number"),
    "length of 2^63": (UNK + b"\x0a" + b"\xff" * 8 + b"\x7f", "ends inside a piece"),
    "number without end": (UNK + b"\xff" * 11, "more than 10 bytes"),
    "inner length too long": (UNK + field_bytes(1, b"\x0a\x7fabc\x15\0\0\0\0"), "longer than its message"),
    "group": (UNK + field_bytes(1, b"\x0b\x0c"), "wire type"),
    "field zero": (UNK + field_bytes(1, b"\x02\x00"), "field number"),
    "top-level number": (b"\x08\x01" + UNK, "wire type"),
    "piece twice": (UNK + row(b"xy") + row(b"xy"), "twice"),
    "empty piece": (UNK + row(b""), "empty"),
    "no utf-8": (UNK + row(b"\xff\xfe"), "UTF-8"),
    "type 9": (UNK + row(b"q", 0, 9), "unknown piece type"),
    "type 2^40": (UNK + row(b"q", 0, 1 << 40), "unknown piece type"),
    "score of another type": (UNK + field_bytes(1, field_bytes(1, b"a") + field_int(2, 7)), "wrong type"),
    "text as a number": (UNK + field_bytes(1, field_int(1, 7)), "wrong type"),
    "spec of another type": (UNK + field_bytes(2, field_bytes(3, b"BPE")), "wrong type"),
    "html": (b"<!DOCTYPE html><html>404</html>", "."),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "."),
}


@pytest.mark.parametrize(("data", "why"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_a_bad_model_is_a_format_error(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse(data)


def test_every_cut_of_a_model_is_an_error_or_a_smaller_model() -> None:
    whole = UNK + row(b"abc", -1.5) + row(b"<0x41>", 0, 6) + field_bytes(2, field_int(3, 2))
    for size in range(len(whole)):
        with suppress(FormatError):
            assert len(parse(whole[:size]).pieces) <= 3


def bpe(change: Callable[[Any], object]) -> dict[str, Any]:
    """The trained byte-level tokenizer with a change to its tokenizer.json."""
    tokenizer = json.loads(folder_files("bpe")["tokenizer.json"])
    change(tokenizer)
    return {**folder_files("bpe"), "tokenizer.json": tokenizer}


def put(*path: Any, value: Any) -> Callable[[Any], object]:
    def change(tokenizer: Any) -> None:
        for key in path[:-1]:
            tokenizer = tokenizer[key]
        tokenizer[path[-1]] = value

    return change


def extra(content: str, index: int) -> Callable[[Any], object]:
    return lambda t: t["added_tokens"].append({"id": index, "content": content, "special": True})


def nested(depth: int) -> Any:
    item: Any = {"type": "NFC"}
    for _ in range(depth):
        item = {"type": "Sequence", "normalizers": [item]}
    return item


LLAMA = {"architectures": ["LlamaForCausalLM"]}
# name -> (files, what the message says)
BAD_FOLDERS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no json": (lambda: {"tokenizer.json": b"{"}, r"tokenizer\.json"),
    "not utf-8": (lambda: {"tokenizer.json": b'{"model": "\xff"}'}, r"tokenizer\.json"),
    "a list": (lambda: {"tokenizer.json": []}, r"tokenizer\.json.*object"),
    "no model": (lambda: {"tokenizer.json": {"version": "1"}}, "model"),
    "model of another type": (lambda: {"tokenizer.json": {"model": 3}}, r"\$\.model"),
    "json without end": (lambda: {"tokenizer.json": b'{"model":' + b"[" * 100_000}, "deep|recursion|tokenizer"),
    "normalizers without end": (lambda: bpe(put("normalizer", value=nested(200))), "deep"),
    "5000 digits": (lambda: {"tokenizer.json": b'{"model": {"vocab": {"a": ' + b"9" * 5000 + b"}}}"}, "tokenizer"),
    "id as text": (lambda: bpe(put("model", "vocab", "zz", value="7")), r"\$\.model\.vocab"),
    "negative id": (lambda: bpe(put("model", "vocab", "zz", value=-1)), r"\$\.model\.vocab"),
    "id of 10^9": (lambda: bpe(put("model", "vocab", "zz", value=10**9)), r"\$\.model\.vocab"),
    "id twice": (lambda: bpe(put("model", "vocab", "zz", value=5)), "same id"),
    "empty vocabulary": (lambda: bpe(put("model", "vocab", value={})), "empty"),
    "merge of an unknown token": (lambda: bpe(lambda t: t["model"]["merges"].append(["qq", "zz"])), "found qq"),
    "merge into an unknown token": (lambda: bpe(lambda t: t["model"]["merges"].append(["!", "!!"])), "merge"),
    "merge of three": (lambda: bpe(lambda t: t["model"]["merges"].append("a b c")), r"merges\[\d+\]"),
    "merge of numbers": (lambda: bpe(lambda t: t["model"]["merges"].append([1, 2])), r"\$\.model\.merges"),
    "no merges": (lambda: bpe(put("model", "merges", value=[])), r"tokenizer\.json, merges: .*without merges"),
    "added id of 10^9": (lambda: bpe(extra("<x>", 10**9)), r"added_tokens"),
    "added token with two ids": (lambda: bpe(extra("<|begin_of_text|>", 3)), "contradicts"),
    "added token on another's id": (lambda: bpe(extra("<other>", 3)), "contradicts"),
    "a role's token that falls on another's id": (  # unlisted, it is put after the vocabulary: 3, and here 3 is "b"
        lambda: {
            "tokenizer.json": {"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "b": 3}}},
            "tokenizer_config.json": {"cls_token": "[CLS]"},
        },
        r"tokenizer_config\.json, id 3: .*\[CLS\].* contradicts",
    ),
    "added token without text": (lambda: bpe(lambda t: t["added_tokens"].append({"id": 800})), "content"),
    "decoder id as text": (
        lambda: {**bpe(lambda t: t), "tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "y"}}}},
        "added_tokens_decoder",
    ),
    "vocab_size of 10^9": (lambda: {**bpe(lambda t: t), "config.json": {"vocab_size": 10**9}}, "vocab_size"),
    "vocab_size as text": (lambda: {**bpe(lambda t: t), "config.json": {"vocab_size": "704"}}, "vocab_size"),
    "vocab_size too small": (lambda: {**bpe(lambda t: t), "config.json": {"vocab_size": 10}}, "vocab_size"),
    "spm, vocab_size of 10^9": (lambda: {**folder_files("spm"), "config.json": {"vocab_size": 10**9}}, "vocab_size"),
    "spm, id as text": (lambda: {**folder_files("spm"), "added_tokens.json": {"<x>": "7"}}, r"added_tokens\.json"),
    "post-processor of another type": (lambda: bpe(put("post_processor", value=[])), "post_processor"),
    "type_vocab_size as text": (
        lambda: {**folder_files("wordpiece"), "config.json": {"type_vocab_size": "2"}}, "type_vocab_size",
    ),
    "vocab.txt without lines": (lambda: {"vocab.txt": b""}, r"vocab\.txt"),
    "vocab.txt that isn't text": (lambda: {"vocab.txt": b"\xff\xfe\x00"}, r"vocab\.txt"),
    "template that isn't text": (
        lambda: {**folder_files("bpe"), "tokenizer_config.json": {"a": 1}, "chat_template.jinja": b"\xff"},
        r"chat_template\.jinja",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "why"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_a_bad_folder_is_a_format_error(files: Callable[[], dict[str, Any]], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        from_hf(reading(files()))


UNSUPPORTED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "nothing": (lambda: {}, "no supported tokenizer file"),
    "word level": (lambda: {"tokenizer.json": {"model": {"type": "WordLevel", "vocab": {"a": 0}}}}, "WordLevel"),
    "word model": (
        lambda: {"tokenizer.model": dump(SentencePieceModel(["<unk>", "a"], [0, 0], [2, 1], model_type=3))},
        "other than BPE and Unigram",
    ),
    "plamo": (lambda: {"tokenizer.jsonl": b'["<unk>", 0.0, "UNKNOWN"]\n'}, "tokenizer class None"),
    "suffix": (lambda: bpe(put("model", "end_of_word_suffix", value="</w>")), "suffix"),
    "prefix": (
        lambda: {"tokenizer.json": {"model": {
            "type": "WordPiece", "vocab": {"a": 0}, "continuing_subword_prefix": "@@",
        }}},
        "@@",
    ),
    "lowercase": (lambda: bpe(put("normalizer", value={"type": "Lowercase"})), "pre=NAME"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "why"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_we_cannot_convert_says_so(files: Callable[[], dict[str, Any]], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        from_hf(reading(files()))


def test_a_rank_file_named_tokenizer_model_is_passed_over() -> None:
    """Meta's own Llama 3 folders have tiktoken ranks under that name beside a tokenizer.json."""
    files = {**folder_files("bpe"), "tokenizer.model": b"IQ== 0\nIg== 1\n"}
    assert from_hf(reading(files)).kind == VocabKind.BPE


@pytest.mark.costly
def test_old_files_without_a_type_are_recognised() -> None:
    for kind, want in (
        ("bpe", VocabKind.BPE),
        ("wordpiece", VocabKind.WORDPIECE),
        ("t5", VocabKind.UNIGRAM),
    ):
        tokenizer = json.loads(folder_files(kind)["tokenizer.json"])
        del tokenizer["model"]["type"]
        assert from_hf(reading({**folder_files(kind), "tokenizer.json": tokenizer})).kind == want


def test_padding_is_bounded() -> None:
    """A config.json of 30 bytes can't ask for more than the largest vocabulary."""
    read = reading({**bpe(lambda t: t), "config.json": {"vocab_size": VOCABULARY + 1}})
    with traced_memory() as memory, pytest.raises(FormatError, match="vocab_size"):
        from_hf(read)
    assert memory.peak < 8 << 20


GGUF = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}
# name -> (keys to change, what the message says)
BAD_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"tokenizer.ggml.model": None}, "no tokenizer"),
    "model of another type": ({"tokenizer.ggml.model": 7}, r"ggml\.model"),
    "tokens as text": ({"tokenizer.ggml.tokens": "abc"}, r"ggml\.tokens"),
    "tokens as numbers": ({"tokenizer.ggml.tokens": [1, 2]}, r"ggml\.tokens"),
    "no tokens": ({"tokenizer.ggml.tokens": []}, "empty"),
    "scores too short": ({"tokenizer.ggml.scores": [0.0]}, r"ggml\.scores"),
    "scores as text": ({"tokenizer.ggml.scores": ["x", "y", "z"]}, r"ggml\.scores"),
    "types too short": ({"tokenizer.ggml.token_type": [1, 1]}, r"ggml\.token_type"),
    "types as floats": ({"tokenizer.ggml.token_type": [1.0, 1.0, 1.0]}, r"ggml\.token_type"),
    "bos as text": ({"tokenizer.ggml.bos_token_id": "1"}, "bos_token_id"),
    "bos as a bool": ({"tokenizer.ggml.bos_token_id": True}, "bos_token_id"),
    "bos negative": ({"tokenizer.ggml.bos_token_id": -1}, "bos_token_id"),
    "flag as a number": ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token"),
    "template as a number": ({"tokenizer.chat_template": 1}, "chat_template"),
    "named template as a number": ({"tokenizer.chat_template.x": 1}, "chat_template"),
}


@pytest.mark.parametrize(("keys", "why"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_bad_keys_are_format_errors(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        from_gguf({k: v for k, v in {**GGUF, **keys}.items() if v is not None})


def test_other_models_are_unsupported() -> None:
    for name in ("hybriddna", "whitespace", "none"):
        with pytest.raises(UnsupportedError, match=rf"'{name}' \(.+no form in a model folder"):
            from_gguf({**GGUF, "tokenizer.ggml.model": name})
    with pytest.raises(UnsupportedError, match="type 'own'"):
        from_gguf({**GGUF, "tokenizer.ggml.model": "own"})


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tokenizer.ggml.merges": ["a c"]}, "found c"),
        ({"tokenizer.ggml.merges": ["ab"]}, r"merges\[0\]"),
        ({"tokenizer.ggml.tokens": ["a", "a", "b"]}, "twice"),
        ({"tokenizer.ggml.tokens": ["a", "b", "ab", "\udcff"]}, r"tokens\[3\]"),
    ],
)
def test_bad_vocabularies_are_format_errors_when_written(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        to_hf(from_gguf({**GGUF, **keys}))


def test_an_empty_token_has_llamacpps_name() -> None:
    vocab = from_gguf({**GGUF, "tokenizer.ggml.tokens": ["a", "b", "ab", ""]})
    assert json.loads(to_hf(vocab)["tokenizer.json"])["model"]["vocab"]["[EMPTY_3]"] == 3


@pytest.mark.oracle
def test_merges_from_scores_are_those_of_transformers() -> None:
    from transformers.convert_slow_tokenizer import generate_merges

    found = parse(model())
    normal = {t: s for t, s, k in zip(found.pieces, found.scores, found.types, strict=True) if k == TokenType.NORMAL}
    index = {t: i for i, t in enumerate(found.pieces) if t in normal}
    skip = {i for i, k in enumerate(found.types) if k != TokenType.NORMAL}
    assert merges.from_scores(found.pieces, found.scores, skip) == generate_merges(index, normal.items())


@examples(100)
@given(st.lists(st.text("abc", min_size=2, max_size=5), max_size=12, unique=True))
@example([])
def test_scores_from_merges_give_the_merges_back(words: list[str]) -> None:
    """Merges of distinct results, in any order: their scores order them the same way."""
    tokens = ["a", "b", "c"]
    pairs = []
    for word in sorted(words, key=len):
        cuts = [(word[:i], word[i:]) for i in range(1, len(word)) if word[:i] in tokens and word[i:] in tokens]
        if cuts and word not in tokens:
            tokens.append(word)
            pairs += sorted(cuts, key=lambda p: -len(p[0]))
    scores = merges.to_scores(pairs, {t: i for i, t in enumerate(tokens)}, len(tokens))
    assert merges.from_scores(tokens, scores, ()) == pairs


part = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(part, part), max_size=5))
def test_merges_survive_their_gguf_spelling(pairs: list[tuple[str, str]]) -> None:
    assert merges.parted(merges.joined(pairs)) == pairs


def test_spaces_in_merges_are_escaped() -> None:
    assert merges.joined([("a b", " c"), ("d", "e")]) == ["aĠb Ġc", "d e"]


@pytest.mark.oracle
def test_the_byte_alphabet_is_that_of_the_library() -> None:
    from tokenizers import pre_tokenizers

    assert set(merges.BYTE_OF) == set(pre_tokenizers.ByteLevel.alphabet())
    spoken = {b: c for c, b in merges.BYTE_OF.items()}
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for sample in ("\x00\x7f a\n\tz", "é漢🦙\xad\xa0"):
        assert "".join(spoken[b] for b in sample.encode()) == level.pre_tokenize_str(sample)[0][0]


def test_a_vocabulary_says_its_tokens() -> None:
    vocab = Vocab(VocabKind.BPE, ["a", "b"], special={"bos": 1, "eos": 7})
    assert (vocab.token("bos"), vocab.token("eos"), vocab.token("pad"), len(vocab)) == ("b", None, None, 2)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in a JSON value; of long lists and objects the first five."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inner)[:5]:
        found += places(item, (*path, key))
    if isinstance(value, dict):
        for key in list(value)[5:]:
            found += places(value[key], (*path, key)) if len(value) < 20 else []
    return found


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4), st.just("Sequence")
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "id", "content", "Regex", "a"]), inner, max_size=3),
    ),
    max_leaves=5,
)
KINDS = ("spm", "spm-json", "bpe", "wordpiece", "t5", "xlmr", "tekken", "kimi")
NAMES = ("tokenizer.json", "tokenizer_config.json", "tekken.json")


@pytest.mark.costly
@examples(500)
@given(st.sampled_from(KINDS), st.sampled_from(NAMES), st.data(), JSON)
def test_any_value_anywhere_is_a_vocabulary_or_a_refusal(kind: str, name: str, data: st.DataObject, value: Any) -> None:
    """No other exception, wherever a file says something else than it should; what is read can be written both ways."""
    files = dict(folder_files(kind))
    if name not in files:
        return
    content = json.loads(files[name])
    *path, last = data.draw(st.sampled_from(places(content)))
    inside = content
    for step in path:
        inside = inside[step]
    inside[last] = value
    try:
        vocab = from_hf(reading({**files, name: content}))
        keys = to_gguf(vocab)
        to_hf(from_gguf({k: kv.value for k, kv in keys.items()}))
    except (FormatError, UnsupportedError):
        return
    assert len(vocab.types) == len(vocab.tokens)
