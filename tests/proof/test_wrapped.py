"""A model that sees is converted as the part of it that writes: the reference's very file, llama.cpp's logits those of
the whole model for a text, what sees told as left out; and it comes back as a model that only writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.oracles import families, gguf_file, llamacpp, models, ours, reference_converter, twins, vocabularies
from tests.oracles.folders import tensors
from tests.oracles.models import F32
from tests.oracles.reference_page import excused

import weighbridge

pytestmark = pytest.mark.oracle


class Seeing(NamedTuple):
    """The class of the part that writes, the bound of llama.cpp's logits as in test_llama_logits, what stands before
    the part's names, and what instead where it is all."""

    part: str
    bound: float
    front: str = "language_model."
    alone: str = ""

    def renamed(self, name: str) -> str:
        return self.alone + name.removeprefix(self.front)


SEEING = {
    "gemma3-seeing": Seeing("Gemma3ForCausalLM", 1e-2),
    "gemma4-seeing": Seeing("Gemma4ForCausalLM", 1e-2, "model.language_model.", "model."),
    "gemma4-unified": Seeing("Gemma4ForCausalLM", 1e-2, "model.language_model.", "model."),
    "kimi-k2.5": Seeing("DeepseekV3ForCausalLM", 5e-4),
    "llama4-seeing": Seeing("Llama4ForCausalLM", 5e-4),
    "ministral3-seeing": Seeing("Ministral3ForCausalLM", 5e-4),
    "mistral4-seeing": Seeing("Mistral4ForCausalLM", 5e-4),
    "mistral3-small": Seeing("MistralForCausalLM", 5e-4),
}


def probe(name: str) -> tuple[int, ...]:
    return models.probe(vocabularies.SIZES[families.CASES[name].tokenizer])


def logits(folder: Path, ids: tuple[int, ...]) -> F32:
    """Of whatever class the folder's config names, for a text."""
    import torch
    import transformers

    if twins.of(folder) is not None:
        return models.logits(folder, ids)
    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        out: F32 = model(input_ids=torch.tensor([list(ids)])).logits[0].numpy()
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("seeing")
    return cache(lambda name: models.build(families.CASES[name], parent / name))


@pytest.fixture(scope="module")
def gguf(folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("seeing-gguf")
    return cache(lambda name: ours.to_gguf(folder(name), parent / f"{name}.gguf", "f32", pre=families.CASES[name].pre))


@pytest.fixture(scope="module")
def reference(folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("seeing-reference")

    def make(name: str) -> Path:
        pre = families.CASES[name].pre
        return reference_converter.convert(folder(name), parent / f"{name}.gguf", "f32", pre=pre)

    return cache(make)


@pytest.mark.parametrize("name", SEEING)
def test_equals_the_reference(name: str, gguf: Callable[[str], Path], reference: Callable[[str], Path]) -> None:
    files = (gguf_file.read(made(name)) for made in (gguf, reference))
    assert gguf_file.differences(*files, allowed=excused(name).__contains__) == []


@pytest.mark.parametrize("name", SEEING)
def test_computes_what_the_whole_computes_for_a_text(
    name: str, gguf: Callable[[str], Path], folder: Callable[[str], Path]
) -> None:
    with llamacpp.Model(gguf(name)) as model:
        found = model.logits(probe(name))
    assert models.relative_error(found, logits(folder(name), probe(name))) < SEEING[name].bound


@pytest.mark.parametrize("name", SEEING)
def test_what_is_left_out_is_told(name: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Every tensor that isn't of the part is counted, whatever the target."""
    others = [n for n in tensors(folder(name)) if not n.startswith(SEEING[name].front)]
    for target, to, pre in (("model.gguf", "gguf", families.CASES[name].pre), ("mlx", "mlx", None)):
        plan = weighbridge.plan_convert(folder(name), tmp_path / target, to=to, pre=pre)
        told = [str(loss) for loss in plan.losses if "another part of the model" in str(loss)]
        assert sum(int(loss.split("left out: ")[1].split()[0]) for loss in told) == len(others), told
        assert all(any(n.startswith(loss.split(", ")[1].split("*")[0]) for loss in told) for n in others)


@pytest.mark.parametrize("name", SEEING)
def test_comes_back_as_the_part(
    name: str, gguf: Callable[[str], Path], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    back = ours.to_folder(gguf(name), tmp_path / name)
    found, original = tensors(back), tensors(folder(name))
    seeing = SEEING[name]
    part = {seeing.renamed(n): t for n, t in original.items() if n.startswith(seeing.front)}
    assert found.keys() == part.keys()
    assert [n for n in part if not found[n].equal(part[n])] == []
    assert json.loads((back / "config.json").read_text())["architectures"] == [SEEING[name].part]
    assert np.array_equal(logits(back, probe(name)), logits(folder(name), probe(name)))


@pytest.mark.costly
def test_a_folder_in_the_names_of_memory_is_the_same_model(folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Files that were saved as transformers holds the model are read too."""
    name = "ministral3-seeing"
    import torch
    import transformers

    model = transformers.Mistral3ForConditionalGeneration.from_pretrained(folder(name), dtype=torch.float32)
    target = tmp_path / name
    model.save_pretrained(target, save_original_format=False)
    vocabularies.WRITERS[families.CASES[name].tokenizer](target)
    assert any(n.startswith("model.language_model.") for n in tensors(target))
    files = [
        gguf_file.read(ours.to_gguf(f, tmp_path / f"{i}.gguf", "f32", pre=families.CASES[name].pre))
        for i, f in enumerate((target, folder(name)))
    ]
    assert gguf_file.differences(*map(gguf_file.sorted_by_name, files)) == []
