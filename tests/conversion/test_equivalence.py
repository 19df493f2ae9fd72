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
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.quantize import keys as gguf_keys
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
    monkeypatch.setattr("weighbridge.conversion.mlx.config._implied", lambda found, facts, family: {})
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
    with pytest.raises(UnsupportedError, match=r"would be another model|needs this size"):
        wb.plan_quantize(source, tmp_path / "a.gguf", "Q8_0", tokenizer=False)


def test_quantizing_lists_what_converting_lists(tmp_path: Path) -> None:
    source = folder(tmp_path / "hf", "mixture", norm_topk_prob=False)
    with (
        wb.plan_convert(source, tmp_path / "a.gguf", tokenizer=False) as converted,
        wb.plan_quantize(source, tmp_path / "a.gguf", "F16", tokenizer=False) as quantized,
    ):
        assert "config.json: norm_topk_prob = False has no key in a qwen3moe GGUF" in [
            x.message for x in converted.losses
        ]
        assert set(converted.losses) <= set(quantized.losses)


@pytest.mark.parametrize("key", ["qwen3moe.rope.freq_base", "qwen3moe.extra"])
def test_a_key_that_a_gguf_does_not_keep_stops_the_plan(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting and quantizing keep the keys of a GGUF, but for those that --override-kv sets."""
    from weighbridge.conversion.gguf import metadata

    gguf = tmp_path / "a.gguf"
    wb.convert(folder(tmp_path / "hf", "mixture"), gguf, tokenizer=False)
    kept = metadata.kept_keys
    monkeypatch.setattr(metadata, "kept_keys", lambda keys: kept(keys) | {key: KV("f32", 1.0)})
    with pytest.raises(UnsupportedError, match=f"would be another model: {key}"):
        wb.plan_split(gguf, tmp_path / "split", max_shard_tensors=4)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(gguf_keys, "_set", lambda keys, new: {**keys, **new, key: KV("f32", 1.0)})
        with pytest.raises(UnsupportedError, match=f"would be another model: {key}"):
            wb.plan_quantize(gguf, tmp_path / "q.gguf", "Q8_0")
    wb.plan_quantize(gguf, tmp_path / "q.gguf", "Q8_0", override_kv=(f"{key}=float:1",)).close()


def test_layers_that_become_others_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that forgets a period gives the layers that are left other kinds."""
    source = folder(tmp_path / "hf", "hybrid")
    with wb.plan_slice(source, tmp_path / "right", layers="2-", renumber=True) as plan:
        assert plan.losses == ()
    monkeypatch.setattr("weighbridge.models.transform.layers._period", lambda *_: {})
    with pytest.raises(UsageError, match="would describe other layers"):
        wb.plan_slice(source, tmp_path / "wrong", layers="1-", renumber=True)
    monkeypatch.setattr("weighbridge.models.transform.layers._unread", lambda *_: ())
    with wb.plan_slice(source, tmp_path / "wrong", layers="1-", renumber=True) as plan:
        words = [loss.message for loss in plan.losses]
    assert "layers attention was [0, 2] for the layers that are left and becomes [1]" in words
    assert "layers moe was [0, 2] for the layers that are left and becomes [1]" in words


def test_a_folder_that_says_another_number_stops_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tmp_path / "a.gguf"
    wb.convert(folder(tmp_path / "hf", "mixture", rope_theta=5000.0), gguf, tokenizer=False)
    from weighbridge.models.config import mapping

    rotary = mapping._restore_rotation

    def fault(config: dict[str, Any], *args: Any) -> list[str]:
        lost = rotary(config, *args)
        config["rope_theta"] = 10000.0
        return lost

    wb.plan_convert(gguf, tmp_path / "back", to="hf", tokenizer=False).close()
    monkeypatch.setattr("weighbridge.models.config.mapping._restore_rotation", fault)
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
