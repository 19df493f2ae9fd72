"""The table of pre-tokenizers, held against llama.cpp itself: for each name, the tokenizer.json that we write gives the
ids that llama.cpp gives under this name. The vocabulary has tokens across every place where a text may be cut, so a
changed row is seen: the mutations below prove it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models._tokenizers import NASTY, PLAIN, folder_files, llamacpp_ids, reading, tokenizers_ids, uncut, with_pre
from tests.oracles import tree

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.tokenizer import TokenType, Vocab, VocabKind, from_hf, pretokenizer, to_hf
from weighbridge.models.tokenizer.formats import merges

GOLDEN = Path(__file__).parent / "golden" / "pretokenizers.txt"
TABLE = pretokenizer.table()
CLASSES = [c for c in TABLE.classes if c.steps]
NAMES = [n for c in CLASSES for n in c.names]

# Where llama.cpp approximates the models' own regexes, by its own comments or by these texts: its class, and the texts.
# DEEPSEEK_LLM cuts \p{N}+ where the models have single digits; both DEEPSEEKs take \s for ASCII blanks only here.
# FALCON's chain maps to bytes in its middle and then cuts digits from the space before them; llama.cpp does neither.
# The rest take \p{Lu} and \p{Ll} as [A-Z], [a-z].
DIFFERS = {
    "DEEPSEEK_LLM": ("1984", "nbsp", "½", "1314151", "12345", "678901"),
    "DEEPSEEK_CODER": ("nbsp",),
    "FALCON": ("1984", "naïve", "漢字", "1314151", "678901 12"),
    "TINY_AYA": ("CamelCase", "1314151", "IMG"),
    "KIMI_K2": ("CamelCase", "IMG"),
    "YOUTU": ("CamelCase", "IMG"),
}


def texts(row: pretokenizer.PretokenizerClass) -> list[str]:
    return [t for t in NASTY if not any(part in t for part in DIFFERS.get(row.name, ()))]


def changed(row: pretokenizer.PretokenizerClass, step: int, new: Any) -> pretokenizer.PretokenizerClass:
    """The row with one step replaced, or left out for None."""
    steps = [*row.steps[:step], *([] if new is None else [new]), *row.steps[step + 1 :]]
    return replace(row, steps=tuple(steps), canonical=tuple(map(pretokenizer.key, steps)))


def use(
    monkeypatch: pytest.MonkeyPatch, old: pretokenizer.PretokenizerClass, new: pretokenizer.PretokenizerClass
) -> None:
    table = replace(TABLE, classes=tuple(new if c is old else c for c in TABLE.classes))
    monkeypatch.setattr(pretokenizer, "table", lambda: table)


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_a_name_tokenizes_as_in_llamacpp(name: str) -> None:
    row, vocab = pretokenizer.known(name), with_pre(name)
    assert tokenizers_ids(to_hf(vocab), texts(row)) == llamacpp_ids(vocab, texts(row))


@pytest.mark.oracle
@pytest.mark.parametrize("row", [c for c in CLASSES if c.name in DIFFERS], ids=lambda c: c.name)
def test_no_known_difference_is_out_of_date(row: pretokenizer.PretokenizerClass) -> None:
    vocab = with_pre(row.names[0])
    found, expected = tokenizers_ids(to_hf(vocab), NASTY), llamacpp_ids(vocab, NASTY)
    differ = [t for t, a, b in zip(NASTY, found, expected, strict=True) if a != b]
    assert differ == [t for t in NASTY if t not in texts(row)]


# Steps that llama.cpp can't judge. Without effect, since a later step cuts at the same places: single digits after
# threes; a sentinel begins and ends with punctuation; blanks at the end are a piece of their own already. Or llama.cpp
# lacks the step. MODELS, below, holds those of deepseek-llm and falcon.
UNSEEN = {("spark2_5", 0), ("chameleon", 0), ("deepseek-llm", 3), ("deepseek-llm", 5), ("falcon", 3)}


def mutations() -> Iterator[Any]:
    """Each step of each distinct chain, left out, and replaced by another cut."""
    seen = set()
    for row in CLASSES:
        if row.canonical in seen:
            continue
        seen.add(row.canonical)
        for i, step in enumerate(row.steps):
            if step != pretokenizer.BYTES:
                if (row.names[0], i) not in UNSEEN:
                    yield pytest.param(row, i, None, id=f"{row.names[0]}-{i}-gone")
                yield pytest.param(row, i, r"[aeiou]", id=f"{row.names[0]}-{i}-vowels")


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize(("row", "step", "new"), list(mutations()))
def test_a_changed_step_is_seen(
    monkeypatch: pytest.MonkeyPatch, row: pretokenizer.PretokenizerClass, step: int, new: str | None
) -> None:
    vocab = with_pre(row.names[0])
    expected = llamacpp_ids(vocab, texts(row))
    use(monkeypatch, row, changed(row, step, new))
    assert tokenizers_ids(to_hf(vocab), texts(row)) != expected


@pytest.mark.oracle
@pytest.mark.parametrize("row", CLASSES, ids=lambda c: f"{c.name}-{c.names[0]}")
def test_the_switches_are_llamacpps(monkeypatch: pytest.MonkeyPatch, row: pretokenizer.PretokenizerClass) -> None:
    """`ignore_merges`: a word that is a token, but that no merges make, is one token. `add_bos`: by default."""
    vocab = replace(with_pre(row.names[0]), add={})
    sample = ["zqxj", "a zqxj", "hello"]
    expected = llamacpp_ids(vocab, sample, add_special=True)
    assert tokenizers_ids(to_hf(vocab), sample, add_special=True) == expected
    for other in (replace(row, ignore_merges=not row.ignore_merges), replace(row, add_bos=not row.add_bos)):
        use(monkeypatch, row, other)
        assert tokenizers_ids(to_hf(vocab), sample, add_special=True) != expected, other


def test_names_classes_and_switches_are_those_of_the_source() -> None:
    rows = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    expected = {name: (kind, set(flags)) for name, kind, *flags in rows}
    flags = ("ignore_merges", "add_bos")
    assert {n: (c.name, {f for f in flags if getattr(c, f)}) for c in TABLE.classes for n in c.names} == expected
    assert len(TABLE.names) == len(expected)  # no name twice


# What the reference calls the pre-tokenizer of WordPiece, where llama.cpp reads no name.
OF_WORDPIECE = {"bert-bge", "bert-bge-large", "jina-v2-en"}


@pytest.mark.oracle
def test_every_name_that_the_reference_writes_is_in_the_table() -> None:
    source = (tree.require() / "conversion" / "base.py").read_text()
    names = set(re.findall(r'res = "([^"]+)"', source))
    assert len(names) > 80
    assert names - set(TABLE.names) == OF_WORDPIECE


# A vocabulary's marks -> the name. One line for each row of `choose`, with what makes it hold.
CHOICES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("glm4", "llama-bpe", dict(tokens=["<sop>", "[gMASK]"], ignore_merges=True)),
    ("chatglm-bpe", "llama-bpe", dict(tokens=["<sop>", "[gMASK]"])),
    ("lfm2", "llama-bpe", dict(tokens=["<|startoftext|>"], ignore_merges=True)),
    ("llama-bpe", "llama-bpe", dict(ignore_merges=True)),
    ("smaug-bpe", "llama-bpe", dict(tokens=["<|begin_of_text|>"])),
    ("dbrx", "llama-bpe", {}),
    ("deepseek-r1-qwen", "qwen2", dict(tokens=["<｜end▁of▁sentence｜>"])),
    ("stablelm2", "qwen2", dict(tokens=["<|reg0|>"])),
    ("qwen2", "qwen2", dict(normalizer="NFC")),
    ("roberta-bpe", "gpt-2", dict(processor="RobertaProcessing")),
    ("modern-bert", "gpt-2", dict(tokens=["[CLS]", "[SEP]"], normalizer="NFC")),
    ("olmo", "gpt-2", dict(tokens=["<|padding|>"], normalizer="NFC")),
    ("phi-2", "gpt-2", dict(tokens=[" " * 31])),
    ("exaone4", "gpt-2", dict(tokens=["[|endofturn|]"])),
    ("gpt-2", "gpt-2", {}),
    ("command-r", "starcoder", dict(tokens=["<|START_OF_TURN_TOKEN|>"], normalizer="NFC")),
    ("exaone", "starcoder", dict(tokens=["[|endofturn|]"])),
    ("smollm", "starcoder", dict(tokens=["<gh_stars>", "<|im_start|>"])),
    ("refact", "starcoder", dict(tokens=["<commit_before>", "<reponame>"])),
    ("starcoder", "starcoder", {}),
    ("llama4", "gpt-4o", dict(tokens=["<|begin_of_text|>"])),
    ("minimax-m2", "gpt-4o", dict(tokens=["[e~["])),
    ("gpt-4o", "gpt-4o", {}),
)


@pytest.mark.parametrize(("name", "like", "marks"), CHOICES, ids=[c[0] for c in CHOICES])
def test_marks_choose_the_name(name: str, like: str, marks: dict[str, Any]) -> None:
    marks = {"tokens": [], **marks}
    assert pretokenizer.recognise(pretokenizer.known(like).canonical, **marks) == name
    assert pretokenizer.known(name).canonical == pretokenizer.known(like).canonical


def test_every_choice_is_tried_and_every_definition_has_one() -> None:
    assert [c[0] for c in CHOICES] == [c.name for c in TABLE.choices][: len(CHOICES)]
    assert {pretokenizer.known(c.name).canonical for c in TABLE.choices} == {c.canonical for c in CLASSES}
    for choice in TABLE.choices[len(CHOICES) :]:
        assert pretokenizer.recognise(pretokenizer.known(choice.name).canonical, []) == choice.name


@pytest.mark.mutation
@pytest.mark.parametrize("choice", TABLE.choices, ids=lambda c: c.name)
def test_a_choice_that_is_gone_is_seen(monkeypatch: pytest.MonkeyPatch, choice: pretokenizer.NameChoice) -> None:
    table = replace(TABLE, choices=tuple(c for c in TABLE.choices if c is not choice))
    monkeypatch.setattr(pretokenizer, "table", lambda: table)
    marks: dict[str, Any] = next((dict(c[2]) for c in CHOICES if c[0] == choice.name), {})
    try:
        found = pretokenizer.recognise(pretokenizer.known(choice.name).canonical, **{"tokens": [], **marks})
    except UnsupportedError:
        return
    assert found != choice.name


def regex(text: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}


# As published: tiiuae/falcon-7b, deepseek-ai/deepseek-coder-7b-instruct-v1.5 (its letters left out: they are checked
# above), openai-community/gpt2, Xenova/gpt-4, HuggingFaceTB/SmolLM2-135M.
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
DEEPSEEK_LETTERS = pretokenizer.known("deepseek-llm").steps[1]
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MODELS: tuple[tuple[str, list[dict[str, Any]]], ...] = (
    (
        "falcon",
        [
            {"type": "Punctuation", "behavior": "Contiguous"},
            GPT2,
            {"type": "Digits", "individual_digits": False},
            regex("[0-9][0-9][0-9]"),
        ],
    ),
    (
        "deepseek-llm",
        [
            regex("[\r\n]"),
            regex(DEEPSEEK_LETTERS),
            regex("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            regex("\\s+$"),
            regex("[一-龥ࠀ-一가-퟿]+"),
            DIGITS,
            BYTES,
        ],
    ),
    ("gpt-2", [GPT2]),
    ("dbrx", [{**regex(CL100K), "behavior": "Removed", "invert": True}, BYTES]),
    ("starcoder", [DIGITS, GPT2]),
)


@pytest.mark.parametrize(("name", "items"), MODELS, ids=[m[0] for m in MODELS])
def test_published_definitions_are_recognised(name: str, items: list[dict[str, Any]]) -> None:
    whole = items[0] if len(items) == 1 else {"type": "Sequence", "pretokenizers": items}
    assert pretokenizer.recognise(pretokenizer.canonical(whole), []) == name


def spelled(name: str) -> Iterator[Any]:
    """The definition of a name in other words that mean the same."""
    whole = pretokenizer.definition(name)
    yield {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [whole]}]}
    text = json.dumps(whole)
    yield json.loads(text.replace('"behavior": "Isolated", "invert": false', '"behavior": "Removed", "invert": true'))
    yield json.loads(
        text.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
    )
    yield json.loads(text.replace("\\\\r\\\\n", "\\r\\n"))
    yield json.loads(text.replace(', "trim_offsets": true', ""))


@pytest.mark.parametrize("name", [c.name for c in TABLE.choices])
def test_other_spellings_of_a_definition_are_recognised(name: str) -> None:
    for definition in spelled(name):
        assert pretokenizer.canonical(definition) == pretokenizer.known(name).canonical


STRANGE = (
    None,
    {"type": "Whitespace"},
    {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
    {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": True},
    {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": r"\p{N}{1,4}"}, "behavior": "Isolated", "invert": False},
    {"type": "Sequence", "pretokenizers": [pretokenizer.split(r"\p{N}{1,2}"), pretokenizer.byte_level(True)]},
)


@pytest.mark.parametrize("definition", STRANGE, ids=str)
def test_an_unknown_definition_names_the_nearest(definition: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"nearest is '.+'; use pre"):
        pretokenizer.recognise(pretokenizer.canonical(definition), [])


@pytest.mark.parametrize(
    "definition", [{"type": "Sequence", "pretokenizers": [7]}, {"type": "Sequence", "pretokenizers": ["x"]}]
)
def test_what_is_no_object_is_a_format_error(definition: Any) -> None:
    with pytest.raises(FormatError, match="pretokenizers"):
        pretokenizer.canonical(definition)


def test_nesting_without_end_is_a_format_error() -> None:
    item: dict[str, Any] = {"type": "ByteLevel"}
    for _ in range(300):
        item = {"type": "Sequence", "pretokenizers": [item]}
    with pytest.raises(FormatError, match="deeply"):
        pretokenizer.canonical(item)


def test_a_name_without_definition_says_so() -> None:
    assert [c.names for c in TABLE.classes if not c.steps and not c.raw] == [("whitespace",)]
    with pytest.raises(UnsupportedError, match="no known definition"):
        to_hf(with_pre("whitespace"))


RAW = [n for c in TABLE.classes if c.raw for n in c.names]


def characters(name: str, files: str = "gemma") -> Vocab:
    """The trained SentencePiece vocabulary as BPE over characters: merges in the order of its scores."""
    spm = from_hf(reading(folder_files(files)))
    skip = {i for i, k in enumerate(spm.types) if k != TokenType.NORMAL}
    rows = merges.joined(merges.from_scores(spm.tokens, spm.scores, skip))
    kind, pre = (VocabKind.CHAR_BPE, None) if name == "model" else (VocabKind.BPE, name)
    special = {"bos": 1, "eos": 2, "unk": 0}
    return replace(
        spm, kind=kind, pre=pre, merges=rows, scores=(), special=special, add_space_prefix=None, add={"bos": True}
    )


def published(vocab: Vocab, **config: Any) -> dict[str, bytes]:
    """Its folder without the types that our own writer remembers."""
    files = to_hf(vocab)
    said = {k: v for k, v in json.loads(files["tokenizer_config.json"]).items() if k != "gguf_token_types"}
    return {**files, "tokenizer_config.json": json.dumps(said).encode(), "config.json": json.dumps(config).encode()}


def raw_texts(name: str) -> list[str]:
    """llama.cpp's mmBERT puts its space behind every row of newlines too, and takes text apart there."""
    return [t for t in NASTY if t and (name != "mmbert" or "\n" not in t)]


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["model", *RAW])
def test_merges_of_characters_are_those_of_llamacpp(name: str) -> None:
    vocab, sample = characters(name), raw_texts(name)
    expected = llamacpp_ids(vocab, sample, add_special=True)
    assert tokenizers_ids(to_hf(vocab), sample, add_special=True) == expected
    if name != "mmbert":  # which is SentencePiece with a space in front
        import sentencepiece

        judge = sentencepiece.SentencePieceProcessor(model_proto=folder_files("gemma")["tokenizer.model"])
        assert [ids[1:] for ids in expected] == [judge.encode(t) for t in sample]


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("name", ["gemma4", "mmbert"])
def test_a_space_in_front_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    vocab, row = characters(name), pretokenizer.known(name)
    expected = llamacpp_ids(vocab, raw_texts(name))
    use(monkeypatch, row, replace(row, metaspace=not row.metaspace))
    assert tokenizers_ids(to_hf(vocab), raw_texts(name)) != expected


ARCHITECTURES = (
    ("Gemma4ForConditionalGeneration", "model"),
    ("ModernBertModel", "mmbert"),
    ("ModernBertForMaskedLM", "granite-embed-multi-311m"),
    ("SarvamMoEForCausalLM", "sarvam-moe"),
)


@pytest.mark.parametrize(("architecture", "name"), ARCHITECTURES)
def test_merges_of_characters_survive_the_way_over_a_folder(architecture: str, name: str) -> None:
    vocab = characters(name)
    config = {"architectures": [architecture], "vocab_size": len(vocab)}
    back = from_hf(reading({**to_hf(vocab), "config.json": config}))
    for part in ("kind", "pre", "tokens", "merges"):
        assert getattr(back, part) == getattr(vocab, part), part
    assert back.special == vocab.special
    assert back.add["bos"] is True
    assert back.losses == ()
    # By its merges a folder of another class is a `llama`; a name that the caller gives decides.
    named = from_hf(reading(to_hf(vocab)), pre=name) if name != "model" else vocab
    assert named.pre == vocab.pre
    assert from_hf(reading(to_hf(vocab))).kind == VocabKind.SPM


def test_what_gemma_4s_chat_shows_is_no_control_token() -> None:
    vocab = characters("model")
    shown = [*vocab.tokens[:-2], "<|tool_call>", "<channel|>"]
    vocab = replace(vocab, tokens=shown, types=[*vocab.types[:-2], TokenType.CONTROL, TokenType.CONTROL], merges=())
    files = published(vocab, architectures=["Gemma4ForCausalLM"])
    assert list(from_hf(reading(files)).types[-2:]) == [TokenType.USER_DEFINED] * 2


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(UnsupportedError, match="llama-bpe"):
        pretokenizer.known("llama-bep")
    with pytest.raises(UnsupportedError, match="no pre-tokenizer named"):
        from_hf(reading(folder_files("bpe")), pre="nothing-like-it")


def test_the_override_wins() -> None:
    assert from_hf(reading(folder_files("bpe"))).pre == "llama-bpe"
    assert from_hf(reading(folder_files("bpe")), pre="qwen2").pre == "qwen2"
    files = {**folder_files("bpe")}
    strange = json.loads(files["tokenizer.json"])
    strange["pre_tokenizer"], strange["normalizer"] = {"type": "Whitespace"}, {"type": "Lowercase"}
    files["tokenizer.json"] = json.dumps(strange).encode()
    with pytest.raises(UnsupportedError):
        from_hf(reading(files))
    assert from_hf(reading(files), pre="gpt-2").pre == "gpt-2"


@pytest.mark.slow
@pytest.mark.oracle
def test_a_definition_survives_both_ways() -> None:
    """GGUF -> tokenizer.json -> GGUF keeps the class of each name, so llama.cpp gives the same ids."""
    for row in CLASSES:
        vocab = with_pre(row.names[0])
        back: Vocab = from_hf(reading(to_hf(vocab)))
        assert back.pre is not None
        assert pretokenizer.known(back.pre).canonical == row.canonical
        words = [t for t in PLAIN if "zqxj" not in t]  # `ignore_merges` tells classes of one definition apart
        assert llamacpp_ids(back, words) == llamacpp_ids(vocab, words), row.names[0]
    assert len(uncut()) > 2000
