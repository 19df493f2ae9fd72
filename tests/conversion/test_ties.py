"""Tied weights: a tensor of the source that two names share stays one where the target's loader makes two of it, and is
listed as a loss where it becomes two. Nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import weighbridge as wb

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TWICE = "stored a second time"


def state(tied: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = "model.layers.0."
    named = {EMBED: (32, 64), "model.norm.weight": (64,)}
    named |= {f"{layer}self_attn.{x}_proj.weight": (64, 64) for x in "qkvo"}
    named |= {f"{layer}mlp.{x}_proj.weight": (64, 64) for x in ("gate", "up", "down")}
    named |= {f"{layer}{x}_layernorm.weight": (64,) for x in ("input", "post_attention")}
    made = {name: torch.randn(shape, generator=generator) for name, shape in named.items()}
    return made | {HEAD: made[EMBED] if tied else made[EMBED].clone()}


def folder(path: Path, *, tied: bool = True, config: dict[str, Any] = CONFIG) -> Path:
    path.mkdir()
    torch.save(state(tied), path / "pytorch_model.bin")
    (path / "config.json").write_text(json.dumps(config))
    return path


def again(plan: Any) -> list[str | None]:
    return [loss.tensor for loss in plan.losses if TWICE in loss.message]


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_what_becomes_two_is_listed(suffix: str, tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "m.pt")
    with wb.plan_convert(tmp_path / "m.pt", tmp_path / f"o.{suffix}") as plan:
        assert again(plan) == [HEAD]
    torch.save(state(tied=False), tmp_path / "m.pt")
    with wb.plan_convert(tmp_path / "m.pt", tmp_path / f"o.{suffix}") as plan:
        assert again(plan) == []


@pytest.mark.parametrize("dtype", [None, "f16"])
def test_a_state_dict_keeps_its_ties(dtype: str | None, tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "m.pt")
    with wb.plan_convert(tmp_path / "m.pt", tmp_path / "o.pt", dtype=dtype) as plan:
        assert plan.losses == ()
        plan.run()
    found = torch.load(tmp_path / "o.pt")
    assert found[HEAD].data_ptr() == found[EMBED].data_ptr()
    assert torch.equal(found[HEAD], state()[HEAD].to(found[HEAD].dtype))


@pytest.mark.parametrize(("dtype", "lost"), [(None, []), ("f16", ["b", "whole", "turned"])])
def test_partial_overlaps_are_kept_or_listed(dtype: str | None, lost: list[str], tmp_path: Path) -> None:
    whole = torch.arange(80.0).reshape(10, 8)
    torch.save({"a": whole[:6], "b": whole[4:], "whole": whole, "turned": whole.t(), "own": torch.ones(3)},
               tmp_path / "m.pt")  # fmt: skip
    with wb.plan_convert(tmp_path / "m.pt", tmp_path / "o.pt", dtype=dtype) as plan:
        assert again(plan) == lost
        plan.run()
    found = torch.load(tmp_path / "o.pt")
    assert torch.equal(found["turned"].float(), whole.t())
    with wb.plan_convert(tmp_path / "m.pt", tmp_path / "o.safetensors") as plan:
        assert again(plan) == ["b", "whole", "turned"]


@pytest.mark.parametrize("scheme", ["", "w8a16"])
def test_a_hugging_face_folder_has_one_copy(scheme: str, tmp_path: Path) -> None:
    source = folder(tmp_path / "m")
    to = wb.SchemeOptions(scheme=scheme, q_group_size=32) if scheme else "hf"
    with wb.plan_convert(source, tmp_path / "o", to=to) as plan:
        assert again(plan) == []
        assert any(HEAD in note for note in plan.notes)
        plan.run()
    found = load_file(tmp_path / "o/model.safetensors")
    assert HEAD not in found
    if not scheme:
        assert found.keys() == state().keys() - {HEAD}


@pytest.mark.slow
def test_transformers_loads_the_one_copy(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    wb.convert(folder(tmp_path / "m"), tmp_path / "o", to="hf")
    model, found = LlamaForCausalLM.from_pretrained(tmp_path / "o", output_loading_info=True)
    assert not found["missing_keys"]
    assert torch.equal(model.lm_head.weight, state()[EMBED])


def test_a_tie_that_the_config_does_not_know_stays_two_names(tmp_path: Path) -> None:
    source = folder(tmp_path / "m", config=CONFIG | {"tie_word_embeddings": False})
    with wb.plan_convert(source, tmp_path / "o", to="hf") as plan:
        assert again(plan) == [HEAD]
        plan.run()
    found = load_file(tmp_path / "o/model.safetensors")
    assert torch.equal(found[HEAD], found[EMBED])


def test_two_tensors_of_the_source_stay_two(tmp_path: Path) -> None:
    """The config ties them, but the file has two: their values may differ."""
    with wb.plan_convert(folder(tmp_path / "m", tied=False), tmp_path / "o", to="hf") as plan:
        assert not plan.losses
        assert not plan.notes
        assert HEAD in {t["name"] for t in plan.describe()["files"][0]["tensors"]}


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_mlx_lm_loads_a_tied_model(bits: int | None, tied: bool, tmp_path: Path) -> None:
    """It drops `lm_head.weight`, but stops at the scales of a quantized one."""
    from mlx_lm.utils import load_model

    with wb.plan_convert(folder(tmp_path / "m", tied=tied), tmp_path / "o", to="mlx", q_bits=bits) as plan:
        assert again(plan) == []
        listed = [loss.tensor for loss in plan.losses] + [note.split()[0] for note in plan.notes]
        assert listed == [HEAD]
        plan.run()
    model, _ = load_model(tmp_path / "o")
    if bits is None:
        assert np.array_equal(np.array(model.model.embed_tokens.weight), state()[EMBED].numpy())


def test_a_gguf_and_ranks_list_their_second_copies(tmp_path: Path) -> None:
    source = folder(tmp_path / "m")  # the pickle has the embedding first
    with wb.plan_convert(source, tmp_path / "o.gguf", tokenizer=False) as plan:
        assert again(plan) == ["output.weight"]
    with wb.plan_quantize(source, tmp_path / "o.gguf", "Q8_0", tokenizer=False) as plan:
        assert again(plan) == ["token_embd.weight"]
    with wb.plan_split(source, tmp_path / "ranks", tp=2) as plan:
        assert again(plan) == [HEAD]
    with wb.plan_rename(source, tmp_path / "o.safetensors", add_prefix="x.") as plan:
        assert len(again(plan)) == 1
