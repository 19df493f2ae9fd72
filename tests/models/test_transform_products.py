"""`wb slice`, `rename`, `split --tp`, `extract-lora` and `convert --lora` of every recorded model: what is written
describes its tensors, or nothing is written. Of models that see or hear, the layers are those of the language model,
towers stay whole, and settings change in the object of config.json that describes the language model."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden as families
from tests.models.projector_cases import golden, write_folder
from tests.oracles.families import CASES
from tests.oracles.ours import report_of

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.open import open_model
from weighbridge.models.transform import layers as module
from weighbridge.models.transform import vocabulary

#: Why models can't be cut to one layer: the last one has to be of a kind, or the folder has towers only.
REFUSED = {
    **dict.fromkeys(("gemma4", "gemma4-clipped", "gemma4-audio", "gemma4-unified", "embedding-gemma2",
                     "embedding-gemma2-audio"), "the last layer of a"),
    **dict.fromkeys(("d1-omni", "qwen2-vl-model"), "."),
    "ling3-vl": "config.json would describe other layers",
    "granite4-vision": "contradict deepstack_layer_map",
}  # fmt: skip


def cut(source: Path, layers: str = "0") -> Path:
    target = source.parent / f"cut-{layers}"
    wb.slice(source, target, layers=layers, renumber=True)
    return target


def errors(path: Path) -> set[str]:
    return {f.message for f in wb.verify(path).findings if f.severity.value == "error"}


@pytest.mark.parametrize("name", golden())
def test_towers_stay_and_the_config_follows(name: str, tmp_path: Path) -> None:
    source = write_folder(golden()[name], tmp_path / "whole")
    if name in REFUSED:
        with pytest.raises((UsageError, UnsupportedError), match=REFUSED[name]):
            cut(source)
        return
    target = cut(source)
    assert errors(target) <= errors(source)
    with open_model(source) as whole, open_model(target) as one:
        if whole.described:
            assert {*one.resolved.report.apart} == {*whole.resolved.report.apart}
            assert one.sizes.facts["num_hidden_layers"] == 1


def write(name: str, folder: Path, change: Callable[[dict[str, Any]], None] = lambda config: None) -> Path:
    config = json.loads(json.dumps(families()[name]["config"]))
    change(config)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {tensor: np.ones(shape, np.float32) for tensor, shape in families()[name]["hf"].items()},
        folder / "model.safetensors",
    )
    return folder


@pytest.mark.parametrize("name", families())
def test_what_is_written_describes_its_layers(name: str, tmp_path: Path) -> None:
    source = write(name, tmp_path / "whole")
    for layers in ("0", "1-2"):
        try:
            target = cut(source, layers)
        except (UsageError, UnsupportedError):
            assert not (tmp_path / f"cut-{layers}").exists()
            continue
        assert errors(target) <= errors(source), layers


@pytest.mark.parametrize("name", families())
def test_the_config_follows_the_experts(name: str, tmp_path: Path) -> None:
    source, target = write(name, tmp_path / "whole"), tmp_path / "cut"
    with suppress(UsageError, UnsupportedError):
        wb.slice(source, target, experts="0-1")
        assert errors(target) <= errors(source)


@pytest.mark.parametrize("name", families())
def test_ranks_join_to_the_whole(name: str, tmp_path: Path) -> None:
    source = write(name, tmp_path / "whole")
    try:
        wb.split(source, tmp_path / "ranks", tp=2)
    except (UsageError, UnsupportedError):
        return
    wb.merge(tmp_path / "ranks", tmp_path / "joined")
    before, after = (load_file(path / "model.safetensors") for path in (source, tmp_path / "joined"))
    assert {n: t.shape for n, t in after.items()} == {n: t.shape for n, t in before.items()}


#: Models of which only a part is recorded, and one whose table leads one way.
PARTS = {"pocket-tts", "pocket-tts-mute", "qwen3-tts", "clef"}
#: A model whose matrices are parametrized, and one with two turned ones next to others, which no adapter describes.
NOT_SUMMED = {*PARTS, "jina-bert-v3", "qwen4exp-further"}


@pytest.mark.parametrize("name", sorted(families().keys() - PARTS))
def test_canonical_names_lead_back(name: str, tmp_path: Path) -> None:
    source = write(name, tmp_path / "whole")
    wb.rename(source, tmp_path / "canonical", to_names="canonical")
    wb.rename(tmp_path / "canonical", tmp_path / "back", to_names="hf")
    before, after = (load_file(path / "model.safetensors") for path in (source, tmp_path / "back"))
    # the prefix is the usual one of the class, whatever it was
    assert sorted(tensor.shape for tensor in after.values()) == sorted(tensor.shape for tensor in before.values())
    assert errors(tmp_path / "back") <= errors(source)


@pytest.mark.parametrize("name", sorted(families().keys() - NOT_SUMMED))
def test_a_merged_adapter_is_the_sum_of_its_products(name: str, tmp_path: Path) -> None:
    """PEFT's arithmetic, weight by weight: also where a table divides a matrix, as that of latent attention."""
    source, tuned = write(name, tmp_path / "whole"), write(name, tmp_path / "tuned")
    rng, base = np.random.default_rng(1), load_file(source / "model.safetensors")
    changed = {n: np.asarray(t + rng.normal(size=t.shape), np.float32) for n, t in base.items()}
    save_file(changed, tuned / "model.safetensors")
    wb.extract_lora(source, tuned, tmp_path / "lora", rank=2)
    wb.convert(source, tmp_path / "merged", lora=tmp_path / "lora")
    expected = summed(base, tmp_path / "lora")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert merged.keys() == base.keys()
    for tensor, values in merged.items():
        assert np.allclose(values, expected[tensor], rtol=1e-5, atol=1e-5), tensor


def summed(base: dict[str, np.ndarray], lora: Path) -> dict[str, np.ndarray]:
    """What PEFT computes of an adapter, by its names."""
    pairs = load_file(lora / "adapter_model.safetensors")
    turned = json.loads((lora / "adapter_config.json").read_text())["fan_in_fan_out"]
    out, used = dict(base), 0
    for name, a in pairs.items():
        module, down, _ = name.removeprefix("base_model.model.").partition(".lora_embedding_A")
        if down:
            out[f"{module}.weight"] = base[f"{module}.weight"] + (pairs[name[:-1] + "B"] @ a).T
        elif module.endswith(".lora_A.weight"):
            module = module.removesuffix(".lora_A.weight")
            change = pairs[name.replace("lora_A", "lora_B")] @ a
            is_conv = turned and module.rpartition(".")[2].startswith(
                "c_"
            )  # PEFT ignores the setting for torch's Linear
            out[f"{module}.weight"] = base[f"{module}.weight"] + (change.T if is_conv else change)
        used += bool(down) or name.endswith(".lora_A.weight")
    assert 2 * used == len(pairs)
    return out


#: Settings that mlx-lm's class can't compute.
UNCOMPUTED = {"ling3": ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")}


@pytest.mark.parametrize("name", [name for name, case in families().items() if case.get("mlx")])
def test_a_folder_of_mlx_leads_back(name: str, tmp_path: Path) -> None:
    """Under the names and layouts of Hugging Face, without what mlx-lm's class lacks, which the way there lists."""

    def change(config: dict[str, Any]) -> None:
        for key in UNCOMPUTED.get(name, ()):
            del config[key]

    source = write(name, tmp_path / "whole", change)
    plan = wb.plan_convert(source, tmp_path / "mlx", to="mlx")
    wb.convert(source, tmp_path / "mlx", to="mlx")
    back = wb.convert(tmp_path / "mlx", tmp_path / "back", to="hf")
    zeros = any(note.startswith("zeros, with which") for note in back.notes)
    before, after = (load_file(path / "model.safetensors") for path in (source, tmp_path / "back"))
    assert after.keys() <= before.keys()
    assert after.keys() == before.keys() or plan.losses
    for tensor, values in after.items():
        padded = CASES[name].tails.get(tensor.rpartition(".")[2])
        found, expected = (a[:padded] if padded else a for a in (values, before[tensor]))
        if zeros and not values.any():
            continue
        assert np.allclose(found, expected, atol=1e-6), tensor
    assert not json.loads((tmp_path / "back" / "config.json").read_text()).keys() & {"quantization"}


@pytest.mark.parametrize("name", ["olmoe", "apertus", "mamba2", "deepseek-v3"])
def test_quantized_mlx_is_decoded_and_says_so(name: str, tmp_path: Path) -> None:
    source = write(name, tmp_path / "whole")
    wb.convert(source, tmp_path / "mlx", to="mlx", q_bits=8, q_group_size=32)
    plan = wb.plan_convert(tmp_path / "mlx", tmp_path / "back", to="hf")
    wb.convert(tmp_path / "mlx", tmp_path / "back", to="hf")
    assert any("decoded from mlx" in str(loss).lower() for loss in plan.losses)
    before, after = (load_file(path / "model.safetensors") for path in (source, tmp_path / "back"))
    assert after.keys() == before.keys()
    assert all(np.allclose(values, before[tensor], atol=1e-2) for tensor, values in after.items())
    assert "quantization" not in (tmp_path / "back" / "config.json").read_text()


#: Commands that write a folder of MLX as one of Hugging Face when asked to, and that keep its form when not.
MLX_COMMANDS: dict[str, Callable[..., Any]] = {
    "convert": wb.convert,
    "strip": wb.strip,
    "slice": lambda source, target, **to: wb.slice(source, target, layers="0-1", renumber=True, **to),
    "split": lambda source, target, **to: wb.split(source, target, max_shard_tensors=1000, **to),
}


@pytest.mark.parametrize("q", [{}, {"q_bits": 8, "q_group_size": 32}], ids=["plain", "quantized"])
@pytest.mark.parametrize("command", MLX_COMMANDS)
def test_mlx_keeps_its_form_unless_another_is_asked_for(command: str, q: dict[str, Any], tmp_path: Path) -> None:
    source = write("olmoe", tmp_path / "whole")
    wb.convert(source, tmp_path / "mlx", to="mlx", **q)
    theirs, mine = (load_file(tmp_path / n / "model.safetensors").keys() for n in ("whole", "mlx"))
    MLX_COMMANDS[command](tmp_path / "mlx", tmp_path / "kept")
    assert load_file(tmp_path / "kept" / "model.safetensors").keys() == mine
    if command != "split":  # which has no --to
        MLX_COMMANDS[command](tmp_path / "mlx", tmp_path / "other", to="hf")
        assert load_file(tmp_path / "other" / "model.safetensors").keys() == theirs


def test_mlx_without_a_table_stays_in_its_form(tmp_path: Path) -> None:
    wb.convert(write("olmoe", tmp_path / "whole"), tmp_path / "mlx", to="mlx")
    (tmp_path / "mlx" / "config.json").write_text(json.dumps({"model_type": "unheard_of", "num_hidden_layers": 2}))
    with pytest.raises(UnsupportedError, match="no table has the names that other programs read"):
        wb.convert(tmp_path / "mlx", tmp_path / "other", to="hf")
    wb.convert(tmp_path / "mlx", tmp_path / "kept")
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("mlx", "kept"))
    assert before.keys() == after.keys()


def test_a_slice_says_what_it_did_not_check(tmp_path: Path) -> None:
    source = write("olmoe", tmp_path / "whole", lambda config: config.update(model_type="x", architectures=["X"]))
    report = report_of(wb.plan_slice(source, tmp_path / "cut", layers="0", renumber=True))
    assert any("isn't checked" in note for note in report.notes)


#: A model, the layers that are kept, and what its config then says.
FOLLOWS = [
    ("step3.5", "0,2-3", {"rope_theta": [700.0, 100.0, 700.0], "moe_layers_enum": "1,2",
                          "swiglu_limits": [0.0, 0.0, 0.75], "swiglu_limits_shared": [0.0, 0.0, 0.5],
                          "partial_rotary_factors": [0.5, 1.0, 0.5], "num_nextn_predict_layers": 0}),
    ("deepseek4", "0,2-3", {"compress_ratios": [0, 128, 4, 0], "num_nextn_predict_layers": 1}),
    ("laguna", "0,3-4", {"num_attention_heads_per_layer": [4, 6, 4]}),
    ("muse-glimmer", "1,3", {"layer_rope_theta": [0, 0]}),
    ("glm5", "0,2", {"indexer_types": ["full", "shared"]}),
    ("minimax-m3", "0,2", {"sparse_attention_config": [0, 1]}),
    ("qwen4exp", "1,3", {"ple_layer_ids": [1]}),
    ("openelm", "0-1", {"num_transformer_layers": 2, "num_query_heads": [4, 6]}),
    ("mimo2", "0-1", {"hybrid_layer_pattern": [0, 1], "num_nextn_predict_layers": 3}),
    ("ling3", "0-1", {"expert_swiglu_limit_list": [0.0, 7.0], "share_expert_swiglu_limit_list": [0.0, 5.0]}),
    ("exaone-moe", "0-1", {"num_nextn_predict_layers": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layers", "expected"), FOLLOWS, ids=[name for name, *_ in FOLLOWS])
def test_settings_by_layer_follow(name: str, layers: str, expected: dict[str, Any], tmp_path: Path) -> None:
    config = json.loads((cut(write(name, tmp_path / "whole"), layers) / "config.json").read_text())
    config = config.get("text_config", config)
    for key, value in expected.items():
        found = config[key]["sparse_attention_freq"] if isinstance(config[key], dict) else config[key]
        assert found == value, key


def test_a_config_that_no_rule_covers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write("laguna", tmp_path / "whole")
    without = {key: rule for key, rule in module.RULES.items() if key != "num_attention_heads_per_layer"}
    monkeypatch.setattr(module, "RULES", without)
    with pytest.raises(UsageError, match="contradict num_attention_heads_per_layer"):
        cut(source)


@pytest.mark.parametrize(
    ("name", "part"), [("internvl-chat", "llm_config"), ("qwen3.5", "text_config"), ("deepseek-ocr", "")]
)
def test_the_number_of_tokens_is_that_of_the_language_model(name: str, part: str, tmp_path: Path) -> None:
    with open_model(write_folder(golden()[name], tmp_path / "whole")) as model:
        config = json.loads(vocabulary.with_vocabulary_size(model, 4711)["config.json"])
    assert (config[part] if part else config)["vocab_size"] == 4711
    assert not part or "vocab_size" not in config
