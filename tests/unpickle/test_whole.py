"""Modules that were saved whole, in the shapes of Lightning's, ultralytics' and fairseq's checkpoints, read without
their code: it is there while the file is made and never after. The names are those of `state_dict()`; tensors that a
module has besides (plain attributes, buffers that are not persistent) have the names of their attributes."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.oracles.ours import report_of

import weighbridge as wb
from weighbridge.reports.scan.model import ScanVerdict

torch = pytest.importorskip("torch")
safe = pytest.importorskip("safetensors.torch")
nn = torch.nn
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")]
NEW = pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])


@contextmanager
def modules(**classes: type) -> Iterator[None]:
    """Modules that have these classes (`a__b__Name=...`: Name in a.b), for as long as something is saved."""
    made: list[str] = []
    for path, cls in classes.items():
        *module, name = path.split("__")
        cls.__module__, cls.__qualname__, cls.__name__ = ".".join(module), name, name
        for end in range(1, len(module) + 1):
            dotted = ".".join(module[:end])
            if dotted not in sys.modules:
                sys.modules[dotted] = types.ModuleType(dotted)
                made.append(dotted)
        setattr(sys.modules[cls.__module__], name, cls)
    try:
        yield
    finally:
        for dotted in made:
            del sys.modules[dotted]


def saved(value: Any, new: bool) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=new)
    return out.getvalue()


class Conv(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, bias=False)
        self.bn = nn.BatchNorm2d(outer)
        self.act = nn.SiLU()


class Detect(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.nc, self.stride = 3, torch.tensor([8.0, 16.0])
        self.cv2 = nn.ModuleList(nn.Sequential(Conv(4, 4), nn.Conv2d(4, 2, 1)) for _ in range(2))
        self.register_buffer("grid", torch.randn(3), persistent=False)


class DetectionModel(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(Conv(3, 4), nn.Identity(), Detect())
        self.stride = self.model[2].stride
        self.names, self.yaml = {0: "person"}, {"nc": 3}


class Net(nn.Module):  # type: ignore[misc, name-defined]
    """Tied weights, a hook, parameters of its own beside those of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.randn(2))
        self.blocks = nn.ModuleDict({"a": nn.TransformerEncoderLayer(4, 2, 8), "b": nn.LSTM(4, 3, bidirectional=True)})
        self.betas = nn.ParameterList([nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(3))])
        self.norm = nn.GroupNorm(2, 4)
        self.nothing = None
        self.register_buffer("empty", None)


class Hyper(dict):
    """Lightning's AttributeDict: a dict with a state."""


class Callback:
    def __init__(self) -> None:
        self.best = torch.tensor(0.25)


def randomized(module: Any) -> Any:
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn_like(tensor, dtype=torch.float32).to(tensor.dtype))
    return module


def under(front: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {f"{front}.{name}": t for name, t in tensors.items()}


NAMED = {"pickle.unknown-class", "pickle.unknown-call", "pickle.unknown-name"}  # nothing is left out
Made = tuple[bytes, dict[str, Any], dict[str, Any]]  # the file; names of the weights, of what else it holds


def yolo(new: bool) -> Made:
    names = {"ultralytics__nn__tasks__DetectionModel": DetectionModel, "ultralytics__nn__modules__conv__Conv": Conv,
             "ultralytics__nn__modules__head__Detect": Detect}  # fmt: skip
    with modules(**names):
        model, ema = randomized(DetectionModel()).half(), randomized(DetectionModel()).half()
        data = saved({"epoch": 3, "best_fitness": 0.5, "model": model, "ema": ema, "updates": 7,
                      "train_args": {"lr0": 0.01}, "version": "8.3.0"}, new)  # fmt: skip
    plain = {"model.stride": model.stride, "model.model.2.stride": model.stride,
             "model.model.2.grid": model.model[2].grid}  # fmt: skip
    averaged = {"ema.stride": ema.stride, "ema.model.2.stride": ema.stride, "ema.model.2.grid": ema.model[2].grid}
    return data, {**under("model", model.state_dict()), **plain}, {**under("ema", ema.state_dict()), **averaged}


def lightning(new: bool) -> Made:
    with modules(project__nets__Net=Net, lightning__fabric__AttributeDict=Hyper, project__Stop=Callback):
        net, stop, hyper = randomized(Net()), Callback(), Hyper(lr=0.1, size=[1, 2])
        hyper.net = net.norm  # type: ignore[attr-defined]
        data = saved({"epoch": 3, "global_step": 70, "pytorch-lightning_version": "2.5.0",
                      "state_dict": net.state_dict(), "hparams_name": "kwargs", "loops": None,
                      "callbacks": {"stop": stop}, "hyper_parameters": {"net": net, "lr": 0.1}}, new)  # fmt: skip
    return (
        data,
        {**under("state_dict", net.state_dict()), **under("hyper_parameters.net", net.state_dict())},
        {"callbacks.stop.best": stop.best},
    )


def fairseq(new: bool) -> Made:
    with modules(fairseq__tasks__Callback=Callback):
        net = randomized(Net())
        args = argparse.Namespace(arch="transformer", criterion=Callback(), lr=[0.1])
        data = saved({"args": args, "cfg": None, "model": net.state_dict(), "extra_state": {"epoch": 2},
                      "optimizer_history": [{"num_updates": 3}], "task_state": {}}, new)  # fmt: skip
    return data, {**under("model", net.state_dict()), "args.criterion.best": args.criterion.best}, {}


def alone(new: bool) -> Made:
    with modules(project__nets__Net=Net):
        net = randomized(Net())
        data = saved(net, new)
    return data, dict(net.state_dict()), {}


SHAPES: dict[str, Callable[[bool], Made]] = {
    "yolo": yolo,
    "lightning": lightning,
    "fairseq": fairseq,
    "alone": alone,
}


def raw(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


@NEW
@pytest.mark.parametrize("shape", SHAPES)
def test_the_names_are_those_of_the_state(shape: str, new: bool, tmp_path: Path) -> None:
    data, weights, rest = SHAPES[shape](new)
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"weights_only|[Uu]nsupported|not allowed|GLOBAL"):
        torch.load(path, weights_only=True)
    with wb.open(path, all_parts=True) as model:
        assert set(model) == {*weights, *rest}
        for name, tensor in {**weights, **rest}.items():
            got = model[name]
            assert (got.shape, got.raw()) == (tuple(tensor.shape), raw(tensor)), name
        assert {f.rule for f in model.source.index.findings} <= NAMED
    wb.convert(path, tmp_path / "x.safetensors", all_parts=True)
    got = safe.load_file(tmp_path / "x.safetensors")
    assert {n: (t.dtype, raw(t)) for n, t in got.items()} == {
        n: (t.dtype, raw(t)) for n, t in {**weights, **rest}.items()
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scan_calls_their_classes_unknown_code(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(SHAPES[shape](True)[0])
    report = wb.scan(path)
    assert (report.verdict, report.complete) == (ScanVerdict.UNKNOWN_CODE, True)


def test_what_is_stripped_of_a_module_that_was_saved_whole(tmp_path: Path) -> None:
    data, weights, rest = yolo(True)
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    report = report_of(wb.plan_strip(path, tmp_path / "weights.safetensors"))
    values = ("epoch", "best_fitness", "updates", "train_args", "version")
    assert ([(d.name, d.part, d.tensors) for d in report.dropped], report.wrapper) == (
        [("ema", "ema", len(rest)), *((name, "value", 0) for name in values)],
        "model",
    )
    got = safe.load_file(tmp_path / "weights.safetensors")
    assert {n: raw(t) for n, t in got.items()} == {n.removeprefix("model."): raw(t) for n, t in weights.items()}
    wb.strip(path, tmp_path / "ema.safetensors", ema_as_weights=True)
    got = safe.load_file(tmp_path / "ema.safetensors")
    assert {n: raw(t) for n, t in got.items()} == {n.removeprefix("ema."): raw(t) for n, t in rest.items()}


def test_neither_torch_nor_their_code_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(yolo(True)[0])
    code = (
        "import sys, weighbridge as wb\n"
        "with wb.open(sys.argv[1]) as m: names = [*m]; m[names[0]].raw()\n"
        "print(len(names), [n for n in sys.modules if n.partition('.')[0] in ('torch', 'ultralytics')])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, found = done.stdout.split(maxsplit=1)
    assert (int(count) > 20, found.strip()) == (True, "[]")
