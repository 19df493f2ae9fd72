"""What torch, numpy and Python themselves write is data only: no alarm, and nothing left out."""

from __future__ import annotations

import argparse
import collections
import copy
import datetime
import decimal
import fractions
import functools
import pathlib
import pickle
import types
import uuid
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports.makers import torch_saved

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_file, scan_source
from weighbridge.reports.scan.model import ScanVerdict

torch = pytest.importorskip("torch")


def is_quiet(data: bytes) -> None:
    report = scan_source(BytesSource(data), "x")
    assert report.findings == ()
    assert report.verdict is ScanVerdict.DATA_ONLY
    assert report.complete


@functools.cache
def tensors() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse layouts are new
        return _tensors()


def _tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    base = torch.randn(4, 6)
    sub = torch.nn.Parameter(torch.randn(3))
    sub.note = "kept with it"
    return {
        "plain": base,
        "shared": [base, base[1:3], base.t()],
        "expanded": torch.ones(1).expand(1000, 3),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(base.clone()),
        "parameter with an attribute": sub,
        "buffer": torch.nn.Buffer(base.clone()),
        "sparse coo": base.relu().to_sparse(),
        "sparse csr": base.relu().to_sparse_csr(),
        "sparse csc": base.relu().to_sparse_csc(),
        "sparse bsr": base.to_sparse_bsr((2, 2)),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": torch.quantize_per_tensor(base, 0.1, 3, torch.qint8),
        "quantized by channel": torch.quantize_per_channel(
            base, torch.ones(4) * 0.1, torch.zeros(4, dtype=torch.int64), 0, torch.quint8
        ),
        "meta": torch.empty(3, device="meta"),
        "size, device, dtype": (torch.Size([1, 2]), torch.device("cuda", 1), torch.float16, torch.strided),
        "state_dict": torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict(),
        "version": torch.torch_version.TorchVersion("2.1.0"),
    }


def checkpoint() -> dict[str, Any]:
    """A training checkpoint, as frameworks write it."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return {
        "epoch": 3, "global_step": 100, "loss": 0.5, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(), "rng": torch.get_rng_state(), "numpy": np.random.get_state(),
        "metrics": collections.defaultdict(list, loss=[1.0, 0.5]), "best": np.float64(0.25), "seen": {1, 2, 3},
    }  # fmt: skip


SAVES: dict[str, dict[str, Any]] = {
    "zip": {},
    "before 1.6": {"_use_new_zipfile_serialization": False},
    **{f"protocol {n}": {"pickle_protocol": n} for n in (3, 4, 5)},
    **{f"before 1.6, protocol {n}": {"pickle_protocol": n, "_use_new_zipfile_serialization": False} for n in (2, 4, 5)},
}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", [*tensors(), "checkpoint"])
def test_what_torch_saves(name: str, save: str) -> None:
    is_quiet(torch_saved(checkpoint() if name == "checkpoint" else tensors()[name], **SAVES[save]))


DTYPES = sorted({str(d)[6:] for d in vars(torch).values() if isinstance(d, torch.dtype)})


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str) -> None:
    try:
        value = torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name))
        data = torch_saved({"w": value, "dtype": value.dtype})
    except (RuntimeError, KeyError):  # quantized ones have no view, those below 8 bits can't be saved
        data = torch_saved({"dtype": getattr(torch, name)})
    is_quiet(data)


def test_without_checksums_and_with_data_left_out() -> None:
    from torch.serialization import get_crc32_options, set_crc32_options, skip_data

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        is_quiet(torch_saved(tensors()["plain"]))
    finally:
        set_crc32_options(before)
    with skip_data():
        is_quiet(torch_saved(tensors()["plain"]))


def test_a_tensor_that_was_pickled_alone() -> None:
    for protocol in range(6):
        is_quiet(pickle.dumps({"w": torch.ones(3), "p": torch.nn.Parameter(torch.ones(2))}, protocol))


ARRAYS = [
    np.arange(6), np.ones((2, 3), order="F"), np.array(3.0), np.zeros(0), np.array(["a", "bb"]), np.array([b"x"]),
    np.array([1, None, "x", [2]], dtype=object), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8", (2,))]),
    np.array(["2020-01-01"], "M8[D]"), np.array([1], ">i4"), np.array([True]), np.array([1j]), np.float16(1),
    np.int64(3), np.str_("x"), np.datetime64("2020-01-01"), np.dtype("f4"), np.dtype("O"), np.zeros(100_000),
    np.random.get_state(), np.arange(2).view(np.matrix), np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_what_numpy_writes(number: int, protocol: int) -> None:
    is_quiet(pickle.dumps(ARRAYS[number], protocol))


class Text(str):
    __slots__ = ()


PLAIN = [
    {"a": [1, 2.5, None, True], "b": ("x", b"y", {1, 2}, frozenset({3}))}, bytearray(b"abc"), 1 << 400, 1j, "\ud800é\n",
    slice(1, 2), range(3), collections.OrderedDict(a=1), collections.Counter("abca"), collections.deque([1], 3),
    collections.defaultdict(int, a=1), datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.UTC),
    datetime.date(2024, 1, 2),
    datetime.time(3), datetime.timedelta(1), decimal.Decimal("1.5"), fractions.Fraction(1, 3), uuid.UUID(int=3),
    pathlib.PurePosixPath("a/b"), pathlib.Path("a"), argparse.Namespace(lr=1e-3, name="x"), types.SimpleNamespace(a=1),
    int, str, copy.copy([]), b"x" * 100_000, "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_what_python_writes(number: int, protocol: int) -> None:
    is_quiet(pickle.dumps(PLAIN[number], protocol))


# Texts that packages ship (configs, data, documentation, templates) are data, but for what a policy reports.


PACKAGES = ("accelerate", "gguf", "huggingface_hub", "jax", "mlx_lm", "peft", "ray", "torch", "transformers", "uvicorn")
SUFFIXES = {".yaml", ".yml", ".json", ".txt", ".md", ".cfg", ".toml", ".ini", ".conf", ".jinja", ".j2", ".html", ""}
_LONGEST = 1 << 20
#: Templates that a compiler fills: they call functions of their own program, and hold its code.
POLICY = {("torch", "template/unproven"), ("torch", "template/underscored-text")}


@cache
def folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def texts(package: str) -> Iterator[Path]:
    root = folder(package)
    named = [p for p in sorted(root.rglob("*")) if p.suffix.lower() in SUFFIXES] if root else []
    files = [p for p in named if p.is_file() and not p.is_symlink() and p.stat().st_size < _LONGEST]
    yield from (p for p in files if b"\0" not in p.read_bytes()[:4096])


@pytest.mark.parametrize("package", PACKAGES)
def test_what_packages_ship_is_data(package: str) -> None:
    if folder(package) is None:
        pytest.skip(f"{package} isn't installed")
    loud = {}
    for path in texts(package):
        report = scan_file(str(path))
        found = {f.rule for f in report.findings if (package, f.rule) not in POLICY}
        if found or report.verdict == "not-scanned":
            loud[path.name] = found
    assert loud == {}
