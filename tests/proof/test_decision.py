"""Decision models: each is known by its files, and its GGUF is the reference converter's byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models import projector_cases
from tests.oracles import gguf_file, models, reference_converter, vocabularies
from tests.oracles.families import CASES, clef
from tests.oracles.llama_loads import Judge
from tests.oracles.reference_converter import Job

import weighbridge as wb
from weighbridge.base.errors import FormatError

torch = pytest.importorskip("torch")

#: Class -> the case that its base model is, and the adapter's rank.
BASES = {
    "OpenJevModel": "qwen35-seeing", "PplxDeciderModel": "qwen35-seeing", "D1Model": "lfm2-vl",
    "LevModel": "qwen35-seeing", "KevModel": "qwen35", "NimbleModel": "qwen35",
    "ModernBertDecisionModel": "modernbert-decision", "D1OmniModel": "d1-omni", "ClefModel": "qwen35-seeing",
}  # fmt: skip
_RANK, _HEAD, _LABELS = 4, 6, [7, 300, 5]
_PRE = {"lfm2-vl": vocabularies.PRE["bpe"]}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


def made(name: str, root: Path) -> tuple[Path, Path | None]:
    """The folder of a decision model; of an adapter that of its base model, and the adapter's."""
    base = models.build(CASES[BASES[name]], root / f"{name}-base")
    if BASES[name] in ("lfm2-vl", "d1-omni"):
        vocabularies.WRITERS["bpe"](base)
    return _MAKERS[name](base)


def _changed(base: Path, **values: Any) -> None:
    path = base / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _openjev(base: Path) -> tuple[Path, None]:
    (base / "helper").mkdir()
    (base / "helper" / "shim.py").write_text("")
    return base, None


def _pplx(base: Path) -> tuple[Path, None]:
    tensors = load_file(base / "model.safetensors")
    width = tensors.pop("lm_head.weight").shape[1]
    save_file({n.removeprefix("model."): t for n, t in tensors.items()}, base / "model.safetensors", {"format": "pt"})
    save_file({"weight": _random(len(_LABELS), width)}, base / "readout.safetensors")
    (base / "decision_config.json").write_text(json.dumps({"temperature": 1.25, "token_ids": _LABELS}))
    return base, None


def _d1(base: Path) -> tuple[Path, None]:
    _changed(base, auto_map={"AutoModel": "modeling_d1.D1Model"})
    return base, None


def _adapter(base: Path) -> Path:
    """A LoRA of two matrices of a layer, next to the base model."""
    folder = base.with_name(f"{base.name}-adapter")
    folder.mkdir()
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 6, "bias": "none", "base_model_name_or_path": "x/base"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["up_proj", "down_proj"]}))
    shapes = {name: tensor.shape for name, tensor in load_file(base / "model.safetensors").items()}
    out: dict[str, np.ndarray] = {}
    for name in (n for n in shapes if n.endswith(("layers.0.mlp.up_proj.weight", "layers.1.mlp.down_proj.weight"))):
        rows, columns = shapes[name]
        start = f"base_model.model.{name.removesuffix('.weight')}"
        out |= {f"{start}.lora_A.weight": _random(_RANK, columns), f"{start}.lora_B.weight": _random(rows, _RANK)}
    assert len(out) == 4
    save_file(out, folder / "adapter_model.safetensors")
    return folder


def _lev(base: Path) -> tuple[Path, Path]:
    folder = _adapter(base)
    (folder / "lev_release.json").write_text("{}")
    temperatures = {"choice:A:small": 1.5, "score:A": 0.75, "noul:A": 2.0, "choice:B": 9.0}
    (folder / "calibration.json").write_text(json.dumps({"temperatures": temperatures}))
    return base, folder


def _kev(base: Path) -> tuple[Path, Path]:
    folder = _adapter(base)
    width = json.loads((base / "config.json").read_text())["hidden_size"]
    head = {f"{part}.weight": torch.tensor(_random(_HEAD, width)) for part in "qk"}
    head |= {f"{part}.bias": torch.tensor(_random(_HEAD)) for part in "qk"}
    torch.save({"head": head, "head_dim": _HEAD, "temperature": 0.625}, folder / "head.pt")
    (folder / "training_config.json").write_text(json.dumps({"args": {"head_dim": _HEAD}}))
    return base, folder


def _nimble(base: Path) -> tuple[Path, Path]:
    folder = _adapter(base)
    (folder / "schema_config.json").write_text(json.dumps({"task": "schema_candidate_classification_v2"}))
    return base, folder


def _laya(base: Path) -> tuple[Path, None]:
    """The config and the tokenizer in folders of their own."""
    (base / "config.json").unlink()
    (base / "tokenizer").mkdir()
    vocabularies.WRITERS["modernbert"](base / "tokenizer")
    return base, None


def _clef(base: Path) -> tuple[Path, None]:
    """A head of one block that routes and two joint ones, 48 wide, and its scalars: one beyond the bound."""
    config = {"routing_layers": 1, "layers": 2, "heads": 4}
    (base / "joint_head_config.json").write_text(json.dumps(config))
    width = json.loads((base / "config.json").read_text())["text_config"]["hidden_size"]
    shapes = clef.head_shapes(width, config["routing_layers"], config["layers"])
    tensors = {name: _random(*shape) if shape else np.float32(len(name) / 4) for name, shape in shapes.items()}
    save_file({name: np.asarray(tensor) for name, tensor in tensors.items()}, base / "joint_head.safetensors")
    return base, None


_MAKERS: dict[str, Any] = {
    "OpenJevModel": _openjev, "PplxDeciderModel": _pplx, "D1Model": _d1, "LevModel": _lev, "KevModel": _kev,
    "NimbleModel": _nimble, "ModernBertDecisionModel": _laya, "D1OmniModel": lambda base: (base, None),
    "ClefModel": _clef,
}  # fmt: skip


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def _ours(name: str, root: Path, target: Path, dtype: str = "f32") -> None:
    base, adapter = made(name, root)
    pre = CASES[BASES[name]].pre or vocabularies.PRE["bpe"]
    wb.convert(base, target, dtype=dtype, pre=pre, lora=[adapter] if adapter else [])


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("name", BASES)
def test_equals_the_reference(name: str, dtype: str, tmp_path: Path, judge: Judge) -> None:
    base, adapter = made(name, tmp_path)
    pre = CASES[BASES[name]].pre or vocabularies.PRE["bpe"]
    wb.convert(base, tmp_path / "ours.gguf", dtype=dtype, pre=pre, lora=[adapter] if adapter else [])
    job = Job(str(adapter or base), str(tmp_path / "theirs.gguf"), dtype, pre, base=str(base) if adapter else None)
    reference_converter.run(job)
    ours, theirs = (gguf_file.read(tmp_path / f"{whose}.gguf") for whose in ("ours", "theirs"))
    for tensor in ("blk.0.ffn_up.weight", "blk.1.ffn_down.weight") if adapter else ():  # sums in another order
        found, expected = ours.tensors.pop(tensor), theirs.tensors.pop(tensor)
        assert (found.type, found.shape) == (expected.type, expected.shape)
        if dtype == "q8_0":
            assert np.mean(found.data != expected.data) < 1e-2
        else:
            assert np.allclose(found.data, expected.data, rtol=1e-3, atol=1e-5 if dtype == "f32" else 2e-3)
    allowed = {"general.name", "general.basename", "general.finetune", "general.size_label"}
    assert gguf_file.differences(ours, theirs, allowed=allowed.__contains__) == []
    assert judge.refusal(tmp_path / "ours.gguf") is None


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("OpenJevModel", {"helper/shim.py": ""}),
        ("ClefModel", {"joint_head_config.json": "{}"}),
        ("PplxDeciderModel", {"decision_config.json": '{"temperature": 1}', "readout.safetensors": ""}),
    ],
)
def test_what_sees_equals_the_references(name: str, files: dict[str, str], tmp_path: Path) -> None:
    """The towers of a decision model are its base model's; pplx-decider's have its processor's sizes besides."""
    folder = projector_cases.write_folder(projector_cases.golden()["qwen3.5"], tmp_path / name)
    path = folder / "preprocessor_config.json"
    sizes = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    for file, text in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    reference_converter.run(Job(str(folder), str(tmp_path / "theirs.gguf"), "f16", flags=("--mmproj",)))
    wb.convert(folder, tmp_path / "ours.gguf", mmproj=True, dtype="f16")
    ours, theirs = (gguf_file.read(tmp_path / f"{whose}.gguf") for whose in ("ours", "theirs"))
    assert gguf_file.differences(ours, theirs) == []
    assert ("clip.vision.image_max_pixels" in ours.fields) == (name == "PplxDeciderModel")


def _of_another_width(folder: Path) -> None:
    config = {"args": {"head_dim": _HEAD}}
    torch.save({"head": {"q.weight": torch.ones(2, 3)}, "head_dim": _HEAD}, folder / "head.pt")
    (folder / "training_config.json").write_text(json.dumps(config))


def _without_its_width(folder: Path) -> None:
    config = {"args": {"head_dim": _HEAD}}
    torch.save({"head": {"q.weight": torch.ones(2, 3)}}, folder / "head.pt")
    (folder / "training_config.json").write_text(json.dumps(config))


def _one_label_more(folder: Path) -> None:
    config = {"temperature": 1.25, "token_ids": [*_LABELS, 9]}
    (folder / "decision_config.json").write_text(json.dumps(config))


def _a_label_twice(folder: Path) -> None:
    config = {"temperature": 1.25, "token_ids": [_LABELS[0], *_LABELS[1:2], _LABELS[0]]}
    (folder / "decision_config.json").write_text(json.dumps(config))


def _a_token_outside(folder: Path) -> None:
    config = {"temperature": 1.25, "token_ids": [*_LABELS[:2], 2**31]}
    (folder / "decision_config.json").write_text(json.dumps(config))


def _a_temperature_of_text(folder: Path) -> None:
    (folder / "decision_config.json").write_text(json.dumps({"temperature": "hot", "token_ids": _LABELS}))


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("KevModel", _of_another_width, "pointer head"),
        ("KevModel", _without_its_width, "head_dim"),
        ("PplxDeciderModel", _one_label_more, "a row for each label"),
        ("PplxDeciderModel", _a_label_twice, "a row for each label"),
        ("PplxDeciderModel", _a_token_outside, "token_ids"),
        ("PplxDeciderModel", _a_temperature_of_text, "temperature"),
    ],
)
def test_files_that_do_not_fit_are_refused(name: str, change: Any, match: str, tmp_path: Path) -> None:
    base, adapter = made(name, tmp_path)
    change(adapter or base)
    pre = CASES[BASES[name]].pre or vocabularies.PRE["bpe"]
    with pytest.raises(FormatError, match=match):
        wb.convert(base, tmp_path / "out.gguf", dtype="f32", pre=pre, lora=[adapter] if adapter else [])
    assert not (tmp_path / "out.gguf").exists()


def test_a_head_of_its_own_file_and_towers_are_written_together(tmp_path: Path) -> None:
    base, _ = made("ClefModel", tmp_path)
    pixels = {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    }
    (base / "preprocessor_config.json").write_text(json.dumps(pixels))
    with wb.plan_convert(base, f"{tmp_path}/out/", to="gguf", with_mmproj=True, pre="qwen2") as plan:
        plan.run()
    one, two = (gguf_file.read(path) for path in sorted((tmp_path / "out").glob("*.gguf")))
    text, towers = (one, two) if "dec.blk.2.attn_q.weight" in one.tensors else (two, one)
    assert {"dec.blk.0.cross_attn_norm_kv.weight", "dec.blk.2.attn_q.weight"} <= text.tensors.keys()
    assert any(name.startswith("v.blk.") for name in towers.tensors)
    assert not any(name.startswith("v.") for name in text.tensors)


def test_a_head_without_its_matrices_is_refused(tmp_path: Path) -> None:
    base, _ = made("ClefModel", tmp_path)
    save_file({"residual_gate": np.ones(1, np.float32)}, base / "joint_head.safetensors")
    with pytest.raises(FormatError, match="memory_projection"):
        wb.convert(base, tmp_path / "m.gguf", pre="qwen2")
    (base / "joint_head.safetensors").unlink()
    with pytest.raises(FormatError, match=r"a ClefModel needs joint_head\.safetensors"):
        wb.convert(base, tmp_path / "m.gguf", pre="qwen2")
