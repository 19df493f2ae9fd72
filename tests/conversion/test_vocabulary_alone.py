"""A tokenizer without a model: a folder of its files becomes a GGUF that is a vocabulary, and comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.models._tokenizers import folder_files, write_folder
from tests.oracles.reference_converter import Job, convert_all
from tests.oracles.vocabularies import LLAMA3_PRE, SIZES

import weighbridge as wb
from weighbridge.base.errors import UsageError

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip


def tokenizer_folder(kind: str, path: Path) -> Path:
    write_folder(folder_files(kind), path)
    (path / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": SIZES[kind]}))
    return path


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["spm", "bpe", "wordpiece", "t5", "xlmr"])
def test_a_vocabulary_comes_back(kind: str, tmp_path: Path) -> None:
    folder = tokenizer_folder(kind, tmp_path / "model")
    wb.convert(folder, tmp_path / "a.gguf", vocab_only=True, name="m")
    wb.convert(tmp_path / "a.gguf", tmp_path / "back", to="hf")
    wb.convert(tmp_path / "back", tmp_path / "b.gguf", vocab_only=True, name="m")
    with wb.open(tmp_path / "a.gguf") as one, wb.open(tmp_path / "b.gguf") as other:
        assert one.metadata["tokenizer.ggml.tokens"]
        assert {k: other.metadata[k] for k in one.metadata} == dict(one.metadata)
        assert all(k.endswith("_token_id") for k in other.metadata.keys() - one.metadata.keys())  # llama.cpp's defaults


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize(("kind", "pre"), [("spm", None), ("bpe", LLAMA3_PRE)])
def test_it_is_the_reference_s_vocabulary(kind: str, pre: str | None, tmp_path: Path) -> None:
    folder = tokenizer_folder(kind, tmp_path / "model")
    assert convert_all([Job(str(folder), str(tmp_path / "theirs.gguf"), pre=pre)]) == [None]
    wb.convert(folder, tmp_path / "ours.gguf", vocab_only=True)
    with wb.open(tmp_path / "ours.gguf") as ours, wb.open(tmp_path / "theirs.gguf") as theirs:
        found, expected = (
            [(k, v) for k, v in m.metadata.items() if k.startswith("tokenizer.")] for m in (ours, theirs)
        )
        assert found == expected


def test_a_pretokenizer_for_a_tokenizer_that_has_none(tmp_path: Path) -> None:
    folder = tokenizer_folder("spm", tmp_path / "model")
    with pytest.raises(UsageError, match="pre gpt-2 doesn't apply"):
        wb.convert(folder, tmp_path / "a.gguf", vocab_only=True, pre="gpt-2")


def test_a_folder_without_weights_is_a_model_for_nothing_else(tmp_path: Path) -> None:
    folder = tokenizer_folder("spm", tmp_path / "model")
    with pytest.raises(UsageError, match="holds no weights") as caught:
        wb.convert(folder, tmp_path / "m.gguf")
    assert "--vocab-only" in str(caught.value.hint)
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match="holds no weights"):
        wb.convert(folder, tmp_path / "m.gguf", vocab_only=True)
