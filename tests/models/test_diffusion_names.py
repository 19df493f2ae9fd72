"""Names of image and video models, single file and diffusers: judged by diffusers' own conversion functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import picture_vaes, pictures

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.models.diffusion import names
from weighbridge.models.diffusion.model import diffusion_model
from weighbridge.tensors.nodes import as_node, const

torch = pytest.importorskip("torch")
TABLES = names.documents()
PAIRS = [(table, model) for table, raw in TABLES.items() for model in raw["models"]]


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


@pytest.mark.costly
@pytest.mark.parametrize(("table", "model"), PAIRS)
def test_names_and_values_are_those_of_diffusers(table: str, model: str) -> None:
    known = names.table(model)
    assert known is not None
    assert convicts(known, model) is None
    assert model in pictures.MODELS


Change = Callable[[dict[str, Any]], None]


def faults() -> Iterator[tuple[str, str, Change]]:
    for table, raw in TABLES.items():
        sections = ["modules", "tensors", *(f"parts.{name}" for name in raw.get("parts", {}))]
        for section in sections:
            for key, value in _at(raw, section).items():
                yield table, f"no {key} in {section}", partial(_change, section, key, None)
                yield table, f"name of {key} in {section}", partial(_change, section, key, _other)
                if isinstance(value, list):
                    yield table, f"order of {key}", partial(_change, section, key, lambda names: names[::-1])
                for flag in ("swap", "pointwise", "transposed", "grouped"):
                    if isinstance(value, dict) and flag in value:
                        yield table, f"{flag} of {key}", partial(_change, section, key, partial(_without, flag))
        for letter in raw.get("counts", {}):
            yield table, f"count {letter}", partial(_change, "counts", letter, lambda count: count - 1)


def _at(raw: Mapping[str, Any], section: str) -> Any:
    first, _, rest = section.partition(".")
    return raw.get(first, {}).get(rest, {}) if rest else raw.get(first, {})


def _without(flag: str, row: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column != flag}


def _change(section: str, key: str, change: Callable[[Any], Any] | None, table: dict[str, Any]) -> None:
    """Changes a row, or takes it away."""
    rows = _at(table, section)
    value = rows.pop(key)
    if change is not None:
        rows[key] = change(value)


def _other(value: Any) -> Any:
    """A wrong name in diffusers."""
    if isinstance(value, str):
        return f"x.{value}"
    if isinstance(value, list):
        return [f"x.{value[0]}", *value[1:]]
    return {**value, "to": _other(value["to"])}


@pytest.mark.mutation
@pytest.mark.parametrize(("table", "what", "fault"), [pytest.param(*f, id=f"{f[0]}: {f[1]}") for f in faults()])
def test_every_row_is_seen(table: str, what: str, fault: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = copy.deepcopy(dict(TABLES))
    fault(damaged[table])  # type: ignore[arg-type]
    monkeypatch.setattr(names, "documents", lambda: damaged)
    known = names.build_table(damaged[table])
    assert any(convicts(known, model) is not None for model in TABLES[table]["models"]), what


# ---- the command ----


VAES = ("vae", "wan-vae", *picture_vaes.MODELS)
PREFIXES = {
    **dict.fromkeys(VAES, "vae."), "vae": "first_stage_model.", "open-clip": "conditioner.embedders.1.model.",
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("model", [model for _, model in PAIRS])
def test_there_and_back_by_the_command(tmp_path: Path, model: str, prefixed: bool) -> None:
    """The names alone say which model it is, in both dialects; a GGUF of either is the same."""
    load = pytest.importorskip("safetensors.torch").load_file
    tensors = pictures.values(pictures.MODELS[model](), "bfloat16")
    prefix = PREFIXES.get(model, "model.diffusion_model.") if prefixed else ""
    path = pictures.save(tmp_path / "single.safetensors", {prefix + name: t for name, t in tensors.items()})
    wb.rename(path, tmp_path / "diffusers.safetensors", to_names="diffusers")
    if model == "qwen-image":  # the names of both are the same
        with pytest.raises(UsageError, match="already have original names"):
            wb.rename(tmp_path / "diffusers.safetensors", tmp_path / "back.safetensors", to_names="original")
        (tmp_path / "back.safetensors").hardlink_to(tmp_path / "diffusers.safetensors")
    else:
        wb.rename(tmp_path / "diffusers.safetensors", tmp_path / "back.safetensors", to_names="original")
    for file, expected in (("back", tensors), ("diffusers", judged(model, dict(tensors)))):
        result = load(tmp_path / f"{file}.safetensors")
        assert set(result) == set(expected)
        assert all(torch.equal(result[name], expected[name]) for name in result)
    if model in PREFIXES:
        return
    wb.convert(path, tmp_path / "a.gguf", dtype="q8_0")
    wb.convert(tmp_path / "diffusers.safetensors", tmp_path / "b.gguf", dtype="q8_0")
    one, other = (pictures.comfy_load(tmp_path / f"{name}.gguf")[1] for name in "ab")
    assert set(one) == set(other) == set(tensors)
    for name, tensor in tensors.items():
        assert one[name].shape == tuple(tensor.shape)
        assert (one[name].kind, one[name].data.tobytes()) == (other[name].kind, other[name].data.tobytes())
        exact = one[name].kind in ("F32", "BF16")
        close = torch.from_numpy(one[name].numbers()) - tensor.float()
        assert close.abs().max() <= (0 if exact else 0.05), name
    wb.convert(tmp_path / "a.gguf", tmp_path / "again.safetensors", dtype="f32")
    again = load(tmp_path / "again.safetensors")
    assert all(torch.equal(again[name], torch.from_numpy(one[name].numbers())) for name in tensors)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    tensors = judged("flux", pictures.values(pictures.flux()))
    del tensors["transformer_blocks.1.attn.to_k.weight"]
    path = pictures.save(tmp_path / "d.safetensors", {name: t.contiguous() for name, t in tensors.items()})
    with pytest.raises(FormatError, match=r"transformer_blocks\.1\.attn\.to_k\.weight is missing"):
        wb.convert(path, tmp_path / "flux.gguf")
    assert not (tmp_path / "flux.gguf").exists()


def test_a_file_with_two_models_is_refused(tmp_path: Path) -> None:
    """No denoiser is chosen by the order of the tables, unless one's names and sizes are those of the other."""
    denoisers = [model for _, model in PAIRS if model not in PREFIXES]
    shapes = {name: pictures.MODELS[name]() for name in denoisers}
    alike = {("sd1", "sd2"), ("sdxl", "sdxl-refiner"), *combinations(TABLES["flux2"]["models"], 2)}
    alike |= {(model, "qwen-image") for model in ("flux2-klein", "flux2-klein-9b")}  # by the size of txt_in
    for pair in combinations(denoisers, 2):
        merged = shapes[pair[0]] | shapes[pair[1]]
        if pair in alike:
            assert set(shapes[pair[0]]) & set(shapes[pair[1]])
            continue
        with pytest.raises(UnsupportedError, match=r"has the tensors of .* and "):
            diffusion_model(merged, tmp_path / "x.safetensors")


LTX = [model for model in picture_vaes.MODELS if model.startswith("ltx")]


@pytest.mark.parametrize("model", LTX)
def test_the_recorded_names_are_those_of_diffusers(model: str) -> None:
    """At the published sizes, by which diffusers chooses the version."""
    rows = picture_vaes.record(model)
    whole = {f"vae.{name}": torch.empty(row[0], device="meta") for name, row in rows.items()}
    module = pytest.importorskip("diffusers.loaders.single_file_utils")
    found = module.convert_ltx_vae_checkpoint_to_diffusers(whole)
    expected = {row[1]: tuple(row[2] if len(row) == 3 else row[0]) for row in rows.values() if row[1]}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == expected


@pytest.mark.parametrize("model", LTX)
def test_statistics_that_diffusers_drops_are_listed(model: str, tmp_path: Path) -> None:
    shapes = {name: tuple(min(size, 3) for size in row[0]) for name, row in picture_vaes.record(model).items()}
    path = pictures.save(tmp_path / "vae.safetensors", pictures.values(shapes))
    plan = wb.plan_rename(path, tmp_path / "d.safetensors", to_names="diffusers")
    assert set(plan.report.dropped) == set(shapes) - set(picture_vaes.single_file(model))
    assert len(plan.report.dropped) == 3


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
