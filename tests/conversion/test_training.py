"""Training checkpoints without pickles: training goes on bit for bit where it stopped; nothing hostile is believed."""

from __future__ import annotations

import json
import math
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

import weighbridge as wb
from weighbridge.base.dtypes import TABLE
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.models import training_state as training
from weighbridge.models.training_state import FILE, decode, encode

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


# ---- training goes on -----------------------------------------------------------------------------------------


def make(kind: str) -> tuple[Any, Any, Any]:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 8, bias=False)
    )
    model[3].weight = torch.nn.Parameter(model[0].weight.detach().t().contiguous())
    optimizers = {
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        "adamw": lambda p: torch.optim.AdamW([{"params": [p[0]], "lr": 0.1}, {"params": p[1:]}], weight_decay=0.01),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1),
        "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
        "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
    }
    optimizer = optimizers[kind](list(model.parameters()))
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)


def steps(count: int, model: Any, optimizer: Any, scheduler: Any) -> list[float]:
    """Losses of training on random numbers of all three generators, with dropout."""
    losses = []
    for _ in range(count):
        x = torch.randn(4, 8) + float(np.random.normal()) + random.random()

        def closure(x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        scheduler.step()
    return losses


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "rmsprop", "lbfgs", "tensor lr"])
def test_training_continues_bit_for_bit(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    run = make(kind)
    steps(4, *run)
    model, optimizer, scheduler = run
    wb.save_checkpoint(tmp_path / "c", model=model, optimizer=optimizer, scheduler=scheduler, epoch=4, rng=True)
    expected = steps(5, *run)
    again = make(kind)
    found = wb.load_checkpoint(
        tmp_path / "c", rng=True, **dict(zip(("model", "optimizer", "scheduler"), again, strict=True))
    )
    assert found["epoch"] == 4
    assert steps(5, *again) == expected
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again[0].state_dict()[name]), name
    assert str(optimizer.state_dict()) == str(again[1].state_dict())


def test_the_model_is_a_file_of_its_own(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model, optimizer, _ = make("adam")
    wb.save_checkpoint(tmp_path / "c", model=model, optimizer=optimizer)
    state = load_file(tmp_path / "c" / "model.safetensors")
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    with wb.open(tmp_path / "c") as opened:
        assert set(opened) == set(state)
    assert not [p for p in (tmp_path / "c").iterdir() if b"\x80\x02" in p.read_bytes()[:2]]


# ---- values ---------------------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Equal in type and value; NaN is itself, and -0.0 is not 0.0."""
    if isinstance(a, torch.Tensor):
        bits = [t.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and all(
            same(x, y) for x, y in zip(a.values(), b.values(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 500), 1 << 500)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
KEYS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner)
    | st.dictionaries(KEYS | st.tuples(KEYS, st.integers()), inner).map(OrderedDict),
    max_leaves=20,
)  # fmt: skip


@examples(25)
@given(value=VALUES)
def test_every_value_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("v") / "c"
    wb.save_checkpoint(path, value=value)
    assert same(wb.load_checkpoint(path), {"value": value})


@pytest.mark.parametrize("name", [t.torch for t in TABLE if t.torch])
def test_every_type_of_torch(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    raw = torch.randint(0, 2 if name == "bool" else 256, (3, 4, dtype.itemsize), dtype=torch.uint8).view(dtype)
    value = raw.reshape(3, 4)
    one = value[0] if "x2" in name else value[0, 0]  # a pair of 4-bit numbers has no place in a shape of ()
    wb.save_checkpoint(tmp_path / "c", a=value, b={"x": value[1:], "e": value[:0], "s": one})
    found = wb.load_checkpoint(tmp_path / "c")
    assert same(found["a"], value)
    assert same(found["b"], {"x": value[1:], "e": value[:0], "s": one})


def test_arrays(tmp_path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    value: dict[str, Any] = {
        "c": base, "f": np.asfortranarray(base), "part": base[1:, ::2], "back": base[::-1], "big": base.astype(">f4"),
        "scalar": np.float32(1.5), "zero": np.zeros((0, 3), np.int16), "bool": np.array([True]), "i": np.int64(7),
        "c16": np.array([1 + 2j]), "one": np.array(3.0),
    }  # fmt: skip
    wb.save_checkpoint(tmp_path / "c", value=value)
    found = wb.load_checkpoint(tmp_path / "c")["value"]
    for name, array in value.items():
        got = found[name]
        assert np.array_equal(got, array), name
        assert got.dtype == array.dtype.newbyteorder("="), name
        assert type(got) is type(array), name
    arrays = wb.load_checkpoint(tmp_path / "c", numpy=True)
    assert np.array_equal(arrays["value"]["c"], base)


def test_what_shared_a_storage_shares_it_again(tmp_path: Path) -> None:
    base = torch.arange(60.0).reshape(3, 4, 5)
    value = {"m": {"a": base, "tied": base, "t": base.transpose(0, 2), "last": base[2]}, "ema": {"a": base[1:]},
             "alone": torch.randn(4, 3).t(), "wide": torch.ones(1).expand(5),
             "c": torch.tensor([1 + 2j]).conj()}  # fmt: skip
    wb.save_checkpoint(tmp_path / "c", **value)
    found = wb.load_checkpoint(tmp_path / "c")
    assert same(found, value)
    pointer = found["m"]["a"].untyped_storage().data_ptr()
    for other in (found["m"]["tied"], found["m"]["t"], found["m"]["last"], found["ema"]["a"]):
        assert other.untyped_storage().data_ptr() == pointer
    size = sum(p.stat().st_size for p in (tmp_path / "c").glob("*.safetensors"))
    assert size < 240 + 4 * 4200
    with wb.open(tmp_path / "c" / "m.safetensors") as file:
        assert {name: t.shape for name, t in file.items()} == {"a": (3, 4, 5)}


def test_a_part_of_a_large_tensor_is_not_the_whole(tmp_path: Path) -> None:
    wb.save_checkpoint(tmp_path / "c", x=torch.zeros(1_000_000)[5:7])
    assert sum(p.stat().st_size for p in (tmp_path / "c").iterdir()) < 10_000


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (object(), UsageError, "value.1: a object can't be saved as data"),
        (torch.optim.lr_scheduler.LambdaLR, UsageError, "can't be saved as data"),
        (torch.zeros(2, device="meta"), UnsupportedError, "can't be saved"),
        (torch.ones(2).to_sparse(), UnsupportedError, "can't be saved"),
        (np.array([object()]), UnsupportedError, "can't be saved"),
        ({frozenset(): 1}, UsageError, "a key of type frozenset"),
        ({1, 2}, UsageError, "a set can't be saved as data"),
    ],
)
def test_what_is_no_data_is_named(tmp_path: Path, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words.replace(".", r"\.")):
        wb.save_checkpoint(tmp_path / "c", value=[0, value])
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_itself(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="levels deep"):
        wb.save_checkpoint(tmp_path / "c", value=loop)


def test_a_failed_save_leaves_the_old_one(tmp_path: Path) -> None:
    wb.save_checkpoint(tmp_path / "c", x=1)
    with pytest.raises(RefusedError, match="exists already"):
        wb.save_checkpoint(tmp_path / "c", x=2)
    with pytest.raises(UsageError):
        wb.save_checkpoint(tmp_path / "c", overwrite=True, x=object())
    assert wb.load_checkpoint(tmp_path / "c") == {"x": 1}
    wb.save_checkpoint(tmp_path / "c", overwrite=True, x=2, y=torch.ones(2))
    assert wb.load_checkpoint(tmp_path / "c")["x"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    with pytest.raises(UsageError, match="has no model"):
        wb.load_checkpoint(tmp_path / "c", model=torch.nn.Linear(1, 1))


# ---- to and from PyTorch's files ------------------------------------------------------------------------------


@pytest.mark.parametrize("legacy", [False, True])
def test_there_and_back(tmp_path: Path, legacy: bool) -> None:
    torch.manual_seed(4)
    model, optimizer, scheduler = make("adamw")
    steps(2, model, optimizer, scheduler)
    value = {
        "model": model.state_dict(), "tied": model[0].weight.detach(), "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(), "epoch": 3, "loss": math.inf, "betas": (0.9, 0.999), "none": None,
        "history": [1, 2.5, {"a": True, 3: "x"}], "rng": torch.get_rng_state(), "big": 1 << 90,
    }  # fmt: skip
    torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    wb.convert(tmp_path / "a.pt", tmp_path / "c", to="checkpoint")
    found = wb.load_checkpoint(tmp_path / "c")
    plain = {**value, "model": dict(value["model"])}
    assert same({**found, "model": dict(found["model"])}, plain)
    assert found["tied"].data_ptr() == found["model"]["0.weight"].data_ptr()
    result = wb.convert(tmp_path / "c", tmp_path / "b.pt")
    assert result.losses == ()
    again = torch.load(tmp_path / "b.pt", weights_only=True)
    assert same({**again, "model": dict(again["model"])}, plain)
    assert again["tied"].data_ptr() == again["model"]["0.weight"].data_ptr()
    wb.convert(tmp_path / "b.pt", tmp_path / "c2", to="checkpoint")
    assert (tmp_path / "c2" / FILE).read_bytes() == (tmp_path / "c" / FILE).read_bytes()
    other = make("adamw")
    other[1].load_state_dict(again["optimizer"])
    assert str(other[1].state_dict()) == str(optimizer.state_dict())


def test_other_targets_get_the_model(tmp_path: Path) -> None:
    model, optimizer, _ = make("sgd")
    wb.save_checkpoint(tmp_path / "c", model=model, optimizer=optimizer, x=np.float32(2), y=np.ones(3))
    wb.convert(tmp_path / "c", tmp_path / "m.npz")
    assert set(np.load(tmp_path / "m.npz").files) == set(model.state_dict())
    result = wb.convert(tmp_path / "c", tmp_path / "all.pt")
    assert [loss.tensor for loss in result.losses] == ["state/y"]
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    assert (loaded["x"], loaded["y"].tolist()) == (2.0, [1, 1, 1])
    with pytest.raises(UnsupportedError, match="contains no training state"):
        wb.convert(tmp_path / "c", tmp_path / "d", to="checkpoint")


def test_what_is_no_data_in_a_pickle_is_left_out_and_told(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    torch.save({"w": torch.ones(2), "args": Evil(), "list": [1, Evil()]}, tmp_path / "a.pt")
    result = wb.convert(tmp_path / "a.pt", tmp_path / "c", to="checkpoint")
    assert {loss.tensor for loss in result.losses if loss.tensor} == {"args", "list.1"}
    found = wb.load_checkpoint(tmp_path / "c")
    assert (found["list"], "args" in found) == ([1, None], False)
    assert not (tmp_path / "touched").exists()


# ---- hostile folders ------------------------------------------------------------------------------------------


def tensor(**changes: Any) -> dict[str, Any]:
    return {"$tensor": "state/x", "dtype": "F32", "shape": [3], "strides": [1], "offset": 0, "kind": "torch", **changes}


BAD: dict[str, Any] = {
    "two tags": {"$int": "0x1", "$float": "nan"}, "unknown tag": {"$object": "os.system"}, "no float": {"$float": "1"},
    "no hex": {"$int": "12"}, "text as int": {"$int": 5}, "no base64": {"$bytes": "?"}, "no bytes": {"$bytes": None},
    "no tuple": {"$tuple": {"a": 1}}, "no pairs": {"$dict": [[1]]}, "pairs of three": {"$ordered": [[1, 2, 3]]},
    "a list as key": {"$dict": [[[1], 2]]}, "a tensor as key": {"$dict": [[tensor(), 2]]},
    "no storage": tensor(**{"$tensor": "state/y"}), "no file": tensor(**{"$tensor": "x"}),
    "a path": tensor(**{"$tensor": "../state/x"}), "a path in a name": tensor(**{"$tensor": "..%2f/x"}),
    "no type": tensor(dtype="F31"), "a type as number": tensor(dtype=3), "no kind": tensor(kind="jax"),
    "shape and strides": tensor(strides=[1, 1]), "negative": tensor(shape=[-1]), "a bool": tensor(offset=True),
    "beyond": tensor(offset=1), "strides beyond": tensor(strides=[2]), "wider": tensor(dtype="F64"),
    "many dims": tensor(shape=[1] * 999, strides=[1] * 999), "overflow": tensor(shape=[1 << 62, 4], strides=[1, 1]),
    "nested": "deep",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_hostile_structures_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c"
    wb.save_checkpoint(path, x=torch.arange(3.0))
    state = "[" * 5000 + "]" * 5000 if BAD[name] == "deep" else json.dumps(BAD[name])
    (path / FILE).write_text('{"format":"weighbridge-checkpoint","version":1,"state":{"x":' + state + "}}")
    with pytest.raises(FormatError):
        wb.load_checkpoint(path)


@pytest.mark.mutation
def test_without_the_bounds_check_a_hostile_view_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_collect", lambda value, refs: None)
    for name in ("beyond", "no storage"):
        with pytest.raises((pytest.fail.Exception, RuntimeError, KeyError)):
            test_hostile_structures_are_refused(tmp_path / name, name)  # no FormatError any more


def test_other_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"checkpoint\.json"):
        wb.load_checkpoint(tmp_path)
    (tmp_path / FILE).write_text('{"format":"weighbridge-checkpoint","version":2,"state":1}')
    with pytest.raises(UnsupportedError, match="version 2"):
        wb.load_checkpoint(tmp_path)
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(FormatError):
        wb.load_checkpoint(tmp_path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from([*training._TAGS, "state/x", "F32"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*training._TAGS, "dtype", "shape", "strides", "offset", "kind", "a"]), inner)
    ),
    max_leaves=15,
)


@examples(60)
@given(JSON)
def test_any_json_is_a_value_or_an_error(value: Any) -> None:
    body = json.dumps({"format": "weighbridge-checkpoint", "version": 1, "state": value}).encode()
    try:
        found = decode(body, "x")
    except WeighbridgeError:
        return
    assert same(decode(encode(found), "x"), found)
