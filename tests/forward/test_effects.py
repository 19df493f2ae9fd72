"""Types that are chosen by their effect on a text: the measured divergences, the fit, the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forward.texts import CTX, TEXT
from tests.oracles import models

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.conversion.options import QuantizeOptions
from weighbridge.conversion.quantize.inputs import prepare
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.effects import RoundedTensors, fitted, groups
from weighbridge.forward.rounding.input_errors import InputErrors
from weighbridge.forward.run import ForwardPass
from weighbridge.models.open import open_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("effects")
    (here / "text.txt").write_text(TEXT)
    for name in ("llama", "qwen2moe", "mamba"):
        models.build(models.CASES[name], here / name)
    latent = models.CASES["deepseek-v3"]
    wide = {"qk_nope_head_dim": 32, "v_head_dim": 32}  # rows of the matrices of heads are whole blocks
    models.build(replace(latent, options=latent.options | wide), here / "deepseek-v3")
    return here


def _text(place: Path, **more: Any) -> dict[str, Any]:
    return {"text": [str(place / "text.txt")], "context": CTX, "chunks": 3, **more}


# -- groups and gains ------------------------------------------------------------------------------------------------


def test_groups_are_roles_and_layers() -> None:
    names = ["token_embd.weight", *(f"blk.{n}.{r}.weight" for n in range(12) for r in ("attn_q", "ffn_up"))]
    found = groups(dict.fromkeys(names))
    assert ("token_embd.weight",) in found
    assert tuple(f"blk.{n}.attn_q.weight" for n in range(12)) in found
    assert ("blk.1.attn_q.weight", "blk.1.ffn_up.weight") in found
    assert len(found) == 3 + 12


def test_gains_of_role_and_layer_are_found_again() -> None:
    random = np.random.default_rng(1)
    roles, layers = random.uniform(0.1, 3, 4), random.uniform(0.1, 3, 6)
    errors = {f"blk.{n}.r{r}.weight": float(random.uniform(0.005, 0.02)) for n in range(6) for r in range(4)}
    true = {f"blk.{n}.r{r}.weight": float(roles[r] * layers[n]) for n in range(6) for r in range(4)}
    changes = {group: sum(true[n] * errors[n] for n in group) for group in groups(errors)}
    assert fitted(errors, changes) == {name: pytest.approx(gain, rel=1e-6) for name, gain in true.items()}


def test_a_group_without_an_effect() -> None:
    errors = {"blk.0.a.weight": 0.01, "blk.0.b.weight": 0.0}
    gains = fitted(errors, {("blk.0.a.weight",): 0.0, ("blk.0.b.weight",): 0.1})
    assert 0 <= gains["blk.0.a.weight"] < 1e-6
    assert gains["blk.0.b.weight"] == 1.0


@pytest.mark.parametrize("name", ["llama", "qwen2moe", "deepseek-v3"])
def test_rounded_tensors_are_those_of_a_file(place: Path, tmp_path: Path, name: str) -> None:
    """A pass with rounded tensors equals one over the file with these types, also with an importance matrix."""
    matrix, out = tmp_path / "imatrix.gguf", tmp_path / "out.gguf"
    wb.imatrix(place / name, matrix, **_text(place))
    wb.quantize(place / name, out, "Q8_0", imatrix=matrix, tensor_type=["attn_k=q4_0", "ffn_down=q5_0", "ffn_gate=f32"])
    ids = np.arange(2 * CTX).reshape(2, CTX) % 50
    with open_model(place / name) as model, open_model(out) as file:
        inputs = prepare(model, None, QuantizeOptions(imatrix=matrix))
        rounding = RoundedTensors(model, inputs)
        rounding.types = {
            row.name: BY_NAME[row.dtype.name] for row in file.index if row.dtype.name not in ("F32", "BF16", "F16")
        }
        one, other = ComputedModel(model), ComputedModel(file)
        for found, expected in zip(_logits(one, ids, rounding=rounding), _logits(other, ids), strict=True):
            assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
        assert {*rounding.types} <= rounding.used


def _logits(computed: ComputedModel, ids: Any, **more: Any) -> Any:
    forward = ForwardPass(computed.provider, computed.graph, **more)
    with forward.hidden(ids) as states:
        return list(forward.logits(states))


# -- the command -----------------------------------------------------------------------------------------------------


def test_effects_choose_other_types_at_the_same_size(place: Path) -> None:
    plain, chosen = (wb.plan_quantize(place / "llama", "out.gguf", target_bpw=9, **more) for more in ({}, _text(place)))
    assert {r.name: r.target for r in plain.rows} != {r.name: r.target for r in chosen.rows}
    assert chosen.bits <= 9
    again = wb.plan_quantize(place / "llama", "out.gguf", target_bpw=9, **_text(place))
    assert again.rows == chosen.rows
    assert any("expected KL divergence" in note for note in chosen.notes)
    assert plain.expected == ()
    assert all(row.error is not None for row in plain.rows if row.source != row.target)
    described = json.loads(json.dumps(chosen.describe(), default=str))["expected"]
    assert [(e["bytes"], e["kl"]) for e in described] == list(chosen.expected)
    assert f"nats with {described[0]['bytes']:,} bytes" in " ".join(chosen.notes)


def test_the_expected_divergence_is_about_the_measured_one(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    plan = wb.plan_quantize(place / "llama", out, target_bpw=8, **_text(place))
    expected = next(float(note.split()[3]) for note in plan.notes if note.startswith("expected KL"))
    plan.run()
    measured = wb.quality(place / "llama", out, **_text(place)).kl
    assert measured is not None
    assert expected == pytest.approx(measured.value, rel=0.5, abs=1e-4)


@pytest.mark.parametrize("options", [{"scheme": "w4a16"}, {"scheme": "awq"}, {"to": "mlx", "q_bits": 4}])
def test_a_text_rounds_latent_attention_better(place: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """The joint up-projection of a folder by the latent vectors, the matrices of heads of MLX by their own inputs."""
    nearest, by_text = (
        wb.convert(place / "deepseek-v3", tmp_path / name, q_group_size=32, **options, **text).target
        for name, text in (("nearest", {}), ("text", _text(place)))
    )
    before, after = (wb.quality(place / "deepseek-v3", one, **_text(place)).kl for one in (nearest, by_text))
    assert before is not None
    assert after is not None
    assert after.value < 0.8 * before.value


def test_rounded_inputs_count(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix whose inputs lose much in a type's blocks gets a type that doesn't round them."""

    def types() -> dict[str, str]:
        plan = wb.plan_quantize(place / "llama", "out.gguf", target_bpw=9, **_text(place))
        return {row.name: row.target for row in plan.rows if "attn_v" in row.name}

    assert set(types().values()) & {"F16", "F32"} == set()
    names = dict.fromkeys(types(), 0.5)
    monkeypatch.setattr(InputErrors, "relative", lambda _, block: names if block == 32 else {})
    assert set(types().values()) == {"F16"}


def test_an_importance_matrix_is_made(place: Path, tmp_path: Path) -> None:
    matrix, by_file, auto = tmp_path / "imatrix.gguf", tmp_path / "a.gguf", tmp_path / "b.gguf"
    wb.imatrix(place / "llama", matrix, **_text(place))
    wb.quantize(place / "llama", by_file, "Q4_0", imatrix=matrix)
    wb.quantize(place / "llama", auto, "Q4_0", imatrix="auto", **_text(place))
    with wb.open(by_file) as a, wb.open(auto) as b:
        assert all(np.array_equal(a[name].raw(), b[name].raw()) for name in a)
        assert b.metadata["quantize.imatrix.file"] == "auto"
        assert b.metadata["quantize.imatrix.dataset"] == "text.txt"
    report = wb.compare_quantized(place / "llama", auto, imatrix="auto", **_text(place))
    assert any(row.weighted is not None for row in report.tensors)


def test_a_matrix_for_a_size_has_the_output_matrix(place: Path) -> None:
    def weighted(**more: Any) -> set[str]:
        plan = wb.plan_quantize(place / "llama", "out.gguf", imatrix="auto", **_text(place), **more)
        return {row.name for row in plan.rows if row.weighted}

    sized, named = weighted(target_bpw=6), weighted(ftype="Q4_0")
    assert "output.weight" in sized
    assert "output.weight" not in named
    assert named


def test_a_saved_choice_gives_the_same_bytes(place: Path, tmp_path: Path) -> None:
    recipe, first, again = tmp_path / "types.txt", tmp_path / "a.gguf", tmp_path / "b.gguf"
    text = ["--text", str(place / "text.txt"), "--context", str(CTX), "--chunks", "3"]
    llama = str(place / "llama")
    assert main(["quantize", llama, str(first), "--target-bpw", "8", "--save-recipe", str(recipe), *text]) == 0
    assert main(["quantize", llama, str(again), "--recipe", str(recipe)]) == 0
    assert again.read_bytes() == first.read_bytes()
    with wb.open(first) as a:
        assert len({tensor.dtype for tensor in a.values()}) > 2


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "auto without a text": ({"ftype": "Q4_0", "imatrix": "auto"}, UsageError, "of a text"),
    "a text that nothing uses": ({"ftype": "Q4_0", "text": True}, UsageError, "text applies to"),
    "chunks without a text": ({"target_bpw": 9, "chunks": 3}, UsageError, "chunks applies to"),
    "pruned layers": ({"target_bpw": 9, "text": True, "prune_layers": [0]}, UsageError, "prune_layers"),
    "a family that isn't computed": ({"target_bpw": 9, "text": True, "src": "mamba"}, UnsupportedError, "mamba"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(place: Path, case: str) -> None:
    given, error, words = REFUSED[case]
    options = dict(given)
    if options.pop("text", False):
        options |= _text(place)
    with pytest.raises(error, match=words):
        wb.plan_quantize(place / options.pop("src", "llama"), "out.gguf", options.pop("ftype", ""), **options)


def test_a_size_for_the_best_of_each(place: Path) -> None:
    plan = wb.plan_quantize(place / "llama", "out.gguf", target_size=1 << 30)
    assert any("aren't used" in note for note in plan.notes)
