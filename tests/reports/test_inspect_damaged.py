"""`wb inspect` of what is damaged shows the part that can be read, says what is wrong beside it, and exits with 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import weighbridge as wb
from weighbridge.cli.main import main

TENSORS = {f"model.layers.{i}.mlp.up_proj.weight": np.full((64, 64), i, np.float32) for i in range(4)}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12345\n"


def whole(path: Path) -> Path:
    save_file(TENSORS, path, {"format": "pt"})
    return path


def gguf(path: Path) -> Path:
    from weighbridge.base.dtypes import F32
    from weighbridge.base.spec import Spec
    from weighbridge.containers.gguf import container

    plan = container.layout([(n, Spec((4, 32), F32)) for n in ("a", "b")], {"general.architecture": "llama"})
    data = bytearray(plan.size)
    for at, piece in plan.pieces:
        data[at : at + len(piece)] = piece
    path.write_bytes(data)
    return path


def shards(path: Path) -> Path:
    wb.split(whole(path.with_name("w.safetensors")), path, max_shard_tensors=1)
    (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    return path


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def changed(path: Path, name: str, text: str | None) -> Path:
    (path / name).write_text(text) if text is not None else (path / name).unlink()
    return path


SECOND = "model-00002-of-00004.safetensors"
DAMAGED: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    "safetensors cut in its data": (lambda p: cut(whole(p / "m.safetensors"), 20_000), 4, "safetensors/truncated"),
    "GGUF cut in its data": (lambda p: cut(gguf(p / "m.gguf"), 600), 2, "gguf/truncated-data"),
    "GGUF cut in its header": (lambda p: cut(gguf(p / "m.gguf"), 110), 1, "gguf/truncated-header"),
    "missing shard": (lambda p: changed(shards(p / "m"), SECOND, None), 3, "sharded/missing-shard"),
    "LFS pointer for a shard": (lambda p: changed(shards(p / "m"), SECOND, POINTER), 3, "file/unread"),
    "shard cut in its header": (lambda p: changed(shards(p / "m"), SECOND, "\x99"), 3, "file/"),
    "broken index": (lambda p: changed(shards(p / "m"), "model.safetensors.index.json", "{"), 4, "sharded/broken"),
    "broken config": (lambda p: changed(shards(p / "m"), "config.json", "{"), 4, "config/broken"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_can_be_read_is_shown(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, tensors, rule = DAMAGED[case]
    path = make(tmp_path)
    capsys.readouterr()
    report = wb.inspect(path)
    assert report.tensor_count == tensors
    assert not report
    assert rule in report.damage[0].rule
    assert main(["inspect", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["tensor_count"] == tensors
    assert main(["inspect", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "tensors" in out
    assert report.damage[0].message.split("\n")[0][:40] in err


def test_a_sound_model_is_true(tmp_path: Path) -> None:
    assert wb.inspect(shards(tmp_path / "m"))


def test_of_nothing_there_is_nothing_to_show(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(bytes(4096))
    assert main(["inspect", str(tmp_path / "m.safetensors")]) == 2
    with pytest.raises(wb.errors.WeighbridgeError):
        wb.inspect(tmp_path / "m.safetensors")


def test_each_model_of_a_folder_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        gguf(tmp_path / name)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [Path(report["path"]).name for report in json.loads(out)] == ["m-Q4_K_M.gguf", "m-Q8_0.gguf"]
    assert "2 models" in err
    assert main(["inspect", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("gguf v3") == 2


# ---- adapters ----

PEFT = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (64, 4)}  # fmt: skip
KOHYA = {
    "lora_unet_mid_block_attn.lora_down.weight": (8, 32),
    "lora_unet_mid_block_attn.lora_up.weight": (9, 8),
}
MLX = {"model.layers.0.self_attn.v_proj.lora_a": (32, 6), "model.layers.0.self_attn.v_proj.lora_b": (6, 64)}


@pytest.mark.parametrize(
    ("name", "shapes", "config", "metadata", "expected"),
    [
        ("adapter_model", PEFT, {"r": 4, "lora_alpha": 8, "base_model_name_or_path": "org/base",
         "target_modules": ["q_proj", "v_proj"]}, {}, (4, 8, "org/base", ("q_proj", "v_proj"))),
        ("adapter_model", PEFT, {"target_modules": "all-linear"}, {}, (4, None, None, ("q_proj",))),
        ("x", KOHYA, None, {"ss_network_alpha": "4", "ss_network_dim": "8", "ss_sd_model_name": "sdxl"},
         (8, 4, "sdxl", ("lora_unet_mid_block_attn",))),
        ("adapters", MLX, {"model": "org/mlx", "lora_parameters": {"rank": 6, "scale": 2.0}}, {},
         (6, 12, "org/mlx", ("v_proj",))),
        ("adapters", MLX, {"lora_parameters": {}}, {}, (6, None, None, ("v_proj",))),
    ],
)  # fmt: skip
def test_a_lora_tells_rank_alpha_base_and_targets(
    name: str, shapes: dict[str, tuple[int, ...]], config: dict[str, object] | None, metadata: dict[str, str],
    expected: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    save_file({n: np.zeros(s, np.float32) for n, s in shapes.items()}, tmp_path / f"{name}.safetensors", metadata)
    if config is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    found = wb.inspect(tmp_path).model.adapter
    assert found is not None
    assert (found.rank, found.alpha, found.base, found.targets) == expected
    assert main(["inspect", str(tmp_path)]) == 0
    assert f"rank {expected[0]}" in capsys.readouterr().out


def test_a_gguf_lora_tells_the_layers_that_it_changes(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    path = tmp_path / "lora.gguf"
    wb.save(
        {f"blk.0.{layer}.weight.lora_{half}": np.zeros((4, 4), np.float32)
         for layer in ("attn_q", "ffn_up") for half in "ab"},
        path, metadata={**keys, "adapter.lora.alpha": 8.0},
    )  # fmt: skip
    found = wb.inspect(path).model.adapter
    assert found is not None
    assert (found.rank, found.alpha, found.targets) == (4, 8.0, ("attn_q", "ffn_up"))
