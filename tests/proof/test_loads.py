"""Whether mlx-lm loads a folder: Weighbridge's answer against mlx-lm's own, over every model of the proofs in every
form that Weighbridge writes, and over a small one with each part of it damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import ours
from tests.oracles.models import CASES

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.clients import in_mlx_lm
from weighbridge.models.open import open_model
from weighbridge.shipping.run import how_to_run

if os.environ.get("CI") != "true":
    pytest.importorskip("mlx_lm", reason="WHAT MLX-LM LOADS WAS NOT COMPARED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]

#: Form of a folder -> whether it comes from a GGUF, and how it is converted; None: the Hugging Face folder itself.
FORMS: dict[str, tuple[bool, dict[str, Any] | None]] = {
    "hf": (False, None),
    "plain": (False, {}),
    "4 bits": (False, {"q_bits": 4, "q_group_size": 32, "allow_requantize": True}),
    "of a gguf": (True, {}),
    "4 bits of a gguf": (True, {"q_bits": 4, "q_group_size": 32, "allow_requantize": True}),
}


def refusal(folder: Path) -> str | None:
    """None if mlx-lm loads the folder, else its message."""
    from mlx_lm.utils import load_model

    try:
        load_model(folder, lazy=True)
    except SystemExit:
        return "another package is missing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def judged(folder: Path) -> bool | None:
    with open_model(folder) as model:
        return in_mlx_lm(model).accepts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_every_model_is_judged_as_mlx_lm_does(name: str, form: str, folder_of: Maker, tmp_path: Path) -> None:
    """A command to run a conversion is printed only if mlx-lm loads it."""
    by_gguf, options = FORMS[form]
    source = target = folder_of(name)
    if by_gguf:
        source = ours.to_gguf(source, tmp_path / "a.gguf", CASES[name].asked, pre=CASES[name].pre, checked=False)
    if options is not None:
        target = tmp_path / "mlx"
        try:
            plan = wb.plan_convert(source, target, to="mlx", **options)
        except (UnsupportedError, UsageError) as error:
            pytest.skip(str(error).splitlines()[0])
        with plan:
            lines, told = how_to_run(plan), [x.message for x in plan.losses if "mlx-lm won't load it" in x.message]
            plan.run()
    said, found = refusal(target), judged(target)
    assert found in (None, said is None), said
    if options is not None:
        assert found is not None or CASES[name].shapes, "a folder that Weighbridge writes is one that it knows"
        assert (lines is not None) is (found is True)
        assert bool(told) == (found is False)
        assert [v.accepts for v in wb.verify(target).verdicts] == [found]


# ---------------------------------------------------------------- damage


def config_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def tensors_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)

    return damage


Q = "model.layers.0.self_attn.q_proj"
DAMAGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda folder: None,
    "no such class": config_with(lambda c: c.update(model_type="nonsense", architectures=["NonsenseForCausalLM"])),
    **{f"no {key}": config_with(lambda c, key=key: c.pop(key)) for key in (  # type: ignore[misc]
        "rms_norm_eps", "num_attention_heads", "quantization", "rope_theta", "tie_word_embeddings")},
    "other bits for one": config_with(lambda c: c["quantization"].update({Q: {"group_size": 32, "bits": 8}})),
    "its own bits for one": config_with(lambda c: c["quantization"].update({Q: {"group_size": 32, "bits": 4}})),
    "other bits for all": config_with(lambda c: c["quantization"].update(bits=8)),
    "one layer more": config_with(lambda c: c.update(num_hidden_layers=3)),
    "a larger width": config_with(lambda c: c.update(intermediate_size=2 * c["intermediate_size"])),
    "untied": config_with(lambda c: c.update(tie_word_embeddings=False)),
    "a scaling without its factor": config_with(lambda c: c.update(rope_scaling={"rope_type": "linear"})),
    "no norm": tensors_with(lambda t: t.pop("model.norm.weight")),
    "no scales": tensors_with(lambda t: t.pop(f"{Q}.scales")),
    "one tensor more": tensors_with(lambda t: t.update({"model.more.weight": t["model.norm.weight"].copy()})),
    "a shorter norm": tensors_with(lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:8].copy()})),
}  # fmt: skip


#: Of these Weighbridge can't tell: a class without a table, and a setting that no table can read.
UNKNOWN = {"no such class", "a scaling without its factor"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_judged_as_mlx_lm_does(damage: str, folder_of: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "mlx"
    wb.convert(folder_of("llama3-v4"), folder, to="mlx", q_bits=4, q_group_size=32)
    DAMAGES[damage](folder)
    said, (verdict, *_) = refusal(folder), wb.verify(folder).verdicts
    assert verdict.accepts in (None, said is None), said
    assert verdict.accepts is not None or damage in UNKNOWN
