"""RWKV World's list of tokens: what a line may be, and the way to a GGUF and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles import vocabularies

from weighbridge.base.errors import FormatError
from weighbridge.models.tokenizer.gguf import from_gguf, to_gguf
from weighbridge.models.tokenizer.hf.read import from_hf
from weighbridge.models.tokenizer.hf.rwkv import NAME, escaped, unescaped
from weighbridge.models.tokenizer.hf.write import losses, to_hf
from weighbridge.models.tokenizer.vocab import TokenType, Vocab

GOOD = b"1 '\\x00' 1\n2 b'\\xe6\\xbc' 2\n3 '\xc3\xa9' 2\n"


def read(lines: bytes, size: int = 8, settings: bytes = b"{}") -> Vocab:
    files = {NAME: lines, "config.json": b'{"vocab_size": %d}' % size, "tokenizer_config.json": settings}
    return from_hf(files.get)


def test_tokens_are_the_insides_of_bytes_literals() -> None:
    vocab = read(GOOD)
    assert [*vocab.tokens] == ["<s>", r"\x00", r"\xe6\xbc", r"\xc3\xa9", *(f"[PAD{i}]" for i in range(4, 8))]
    assert [*vocab.types] == [TokenType.CONTROL, *[TokenType.NORMAL] * 3, *[TokenType.UNUSED] * 4]


def test_special_tokens_and_template() -> None:
    vocab = read(b"".join(b"%d b'\\x%02x' 1\n" % (i + 1, i) for i in range(256)), 300)
    assert (vocab.special["bos"], vocab.special["eos"], vocab.special["eot"]) == (0, 0, 261)
    assert vocab.template == "rwkv-world"
    named = read(GOOD, settings=b'{"chat_template": "{{ x }}"}')
    assert named.template == "{{ x }}"


@pytest.mark.parametrize(
    "lines",
    [
        b"",  # no token
        b"2 'a' 1\n",  # another id
        b"1 'a' 2\n",  # another length
        b"1 'a'\n",
        b"1 a 1\n",  # no literal
        b"1 ['a'] 1\n",
        b"1 'a 1\n",
        b"1 " + b"(" * 600 + b" 1\n",
        b"1 '" + b"a" * 2000 + b"' 2000\n",
        b"99999999 'a' 1\n",
        b"".join(b"%d b'\\x%02x' 1\n" % (i + 1, i) for i in range(8)),  # as many as the model has, and <s>
    ],
)
def test_other_lines_are_refused(lines: bytes) -> None:
    with pytest.raises(FormatError, match=NAME):
        read(lines)


@given(st.binary(max_size=40))
def test_escapes_come_back(token: bytes) -> None:
    assert unescaped(escaped(token)) == token


def test_what_is_no_literal_is_refused() -> None:
    with pytest.raises(FormatError, match="bytes literal"):
        unescaped("\u20ac")


def test_a_vocabulary_comes_back(tmp_path: Path) -> None:
    vocabularies.write_rwkv(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    files["config.json"] = b'{"vocab_size": %d}' % vocabularies.RWKV_SIZE
    vocab = from_hf(files.get)
    held = from_gguf({key: kv.value for key, kv in to_gguf(vocab).items()})
    back = from_hf({**to_hf(held), "config.json": files["config.json"]}.get)
    assert ([*back.tokens], [*back.types], dict(back.special)) == ([*vocab.tokens], [*vocab.types], dict(vocab.special))
    assert back.templates == vocab.templates
    assert any("rwkv_tokenizer.py" in line for line in losses(held))
