"""LoRA adapters: their GGUF is the reference's byte for byte, llama.cpp computes with it what transformers computes
with the merged model, and it comes back to PEFT's folder as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import adapters, folders, llamacpp, models, reference_converter
from tests.oracles.reference_converter import Job

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError

pytestmark = pytest.mark.oracle

ATTENTION = r"self_attn\.[qkvo]_proj$"
ALL = rf"{ATTENTION}|mlp\.(gate|up|down)_proj$"


@dataclass(frozen=True)
class Lora:
    """An adapter of a model of the proofs. `reference`: whether the reference makes of it what llama.cpp takes."""

    base: str
    targets: str
    said: dict[str, Any] = field(default_factory=dict)
    reference: bool = True
    tolerance: float = 5e-4
    computes: bool = True  # whether what it says is all in what llama.cpp computes


CASES = {
    "rotary": Lora("llama", ALL),
    "grouped": Lora("llama3", ATTENTION, {"r": 6, "rank": 6}),
    "plain": Lora("qwen2", ALL),
    "fused": Lora("phi-mini", r"qkv_proj$|gate_up_proj$|o_proj$"),
    "by group": Lora("gptneox", r"query_key_value$|dense$|dense_4h_to_h$", tolerance=2e-2),
    "experts": Lora("mixtral", rf"{ATTENTION}|experts\.\d\.w[123]$|gate$", tolerance=2e-3),
    # the graph runs deeper ones only
    "streams": Lora(
        "gemma3n", rf"{ALL}|laurel\.linear_|per_layer_(input_gate|projection)$|modality_router$", computes=False
    ),
    "embedding": Lora("llama", r"embed_tokens$|lm_head$|q_proj$"),
    "ranks": Lora("llama", ATTENTION, {"rank_pattern": {"model.layers.1.self_attn.q_proj": 8}}),
    "norms": Lora("gemma", ATTENTION, {"whole": r"layernorm"}, computes=False),
    # alphas of some modules: a GGUF has one, and the reference leaves the others out
    "alphas": Lora("llama", ALL, {"alpha_pattern": {"v_proj": 9, "model.layers.1.mlp.down_proj": 2}}, reference=False),
    "rank-stabilized ranks": Lora(
        "llama",
        ATTENTION,
        {"use_rslora": True, "rank_pattern": {"model.layers.1.self_attn.q_proj": 8}},
        reference=False,
    ),
    # the reference takes alpha/rank for alpha/sqrt(rank)
    "rank-stabilized": Lora("llama", ATTENTION, {"use_rslora": True}, reference=False),
    # the reference turns the pairs of GPT-2's Conv1D, which PEFT has the right way round
    "conv": Lora("gpt2", r"c_attn$|c_proj$|c_fc$", {"fan_in_fan_out": True}, reference=False, tolerance=2e-2),
}
SAME = [name for name, case in CASES.items() if case.reference]


@pytest.fixture(scope="module")
def adapter_of(workshop: Path, folder_of: Callable[[str], Path]) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        case = CASES[name]
        return adapters.make(folder_of(case.base), workshop / "lora" / name, case.targets, **case.said)

    return cache(make)


@pytest.fixture(scope="module")
def gguf_adapter_of(workshop: Path, adapter_of: Callable[[str], Path]) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        wb.convert(adapter_of(name), target := workshop / "lora" / f"{name}.gguf")
        return target

    return cache(make)


@pytest.fixture(scope="module")
def reference(workshop: Path, folder_of: Any, adapter_of: Any) -> Callable[[str, str], Path]:
    """(case, type) -> the reference's GGUF."""

    @cache
    def make(name: str, dtype: str) -> Path:
        adapter, out = adapter_of(name), workshop / "lora" / f"{name}-{dtype}-reference.gguf"
        base = ("--base", str(folder_of(CASES[name].base)))
        return reference_converter.run(Job(str(adapter), str(out), dtype, flags=base, script="convert_lora_to_gguf.py"))

    return make


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "f32") for name in SAME), ("rotary", "f16"), ("rotary", "q8_0"), ("plain", "bf16")]
)
def test_the_gguf_is_the_references(
    name: str, dtype: str, reference: Callable[[str, str], Path], adapter_of: Any, tmp_path: Path
) -> None:
    wb.convert(adapter_of(name), tmp_path / "ours.gguf", dtype=dtype)
    assert (tmp_path / "ours.gguf").read_bytes() == reference(name, dtype).read_bytes()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.computes])
def test_llama_cpp_computes_the_merged_model(
    name: str, folder_of: Any, adapter_of: Any, gguf_adapter_of: Any, gguf_of: Any, tmp_path: Path
) -> None:
    case = CASES[name]
    merged = adapters.merged(folder_of(case.base), adapter_of(name), tmp_path / "merged")
    settings = models.CASES[case.base].settings
    expected = models.logits(merged, models.probe_of(case.base), **settings)
    with llamacpp.Model(gguf_of(case.base, "f32")) as model:
        plain = model.logits(models.probe_of(case.base))
        model.adapt(gguf_adapter_of(name))
        assert models.relative_error(model.logits(models.probe_of(case.base)), expected) < case.tolerance
    assert models.relative_error(plain, expected) > 0.05  # it matters


@pytest.mark.parametrize("name", CASES)
def test_merging_while_converting_is_merging_first(
    name: str, folder_of: Any, adapter_of: Any, gguf_adapter_of: Any, tmp_path: Path
) -> None:
    import torch

    base, adapter = folder_of(CASES[name].base), adapter_of(name)
    expected = folders.tensors(adapters.merged(base, adapter, tmp_path / "expected"))
    for number, form in enumerate((adapter, gguf_adapter_of(name))):
        wb.convert(base, tmp_path / f"{number}", lora=form)
        found = folders.tensors(tmp_path / f"{number}")
        assert set(found) == set(expected)
        for tensor, values in expected.items():
            assert torch.allclose(found[tensor], values, rtol=1e-5, atol=1e-5), tensor


SCALED = ("alphas", "rank-stabilized ranks")  # whose Bs are others in a GGUF


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("norms", *SCALED)])
def test_a_gguf_comes_back_as_the_folder(
    name: str, folder_of: Any, adapter_of: Any, gguf_adapter_of: Any, tmp_path: Path
) -> None:
    wb.convert(gguf_adapter_of(name), tmp_path / "back", to="hf", base=folder_of(CASES[name].base))
    from safetensors.torch import load_file

    before, after = (load_file(d / "adapter_model.safetensors") for d in (adapter_of(name), tmp_path / "back"))
    folders.assert_same(after, before)
    said = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    scale = said["lora_alpha"] / said["r"]
    rank = CASES[name].said.get("rank", 4)
    assert scale == pytest.approx(6 / (rank**0.5 if CASES[name].said.get("use_rslora") else rank))
    assert said["rank_pattern"] == CASES[name].said.get("rank_pattern", {})
    assert len(said["target_modules"]) == len(before) // 2


def test_mlx_adapters_are_what_mlx_fuses(folder_of: Any, tmp_path: Path) -> None:
    """A linear layer, a stack of experts and an embedding: mlx_lm's own `fuse` against ours, from its folder, from the
    GGUF and from the PEFT folder that we make of it."""
    mx, nn = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.nn")
    import numpy as np
    from mlx_lm.models.switch_layers import SwitchLinear
    from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear
    from safetensors.numpy import save_file

    base = folder_of("mixtral")
    held = {name: t.numpy() for name, t in folders.tensors(base).items()}
    experts = [f"model.layers.1.block_sparse_moe.experts.{e}.w1.weight" for e in range(6)]
    weights = {
        "model.layers.0.self_attn.q_proj": held["model.layers.0.self_attn.q_proj.weight"],
        "model.layers.1.block_sparse_moe.switch_mlp.gate_proj": np.stack([held[name] for name in experts]),
        "model.embed_tokens": held["model.embed_tokens.weight"],
    }
    layers = [
        (LoRALinear, nn.Linear(*reversed(weights["model.layers.0.self_attn.q_proj"].shape), bias=False)),
        (LoRASwitchLinear, SwitchLinear(64, 96, 6, bias=False)),
        (LoRAEmbedding, nn.Embedding(*weights["model.embed_tokens"].shape)),
    ]
    rng, tensors, fused = np.random.default_rng(6), {}, {}
    for (name, weight), (kind, layer) in zip(weights.items(), layers, strict=True):
        layer.weight = mx.array(weight)
        adapted = kind.from_base(layer, r=4, scale=3.0)
        for part in ("lora_a", "lora_b"):
            values = rng.normal(size=getattr(adapted, part).shape).astype("f4") * 0.3
            setattr(adapted, part, mx.array(values))
            tensors[f"{name}.{part}"] = values
        fused[name] = np.array(adapted.fuse().weight)
    folder = tmp_path / "mlx"
    folder.mkdir()
    save_file(tensors, folder / "adapters.safetensors")
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {"rank": 4, "scale": 3.0, "dropout": 0.0}}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"model": str(base)}))
    wb.convert(folder, tmp_path / "a.gguf")
    wb.convert(folder, tmp_path / "peft")
    for number, form in enumerate((folder, tmp_path / "a.gguf", tmp_path / "peft")):
        wb.convert(base, tmp_path / f"{number}", lora=form)
        found = {name: t.numpy() for name, t in folders.tensors(tmp_path / f"{number}").items()}
        stacked = np.stack([found[name] for name in experts])
        assert np.allclose(stacked, fused["model.layers.1.block_sparse_moe.switch_mlp.gate_proj"], atol=1e-5)
        for name in ("model.layers.0.self_attn.q_proj", "model.embed_tokens"):
            assert np.allclose(found[f"{name}.weight"], fused[name], atol=1e-5), (form, name)
        changed = {*experts, "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"}
        assert [n for n in held if n not in changed and not np.array_equal(found[n], held[n])] == []


# base, what peft is asked for, and whether a GGUF can hold it
_BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
PEFT: dict[str, tuple[str, dict[str, Any], bool]] = {
    "patterns": ("llama", {
        "target_modules": ["q_proj", "v_proj", "down_proj"], "rank_pattern": {"q_proj": 8}, "use_rslora": True,
        "alpha_pattern": {"v_proj": 3, "layers.1.mlp.down_proj": 20},
    }, True),
    "DoRA": ("llama", {"target_modules": ["q_proj", "k_proj", "down_proj"], "use_dora": True}, False),
    "DoRA of joined layers": ("phi-mini", {"target_modules": ["qkv_proj", "o_proj"], "use_dora": True}, False),
    "DoRA of Conv1D": ("gpt2", {"target_modules": ["c_attn"], "use_dora": True, "fan_in_fan_out": True}, False),
    "experts": ("qwen3moe-fused", {
        "target_modules": ["q_proj"], "target_parameters": _BOTH, "rank_pattern": {"mlp.experts.down_proj": 2},
        "alpha_pattern": {"mlp.experts.down_proj": 5},
    }, True),
    "experts the other way round": ("gpt-oss", {"target_modules": ["q_proj"], "target_parameters": _BOTH}, True),
    "modules to save": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}, False),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PEFT)
def test_peft_merges_the_same(name: str, folder_of: Any, gguf_of: Any, tmp_path: Path) -> None:
    """peft's own adapters, and its own `merge_and_unload`."""
    import torch

    peft = pytest.importorskip("peft")
    base, how, held = PEFT[name]
    settings, ids = models.CASES[base].settings, models.probe_of(base)
    generator = torch.Generator().manual_seed(3)
    model = peft.get_peft_model(
        models.load(folder_of(base), **settings),
        peft.LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, task_type="CAUSAL_LM", **how),
    )
    with torch.no_grad():
        for key, values in model.named_parameters():
            if "magnitude" in key:
                values.mul_(1 + 0.3 * torch.rand(values.shape, generator=generator))
            elif "lora_" in key or "modules_to_save" in key:
                values.copy_(torch.randn(values.shape, generator=generator) * (0.2 if "lora_" in key else 0.5))
    model.save_pretrained(adapter := tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(folder_of(base))}))
    merged = model.merge_and_unload()
    with torch.no_grad():
        expected = merged(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
    wb.convert(folder_of(base), tmp_path / "merged", lora=adapter)
    assert models.relative_error(models.logits(tmp_path / "merged", ids, **settings), expected) < 2e-4
    if not held:
        with pytest.raises(UnsupportedError, match=r"DoRA|modules_to_save"):
            wb.convert(adapter, tmp_path / "a.gguf")
        return
    wb.convert(adapter, tmp_path / "a.gguf")
    with llamacpp.Model(gguf_of(base, "f32")) as runs:
        runs.adapt(tmp_path / "a.gguf")
        assert models.relative_error(runs.logits(ids), expected) < 2e-3
