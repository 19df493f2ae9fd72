"""An MLX folder made by us and by mlx_lm.convert from the same model: the same words, scales, biases, config and index,
and mlx_lm runs ours. Quantized GGUFs become MLX folders with the very values of their blocks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import models, ours
from tests.oracles.models import CASES, probe_of

import weighbridge
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError

if os.environ.get("CI") != "true":
    pytest.importorskip("mlx_lm", reason="MLX TARGETS WERE NOT PROVED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]

# How mlx_lm.convert is called, and what we are told: (model, its arguments, ours).
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("llama3-v4", {}, {}),
    "plain bf16": ("llama3-v4", {"dtype": "bfloat16"}, {"dtype": "bf16"}),
    "affine 4/32": ("llama3-v4@bfloat16", {"q_bits": 4, "q_group_size": 32}, {"q_bits": 4, "q_group_size": 32}),
    "affine 3/64": ("llama3-v4", {"q_bits": 3, "q_group_size": 64}, {"q_bits": 3, "q_group_size": 64}),
    "affine of f16": ("llama3-v4", {"dtype": "float16", "q_bits": 6}, {"dtype": "f16", "q_bits": 6}),
    "mxfp4": ("llama3-v4@bfloat16", {"q_mode": "mxfp4"}, {"q_mode": "mxfp4"}),
    "nvfp4": ("llama3-v4", {"q_mode": "nvfp4"}, {"q_mode": "nvfp4"}),
    "mxfp8": ("qwen3", {"q_mode": "mxfp8"}, {"q_mode": "mxfp8"}),
    "experts": ("mixtral", {"q_bits": 4, "q_group_size": 32}, {"q_bits": 4, "q_group_size": 32}),
    "routers at 8 bits": ("qwen3moe", {"q_bits": 4, "q_group_size": 32}, {"q_bits": 4, "q_group_size": 32}),
    "shared expert": ("qwen2moe", {"q_bits": 8, "q_group_size": 32}, {"q_bits": 8, "q_group_size": 32}),
    "codes that come": ("gpt-oss-mxfp4", {}, {}),
    "experts beside the feed forward": ("gemma4-experts", {"q_bits": 4, "q_group_size": 32},
                                        {"q_bits": 4, "q_group_size": 32}),
    **{f"8 bits of {name}": (name, {"q_bits": 4, "q_group_size": 32}, {"q_bits": 4, "q_group_size": 32})
       for name in ("minimax-m2", "granite-hybrid", "jamba", "lfm2moe")},
    "delta attention": ("kimi-linear", {"q_bits": 4, "q_group_size": 32, "dtype": "bfloat16"},
                        {"q_bits": 4, "q_group_size": 32, "dtype": "bf16"}),
    "delta attention in one": ("kimi-k3", {"q_bits": 4, "q_group_size": 32, "dtype": "bfloat16"},
                               {"q_bits": 4, "q_group_size": 32, "dtype": "bf16"}),
    "experts that come in codes": ("kimi-k3-published", {}, {}),
    "matrices that stay floats": ("ling3-plain", {"q_bits": 4, "q_group_size": 32},
                                  {"q_bits": 4, "q_group_size": 32}),
    "biases of routers": ("step3.5", {"dtype": "bfloat16"}, {"dtype": "bf16"}),
    "matrices as states": ("rwkv7", {"q_bits": 4, "q_group_size": 64}, {"q_bits": 4, "q_group_size": 64}),
    "mixed_3_6": ("llama3-v4", {"quant_predicate": "mixed_3_6", "q_group_size": 32},
                  {"recipe": "mixed_3_6", "q_group_size": 32}),
    "mixed_4_6": ("qwen3", {"quant_predicate": "mixed_4_6", "q_group_size": 32},
                  {"recipe": "mixed_4_6", "q_group_size": 32}),
}  # fmt: skip


# mlx_lm counts the parameters of leaf modules alone, and so misses the sinks: 2 layers of 4 heads; the scales of a
# router, of each expert and of the layer; what state spaces have beside their layers.
UNCOUNTED = {
    "codes that come": 8, "experts beside the feed forward": 3 * (64 + 6 + 1), "8 bits of granite-hybrid": 24,
    "8 bits of jamba": 6528, "8 bits of minimax-m2": 12, "8 bits of lfm2moe": 12,
    "biases of routers": 2 * 6, **dict.fromkeys(
        ("delta attention", "delta attention in one", "experts that come in codes"), 3 * (128 + 4 + 6)),
    "matrices as states": 2 * 10 * 128,
    "matrices that stay floats": 2 * (128 + 4),
}  # fmt: skip


def theirs(source: Path, target: Path, arguments: dict[str, Any]) -> Path:
    import mlx_lm

    quantize = any(key in arguments for key in ("q_bits", "q_mode", "quant_predicate"))
    mlx_lm.convert(str(source), str(target), quantize=quantize, **arguments)
    return target


def loaded(folder: Path) -> dict[str, Any]:
    """Bytes, shape and type of every tensor, read by MLX."""
    import mlx.core as mx

    out = {}
    tensors: Any = mx.load(str(folder / "model.safetensors"))
    for name, array in tensors.items():
        plain = array.view(mx.uint16) if array.dtype in (mx.float16, mx.bfloat16) else array
        out[name] = (str(array.dtype), array.shape, np.array(plain).tobytes())
    return out


# What ours has beside `rope_parameters` (tests/conversion/test_mlx_config.py); mlx_lm.convert fails on some without it.
OLD_WORDS = {"rope_theta", "rope_scaling", "partial_rotary_factor", "rope_local_base_freq"}
NEEDED = "minimax-m2"
# A tokenizer that needs code of its own, in whose place mlx_lm.convert gets another one.
FOREIGN = "rwkv7"


def as_mlx_lm_needs_it(folder: Path, copy: Path, folder_of: Maker) -> Path:
    """The folder, or a copy that mlx_lm.convert reads: its config states a base frequency, or its tokenizer is one of
    transformers' own."""
    if not folder.name.startswith((NEEDED, FOREIGN)):
        return folder
    shutil.copytree(folder, copy)
    if folder.name.startswith(FOREIGN):
        for path in folder_of("llama3-v4").glob("tokenizer*"):
            shutil.copy(path, copy)
        return copy
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({"rope_theta": config["rope_parameters"]["rope_theta"], **config}))
    return copy


@pytest.mark.parametrize("call", CALLS)
def test_the_folder_is_mlx_lms_own(call: str, folder_of: Maker, tmp_path: Path) -> None:
    name, arguments, options = CALLS[call]
    source = as_mlx_lm_needs_it(folder_of(name), tmp_path / "source", folder_of)
    want = theirs(source, tmp_path / "theirs", arguments)
    weighbridge.convert(source, tmp_path / "ours", to="mlx", **options)
    found, expected = loaded(tmp_path / "ours"), loaded(want)
    assert sorted(found) == sorted(expected)
    assert [n for n in expected if found[n] != expected[n]] == []
    for file in ("config.json", "model.safetensors.index.json"):
        found_, wanted_ = (json.loads((folder / file).read_text()) for folder in (tmp_path / "ours", want))
        if "index" in file:
            wanted_["metadata"]["total_parameters"] += UNCOUNTED.get(call, 0)
        for chosen in (wanted_.get("quantization", {}), wanted_.get("quantization_config", {})):
            # RWKV 7's class names the bits alone
            chosen |= {module: {"group_size": 64} | how for module, how in chosen.items() if isinstance(how, dict)}
        assert {k: v for k, v in found_.items() if k in wanted_ or k not in OLD_WORDS} == wanted_, (
            file
        )  # of a recipe the modules may stand in another order


def test_mlx_lm_runs_it(folder_of: Maker, tmp_path: Path) -> None:
    import mlx.core as mx
    import mlx_lm

    weighbridge.convert(folder_of("llama3-v4"), tmp_path / "ours", to="mlx", q_bits=8, q_group_size=32)
    model, _ = mlx_lm.load(str(tmp_path / "ours"))
    ids = probe_of("llama3-v4")
    found = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    want = models.logits(folder_of("llama3-v4"), ids)
    assert np.mean((found - want) ** 2) / np.var(want) < 0.01


@pytest.mark.costly
@pytest.mark.parametrize("tied", [False, True])
def test_the_multipliers_of_a_falcon_h1_are_in_its_weights(tied: bool, tmp_path: Path) -> None:
    """mlx-lm's own conversion leaves them out of v, and one of them out of k."""
    from mlx_lm.utils import load_model

    case = CASES["falcon-h1"]
    source = models.build(replace(case, options={**case.options, "tie_word_embeddings": tied}), tmp_path / "hf")
    weighbridge.convert(source, tmp_path / "ours", to="mlx")
    theirs(source, tmp_path / "theirs", {})
    ids = probe_of("falcon-h1")
    want = models.logits(source, ids)
    errors = [models.relative_error(_answers(load_model(tmp_path / n)[0], ids), want) for n in ("ours", "theirs")]
    assert errors[0] < 1e-4
    assert errors[1] > 0.01
    weighbridge.convert(tmp_path / "ours", tmp_path / "back", to="hf")
    assert models.relative_error(models.logits(tmp_path / "back", ids), want) < 1e-4


def test_multipliers_of_a_quantized_falcon_h1_leave_its_codes_alone(folder_of: Maker, tmp_path: Path) -> None:
    weighbridge.convert(folder_of("falcon-h1"), tmp_path / "mlx", to="mlx", dtype="f16", q_bits=4, q_group_size=32)
    with weighbridge.plan_convert(tmp_path / "mlx", tmp_path / "a.gguf", inexact="refuse", tokenizer=False) as plan:
        assert {move.kind for move in plan.moves} == {"exact"}


def _answers(model: Any, ids: tuple[int, ...]) -> Any:
    import mlx.core as mx

    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def test_groups_that_mlx_lm_normalizes_as_one_are_refused(folder_of: Maker, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="mamba_n_groups = 2 "):
        weighbridge.plan_convert(folder_of("falcon-h1-norm"), tmp_path / "x", to="mlx")


def odd(target: Path, full: list[int]) -> Path:
    """A Qwen3-Next in which these of its layers attend to all tokens; its config says so by `layer_types` alone."""
    kinds = ["full_attention" if i in full else "linear_attention" for i in range(4)]
    case = CASES["qwen3next"]
    options = {**case.options, "num_hidden_layers": 4, "layer_types": kinds}
    return models.build(replace(case, options=options, said={}), target)


@pytest.mark.costly
@pytest.mark.parametrize("full", [[1, 3], [2]])
def test_a_period_of_layers_is_said_as_mlx_lm_reads_it(full: list[int], tmp_path: Path) -> None:
    import mlx.core as mx
    import mlx_lm

    source = odd(tmp_path / "hf", full)
    weighbridge.convert(source, tmp_path / "mlx", to="mlx")
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["full_attention_interval"] == full[0] + 1
    model, _ = mlx_lm.load(str(tmp_path / "mlx"))
    ids = probe_of("qwen3next")
    found = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    assert models.relative_error(found, models.logits(source, ids)) < 2e-3


@pytest.mark.parametrize("full", [[0, 3], [1, 2], [], [0]])
def test_layers_of_no_period_are_refused(full: list[int], tmp_path: Path) -> None:
    told = f"layers {', '.join(map(str, full))}" if full else "none"
    with pytest.raises(UnsupportedError, match=f"full_attention in every n-th layer, this model in {told} of 4"):
        weighbridge.plan_convert(odd(tmp_path / "hf", full), tmp_path / "mlx", to="mlx")


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
@pytest.mark.parametrize("source", ["hf", "gguf"])
def test_mlx_lm_runs_what_writes_of_a_qwen35(name: str, source: str, folder_of: Maker, tmp_path: Path) -> None:
    """mlx-lm knows it by the name of the model that sees; mlx_lm.convert refuses it."""
    import mlx.core as mx
    import mlx_lm

    folder, ids = folder_of(name), probe_of(name)
    made = ours.to_gguf(folder, tmp_path / "a.gguf", "f32", pre=CASES[name].pre) if source == "gguf" else folder
    weighbridge.convert(made, tmp_path / "ours", to="mlx", dtype="f32")
    model, _ = mlx_lm.load(str(tmp_path / "ours"))
    found = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    want = models.logits(folder, ids)
    assert np.mean((found - want) ** 2) / np.var(want) < 1e-6
    with weighbridge.open(tmp_path / "ours", names="canonical") as a, weighbridge.open(made, names="canonical") as b:
        assert sorted(a) == sorted(b)


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", ["apertus", "gptj", "gemma4-experts", "exaone-moe", "mimo2", "kimi-linear", "kimi-k3", "rwkv7"]
)
def test_mlx_lm_runs_what_comes_from_a_gguf(name: str, folder_of: Maker, tmp_path: Path) -> None:
    """The numbers of Apertus' activations come out of keys, as scalars; GPT-J's pairs are neighbours again; that
    a Gemma 4 caps no logits is said."""
    import mlx.core as mx
    import mlx_lm

    folder, ids = folder_of(name), probe_of(name)
    made = ours.to_gguf(folder, tmp_path / "a.gguf", "f32", pre=CASES[name].pre)
    weighbridge.convert(made, tmp_path / "ours", to="mlx", dtype="f32")
    model, _ = mlx_lm.utils.load_model(tmp_path / "ours")
    found = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    want = models.logits(folder, ids)
    assert np.mean((found - want) ** 2) / np.var(want) < 1e-6


@pytest.mark.costly
def test_mlx_lm_runs_a_config_that_speaks_layer_by_layer(folder_of: Maker, tmp_path: Path) -> None:
    """Of a Gemma 4 as transformers 5.23 writes it mlx-lm would take its own widths of heads."""
    import mlx.core as mx
    import mlx_lm

    folder, ids = folder_of("gemma4"), probe_of("gemma4")
    assert "per_layer_config" in json.loads((folder / "config.json").read_text())
    weighbridge.convert(folder, tmp_path / "ours", to="mlx", dtype="f32")
    model, _ = mlx_lm.load(str(tmp_path / "ours"))
    found = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    want = models.logits(folder, ids)
    assert np.mean((found - want) ** 2) / np.var(want) < 1e-6


@pytest.mark.parametrize("name", ["apertus", "mamba2"])
def test_a_folder_of_names_that_are_the_same_is_known_by_its_shapes(
    name: str, folder_of: Maker, tmp_path: Path
) -> None:
    weighbridge.convert(folder_of(name), tmp_path / "mlx", to="mlx")
    pre = CASES[name].pre
    files = [
        ours.to_gguf(folder, tmp_path / f"{n}.gguf", "f32", pre=pre)
        for n, folder in enumerate((folder_of(name), tmp_path / "mlx"))
    ]
    assert weighbridge.diff(*files, names="stored").same


def test_routers_of_a_qwen35_are_taken_at_8_bits(folder_of: Maker, tmp_path: Path) -> None:
    """As mlx_lm's own quant_predicate has it, and mlx_lm loads that."""
    import mlx_lm

    weighbridge.convert(folder_of("qwen35moe"), tmp_path / "ours", to="mlx", q_bits=4, q_group_size=32)
    told = json.loads((tmp_path / "ours" / "config.json").read_text())["quantization"]
    model, _ = mlx_lm.load(str(tmp_path / "ours"))
    modules: Any = dict(model.named_modules())
    apart = {name: (q["group_size"], q["bits"]) for name, q in told.items() if isinstance(q, dict)}
    want = {
        n
        for n in modules
        if (model.language_model.quant_predicate(n, None)) is not True and hasattr(modules[n], "bits")
    }
    assert apart == dict.fromkeys(want, (64, 8))
    assert {modules[name].bits for name in want} == {8}


@pytest.mark.parametrize("ftype", ["q8_0"])
def test_a_quantized_gguf_keeps_its_values(ftype: str, folder_of: Maker, tmp_path: Path) -> None:
    """GGUF -> MLX: the floats of MLX's folder are those of the GGUF's blocks, and its logits those of the same
    floats."""
    gguf = ours.to_gguf(folder_of("llama3-v4"), tmp_path / "q.gguf", ftype, pre=CASES["llama3-v4"].pre)
    plan = weighbridge.plan_convert(gguf, tmp_path / "mlx", to="mlx", inexact="refuse")
    assert {m.kind for m in plan.moves} == {"exact"}
    weighbridge.convert(gguf, tmp_path / "mlx", to="mlx", inexact="refuse")
    with weighbridge.open(gguf, names="canonical") as a, weighbridge.open(tmp_path / "mlx", names="canonical") as b:
        assert sorted(a) == sorted(b)
        for name in a:
            np.testing.assert_array_equal(b[name].numpy(dtype="f32"), a[name].numpy(dtype="f32"), err_msg=name)


def test_an_mlx_folder_again_is_copied(folder_of: Maker, tmp_path: Path) -> None:
    once = models.quantize_mlx(folder_of("llama3-v4"), tmp_path / "once", bits=4, group=32)
    weighbridge.convert(once, tmp_path / "twice", to="mlx")
    assert loaded(tmp_path / "twice") == loaded(once)
    with pytest.raises(RefusedError, match="quantized again"):
        weighbridge.plan_convert(once, tmp_path / "x", to="mlx", q_bits=2)


@pytest.mark.parametrize(
    "options",
    [
        {"q_mode": "fp4"},
        {"q_bits": 7},
        {"q_bits": 4, "q_group_size": 16},
        {"q_mode": "mxfp4", "q_bits": 8},
        {"q_mode": "mxfp4", "recipe": "mixed_3_6"},
        {"recipe": "mixed_1_2"},
        {"dtype": "q8_0"},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], folder_of: Maker, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        weighbridge.plan_convert(folder_of("llama3-v4"), tmp_path / "x", to="mlx", **options)
