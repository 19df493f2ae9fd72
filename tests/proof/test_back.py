"""There and back: a Hugging Face folder to GGUF to a folder is the same model to everyone who looks.

Tensors by their bytes, transformers by its logits, the tokenizer by its tokens, the settings by their values.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.oracles import folded, gguf_file, models, ours, vocabularies
from tests.oracles.folders import assert_same, tensors
from tests.oracles.models import CASES, probe_of

import weighbridge as api

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]

RETURNING = sorted(name for name, case in CASES.items() if case.returns)
# A GGUF has no place for the pooler: llama.cpp pools by itself, and the reference converter drops it as we do.
_POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
LOST = dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "jina-bert-v2"), _POOLER)
LOST |= {"roberta-labels": {f"roberta.{name}" for name in _POOLER}}
LOST |= {"jina-bert-v3": {"roberta.pooler.dense.parametrizations.weight.original", "roberta.pooler.dense.bias"}}
# Positions that no token takes, before the first behind the padding token's number: a GGUF begins there.
_POSITIONS = "embeddings.position_embeddings.weight"
UNUSED = dict.fromkeys(("roberta", "xlm-roberta", "camembert"), (_POSITIONS, 2))
UNUSED |= dict.fromkeys(("roberta-labels", "xlm-roberta-rank", "camembert-labels"), (f"roberta.{_POSITIONS}", 2))
# Norms that a GGUF has with a fraction added (PLaMo 2 and 3): rounded there and back, each time to the nearest F32.
ADDED = {"post_mixer_norm.weight": 1 / 5, "post_mlp_norm.weight": 1 / 5**1.5}
# Settings that mean nothing for the numbers and that a GGUF doesn't hold.
UNHELD = {"initializer_range", "transformers_version", "use_cache", "attention_dropout", "_name_or_path"}


@pytest.fixture(scope="session")
def back_of(workshop: Path, gguf_of: Converter) -> Converter:
    @cache
    def make(name: str, dtype: str) -> Path:
        parent = workshop / f"back-{dtype}"  # the folder has its first name again: general.name follows it
        parent.mkdir(exist_ok=True)
        return ours.to_folder(gguf_of(name, dtype), parent / name)

    return make


@pytest.mark.parametrize("name", RETURNING)
def test_tensors_are_identical(name: str, back_of: Converter, folder_of: Maker) -> None:
    # A GGUF of a fused model is that of a plain one: it comes back under the names that transformers writes.
    original = tensors(folder_of(name.removesuffix("-fused")))
    if name in UNUSED:
        table, rows = UNUSED[name]
        original[table][:rows] = 0
    if CASES[name].folded:
        original = folded.of(original, json.loads((folder_of(name) / "config.json").read_text()))
    if CASES[name].unit:
        import torch

        head = "lm_head.weight"
        original[head] = torch.from_numpy(folded.at_length_1(original[head].numpy()))
    for tensor in (t for t in original if CASES[name].ternary and t.endswith("_proj.weight")):
        wanted, original[tensor] = folded.spread(original[tensor].numpy()), tensors(back_of(name, "f32"))[tensor]
        assert np.allclose(original[tensor].numpy(), wanted, rtol=2.0**-21, atol=0), tensor
    for tensor, by in ((t, by) for t in original for end, by in ADDED.items() if t.endswith(end)):
        given = original[tensor]
        original[tensor] = given + by - by
        assert (original[tensor] - given).abs().max() <= 2.0**-24
    assert_same(tensors(back_of(name, CASES[name].asked)), original, LOST.get(name, set()))


@pytest.mark.parametrize("name", ["llama3@bfloat16", "mixtral@float16", "qwen2@bfloat16"])
def test_half_precision_is_identical(name: str, back_of: Converter, folder_of: Maker) -> None:
    """Vectors are F32 in every GGUF; as the folder's own type again they are what they were."""
    assert_same(tensors(back_of(name, "auto")), tensors(folder_of(name)))


@pytest.mark.parametrize("name", [name for name in RETURNING if name != "mistral"])
def test_transformers_computes_the_same(name: str, back_of: Converter, folder_of: Maker) -> None:
    run = models.embedding if CASES[name].bert else models.logits
    case = CASES[name]
    folders = back_of(name, case.asked), folder_of(name)
    found, expected = (run(folder, probe_of(name), **case.settings) for folder in folders)
    if (
        case.folded or case.unit or case.ternary
    ):  # weights times a number and activations times it differ by rounding: measured 1.2e-5
        assert models.relative_error(found, expected) < 5e-5
    elif case.classifies:  # one vector times a matrix: torch adds by how the bytes lie in memory
        assert models.relative_error(found, expected) < 1e-5
    else:
        assert np.array_equal(found, expected)


def test_a_mistral_comes_back_as_a_llama(
    back_of: Converter, gguf_of: Converter, expected_logits: Callable[[str], models.F32]
) -> None:
    """llama.cpp's "llama" has no sliding window and its GGUF no place for one: the plan says so, the numbers are those
    of full attention."""
    assert np.array_equal(models.logits(back_of("mistral", "f32"), probe_of("mistral")), expected_logits("mistral"))
    losses = " ".join(loss.message for loss in api.plan_convert(gguf_of("mistral", "f32"), "elsewhere", to="hf").losses)
    assert "MistralForCausalLM" in losses


@pytest.mark.parametrize("name", ["llama", "llama3", "mistral", "qwen2", "bert"])
def test_tokenizer_is_equal(name: str, back_of: Converter, folder_of: Maker) -> None:
    """To SentencePiece's models the sentencepiece library is the judge: transformers 5 has a rule of its own for a text
    that begins with a space, which a GGUF doesn't hold and the plan tells as a loss."""
    from transformers import AutoTokenizer

    found, original = (AutoTokenizer.from_pretrained(f) for f in (back_of(name, "f32"), folder_of(name)))
    expected = vocabularies.owner(CASES[name].tokenizer, folder_of(name))
    for text in vocabularies.TEXTS:
        ids = expected(text)
        assert list(found(text).input_ids) == ids, text
        plain = {"clean_up_tokenization_spaces": False, "skip_special_tokens": True}
        assert found.decode(ids, **plain) == original.decode(ids, **plain)
    assert found.get_vocab() == original.get_vocab()
    assert set(found.all_special_ids) == set(original.all_special_ids)
    assert found.chat_template == original.chat_template
    assert found.clean_up_tokenization_spaces == original.clean_up_tokenization_spaces


@pytest.mark.parametrize("name", [name for name in RETURNING if name != "mistral"])
def test_settings_are_equal(name: str, back_of: Converter, folder_of: Maker) -> None:
    """As transformers understands them: spellings differ between its versions, meanings mustn't."""
    found, expected = (models.settings(f) for f in (back_of(name, CASES[name].asked), folder_of(name)))
    held = expected.keys() - UNHELD - CASES[name].unheld
    assert {k: found.get(k) for k in held} == {k: expected[k] for k in held}


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_generation_config_comes_back(name: str, back_of: Converter) -> None:
    config = json.loads((back_of(name, "f32") / "generation_config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


#: A model of each kind of tokenizer.
TOKENIZERS = {CASES[name].tokenizer: name for name in sorted(RETURNING, reverse=True)}
#: What a folder says and the first one didn't: the token for unknown text, that no token ends a text; and names of
#: pre-tokenizers that llama.cpp treats as others, by which the files say the same.
DRIFT = {
    "arctic": {"tokenizer.ggml.unknown_token_id"},
    "gemma": {"tokenizer.ggml.unknown_token_id"},
    "roberta": {"tokenizer.ggml.pre"},
    "chatglm": {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.pre"},
}


@pytest.mark.parametrize("name", ["llama3", *TOKENIZERS.values()])
def test_gguf_from_the_folder_that_came_back_is_the_same_file(
    name: str, back_of: Converter, gguf_of: Converter, workshop: Path
) -> None:
    """The second round starts from our own folder: nothing may drift but the order, which follows the folder."""
    again = ours.to_gguf(back_of(name, "f32"), workshop / f"again-{name}.gguf", "f32")
    files = [gguf_file.sorted_by_name(gguf_file.read(path)) for path in (again, gguf_of(name, "f32"))]
    assert gguf_file.differences(*files, allowed=DRIFT.get(name, set()).__contains__) == []


def test_rows_that_a_folder_has_no_place_for_are_listed(gguf_of: Converter, tmp_path: Path) -> None:
    """A Granite Switch whose slot without an adapter isn't zeros: none are lost of a file that was made of a folder."""
    source, changed, tensor = gguf_of("granite-switch", "f32"), tmp_path / "changed.gguf", "blk.0.attn_q.lora_a"
    shutil.copy(source, changed)
    stored = next(t for t in gguf.GGUFReader(changed, "r+").tensors if t.name == tensor)
    stored.data.reshape(-1)[0] = 1
    for path, lost in ((source, []), (changed, [tensor])):
        losses = api.plan_convert(path, tmp_path / "back", to="hf").losses
        assert [loss.tensor for loss in losses if "1 row that" in loss.message] == lost
