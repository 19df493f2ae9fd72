"""`wb merge` of a mixture's recipe: results of mergekit-moe, laws, transformers and llama.cpp as judges, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from safetensors.numpy import load_file
from tests import mutation
from tests.conversion.mixing_cases import (
    CONFIG,
    DENSE,
    MODELS,
    RECIPES,
    THREE,
    expert,
    tensors,
    write_model,
    write_models,
)

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.conversion.merging import mixture, mixture_recipe, mixture_targets, routers
from weighbridge.forward.run import prompt_states
from weighbridge.models.open import open_model

GOLDEN = Path(__file__).parent / "golden" / "mixing.npz"
IDS = [3, 1, 5, 9, 40, 7, 2, 63, 30]
PLAIN = [{"source_model": "one"}]
PAIR = [expert("one", "t0t0"), expert("two", "x1 x2")]
Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("mixing") / "models")


@pytest.fixture(autouse=True)
def here(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models / "llama")


def recipe(**more: Any) -> dict[str, Any]:
    return {"base_model": "base", "gate_mode": "cheap_embed", "experts": PAIR, **more}


def mixed(source: Any, out: Path, **keywords: Any) -> Tensors:
    wb.merge(source, f"{out}/", **keywords)
    return dict(load_file(out / "model.safetensors"))


def settings(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


# ------------------------------------------------------------------------------------------------ mergekit-moe


def as_recorded(values: Mapping[str, np.ndarray], names: Any) -> Tensors:
    """Our tensors under the names that mergekit has: experts in a stack, gate above up, for some architectures."""
    plain = {name.replace("block_sparse_moe", "mlp"): value for name, value in values.items()}
    out = {name: value for name, value in plain.items() if name in names}
    for name in names:
        front, _, part = name.rpartition(".experts.")
        if part == "down_proj":
            out[name] = np.stack([find(plain, front, e, "w2", part) for e in range(count(plain, front))])
        elif part == "gate_up_proj":
            pairs = [
                [find(plain, front, e, "w1", "gate_proj"), find(plain, front, e, "w3", "up_proj")]
                for e in range(count(plain, front))
            ]
            out[name] = np.stack([np.concatenate(pair) for pair in pairs])
    return out


def count(values: Mapping[str, np.ndarray], front: str) -> int:
    return len({name.removeprefix(f"{front}.experts.").split(".")[0] for name in values if f"{front}.experts." in name})


def find(values: Mapping[str, np.ndarray], front: str, number: int, *parts: str) -> np.ndarray:
    return next(values[name] for part in parts if (name := f"{front}.experts.{number}.{part}.weight") in values)


COUNTS = mixture_targets.MixtureCounts(3, 1, 2, 24)
#: Class -> the keys of config.json that are compared.
KEYS = {target.class_: [*target.config(COUNTS)] for target in mixture_targets.targets()}


def assert_mergekits(name: str, out: Path) -> None:
    """Tensors and settings are those that mergekit-moe made of a recipe."""
    kind, source = RECIPES[name]
    got = mixed(source, out)
    stored = np.load(GOLDEN)
    recorded = {key.removeprefix(f"{name}/"): stored[key] for key in stored.files if key.startswith(f"{name}/")}
    config, copies = (json.loads(bytes(recorded.pop(key))) for key in ("config.json", "copies"))
    compared = as_recorded(got, recorded)
    assert compared.keys() == recorded.keys()
    for key, value in recorded.items():
        np.testing.assert_allclose(compared[key], value, atol=2e-6, err_msg=key)
    base = tensors("base", kind)
    assert sorted(key for key in got if ".mlp." not in key and "block_sparse" not in key) == copies
    assert all(np.array_equal(got[key], base.get(key, np.zeros_like(got[key]))) for key in copies)
    if "num_local_experts" in config:  # transformers 5 calls it so, for any architecture
        config["num_experts"] = config["num_local_experts"]
    config.setdefault("mlp_only_layers", [])
    ours, keys = settings(out), KEYS[config["architectures"][0]]
    assert {key: ours.get(key, "absent") for key in keys} == {key: config.get(key) for key in keys}


@pytest.mark.parametrize("name", RECIPES)
def test_the_results_are_mergekits(name: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models / RECIPES[name][0])
    assert_mergekits(name, tmp_path / "out")


def faults(target: mixture_targets.MixtureTarget) -> dict[str, mixture_targets.MixtureTarget]:
    """A row of the table with one thing wrong."""
    wrong: dict[str, Any] = {
        f"no {key}": {"settings": {k: v for k, v in target.settings.items() if k != key}} for key in target.settings
    }
    wrong |= {field: {field: f"x{getattr(target, field)}"} for field in ("class_", "model_type", "expert", "router")}
    wrong |= {f: {f: f"x{getattr(target, f)}"} for f in ("shared", "shared_router") if getattr(target, f)}
    wrong |= {"no null": {"null": ()}} if target.null else {}
    wrong |= {"biases": {"biases": not target.biases}} if target.class_ == "Qwen2MoeForCausalLM" else {}
    wrong |= {"parts": {"parts": {"gate_proj": "w3", "down_proj": "w2", "up_proj": "w1"}}} if target.parts else {}
    wrong["models"] = {"models": frozenset({"none"})}
    return {name: msgspec.structs.replace(target, **change) for name, change in wrong.items()}


FAULTS = [(number, fault) for number, target in enumerate(mixture_targets.targets()) for fault in faults(target)]


@pytest.mark.parametrize(("number", "fault"), FAULTS)
def test_every_entry_of_the_table_matters(
    number: int, fault: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(mixture_targets.targets())
    name = ("mixtral", "deepseek", "qwen of llama, which has no biases", "qwen3")[number]
    monkeypatch.chdir(models / RECIPES[name][0])
    rows[number] = faults(rows[number])[fault]
    for module in (mixture, mixture_recipe):
        monkeypatch.setattr(module, "targets", lambda: tuple(rows))
    assert mutation.red(lambda: assert_mergekits(name, tmp_path / "out"))


def test_every_architecture_is_recorded() -> None:
    stored = np.load(GOLDEN)
    made = {json.loads(bytes(stored[key]))["architectures"][0] for key in stored.files if key.endswith("config.json")}
    assert made == {target.class_ for target in mixture_targets.targets()}
    assert {key.split("/")[0] for key in stored.files} == set(RECIPES)


@pytest.mark.parametrize("name", ["_ALIKE", "_SMALL"])
def test_constants_of_routers_matter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = recipe(experts=[expert("one", "t0t0 x1"), expert("two", "t0t0 x1 x2")])
    numbers = iter(range(9))

    def check() -> None:
        with wb.plan_merge(near, tmp_path / f"{next(numbers)}/") as plan:
            assert any("hardly tells the experts apart" in note for note in plan.notes)
        with wb.plan_merge(recipe(), tmp_path / f"{next(numbers)}/") as plan:
            assert not any("hardly" in note for note in plan.notes)
            plan.run()
            rows = load_file(plan.target / "model.safetensors")["model.layers.1.block_sparse_moe.gate.weight"]
            assert np.linalg.norm(rows, axis=1) == pytest.approx(1)

    mutation.assert_seen(mutation.Fault(routers, name, 100.0, check), monkeypatch)


# ------------------------------------------------------------------------------------------------ laws


def logits(folder: Path) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        found: np.ndarray = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([IDS])).logits[0].numpy()
        )
    return found


@pytest.mark.parametrize(("kind", "shared"), [("llama", False), ("qwen3", False), ("qwen2", True)])
def test_a_mixture_of_one_model_computes_what_it_does(
    kind: str, shared: bool, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of chosen experts add up to 1; a shared expert is scaled away."""
    monkeypatch.chdir(models / kind)
    same = {"base_model": "one", "gate_mode": "random", "experts": [{"source_model": "one"}] * 4}
    if shared:
        same["shared_experts"] = [{"source_model": "one", "residual_scale": 0.0}]
    with wb.plan_merge(same, f"{tmp_path}/mixed/") as plan:
        assert any("all experts are the same model" in note for note in plan.notes)
        assert any("must be trained" in note for note in plan.notes)
        plan.run()
    expected = logits(models / kind / "one")
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits(tmp_path / "mixed"), expected, atol=2e-5)


@pytest.mark.parametrize("name", ["mixtral", "qwen3"])
def test_llama_cpp_and_transformers_compute_the_same(
    name: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.oracles.llamacpp import Model

    kind, source = RECIPES[name]
    monkeypatch.chdir(models / kind)
    wb.merge(source, f"{tmp_path}/mixed/")
    wb.merge(source, tmp_path / "mixed.gguf", dtype="f32")
    with Model(tmp_path / "mixed.gguf") as model:
        found = model.logits(IDS)
    np.testing.assert_allclose(found, logits(tmp_path / "mixed"), atol=2e-3)


def test_a_gguf_is_the_folder_converted_and_quantized_in_one_pass(tmp_path: Path) -> None:
    wide = {**CONFIG, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    rng = np.random.default_rng(3)
    for model in MODELS[:3]:
        values = {n: np.repeat(np.repeat(v, 2, -1), 2, 0) if v.ndim > 1 else np.repeat(v, 2)
                  for n, v in tensors(model, "llama").items()}  # fmt: skip
        values |= {n: rng.standard_normal((64, 32)).astype("f4") for n in values if "gate_" in n or "up_" in n}
        values |= {n: rng.standard_normal((32, 64)).astype("f4") for n in values if "down_" in n}
        values |= {n: rng.standard_normal((80, 32)).astype("f4") for n in values if "embed" in n or "head" in n}
        write_model(tmp_path / model, values, "llama", wide)
    source = recipe(
        base_model=str(tmp_path / "base"),
        experts=[{**one, "source_model": str(tmp_path / one["source_model"])} for one in PAIR],
    )
    wb.merge(source, f"{tmp_path}/mixed/")
    wb.convert(f"{tmp_path}/mixed/", tmp_path / "converted.gguf", dtype="q8_0", name="x")
    wb.quantize(f"{tmp_path}/mixed/", tmp_path / "quantized.gguf", "Q4_0")
    wb.merge(source, tmp_path / "direct.gguf", dtype="q8_0")
    wb.merge(source, tmp_path / "direct-q4.gguf", dtype="q4_0")
    for one, two in [("converted", "direct"), ("quantized", "direct-q4")]:
        with wb.open(tmp_path / f"{one}.gguf") as a, wb.open(tmp_path / f"{two}.gguf") as b:
            assert sorted(a) == sorted(b)
            assert all(a[name].dtype == b[name].dtype for name in a)
            assert all(bytes(a[name].raw()) == bytes(b[name].raw()) for name in a)


@pytest.mark.parametrize(("architecture", "told"), [("mixtral", False), ("qwen moe", True), ("deepseek", True)])
def test_router_probabilities_that_llama_cpp_does_not_normalize_are_a_loss(
    architecture: str, told: bool, tmp_path: Path
) -> None:
    """mergekit-moe writes norm_topk_prob = true, by which transformers divides the chosen experts' probabilities by
    their sum, as Mixtral does always. llama.cpp's graphs of qwen2moe and deepseek don't, and no key of a GGUF tells
    them to."""
    shared = {} if architecture == "mixtral" else {"shared_experts": PLAIN}
    given = recipe(architecture=architecture, gate_mode="random", **shared)
    wb.merge(given, f"{tmp_path / 'folder'}/")
    assert settings(tmp_path / "folder").get("norm_topk_prob") is (True if told else None)
    losses = wb.plan_merge(given, tmp_path / "mixture.gguf").losses
    assert any(loss.effect == "results" and "norm_topk_prob" in loss.message for loss in losses) == told


def test_experts_of_any_format(tmp_path: Path) -> None:
    wb.convert("one", tmp_path / "one.gguf", dtype="f32")
    wb.convert("two", tmp_path / "two", to="mlx")
    others = [
        {**PAIR[0], "source_model": str(tmp_path / "one.gguf")},
        {**PAIR[1], "source_model": str(tmp_path / "two")},
    ]
    plain = mixed(recipe(), tmp_path / "a")
    for name, value in mixed(recipe(experts=others), tmp_path / "b").items():
        assert np.array_equal(value, plain[name])


def test_the_base_is_no_gguf(tmp_path: Path) -> None:
    wb.convert("base", tmp_path / "base.gguf", dtype="f32")
    rows = recipe(base_model=str(tmp_path / "base.gguf"))
    with pytest.raises(UnsupportedError, match=r"is a GGUF[^\n]*\n.*wb convert"):
        wb.plan_merge(rows, f"{tmp_path}/out/")


def test_noise_and_scale(tmp_path: Path) -> None:
    one = recipe(experts=[{**PAIR[0], "noise_scale": 0.5, "residual_scale": 2.0}, PAIR[1]])
    plain, noisy = mixed(recipe(), tmp_path / "a"), mixed(one, tmp_path / "b")
    again, other = mixed(one, tmp_path / "c", jobs=3, max_memory=10**6), mixed(one, tmp_path / "d", seed=1)
    for name, value in plain.items():
        if ".experts.0." not in name:
            assert np.array_equal(noisy[name], value)
            continue
        change = noisy[name] / (2 if ".w2." in name else 1) - value
        assert abs(change.mean()) < 0.12
        assert 0.4 < change.std() < 0.6
        assert np.array_equal(again[name], noisy[name])
        assert not np.array_equal(other[name], noisy[name])


@pytest.mark.parametrize(("mode", "spread"), [("random", 1.0), ("uniform_random", (1 / 48) ** 0.5)])
def test_random_routers(mode: str, spread: float, tmp_path: Path) -> None:
    source = recipe(gate_mode=mode, experts=[{"source_model": model} for model in MODELS] * 8)
    got, again = mixed(source, tmp_path / "a"), mixed(source, tmp_path / "b")
    rows = np.stack([value for name, value in got.items() if "gate.weight" in name])
    assert rows.shape == (2, 32, 16)
    assert rows.std() == pytest.approx(spread, rel=0.1)
    assert not np.array_equal(rows[0], rows[1])
    assert all(np.array_equal(again[name], value) for name, value in got.items())
    other = mixed(source, tmp_path / "c", seed=4)
    assert not any(np.array_equal(other[name], value) for name, value in got.items() if "gate.weight" in name)


def test_hidden_avg_is_the_mean_of_a_prompts_tokens(tmp_path: Path) -> None:
    """Of one token, which is its own mean; the token that begins a text is another."""
    with open_model("base") as model:
        ids = [np.array([3, 5]), np.array([3, 5, 9]), np.array([7])]
        last, mean = (prompt_states(model, ids, average=average) for average in (False, True))
        alone = prompt_states(model, [ids[1]], average=False)
    assert last.shape == (3, 2, 16)
    np.testing.assert_allclose(last[2], mean[2])
    np.testing.assert_allclose(last[1], alone[0], atol=1e-6)  # what fills the shorter ones changes nothing
    np.testing.assert_allclose(mean[0, 0], tensors("base", "llama")["model.embed_tokens.weight"][[3, 5]].mean(axis=0))
    a = mixed(recipe(gate_mode="hidden_avg"), tmp_path / "a")
    b = mixed(recipe(gate_mode="hidden"), tmp_path / "b")
    assert any(not np.allclose(a[name], b[name]) for name in a if "gate.weight" in name)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"experts": PAIR[:1]}, UsageError, "at least 2 experts"),
        ({"experts_per_token": 3}, UsageError, "experts_per_token is 3, but there are 2"),
        ({"experts_per_token": 0}, UsageError, "experts_per_token"),
        ({"experts": [{"source_model": "one"}, PAIR[1]]}, UsageError, r"experts\[0\] has no positive_prompts"),
        ({"experts": [expert("one", "t"), expert("two", "t")]}, UsageError, "all experts have the same prompts"),
        ({"experts": [expert("one", ""), PAIR[1]], "gate_mode": "hidden"}, None, ""),
        ({"gate_mode": "other"}, UsageError, "gate_mode 'other' is unknown"),
        ({"architecture": "phi"}, UsageError, "architecture 'phi' is unknown"),
        ({"denoise": 1}, UsageError, "unknown field `denoise`"),
        ({"experts": [expert("one", 3), PAIR[1]]}, UsageError, r"experts\[0\]"),  # type: ignore[arg-type]
        ({"experts": [expert("one", "t", noise_scale=float("nan")), PAIR[1]]}, UsageError, "must be finite"),
        ({"shared_experts": [expert("one", "t"), expert("two", "t")]}, UnsupportedError, "one shared expert at most"),
        ({"architecture": "mixtral", "shared_experts": PLAIN}, UnsupportedError, "no shared_experts"),
        ({"architecture": "qwen moe"}, UnsupportedError, "needs one of shared_experts"),
        ({"architecture": "qwen moe", "shared_experts": PLAIN}, UnsupportedError, "positive_prompts"),
        ({"architecture": "deepseek", "shared_experts": [expert("one", "t")]}, UnsupportedError, "no prompts"),
        ({"architecture": "qwen3"}, UnsupportedError, "is made of qwen3, not llama"),
        ({"base_model": "../qwen2/base", "architecture": "mixtral"}, UsageError, "different families"),
    ],
)  # fmt: skip
def test_bad_recipes(change: dict[str, Any], kind: type[WeighbridgeError] | None, words: str, tmp_path: Path) -> None:
    if kind is None:  # the token that begins a text is a prompt, too
        wb.plan_merge(recipe(**change), f"{tmp_path}/out/").close()
        return
    with pytest.raises(kind, match=words):
        wb.plan_merge(recipe(**change), f"{tmp_path}/out/")


def test_models_that_dont_fit(models: Path, tmp_path: Path) -> None:
    values = tensors("two", "llama") | {
        f"model.layers.{n}.mlp.{part}_proj.weight": np.zeros(shape, "f4")
        for n in range(2)
        for part, shape in (("gate", (32, 16)), ("up", (32, 16)), ("down", (16, 32)))
    }
    wide = write_model(tmp_path / "wide", values, "llama", {**CONFIG, "intermediate_size": 32})
    other = [PAIR[0], {**PAIR[1], "source_model": str(wide)}]
    with pytest.raises(UsageError, match=r"is \[24, 16\] in the base and \[32, 16\] in"):
        wb.plan_merge(recipe(experts=other), f"{tmp_path}/out/")
    deep = [PAIR[0], {**PAIR[1], "source_model": str(models / "qwen3" / "one")}]
    with pytest.raises(UsageError, match="different families: qwen3, llama"):
        wb.plan_merge(recipe(experts=deep), f"{tmp_path}/out/")
    biased = {n: v for n, v in tensors("one", "llama").items()}
    biased |= {f"model.layers.{n}.self_attn.{x}_proj.bias": np.zeros(s, "f4")
               for n in range(2) for x, s in (("q", 16), ("k", 8), ("v", 8), ("o", 16))}  # fmt: skip
    base = write_model(tmp_path / "biased", biased, "llama", {**CONFIG, "attention_bias": True})
    with pytest.raises(UnsupportedError, match="Mixtral has no bias such as"):
        wb.plan_merge(recipe(base_model=str(base)), f"{tmp_path}/out/")


def test_options_that_dont_apply(tmp_path: Path) -> None:
    for options, words in (({"seed": 1}, "seed doesn't apply to gate_mode"), ({"t": 0.5}, "a recipe has its own")):
        with pytest.raises(UsageError, match=words):
            wb.plan_merge(recipe(), f"{tmp_path}/out/", **options)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "moe.yaml").write_text(yaml.safe_dump(recipe(dtype="bfloat16", experts=THREE)))
    assert main(["merge", str(tmp_path / "moe.yaml"), f"{tmp_path}/out/", "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert main(["merge", str(tmp_path / "moe.yaml"), f"{tmp_path}/out/"]) == 0
    assert "mixed as Mixtral: one, two, three" in capsys.readouterr().err
    assert settings(tmp_path / "out")["torch_dtype"] == "bfloat16"
    with wb.open(tmp_path / "out") as model:
        assert {model[name].dtype for name in model} == {"BF16"}
    assert len(DENSE) == 4
