"""Paddle's `.pdparams`, in the forms of `paddle.save` (paddle 3.3, framework/io.py), against what unpickling gives."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weighbridge as wb

WEIGHT, BIAS = np.arange(6, dtype="f4").reshape(2, 3), np.array([1, -2, 3], "f2")
NAMES = {"weight": "linear_0.w_0", "bias": "linear_0.b_0"}


class Call:
    """Is pickled as a call of `function` with `args`."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None) -> None:
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.reduced


def of_graph(array: np.ndarray[Any, Any]) -> Call:
    return Call(eval, "data", {"data": array})


def bare(name: str, array: np.ndarray[Any, Any]) -> Call:
    return Call(tuple, (name, array))


#: Form -> the saved object, and the tensors and other values that it has.
FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "state dict": (
        {"weight": WEIGHT, "bias": BIAS, "StructuredToParameterName@@": NAMES},
        {"weight": WEIGHT, "bias": BIAS}, {f"StructuredToParameterName@@.{k}": v for k, v in NAMES.items()},
    ),
    "static graph": ({"weight": of_graph(WEIGHT), "bias": of_graph(BIAS)}, {"weight": WEIGHT, "bias": BIAS}, {}),
    "nested": (
        {"model": {"weight": bare("linear_0.w_0", WEIGHT)}, "opt": {"LR_Scheduler": {"last_epoch": 3}}},
        {"model.weight": WEIGHT}, {"opt.LR_Scheduler.last_epoch": 3},
    ),
    "tensor": (bare("linear_0.b_0", BIAS), {"tensor": BIAS}, {}),
    "list": ([bare("a", WEIGHT), bare("b", BIAS)], {"0": WEIGHT, "1": BIAS}, {}),
    "columns": ({"weight": np.asfortranarray(WEIGHT)}, {"weight": WEIGHT}, {}),
    "big-endian": ({"weight": WEIGHT.astype(">f4")}, {"weight": WEIGHT}, {}),
}  # fmt: skip


def same(tensors: dict[str, Any], path: Path) -> bool:
    with wb.open(path) as model:
        read = {name: model[name].numpy() for name in model}
    return read.keys() == tensors.keys() and all(
        (read[n].shape, read[n].dtype, read[n].tolist()) == (a.shape, a.dtype.newbyteorder("="), a.tolist())
        for n, a in tensors.items()
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", FORMS)
def test_every_command_reads_what_paddle_writes(form: str, protocol: int, tmp_path: Path) -> None:
    saved, tensors, values = FORMS[form]
    path = tmp_path / "model.pdparams"
    path.write_bytes(pickle.dumps(saved, protocol))
    assert pickle.loads(path.read_bytes()) is not None
    found = wb.identify(path)
    assert (found.format, found.readable, found.name_lies) == ("pickle", True, None)
    assert same(tensors, path)
    report = wb.inspect(path)
    assert {t.name: tuple(t.shape) for t in report.tensors} == {n: a.shape for n, a in tensors.items()}
    assert {k: v for k, v in report.metadata.items() if k in values} == values
    assert wb.verify(path).ok
    scanned = wb.scan(path)
    assert (scanned.verdict, scanned.complete) == ("data-only", True), scanned.files[0].findings
    name, array = next(iter(tensors.items()))
    assert wb.get(f"{path}::{name}").tolist() == array.tolist()
    wb.convert(path, tmp_path / "out.safetensors")
    assert same(tensors, tmp_path / "out.safetensors")


def grown(*, after: bytes) -> bytes:
    """`eval("data", {"data": array})`, where opcodes `after` the call change the dict, its memo 99, or the result."""
    array = pickle.dumps(WEIGHT, 2)[2:-1]
    return b"\x80\x02c__builtin__\neval\nX\x04\0\0\0data}q\x63X\x04\0\0\0data" + array + b"s\x86R" + after + b"."


#: Uses of `eval` that Paddle doesn't write.
HOSTILE: dict[str, bytes] = {
    "other text": pickle.dumps({"weight": Call(eval, "__import__('os')", {"data": WEIGHT})}, 4),
    "other name": pickle.dumps({"weight": Call(eval, "exit", {"exit": WEIGHT})}, 4),
    "no scope": pickle.dumps({"weight": Call(eval, "data")}, 4),
    "locals": pickle.dumps({"weight": Call(eval, "data", {"data": WEIGHT}, {})}, 4),
    "two names": pickle.dumps({"weight": Call(eval, "data", {"data": WEIGHT, "__builtins__": BIAS})}, 4),
    "no array": pickle.dumps({"weight": Call(eval, "data", {"data": Call(eval, "1")})}, 4),
    "eval as data": pickle.dumps({"weight": Call(eval, "data", {"data": eval})}, 4),
    "nested": pickle.dumps({"weight": Call(eval, "data", {"data": Call(eval, "data", {"data": WEIGHT})})}, 4),
    "a changed dict": grown(after=b"0h\x63X\x0c\0\0\0__builtins__Ns"),
    "a state": pickle.dumps({"weight": Call(eval, "data", {"data": WEIGHT}, state={"x": 1})}, 4),
    "bytes": pickle.dumps({"weight": Call(eval, b"data", {"data": WEIGHT})}, 4),
    "exec": pickle.dumps({"weight": Call(exec, "data", {"data": WEIGHT})}, 4),
    "only named": pickle.dumps({"weight": eval}, 4),
}


def test_the_made_form_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "m.pdparams").write_bytes(grown(after=b""))
    assert wb.scan(tmp_path / "m.pdparams").verdict == "data-only"
    assert same({"tensor": WEIGHT}, tmp_path / "m.pdparams")


@pytest.mark.parametrize("name", HOSTILE)
def test_other_uses_of_eval_are_dangerous(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pdparams"
    path.write_bytes(HOSTILE[name])
    assert wb.scan(path).verdict == "dangerous"
    assert any("eval" in f.message or "exec" in f.message for f in wb.verify(path).findings)


def test_a_tuple_with_an_array_is_no_tensor_of_paddle(tmp_path: Path) -> None:
    """Without the call, or with a list in it, the text stays."""
    for number, value in enumerate((("name", WEIGHT), Call(tuple, ["name", WEIGHT]))):
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(pickle.dumps({"pair": value}, 4))
        assert same({"pair.1": WEIGHT}, path)
        assert wb.inspect(path).metadata["pair.0"] == "name"
