"""Text becomes the same tokens in llama.cpp, from our GGUF, as in the library that owns the tokenizer.

The judge for SentencePiece is the sentencepiece library itself. (transformers 5 prepends its space only where the text
has none; llama.cpp follows sentencepiece, which always does.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import faults, gguf_file, llamacpp, reference_converter
from tests.oracles.models import CASES
from tests.oracles.reference_converter import Job
from tests.oracles.vocabularies import TEXTS, Encode, owner

import weighbridge as wb

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]

NAMES = ["llama", "llama3", "mistral", "qwen2", "bert"]
SPECIAL = {
    "llama": "</s>",
    "llama3": "<|reserved_special_token_0|>",
    "mistral": "</s>",
    "qwen2": "<|im_end|>",
    "bert": "[MASK]",
}
SPACED = {"llama": True, "llama3": False, "mistral": True, "qwen2": False}  # whose tokenizer puts a space in front


def wrong(spoken: list[llamacpp.Spoken], encode: Encode, texts: list[str]) -> list[Any]:
    """Texts whose tokens differ, or that don't come back as they were."""
    pairs = [(text, s.ids, encode(text)) for text, s in zip(texts, spoken, strict=True)]
    return [pair for pair in pairs if pair[1] != pair[2]]


def speak(path: Path, texts: list[str]) -> list[llamacpp.Spoken]:
    with llamacpp.Model(path, vocab_only=True) as model:
        return [model.speak(text) for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_tokenizes_as_the_owner_does(name: str, gguf_of: Converter, folder_of: Maker) -> None:
    spoken = speak(gguf_of(name, "f32"), TEXTS)
    assert wrong(spoken, owner(CASES[name].tokenizer, folder_of(name)), TEXTS)[:3] == []


@pytest.mark.parametrize("name", [n for n in NAMES if n != "bert"])
def test_text_comes_back(name: str, gguf_of: Converter) -> None:
    """Tokens spell the text, byte tokens too, special tokens not at all."""
    for text, spoken in zip(TEXTS, speak(gguf_of(name, "f32"), TEXTS), strict=True):
        assert spoken.text.removeprefix(" " if SPACED[name] else "") == text


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_are_special(name: str, gguf_of: Converter, folder_of: Maker) -> None:
    """Parsed as one token where that is asked for, plain text where it isn't, and not shown as text."""
    from transformers import AutoTokenizer

    token = AutoTokenizer.from_pretrained(folder_of(name)).convert_tokens_to_ids(SPECIAL[name])
    (spoken,) = speak(gguf_of(name, "f32"), [SPECIAL[name]])
    assert token in spoken.parsed
    assert token not in spoken.ids
    assert spoken.text.strip() == ""


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "fault"), [(n, f) for n, table in faults.TOKENIZER_KEYS.items() for f in table])
def test_a_fault_shows(
    name: str,
    fault: str,
    gguf_of: Converter,
    folder_of: Maker,
    parsed: Callable[[Path], gguf_file.File],
    tmp_path: Path,
) -> None:
    right, texts = gguf_of(name, "f32"), [SPECIAL[name], *TEXTS[:120]]
    path = gguf_file.mutate(parsed(right), tmp_path / "fault.gguf", faults.TOKENIZER_KEYS[name][fault])
    found = llamacpp.spoken_in_subprocess(path, texts)
    assert isinstance(found, str) or found != speak(right, texts)  # refused, died of it, or said something else


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3", "llama"])
def test_the_vocabulary_alone_is_the_reference_s_file(name: str, folder_of: Maker, tmp_path: Path) -> None:
    case = CASES[name]
    job = Job(str(folder_of(name)), str(tmp_path / "theirs.gguf"), None, case.pre, case.hparams, case.flags)
    reference_converter.run(job)
    wb.convert(folder_of(name), tmp_path / "ours.gguf", vocab_only=True, pre=case.pre)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
    with pytest.raises(wb.errors.UsageError, match="contradict"):
        wb.plan_convert(folder_of(name), tmp_path / "x.gguf", vocab_only=True, tokenizer=False)
