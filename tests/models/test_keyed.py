"""Roles that a GGUF has in keys: the four numbers of each of Apertus' activations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden
from tests.models.record_families import values
from tests.oracles.ours import report_of

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.kv_tensors import of_graph
from weighbridge.models.arch.naming import MappingError
from weighbridge.models.arch.registry import build_family, families
from weighbridge.models.model import open_weights
from weighbridge.reports import arch

FOUR = ("alpha_n", "alpha_p", "beta", "eps")
ACTIVATION = "model.layers.{}.mlp.act_fn.{}"


def folder(parent: Path, model: str = "apertus", other: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """The recorded model as a folder; `other`: tensors in the place of its own, None: without."""
    recorded = golden()[model]
    arrays = {n: values(n, tuple(shape)) for n, shape in recorded["hf"].items()} | dict(other)
    out = parent / "hf"
    out.mkdir()
    save_file({n: a for n, a in arrays.items() if a is not None}, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(recorded["config"]))
    return out


@pytest.fixture(scope="module")
def apertus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    parent = tmp_path_factory.mktemp("apertus")
    source = folder(parent)
    wb.convert(source, parent / "a.gguf", dtype="f32", tokenizer=False)
    return source, parent / "a.gguf"


def edited(gguf: Path, target: Path, **keys: KV | None) -> Path:
    """The GGUF with other keys of the activation; None: without."""
    from weighbridge.containers.gguf.values import kvs
    from weighbridge.containers.gguf.write import layout

    with open_weights(gguf) as model:
        found = {**kvs(model.metadata), **{f"xielu.{k}": v for k, v in keys.items()}}
        tensors = [(e.name, e.spec) for e in model.index]
        made = layout(tensors, {k: v for k, v in found.items() if v is not None})
        with target.open("wb") as file:
            file.truncate(made.size)
            for offset, piece in made.pieces:
                file.seek(offset)
                file.write(piece)
            for (name, _), slot in zip(tensors, made.slots, strict=True):
                node = model.stored[name]
                file.seek(slot.offset)
                file.write(node.read(0, node.spec.rows).tobytes())
    return target


def test_there_and_back_each_layer_has_its_own(apertus: tuple[Path, Path], tmp_path: Path) -> None:
    source, gguf = apertus
    with wb.open(gguf) as model:
        assert not any("xielu" in name or "act_fn" in name for name in model)
        for name in FOUR:
            stored = [float(values(ACTIVATION.format(i, name), ()).reshape(())) for i in (0, 1)]
            assert [*model.metadata[f"xielu.{name}"]] == stored
    wb.convert(gguf, tmp_path / "hf", tokenizer=False)
    before, after = (load_file(f / "model.safetensors") for f in (source, tmp_path / "hf"))
    assert {n: (a.shape, a.tobytes()) for n, a in after.items()} == {
        n: (a.shape, a.tobytes()) for n, a in before.items()
    }


def test_mlx_has_scalars_and_is_told_from_a_folder_of_the_same_names(
    apertus: tuple[Path, Path], tmp_path: Path
) -> None:
    source, gguf = apertus
    wb.convert(gguf, tmp_path / "mlx", to="mlx", tokenizer=False)
    held = load_file(tmp_path / "mlx" / "model.safetensors")
    assert {held[ACTIVATION.format(i, name)].shape for i in (0, 1) for name in FOUR} == {()}
    with open_weights(tmp_path / "mlx") as model:
        assert model.dialect == "mlx"
    wb.convert(tmp_path / "mlx", tmp_path / "b.gguf", dtype="f32", tokenizer=False, name="x")
    with wb.open(gguf) as one, wb.open(tmp_path / "b.gguf") as other:
        for name in FOUR:
            assert [*one.metadata[f"xielu.{name}"]] == [*other.metadata[f"xielu.{name}"]]
    assert wb.diff(source, tmp_path / "mlx", names="canonical").same


def test_one_number_is_that_of_every_layer(apertus: tuple[Path, Path], tmp_path: Path) -> None:
    one = edited(apertus[1], tmp_path / "one.gguf", beta=KV("f32", 0.25))
    wb.convert(one, tmp_path / "hf", tokenizer=False)
    held = load_file(tmp_path / "hf" / "model.safetensors")
    assert [held[ACTIVATION.format(i, "beta")] for i in (0, 1)] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"alpha_p": None}, "1 missing: xielu.alpha_p"),
        ({"alpha_p": KV("arr[f32]", [1.0])}, r"xielu.alpha_p.*needs a number per layer.*2.*1"),
        ({"eps": KV("arr[f32]", [1.0] * 3)}, r"xielu.eps.*needs a number per layer.*2.*3"),
        ({"beta": KV("arr[str]", ["a", "b"])}, r"xielu.beta.*is not a list of numbers"),
        ({"beta": KV("str", "ab")}, r"xielu.beta.*is not a list of numbers"),
        ({"beta": KV("arr[bool]", [True, False])}, r"xielu.beta.*is not a list of numbers"),
    ],
)
def test_a_gguf_without_a_number_is_refused(
    keys: dict[str, KV | None], words: str, apertus: tuple[Path, Path], tmp_path: Path
) -> None:
    broken = edited(apertus[1], tmp_path / "broken.gguf", **keys)
    with pytest.raises(FormatError, match=words):
        wb.convert(broken, tmp_path / "hf", tokenizer=False)
    assert not (tmp_path / "hf").exists()


def test_a_folder_without_one_layer_s_number_is_refused(tmp_path: Path) -> None:
    name = ACTIVATION.format(1, "alpha_p")
    source = folder(tmp_path, other={name: None})
    with pytest.raises(MappingError, match=f"1 missing: {name}"):
        wb.convert(source, tmp_path / "a.gguf", tokenizer=False)
    assert not (tmp_path / "a.gguf").exists()


def test_two_numbers_where_one_belongs_are_a_wrong_shape(tmp_path: Path) -> None:
    name = ACTIVATION.format(1, "eps")
    source = folder(tmp_path, other={name: np.zeros(2, np.float32)})
    with pytest.raises(MappingError, match=rf"{name} is \[2\], expected \[\]"):
        wb.convert(source, tmp_path / "a.gguf", tokenizer=False)


def test_layers_that_are_left_keep_their_numbers(apertus: tuple[Path, Path], tmp_path: Path) -> None:
    wb.slice(apertus[1], tmp_path / "one.gguf", layers="1", renumber=True)
    with wb.open(apertus[1]) as whole, wb.open(tmp_path / "one.gguf") as one:
        assert one.metadata["apertus.block_count"] == 1
        for name in FOUR:
            assert [*one.metadata[f"xielu.{name}"]] == [whole.metadata[f"xielu.{name}"][1]]


def test_they_are_tensors_where_a_gguf_s_tensors_are_named_anew(apertus: tuple[Path, Path], tmp_path: Path) -> None:
    done = report_of(wb.plan_rename(apertus[1], tmp_path / "a.safetensors", to_names="hf"))
    held = load_file(tmp_path / "a.safetensors")
    assert {ACTIVATION.format(i, name) for i in (0, 1) for name in FOUR} <= held.keys()
    assert [r.old for r in done.renamed if "act_fn" in r.new] == [
        (f"xielu.{n}",) for n in (*FOUR[1::-1], *FOUR[2:])
    ] * 2


def test_check_counts_keys_that_are_tensors_elsewhere(apertus: tuple[Path, Path], tmp_path: Path) -> None:
    assert arch.check(apertus[1]).ok
    assert arch.check(edited(apertus[1], tmp_path / "b.gguf", eps=None)).missing == ("xielu.eps",)


def test_they_are_whole_on_every_rank(apertus: tuple[Path, Path], tmp_path: Path) -> None:
    wb.split(apertus[1], tmp_path / "ggufs", tp=2)
    for rank in (tmp_path / "ggufs").glob("*.gguf"):
        with wb.open(rank) as part, wb.open(apertus[1]) as whole:
            assert all([*part.metadata[f"xielu.{n}"]] == [*whole.metadata[f"xielu.{n}"]] for n in FOUR)
    wb.split(apertus[0], tmp_path / "ranks", tp=2)
    held = [load_file(p) for p in sorted((tmp_path / "ranks").glob("*.safetensors"))]
    for name in (ACTIVATION.format(i, n) for i in (0, 1) for n in FOUR):
        assert held[0][name].tobytes() == held[1][name].tobytes() == values(name, ()).tobytes()


def test_a_table_keys_single_numbers_alone() -> None:
    assert families()["apertus"].metadata_names() == {f"xielu.{n}" for n in FOUR} == of_graph("apertus")
    assert not families()["llama"].metadata_names()
    role = {"kind": "state", "shape": "N", "names": {"gguf": "a.b"}, "as_metadata": ["gguf"]}
    one = role | {"shape": "1"}
    for wrong in (role, one | {"names": {"gguf": "a.{l}"}}, one | {"as_metadata": ["mlx"]}):
        with pytest.raises(UsageError, match="shape 1, or a list of integers, and a name without indices"):
            _build(wrong)
    _build(one)


def _build(role: dict[str, Any]) -> None:
    sizes = {symbol: {"hf": [symbol], "gguf": [symbol]} for symbol in "LN"}
    dialects: dict[str, Any] = {"hf": {}, "gguf": {}, "mlx": {}}
    build_family({
        "name": "a", "gguf": "a", "dialect": dialects, "size": sizes, "index": {"l": "L"}, "role": {"a": role},
    })  # fmt: skip
