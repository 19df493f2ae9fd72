"""Rank files (tiktoken's, Mistral's tekken.json) and vocab.json with merges.txt: tokens, types and merges are those of
the reference and of transformers' own converters, texts are split alike in all of them, what is wrong is told with its
place.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.models._tokenizers import (
    HEADS,
    NASTY,
    auto_ids,
    folder_files,
    llamacpp_ids,
    reading,
    tokenizers_ids,
    trained,
    write_folder,
)
from tests.models.test_tokenizer_pre import characters, published
from tests.oracles import gguf_file, vocabularies
from tests.oracles.reference_converter import Job, convert_all

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.gguf import container as gguf
from weighbridge.models.tokenizer import TokenType, Vocab, VocabKind, from_hf, losses, to_gguf, to_hf
from weighbridge.models.tokenizer.formats import bpe_ranks
from weighbridge.models.tokenizer.hf import folder as folder_module
from weighbridge.models.tokenizer.hf import tekken, tiktoken
from weighbridge.models.tokenizer.hf.folder import TokenizerTables, tables

Files = dict[str, Any]
TEXTS = (*NASTY, "a" * 200, "ab " * 60, " " * 70 + "x", "décomposé e\u0301")


@cache
def table(name: str) -> dict[bytes, int]:
    patterns = {
        "llama": vocabularies.LLAMA3_PATTERN,
        "qwen": vocabularies.QWEN_PATTERN,
        "kimi": vocabularies.KIMI_PATTERN,
    }
    return vocabularies.ranks(patterns[name])


def llama_files(**config: Any) -> Files:
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 956, **config}
    return {"tokenizer.model": vocabularies.tiktoken_file(table("llama")), "config.json": config}


def qwen_files() -> Files:
    config = {"architectures": ["QWenLMHeadModel"], "vocab_size": 912}
    return {
        "qwen.tiktoken": vocabularies.tiktoken_file(table("qwen")), "config.json": config,
        "tokenizer_config.json": {"tokenizer_class": "QWenTokenizer", "model_max_length": 8192},
    }  # fmt: skip


def kimi_files(**config: Any) -> Files:
    return {
        **folder_files("kimi"),
        "config.json": {"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 720, **config},
    }


def slow_files(kind: str = "GPT2Tokenizer", **config: Any) -> Files:
    """vocab.json and merges.txt of the trained byte-level tokenizer."""
    model = json.loads(folder_files("bpe")["tokenizer.json"])["model"]
    rows = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "vocab.json": model["vocab"], "merges.txt": "\n".join(["#version: 0.2", *rows, ""]).encode(),
        "tokenizer_config.json": {"tokenizer_class": kind, **config},
    }  # fmt: skip


def vocab(files: Files, **options: Any) -> Vocab:
    return from_hf(reading(files), **options)


def gemma4_files() -> Files:
    """tokenizer.json of BPE over characters, some of its tokens shown by the chat."""
    made = characters("model")
    made = replace(made, tokens=[*made.tokens[:-1], "<|tool_call>"], merges=made.merges[:100])
    files = published(made)
    return {**files, "config.json": {"architectures": ["Gemma4ForCausalLM"], "vocab_size": len(made)}}


def gemma4_published() -> Files:
    """Added tokens that the vocabulary has, marked special or not, and tokens under keys of the model's own."""
    out = gemma4_files()
    out |= {
        name: json.loads(out[name])
        for name in ("tokenizer.json", "tokenizer_config.json")
        if isinstance(out[name], bytes)
    }
    rows = [t for t in out["tokenizer.json"]["model"]["vocab"] if not t.startswith("<")][-6:]
    ids = out["tokenizer.json"]["model"]["vocab"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    listed = {t["content"] for t in out["tokenizer.json"]["added_tokens"]}
    out["tokenizer.json"]["added_tokens"] += [
        {"id": ids[t], "content": t, **flags, "special": i % 2 == 0} for i, t in enumerate(rows) if t not in listed
    ]
    out["tokenizer_config.json"] |= {
        "image_token": rows[0], "soc_token": rows[1], "extra_special_tokens": [rows[2]],
        "model_specific_special_tokens": {"image_token": rows[0], "soc_token": rows[1]},
    }  # fmt: skip
    return out


# ------------------------------------------------------------------------ merges from ranks


def tiktoken_split(token: bytes, known: dict[bytes, int]) -> list[bytes]:
    """tiktoken's own words for it: merge the pair of lowest rank until there is none."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while True:
        pairs = [(known[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in known]
        if not pairs:
            return parts
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@examples(300)
@given(
    st.lists(st.text("abc", min_size=2, max_size=6), unique=True, max_size=20), st.text("abc", max_size=100), st.data()
)
def test_both_ways_to_split_are_one(words: list[str], text: str, data: st.DataObject) -> None:
    """Long tokens take another path; and a limit holds back what comes later."""
    known = {c.encode(): i for i, c in enumerate("abc")} | {w.encode(): i for i, w in enumerate(words, 3)}
    limit = data.draw(st.integers(0, len(known)))
    short = {t: r for t, r in known.items() if r < limit}
    token = text.encode()
    assert (
        bpe_ranks.split_long(known, token, limit)
        == tiktoken_split(token, short)
        == bpe_ranks.split(known, token, limit)
    )


@pytest.mark.oracle
def test_every_pair_is_transformers_and_natural_the_references() -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    known = table("llama")
    converter = TikTokenConverter("x")
    converter.load_tiktoken_bpe = lambda _: known  # it would need a package for the file, which has two columns
    tokens, merges = converter.extract_vocab_merges_from_model("x")
    assert bpe_ranks.every(known) == merges
    assert dict(bpe_ranks.by_rank(known)) == {r: t for t, r in tokens.items()}
    assert set(bpe_ranks.natural(known)) < set(merges)


@pytest.mark.oracle
@pytest.mark.parametrize("merges", [bpe_ranks.every, bpe_ranks.natural])
def test_both_lists_of_merges_split_as_ranks_do(merges: Callable[[Any], list[tuple[str, str]]]) -> None:
    from tokenizers import Tokenizer, models

    known = table("llama")
    model = models.BPE({t: r for r, t in bpe_ranks.by_rank(known)}, merges(known))
    judge = Tokenizer(model)
    for word in (w for t in TEXTS for w in t.split(" ") if w):
        expected = [known[p] for p in tiktoken_split(word.encode(), known)]
        assert judge.encode(bpe_ranks.spelled(word.encode())).ids == expected, word


# ------------------------------------------------------------------------ whole folders


@pytest.mark.oracle
def test_tekken_is_as_transformers_converts_it(tmp_path: Path) -> None:
    from transformers.integrations.mistral import MistralConverter

    (tmp_path / "tekken.json").write_bytes(folder_files("tekken")["tekken.json"])
    judge = MistralConverter(str(tmp_path / "tekken.json"))
    found = trained("tekken")
    tokens = {t: i for i, t in enumerate(found.tokens)}
    assert tokens == judge._precomputed_vocab
    assert [tuple(m.split(" ")) for m in found.merges] == judge._precomputed_merges
    control = [t for t, k in zip(found.tokens, found.types, strict=True) if k == TokenType.CONTROL]
    assert control == [str(t) for t in judge.additional_special_tokens]
    expected = [judge.converted().encode(t).ids for t in TEXTS]
    assert llamacpp_ids(found, TEXTS) == tokenizers_ids(to_hf(found), TEXTS) == expected
    assert found.special == {"bos": 1, "eos": 2, "unk": 0, "pad": 5}
    assert llamacpp_ids(found, ["x"], add_special=True)[0][0] == 1


def splits(pattern: str, known: dict[bytes, int]) -> list[list[int]]:
    """What tiktoken gives: the pattern cuts, each piece is one token or falls into parts."""
    from tokenizers import Regex, pre_tokenizers

    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    out = []
    for text in TEXTS:
        pieces = [p.encode() for p, _ in cut.pre_tokenize_str(text)]
        out.append([known[q] for p in pieces for q in ([p] if p in known else tiktoken_split(p, known))])
    return out


KINDS: dict[str, tuple[Callable[[], Files], str]] = {
    "llama": (llama_files, vocabularies.LLAMA3_PATTERN),
    "qwen": (qwen_files, vocabularies.QWEN_PATTERN),
    "kimi": (kimi_files, vocabularies.KIMI_PATTERN),
}
APPROXIMATE = ("CamelCase", "IMG")  # llama.cpp takes \p{Lu} as [A-Z] for Kimi (see test_tokenizer_pre)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_split_as_tiktoken_does(kind: str, tmp_path: Path) -> None:
    files, pattern = KINDS[kind]
    found, expected = vocab(files()), splits(pattern, table(kind))
    kept = [i for i, t in enumerate(TEXTS) if kind != "kimi" or not any(a in t for a in APPROXIMATE)]
    assert [llamacpp_ids(found, TEXTS)[i] for i in kept] == [expected[i] for i in kept]
    written = to_hf(found)
    # Qwen normalizes before it cuts; its judge here doesn't
    plain = [i for i, t in enumerate(TEXTS) if kind != "qwen" or "\u0301" not in t]
    assert [tokenizers_ids(written, TEXTS)[i] for i in plain] == [expected[i] for i in plain]
    assert auto_ids(write_folder(written, tmp_path, found), ["Hello world 12345"]) == llamacpp_ids(
        found, ["Hello world 12345"]
    )


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [*KINDS, "tekken"])
def test_a_gguf_survives_the_way_over_a_folder(kind: str) -> None:
    found = trained("tekken") if kind == "tekken" else vocab(KINDS[kind][0]())
    back = vocab({**to_hf(found), "config.json": {"vocab_size": len(found)}})
    for name in ("tokens", "types", "merges", "pre", "special"):
        assert getattr(back, name) == getattr(found, name), name
    assert {**found.add, **back.add} == back.add


KIMI_IDS = {"bos_token_id": 700, "eos_token_id": 702, "pad_token_id": 711}
# What the reference runs: (class, files, what its program would say)
REFERENCES: dict[str, tuple[str, Callable[[], Files], str, str]] = {
    "qwen": ("qwen:QwenModel", qwen_files, "qwen", "qwen2"),
    "kimi": ("deepseek:DeepseekV2Model", lambda: kimi_files(**KIMI_IDS), "kimi", "kimi-k2"),
    "kimi-linear": (
        "kimi_linear:KimiLinearModel",
        lambda: kimi_files(architectures=["KimiLinearForCausalLM"], **KIMI_IDS),
        "kimi", "kimi-k2",
    ),
    "gpt2": ("gpt2:GPT2Model", lambda: {**slow_files(), "config.json": {}}, "", "gpt-2"),
    "gemma4": ("gemma:Gemma4Model", gemma4_files, "", "gemma4"),
    "gemma4, added tokens": ("gemma:Gemma4Model", gemma4_published, "", "gemma4"),
    "qwen2, slow": (
        "qwen:Qwen2Model",
        lambda: {**slow_files("Qwen2Tokenizer"), "config.json": {"vocab_size": 720}},
        "", "qwen2",
    ),
}  # fmt: skip


def encoded(files: Files) -> dict[str, bytes]:
    return {n: c if isinstance(c, bytes) else json.dumps(c).encode() for n, c in files.items()}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Files, Path]]:
    root, jobs, sources = tmp_path_factory.mktemp("reference"), [], {}
    for name, (method, make, kind, pre) in REFERENCES.items():
        files = make()
        files["config.json"].setdefault("vocab_size", 704)
        sources[name] = (files, root / f"{name}.gguf")
        folder = write_folder(encoded(files), root / name)
        if kind:
            known, found = table(kind), vocab(files)
            special = {
                t: i for i, (t, k) in enumerate(zip(found.tokens, found.types, strict=True)) if k == TokenType.CONTROL
            }
            said = {"ranks": {t.decode("latin-1"): r for t, r in known.items()}, "special": special, "eos": 701}
            (folder / "ranks.json").write_text(json.dumps(said))
        jobs.append(Job(str(folder), str(sources[name][1]), pre=pre, method=method))
    results = convert_all(jobs)
    assert results == [None] * len(jobs), "\n".join(r[-1500:] for r in results if r)
    return sources


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("name", REFERENCES)
def test_keys_are_those_of_the_reference(name: str, references: dict[str, tuple[Files, Path]], tmp_path: Path) -> None:
    files, path = references[name]
    (tmp_path / "ours").write_bytes(gguf.header_bytes([], {**HEADS["llama"], **to_gguf(vocab(files))}))
    found, expected = (
        {k: v for k, v in gguf_file.read(p).fields.items() if k.startswith("tokenizer.")}
        for p in (tmp_path / "ours", path)
    )
    for key in expected:
        assert found.get(key) == expected[key], key
    # Ids that tokenizer_config.json or the class names and the reference looks for in tokenizer.json alone.
    more = {k.removeprefix("tokenizer.ggml.").removesuffix("_token_id") for k in found.keys() - expected.keys()}
    assert more <= {"unknown", "bos", "eos", "padding"}
    assert [k for k in found if k in expected] == list(expected)


# ------------------------------------------------------------------------ what only names tell


def test_llamas_special_tokens_are_those_of_their_version() -> None:
    old, new = vocab(llama_files()), vocab(llama_files(rope_scaling={"rope_type": "llama3", "factor": 8.0}))
    assert (old.tokens[704], new.tokens[704]) == ("<|reserved_special_token_2|>", "<|finetune_right_pad_id|>")
    assert old.tokens[700:702] == new.tokens[700:702] == ["<|begin_of_text|>", "<|end_of_text|>"]
    assert (old.tokens[709], new.tokens[708:711]) == ("<|eot_id|>", ["<|eom_id|>", "<|eot_id|>", "<|python_tag|>"])
    assert (old.tokens[710], old.tokens[-1]) == ("<|reserved_special_token_5|>", "<|reserved_special_token_250|>")
    assert (new.tokens[711], new.tokens[-1]) == ("<|reserved_special_token_2|>", "<|reserved_special_token_246|>")
    assert len(old) == len(new) == 956
    assert old.special == {"bos": 700, "eos": 701}


def test_qwens_and_kimis_special_tokens() -> None:
    qwen, kimi = vocab(qwen_files()), vocab(kimi_files())
    assert qwen.tokens[700:704] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_0|>"]
    assert qwen.tokens[907:909] == ["<|extra_204|>", "[PAD908]"]
    assert qwen.special == {"bos": 700, "eos": 700, "unk": 700}
    assert any("NFC" in line for line in losses(qwen))
    assert kimi.tokens[700:704] == ["[BOS]", "[EOS]", "<|im_end|>", "<|reserved_token_703|>"]
    assert len(kimi) == 720
    assert kimi.template == "{{ x }}"
    free = dict(kimi_files())
    del free["config.json"]
    assert len(vocab(free)) == 958


def test_another_models_ranks_need_a_name() -> None:
    data = vocabularies.tiktoken_file(table("llama"))
    other = {"tokenizer.model": data, "config.json": {"architectures": ["ChatGLMModel"]}}
    with pytest.raises(UnsupportedError, match="pre=NAME"):
        vocab(other)
    with pytest.raises(UnsupportedError, match="added_tokens_decoder"):
        vocab(other, pre="glm4")
    other["tokenizer_config.json"] = {"added_tokens_decoder": {"702": {"content": "<|user|>"}}, "eos_token": "<|user|>"}
    found = vocab(other, pre="glm4")
    assert (found.pre, found.tokens[700:], found.special) == (
        "glm4",
        ["[PAD700]", "[PAD701]", "<|user|>"],
        {"eos": 702},
    )
    named = {"hy.tiktoken": data, "tokenizer_config.json": other["tokenizer_config.json"]}
    assert vocab(named, pre="hunyuan", names=["hy.tiktoken"]).pre == "hunyuan"
    with pytest.raises(UnsupportedError, match="no pre-tokenizer named"):
        vocab(llama_files(), pre="nothing-like-it")


def test_the_name_of_a_file_tells_whose_it_is() -> None:
    assert [(row.name, row.pre) for row in tables().rank_files] == [
        ("tiktoken.model", "kimi-k2"), ("qwen.tiktoken", "qwen2"), ("tokenizer.model", "llama-bpe"),
    ]  # fmt: skip


# ------------------------------------------------------------------------ Mistral


def tekken_with(change: Callable[[Any], object]) -> Files:
    content = json.loads(folder_files("tekken")["tekken.json"])
    change(content)
    return {"tekken.json": content}


def test_a_tekken_of_before_v8_has_its_special_tokens_from_the_program() -> None:
    found = vocab(tekken_with(lambda t: t.pop("special_tokens")))
    assert found.tokens[:20] == tables().tekken.special
    assert found.special == {"bos": 1, "eos": 2, "unk": 0, "pad": 11}


def test_fillers_stand_up_to_the_number_of_special_tokens() -> None:
    found = trained("tekken")
    assert found.tokens[7:20] == [f"<SPECIAL_{i}>" for i in range(7, 20)]
    assert found.tokens[20] == "Ā"
    free = vocab(tekken_with(lambda t: t["config"].update(default_num_special_tokens=None, default_vocab_size=None)))
    assert len(free) == 707


VERSIONS = (("v1", None), ("v3", "mistral-v3-tekken"), ("v7", "mistral-v7-tekken"), ("v13", None))


@pytest.mark.parametrize(("version", "name"), VERSIONS)
def test_a_version_has_a_template_of_llamacpps(version: str, name: str | None) -> None:
    found = vocab(tekken_with(lambda t: t["config"].update(version=version)))
    assert found.template == name
    assert any("chat template" in line and version in line for line in found.losses) == (name is None)
    own = vocab({**tekken_with(lambda t: None), "chat_template.jinja": b"{{ own }}"})
    assert (own.template, own.losses) == ("{{ own }}", ())


def test_a_name_of_llamacpps_is_no_template_for_others() -> None:
    found = trained("tekken")
    assert "chat_template.jinja" not in to_hf(found)
    assert any("'mistral-v7-tekken'" in line for line in losses(found))


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "template"), [("tokenizer.model.v3", "mistral-v3"), ("x.model.v7m1", "mistral-v7")])
def test_mistrals_sentencepiece_models(name: str, template: str) -> None:
    """The version in the name tells the template; ids and flags are the model's own."""
    data = vocabularies.sentencepiece_model()
    found = vocab({name: data, "config.json": {"eos_token_id": 7}}, names=[name, "tokenizer.model.v2", "config.json"])
    assert (found.kind, found.template) == (VocabKind.SPM, template)
    assert (found.special, found.add) == ({"bos": 1, "eos": 2, "unk": 0, "pad": 2}, {"bos": True, "eos": False})
    assert llamacpp_ids(found, TEXTS[:4]) == llamacpp_ids(trained("spm"), TEXTS[:4])
    if name in tekken.TRIED:
        assert vocab({name: data}).template == template


# ------------------------------------------------------------------------ vocab.json and merges.txt


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_a_slow_folder_is_read_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    files = {**slow_files(kind), "added_tokens.json": {"<tool>": 701}}
    found = vocab(files)
    model = {"GPT2Tokenizer": "gpt2", "Qwen2Tokenizer": "qwen2"}[kind]
    folder = write_folder(encoded(files), tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": model}))
    sample = [*(t for t in TEXTS if "\u0301" not in t), "a<tool>b"]
    expected = auto_ids(folder, sample)
    assert llamacpp_ids(found, sample) == expected
    assert tokenizers_ids(to_hf(found), sample) == expected


def test_a_slow_roberta_has_tokens_around_its_text() -> None:
    files = slow_files("RobertaTokenizer")
    for i, text in enumerate(("<s>", "<pad>", "</s>", "<unk>")):
        files["vocab.json"][text] = 701 + i
    found = vocab(files)
    assert found.pre == "roberta-bpe"
    assert {r: found.token(r) for r in ("bos", "eos", "sep", "unk")} == {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "unk": "<unk>",
    }
    assert found.add == {"bos": True, "eos": True, "sep": True}


def test_a_slow_folder_without_a_class_needs_a_name() -> None:
    files = slow_files("OwnTokenizer")
    with pytest.raises(UnsupportedError, match="OwnTokenizer"):
        vocab(files)
    assert vocab(files, pre="starcoder").pre == "starcoder"
    del files["tokenizer_config.json"]
    assert vocab({**files, "config.json": {"architectures": ["GPT2LMHeadModel"]}}).pre == "gpt-2"


# ------------------------------------------------------------------------ what is wrong


def lines(change: Callable[[list[bytes]], object]) -> Files:
    rows = vocabularies.tiktoken_file(table("llama")).split(b"\n")
    change(rows)
    return {"tokenizer.model": b"\n".join(rows)}


def row(token: bytes, rank: int) -> bytes:
    return base64.b64encode(token) + b" %d" % rank


# name -> (files, what the message says)
BAD: dict[str, tuple[Callable[[], Files], str]] = {
    "line without a rank": (lambda: lines(lambda r: r.insert(5, b"QUJD")), r"tokenizer\.model, line 6: .*found QUJD"),
    "line of html": (lambda: lines(lambda r: r.insert(9, b"<html>")), r"line 10: .*<html>"),
    "no utf-8": (lambda: lines(lambda r: r.insert(9, b"\xff\xfe 7")), "line 10"),
    "base64 that ends early": (lambda: lines(lambda r: r.insert(9, b"QUJ 900")), "line 10: not base64"),
    "empty token": (lambda: lines(lambda r: r.insert(9, b" 900")), "line 10"),
    "token of 2000 bytes": (lambda: lines(lambda r: r.insert(9, row(b"x" * 2000, 900))), r"line 10.*1\.\.1024 bytes"),
    "rank of 10^8": (lambda: lines(lambda r: r.insert(9, row(b"zq", 10**8))), "line 10: the rank is out of range"),
    "rank of 30 digits": (lambda: lines(lambda r: r.insert(9, b"QUJD " + b"9" * 30)), "line 10"),
    "token twice": (lambda: lines(lambda r: r.append(row(b"a", 900))), "line 702: a token occurs twice"),
    "rank twice": (lambda: lines(lambda r: r.append(row(b"zq", 97))), "have the same rank"),
    "a byte is missing": (lambda: lines(lambda r: r.pop(97)), r"not every byte.*found 255[\s\S]*0x61"),
    "cut": (lambda: {"tokenizer.model": vocabularies.tiktoken_file(table("llama"))[:3000]}, "not every byte|line"),
    "more tokens than the model": (lambda: llama_files(vocab_size=900), r"vocab_size.*>= 956, found 900"),
    "special token among the ranks": (
        lambda: lines(lambda r: r.append(row(b"<|eot_id|>", 700))), "twice, as id 700 and 710",
    ),
    "added id of 10^9": (
        lambda: {
            **folder_files("kimi"), "tokenizer_config.json": {"added_tokens_decoder": {"1000000000": {"content": "x"}}},
        },
        "added_tokens_decoder",
    ),
    "tekken that is no json": (lambda: {"tekken.json": b"{"}, r"tekken\.json"),
    "tekken without a vocabulary": (lambda: tekken_with(lambda t: t.pop("vocab")), r"tekken\.json.*vocab"),
    "tekken without a pattern": (lambda: tekken_with(lambda t: t["config"].pop("pattern")), r"tekken\.json.*pattern"),
    "tekken, rank isn't its place": (
        lambda: tekken_with(lambda t: t["vocab"][300].update(rank=3)), r"vocab\[300\]\.rank.*found 3",
    ),
    "tekken, token twice": (
        lambda: tekken_with(lambda t: t["vocab"][300].update(token_bytes="YQ==")), "twice, at 97 and 300",
    ),
    "tekken, no base64": (
        lambda: tekken_with(lambda t: t["vocab"][300].update(token_bytes="?")), r"vocab\[300\].*base64",
    ),
    "tekken, a byte is missing": (
        lambda: tekken_with(lambda t: t["vocab"][97].update(token_bytes="//79")), "not every byte",
    ),
    "tekken, smaller than it says": (
        lambda: tekken_with(lambda t: t["config"].update(default_vocab_size=9000)), r"default_vocab_size.*found 9000",
    ),
    "tekken of no tokens": (
        lambda: tekken_with(lambda t: t["config"].update(default_vocab_size=20)), r"default_vocab_size.*found 20",
    ),
    "tekken, 10^9 special tokens": (
        lambda: tekken_with(lambda t: t["config"].update(default_num_special_tokens=10**9)), "num_special_tokens",
    ),
    "tekken, more special tokens than it says": (
        lambda: tekken_with(lambda t: t["config"].update(default_num_special_tokens=3)), "more special tokens",
    ),
    "tekken, gap among special tokens": (
        lambda: tekken_with(lambda t: t["special_tokens"][3].update(rank=9)),
        r"ranks have gaps \(expected 3, found 4\)",
    ),
    "tekken without <s>": (
        lambda: tekken_with(lambda t: t["special_tokens"][1].update(token_str="<x>")), "special tokens are missing",
    ),
    "vocab.json without merges.txt": (
        lambda: {n: c for n, c in slow_files().items() if n != "merges.txt"}, r"merges\.txt[\s\S]*get merges\.txt",
    ),
    "vocab.json, id as text": (lambda: {**slow_files(), "vocab.json": {"a": "1"}}, r"vocab\.json"),
    "vocab.json, a list": (lambda: {**slow_files(), "vocab.json": ["a"]}, r"vocab\.json"),
    "merge of three": (lambda: {**slow_files(), "merges.txt": b"a b c\n"}, r"merges\.txt, line 1.*found a b c"),
    "merge of one": (lambda: {**slow_files(), "merges.txt": b"#v\n! \n"}, r"merges\.txt, line 2"),
    "merge of an unknown token": (lambda: {**slow_files(), "merges.txt": b"qq zz\n"}, "found qq"),
    "merges that aren't text": (lambda: {**slow_files(), "merges.txt": b"\xff\xfe"}, r"merges\.txt, byte 0"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "why"), BAD.values(), ids=BAD)
def test_a_bad_file_is_a_format_error(files: Callable[[], Files], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        to_gguf(vocab(files()))


def test_a_pattern_that_is_not_tekkens_names_the_nearest() -> None:
    files = tekken_with(lambda t: t["config"].update(pattern=r"\p{L}+|\p{N}"))
    with pytest.raises(UnsupportedError, match="nearest"):
        vocab(files)
    assert vocab(files, pre="tekken").pre == "tekken"


def test_an_empty_list_of_merges_is_told() -> None:
    with pytest.raises(FormatError, match=r"merges\.txt.*without merges"):
        vocab({**slow_files(), "merges.txt": b"#version: 0.2\n"})


@pytest.mark.costly
def test_a_hostile_token_takes_no_time() -> None:
    """Quadratic work in a row of one letter would take minutes for such a file."""
    known = {bytes([b]): b for b in range(256)} | {b"a" * n: 254 + n for n in range(2, 1025)}
    assert len(bpe_ranks.natural(known)) == 1023


# ------------------------------------------------------------------------ mutation

TABLES = tables()
LLAMA_RANKS = TABLES.rank_files[-1]


def _tekken(**changes: Any) -> TokenizerTables:
    return msgspec.structs.replace(TABLES, tekken=msgspec.structs.replace(TABLES.tekken, **changes))


def _ranks(**changes: Any) -> TokenizerTables:
    changed = msgspec.structs.replace(LLAMA_RANKS, **changes)
    return msgspec.structs.replace(TABLES, rank_files=[*TABLES.rank_files[:-1], changed])


# Faults of the tables, each of which must show in what the folder becomes.
FAULTS: dict[str, tuple[TokenizerTables, Callable[[], Files]]] = {
    "a filler's name": (_tekken(filler="<SPECIAL{}>"), lambda: dict(folder_files("tekken"))),
    "unlisted special tokens": (
        _tekken(special=TABLES.tekken.special[:-1]), lambda: tekken_with(lambda t: t.pop("special_tokens")),
    ),
    "a role": (_tekken(roles={**TABLES.tekken.roles, "pad": "[INST]"}), lambda: dict(folder_files("tekken"))),
    "a template's name": (_tekken(templates={}), lambda: dict(folder_files("tekken"))),
    "special tokens": (_ranks(special=LLAMA_RANKS.special_by_rope_type["llama3"]), llama_files),
    "special tokens by rope type": (
        _ranks(special_by_rope_type={}), lambda: llama_files(rope_scaling={"rope_type": "llama3"}),
    ),
    "the rank file": (_ranks(pre="kimi-k2", listed=True), llama_files),
}  # fmt: skip


def test_a_fault_in_the_byte_alphabet_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = to_gguf(vocab(llama_files()))
    monkeypatch.setattr(bpe_ranks, "SPELLED", {**bpe_ranks.SPELLED, 65: "B", 66: "A"})
    assert to_gguf(vocab(llama_files())) != right


@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_rule_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, files = FAULTS[fault]
    right = to_gguf(vocab(files()))
    for module in (tekken, tiktoken, folder_module):
        monkeypatch.setattr(module, "tables", lambda: changed)
    try:
        assert to_gguf(vocab(files())) != right
    except FormatError:
        return
