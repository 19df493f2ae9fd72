"""Names of image and video models, single file and diffusers: judged by diffusers' own conversion functions."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.models.diffusion import names
from weighbridge.tensors.nodes import as_node, const

torch = pytest.importorskip("torch")
FOLDER = resources.files("weighbridge.models.diffusion") / "names"
TABLES = sorted(path.name.removesuffix(".toml") for path in FOLDER.iterdir() if path.name.endswith(".toml"))


def raw(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def judged(name: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors as diffusers converts them."""
    return pictures.DIFFUSERS[name](tensors)


def nodes(tensors: dict[str, Any]) -> dict[str, Any]:
    from weighbridge.base.dtypes import F32

    return {name: const(t.numpy(), F32) for name, t in tensors.items()}


def array(node: Any) -> Any:
    plain = as_node(node)
    data = plain.read(0, plain.spec.rows)
    return torch.frombuffer(bytearray(data.tobytes()), dtype=torch.float32).reshape(plain.spec.shape)


def convicts(known: names.NameTable, name: str) -> str | None:
    """What differs from diffusers, or isn't the same there and back."""
    tensors = pictures.values(pictures.MODELS[name]())
    expected = judged(name, dict(tensors))
    try:
        renamed = names.to_diffusers(known, nodes(tensors))
        back = names.to_original(known, renamed.tensors)
    except (FormatError, UsageError, UnsupportedError) as error:
        return error.message
    if renamed.unknown or back.unknown:
        return f"unknown: {(*renamed.unknown, *back.unknown)[0]}"
    for one, other, what in ((renamed.tensors, expected, "diffusers"), (back.tensors, tensors, "back")):
        if set(one) != set(other):
            return f"{what}: {sorted(set(one) ^ set(other))[0]}"
        for key, node in one.items():
            if tuple(node.spec.shape) != tuple(other[key].shape) or not torch.equal(
                array(node), other[key].contiguous()
            ):
                return f"{what}: {key}"
    return None


@pytest.mark.parametrize("name", TABLES)
def test_names_and_values_are_those_of_diffusers(name: str) -> None:
    known = names.table(name)
    assert known is not None
    assert convicts(known, name) is None


def faults() -> Iterator[tuple[str, str, Callable[[dict[str, Any]], None]]]:
    for name in TABLES:
        table = raw(name)
        for section in ("modules", "tensors"):
            for key, value in table.get(section, {}).items():
                yield name, f"no {key}", partial(_change, section, key, None)
                yield name, f"name of {key}", partial(_change, section, key, _other)
                if isinstance(value, list):
                    yield name, f"order of {key}", partial(_change, section, key, lambda names: names[::-1])
                for flag in ("swap", "pointwise", "transposed"):
                    if isinstance(value, dict) and flag in value:
                        yield name, f"{flag} of {key}", partial(_change, section, key, lambda row: {"to": row["to"]})


def _change(section: str, key: str, change: Callable[[Any], Any] | None, table: dict[str, Any]) -> None:
    """Changes a row, or takes it away."""
    value = table[section].pop(key)
    if change is not None:
        table[section][key] = change(value)


def _other(value: Any) -> Any:
    """A wrong name in diffusers."""
    if isinstance(value, str):
        return f"x.{value}"
    if isinstance(value, list):
        return [f"x.{value[0]}", *value[1:]]
    return {**value, "to": _other(value["to"])}


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "what", "fault"), [pytest.param(*f, id=f"{f[0]}: {f[1]}") for f in faults()])
def test_every_row_is_seen(name: str, what: str, fault: Callable[[dict[str, Any]], None]) -> None:
    table = copy.deepcopy(raw(name))
    fault(table)
    assert convicts(names.build_table(name, table), name) is not None, what


# ---- the command ----


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_there_and_back_by_the_command(tmp_path: Path, prefix: str) -> None:
    load = pytest.importorskip("safetensors.torch").load_file
    tensors = pictures.values(pictures.flux(), "bfloat16")
    path = pictures.save(tmp_path / "flux.safetensors", {prefix + name: t for name, t in tensors.items()})
    wb.rename(path, tmp_path / "diffusers.safetensors", to_names="diffusers")
    wb.rename(tmp_path / "diffusers.safetensors", tmp_path / "back.safetensors", to_names="original")
    for file, expected in (("back", tensors), ("diffusers", judged("flux", dict(tensors)))):
        result = load(tmp_path / f"{file}.safetensors")
        assert set(result) == set(expected)
        assert all(torch.equal(result[name], expected[name]) for name in result)
    wb.convert(path, tmp_path / "a.gguf", dtype="q8_0")
    wb.convert(tmp_path / "diffusers.safetensors", tmp_path / "b.gguf", dtype="q8_0")
    one, other = (pictures.comfy_load(tmp_path / f"{name}.gguf")[1] for name in "ab")
    assert set(one) == set(other)
    assert all((one[n].kind, one[n].data.tobytes()) == (other[n].kind, other[n].data.tobytes()) for n in one)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    tensors = judged("flux", pictures.values(pictures.flux()))
    del tensors["transformer_blocks.1.attn.to_k.weight"]
    path = pictures.save(tmp_path / "d.safetensors", {name: t.contiguous() for name, t in tensors.items()})
    with pytest.raises(FormatError, match=r"transformer_blocks\.1\.attn\.to_k\.weight is missing"):
        wb.convert(path, tmp_path / "flux.gguf")
    assert not (tmp_path / "flux.gguf").exists()


def test_unknown_tensors_are_listed(tmp_path: Path) -> None:
    tensors = pictures.values(pictures.flux() | {"new_part.weight": (4, 4)})
    path = pictures.save(tmp_path / "flux.safetensors", tensors)
    plan = wb.plan_rename(path, tmp_path / "d.safetensors", to_names="diffusers")
    assert plan.report.dropped == ("new_part.weight",)


@pytest.mark.parametrize("dialect", ["hf", "original"])
def test_names_that_the_model_lacks_or_has_are_refused(tmp_path: Path, dialect: str) -> None:
    path = pictures.save(tmp_path / "flux.safetensors", pictures.values(pictures.flux()))
    with pytest.raises(UsageError, match=dialect):
        wb.rename(path, tmp_path / "d.safetensors", to_names=dialect)
