"""What the tokenizer tests share: small vocabularies trained here, texts that tokenizers get wrong, and the two judges
(llama.cpp on a GGUF without tensors, transformers on a folder).

A vocabulary that shall see how a text is cut must have tokens across every place where it might be cut. So the
byte-level one is trained without any pre-tokenizer, on the texts it is then tried on (and the standard library's help).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.llamacpp import Model

from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV
from weighbridge.io.source import FileSource
from weighbridge.models.tokenizer import TokenType, Vocab, VocabKind, from_gguf, from_hf, to_gguf

# Spaces, digit runs, emoji, CJK, newline runs, apostrophes, accents (composed), case changes, punctuation, scripts.
NASTY = (
    "Hello world",
    " leading and trailing  ",
    "two  spaces   three    four",
    "a\nb\n\nc\n\n\nd\r\ne\t\tf",
    "    indented\n        deeper\n",
    "The year 1984, pi is 3.14159265; x=-42! 1234567 12 1",
    "It's we'll they'VE I'D we'Re don'T 'twas rock'n'roll",
    "naïve café — “quotes” … ¿qué? über",
    "漢字とかな、한국어 кириллица ελληνικά עברית العربية",
    "🦙 llama 🏗️ 👩‍👩‍👧 ok",
    "def f(x: int) -> str:\n    return f'{x!r}'  # done\n",
    "CamelCaseWORDSandSnake_case_words HTTPServer",
    "!!! ??? ... ::: /// https://example.org/a?b=c&d=1",
    "x+y=z <tag> $5 `code` ^caret~ |pipe|",
    "\u00a0nbsp \u2003em \u3000wide",
    "½ ² Ⅷ ٣٤٥ 一二三",
    "我想在apple工作1314151天～ ひらがなABCカナ",
    "<sentinel:12> 12345 678901",
    "678901 12 is a number",
    "xIMGIMGABCZy",
    "dash — ",
    "end!\n  \n\nnext;\n",
    "zqxj (zqxj) tail  ",
    "",
    " ",
    "\n",
)  # fmt: skip
PLAIN = tuple(t for t in NASTY if t.isascii())

# What llama.cpp wants to know of a model before it reads the vocabulary (facts: the minimal keys of an architecture).
HEADS: Mapping[str, dict[str, KV]] = {
    name: {
        "general.architecture": KV("str", name),
        f"{name}.context_length": KV("u32", 128),
        f"{name}.embedding_length": KV("u32", 32),
        f"{name}.block_count": KV("u32", 1),
        f"{name}.feed_forward_length": KV("u32", 32),
        f"{name}.attention.head_count": KV("u32", 2),
        f"{name}.attention.layer_norm_{norm}epsilon": KV("f32", 1e-5),
    }
    for name, norm in (("llama", "rms_"), ("bert", ""))
}


def architecture(vocab: Vocab) -> str:
    return "bert" if vocab.kind == VocabKind.WORDPIECE else "llama"


def write_gguf(vocab: Vocab, path: Path) -> Path:
    """A GGUF of this vocabulary, without tensors."""
    head = HEADS[architecture(vocab)]
    path.write_bytes(gguf.header_bytes([], {**head, **to_gguf(vocab)}))
    return path


def llamacpp_ids(
    vocab: Vocab, texts: Sequence[str], *, add_special: bool = False, parse_special: bool = False
) -> list[list[int]]:
    """The ids that llama.cpp gives with this vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(vocab, Path(folder) / "vocab.gguf")
        with Model(path, vocab_only=True) as model:
            return [model.tokenize(t, add_special=add_special, parse_special=parse_special) for t in texts]


def tokenizers_ids(files: Mapping[str, bytes], texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
    """The ids that the tokenizers library gives with this tokenizer.json."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    return [tokenizer.encode(t, add_special_tokens=add_special).ids for t in texts]


def write_folder(files: Mapping[str, bytes], folder: Path, vocab: Vocab | None = None) -> Path:
    """The files, with a config.json as a model of this vocabulary would have it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    if vocab is not None:
        model, types = model_of(vocab)
        config = {"architectures": [ARCHITECTURES[model]], "model_type": model, "vocab_size": len(vocab), **types}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


ARCHITECTURES = {
    "bert": "BertModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration",
    "xlm-roberta": "XLMRobertaModel",
}  # fmt: skip


def model_of(vocab: Vocab) -> tuple[str, dict[str, int]]:
    """A model type that has such a vocabulary, and what its config says of token types."""
    if vocab.kind == VocabKind.WORDPIECE:
        return "bert", {"type_vocab_size": 2}
    if vocab.kind == VocabKind.UNIGRAM:
        return ("xlm-roberta", {"type_vocab_size": 1}) if "bos" in vocab.special else ("t5", {})
    return "llama", {}


def auto_ids(folder: Path, texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
    """The ids that transformers' AutoTokenizer gives with a folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.encode(t, add_special_tokens=add_special) for t in texts]


def reader(folder: Path) -> Any:
    """The callback that `from_hf` takes, over a folder."""
    return lambda name: (folder / name).read_bytes() if (folder / name).is_file() else None


def reading(files: Mapping[str, Any]) -> Any:
    """The callback that `from_hf` takes, over a mapping; values that aren't bytes are written as JSON."""

    def read(name: str) -> bytes | None:
        value = files.get(name)
        return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()

    return read


def through_file(vocab: Vocab, path: Path) -> Vocab:
    """The vocabulary as it comes back from a GGUF."""
    return from_gguf(gguf.parse(FileSource(write_gguf(vocab, path))).metadata)


@cache
def folder_files(kind: str) -> Mapping[str, bytes]:
    """The tokenizer files of `vocabularies.WRITERS[kind]`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabularies.WRITERS[kind](folder)
        return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


@cache
def uncut() -> Vocab:
    """A byte-level vocabulary with tokens across all places where a pre-tokenizer may cut (see the module)."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=alphabet, show_progress=False, min_frequency=2, max_token_length=12
    )
    tokenizer.train_from_iterator([*vocabularies.text()[:1500], *[t for t in NASTY if "zqxj" not in t] * 200], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += ["zqxj", "<|end|>"]  # the first is made by no merge: `ignore_merges` finds it
    types = [int(TokenType.NORMAL)] * (len(tokens) - 1) + [int(TokenType.CONTROL)]
    special = {"bos": len(tokens) - 1, "eos": len(tokens) - 1}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return Vocab(VocabKind.BPE, tokens, types, merges=merges, pre="gpt-2", special=special, add={"bos": False})


def with_pre(name: str) -> Vocab:
    return replace(uncut(), pre=name)


def trained(kind: str) -> Vocab:
    """`from_hf` over the files of a trained tokenizer."""
    return from_hf(reading(folder_files(kind)))
