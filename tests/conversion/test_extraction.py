"""`wb extract-lora`: laws, numpy's SVD, PEFT and llama.cpp as judges, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests import mutation
from tests.conversion import mixing_cases
from tests.llama import CONFIG, llama_tensors, make_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.conversion.extraction import changes
from weighbridge.tensors import factorize as factoring

F32 = {**CONFIG, "torch_dtype": "float32"}
LAYERS = "model.layers."
Tensors = dict[str, np.ndarray]


def weights(dtype: Any = np.float32) -> Tensors:
    return {name: value.astype(np.float32).astype(dtype) for name, value in llama_tensors().items()}


def tuned(base: Tensors, rank: int, *, names: str = LAYERS, size: float = 0.1, seed: int = 5) -> Tensors:
    """The base with a change of a rank in the matrices whose names begin so; full rank for 0."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, value in base.items():
        change: Any = 0.0
        if value.ndim == 2 and name.startswith(names):
            rows, columns = value.shape
            change = size * rng.standard_normal(value.shape) if not rank else (
                size * rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))
            )  # fmt: skip
        out[name] = (value.astype(np.float32) + change).astype(value.dtype)
    return out


def folder(path: Path, tensors: Tensors, config: Mapping[str, Any] = F32) -> Path:
    return make_folder(path, config, tensors, words=True)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folder(tmp_path / "base", weights())


def extract(base: Path, values: Tensors, out: Path, **options: Any) -> wb.ExtractReport:
    made = folder(out.parent / f"{out.name}-tuned", values)
    with wb.plan_extract_lora(base, made, out, **options) as plan:
        plan.run()
        return plan.report


def merged(base: Path, adapter: Path, out: Path) -> Tensors:
    wb.convert(base, f"{out}/", lora=adapter)
    return dict(load_file(out / "model.safetensors"))


def distance(a: Tensors, b: Tensors) -> float:
    """The largest error of a tensor, relative to its values."""
    pairs = [(a[name].astype(np.float64), b[name].astype(np.float64)) for name in a]
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in pairs)


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("rank", [1, 5, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_merged_lora_comes_back_with_its_rank(rank: int, dtype: Any, tmp_path: Path) -> None:
    before = weights(dtype)
    after = tuned(before, rank)
    one = folder(tmp_path / "base", before)
    report = extract(one, after, tmp_path / "adapter")
    assert {m.rank for m in report.matrices} == {rank}
    assert {m.limited_by for m in report.matrices} == {"rounding"}
    assert len(report.matrices) == 14
    assert report.unchanged == 7
    assert not report.losses
    again = merged(one, tmp_path / "adapter", tmp_path / "again")
    assert distance(again, after) < {2: 1e-3, 4: 1e-6}[np.dtype(dtype).itemsize] * (
        8 if dtype is ml_dtypes.bfloat16 else 1
    )


@pytest.mark.parametrize("rank", [1, 8, 20])
def test_the_error_is_that_of_the_best_approximation(rank: int, base: Path, tmp_path: Path) -> None:
    after = tuned(weights(), 0)
    report = extract(base, after, tmp_path / "adapter", rank=rank)
    again = merged(base, tmp_path / "adapter", tmp_path / "again")
    for m in report.matrices:
        change = after[m.name].astype(np.float64) - weights()[m.name]
        values = np.linalg.svd(change, compute_uv=False)
        best = np.sqrt(np.sum(values[rank:] ** 2) / np.sum(values**2))
        left = np.linalg.norm(again[m.name] - after[m.name].astype(np.float64)) / np.linalg.norm(change)
        assert (m.rank, m.limited_by) == (rank, "rank")
        assert best <= left * (1 + 1e-5)
        assert left < best * 1.01
        assert m.error == pytest.approx(left, rel=1e-4)
        assert m.energy == pytest.approx(1 - left**2, abs=1e-4)
        assert m.change == pytest.approx(np.linalg.norm(change) / np.linalg.norm(weights()[m.name]), rel=1e-5)


@pytest.mark.parametrize("energy", [0.3, 0.9, 1.0])
def test_the_smallest_rank_with_the_energy(energy: float, base: Path, tmp_path: Path) -> None:
    after = tuned(weights(), 12)
    report = extract(base, after, tmp_path / "adapter", energy=energy)
    for m in report.matrices:
        values = np.linalg.svd(after[m.name].astype(np.float64) - weights()[m.name], compute_uv=False) ** 2
        share = np.cumsum(values) / values.sum()
        assert m.rank == (12 if energy == 1 else int(np.argmax(share >= energy)) + 1)
        assert m.limited_by == ("rounding" if energy == 1 else "energy")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    if energy == 0.3:  # different ranks, each with its alpha
        assert config["rank_pattern"] == config["alpha_pattern"] != {}
    assert distance(merged(base, tmp_path / "adapter", tmp_path / "again"), after) < 2 * np.sqrt(1 - energy) + 1e-6


def test_a_matrix_of_full_rank_is_complete(base: Path, tmp_path: Path) -> None:
    after = tuned(weights(), 0, names=f"{LAYERS}0.self_attn.k_proj")
    report = extract(base, after, tmp_path / "adapter")
    assert [(m.rank, m.limited_by) for m in report.matrices] == [(32, "full")]
    assert distance(merged(base, tmp_path / "adapter", tmp_path / "again"), after) < 1e-6


def test_threads_and_memory_change_no_byte(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factoring, "_BAND", 1 << 11)  # several bands
    after = tuned(weights(), 0)
    ways: list[dict[str, Any]] = [{"jobs": 1}, {"jobs": 3}, {"jobs": 2, "max_memory": 4096}]
    for number, way in enumerate(ways):
        report = extract(base, after, tmp_path / f"adapter{number}", rank=7, **way)
        assert any("read 4 times" in note for note in report.notes) == ("max_memory" in way)
    files = [(tmp_path / f"adapter{n}/adapter_model.safetensors").read_bytes() for n in range(len(ways))]
    assert files[0] == files[1] == files[2]


@pytest.mark.costly
def test_threads_of_the_blas_change_no_bit() -> None:
    """numpy's library reads their number when it is loaded."""
    code = (
        "import hashlib, numpy as np; from weighbridge.tensors.factorize import *;"
        "m = np.random.default_rng(0).standard_normal((1500, 700)).astype('f4');"
        "f = factorize(lambda lo, hi: ChangedRows(m[lo:hi]), m.shape, RankLimit(60), bytes(16));"
        "print(hashlib.sha256(f.up.tobytes() + f.down.tobytes()).hexdigest(), (m @ m.T).sum())"
    )
    found = set()
    for threads in ("1", "2"):
        env = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        found.add(done.stdout.split()[0])
    assert len(found) == 1


# ------------------------------------------------------------------------------------------------ judges


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that transformers runs, and one that is tuned in all layers, the embedding and the head."""
    place = tmp_path_factory.mktemp("pair")
    after = tuned(weights(), 3, names="", size=0.05)
    return folder(place / "base", weights()), folder(place / "tuned", after)


IDS = [1, 5, 9, 40, 7, 2, 63, 30]


def test_peft_computes_the_tuned_models_logits(pair: tuple[Path, Path], tmp_path: Path) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    base, other = pair
    wb.extract_lora(base, other, tmp_path / "adapter", energy=0.999999, modules_to_save=["lm_head"])
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    expected = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
    ids = torch.tensor([IDS])
    with torch.no_grad():
        plain = model(ids).logits
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path / "adapter"))
    with torch.no_grad():
        found, wanted = adapted(ids).logits, expected(ids).logits
    assert float((plain - wanted).abs().max()) > 0.1
    assert torch.allclose(found, wanted, atol=5e-4)


def test_llama_cpp_computes_the_tuned_models_logits(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from tests.oracles.llamacpp import Model

    base, other = pair
    wb.convert(base, tmp_path / "base.gguf", dtype="f32")
    wb.convert(other, tmp_path / "tuned.gguf", dtype="f32")
    wb.extract_lora(tmp_path / "base.gguf", other, tmp_path / "adapter.gguf")
    with Model(tmp_path / "tuned.gguf") as model:
        expected = model.logits(IDS)
    with Model(tmp_path / "base.gguf") as model:
        assert np.abs(model.logits(IDS) - expected).max() > 0.1
        model.adapt(tmp_path / "adapter.gguf")
        np.testing.assert_allclose(model.logits(IDS), expected, atol=1e-3)


def test_a_gguf_is_the_folder_converted(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for target in ("direct.gguf", "adapter"):
        wb.extract_lora(*pair, tmp_path / target, energy=0.8)
    wb.convert(tmp_path / "adapter", tmp_path / "converted.gguf", base=pair[0])
    with wb.open(tmp_path / "direct.gguf") as a, wb.open(tmp_path / "converted.gguf") as b:
        assert sorted(a) == sorted(b)
        assert all(np.array_equal(a[name].numpy(), b[name].numpy()) for name in a)


# ------------------------------------------------------------------------------------------------ sources


def test_formats_mix_and_quantization_is_said(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, other = pair
    wb.convert(base, tmp_path / "base.gguf", dtype="f32")
    wb.convert(other, tmp_path / "mlx", to="mlx")
    for n, (one, two) in enumerate([pair, (tmp_path / "base.gguf", tmp_path / "mlx")]):
        wb.extract_lora(one, two, tmp_path / f"a{n}")
    assert (
        load_file(tmp_path / "a0/adapter_model.safetensors").keys()
        == load_file(tmp_path / "a1/adapter_model.safetensors").keys()
    )
    assert distance(merged(base, tmp_path / "a1", tmp_path / "again"), load_file(other / "model.safetensors")) < 1e-5
    wb.convert(base, tmp_path / "small.gguf", dtype="q8_0")
    with wb.plan_extract_lora(tmp_path / "small.gguf", other, tmp_path / "q", rank=8) as plan:
        assert any("the base is quantized (Q8_0)" in note for note in plan.report.notes)


def test_what_is_no_matrix_is_listed_or_stored_whole(base: Path, tmp_path: Path) -> None:
    after = tuned(weights(), 2)
    norms = [name for name in after if "input_layernorm" in name]
    after |= {name: after[name] * 2 for name in norms}
    report = extract(base, after, tmp_path / "adapter")
    assert [line.partition(":")[0] for line in report.losses] == norms
    assert "--modules-to-save input_layernorm" in report.losses[0]
    report = extract(base, after, tmp_path / "whole", modules_to_save=["input_layernorm", "model.layers.1.mlp.up_proj"])
    assert not report.losses
    assert sorted(report.whole) == sorted([*norms, "model.layers.1.mlp.up_proj.weight"])
    again = merged(base, tmp_path / "whole", tmp_path / "again")
    assert all(np.array_equal(again[name], after[name]) for name in report.whole)
    assert distance(again, after) < 1e-6


def test_a_grown_vocabulary_is_stored_whole(base: Path, tmp_path: Path) -> None:
    after = tuned(weights(), 2)
    grown = {
        name: np.concatenate([after[name], after[name][:4]]) for name in after if "embed" in name or "head" in name
    }
    other = folder(tmp_path / "tuned", after | grown, {**F32, "vocab_size": 84})
    with wb.plan_extract_lora(base, other, tmp_path / "adapter") as plan:
        plan.run()
        assert sorted(plan.report.whole) == sorted(grown)
        assert any("resize the base's to 84" in note for note in plan.report.notes)
    stored = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert all(np.array_equal(stored[f"base_model.model.{name}"], value) for name, value in grown.items())
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["modules_to_save"] == ["lm_head", "model.embed_tokens"]
    with pytest.raises(UnsupportedError, match="stored whole"):
        wb.plan_extract_lora(base, other, tmp_path / "adapter.gguf")


def test_layers_that_store_their_weights_transposed(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 1,
              "n_positions": 16, "n_ctx": 16, "vocab_size": 80, "layer_norm_epsilon": 1e-5}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (80, 32), "wpe.weight": (16, 32), "ln_f.weight": (32,), "ln_f.bias": (32,),
        **{f"h.0.{n}.{part}": (32,) for n in ("ln_1", "ln_2") for part in ("weight", "bias")},
        "h.0.attn.c_attn.weight": (32, 96), "h.0.attn.c_attn.bias": (96,), "h.0.attn.c_proj.weight": (32, 32),
        "h.0.attn.c_proj.bias": (32,), "h.0.mlp.c_fc.weight": (32, 128), "h.0.mlp.c_fc.bias": (128,),
        "h.0.mlp.c_proj.weight": (128, 32), "h.0.mlp.c_proj.bias": (32,),
    }  # fmt: skip
    rng = np.random.default_rng(1)
    before = {f"transformer.{n}": rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
    after = tuned(before, 3, names="transformer.h")
    one = folder(tmp_path / "base", before, config)
    made = folder(tmp_path / "tuned", after, config)
    wb.extract_lora(one, made, tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["fan_in_fan_out"] is True
    assert next(v.shape for n, v in stored.items() if n.endswith("c_attn.lora_A.weight")) == (3, 32)
    assert distance(merged(one, tmp_path / "adapter", tmp_path / "again"), after) < 1e-6


@pytest.mark.parametrize("energy", [None, 0.6])
def test_experts_in_a_gguf_have_one_rank(energy: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack of a GGUF takes one; experts without a difference get zeros."""
    monkeypatch.chdir(mixing_cases.write_models(tmp_path / "models") / "llama")
    wb.merge(mixing_cases.RECIPES["mixtral"][1], f"{tmp_path}/base/")
    base, before = tmp_path / "base", load_file(tmp_path / "base/model.safetensors")
    after = tuned(before, 3, names=f"{LAYERS}1.block_sparse_moe.experts.1") | {
        name: value for name, value in tuned(before, 5).items() if "0.block_sparse_moe.experts" in name
    }
    shutil.copytree(base, tmp_path / "tuned")
    save_file(after, tmp_path / "tuned/model.safetensors", {"format": "pt"})
    for target in ("adapter", "adapter.gguf"):
        wb.extract_lora(base, tmp_path / "tuned", tmp_path / target, energy=energy)
    peft, gguf = (
        merged(base, tmp_path / name, tmp_path / f"merged-{len(name)}") for name in ("adapter", "adapter.gguf")
    )
    assert distance(gguf, peft) < 1e-6
    assert distance(peft, after) < (1e-6 if energy is None else 1)
    with wb.open(tmp_path / "adapter.gguf") as model:
        assert model["blk.1.ffn_up_exps.weight.lora_a"].shape[0] == 3


def test_a_tied_embedding_is_noted(tmp_path: Path) -> None:
    before = {name: value for name, value in weights().items() if "head" not in name}
    one = folder(tmp_path / "base", before, {**F32, "tie_word_embeddings": True})
    two = folder(tmp_path / "tuned", tuned(before, 2, names="model.embed"), {**F32, "tie_word_embeddings": True})
    with wb.plan_extract_lora(one, two, tmp_path / "adapter") as plan:
        assert any("is the head, too" in note for note in plan.report.notes)
        plan.run()
    assert "base_model.model.model.embed_tokens.lora_embedding_A" in load_file(
        tmp_path / "adapter/adapter_model.safetensors"
    )
    with pytest.raises(UnsupportedError, match="tied"):
        wb.plan_extract_lora(one, two, tmp_path / "adapter.gguf")


# ------------------------------------------------------------------------------------------------ refusals


def _nothing(values: Tensors) -> Tensors:
    return values


def _nan(values: Tensors) -> Tensors:
    changed = tuned(values, 2)
    changed["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    return changed


def _wider(values: Tensors) -> Tensors:
    return values | {n: np.zeros((128, 64), "f4") for n in values if "gate_proj" in n or "up_proj" in n} | {
        n: np.zeros((64, 128), "f4") for n in values if "down_proj" in n
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "config", "options", "kind", "words"),
    [
        (_nothing, {}, {}, UsageError, "differs from .* in no matrix"),
        (_nan, {}, {}, FormatError, "model.layers.1.mlp.up_proj.weight"),
        (_wider, {"intermediate_size": 128}, {}, UsageError, "in the base and"),
        (lambda v: tuned(v, 2), {}, {"modules_to_save": ["nothing"]}, UsageError, "no module is called 'nothing'"),
        (lambda v: tuned(v, 2), {}, {"energy": 1.5}, UsageError, "above 0 and at most 1"),
        (lambda v: tuned(v, 2), {}, {"rank": 0}, UsageError, "rank must be at least 1"),
        (lambda v: tuned(v, 2), {}, {"to": "mlx"}, UsageError, "a PEFT folder"),
        (lambda v: tuned(v, 2), {}, {"dtype": "q4_k"}, UsageError, "GGUF"),
    ],
)
def test_what_is_refused(
    change: Any, config: Any, options: Any, kind: type[WeighbridgeError], words: str, base: Path, tmp_path: Path
) -> None:
    other = folder(tmp_path / "tuned", change(weights()), {**F32, **config})
    with pytest.raises(kind, match=words):
        wb.plan_extract_lora(base, other, tmp_path / "adapter", **options)


def test_targets_that_are_refused(base: Path, tmp_path: Path) -> None:
    other = folder(tmp_path / "tuned", tuned(weights(), 2))
    targets: list[tuple[str, dict[str, Any]]] = [("a.safetensors", {}), ("a.gguf", {"to": "hf"}), ("a.npz", {}),
                                                 ("a/", {"to": "gguf"})]  # fmt: skip
    for target, options in targets:
        with pytest.raises(UsageError):
            wb.plan_extract_lora(base, other, f"{tmp_path}/{target}", **options)
    with pytest.raises(RefusedError, match="contains a model"):
        wb.plan_extract_lora(base, other, base)
    qwen = {**F32, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
    values = weights() | {f"{LAYERS}{n}.self_attn.{x}_norm.weight": np.ones(16, "f4") for n in range(2) for x in "qk"}
    with pytest.raises(UsageError, match="different families: llama and qwen3"):
        wb.plan_extract_lora(base, folder(tmp_path / "qwen", values, qwen), tmp_path / "adapter")


def test_on_the_command_line(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = folder(tmp_path / "tuned", tuned(weights(), 3))
    line = ["extract-lora", str(base), str(other), str(tmp_path / "adapter"), "--rank", "2"]
    assert main([*line, "--dry-run"]) == 0
    assert not (tmp_path / "adapter").exists()
    printed = capsys.readouterr()
    assert "14 matrices of rank 2" in printed.out
    assert "have more than --rank keeps" in printed.err
    assert main([*line, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "weighbridge/extract-lora/1"
    assert report["rank"] == 2
    assert len(report["matrices"]) == 14
    assert main(line) == 2  # the folder exists


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (changes, "_FRACTION", {kind: bits + 6 for kind, bits in changes._FRACTION.items()}),
        (factoring, "_NOISE", 0.2),
        (factoring, "OVERSAMPLING", 3),
        (factoring, "POWER_STEPS", 1),
    ],
)
def test_every_constant_matters(
    where: Any, name: str, wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = weights(ml_dtypes.bfloat16)
    one = folder(tmp_path / "base", before)
    low, full = folder(tmp_path / "low", tuned(before, 5)), folder(tmp_path / "full", tuned(before, 0))

    after = tuned(before, 0)

    def best(m: Any) -> float:
        values = np.linalg.svd(after[m.name].astype(np.float64) - before[m.name].astype(np.float64), compute_uv=False)
        return float(np.sum(values[:4] ** 2) / np.sum(values**2))

    def check() -> None:
        with wb.plan_extract_lora(one, low, tmp_path / "x") as plan:
            assert {m.rank for m in plan.report.matrices} == {5}
        with wb.plan_extract_lora(one, full, tmp_path / "x", rank=4) as plan:
            assert np.mean([m.energy / best(m) for m in plan.report.matrices]) > 0.97

    mutation.assert_seen(mutation.Fault(where, name, wrong, check), monkeypatch)
