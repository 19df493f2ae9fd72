"""Every `dtype=` keyword of the API takes a type by any name that people give it, and one function reads them all."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.llama import CONFIG, llama_tensors, make_folder, write

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME, TABLE, dtype, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.conversion.options import TARGETS, names_of
from weighbridge.providers.base import Provider

#: Ways to write BF16, and F16 (numpy has no BF16).
BF16: tuple[Any, ...] = ("bf16", "BF16", "bfloat16", "torch.bfloat16", torch.bfloat16, ml_dtypes.bfloat16,
                         np.dtype(ml_dtypes.bfloat16), BY_NAME["BF16"])  # fmt: skip
F16: tuple[Any, ...] = ("f16", "fp16", "half", "float16", torch.float16, np.float16, np.dtype(np.float16),
                        np.dtype(">f2"), BY_NAME["F16"])  # fmt: skip


@pytest.mark.parametrize("row", [t for t in TABLE if t.plain], ids=str)
def test_a_type_is_found_by_what_each_package_calls_it(row: Any) -> None:
    ways = [row, row.name, row.name.lower()]
    if row.numpy is not None:
        of_numpy = np.dtype(getattr(ml_dtypes, row.numpy, row.numpy))
        ways += [row.numpy, of_numpy, of_numpy.type]
    if row.torch is not None:
        ways += [getattr(torch, row.torch), f"torch.{row.torch}"]
    assert [dtype(way) for way in ways] == [row] * len(ways)


@pytest.mark.costly
def test_jax_types_are_found() -> None:
    jnp = pytest.importorskip("jax.numpy")
    assert [dtype(way) for way in (jnp.bfloat16, jnp.float32)] == [BY_NAME["BF16"], BY_NAME["F32"]]


@pytest.mark.parametrize("named", [float, int, 16, None, np.dtype("V2"), np.dtype("S3"), object(), "bf17", ""])
def test_what_names_no_type_is_refused(named: Any) -> None:
    with pytest.raises(UsageError, match="no number type is called") as error:
        dtype(named)
    assert error.value.hint


@pytest.mark.parametrize("named", [None, "auto", "AUTO"])
def test_auto_keeps_the_type_of_the_values(named: Any) -> None:
    assert requested_dtype(named) is None


# ------------------------------------------------------------------------------------- the functions that take one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    (found / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float32"}))
    write(found / "model.safetensors", llama_tensors())
    return found


NAME = "model.norm.weight"
#: Function -> a call with this dtype, and the type of what comes of it.
Call = Callable[[Path, Path, Any], str]


def _written(plan: wb.Plan) -> str:
    return next(node.spec.dtype.name for file in plan.files for slot, node in file.slots if node.spec.dtype.is_float)


def _module(path: Path) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_parameter("a", torch.nn.Parameter(torch.zeros(4)))
    save_file({"a": np.ones(4, np.float32)}, path / "one.safetensors")
    return module


def _loaded(model: Path, out: Path, kind: Any) -> str:
    module = _module(out)
    wb.load(out / "one.safetensors", into=module, dtype=kind)
    return dtype(module.get_parameter("a").dtype).name


def _pretrained(model: Path, out: Path, kind: Any) -> str:
    from transformers import LlamaForCausalLM

    return dtype(wb.from_pretrained(LlamaForCausalLM, model, dtype=kind).dtype).name


def _tuned(out: Path) -> Path:
    path = out / "tuned"
    return path if path.exists() else make_folder(path, {**CONFIG, "torch_dtype": "float32"}, llama_tensors(1))


ONE: Mapping[str, Any] = {"a": np.ones((4, 64), np.float32)}
CALLS: Mapping[str, Call] = {
    "plan_convert": lambda m, o, d: _written(wb.plan_convert(m, o / "x.safetensors", dtype=d)),
    "plan_strip": lambda m, o, d: _written(wb.plan_strip(m, o / "x.safetensors", dtype=d)),
    "plan_rename": lambda m, o, d: _written(wb.plan_rename(m, o / "x.safetensors", add_prefix="y.", dtype=d)),
    "plan_slice": lambda m, o, d: _written(wb.plan_slice(m, o / "x.safetensors", keep=["*"], dtype=d)),
    "plan_merge": lambda m, o, d: _written(wb.plan_merge([m, m], o / "x.safetensors", method="linear", dtype=d)),
    "plan_extract_lora": lambda m, o, d: _written(wb.plan_extract_lora(m, _tuned(o), o / "a", dtype=d)),
    "plan_save": lambda m, o, d: _written(wb.plan_save(ONE, o / "x.safetensors", dtype=d)),
    "get": lambda m, o, d: dtype(wb.get(f"{m}::{NAME}", dtype=d).dtype).name,
    "Tensor.numpy": lambda m, o, d: dtype(wb.open(m)[NAME].numpy(dtype=d).dtype).name,
    "Tensor.torch": lambda m, o, d: dtype(wb.open(m)[NAME].torch(dtype=d).dtype).name,
    "load": _loaded,
    "from_pretrained": _pretrained,
    "provider": lambda m, o, d: dtype(wb.provider(m, dtype=d).get("norm.weight").dtype).name,
    "Provider.get": lambda m, o, d: dtype(wb.provider(m).get("norm.weight", dtype=d).dtype).name,
    "Provider.fuse": lambda m, o, d: wb.provider(m).fuse("norm.weight", dtype=d).tensor.spec.dtype.name,
    "Provider.buffer": lambda m, o, d: wb.provider(m).buffer("norm.weight", dtype=d).type.name,
}  # fmt: skip
for _options in TARGETS:
    if "dtype" in names_of(_options):
        CALLS = {**CALLS, _options.__name__: lambda m, o, d, kind=_options: str(kind(dtype=d).dtype)}  # type: ignore[misc]


def _takers() -> Iterator[str]:
    """The public functions and methods with a parameter `dtype`, or with keywords among which is one."""
    for name in wb.__all__:
        value = getattr(wb, name)
        members = vars(value).items() if inspect.isclass(value) else [("", value)]
        for member, function in members:
            if not inspect.isfunction(function):
                continue
            if "dtype" in inspect.signature(function).parameters:
                yield name if member in ("", "__init__") else f"{name}.{member}"
    for member, function in vars(Provider).items():
        if inspect.isfunction(function) and "dtype" in inspect.signature(function).parameters:
            yield f"Provider.{member}"


def test_every_function_that_takes_a_type_is_tried() -> None:
    private = {name for name in _takers() if "._" in name}
    done = {
        f"plan_{name}" for name in ("convert", "merge", "extract_lora", "strip", "rename", "slice", "save")
    }  # `wb.convert` plans and runs
    assert {name for name in _takers() if f"plan_{name}" not in done} - private <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_every_way_to_name_a_type(name: str, folder: Path, tmp_path: Path) -> None:
    call = CALLS[name]
    for expected, ways in (("BF16", BF16), ("F16", F16)):
        assert {call(folder, tmp_path, way) for way in ways} == {expected}
    assert call(folder, tmp_path, "auto") in (call(folder, tmp_path, None), "auto")
    with pytest.raises(UsageError, match="no number type is called"):
        call(folder, tmp_path, "bf17")
