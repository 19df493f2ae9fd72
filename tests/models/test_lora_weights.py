"""Several adapters with weights: their changes add up, whatever form each has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.test_lora import CONFIG, FRONT, Q, Tensors, pair

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.arch.registry import families

EMBEDDING = "model.embed_tokens"


def embedding_pair(model: Mapping[str, Any]) -> Tensors:
    """PEFT stores the base's embedding next to its pair."""
    rng = np.random.default_rng(7)
    return {
        f"{FRONT}{EMBEDDING}.lora_embedding_A": rng.normal(size=(2, 40)).astype("f4"),
        f"{FRONT}{EMBEDDING}.lora_embedding_B": rng.normal(size=(32, 2)).astype("f4"),
        f"{FRONT}{EMBEDDING}.base_layer.weight": model[f"{EMBEDDING}.weight"],
    }


def whole(module: str, seed: int) -> Tensors:
    values = np.random.default_rng(seed).normal(size=(40, 32)).astype("f4")
    return {f"{FRONT}{module}.modules_to_save.weight": values}


#: Kinds of adapters: pairs of one module or of two, other ranks, tensors stored in full, embeddings.
KINDS: Mapping[str, Callable[[Mapping[str, Any]], Tensors]] = {
    "pair": lambda model: pair(Q, 32, 32, seed=1),
    "another rank": lambda model: pair(Q, 32, 32, rank=3, seed=2) | pair("lm_head", 40, 32, seed=3),
    "head in full": lambda model: pair(Q, 32, 32, seed=4) | whole("lm_head", 5),
    "another head in full": lambda model: pair(Q, 32, 32, seed=5) | whole("lm_head", 6),
    "embedding": lambda model: pair(Q, 32, 32, seed=6) | embedding_pair(model),
    "embedding in full": lambda model: pair(Q, 32, 32, seed=7) | whole(EMBEDDING, 8),
}
WEIGHTS = [(1.0, 1.0), (0.7, -0.25), (0.0, 2.0)]
AS_GGUF = {"pair", "another rank"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral, and one adapter of each kind, as PEFT stores it and as a GGUF."""
    path, rng = tmp_path_factory.mktemp("weights"), np.random.default_rng(0)
    family = families()["llama"]
    shapes = family.names("hf", family.sizes_from_hf(CONFIG))
    model = {n: rng.normal(size=s).astype("f4") for n, s in shapes.items() if not n.endswith(".bias")}
    (path / "base").mkdir()
    save_file(model, path / "base" / "model.safetensors", {"format": "pt"})
    (path / "base" / "config.json").write_text(json.dumps(CONFIG))
    for kind, tensors in KINDS.items():
        save_adapter(path / kind, tensors(model), path / "base")
        if kind in AS_GGUF:
            wb.convert(path / kind, path / f"{kind}.gguf")
    return path


def save_adapter(path: Path, tensors: Tensors, base: Path, **settings: Any) -> None:
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base), **settings}
    (path / "adapter_config.json").write_text(json.dumps(config))


def merged(folder: Path, adapters: Sequence[str], target: str = "m.safetensors") -> Tensors:
    wb.convert(folder / "base", folder / target, lora=adapters, dtype="f32", overwrite=True)
    return dict(load_file(folder / target))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(KINDS, 2)))
def test_changes_add_up(first: str, second: str, folder: Path) -> None:
    before = load_file(folder / "base" / "model.safetensors")
    one, two = (merged(folder, [str(folder / kind)]) for kind in (first, second))
    for weights in WEIGHTS:
        paths = [f"{folder / kind}:{weight}" for kind, weight in zip((first, second), weights, strict=True)]
        both, reverse = merged(folder, paths), merged(folder, paths[::-1])
        for name, values in before.items():
            change = weights[0] * (one[name] - values) + weights[1] * (two[name] - values)
            np.testing.assert_allclose(both[name] - values, change, atol=2e-4, err_msg=f"{name}, {weights}")
            np.testing.assert_allclose(both[name], reverse[name], atol=2e-4, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_of_one_changes_no_bit_and_of_zero_nothing(kind: str, folder: Path) -> None:
    alone = merged(folder, [str(folder / kind)])
    for name, values in merged(folder, [f"{folder / kind}:1"]).items():
        np.testing.assert_array_equal(values, alone[name], err_msg=name)
    before = load_file(folder / "base" / "model.safetensors")
    for name, values in merged(folder, [f"{folder / kind}:0"]).items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


@pytest.mark.parametrize("kind", sorted(AS_GGUF))
def test_every_command_and_form_takes_weights(kind: str, folder: Path, tmp_path: Path) -> None:
    expected = merged(folder, [f"{folder / kind}:0.5", f"{folder / 'pair'}:2"])
    gguf = f"{folder / kind}.gguf:0.5"
    wb.merge([folder / "base", gguf, f"{folder / 'pair'}:2"], tmp_path / "a.safetensors", dtype="f32")
    recipe = {"merge_method": "passthrough", "models": [{"model": f"{folder / 'base'}+{gguf}+{folder / 'pair'}:2"}]}
    wb.merge(recipe, tmp_path / "b.safetensors", dtype="f32")
    for name in ("a", "b"):
        for tensor, values in load_file(tmp_path / f"{name}.safetensors").items():
            np.testing.assert_allclose(values, expected[tensor], atol=1e-5, err_msg=tensor)
    with wb.plan_convert(folder / "base", tmp_path / "c.safetensors", lora=[gguf]) as plan:
        assert any("with weight 0.5" in note for note in plan.notes)
    with wb.plan_quantize(folder / "base", tmp_path / "q.gguf", "Q8_0", lora=gguf, tokenizer=False) as plan:
        assert plan.files


def test_adapters_of_a_recipe_lie_next_to_it(folder: Path, tmp_path: Path) -> None:
    recipe = {"merge_method": "passthrough", "models": [{"model": "base+pair:0.5+another rank:2"}]}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    wb.merge(folder / "recipe.yaml", tmp_path / "m.safetensors", dtype="f32")
    expected = merged(folder, [f"{folder / 'pair'}:0.5", f"{folder / 'another rank'}:2"])
    for name, values in load_file(tmp_path / "m.safetensors").items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_path_with_a_colon_is_a_path(folder: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path / "a:0.5", KINDS["pair"]({}), folder / "base")
    expected = merged(folder, [str(folder / "pair")])
    for name, values in merged(folder, [str(tmp_path / "a:0.5")]).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_refused(folder: Path, tmp_path: Path) -> None:
    base, lengths = folder / "base", {f"{FRONT}{Q}.lora_magnitude_vector": np.ones(32, "f4")}
    save_adapter(tmp_path / "dora", pair(Q, 32, 32) | lengths, base, use_dora=True)
    dora, plain, target = str(tmp_path / "dora"), str(folder / "pair"), tmp_path / "m.safetensors"
    for adapters in ([f"{dora}:0.5"], [dora, plain], [plain, dora]):
        with pytest.raises(UnsupportedError, match="is a DoRA"):
            wb.convert(base, target, lora=adapters)
    for weight in ("nan", "inf"):
        with pytest.raises(UsageError, match=f"the weight of .* is {weight}"):
            wb.convert(base, target, lora=f"{plain}:{weight}")
    with pytest.raises(UsageError, match="isn't an adapter, so it has no weight"):
        wb.merge([f"{base}:0.5", plain], target)
    assert not target.exists()
