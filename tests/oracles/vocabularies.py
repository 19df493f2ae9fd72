"""Tokenizers trained in the test, on text that every Python carries (`pydoc_data.topics`, 450 kB of English).

Four kinds, each in the files that its models are published with: SentencePiece BPE with byte fallback as Llama 2 and
Mistral have it (`tokenizer.model`, or only `tokenizer.json`), byte-level BPE with the pre-tokenizer of Llama 3,
the same with Qwen 2's, WordPiece as BERT has it.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

SPM_SIZE, BPE_SIZE, WORDPIECE_SIZE = 640, 704, 608
QWEN_SIZE, QWEN_TOKENS = 704, 696  # a Qwen's embedding has more rows than its tokenizer has tokens

# The Split pattern of Llama 3's tokenizer.json; llama.cpp calls it "llama-bpe" (llama-vocab.cpp).
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_PRE = "llama-bpe"
# Qwen 2's: digits one by one.
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN_PRE = "qwen2"
UNIGRAM_PIECES, SENTINELS = 600, 4
T5_SIZE, XLMR_SIZE, CAMEMBERT_SIZE = 608, 602, 605  # T5's embedding has more rows than its tokenizer has tokens
RANKS = 700
RWKV_SIZE = 352
PLAMO_SIZE = 704
PLAMO = ("plamo2", "plamo3")
TEKKEN_SPECIAL, TEKKEN_SIZE, KIMI_SIZE = 20, 704, 720
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}]*{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}]+{_LOWER}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PATTERN = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}&&[^\p{{Han}}]]*{_LOWER}&&[^\p{{Han}}]]+{_SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}&&[^\p{{Han}}]]+{_LOWER}&&[^\p{{Han}}]]*{_SUFFIX}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
BERT_PRE = "jina-v2-en"  # what the reference finds for the vocabulary of bert-base-uncased

# What tokenizers get wrong: spaces at the edges, runs, digits, marks, case, byte fallback, newlines, names of tokens.
SAMPLES = (
    "Hello world",
    " leading and trailing ",
    "two  spaces   three\n\n\tand a tab",
    "The year 1984, pi is 3.14159; x=-42!",
    "It's we'll they'VE I'd",
    "naïve café — “quotes” …",
    "漢字とかな, кириллица, ελληνικά",
    "🦙 llama 🏗️",
    "def f(x: int) -> str:\n    return f'{x!r}'\r\n",
    "<s> </s> <|begin_of_text|> [CLS] not special here?",
    "",
    " ",
)


def text() -> list[str]:
    """Non-empty lines of the standard library's help topics."""
    from pydoc_data.topics import topics

    return [line for topic in topics.values() for line in topic.splitlines() if line.strip()]


# Names of special tokens are left out: libraries read those in plain text by rules of their own.
TEXTS = [sample for sample in SAMPLES if "<s>" not in sample] + text()[:400]
Encode = Callable[[str], list[int]]


def _sentencepiece_encode(text: str) -> list[int]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=sentencepiece_model())
    ids: list[int] = processor.encode(text)
    return [processor.bos_id(), *ids]


def owner(kind: str, folder: Path) -> Encode:
    """The encoder that the model's publisher would run: sentencepiece, or the tokenizer.json of the folder."""
    if kind.startswith("spm"):
        return _sentencepiece_encode
    if kind == "rwkv":
        return _longest_match
    if kind in PLAMO:
        return partial(_best_cut, apart=kind == "plamo3")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: list(tokenizer(text).input_ids)


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


@cache
def sentencepiece_model(prefixed: bool = True) -> bytes:
    """Options as Llama 2's own tokenizer.model records them (its trainer_spec and normalizer_spec)."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text()),
        model_writer=out,
        model_type="bpe",
        vocab_size=SPM_SIZE,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefixed,
        normalization_rule_name="identity",
        character_coverage=0.9999,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        num_threads=1,
        minloglevel=3,
    )
    return out.getvalue()


_SPM_CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "legacy": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 512,
}

CHAT_TEMPLATE = "{% for m in messages %}<s>[INST] {{ m['content'] | trim }} [/INST]{% endfor %}"


def write_sentencepiece(folder: Path) -> None:
    """tokenizer.model alone, as the first Llamas had it."""
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    _json(folder / "tokenizer_config.json", _SPM_CONFIG | {"chat_template": CHAT_TEMPLATE})
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _json(folder / "special_tokens_map.json", special)


def write_sentencepiece_json(folder: Path) -> None:
    """The same vocabulary as tokenizer.json alone, as transformers 5 writes it."""
    from transformers import AutoTokenizer

    slow = folder / "slow"
    slow.mkdir()
    write_sentencepiece(slow)
    _json(slow / "config.json", {"model_type": "llama"})
    AutoTokenizer.from_pretrained(slow).save_pretrained(folder)
    for file in slow.iterdir():
        file.unlink()
    slow.rmdir()
    _json(folder / "tokenizer_config.json", _SPM_CONFIG)


def _byte_level(model: Any, pattern: str, size: int, special: list[str]) -> Any:
    """A byte-level tokenizer, trained; its special tokens above the vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers

    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - len(special), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text(), trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def write_qwen(folder: Path) -> None:
    """tokenizer.json as Qwen 2 has it: NFC, no BOS, fewer tokens than the embedding has rows."""
    from tokenizers import models, normalizers, processors

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = _byte_level(models.BPE(), QWEN_PATTERN, QWEN_TOKENS, special)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "eos_token": special[2],
            "pad_token": special[0],
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 131072,
            "chat_template": CHAT_TEMPLATE.replace("<s>", special[1]),
        },
    )


def write_byte_level(folder: Path) -> None:
    """tokenizer.json as Llama 3 has it: special tokens above the vocabulary, BOS from the post-processor."""
    from tokenizers import models, processors

    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>"]
    tokenizer = _byte_level(models.BPE(ignore_merges=True), LLAMA3_PATTERN, BPE_SIZE, special)
    bos = special[0]
    template = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special[0],
            "eos_token": special[1],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 131072,
            "chat_template": CHAT_TEMPLATE.replace("<s>", special[0]),
        },
    )


def write_wordpiece(folder: Path) -> None:
    """vocab.txt and tokenizer.json as bert-base-uncased has them."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(text(), vocab_size=WORDPIECE_SIZE, show_progress=False)
    tokenizer.save_model(str(folder))
    # Loaded from vocab.txt, as the published tokenizers were: so the post-processor ([CLS] $A [SEP]) is in the file.
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    common = {"do_lower_case": True, "model_max_length": 128, "strip_accents": None, "tokenize_chinese_chars": True}
    _json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **common, **special})
    _json(folder / "special_tokens_map.json", special)


def write_gemma(folder: Path) -> None:
    """The same as Gemma has it: no space is put in front."""
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(prefixed=False))
    _json(folder / "tokenizer_config.json", _SPM_CONFIG | {"tokenizer_class": "GemmaTokenizer"})


def write_gemma4(folder: Path) -> None:
    """tokenizer.json as Gemma 4 has it: the vocabulary as BPE over characters, spaces written as U+2581, nothing put in
    front but the first token."""
    write_sentencepiece_json(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    tokenizer["pre_tokenizer"] = split
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    _json(path, tokenizer)
    _json(folder / "tokenizer_config.json", _SPM_CONFIG | {"tokenizer_class": "PreTrainedTokenizerFast"})


def write_glm(folder: Path) -> None:
    """tokenizer.json as GLM-4 has it: Llama 3's pattern, tokens that the reference looks for by name."""
    from tokenizers import models

    special = ["<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>"]
    _byte_level(models.BPE(ignore_merges=True), LLAMA3_PATTERN, BPE_SIZE, special).save(str(folder / "tokenizer.json"))
    named = {"eos_token": special[0], "pad_token": special[0], "clean_up_tokenization_spaces": False}
    _json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **named})


def write_roberta(folder: Path) -> None:
    """tokenizer.json as RoBERTa has it: GPT-2's pieces, special tokens below them, `<s> $A </s>` from its processor."""
    from tokenizers import ByteLevelBPETokenizer, processors

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(text(), vocab_size=BPE_SIZE, special_tokens=special, show_progress=False)
    inner = tokenizer._tokenizer
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    inner.save(str(folder / "tokenizer.json"))
    named = dict(zip(("bos", "pad", "eos", "unk", "mask"), special, strict=True)) | {"cls": "<s>", "sep": "</s>"}
    tokens = {f"{name}_token": token for name, token in named.items()}
    common = {"add_prefix_space": False, "clean_up_tokenization_spaces": False, "model_max_length": 128}
    _json(folder / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer", **common, **tokens})


@cache
def unigram_model(name: str) -> bytes:
    """A SentencePiece Unigram model, with the ids and the normalizer of T5's or of XLM-R's."""
    import sentencepiece

    out = io.BytesIO()
    ids: dict[str, Any] = {
        "t5": dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
        "xlmr": dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1),
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text()),
        model_writer=out,
        model_type="unigram",
        vocab_size=UNIGRAM_PIECES,
        normalization_rule_name="nmt_nfkc",
        character_coverage=0.9999,
        num_threads=1,
        minloglevel=3,
        **ids[name],
    )
    return out.getvalue()


T5_CONFIG = {
    "tokenizer_class": "T5Tokenizer",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "extra_ids": SENTINELS,
    "additional_special_tokens": [f"<extra_id_{i}>" for i in range(SENTINELS)],
    "clean_up_tokenization_spaces": True,
    "model_max_length": 512,
}
XLMR_CONFIG = {
    "tokenizer_class": "XLMRobertaTokenizer",
    **{f"{role}_token": token for role, token in zip(("bos", "eos", "sep"), ("<s>", "</s>", "</s>"), strict=True)},
    **{f"{role}_token": f"<{role}>" for role in ("pad", "unk", "mask")},
    "cls_token": "<s>",
    "clean_up_tokenization_spaces": True,
    "model_max_length": 512,
}


def _published(folder: Path, name: str, model: bytes, config: dict[str, Any], model_type: str) -> None:
    """The SentencePiece model, and the tokenizer.json that transformers makes of it."""
    from transformers import AutoTokenizer

    slow = folder / "slow"
    slow.mkdir()
    (slow / name).write_bytes(model)
    _json(slow / "tokenizer_config.json", config)
    _json(slow / "config.json", {"model_type": model_type})
    AutoTokenizer.from_pretrained(slow).save_pretrained(folder)
    for file in slow.iterdir():
        file.unlink()
    slow.rmdir()
    (folder / name).write_bytes(model)
    _json(folder / "tokenizer_config.json", config)


def write_t5(folder: Path) -> None:
    """spiece.model and tokenizer.json as T5 has them: sentinels behind the pieces, </s> behind a text."""
    _published(folder, "spiece.model", unigram_model("t5"), T5_CONFIG, "t5")


def write_xlmr(folder: Path) -> None:
    """sentencepiece.bpe.model and tokenizer.json as XLM-R has them: fairseq's four tokens first, <mask> last."""
    _published(folder, "sentencepiece.bpe.model", unigram_model("xlmr"), XLMR_CONFIG, "xlm-roberta")


def write_camembert(folder: Path) -> None:
    """tokenizer.json as CamemBERT has it: five tokens that no text has, then SentencePiece's own, <mask> last."""
    from sentencepiece import sentencepiece_model_pb2
    from transformers import CamembertTokenizer

    model = sentencepiece_model_pb2.ModelProto.FromString(unigram_model("xlmr"))
    unused = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    pieces = [(piece.piece, piece.score) for piece in model.pieces[1:]]
    charsmap = model.normalizer_spec.precompiled_charsmap
    CamembertTokenizer(
        vocab=[*unused, *pieces, ("<mask>", 0.0)], _spm_precompiled_charsmap=charsmap, model_max_length=512
    ).save_pretrained(folder)


@cache
def ranks(pattern: str) -> dict[bytes, int]:
    """A rank table as tiktoken has it: the 256 bytes, then what training over `pattern` merged, in its order."""
    from tokenizers import models, pre_tokenizers

    tokenizer = _byte_level(models.BPE(), pattern, RANKS, [])
    model = json.loads(tokenizer.to_str())["model"]
    printable = [b for b in range(256) if chr(b).isprintable() and b not in (0x20, 0xAD) and not 0x80 <= b <= 0xA0]
    rest = [b for b in range(256) if b not in printable]
    byte = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}
    assert set(byte) == set(pre_tokenizers.ByteLevel.alphabet())
    tokens = [bytes(byte[c] for c in t) for t in sorted(model["vocab"], key=model["vocab"].get)]
    table = {bytes([b]): b for b in range(256)}
    for token in tokens:
        table.setdefault(token, len(table))
    return table


def tiktoken_file(table: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in table.items())


MISTRAL_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>", "[SYSTEM_PROMPT]")


def write_tekken(folder: Path) -> None:
    """tekken.json as Mistral has it: special tokens and fillers first; more ranks than the vocabulary takes."""
    table = ranks(TEKKEN_PATTERN)
    special = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(MISTRAL_SPECIAL)]
    rows = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode("utf-8", "replace")}
        for token, rank in table.items()
    ]
    config = {
        "pattern": TEKKEN_PATTERN, "num_vocab_tokens": len(rows), "default_vocab_size": TEKKEN_SIZE,
        "default_num_special_tokens": TEKKEN_SPECIAL, "version": "v7",
    }  # fmt: skip
    _json(folder / "tekken.json", {"config": config, "vocab": rows, "special_tokens": special})


KIMI_SPECIAL = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 5: "[EOT]", 10: "[UNK]", 11: "[PAD]"}


def write_kimi(folder: Path) -> None:
    """tiktoken.model as Kimi K2 has it: special tokens by id in tokenizer_config.json."""
    table = ranks(KIMI_PATTERN)
    (folder / "tiktoken.model").write_bytes(tiktoken_file(table))
    rows = {str(len(table) + i): {"content": t, "special": True} for i, t in KIMI_SPECIAL.items()}
    named = {f"{r}_token": f"[{r.upper()}]" for r in ("bos", "eos", "unk", "pad")}
    _json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": rows, "chat_template": "{{ x }}", **named},
    )


def write_modernbert(folder: Path) -> None:
    """tokenizer.json as ModernBERT has it: GPT-2's pieces, BERT's special tokens above them, `[CLS] $A [SEP]`."""
    from tokenizers import AddedToken, ByteLevelBPETokenizer, processors

    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(text(), vocab_size=BPE_SIZE - len(special), show_progress=False)
    inner = tokenizer._tokenizer
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    inner.save(str(folder / "tokenizer.json"))
    tokens = {f"{token[1:-1].lower()}_token": token for token in special}
    common = {"clean_up_tokenization_spaces": True, "model_max_length": 256}
    _json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **common, **tokens})


def rwkv_tokens() -> list[bytes]:
    """Every byte, then the commonest words with the space in front of them, sorted as RWKV World's are."""
    from collections import Counter

    words = Counter(word for line in text() for word in f" {line}".replace(" ", "\n ").split("\n") if len(word) > 2)
    chosen = [word.encode() for word, _ in words.most_common(60)]
    more = [b"\n\n", "é".encode(), b"\xe6\xbc", b"'\"", b"\\n"]
    return [bytes([i]) for i in range(256)] + sorted({*chosen, *more}, key=lambda token: (len(token), token))


def write_rwkv(folder: Path) -> None:
    """rwkv_vocab_v20230424.txt: text as Python's strings where it is UTF-8, else as bytes; and a chat template."""
    lines = []
    for number, token in enumerate(rwkv_tokens(), 1):
        try:
            shown = repr(token.decode())
        except UnicodeDecodeError:
            shown = repr(token)
        lines.append(f"{number} {shown} {len(token)}\n")
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines), encoding="utf-8")
    _json(folder / "tokenizer_config.json", {"tokenizer_class": "RwkvTokenizer", "chat_template": "{{ x }}"})


def _longest_match(text: str) -> list[int]:
    known = {token: number for number, token in enumerate(rwkv_tokens(), 1)}
    rest, out = text.encode(), []
    while rest:
        token = next(rest[:n] for n in range(min(len(rest), 64), 0, -1) if rest[:n] in known)
        out.append(known[token])
        rest = rest[len(token) :]
    return out


@cache
def plamo_tokens() -> list[list[Any]]:
    """PLaMo's own tokens, every byte, then words and their beginnings with scores; a Japanese one."""
    from collections import Counter

    own = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad", "cls", "sep", "mask", "op", "tag")]
    kinds = {"<|plamo:unk|>": "UNKNOWN", "<|plamo:op|>": "NORMAL"}
    words = Counter(word for line in text() for word in f" {line}".replace(" ", "\n ").split("\n"))
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for n in range(1, min(len(word), 9) + 1):
            parts[word[:n]] += count
    chosen = [part for part, _ in parts.most_common(PLAMO_SIZE - 256 - len(own) - 6)]
    scored = enumerate(dict.fromkeys([*chosen, "漢字", "<|plamo:begin_"]))
    return [
        *([name, 0.0, kinds.get(name, "CONTROL")] for name in own),
        *([f"<0x{i:02X}>", 0.0, "BYTE"] for i in range(256)),
        *([part, -2.0 - rank / 64, "NORMAL"] for rank, part in scored),
    ]


def write_plamo(folder: Path, number: int) -> None:
    """tokenizer.jsonl, with more numbers in a line than are read, and its settings; fewer tokens than the embedding has
    rows."""
    rows = [[*row, 1, 1.5] for row in plamo_tokens()]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / "tokenizer.jsonl").write_text("".join(lines), "utf-8")
    named = {f"{role}_token": f"<|plamo:{role}|>" for role in ("bos", "eos", "pad", "unk")}
    flags = {"add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False}
    _json(folder / "tokenizer_config.json", {"tokenizer_class": f"Plamo{number}Tokenizer", **named, **flags})


def _best_cut(text: str, *, apart: bool) -> list[int]:
    """bos, and the tokens of the best sum of scores; `apart`: PLaMo 3 cuts around runs first."""
    runs = (match[0] for match in re.finditer(r" {2,}|([^\n])\1{3,}|(?:(?! {2}|([^\n])\2{3}).|\n)+", text))
    return [1, *(token for run in (runs if apart else [text]) for token in _cut(run))]


def _cut(text: str) -> list[int]:
    known = {row[0]: (round(row[1] * 1e4), i) for i, row in enumerate(plamo_tokens()) if row[2] != "BYTE"}
    longest = max(map(len, known))
    cost, step = [0] * (len(text) + 1), [1] * (len(text) + 1)
    for at in range(len(text) - 1, -1, -1):
        pieces = [text[at : at + n] for n in range(1, min(longest, len(text) - at) + 1)]
        sums = [(cost[at + len(piece)] - known[piece][0], -len(piece)) for piece in pieces if piece in known]
        cost[at], step[at] = min([*sums, (cost[at + 1] + 10_000_000, 0)])
    out, at = [], 0
    while at < len(text):
        piece = text[at : at - step[at]]
        out += [known[piece][1]] if piece else [9 + byte for byte in text[at].encode()]
        at += len(piece) or 1
    return out


WRITERS: dict[str, Callable[[Path], None]] = {
    "none": lambda folder: None,
    "roberta": write_roberta,
    "modernbert": write_modernbert,
    "glm": write_glm,
    "gemma": write_gemma,
    "gemma4": write_gemma4,
    "spm": write_sentencepiece,
    "spm-json": write_sentencepiece_json,
    "bpe": write_byte_level,
    "qwen": write_qwen,
    "wordpiece": write_wordpiece,
    "t5": write_t5,
    "xlmr": write_xlmr,
    "camembert": write_camembert,
    "tekken": write_tekken,
    "kimi": write_kimi,
    "rwkv": write_rwkv,
    "plamo2": partial(write_plamo, number=2),
    "plamo3": partial(write_plamo, number=3),
}
SIZES = {
    "none": BPE_SIZE,
    "roberta": BPE_SIZE,
    "modernbert": BPE_SIZE,
    "glm": BPE_SIZE,
    "gemma": SPM_SIZE,
    "gemma4": SPM_SIZE,
    "spm": SPM_SIZE,
    "spm-json": SPM_SIZE,
    "bpe": BPE_SIZE,
    "qwen": QWEN_SIZE,
    "wordpiece": WORDPIECE_SIZE,
    "t5": T5_SIZE,
    "xlmr": XLMR_SIZE,
    "camembert": CAMEMBERT_SIZE,
    "tekken": TEKKEN_SIZE,
    "kimi": KIMI_SIZE,
    "rwkv": RWKV_SIZE,
    "plamo2": PLAMO_SIZE,
    "plamo3": PLAMO_SIZE,
}
PRE = {
    "none": None,
    "roberta": "roberta-bpe",
    "modernbert": "modern-bert",
    "glm": "chatglm-bpe",
    "gemma": None,
    "gemma4": None,
    "spm": None,
    "spm-json": None,
    "bpe": LLAMA3_PRE,
    "qwen": QWEN_PRE,
    "wordpiece": BERT_PRE,
    "t5": None,
    "xlmr": None,
    "camembert": None,
    "tekken": "tekken",
    "kimi": "kimi-k2",
    "rwkv": None,
    "plamo2": "default",
    "plamo3": "default",
}
