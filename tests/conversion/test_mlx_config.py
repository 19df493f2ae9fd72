"""config.json of MLX folders: what transformers 5 says of rotation is what mlx-lm reads, for every family that it
has."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fit.test_weights import write_folder
from tests.llama import CONFIG, make_folder
from tests.models.family_judges import golden

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.config import THETA
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.config import mlx_view
from weighbridge.models.mlxlm.tower_config import with_rope_words

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LINEAR = {"rope_type": "linear", "factor": 2.0}


def classes() -> dict[str, str]:
    """model_type -> family, of the classes in families with MLX names that rotate by a base frequency."""
    named = ((a.model_type, f) for f in families().values() if "mlx" in f.dialects for a in f.architectures.values())
    old = ((kind, f) for kind, f in named if "full_attention" not in f.plain_defaults.get("rope_parameters", {}))
    return {kind: f.name for kind, f in old if any(w in f.plain_defaults for w in THETA)}


def arguments(model_type: str) -> Any:
    """mlx-lm's class of arguments for the text part of a model."""
    utils = pytest.importorskip("mlx_lm.utils")
    of_class = {kind: name for (kind, _), name in utils.MODEL_ARCHITECTURE_REMAPPING.items()}
    name = of_class.get(model_type) or utils.MODEL_REMAPPING.get(model_type, model_type)
    try:
        module = importlib.import_module(f"mlx_lm.models.{name}")
    except ImportError:
        pytest.skip(f"mlx-lm has no {name}")
    return getattr(module, "TextModelArgs", None) or getattr(module, "TextArgs", None) or module.ModelArgs


@pytest.mark.oracle
@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, LINEAR, YARN], ids=lambda s: s["rope_type"])
@pytest.mark.parametrize("model_type", classes())
def test_rotation_in_new_words_is_what_mlx_lm_reads(model_type: str, scaling: dict[str, Any]) -> None:
    """Every field that its arguments have of the rotation is as with a config in transformers 4's words."""
    defaults = families()[classes()[model_type]].plain_defaults
    theta = next(word for word in THETA if word in defaults)
    share = "rotary_pct" if "rotary_pct" in defaults else "partial_rotary_factor"
    new = {"rope_parameters": {**scaling, "rope_theta": 12345.0, "partial_rotary_factor": 0.5}}
    old = {theta: 12345.0, share: 0.5, "rope_scaling": None if scaling["rope_type"] == "default" else scaling}
    found = with_rope_words(new, defaults)
    fields = {f.name for f in dataclasses.fields(arguments(model_type))}
    read = fields & {*old, "rope_theta"}
    assert {key: found.get(key) for key in read} == {key: old.get(key) for key in read}
    assert found["rope_parameters"] == new["rope_parameters"]


def test_layers_with_a_window_keep_their_base_frequency() -> None:
    defaults = families()["gemma3"].plain_defaults
    each = {"full_attention": {**LINEAR, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    found = with_rope_words({"rope_parameters": each}, defaults)
    assert (found["rope_theta"], found["rope_local_base_freq"], found["rope_scaling"]) == (1e6, 1e4, LINEAR)


def test_what_a_config_says_itself_stays() -> None:
    config = {"rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    assert with_rope_words(config, families()["llama"].plain_defaults)["rope_theta"] == 5.0
    assert with_rope_words({"rope_theta": 5.0}, families()["llama"].plain_defaults) == {"rope_theta": 5.0}


def test_no_number_for_the_last_layer_becomes_its_number(tmp_path: Path) -> None:
    """ERNIE 4.5's -1, with which mlx-lm gives no layer experts."""
    folder = write_folder(tmp_path / "model", "ernie4.5-moe")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "moe_layer_end_index": -1}))
    wb.convert(folder, tmp_path / "mlx", to="mlx")
    found = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert found["moe_layer_end_index"] == config["num_hidden_layers"] - 1


def test_layers_with_experts_are_listed_as_mlx_lm_reads_them(tmp_path: Path) -> None:
    """K-EXAONE's config as transformers writes it, which says it in words that mlx-lm doesn't know."""
    folder = write_folder(tmp_path / "model", "exaone-moe")
    config = json.loads((folder / "config.json").read_text())
    published = config.pop("is_moe_layer")
    (folder / "config.json").write_text(json.dumps(config))
    wb.convert(folder, tmp_path / "mlx", to="mlx")
    found = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert found["is_moe_layer"] == published == [False, True, True, True]


def test_queries_of_low_rank_that_mlx_lm_cant_compute_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "kimi-linear-lora")
    with pytest.raises(UnsupportedError, match="mlx-lm's kimi_linear can't compute q_lora_rank = 32"):
        wb.plan_convert(folder, tmp_path / "x", to="mlx")


def test_a_class_that_mlx_lm_lacks_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "model", "seed-oss")
    without = {kind: row for kind, row in mlx_view.fields().items() if kind != "seed_oss"}
    assert _lacking(folder, tmp_path / "x") == []
    monkeypatch.setattr(mlx_view, "fields", lambda: without)
    (found,) = _lacking(folder, tmp_path / "x")
    assert found.startswith("mlx-lm won't load it: model that mlx-lm has no class for: model_type 'seed_oss'")


# "ling3" has limits that mlx-lm can't compute (tests/proof/test_mlx_families.py)
@pytest.mark.parametrize("name", [name for name, record in golden().items() if "mlx" in record and name != "ling3"])
def test_every_recorded_model_of_mlx_lm_has_its_class(name: str, tmp_path: Path) -> None:
    assert _lacking(write_folder(tmp_path / "model", name), tmp_path / "x") == []


def _lacking(folder: Path, target: Path) -> list[str]:
    with wb.plan_convert(folder, target, to="mlx") as plan:
        return [loss.message for loss in plan.losses if "no class" in loss.message]


@pytest.mark.oracle
@pytest.mark.parametrize("stated", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("model", ["qwen3next", "qwen35"])
def test_a_norm_that_mlx_lm_shifts_keeps_the_type_of_the_weights(model: str, stated: str, tmp_path: Path) -> None:
    """mlx-lm adds 1 in the type that the norm is stored in; it reads no `dtype`, which transformers 5 writes."""
    mx = pytest.importorskip("mlx.core")
    config = {k: v for k, v in golden()[model]["config"].items() if k not in ("dtype", "torch_dtype")}
    family = family_of_hf(config)
    places = family.expansion("hf", family.sizes_from_hf(config)).places.values()
    shapes = {p.name: p.shape for p in places if p.need in (None, "only head")}
    rng = np.random.default_rng(3)
    tensors = {
        name: mx.array(rng.standard_normal(shape, np.float32)).astype(mx.bfloat16) for name, shape in shapes.items()
    }
    folder = tmp_path / "model"
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps({**config, stated: "bfloat16"}))
    wb.convert(folder, tmp_path / "mlx", to="mlx")
    made = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    name = next(n for n in made if n.endswith("layers.0.input_layernorm.weight"))
    source = next(n for n in tensors if n.endswith("layers.0.input_layernorm.weight"))
    assert made[name].dtype == mx.bfloat16
    assert mx.array_equal(made[name], tensors[source] + 1.0)


def test_a_module_that_always_has_groups_of_64_says_so(tmp_path: Path) -> None:
    config = {**CONFIG, "architectures": ["GraniteForCausalLM"], "model_type": "granite"}
    folder = make_folder(tmp_path / "m", config)
    with pytest.raises(UnsupportedError, match=r"rows of 96 are not whole groups of 64[^$]*8 bits in groups of 64"):
        wb.plan_convert(folder, tmp_path / "out", to="mlx", q_bits=4, q_group_size=32)
