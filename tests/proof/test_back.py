"""There and back: a Hugging Face folder to GGUF to a folder is the same model to everyone who looks.

Tensors by their bytes, transformers by its logits, the tokenizer by its tokens, the settings by their values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import models, ours, vocabularies
from tests.oracles.folders import assert_same, tensors
from tests.oracles.models import CASES, probe_of

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]

# A GGUF has no place for the pooler: llama.cpp pools by itself, and the reference converter drops it as we do.
LOST = {"bert": {"pooler.dense.weight", "pooler.dense.bias"}}
# Settings that mean nothing for the numbers and that a GGUF doesn't hold.
UNHELD = {"initializer_range", "transformers_version", "use_cache", "attention_dropout", "pretraining_tp"}


@pytest.fixture(scope="session")
def back_of(workshop: Path, gguf_of: Converter) -> Converter:
    @cache
    def make(name: str, dtype: str) -> Path:
        return ours.to_folder(gguf_of(name, dtype), workshop / "back" / f"{name}-{dtype}")

    return make


@pytest.mark.parametrize("name", sorted(CASES))
def test_tensors_are_identical(name: str, back_of: Converter, folder_of: Maker) -> None:
    # A GGUF of a fused Mixtral is that of a Mixtral: it comes back under the names that transformers writes.
    original = folder_of("mixtral" if name == "mixtral-fused" else name)
    assert_same(tensors(back_of(name, "f32")), tensors(original), LOST.get(name, set()))


@pytest.mark.parametrize("name", ["llama3@bfloat16", "mixtral@float16"])
def test_half_precision_is_identical(name: str, back_of: Converter, folder_of: Maker) -> None:
    """Vectors are F32 in every GGUF; as the folder's own type again they are what they were."""
    assert_same(tensors(back_of(name, "auto")), tensors(folder_of(name)))


@pytest.mark.parametrize("name", sorted(CASES))
def test_transformers_computes_the_same(name: str, back_of: Converter, folder_of: Maker) -> None:
    run = models.embedding if CASES[name].bert else models.logits
    found, expected = (run(folder, probe_of(name)) for folder in (back_of(name, "f32"), folder_of(name)))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["llama", "llama3", "mistral", "bert"])
def test_tokenizer_is_equal(name: str, back_of: Converter, folder_of: Maker) -> None:
    from transformers import AutoTokenizer

    found, expected = (AutoTokenizer.from_pretrained(f) for f in (back_of(name, "f32"), folder_of(name)))
    for text in [*vocabularies.SAMPLES, *vocabularies.text()[:200]]:
        ids = expected(text).input_ids
        assert found(text).input_ids == ids, text
        assert found.decode(ids) == expected.decode(ids)
    assert found.get_vocab() == expected.get_vocab()
    assert found.special_tokens_map == expected.special_tokens_map
    assert found.chat_template == expected.chat_template


@pytest.mark.parametrize("name", sorted(CASES))
def test_settings_are_equal(name: str, back_of: Converter, folder_of: Maker) -> None:
    found, expected = (json.loads((f / "config.json").read_text()) for f in (back_of(name, "f32"), folder_of(name)))
    assert {k: found.get(k) for k in expected if k not in UNHELD} == {
        k: v for k, v in expected.items() if k not in UNHELD
    }


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_generation_config_comes_back(name: str, back_of: Converter) -> None:
    config = json.loads((back_of(name, "f32") / "generation_config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_gguf_from_the_folder_that_came_back_is_the_same_file(
    back_of: Converter, gguf_of: Converter, workshop: Path
) -> None:
    """The second round starts from our own folder: nothing may drift. (The name is given: it comes from the folder.)"""
    from weighbridge import api

    paths = [workshop / f"round-{i}.gguf" for i in (1, 2)]
    for source, path in zip((gguf_of("llama3", "f32"), back_of("llama3", "f32")), paths, strict=True):
        api.convert(source, path, to="gguf", dtype="f32", name="Round")
    assert paths[0].read_bytes() == paths[1].read_bytes()
