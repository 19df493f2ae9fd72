"""PLaMo's list of tokens: what a line may be, special tokens, and the way to a GGUF and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracles import vocabularies

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.tables.schema import TokenizerEntry
from weighbridge.models.tokenizer.gguf import from_gguf, to_gguf
from weighbridge.models.tokenizer.hf.lattice import NAME
from weighbridge.models.tokenizer.hf.read import from_hf
from weighbridge.models.tokenizer.hf.write import losses, to_hf
from weighbridge.models.tokenizer.vocab import TokenType, Vocab

GOOD = b'["<u>", 0, "UNKNOWN"]\n["<|plamo:op|>", 0.5, "NORMAL"]\n\n["<0x41>", 0, "BYTE", 1]\r\n["a|>", -1.5]\n'
SETTINGS = b'{"tokenizer_class": "Plamo2Tokenizer", "unk_token": {"content": "<u>"}, "add_bos_token": false}'
RULES = TokenizerEntry(eot="<|plamo:op|>", normal=["a|>"])


def read(lines: bytes = GOOD, size: int = 6, settings: bytes = SETTINGS, rules: TokenizerEntry = RULES) -> Vocab:
    files = {NAME: lines, "config.json": b'{"vocab_size": %d}' % size, "tokenizer_config.json": settings}
    return from_hf(files.get, rules=rules)


def test_tokens_types_and_scores() -> None:
    vocab = read()
    assert [*vocab.tokens] == ["<u>", "<|plamo:op|>", "<0x41>", "a|>", "[PAD1]", "[PAD2]"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE, TokenType.NORMAL, *[TokenType.UNUSED] * 2]
    assert [*vocab.types] == kinds
    assert [*vocab.scores] == [0.0, 0.5, 0.0, -1.5, -1000.0, -1000.0]
    assert (vocab.kind, vocab.special, vocab.add) == ("plamo2", {"unk": 0, "eot": 1}, {"bos": False})
    assert read(settings=SETTINGS.replace(b"Plamo2", b"Plamo3")).kind == "plamo3"


def test_a_token_may_be_normal_whatever_its_line_says() -> None:
    lines = b'["a|>", 0, "CONTROL"]\n["<|plamo:op|>", 0]\n'
    settings = b'{"tokenizer_class": "Plamo2Tokenizer"}'
    assert [*read(lines, 2, settings).types] == [TokenType.NORMAL, TokenType.CONTROL]
    assert [*read(lines, 2, settings, TokenizerEntry(eot="<|plamo:op|>")).types] == [TokenType.CONTROL] * 2


@pytest.mark.parametrize(
    "lines",
    [b"", b"[]\n", b'["a"]\n', b'[1, 2]\n', b'["a", "b"]\n', b'["a", true]\n', b'{"a": 1}\n', b'["a", 1', b"\xff\n",
     b"[" * 5000 + b"\n", b'["a", 1]\n' * 7],
)  # fmt: skip
def test_other_lines_are_refused(lines: bytes) -> None:
    with pytest.raises(FormatError, match=NAME):
        read(lines)


def test_a_token_that_is_named_but_absent_is_refused() -> None:
    with pytest.raises(FormatError, match="the eot token"):
        read(rules=TokenizerEntry(eot="<|plamo:tag|>"))
    with pytest.raises(FormatError, match="the unk token"):
        read(settings=SETTINGS.replace(b"<u>", b"<v>"))


def test_another_class_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="tokenizer class 'Own'"):
        read(settings=b'{"tokenizer_class": "Own"}')


@pytest.mark.parametrize("number", [2, 3])
def test_a_vocabulary_comes_back(number: int, tmp_path: Path) -> None:
    vocabularies.write_plamo(tmp_path, number)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    files["config.json"] = b'{"vocab_size": %d}' % vocabularies.PLAMO_SIZE
    rules = TokenizerEntry(eot="<|plamo:op|>", normal=["<|plamo:begin_"])
    vocab = from_hf(files.get, rules=rules)
    held = from_gguf({key: kv.value for key, kv in to_gguf(vocab).items()})
    back = from_hf({**to_hf(held, rules), "config.json": files["config.json"]}.get, rules=rules)
    assert ([*back.tokens], [*back.types], [*back.scores]) == ([*vocab.tokens], [*vocab.types], [*vocab.scores])
    assert (back.special, back.add, back.kind) == (vocab.special, vocab.add, vocab.kind)
    assert any("tokenization_plamo.py" in line for line in losses(held))
