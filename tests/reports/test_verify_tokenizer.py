"""Tokens are counted whatever files they are in, as their own libraries count them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.oracles import vocabularies

import weighbridge as api

pytestmark = pytest.mark.oracle


def _transformers(folder: Path) -> int:
    from transformers import AutoTokenizer

    return len(AutoTokenizer.from_pretrained(folder))


def _tekken(folder: Path) -> int:
    return int(json.loads((folder / "tekken.json").read_text())["config"]["default_vocab_size"])


def _tiktoken(folder: Path) -> int:
    """Those with names: the reserved ones behind them may go beyond the embedding, as Kimi K2's do."""
    return 1 + max(map(int, json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]))


def _in_parts(folder: Path) -> None:
    """GPT-2's two files."""
    vocabularies.WRITERS["bpe"](folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{m if isinstance(m, str) else ' '.join(m)}\n" for m in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], int]]] = {
    **{kind: (vocabularies.WRITERS[kind], _transformers) for kind in ("t5", "xlmr", "spm", "bpe", "wordpiece")},
    "tekken": (vocabularies.WRITERS["tekken"], _tekken),
    "kimi": (vocabularies.WRITERS["kimi"], _tiktoken),
    "vocab.json": (_in_parts, lambda folder: 1 + max(json.loads((folder / "vocab.json").read_text()).values())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_counted(kind: str, tmp_path: Path) -> None:
    write, count = KINDS[kind]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    write(tmp_path)
    tokens = count(tmp_path)
    for rows, told in ((tokens, False), (tokens - 1, True)):
        save_file({"model.embed_tokens.weight": np.zeros((rows, 8), np.float32)}, tmp_path / "model.safetensors")
        sizes = [f.message for f in api.verify(tmp_path).findings if f.rule == "tokenizer/size"]
        assert sizes == ([f"the tokenizer has {tokens:,} tokens, the embedding {rows:,} rows"] if told else [])


@pytest.mark.parametrize("kind", ["bpe", "qwen", "wordpiece", "t5", "spm-json"])
def test_a_tokenizer_is_shown_with_its_added_tokens(kind: str, tmp_path: Path) -> None:
    vocabularies.WRITERS[kind](tmp_path)
    (tmp_path / "config.json").write_text("{}")
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    told = api.inspect(tmp_path).model.tokenizer
    assert told is not None
    assert told.vocab_size == _transformers(tmp_path)
