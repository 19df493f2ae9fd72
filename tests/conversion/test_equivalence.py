"""No setting that a loader takes is lost without a word: what a plan carries is compared with the source's before
anything is written (`conversion/plan/losses/settings.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file
from tests.conversion.test_bad_models import KINDS, tensors

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.config.mlx_view import as_mlx_reads


def folder(path: Path, kind: str, **changes: Any) -> Path:
    path.mkdir()
    config = {k: v for k, v in {**KINDS[kind].config, **changes}.items() if v is not ...}
    save_file(tensors(KINDS[kind]), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


NEWER = {"rope_theta": ..., "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}


def test_rotation_in_the_words_of_transformers_5_reaches_mlx(tmp_path: Path) -> None:
    source = folder(tmp_path / "hf", "mixture", **NEWER)
    with wb.plan_convert(source, tmp_path / "mlx", to="mlx") as plan:
        read = as_mlx_reads(json.loads(plan.texts["config.json"]))
    assert read is not None
    assert read["rope_theta"] == 500000.0


def test_a_setting_that_would_change_stops_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm reads no `rope_parameters` of a Qwen 3 MoE and would rotate by its own default."""
    monkeypatch.setattr("weighbridge.conversion.mlx.plan.with_rope_words", lambda config, defaults: dict(config))
    source = folder(tmp_path / "hf", "mixture", **NEWER, rope_scaling=None)
    with pytest.raises(UnsupportedError, match=r"rope_theta is 500000.0 in the source, and mlx-lm would read"):
        wb.plan_convert(source, tmp_path / "mlx", to="mlx")
    assert not (tmp_path / "mlx").exists()


def _without(key: str) -> Callable[..., dict[str, KV]]:
    from weighbridge.models.config.mapping import config_to_gguf

    def fault(*args: Any, **options: Any) -> dict[str, KV]:
        return {k: v for k, v in config_to_gguf(*args, **options).items() if k.partition(".")[2] != key}

    return fault


KEYS = ("attention.head_count", "rope.freq_base", "attention.layer_norm_rms_epsilon", "expert_used_count")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_forgotten_stops_the_plan(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: Mapping[str, Any] = {"rope_theta": 5000.0, "rms_norm_eps": 1e-3}
    source = folder(tmp_path / "hf", "mixture", **changes)
    wb.plan_convert(source, tmp_path / "a.gguf", tokenizer=False).close()
    monkeypatch.setattr("weighbridge.conversion.gguf.metadata.config_to_gguf", _without(key))
    with pytest.raises(UnsupportedError, match=r"would be another model|needs this size"):
        wb.plan_convert(source, tmp_path / "a.gguf", tokenizer=False)


def test_a_folder_that_says_another_number_stops_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tmp_path / "a.gguf"
    wb.convert(folder(tmp_path / "hf", "mixture", rope_theta=5000.0), gguf, tokenizer=False)
    from weighbridge.models.config import mapping

    rotary = mapping._rotary

    def fault(config: dict[str, Any], *args: Any) -> list[str]:
        lost = rotary(config, *args)
        config["rope_theta"] = 10000.0
        return lost

    wb.plan_convert(gguf, tmp_path / "back", to="hf", tokenizer=False).close()
    monkeypatch.setattr("weighbridge.models.config.mapping._rotary", fault)
    with pytest.raises(UnsupportedError, match=r"rope.freq_base is 5000.0 in the source|rope_theta is 5000.0"):
        wb.plan_convert(gguf, tmp_path / "back", to="hf", tokenizer=False)


def test_what_mlx_lm_ignores_is_listed(tmp_path: Path) -> None:
    source = folder(tmp_path / "hf", "mixture", hidden_act="gelu")
    with wb.plan_convert(source, tmp_path / "mlx", to="mlx") as plan:
        assert [loss.message for loss in plan.losses] == ["config.json: hidden_act = 'gelu' isn't read by mlx-lm"]


def test_a_key_that_mlx_lm_requires_is_written(tmp_path: Path) -> None:
    """transformers 5 calls the number of experts `num_local_experts`; mlx-lm stops without `num_experts`."""
    source = folder(tmp_path / "hf", "mixture", num_experts=..., num_local_experts=4)
    with wb.plan_convert(source, tmp_path / "mlx", to="mlx") as plan:
        assert json.loads(plan.texts["config.json"])["num_experts"] == 4


@pytest.mark.oracle
def test_the_table_of_fields_is_mlx_lms() -> None:
    pytest.importorskip("mlx_lm", reason="MLX-LM'S FIELDS WEREN'T COMPARED: install requirements/oracles.txt")
    from tests.models.record_mlx_fields import TABLE, recorded

    assert TABLE.read_text() == recorded(), "run python -m tests.models.record_mlx_fields"
