"""Folders for mlx-vlm, towers included: tensors as its converter writes them (recorded), and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.llama import make_folder
from tests.models.mlx_vlm_cases import ALL, CASES, FORMS, RESPELLED, case, recorded, respelled, summary
from tests.models.projector_cases import golden, weights, write_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.models.mlxlm import towers
from weighbridge.models.mlxlm.towers import TowerNames, table
from weighbridge.shipping.run import how_to_run

RECORD = recorded()
TYPES = {name: case(name)["config"]["model_type"] for name in ALL}


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return {name: array for path in folder.glob("*.safetensors") for name, array in load_file(path).items()}


def convert(source: Path, target: Path, form: str = "plain") -> Path:
    wb.convert(source, target, to="mlx", towers=True, **FORMS[form])
    return target


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALL)
def test_tensors_are_those_of_mlx_vlm(name: str, form: str, tmp_path: Path) -> None:
    folder = write_folder(case(name), tmp_path / "m")
    out = convert(folder, tmp_path / "out", form)
    assert summary(tensors(out)) == RECORD[name][form]
    config = json.loads((out / "config.json").read_text())
    assert (config.get("quantization") or {}).get("bits") == (4 if form == "quantized" else None)
    assert (out / "preprocessor_config.json").exists() == (folder / "preprocessor_config.json").exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALL)
def test_a_folder_of_mlx_vlm_becomes_the_folder_again(name: str, form: str, tmp_path: Path) -> None:
    folder = write_folder(case(name), tmp_path / "m")
    wb.convert(convert(folder, tmp_path / "out", form), tmp_path / "back", to="hf")
    before, after = tensors(folder), tensors(tmp_path / "back")
    assert after.keys() == before.keys()
    for tensor, array in before.items():
        assert after[tensor].shape == array.shape, tensor
        bound = np.abs(array).max() / 7 if form == "quantized" else 0  # of 16 steps, half a step
        assert np.abs(after[tensor] - array).max() <= bound, tensor


#: Models whose GGUFs need no tokenizer's tokens.
PAIRS = [name for name in CASES if name not in ("mistral3", "embedding-gemma2")]


@pytest.mark.parametrize("name", PAIRS)
def test_both_ggufs_of_either_folder_are_the_same(name: str, tmp_path: Path) -> None:
    """The language model and the towers, of Hugging Face's folder and of mlx-vlm's."""
    source = write_folder(case(name), tmp_path / "m")
    again = convert(source, tmp_path / "again")
    options: dict[str, Any] = {"to": "gguf", "with_mmproj": True, "tokenizer": False, "name": "m"}
    for folder, out in ((source, "a"), (again, "b")):
        wb.convert(folder, f"{tmp_path}/{out}/", **options)
        wb.convert(folder, tmp_path / f"{out}.gguf", mmproj=True, name="m")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    mmproj = {path.name for path in (tmp_path / "a").iterdir()} - {"a.gguf"}
    assert mmproj == {path.name for path in (tmp_path / "b").iterdir()} - {"b.gguf"}
    for one, other in (("a.gguf", "b.gguf"), (*mmproj, *mmproj)):
        first, second = wb.open(tmp_path / "a" / one), wb.open(tmp_path / "b" / other)
        assert list(first) == list(second)
        assert all(first[tensor].numpy().tobytes() == second[tensor].numpy().tobytes() for tensor in first)


def variants(name: str) -> list[tuple[str, str]]:
    return table().model[TYPES[name]].prefixes


@pytest.mark.parametrize("name", [name for name in ALL if variants(name)])
def test_other_names_of_a_tensor_convert_to_the_same(name: str, tmp_path: Path) -> None:
    """transformers 5 saves some of the models under other prefixes: each start of a name in the table is met."""
    row = table().model[TYPES[name]]
    named = weights(case(name)["names"])
    for start, new in row.prefixes:
        renamed = {}
        for old, array in named.items():
            mlx = row.to_mlx(old)
            there = start + mlx[len(new) :] if mlx.startswith(new) else old
            renamed[there if row.to_mlx(there) == mlx else old] = array
        if not any(tensor.startswith(start) for tensor in renamed):
            assert start == "lm_head.", "a tied model"
            continue
        folder = write_folder(case(name), tmp_path / "m" / str(len(list(tmp_path.glob("m/*")))))
        save_file(renamed, folder / "model.safetensors")
        out = convert(folder, tmp_path / f"{folder.name}-out")
        assert summary(tensors(out)) == RECORD[name]["plain"], start


@pytest.mark.parametrize("kind", table().model)
def test_each_start_of_a_name_is_replaced(kind: str) -> None:
    row = table().model[kind]
    for number, (start, new) in enumerate(row.prefixes):
        assert row.to_mlx(f"{start}x") == f"{new}x"
        first = next(there for there, here in row.prefixes if f"{new}x".startswith(here))
        assert row.to_hf(f"{new}x").startswith(first)
        assert not any(start.startswith(before) for before, _ in row.prefixes[:number]), "never met"
    assert row.to_mlx("other.x") == "other.x"


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl"])
def test_a_config_of_transformers_5_gets_the_older_keys(name: str, tmp_path: Path) -> None:
    """mlx-vlm's class reads them from the top of config.json, and refuses the tower's newer type."""
    folder = write_folder(golden()[name], tmp_path / "m")
    config = json.loads((convert(folder, tmp_path / "out") / "config.json").read_text())
    old = case(name)["config"]
    for key in ("hidden_size", "num_hidden_layers", "rope_theta", "model_type", "vocab_size"):
        assert config[key] == old[key], key
    assert config["rope_scaling"]["mrope_section"] == old["rope_scaling"]["mrope_section"]
    assert config["vision_config"]["model_type"] == old["model_type"]
    assert summary(tensors(tmp_path / "out")) == RECORD[name]["plain"]


@pytest.mark.parametrize("name", RESPELLED)
def test_a_config_in_another_spelling_has_the_keys_that_the_class_reads(name: str, tmp_path: Path) -> None:
    """mlx-vlm loads these folders (`record_mlx_vlm`)."""
    folder = write_folder(respelled(name), tmp_path / "m")
    with wb.plan_convert(folder, tmp_path / "out", to="mlx", towers=True) as plan:
        assert not any("mlx-vlm's class reads" in str(loss) for loss in plan.losses)
        plan.run()
    config, published = json.loads((tmp_path / "out" / "config.json").read_text()), case(name)["config"]
    row = table().model[TYPES[name]]
    for part, keys in (("text_config", row.text), ("vision_config", row.vision)):
        for key in keys:
            written, expected = config[part][key], published[part][key]
            assert isinstance(written, dict) or written == expected, key
            assert not isinstance(written, dict) or written["mrope_section"] == expected["mrope_section"]
    if row.tower:
        assert config["vision_config"]["model_type"] == row.tower
    assert summary(tensors(tmp_path / "out")) == RECORD[name]["plain"]


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.text or row.vision])
def test_a_key_that_no_spelling_has_is_listed(kind: str, tmp_path: Path) -> None:
    name = next(name for name in CASES if TYPES[name] == kind)
    row = table().model[kind]
    for part, keys in (("text_config", row.text), ("vision_config", row.vision)):
        for key, places in keys.items():
            if isinstance(places, int) or any(place in ("hidden_size", "head_dim") for place in places.split()):
                continue  # a constant, and keys without which no model is described
            found = respelled(name)
            for config in (found["config"], found["config"][part]):
                for place in (key, *(place.partition(".")[0] for place in places.split())):
                    config.pop(place, None)
            with suppress(WeighbridgeError):  # a key that describes the language model
                plan = wb.plan_convert(
                    write_folder(found, tmp_path / f"{part}-{key}"), tmp_path / "out", to="mlx", towers=True
                )
                assert any(f"lacks {part}.{key}" in str(loss) for loss in plan.losses), key


def test_transformers_5_s_experts_are_not_turned(tmp_path: Path) -> None:
    """Their stacks have the outputs first. mlx-vlm's own converter turns them, and refuses the result."""
    published, newer = case("qwen3-vl-moe"), case("qwen3-vl-moe")
    down = "model.language_model.layers.0.mlp.experts.down_proj"
    newer["names"][down] = golden()["qwen3-vl-moe"]["names"][down]
    folders = [write_folder(found, tmp_path / at) for found, at in ((published, "old"), (newer, "new"))]
    stored = load_file(folders[0] / "model.safetensors")
    experts = {name: np.ascontiguousarray(t.swapaxes(1, 2)) for name, t in stored.items() if ".experts." in name}
    save_file({**stored, **experts}, folders[1] / "model.safetensors", {"format": "pt"})
    outs = [convert(folder, tmp_path / f"{folder.name}-out") for folder in folders]
    assert summary(tensors(outs[0])) == summary(tensors(outs[1]))


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    found = case("kimi-vl")
    del found["names"]["language_model.model.layers.1.mlp.experts.0.up_proj.weight"]
    with pytest.raises(FormatError, match=r"expert 0 of .* is missing"):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shape", [[64, 64], [2, 64, 63]])
def test_a_stack_of_another_shape_is_an_error(shape: list[int], tmp_path: Path) -> None:
    found = case("qwen3-vl-moe")
    found["names"]["model.language_model.layers.0.mlp.experts.gate_up_proj"] = shape
    with pytest.raises(WeighbridgeError):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shape", [None, (64, 64), (2, 31, 64)])
def test_a_damaged_stack_of_mlx_vlm_is_an_error(shape: tuple[int, ...] | None, tmp_path: Path) -> None:
    out = convert(write_folder(case("qwen3-vl-moe"), tmp_path / "m"), tmp_path / "out")
    stored, name = tensors(out), "language_model.model.layers.0.mlp.switch_mlp.up_proj.weight"
    stored[name] = np.ones(shape or (1,), np.float32)
    if shape is None:
        del stored[name]
    for path in out.glob("*.safetensors*"):
        path.unlink()
    save_file(stored, out / "model.safetensors", {"format": "mlx"})
    with pytest.raises(WeighbridgeError):
        wb.convert(out, tmp_path / "back", to="hf")
    assert not (tmp_path / "back").exists()


def faults(row: TowerNames) -> list[TowerNames]:
    """The row without each prefix that the case needs, each turned tensor, its output and its older keys."""
    shorter = [row.prefixes[:at] + row.prefixes[at + 1 :] for at in range(len(row.prefixes))]
    turned = [row.channels_last[:at] + row.channels_last[at + 1 :] for at in range(len(row.channels_last))]
    return [
        *(msgspec.structs.replace(row, prefixes=rest) for rest in shorter),
        *(msgspec.structs.replace(row, channels_last=rest) for rest in turned),
        *([msgspec.structs.replace(row, head=[])] if row.head else []),
        *(msgspec.structs.replace(row, endings=[e for e in row.endings if e is not one]) for one in row.endings),
        *(
            msgspec.structs.replace(
                row, endings=[msgspec.structs.replace(e, turned=e.turned is not (e is one)) for e in row.endings]
            )
            for one in row.endings
            if one.turned
        ),
    ]


@pytest.mark.costly
@pytest.mark.parametrize("name", ALL)
def test_a_fault_in_a_row_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, kind = write_folder(case(name), tmp_path / "m"), TYPES[name]
    row = table().model[kind]
    names = set(map(row.to_mlx, case(name)["names"]))
    for number, fault in enumerate(faults(row)):
        if set(map(fault.to_mlx, case(name)["names"])) == names and fault.prefixes != row.prefixes:
            continue  # another spelling: seen by the test of other names
        monkeypatch.setattr(towers, "table", lambda row=fault: msgspec.structs.replace(table(), model={kind: row}))
        with suppress(UnsupportedError):  # for a convolution that isn't found
            convert(folder, tmp_path / str(number))
        monkeypatch.undo()
        assert summary(tensors(tmp_path / str(number))) != RECORD[name]["plain"], fault


@pytest.mark.parametrize("part", table().multimodal)
def test_matrices_of_towers_are_not_quantized(part: str) -> None:
    assert not table().quantizes(f"a.{part}.b.weight")
    assert table().quantizes("language_model.model.layers.0.mlp.up_proj.weight")


def gguf_source(tmp_path: Path) -> Path:
    wb.convert(write_folder(case("smolvlm"), tmp_path / "g"), tmp_path / "g.gguf", tokenizer=False)
    return tmp_path / "g.gguf"


def with_experts(tmp_path: Path) -> Path:
    found = case("gemma4")
    found["names"]["model.language_model.layers.0.experts.gate_up_proj"] = [2, 64, 64]
    return write_folder(found, tmp_path / "experts")


def with_pixtral(tmp_path: Path) -> Path:
    return write_folder(golden()["pixtral"], tmp_path / "pixtral")


BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], type[Exception], str]] = {
    "text": (lambda at: make_folder(at / "llama"), {}, UnsupportedError, "no table has mlx-vlm's names"),
    "gguf": (gguf_source, {}, UsageError, "doesn't apply to a GGUF"),
    "recipe": (lambda at: write_folder(case("smolvlm"), at / "m"), {"recipe": "mixed_3_4"}, UsageError, "recipe"),
    "tower": (with_pixtral, {}, UnsupportedError, "mlx-vlm's llava has no tower pixtral"),
    "experts": (with_experts, {}, UnsupportedError, "layout of experts"),
}


@pytest.mark.parametrize("name", BAD)
def test_others_are_refused(name: str, tmp_path: Path) -> None:
    source, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        wb.convert(source(tmp_path), tmp_path / "out", to="mlx", towers=True, **options)
    assert not (tmp_path / "out").exists()


def test_buffers_are_listed(tmp_path: Path) -> None:
    found = case("smolvlm")
    found["names"]["model.vision_model.embeddings.position_ids"] = [1, 16]
    plan = wb.plan_convert(write_folder(found, tmp_path / "m"), tmp_path / "out", to="mlx", towers=True)
    assert [loss.tensor for loss in plan.losses if "mlx-vlm computes it" in loss.message] == [
        "vision_model.embeddings.position_ids"
    ]


def test_the_language_model_alone_names_the_option(tmp_path: Path) -> None:
    folder = write_folder(case("smolvlm"), tmp_path / "m")
    with wb.plan_convert(folder, tmp_path / "text", to="mlx") as plan:
        assert any("--to mlx --towers writes it" in str(loss) for loss in plan.losses)
    with wb.plan_convert(folder, tmp_path / "whole", to="mlx", towers=True) as plan:
        assert how_to_run(plan) == f"mlx_vlm.chat --model {tmp_path / 'whole'}"
        assert not plan.losses
        plan.run()
    report = wb.ship("mlx", tmp_path / "whole")
    assert report.run[0] == f"mlx_vlm.chat --model {tmp_path / 'whole'}"
    assert [check.ok for check in report.checks if check.need == "model"] == [True]
    assert wb.ship("mlx", folder).run[0].startswith("mlx_lm.chat")
