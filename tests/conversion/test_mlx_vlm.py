"""Folders for mlx-vlm, towers included: tensors as its converter writes them (recorded), and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.llama import make_folder
from tests.models.mlx_vlm_cases import (
    ALL,
    CASES,
    DROPPED,
    FORMS,
    GOLDEN,
    MODULES,
    RECORDED,
    RESPELLED,
    case,
    part_of_text,
    recorded,
    respelled,
    summary,
    with_output,
)
from tests.models.projector_cases import golden, weights, write_folder

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.models.arch.registry import family_of_hf, projector_of_hf
from weighbridge.models.mlxlm import towers
from weighbridge.models.mlxlm.towers import TowerNames, table, tower_names
from weighbridge.shipping.run import how_to_run
from weighbridge.tensors.nodes import const

RECORD = recorded()
#: Case -> its row in towers.toml
TYPES = {name: found.kind for name in ALL if (found := tower_names(case(name)["config"]))}


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return {name: array for path in folder.glob("*.safetensors") for name, array in load_file(path).items()}


def convert(source: Path, target: Path, form: str = "plain") -> Path:
    wb.convert(source, target, to="mlx", towers=True, **FORMS[form])
    return target


def test_the_record_has_these_cases_alone() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(ALL)
    assert {(name, form) for name, forms in RECORD.items() for form in forms} == set(RECORDED)


def test_each_module_of_mlx_vlm_has_a_row_or_a_reason() -> None:
    recorded_modules = json.loads(MODULES.read_text("utf-8"))
    assert {kind: row.module for kind, row in table().model.items()} == recorded_modules["of"]
    listed = [module for group in table().without.values() for module in group.modules]
    written = {row.module for row in table().model.values()}
    assert len(listed) == len({*listed}), "listed twice"
    assert not written & {*listed}
    assert written | {*listed} == {*recorded_modules["modules"]}


def test_the_reason_is_given_for_a_model_type_of_another_name_than_its_module() -> None:
    kinds = {kind: module for group in table().without.values() for kind, module in group.kinds.items()}
    assert kinds == json.loads(MODULES.read_text("utf-8"))["without"]
    for kind, module in kinds.items():
        assert table().reason(kind) == table().reason(module) != ""


def test_classes_with_an_output_of_their_own_are_those_of_mlx_vlm() -> None:
    assert table().untied == json.loads(MODULES.read_text("utf-8"))["untied"]


#: Kind -> a model of it whose output is tied to the embedding and stored all the same.
WITH_OUTPUT = {TYPES[name]: tied for name in ALL if (tied := with_output(name)) is not None}


@pytest.mark.parametrize("kind", WITH_OUTPUT)
def test_an_output_that_is_tied_and_stored_is_left_out_unless_the_class_has_one(kind: str, tmp_path: Path) -> None:
    """mlx-vlm loads these folders, and most of those with both not at all (`record_mlx_vlm`)."""
    found, row = WITH_OUTPUT[kind], table().model[kind]
    output = {mlx for name in found["names"] if (mlx := row.to_mlx(name)).endswith("lm_head.weight")}
    with wb.plan_convert(write_folder(found, tmp_path / "m"), tmp_path / "out", to="mlx", towers=True) as plan:
        listed = {str(loss.tensor) for loss in plan.losses if "left out" in loss.message} & output
        plan.run()
    written = output & tensors(tmp_path / "out").keys()
    assert (listed, written) == ((set(), output) if row.head or kind in table().untied else (output, set()))


@pytest.mark.parametrize(("name", "form"), RECORDED)
def test_tensors_are_those_of_mlx_vlm(name: str, form: str, tmp_path: Path) -> None:
    folder = write_folder(case(name), tmp_path / "m")
    out = convert(folder, tmp_path / "out", form)
    assert summary(tensors(out)) == RECORD[name][form]
    config = json.loads((out / "config.json").read_text())
    assert (config.get("quantization") or {}).get("bits") == (4 if form == "quantized" else None)
    assert (out / "preprocessor_config.json").exists() == (folder / "preprocessor_config.json").exists()


@pytest.mark.parametrize("form", ["plain", "quantized"])
@pytest.mark.parametrize("name", ALL)
def test_a_folder_of_mlx_vlm_becomes_the_folder_again(name: str, form: str, tmp_path: Path) -> None:
    folder, row = write_folder(case(name), tmp_path / "m"), table().model[TYPES[name]]
    with wb.plan_convert(folder, tmp_path / "out", to="mlx", towers=True, **FORMS[form]) as plan:
        dropped = {row.to_hf(str(loss.tensor)) for loss in plan.losses if "left out" in loss.message}
        plan.run()
    wb.convert(tmp_path / "out", tmp_path / "back", to="hf")
    settings = json.loads((tmp_path / "back" / "config.json").read_text())
    assert not {"quantization", "quantization_config"} & settings.keys()
    before, after = tensors(folder), tensors(tmp_path / "back")
    if name == "internvl-silu":  # comes back under the names of transformers 5
        before = {row.to_hf(row.to_mlx(tensor)): array for tensor, array in before.items()}
    assert after.keys() == before.keys() - dropped
    for tensor, array in after.items():
        expected = before[tensor].astype(np.float16) if row.half else before[tensor]
        assert expected.shape == array.shape, tensor
        if sides := row.cut_sides(row.to_mlx(tensor), case(name)["config"]["text_config"] if row.cut else {}):
            expected = np.where(np.arange(sides[1]) < sides[0], expected, np.float32(0))
        if row.to_mlx(tensor).endswith(tuple(row.one_added)):
            expected = expected + np.float32(1) - np.float32(1)
        if any(row.to_mlx(tensor).endswith(end) for norm in row.weight_norms for end in norm.hf):
            continue  # another pair
        steps = 4 if row.modes else 7  # of 16 steps, half a step; of a 4-bit float up to a quarter of the largest
        bound = np.abs(expected).max() / steps if form == "quantized" else 0
        assert np.abs(array - expected).max() <= bound, tensor


@pytest.mark.parametrize(
    ("name", "back", "tensor", "shape", "reason"),
    [("inkling", False, "model.llm.layers.0.attn.k_sconv.weight", (), "k_sconv.conv.weight .* no axis 1"),
     ("inkling", False, "model.llm.layers.0.attn.k_sconv.weight", (3,), "k_sconv.conv.weight .* no axis 1"),
     ("inkling", False, "model.llm.layers.0.attn.wq_du.weight", (), "wq_du.weight is a single number"),
     ("inkling", True, "language_model.model.layers.0.self_attn.qkvr_proj.weight", (), "qkvr_proj.weight is a single"),
     ("minicpm-o", True, "tts.head_code.0.weight", (), "head_code.0.weight is a single number"),
    ],
)  # fmt: skip
def test_a_tensor_without_the_axes_of_its_layout_is_named(
    name: str, back: bool, tensor: str, shape: tuple[int, ...], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(case(name), tmp_path / "m")
    if back:
        folder = convert(folder, tmp_path / "mlx")
    changed = tensors(folder) | {tensor: np.ones(shape, np.float32)}
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(changed, folder / "model.safetensors", {"format": "mlx" if back else "pt"})
    with pytest.raises((FormatError, UnsupportedError), match=reason):
        wb.convert(folder, tmp_path / "out", **({"to": "hf"} if back else {"to": "mlx", "towers": True}))
    assert not (tmp_path / "out").exists()


def test_a_number_in_place_of_rows_is_listed(tmp_path: Path) -> None:
    folder = write_folder(case("nemotron-parse"), tmp_path / "m")
    patches = "encoder.model_encoder.radio_model.model.patch_generator.embedder.weight"
    save_file(tensors(folder) | {patches: np.ones((), np.float32)}, folder / "model.safetensors", {"format": "pt"})
    with wb.plan_convert(folder, tmp_path / "out", to="mlx", towers=True) as plan:
        assert any(loss.tensor == "vision_tower.patch_embed.weight" for loss in plan.losses)


#: Models whose GGUFs need no tokenizer's tokens, and whose tensors all return.
NO_PAIRS = (
    "mistral3", "embedding-gemma2", "gemma4-shared", "phi4-vision", "nemotron-omni", "deepseek-v4",
)  # fmt: skip
PAIRS = [name for name in CASES if name not in NO_PAIRS]


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


def test_the_language_model_of_a_folder_without_all_that_an_mmproj_file_has(tmp_path: Path) -> None:
    """mlx-vlm computes the filters of sounds."""
    source = write_folder(case("nemotron-omni"), tmp_path / "m")
    again = convert(source, tmp_path / "again")
    for folder, out in ((source, "a"), (again, "b")):
        wb.convert(folder, tmp_path / f"{out}.gguf", to="gguf", tokenizer=False, name="m")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    with pytest.raises(WeighbridgeError):
        wb.convert(again, tmp_path / "c.gguf", mmproj=True)
    assert not (tmp_path / "c.gguf").exists()


def test_the_towers_of_a_language_model_without_a_family(tmp_path: Path) -> None:
    source = write_folder(case("phi4-vision"), tmp_path / "m")
    for folder, out in ((source, "a"), (convert(source, tmp_path / "again"), "b")):
        wb.convert(folder, tmp_path / f"{out}.gguf", mmproj=True, name="m")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def variants(name: str) -> list[tuple[str, str]]:
    return table().model[TYPES[name]].prefixes


@pytest.mark.parametrize("name", [name for name in ALL if variants(name)])
def test_other_names_of_a_tensor_convert_to_the_same(name: str, tmp_path: Path) -> None:
    """transformers 5 saves some of the models under other prefixes: each start of a name in the table is met."""
    row = table().model[TYPES[name]]
    projector = projector_of_hf(case(name)["config"])
    inside = tuple(f"{folder}." for folder in projector.document.companions) if projector else ()
    named = weights({n: shape for n, shape in case(name)["names"].items() if not n.startswith(inside)})
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
        assert not any("which mlx-vlm's class reads" in str(loss) for loss in plan.losses)
        plan.run()
    config, published = json.loads((tmp_path / "out" / "config.json").read_text()), case(name)["config"]
    row = table().model[TYPES[name]]
    for part, keys in ((part_of_text(config), row.text), ("vision_config", row.vision)):
        for key in keys:
            first, _, inner = key.removesuffix("!").partition(".")
            written, expected = config[part][first], published[part].get(first, {})
            if inner or isinstance(written, dict):
                section = "xdrope_section" if name == "hunyuan-vl" else "mrope_section"
                assert inner in ("", *written)
                assert written[section] == expected[section]
            else:
                assert written == expected, key
    for path, keys in row.parts.items():
        at, before = config, published
        for step in path.split("."):
            at, before = at[step], before[step]
        assert {key: before[key] for key in keys if not isinstance(before[key], dict)}.items() <= at.items()
    for part, accepted in (("text_config", row.text_keys), ("vision_config", row.vision_keys)):
        assert not accepted or set(config[part]) <= set(accepted)
    if row.copied:
        assert all(config[key] == published[place] for key, place in row.copied.items())
        wb.convert(tmp_path / "out", tmp_path / "back", to="hf")
        assert not {*row.copied} & {*json.loads((tmp_path / "back" / "config.json").read_text())}
    if row.layer_types:
        assert config["text_config"]["layer_types"] == published["text_config"]["layer_types"]
    if row.tower:
        assert config["vision_config"]["model_type"] == row.tower
    assert summary(tensors(tmp_path / "out")) == RECORD[name]["plain"]


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe", "minicpm-v-4.6"])
def test_the_class_gets_the_period_of_full_attention(name: str, tmp_path: Path) -> None:
    """transformers 5 saves the kind of each layer instead. Other orders are refused."""
    found = respelled(name)
    layer = "model.language_model.layers.{}."
    last = {n.replace(".3.", ".1.", 1): s for n, s in found["names"].items() if n.startswith(layer.format(3))}
    found["names"] = {n: s for n, s in found["names"].items() if not n.startswith(layer.format(1))} | last
    found["config"]["text_config"]["layer_types"] = 2 * ["linear_attention", "full_attention"]
    out = convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["text_config"]["full_attention_interval"] == 2
    found["config"]["text_config"]["layer_types"] = 2 * ["full_attention", "linear_attention"]
    with pytest.raises(UnsupportedError, match="full_attention in every n-th layer"):
        convert(write_folder(found, tmp_path / "other"), tmp_path / "refused")


def test_the_period_of_a_language_model_without_a_family(tmp_path: Path) -> None:
    found = respelled("minicpm-v-4.7")
    del found["config"]["text_config"]["full_attention_interval"]
    out = convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["text_config"]["full_attention_interval"] == 2
    found["config"]["text_config"]["layer_types"].reverse()
    with pytest.raises(UnsupportedError, match="full_attention in every n-th layer"):
        convert(write_folder(found, tmp_path / "other"), tmp_path / "refused")
    found["config"]["text_config"]["layer_types"] = 2  # as if the config had none
    assert (
        "full_attention_interval"
        not in (convert(write_folder(found, tmp_path / "n"), tmp_path / "none") / "config.json").read_text()
    )


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.text or row.vision])
def test_a_key_that_no_spelling_has_is_listed(kind: str, tmp_path: Path) -> None:
    name = next(name for name in ALL if TYPES[name] == kind)
    row = table().model[kind]
    for part, keys in ((part_of_text(case(name)["config"]), row.text), ("vision_config", row.vision)):
        for key, places in keys.items():
            if not isinstance(places, str) or re.search("hidden_size|head_dim|intermediate_size", places):
                continue  # a constant, and keys without which no model is described
            found = respelled(name)
            for config in (found["config"], found["config"].get(part, {})):
                for place in (key.partition(".")[0], *(re.split("[./*]", place)[0] for place in places.split())):
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


DAMAGED = [
    ("youtu-vl", "model.layers.0.self_attn.kv_b_proj.weight", [95, 16], "expected 96 rows"),
    ("paddleocr-vl", "visual.vision_model.encoder.layers.0.self_attn.k_proj.weight", [64, 63], "different lengths"),
    (
        "minimax-m3",
        "language_model.model.layers.1.block_sparse_moe.shared_experts.down_proj.weight",
        [64, 16],
        "shape isn't that of the shared one",
    ),
    ("mimo-v2.5", "model.layers.1.self_attn.qkv_proj.weight", [183, 64], "expected 184 rows"),
    ("inkling", "model.llm.layers.0.mlp.w13_dn.weight", [191, 64], "an even number of rows"),
    ("inkling", "model.llm.layers.1.mlp.shared_experts.shared_w13_weight", [3, 64, 64], "has 3 experts"),
    ("inkling", "model.llm.layers.1.mlp.shared_experts.shared_w2_weight", [3, 64, 32], "has 3 experts"),
    ("inkling", "model.llm.layers.1.mlp.shared_experts.shared_w2_weight", [64, 32], "a stack of experts"),
]


@pytest.mark.parametrize(("name", "tensor", "shape", "words"), DAMAGED)
def test_a_part_of_another_shape_is_an_error(name: str, tensor: str, shape: list[int], words: str) -> None:
    row, found = table().model[TYPES[name]], weights(case(name)["names"] | {tensor: shape})
    nodes, config = {n: const(array, F32) for n, array in found.items()}, case(name)["config"]
    with pytest.raises(FormatError, match=words):
        towers.mlx_tensors(row, nodes, config.get("text_config", config), turned=False)


WHOLE = [
    ("youtu-vl", "language_model.model.layers.0.self_attn.embed_q.weight", [4, 16, 7]),
    ("paddleocr-vl", "visual.layers.0.self_attn.qkv.weight", [191, 64]),
    ("glm-5.3", "language_model.model.layers.0.self_attn.fbg_a_proj.weight", [20, 64]),
    ("minimax-m3", "language_model.model.layers.1.block_sparse_moe.switch_mlp.gate_up_proj.weight", [3, 63, 64]),
    ("mimo-v2.5", "vision_tower.patch_embed.proj.weight", [64, 1175]),
    ("inkling", "language_model.model.layers.1.mlp.shared_experts.gate_proj.weight", [63, 64]),
    ("inkling", "language_model.model.layers.1.mlp.shared_experts.down_proj.weight", [64, 63]),
    ("inkling", "language_model.model.layers.1.self_attn.qkvr_proj.weight", [190, 64]),
    ("inkling", "language_model.model.layers.1.self_attn.o_proj.weight", [64]),
    ("inkling", "language_model.model.layers.0.mlp.up_proj.weight", [96, 0]),
]


@pytest.mark.parametrize(("name", "tensor", "shape"), WHOLE)
def test_a_damaged_whole_of_mlx_vlm_is_an_error(name: str, tensor: str, shape: list[int], tmp_path: Path) -> None:
    out = convert(write_folder(case(name), tmp_path / "m"), tmp_path / "out")
    stored = tensors(out) | {tensor: np.ones(shape, np.float32)}
    for path in out.glob("*.safetensors*"):
        path.unlink()
    save_file(stored, out / "model.safetensors", {"format": "mlx"})
    with pytest.raises(FormatError, match=r"n't split|doesn't have|has no sizes|shapes|too few axes"):
        wb.convert(out, tmp_path / "back", to="hf")
    assert not (tmp_path / "back").exists()


def test_factors_of_experts_other_than_1_are_refused(tmp_path: Path) -> None:
    """A conversion of Inkling in NVFP4 has them, and a folder has no tensor for them."""
    out = convert(write_folder(case("inkling"), tmp_path / "m"), tmp_path / "out")
    name = "language_model.model.layers.2.mlp.switch_mlp.out_scale"
    stored = tensors(out) | {name: np.array([1, 2, 1], np.float32)}
    for path in out.glob("*.safetensors*"):
        path.unlink()
    save_file(stored, out / "model.safetensors", {"format": "mlx"})
    with pytest.raises(UnsupportedError, match=re.escape(f"{name} scales experts")):
        wb.convert(out, tmp_path / "back", to="hf")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("factors", [np.ones(3, np.int32), np.ones((1 << 16) + 1, np.float32)], ids=["I32", "65537"])
def test_damaged_factors_of_experts_are_an_error(factors: np.ndarray, tmp_path: Path) -> None:
    out = convert(write_folder(case("inkling"), tmp_path / "m"), tmp_path / "out")
    stored = tensors(out) | {"language_model.model.layers.2.mlp.switch_mlp.out_scale": factors}
    for path in out.glob("*.safetensors*"):
        path.unlink()
    save_file(stored, out / "model.safetensors", {"format": "mlx"})
    with pytest.raises(FormatError, match="no factor for each expert"):
        wb.convert(out, tmp_path / "back", to="hf")


@pytest.mark.parametrize("shape", [[1 << 40, 2, 0], [0, 64, 64]])
def test_a_stack_without_a_plausible_number_of_experts_is_an_error(shape: list[int], tmp_path: Path) -> None:
    found = case("inkling")
    found["names"]["model.llm.layers.1.mlp.experts.w13_weight"] = shape
    with pytest.raises(FormatError, match="number of experts"):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_packed_experts_whose_rows_alternate_are_refused(tmp_path: Path) -> None:
    source, name = write_folder(case("inkling"), tmp_path / "m"), "model.llm.layers.1.mlp.experts.w13_weight"
    stored = load_file(source / "model.safetensors")
    stored |= {name: np.ones((3, 64, 32), np.uint8), f"{name}.scale2": np.ones(3, np.float32)}
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedError, match="w13_weight is quantized, which can't be split"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


#: Cases with single experts or stacks of them: transformers can save the other form.
STACKED = ("qwen3.5-moe", "qwen4-exp", "glm-4v-moe", "minicpm-v-4.7-moe")


#: Fields of a row whose single entries change what is written, and the form in which each shows.
FIELDS = {"channels_last": "plain", "one_added": "plain", "endings": "plain", "eight_bits": "quantized",
          "unquantized": "quantized", "uncast": "bfloat16", "unread": "plain", "head": "plain", "joins": "plain",
          "heads": "plain", "packed": "plain", "groups": "plain", "weight_norms": "plain", "transposed": "plain",
          "int32": "plain", "alternate": "plain", "columns": "plain", "together": "plain",
          "as_published": "plain"}  # fmt: skip


def faults(row: TowerNames) -> Iterator[tuple[str, TowerNames]]:
    """The row without each prefix and each entry of `FIELDS`, and with each stack the other way round."""
    for at in range(len(row.prefixes)):
        yield "plain", msgspec.structs.replace(row, prefixes=row.prefixes[:at] + row.prefixes[at + 1 :])
    for field, form in FIELDS.items():
        entries = getattr(row, field)
        for entry in entries:
            rest = [] if field == "head" else [other for other in entries if other is not entry]
            yield form, msgspec.structs.replace(row, **{field: rest})
    if row.half:
        yield "plain", msgspec.structs.replace(row, half=False)
    for dropped in row.unread:
        if dropped.tied:
            always = [msgspec.structs.replace(e, tied=e.tied and e is not dropped) for e in row.unread]
            yield "plain", msgspec.structs.replace(row, unread=always)
    if any(each.kept for each in row.unread):
        yield "plain", msgspec.structs.replace(row, unread=[msgspec.structs.replace(e, kept=[]) for e in row.unread])
    for mode, parts in row.modes.items():
        for part in parts:
            rest = [other for other in parts if other != part]
            yield "quantized", msgspec.structs.replace(row, modes={**row.modes, mode: rest})
    for end, made in row.ones.items():
        for at in range(len(made)):
            yield "plain", msgspec.structs.replace(row, ones={**row.ones, end: made[:at] + made[at + 1 :]})
    for one in row.endings:
        turned = [msgspec.structs.replace(e, turned=e.turned is not (e is one)) for e in row.endings]
        if one.turned:
            yield "plain", msgspec.structs.replace(row, endings=turned)


def spellings(name: str, at: Path) -> list[Path]:
    """A case's folders that convert to the same: with tensors that the class drops, also if config.json doesn't say
    that the output is tied and the class's default does, and with stacks of experts."""
    found = case(name)
    found["names"] |= DROPPED.get(name, {})
    folders = [write_folder(found, at / name)]
    if name in DROPPED and any(dropped.tied for dropped in table().model[TYPES[name]].unread):
        for config in (found["config"], found["config"].get("text_config", {})):
            config.pop("tie_word_embeddings", None)
        folders.append(write_folder(found, at / f"{name}-unsaid"))
    if name in STACKED:
        named = weights(case(name)["names"])
        single = [tensor for tensor in named if ".experts.0.up_proj" in tensor]
        for tensor in single:
            start = tensor.partition(".0.up_proj")[0]
            gate, up, down = (
                [named.pop(f"{start}.{n}.{p}_proj.weight") for n in (0, 1)] for p in ("gate", "up", "down")
            )
            named[f"{start}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in zip(gate, up, strict=True)])
            named[f"{start}.down_proj"] = np.stack(down)
        for start in {tensor.removesuffix(".gate_up_proj") for tensor in case(name)["names"] if "gate_up" in tensor}:
            for n, both in enumerate(named.pop(f"{start}.gate_up_proj")):
                halves = np.split(both, 2)
                named |= {f"{start}.{n}.{p}_proj.weight": x.copy() for p, x in zip(("gate", "up"), halves, strict=True)}
            for n, last in enumerate(named.pop(f"{start}.down_proj")):
                named[f"{start}.{n}.down_proj.weight"] = last.copy()
        folders.append(write_folder(found, at / f"{name}-stacked"))
        save_file(named, folders[-1] / "model.safetensors", {"format": "pt"})
    return folders


@pytest.mark.parametrize("name", sorted({*DROPPED, *STACKED}))
def test_other_spellings_convert_to_the_same_and_list_tensors_that_the_class_drops(name: str, tmp_path: Path) -> None:
    row = table().model[TYPES[name]]
    dropped = {row.to_mlx(tensor) for tensor in DROPPED.get(name, {})}
    for folder in spellings(name, tmp_path):
        expected = set[str]() if folder.name.endswith("-stacked") else dropped
        with wb.plan_convert(folder, tmp_path / f"{folder.name}-out", to="mlx", towers=True) as plan:
            assert {loss.tensor for loss in plan.losses if "doesn't read it" in loss.message} == expected
            plan.run()
        assert summary(tensors(tmp_path / f"{folder.name}-out")) == RECORD[name]["plain"]


@pytest.mark.costly
@pytest.mark.parametrize("kind", table().model)
def test_a_fault_in_a_row_is_seen(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the row's models, at least."""
    row = table().model[kind]
    names = [name for name in ALL if TYPES[name] == kind]
    folders = [(name, folder) for name in names for folder in spellings(name, tmp_path)]
    for number, (form, fault) in enumerate(faults(row)):
        if fault.prefixes != row.prefixes and all(
            fault.to_mlx(tensor) == row.to_mlx(tensor) for name in names for tensor in case(name)["names"]
        ):
            continue  # another spelling: seen by the test of other names
        monkeypatch.setattr(towers, "table", lambda row=fault: msgspec.structs.replace(table(), model={kind: row}))
        seen = False
        for name, folder in folders:
            out = tmp_path / f"{number}-{folder.name}"
            with suppress(UnsupportedError, FormatError):  # for a convolution or a stack that isn't found
                convert(folder, out, form)
            seen |= form in RECORD[name] and summary(tensors(out)) != RECORD[name][form]
        monkeypatch.undo()
        assert seen, fault


@pytest.mark.parametrize("part", table().multimodal)
def test_matrices_of_towers_are_not_quantized(part: str) -> None:
    assert not table().quantizes(f"a.{part}.b.weight")
    assert table().quantizes("language_model.model.layers.0.mlp.up_proj.weight")


PUBLISHED = [name for name in ALL if table().model[TYPES[name]].published]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_model_type_is_that_of_mlx_vlm_and_returns(name: str, tmp_path: Path) -> None:
    """mlx-vlm takes the published type for another model's (`record_mlx_vlm`)."""
    source = write_folder(case(name), tmp_path / "m")
    out = convert(source, tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["model_type"] == TYPES[name]
    wb.convert(out, tmp_path / "back", to="hf")
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "back")]
    assert configs[0]["model_type"] == configs[1]["model_type"] == table().model[TYPES[name]].published


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.requires])
def test_a_key_that_the_class_requires_is_listed(kind: str, tmp_path: Path) -> None:
    name = next(name for name in ALL if TYPES[name] == kind)
    for key in table().model[kind].requires:
        found = case(name)
        del found["config"][key]
        source = write_folder(found, tmp_path / key)
        with wb.plan_convert(source, tmp_path / "out", to="mlx", towers=True) as plan:
            assert [str(loss) for loss in plan.losses if f"config.json lacks {key}," in str(loss)]


def test_an_output_of_another_name_is_not_taken_for_tied(tmp_path: Path) -> None:
    out = convert(write_folder(case("deepseek-v4.1"), tmp_path / "m"), tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["text_config"] == case("deepseek-v4.1")["config"]["text_config"]


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.float32])
def test_tensors_of_halves_that_the_class_has_in_32_bits(kind: str, tmp_path: Path) -> None:
    """Unless another type is requested (`record_mlx_vlm`)."""
    row, source = table().model[kind], next(name for name in ALL if TYPES[name] == kind)
    wb.convert(write_folder(case(source), tmp_path / "m"), tmp_path / "halves", to="hf", dtype="bf16")
    forms: tuple[dict[str, Any], ...] = ({}, {"dtype": "f16"})
    for options in forms:
        out = tmp_path / f"out{len(options)}"
        wb.convert(tmp_path / "halves", out, to="mlx", towers=True, **options)
        with wb.open(out) as model:
            wide = {tensor for tensor in model if model[tensor].dtype == "F32"}
            ends = {end for end in row.float32 for tensor in model if tensor.endswith(end)}
            assert ends == {*row.float32}
            assert wide == {tensor for tensor in model if not options and tensor.endswith(tuple(ends))}


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.lacks])
def test_a_tensor_without_a_place_is_refused(kind: str, tmp_path: Path) -> None:
    name = next(name for name in ALL if TYPES[name] == kind)
    for part in table().model[kind].lacks:
        found = case(name)
        found["names"][f"{part}weight"] = [64]
        with pytest.raises(UnsupportedError, match="has no place for") as error:
            convert(write_folder(found, tmp_path / part), tmp_path / "out")
        assert bool(error.value.hint) is (projector_of_hf(found["config"]) is not None), "others have no GGUF"
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.reordered])
def test_a_folder_whose_rows_mlx_vlm_reorders_at_each_load_is_refused(kind: str, tmp_path: Path) -> None:
    """As its own converter writes it (`record_mlx_vlm`). Reports read it all the same."""
    name = next(name for name in ALL if TYPES[name] == kind)
    for tensor in table().model[kind].reordered:
        out = convert(write_folder(case(name), tmp_path / "m"), tmp_path / tensor)
        path = next(out.glob("*.safetensors"))
        save_file(load_file(path) | {tensor: np.ones((32, 4), np.float32)}, path, {"format": "mlx"})
        with pytest.raises(UnsupportedError, match="written by mlx-vlm's own converter"):
            wb.convert(out, tmp_path / "back", to="hf")
        assert not (tmp_path / "back").exists()
        assert len(wb.inspect(out).tensors) == len(case(name)["names"]) + 1


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.needs])
def test_a_folder_without_a_tensor_that_the_class_needs_is_refused(kind: str, tmp_path: Path) -> None:
    """A SigLIP without its pooling head, as transformers saves it with `vision_use_head` = false."""
    found = case(next(name for name in ALL if TYPES[name] == kind))
    found["names"] = {name: shape for name, shape in found["names"].items() if ".vision_model.head." not in name}
    with pytest.raises(UnsupportedError, match=r"mlx-vlm's \S+ needs \S*vision_model\.head\.probe, which"):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_that_no_key_of_the_config_declares_returns(tmp_path: Path) -> None:
    """A class with two matrices gets a copy of the embedding only if the folder has no output."""
    found = case("nemotron-parse-1.2")
    del found["config"]["tie_word_embeddings"]
    source = write_folder(found, tmp_path / "m")
    wb.convert(convert(source, tmp_path / "out"), tmp_path / "back", to="hf")
    before, after = (tensors(folder)["lm_head.weight"] for folder in (source, tmp_path / "back"))
    assert np.array_equal(before, after)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_lengths_and_directions_come_back_as_a_pair_with_their_product(dtype: str, tmp_path: Path) -> None:
    source = write_folder(case("minicpm-o"), tmp_path / "m")
    wb.convert(source, tmp_path / "s", dtype=dtype)
    start, rows = "tts.head_code.0.parametrizations.weight.original", []
    with wb.plan_convert(tmp_path / "s", tmp_path / "out", to="mlx", towers=True) as plan:
        assert [loss.tensor for loss in plan.losses if "the same product" in loss.message] == [f"{start}1"]
        plan.run()
    wb.convert(tmp_path / "out", tmp_path / "back", to="hf")
    for folder in (tmp_path / "s", tmp_path / "back"):
        model = wb.open(folder)
        lengths, directions = (np.asarray(model[f"{start}{n}"].numpy(), np.float64) for n in (0, 1))
        rows.append(directions * lengths / np.linalg.norm(directions, axis=1, keepdims=True))
        assert lengths.shape == (8, 1)
    assert np.abs(rows[0] - rows[1]).max() < (1e-7 if dtype == "f32" else 1e-2)


@pytest.mark.parametrize("shape", [[7, 1], [8, 2]])
def test_lengths_of_other_rows_are_an_error(shape: list[int], tmp_path: Path) -> None:
    found = case("minicpm-o")
    found["names"]["tts.head_code.0.parametrizations.weight.original0"] = shape
    with pytest.raises(FormatError, match="expected a length for each row"):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")


@pytest.mark.parametrize("name", ["molmo2", "molmo-point"])
def test_an_output_in_two_tensors_is_not_tied(name: str, tmp_path: Path) -> None:
    source = write_folder(case(name), tmp_path / "m")
    config = json.loads((convert(source, tmp_path / "out") / "config.json").read_text())
    assert config["text_config"] == case(name)["config"]["text_config"]


def test_values_beyond_half_precision_are_counted_and_listed(tmp_path: Path) -> None:
    source = write_folder(case("molmo-point"), tmp_path / "m")
    stored, name = load_file(source / "model.safetensors"), "model.transformer.ln_f.weight"
    stored[name][:2] = 1e5
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    with wb.plan_convert(source, tmp_path / "out", to="mlx", towers=True, dtype="bf16") as plan:
        assert [loss.effect for loss in plan.losses if "are rounded to F16" in loss.message] == ["results"]
        assert plan.run().overflow == {"lm.model.ln_f.weight": 2}


def test_groups_that_do_not_divide_a_matrix_are_an_error(tmp_path: Path) -> None:
    found = case("deepseek-v4")
    found["names"]["layers.0.attn.wo_a.weight"] = [95, 192]
    with pytest.raises(FormatError, match="split into 2 groups"):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("grid", [1, 2], ids=["one rank", "two ranks"])
def test_queries_and_keys_in_one_matrix_of_fp8_are_refused(grid: int, tmp_path: Path) -> None:
    """Their rows are those of each rank, with scales that begin anew there, as MiMo-V2.5 is published."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    found = case("mimo-v2.5")
    found["config"] |= {"num_attention_heads": 8, "head_dim": 16, "num_key_value_heads": 2}
    found["config"]["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    source, name = write_folder(found, tmp_path / "m"), "model.layers.0.self_attn.qkv_proj.weight"
    stored = {n: torch.from_numpy(array) for n, array in load_file(source / "model.safetensors").items()}
    stored[name] = torch.ones(200, 64).to(torch.float8_e4m3fn)
    stored[f"{name}_scale_inv"] = torch.ones(2 * grid, 1)
    save_torch(stored, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeighbridgeError, match=r"rank by rank|qkv_proj\.weight"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


CODES = [
    ("layers.1.attn.wq_a", (1, 32), "exact"), ("layers.1.attn.wq_a", (32, 32), "exact"),
    ("layers.1.engram.embed", (32, 32), "exact"), ("layers.1.attn.wq_a", (1, 64), "exact"),
    ("vision.blocks.0.mlp.w2", (1, 64), "decoded"),  # a block ends inside of it
]  # fmt: skip


@pytest.mark.parametrize(("name", "block", "kind"), CODES)
def test_codes_of_8_bits_with_powers_of_two_stay_codes(
    name: str, block: tuple[int, int], kind: str, tmp_path: Path
) -> None:
    """As DeepSeek V4.1 is published."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    found = case("deepseek-v4.1")
    found["config"] |= {"quantization_config": {"quant_method": "fp8"}, "torch_dtype": "float32"}
    source = write_folder(found, tmp_path / "m")
    stored = {n: torch.from_numpy(array) for n, array in load_file(source / "model.safetensors").items()}
    rows, columns = stored[f"{name}.weight"].shape
    scales = np.random.default_rng(0).integers(118, 136, (rows // block[0], -(-columns // block[1])), np.uint8)
    codes = stored[f"{name}.weight"].to(torch.float8_e4m3fn)
    stored |= {f"{name}.weight": codes, f"{name}.scale": torch.from_numpy(scales).view(torch.float8_e8m0fnu)}
    save_torch(stored, source / "model.safetensors", {"format": "pt"})
    with wb.plan_convert(source, tmp_path / "out", to="mlx", towers=True) as plan:
        assert [move.kind for move in plan.moves] == [kind]
        plan.run()
    wb.convert(tmp_path / "out", tmp_path / "back", to="hf", dtype="f32")
    factors = np.exp2(scales.astype(np.float32) - 127).repeat(block[0], 0).repeat(block[1], 1)[:, :columns]
    assert np.array_equal(tensors(tmp_path / "back")[f"{name}.weight"], codes.to(torch.float32).numpy() * factors)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("quantization", {}).get("mode") == ("mxfp8" if kind == "exact" else None)


@pytest.mark.parametrize("kind", [kind for kind, row in table().model.items() if row.fixed])
def test_another_size_than_the_only_one_of_the_class_is_listed(kind: str, tmp_path: Path) -> None:
    """The small cases have other sizes, which `record_mlx_vlm` gives to mlx-vlm's classes, too."""
    row, name = table().model[kind], next(name for name in ALL if TYPES[name] == kind)
    with wb.plan_convert(write_folder(case(name), tmp_path / "m"), tmp_path / "out", to="mlx", towers=True) as plan:
        listed = [str(loss.tensor) for loss in plan.losses if "mlx-vlm won't load it" in loss.message]
    assert {end for end in row.fixed if any(tensor.endswith(end) for tensor in listed)} == {*row.fixed}


@pytest.mark.parametrize(
    ("counts", "words"), [(None, "doesn't count the experts"), ([2, 1], "fewer experts"), ([2], "doesn't count")]
)
def test_experts_that_config_json_does_not_count_are_an_error(counts: Any, words: str, tmp_path: Path) -> None:
    found = case("ernie-4.5-vl")
    found["config"]["moe_num_experts"] = counts
    with pytest.raises(FormatError, match=words):
        convert(write_folder(found, tmp_path / "m"), tmp_path / "out")


@pytest.mark.parametrize("name", [next(n for n in ALL if TYPES[n] == kind) for kind in table().model])
def test_the_program_that_runs_a_folder_is_mlx_vlm_if_its_class_writes_text(name: str, tmp_path: Path) -> None:
    with wb.plan_convert(write_folder(case(name), tmp_path / "m"), tmp_path / "out", to="mlx", towers=True) as plan:
        line = None if name in ("embedding-gemma2", "d1-omni") else f"mlx_vlm.chat --model {tmp_path / 'out'}"
        assert how_to_run(plan) == line


def gguf_source(tmp_path: Path) -> Path:
    wb.convert(write_folder(case("smolvlm"), tmp_path / "g"), tmp_path / "g.gguf", tokenizer=False)
    return tmp_path / "g.gguf"


def with_experts(tmp_path: Path) -> Path:
    found = case("gemma3")
    found["names"]["language_model.model.layers.0.experts.gate_up_proj"] = [2, 64, 64]
    return write_folder(found, tmp_path / "experts")


def with_another_tower(tmp_path: Path) -> Path:
    found = case("llava")
    found["config"]["vision_config"]["model_type"] = "dinov2"
    return write_folder(found, tmp_path / "dinov2")


def without_model_type(tmp_path: Path) -> Path:
    found = case("molmo2")
    del found["config"]["model_type"]
    return write_folder(found, tmp_path / "untyped")


BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], type[Exception], str]] = {
    "text": (
        lambda at: make_folder(at / "llama"),
        {},
        UnsupportedError,
        "no table has mlx-vlm's names for the model type llama: a language model without towers",
    ),
    "model type": (without_model_type, {}, UnsupportedError, "config.json has no model_type"),
    "gguf": (gguf_source, {}, UsageError, "doesn't apply to a GGUF"),
    "recipe": (lambda at: write_folder(case("smolvlm"), at / "m"), {"recipe": "mixed_3_4"}, UsageError, "recipe"),
    "tower": (with_another_tower, {}, UnsupportedError, "mlx-vlm's llava has no tower dinov2"),
    "language model": (
        lambda at: write_folder(golden()["internvl"], at / "internvl"),
        {},
        UnsupportedError,
        "mlx-vlm's internvl has no language model qwen2",
    ),
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


def has_family(name: str) -> bool:
    with suppress(UnsupportedError):
        return bool(family_of_hf(case(name)["config"]))
    return False


@pytest.mark.parametrize("name", [name for name in ALL if not has_family(name)])
def test_a_model_without_a_family_is_proved_by_its_settings_and_tensors(name: str, tmp_path: Path) -> None:
    source = write_folder(case(name), tmp_path / "m")
    out = convert(source, tmp_path / "out")
    verdicts = {check.name: check.verdict for check in wb.prove(source, out, run=False).checks}
    another = bool(table().model[TYPES[name]].weight_norms)  # a pair with the same product
    assert verdicts == {"settings": "same", "tensors": "different" if another else "same"}
    config = json.loads((out / "config.json").read_text())
    part = next((config[key] for key in ("text_config", "language_config", "decoder") if key in config), config)
    key = next(key for key, value in part.items() if isinstance(value, int) and not isinstance(value, bool))
    part[key] += 1
    (out / "config.json").write_text(json.dumps(config))
    checks = {check.name: check for check in wb.prove(source, out, run=False, static=True).checks}
    assert checks["settings"].verdict == "different"
    assert any(f"{key}: " in detail for detail in checks["settings"].details)


def test_a_language_model_without_a_family_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no family has the language model of inkling_mm_model") as caught:
        wb.convert(write_folder(case("inkling"), tmp_path / "m"), tmp_path / "out", to="mlx")
    assert caught.value.hint == "wb convert SRC DST --to mlx --towers writes the whole model, for mlx-vlm"


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
