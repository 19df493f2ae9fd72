"""A training checkpoint is the model in it: every way in gives what the bare state dict gives, and lists the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip


def weights() -> dict[str, Any]:
    torch.manual_seed(3)
    made = {"model.embed_tokens.weight": (40, 32), "model.norm.weight": (32,), "lm_head.weight": (40, 32)}
    for n in range(2):
        at = f"model.layers.{n}"
        made |= {f"{at}.self_attn.{x}_proj.weight": (32 if x in "qo" else 16, 32) for x in "qkvo"}
        made |= {f"{at}.mlp.{x}_proj.weight": (48, 32) for x in ("gate", "up")}
        made |= {f"{at}.mlp.down_proj.weight": (32, 48)}
        made |= {f"{at}.{x}_layernorm.weight": (32,) for x in ("input", "post_attention")}
    return {name: torch.randn(shape) for name, shape in made.items()}


WEIGHTS = weights()
EMA = {name: t * 0.5 for name, t in WEIGHTS.items()}
OPTIMIZER = {"state": {0: {"exp_avg": torch.ones(4), "step": torch.tensor(1.0)}}, "param_groups": [{"params": [0]}]}


def behind(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name: tensor for name, tensor in state.items()}


#: How trainers leave a model; each with the averages under the name that the trainer gives them.
LEFT: dict[str, dict[str, Any]] = {
    "bare": WEIGHTS,
    "torch's tutorial": {"model_state_dict": WEIGHTS, "optimizer_state_dict": OPTIMIZER, "epoch": 3},
    "Lightning": {"state_dict": behind("model.", WEIGHTS), "optimizer_states": [OPTIMIZER], "epoch": 1},
    "DeepSpeed": {"module": behind("module.", WEIGHTS), "lr_scheduler": {"last_epoch": 1, "_step_count": 2}},
    "DDP": {"model": behind("module.", WEIGHTS), "scaler": {"scale": 1.0}},
    "compiled": {"model": behind("_orig_mod.", WEIGHTS), "ema": EMA, "iter_num": 7},
    "timm": {"state_dict": WEIGHTS, "state_dict_ema": EMA, "optimizer": OPTIMIZER, "arch": "x"},
    "values of every kind": {"model": WEIGHTS, "none": None, "raw": b"x", "text": "y", "empty": {}, "flag": True},
    "flat": {**WEIGHTS, **{f"{name}.exp_avg": torch.ones(2) for name in WEIGHTS}},
}


def hub(path: Path) -> dict[str, Any]:
    with wb.open(path, names="hf") as model:
        return {name: model[name].numpy() for name in model}


def canonical(path: Path) -> dict[str, Any]:
    with wb.provider(path) as provider:
        assert provider.config.layers == 2
        return {name: provider.get(name) for name in provider}


def converted(target: str, **options: Any) -> Callable[[Path], dict[str, Any]]:
    def read(path: Path) -> dict[str, Any]:
        out = path.parent / target
        wb.convert(path, out, **options)
        config = None if out.is_dir() or target.endswith("gguf") else CONFIG
        with wb.open(out, names="canonical", config=config) as model:
            return {name: model[name].numpy() for name in model}

    return read


def quantized(path: Path) -> dict[str, Any]:
    wb.quantize(path, path.parent / "q.gguf", "Q8_0", tokenizer=False)
    with wb.open(path.parent / "q.gguf", names="canonical") as model:
        return {name: model[name].numpy() for name in model}


def cut(path: Path) -> dict[str, Any]:
    """The weights of the first layer."""
    wb.slice(path, path.parent / "cut", layers="0", to="hf")
    with wb.open(path.parent / "cut", names="canonical") as model:
        return {name: model[name].numpy() for name in model}


def for_two(path: Path) -> dict[str, Any]:
    wb.split(path, path.parent / "ranks", tp=2)
    with wb.open(path.parent / "ranks", names="canonical") as model:
        return {name: model[name].numpy() for name in model}


def fitted(path: Path) -> dict[str, Any]:
    report = wb.fit(path, context=32)
    return {row.type: np.array([row.nbytes]) for row in report.types}


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "open": hub,
    "provider": canonical,
    "to GGUF": converted("out.gguf", tokenizer=False),
    "to MLX": converted("mlx", to="mlx"),
    "to a folder": converted("folder", to="hf"),
    "to Safetensors": converted("out.safetensors"),
    "to PyTorch": converted("out.pt"),
    "to NumPy": converted("out.npz"),
    "quantize": quantized,
    "slice": cut,
    "split": for_two,
    "fit": fitted,
}


def saved(folder: Path, value: dict[str, Any]) -> Path:
    folder.mkdir()
    torch.save(value, folder / "train.pt")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder / "train.pt"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left", LEFT)
def test_the_model_in_it_is_what_the_bare_one_is(tmp_path: Path, left: str, way: str) -> None:
    expected = WAYS[way](saved(tmp_path / "bare", WEIGHTS))
    found = WAYS[way](saved(tmp_path / "left", LEFT[left]))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.costly
@pytest.mark.parametrize("left", ["DDP", "torch's tutorial"])
def test_no_runtime_runs_it_as_another_model(tmp_path: Path, left: str) -> None:
    """transformers would find none of its names, and give each weight a random value."""
    pytest.importorskip("transformers")
    report = wb.prove(saved(tmp_path / "left", LEFT[left]), saved(tmp_path / "bare", WEIGHTS))
    (run,) = (check for check in report.checks if check.name in ("run", "predictions"))
    assert (run.name, run.verdict) == ("run", "not-checked")
    assert "training checkpoint" in run.message
    assert next(check.verdict for check in report.checks if check.name == "tensors") == "same"


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("target", ["out.gguf", "out.safetensors", "out.npz", "out.pt", "folder"])
def test_what_goes_in_comes_out_or_is_listed(tmp_path: Path, left: str, target: str) -> None:
    source = saved(tmp_path / "left", LEFT[left])
    options: Any = {"tokenizer": False} if target.endswith("gguf") else {}
    plan = wb.plan_convert(source, tmp_path / target, **options)
    with wb.open(source, all_parts=True) as whole, wb.open(source) as model:
        assert len(whole) == len(model) + sum(part.tensors for part in model.left_out)
        listed = " ".join(f"{loss.tensor} {loss.message}" for loss in plan.losses)
        assert all(part.name in listed for part in model.left_out)
        if left != "bare" and left != "flat":
            assert set(LEFT[left]) - {part.name for part in model.left_out} <= {"model", "module", "state_dict",
                                                                                "model_state_dict"}  # fmt: skip
    assert sum(1 for file in plan.files for _ in file.slots) == len(WEIGHTS)
    plan.close()


@pytest.mark.parametrize("left", LEFT)
def test_averages_on_request(tmp_path: Path, left: str) -> None:
    source = saved(tmp_path / "left", LEFT[left])
    if left not in ("compiled", "timm"):
        with pytest.raises(UsageError, match="averaged"):
            wb.open(source, ema=True)
        return
    with wb.open(source, names="hf", ema=True) as model:
        assert all(np.array_equal(model[name].numpy(), EMA[name].numpy()) for name in EMA)


def test_weights_without_an_average_are_named(tmp_path: Path) -> None:
    fewer = {name: tensor for name, tensor in EMA.items() if "norm" not in name}
    plan = wb.plan_convert(saved(tmp_path / "m", {"model": WEIGHTS, "ema": fewer}), tmp_path / "o.pt", ema=True)
    assert [note for note in plan.notes if "5 weights without an average" in note]
    plan.close()


def test_every_part_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path / "left", LEFT["torch's tutorial"])
    assert main(["convert", str(source), str(tmp_path / "all.safetensors"), "--all-parts"]) == 0
    with wb.open(tmp_path / "all.safetensors") as model, wb.open(source, all_parts=True) as whole:
        assert set(model) == set(whole)
        assert "optimizer_state_dict.state.0.exp_avg" in model
    assert "left out" not in capsys.readouterr().err


def test_a_folder_with_every_part_ignores_the_choice(tmp_path: Path) -> None:
    source = saved(tmp_path / "left", LEFT["timm"])
    with pytest.raises(UsageError, match="ema=True"):
        wb.plan_convert(source, tmp_path / "c", to="checkpoint", ema=True)
    wb.convert(source, tmp_path / "c", to="checkpoint")
    assert wb.load_checkpoint(tmp_path / "c").keys() == LEFT["timm"].keys()


def test_an_optimizer_alone_is_opened_as_it_is(tmp_path: Path) -> None:
    with wb.open(saved(tmp_path / "o", OPTIMIZER)) as model:
        assert set(model) == {"state.0.exp_avg", "state.0.step"}
        assert model.left_out == ()
