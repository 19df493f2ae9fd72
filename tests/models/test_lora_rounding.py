"""Merging rounds once: base plus change in F32, as peft merges a model in F32, then the type that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import weighbridge as wb
from weighbridge.cli.main import main

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256,
    "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "head_dim": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 64,
}  # fmt: skip
TYPES = ("bfloat16", "float16", "float32")
#: Name of the target, and keywords of its conversion.
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"folder {t}": ("o", {"to": "hf", "dtype": t}) for t in TYPES},
    **{f"file {t}": ("o.safetensors", {"dtype": t}) for t in TYPES},
    "npz": ("o.npz", {"dtype": "f32"}),
    "torch": ("o.pt", {"dtype": "f16"}),
    "mlx": ("o", {"to": "mlx", "dtype": "f16"}),
    "mlx 4 bits": ("o", {"to": "mlx", "dtype": "f32", "q_bits": 4}),
    "scheme": ("o", {"to": "hf", "scheme": "w4a16", "dtype": "f16"}),
    **{f"gguf {t}": ("o.gguf", {"dtype": t, "tokenizer": False}) for t in (*TYPES, "q8_0")},
}


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bases by their type, the adapter, and peft's merge of each in F32. Its values are sums that are exact in F32."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    here = tmp_path_factory.mktemp("rounding")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    places = {"adapter": here / "adapter"}
    weights = {n: (torch.randint(-127, 128, p.shape) / 2**8) for n, p in model.state_dict().items()}
    factors: dict[str, torch.Tensor] = {}
    for kind in TYPES:
        places[kind] = here / kind
        stored = {n: w.to(getattr(torch, kind)) for n, w in weights.items()}
        _folder(places[kind], stored, kind)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).float()
        model.load_state_dict({n: w.float() for n, w in stored.items()})
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "down_proj"])
        tuned = peft.get_peft_model(model, config)
        with torch.no_grad():
            for name, values in tuned.named_parameters():
                if "lora_" in name:
                    factors.setdefault(name, torch.randint(-7, 8, values.shape) / 2**8)
                    values.copy_(factors[name])
        tuned.save_pretrained(places["adapter"])
        _folder(here / f"{kind} merged", tuned.merge_and_unload().state_dict(), "float32")
        places[f"{kind} merged"] = here / f"{kind} merged"
    return places


def _folder(folder: Path, tensors: dict[str, torch.Tensor], kind: str) -> None:
    folder.mkdir()
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": kind}))


def _bytes(path: Path) -> dict[str, tuple[str, bytes]]:
    with wb.open(path, names="stored") as model:
        return {name: (tensor.dtype, tensor.raw()) for name, tensor in model.items()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("base", TYPES)
def test_a_merge_is_rounded_once_to_what_is_written(
    base: str, target: str, merged: dict[str, Path], tmp_path: Path
) -> None:
    name, options = TARGETS[target]
    if (base, target) == ("float16", "scheme"):
        pytest.skip("the codes are made of the sums, not of the sums in the base's type")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    wb.convert(merged[base], tmp_path / "a" / name, lora=merged["adapter"], **options)
    wb.convert(merged[f"{base} merged"], tmp_path / "b" / name, **options)
    assert _bytes(tmp_path / "a" / name) == _bytes(tmp_path / "b" / name)


@pytest.mark.parametrize("base", TYPES)
@pytest.mark.parametrize("target", ["Q4_K_M", "Q4_0 report", "bpw", "convert"])
def test_merging_while_quantizing_is_merging_first(
    base: str, target: str, merged: dict[str, Path], tmp_path: Path
) -> None:
    made = []
    for name, source, lora in (("a", base, ["--lora", str(merged["adapter"])]), ("b", f"{base} merged", [])):
        out = tmp_path / f"{name}.gguf"
        words = {
            "Q4_K_M": ["quantize", "{}", "{}", "Q4_K_M"],
            "Q4_0 report": ["quantize", "{}", "{}", "Q4_0", "--report", str(tmp_path / f"{name}.json")],
            "bpw": ["quantize", "{}", "{}", "--target-bpw", "5"],
            "convert": ["convert", "{}", "{}", "--dtype", "q4_k_m"],
        }[target]
        paths = iter((str(merged[source]), str(out)))
        assert main([next(paths) if word == "{}" else word for word in words] + ["--no-tokenizer", *lora]) == 0
        report = tmp_path / f"{name}.json"
        errors = json.loads(report.read_text())["nmse"] if report.exists() else None
        made.append((_bytes(out), errors))
    assert made[0] == made[1]


@pytest.mark.parametrize("base", TYPES)
def test_without_a_type_the_base_keeps_its_own(base: str, merged: dict[str, Path], tmp_path: Path) -> None:
    wb.convert(merged[base], tmp_path / "o", lora=merged["adapter"])
    with wb.open(tmp_path / "o") as found, wb.open(merged[f"{base} merged"]) as expected:
        for name, tensor in found.items():
            wanted = expected[name].torch().to(getattr(torch, base))
            assert tensor.torch().dtype == wanted.dtype
            assert torch.equal(tensor.torch(), wanted), name


def test_the_sums_need_more_than_the_base_type(merged: dict[str, Path]) -> None:
    """Else the tests above could not fail."""
    name = "model.layers.0.mlp.down_proj.weight"
    with wb.open(merged["bfloat16 merged"]) as model:
        values = model[name].numpy()
        assert not np.array_equal(values, model[name].torch().bfloat16().float().numpy())
