"""Folders whose layers are rounded by a text: gains, folds that leave a model as it is, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forward import test_graphs as graphs
from tests.oracles import models

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.conversion.schemes import plan as schemes
from weighbridge.conversion.schemes.table import SCHEMES as SCHEMES_OF_FOLDERS
from weighbridge.forward import layers
from weighbridge.forward.options import TextOptions
from weighbridge.forward.rounding import calibrated, folding, scheme_rounding
from weighbridge.forward.rounding.folding import Folding
from weighbridge.forward.texts import chunks_of
from weighbridge.models.open import open_model
from weighbridge.packings.write.awq import Consumer
from weighbridge.packings.write.gptq import Gptq
from weighbridge.packings.write.smoothing import smoothing_factors

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

CTX = 64
GROUP = 32
Build = Callable[[str], Path]


def _words(seed: int) -> str:
    """A text in which some words are frequent, and follow some others."""
    random = np.random.default_rng(seed)
    words = [f"{a}{b}" for a in ("ba", "ne", "to", "mi", "su") for b in ("l", "rk", "sten", "ning", "o")]
    steps = random.zipf(1.6, 3000) % len(words)
    return " ".join(words[i] for i in np.cumsum(steps) % len(words))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("calibrated")
    (here / "text.txt").write_text(_words(1))
    (here / "heldout.txt").write_text(_words(2))
    return here


@pytest.fixture(scope="module")
def folder(place: Path) -> Build:
    return cache(lambda name: models.build(models.CASES[name], place / name))


def _text(place: Path, **more: Any) -> dict[str, Any]:
    return {"text": [str(place / "text.txt")], "context": CTX, "chunks": 24, **more}


def _kl(place: Path, reference: Path, model: Path) -> float:
    report = wb.quality(reference, model, text=[str(place / "heldout.txt")], context=CTX, chunks=8)
    assert report.kl is not None
    return report.kl.value


def _tensors(folder: Path) -> dict[str, bytes]:
    with wb.open(folder, names="stored") as model:
        return {name: bytes(model[name].raw()) for name in model}


# -- gains -----------------------------------------------------------------------------------------------------------

SCHEMES: dict[str, dict[str, Any]] = {
    "w4a16": {"q_group_size": GROUP}, "w3a16": {"q_group_size": GROUP, "sym": False}, "gptq": {"q_group_size": GROUP},
    "awq": {"q_group_size": GROUP}, "w8a8": {},
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_held_out_predictions_change_less(folder: Build, place: Path, tmp_path: Path, scheme: str) -> None:
    source, options = folder("llama"), SCHEMES[scheme]
    wb.convert(source, tmp_path / "nearest", scheme=scheme, **options)
    result = wb.convert(source, tmp_path / "text", scheme=scheme, **options, **_text(place))
    assert any("error of the products" in note for note in result.notes)
    sizes = [sum(f.stat().st_size for f in (tmp_path / n).glob("*.safetensors")) for n in ("nearest", "text")]
    assert sizes[0] == sizes[1]
    nearest, found = (_kl(place, source, tmp_path / name) for name in ("nearest", "text"))
    assert found < 0.9 * nearest


@pytest.mark.costly
def test_a_mixture_changes_less(folder: Build, place: Path, tmp_path: Path) -> None:
    source = folder("qwen2moe")
    for scheme in ("w4a16", "awq"):
        wb.convert(source, tmp_path / "nearest", scheme=scheme, q_group_size=GROUP, overwrite=True)
        wb.convert(source, tmp_path / "text", scheme=scheme, q_group_size=GROUP, overwrite=True, **_text(place))
        assert _kl(place, source, tmp_path / "text") < _kl(place, source, tmp_path / "nearest")


def _run(folder: Path, ids: Any, *, rounded_inputs: bool) -> np.ndarray:
    """Log-probabilities by transformers [texts, tokens, vocab]; its hook unpacks weights in the first run."""
    model = models.load(folder)
    with torch.no_grad():
        model(ids[:1])
        for module in model.modules():
            module.quantization_enabled = rounded_inputs
        return torch.log_softmax(model(ids).logits.double(), -1).numpy()


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8", "fp8_static"])
def test_transformers_loads_the_folder(folder: Build, place: Path, tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("compressed_tensors")
    out, plain = tmp_path / "out", tmp_path / "plain"
    group: dict[str, Any] = {"q_group_size": GROUP} if scheme == "w4a16" else {}
    wb.convert(folder("llama"), out, scheme=scheme, **group, **_text(place))
    wb.convert(out, plain, to="hf", dtype="f32")
    probe = models.probe_of("llama", 40)
    found = _run(out, torch.tensor([probe]), rounded_inputs=False)[0]
    want = _run(plain, torch.tensor([probe]), rounded_inputs=False)[0]
    assert models.relative_error(found, want) < 1e-5


# -- rounded inputs --------------------------------------------------------------------------------------------------


def _chunks(source: Path, text: Path, count: int) -> Any:
    with open_model(source) as model:
        return torch.tensor(chunks_of(model, TextOptions(text=[str(text)], context=CTX)).ids[:count])


def _divergence(source: Path, folder: Path, ids: Any) -> float:
    """The KL divergence of a folder whose inputs transformers rounds, too."""
    want, found = (_run(path, ids, rounded_inputs=True) for path in (source, folder))
    return float((np.exp(want) * (want - found)).sum(-1).mean())


@pytest.mark.parametrize("name", ["llama", "qwen2moe"])
def test_scales_of_inputs_are_those_of_hooks(folder: Build, place: Path, tmp_path: Path, name: str) -> None:
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams

    result = wb.convert(folder(name), tmp_path / "out", scheme="fp8_static", **_text(place, chunks=4))
    model, peaks = models.load(folder(name)), dict[str, Any]()

    def observe(module: str, x: Any) -> None:
        peaks[module] = max(peaks.get(module, torch.zeros(())), x.abs().max())

    for module, part in model.named_modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_pre_hook(lambda _, x, module=module: observe(module, x[0]))
    with torch.no_grad():
        model(_chunks(folder(name), place / "text.txt", 4))
    kind = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    found = {k.removesuffix(".input_scale"): v for k, v in _tensors(tmp_path / "out").items() if "input_scale" in k}
    assert found.keys() >= peaks.keys() - {"lm_head"} - {n for n in peaks if n.endswith((".gate", "expert_gate"))}
    for module in found.keys() & peaks.keys():
        want, _ = calculate_qparams(-peaks[module], peaks[module], kind)
        np.testing.assert_allclose(np.frombuffer(found[module], np.float32), want.numpy(), rtol=1e-4, err_msg=module)
    assert not any("no token reached" in note for note in result.notes) or name == "qwen2moe"


def test_inputs_of_static_scales_lose_as_little_as_dynamic_ones(folder: Build, place: Path, tmp_path: Path) -> None:
    source, ids = folder("llama"), _chunks(folder("llama"), place / "heldout.txt", 4)
    wb.convert(source, tmp_path / "static", scheme="fp8_static", **_text(place))
    wb.convert(source, tmp_path / "dynamic", scheme="fp8_dynamic")
    static, dynamic = (_divergence(source, tmp_path / name, ids) for name in ("static", "dynamic"))
    assert static < 1.3 * dynamic
    assert _kl(place, source, tmp_path / "static") < static  # the rounding of inputs isn't in it


def test_inputs_that_no_token_makes(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expert without tokens has the largest scale of the others; with none at all it has that of other layers."""
    chosen_experts = layers.route

    def route(graph: Any, *given: Any) -> Any:
        chosen, share = chosen_experts(graph, *given)
        return np.where(chosen == 2, 3, chosen), share

    monkeypatch.setattr(layers, "route", route)
    result = wb.convert(folder("qwen2moe"), tmp_path / "out", scheme="fp8_static", **_text(place, chunks=2))
    (note,) = (note for note in result.notes if "no token reached" in note)
    assert note.startswith("no token reached 6 matrices")
    scales = {k: np.frombuffer(v, np.float32)[0] for k, v in _tensors(tmp_path / "out").items() if "input_scale" in k}
    for layer in range(2):
        of = {int(k.split(".")[5]): v for k, v in scales.items() if f"layers.{layer}." in k and "experts" in k
              and "down_proj" in k and "shared" not in k}  # fmt: skip
        assert of.pop(2) == max(of.values())


def _with_outliers(source: Path, out: Path) -> Path:
    """The same function, with some channels of the norms 64 times as large."""
    from safetensors.torch import load_file, save_file

    wb.convert(source, out, to="hf", dtype="f32")
    tensors = load_file(out / "model.safetensors")
    readers = {"input_layernorm": "self_attn.{q,k,v}_proj", "post_attention_layernorm": "mlp.{gate,up}_proj"}
    for name in [name for name in tensors if name.split(".")[-2] in readers]:
        layer, norm = name.rsplit(".", 2)[:2]
        group, parts = readers[norm].split(".")
        tensors[name][:3] *= 64
        for part in parts[1:].split("}")[0].split(","):
            tensors[f"{layer}.{group}.{part}_proj.weight"][:, :3] /= 64
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def test_smoothing_helps_against_outliers(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, ids = (
        _with_outliers(folder("llama"), tmp_path / "source"),
        _chunks(folder("llama"), place / "heldout.txt", 4),
    )
    wb.convert(source, tmp_path / "nearest", scheme="w8a8")
    wb.convert(source, tmp_path / "smooth", scheme="w8a8", **_text(place))
    wb.convert(source, tmp_path / "other", scheme="w8a8", smooth=0.0, **_text(place))
    row = SCHEMES_OF_FOLDERS["w8a8"]._replace(calibration="gptq")
    monkeypatch.setattr(schemes, "SCHEMES", {**SCHEMES_OF_FOLDERS, "w8a8": row})
    wb.convert(source, tmp_path / "gptq", scheme="w8a8", **_text(place))
    found = {name: _divergence(source, tmp_path / name, ids) for name in ("nearest", "smooth", "other", "gptq")}
    assert found["smooth"] < 0.1 * min(found["nearest"], found["gptq"])
    assert found["smooth"] < found["other"]


def test_factors_of_smoothing() -> None:
    """Those of SmoothQuant's `smooth_ln_fcs`, and one for columns that are tied."""
    random = np.random.default_rng(1)
    first, second = (random.normal(size=(5, 6)).astype(np.float32) for _ in range(2))
    peaks = np.abs(random.normal(size=6)) * 9
    peaks[2], first[:, 3], second[:, 3] = 0, 0, 0
    rule: Any = None
    found = smoothing_factors([Consumer(lambda: first, rule), Consumer(lambda: second, rule)], peaks, 0.7)
    largest = np.maximum(np.abs(first).max(0), np.abs(second).max(0))
    with np.errstate(divide="ignore"):
        want = peaks**0.7 / largest**0.3
    want[2:4] = 1
    np.testing.assert_allclose(found, want, rtol=1e-5)
    tied = smoothing_factors([Consumer(lambda: first, rule)], peaks, 0.5, np.array([0, 1, 2, 0, 1, 2]))
    assert tied[:3].tolist() == tied[3:].tolist()
    np.testing.assert_allclose(tied[0], np.sqrt(max(peaks[0], peaks[3]) / np.abs(first[:, [0, 3]]).max()), rtol=1e-5)


# -- folds -----------------------------------------------------------------------------------------------------------

#: Case -> folds of its first layer: norms, v -> o, up -> down
FOLDS = {
    "llama": 4, "llama3": 4, "llama-bias": 3, "qwen2": 4, "gemma2": 4, "cohere2": 3, "falcon": 1, "phi2": 2,
    "stablelm": 4, "phi-mini": 4, "olmo2": 2, "granite": 4, "qwen2moe": 10, "mixtral": 9, "starcoder2": 3,
}  # fmt: skip


#: Their matrices are stored transposed or stacked.
NOT_QUANTIZED = {"gpt2", "gpt2-untied"}
#: Other families, of which some have no matrix to quantize in this form.
OTHERS = sorted({*graphs.CASES} - {*FOLDS})


@pytest.mark.parametrize("name", [*FOLDS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_folds_leave_the_model_as_it_is(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Factors that are powers of two, each for whole groups, change no code: the logits are those of the model that is
    rounded to nearest."""
    random, applied = np.random.default_rng(1), []

    def factors(consumers: Any, products: Any, magnitudes: Any, tied: Any) -> Any:
        found = np.repeat(np.exp2(random.integers(-2, 3, len(magnitudes) // 8)), 8).astype(np.float32)
        applied.append(len(found))
        return found if tied is None else found[tied]

    row = SCHEMES_OF_FOLDERS["w8a16"]._replace(calibration="awq")
    monkeypatch.setattr(schemes, "SCHEMES", {**SCHEMES_OF_FOLDERS, "w8a16": row})
    monkeypatch.setattr(folding, "column_factors", factors)
    monkeypatch.setattr(Gptq, "round", lambda self, weights, products: self.nearest(weights))
    source = folder(name)
    common: dict[str, Any] = {"scheme": "w8a16", "q_group_size": 8, "dtype": "f32"}
    logits, probe = {}, models.probe_of(name, 40)
    if name in NOT_QUANTIZED:
        with pytest.raises(RefusedError, match="no linear layer"):
            wb.plan_convert(source, tmp_path / "out", **common)
        return
    for kind, text in (("nearest", {}), ("folded", _text(place, chunks=1))):
        wb.convert(source, tmp_path / kind, **common, **text)
        wb.convert(tmp_path / kind, tmp_path / "plain", to="hf", dtype="f32", overwrite=True)
        logits[kind] = models.logits(tmp_path / "plain", probe)
    with open_model(source) as model:
        assert name not in FOLDS or len(applied) == FOLDS[name] * model.sizes["L"]
    assert models.relative_error(logits["folded"], logits["nearest"]) < 2e-3
    changed, before = _tensors(tmp_path / "folded"), _tensors(tmp_path / "nearest")
    assert (changed != before) == bool(applied)


# -- MLX -------------------------------------------------------------------------------------------------------------

MLX: dict[str, dict[str, Any]] = {
    "4 bits": {"q_bits": 4, "q_group_size": 32}, "3 bits": {"q_bits": 3, "q_group_size": 32},
    "mixed": {"recipe": "mixed_3_6", "q_group_size": 32},
}  # fmt: skip


@pytest.mark.parametrize("case", MLX)
def test_mlx_folders_change_less(folder: Build, place: Path, tmp_path: Path, case: str) -> None:
    source = folder("llama")
    wb.convert(source, tmp_path / "nearest", to="mlx", **MLX[case])
    wb.convert(source, tmp_path / "text", to="mlx", **MLX[case], **_text(place))
    nearest, found = (_kl(place, source, tmp_path / name) for name in ("nearest", "text"))
    assert found < 0.9 * nearest
    kept, made = _tensors(tmp_path / "nearest"), _tensors(tmp_path / "text")
    assert {name: len(data) for name, data in kept.items()} == {name: len(data) for name, data in made.items()}
    config = [(tmp_path / name / "config.json").read_text() for name in ("nearest", "text")]
    assert config[0] == config[1]
    same = {name for name in made if made[name] == kept[name]}
    assert {name.split(".")[-2] for name in same if name.endswith(".weight")} <= {"embed_tokens", "lm_head", "norm"}


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2moe"])
def test_mlx_lm_computes_with_the_same_values(folder: Build, place: Path, tmp_path: Path, name: str) -> None:
    mlx_lm = pytest.importorskip("mlx_lm")
    import mlx.core as mx

    result = wb.convert(folder(name), tmp_path / "out", to="mlx", **MLX["4 bits"], **_text(place), dtype="f32")
    stacks = [note for note in result.notes if "stack" in note]
    assert [note.split(":")[0] for note in stacks] == (["6 stacks of experts"] if name == "qwen2moe" else [])
    wb.convert(tmp_path / "out", tmp_path / "plain", to="hf", dtype="f32")
    probe = models.probe_of(name, 8)  # within Gemma 2's window, which mlx-lm doesn't apply
    model, _ = mlx_lm.utils.load_model(tmp_path / "out")
    found = np.array(model(mx.array([probe]))[0].astype(mx.float32))
    assert models.relative_error(found, models.logits(tmp_path / "plain", probe)) < 1e-3


def test_mlx_folds_leave_the_model_as_it_is(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power of two for each fold changes no code."""
    monkeypatch.setattr(folding, "column_factors", lambda _, products, *__: np.full(len(products), 4, np.float32))
    logits, probe = [], models.probe_of("gemma2", 40)
    for number, rounder in enumerate((lambda *_: None, Folding.apply)):
        monkeypatch.setattr(Folding, "apply", rounder)
        monkeypatch.setattr(Gptq, "round", lambda self, weights, products: self.nearest(weights))
        wb.convert(folder("gemma2"), tmp_path / str(number), to="mlx", **MLX["4 bits"], **_text(place, chunks=1))
        wb.convert(tmp_path / str(number), tmp_path / "plain", to="hf", dtype="f32", overwrite=True)
        logits.append(models.logits(tmp_path / "plain", probe))
    assert _tensors(tmp_path / "0") != _tensors(tmp_path / "1")
    assert models.relative_error(logits[1], logits[0]) < 2e-3


# -- the same bytes --------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("scheme", ["w4a16", "awq"])
def test_threads_and_memory_change_no_byte(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    common = {"scheme": scheme, "q_group_size": GROUP, **_text(place, chunks=6)}
    wb.convert(folder("qwen2moe"), tmp_path / "a", jobs=1, **common)
    monkeypatch.setattr(scheme_rounding, "_MEMORY", 1)  # one matrix at a time, hidden states in a file
    wb.convert(folder("qwen2moe"), tmp_path / "b", jobs=4, **common)
    assert _tensors(tmp_path / "a") == _tensors(tmp_path / "b")


def test_a_gguf_gives_the_same_codes(folder: Build, place: Path, tmp_path: Path) -> None:
    wb.convert(folder("llama"), tmp_path / "model.gguf", dtype="f32")
    common = {"scheme": "w4a16", "q_group_size": GROUP, "dtype": "f32", **_text(place, chunks=6)}
    wb.convert(folder("llama"), tmp_path / "a", **common)
    wb.convert(tmp_path / "model.gguf", tmp_path / "b", to="hf", **common)
    assert _tensors(tmp_path / "a") == _tensors(tmp_path / "b")


def test_a_plan_computes_nothing(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrated.LayerRounding, "run", lambda *_: pytest.fail("it ran"))
    text = ["--text", str(place / "text.txt"), "--context", str(CTX)]
    command = ["convert", str(folder("llama")), str(tmp_path / "out"), "--scheme", "w4a16", "--q-group-size", "32"]
    assert main([*command, *text, "--dry-run"]) == 0
    assert "memory" in capsys.readouterr().out


def test_an_interrupted_run_continues(folder: Build, place: Path, tmp_path: Path) -> None:
    from weighbridge.conversion.plan.fingerprint import key_of

    common = {"scheme": "w4a16", "q_group_size": GROUP, **_text(place)}
    with (
        wb.plan_convert(folder("llama"), tmp_path / "out", **common) as one,
        wb.plan_convert(folder("llama"), tmp_path / "out", **common) as same,
        wb.plan_convert(folder("llama"), tmp_path / "out", **{**common, "chunks": 7}) as other,
        wb.plan_convert(folder("llama"), tmp_path / "out", **common, act_order="none") as ordered,
    ):
        assert key_of(one) == key_of(same)
        assert key_of(one) != key_of(other)
        assert key_of(one) != key_of(ordered)


# -- few tokens ------------------------------------------------------------------------------------------------------


def test_experts_that_few_or_no_tokens_reach(
    folder: Build, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def route(*given: Any) -> Any:
        chosen, share = chosen_experts(*given)
        return np.where(chosen == 2, 3, chosen), share

    chosen_experts = layers.route
    monkeypatch.setattr(layers, "route", route)
    common: dict[str, Any] = {"scheme": "w4a16", "q_group_size": GROUP}
    result = wb.convert(folder("qwen2moe"), tmp_path / "out", **common, **_text(place, context=16, chunks=1))
    few, none = (next((n for n in result.notes if words in n), "") for words in ("fewer tokens", "no token"))
    assert "self_attn" in few
    assert none.startswith("6 matrices rounded to nearest")
    wb.convert(folder("qwen2moe"), tmp_path / "nearest", **common)
    found, nearest = _tensors(tmp_path / "out"), _tensors(tmp_path / "nearest")
    same = {name for name in found if "experts." in name and name.endswith("_packed") and found[name] == nearest[name]}
    assert {name.split("experts.")[1].split(".")[0] for name in same} == {"2"}


# -- refusals --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a scheme without codes": ({"scheme": "fp8_dynamic", "text": True}, UsageError, "text doesn't apply to scheme"),
    "another target": ({"to": "safetensors", "text": True}, UsageError, "text doesn't apply to a safetensors file"),
    "chunks without a text": ({"scheme": "w4a16", "chunks": 3}, UsageError, "chunks applies to text"),
    "an order without a text": ({"scheme": "w4a16", "act_order": "none"}, UsageError, "act_order applies to text"),
    "smoothing without a text": ({"scheme": "w8a8", "smooth": 0.5}, UsageError, "smooth applies to text"),
    "smoothing of another scheme": (
        {"scheme": "w4a16", "smooth": 0.5, "text": True}, UsageError, "smooth doesn't apply to scheme"
    ),
    "an order of columns that are rounded to nearest": (
        {"scheme": "fp8_static", "act_order": "none", "text": True}, UsageError, "act_order doesn't apply to scheme"
    ),
    "static scales without a text": ({"scheme": "fp8_static"}, UsageError, "scales of inputs from a text"),
    "MLX's float codes": ({"to": "mlx", "q_mode": "mxfp4", "text": True}, UsageError, "rounds affine codes"),
    "an MLX folder of floats": ({"to": "mlx", "text": True}, UsageError, "rounds affine codes"),
    "an order of columns for MLX without a text": (
        {"to": "mlx", "q_bits": 4, "q_group_size": 32, "act_order": "none"}, UsageError, "act_order applies to text"
    ),
    "damping without a text": ({"scheme": "awq", "damp": 0.1}, UsageError, "damp applies to text"),
    "a short text": ({"scheme": "w4a16", "text": True, "context": 9999}, UsageError, "less than one chunk"),
    "a family without a graph": ({"scheme": "w4a16", "text": True, "src": "mamba"}, UnsupportedError, "mamba"),
    "little memory": ({"scheme": "w4a16", "text": True, "max_memory": 1000}, RefusedError, "takes .* bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(folder: Build, place: Path, tmp_path: Path, case: str) -> None:
    given, error, words = REFUSED[case]
    options = dict(given)
    if options.pop("text", False):
        options = _text(place) | options
    if "scheme" in options and "a16" in options["scheme"]:
        options["q_group_size"] = GROUP
    with pytest.raises(error, match=words):
        wb.plan_convert(folder(options.pop("src", "llama")), tmp_path / "out", **options)


def test_a_quantized_source(folder: Build, place: Path, tmp_path: Path) -> None:
    wb.convert(folder("llama"), tmp_path / "once", scheme="w4a16", q_group_size=GROUP)
    with pytest.raises(UsageError, match="is quantized"):
        wb.plan_convert(tmp_path / "once", tmp_path / "twice", scheme="gptq", **_text(place))
    with pytest.raises(UsageError, match="is quantized"):
        wb.plan_convert(tmp_path / "once", tmp_path / "twice", to="mlx", q_bits=4, **_text(place))


def test_activations_that_are_not_finite(folder: Build, place: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    wb.convert(folder("llama"), broken, to="hf", dtype="f32")
    tensors = load_file(broken / "model.safetensors")
    for part in ("gate_proj", "up_proj"):
        tensors[f"model.layers.1.mlp.{part}.weight"] *= 1e25
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(FormatError, match="finite") as error:
        wb.convert(broken, tmp_path / "out", scheme="w4a16", q_group_size=GROUP, **_text(place, chunks=2))
    assert "layers.1.mlp" in str(error.value)
    assert not (tmp_path / "out").exists()
