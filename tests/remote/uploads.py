"""What tests of targets in buckets share: the model, the runs, the ways in which one ends early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import weighbridge as wb
from weighbridge.base.limits import MIB
from weighbridge.io.sink.upload import UploadSink

PART = 5 * MIB  # the least that S3 takes

#: name -> target, function, options
CASES: Mapping[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "copied": ("o.safetensors", wb.plan_convert, {}),
    "cast": ("o.safetensors", wb.plan_convert, {"dtype": "f16"}),
    "checksums first": ("o.npz", wb.plan_convert, {}),
    "a folder": ("folder", wb.plan_convert, {"to": "safetensors", "max_shard_size": 9_000_000}),
    "small": ("s/m.safetensors", wb.plan_slice, {"keep": ["small.*"]}),
}
#: where a run is killed: method of the upload, which call, before it takes place
POINTS = {
    "after one part": ("put", 1, False),
    "after two parts": ("put", 2, False),
    "before completion": ("complete", 1, True),
    "after completion": ("complete", 1, False),
}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 20 MiB: four parts, and some small tensors."""
    rng = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("uploads") / "model.safetensors"
    tensors = {f"layer.{i}.weight": rng.standard_normal((1024, 1024)).astype(np.float32) for i in range(5)}
    save_file(tensors | {"small.a": np.ones(3, np.float32), "small.b": np.arange(999)}, path)
    return path


@pytest.fixture(scope="session")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The files that a local run writes, by the name of its case."""
    folder = tmp_path_factory.mktemp("expected")

    def expected(name: str) -> dict[str, bytes]:
        if not (folder / name).exists():
            run(name, source, str(folder / name), parents=True)
        return files(folder / name)

    return expected


def run(name: str, source: Path | str, where: str, progress: Any = None, **more: Any) -> None:
    target, plan, options = CASES[name]
    with plan(source, f"{where}/{target}", **{"jobs": 2, **options, **more}) as made:
        made.run(progress)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Killed(BaseException):
    """The process ends here, without a word to the store."""


def kill(patch: pytest.MonkeyPatch, upload: type, method: str, nth: int = 1, before: bool = False) -> None:
    """Ends a run as SIGKILL does, `before` or after the nth call of a method of an upload."""
    leave, real, calls = UploadSink.__exit__, getattr(upload, method), list[Any]()

    def call(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(args)
        number = len(calls)
        if before and number == nth:
            raise Killed
        found = real(self, *args, **options)
        if number == nth:
            raise Killed
        return found

    def gone(self: UploadSink, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, Killed):
            leave(self, kind, error, trace)

    patch.setattr(upload, method, call)
    patch.setattr(UploadSink, "__exit__", gone)
    patch.setattr(UploadSink, "_discard", lambda _: None)


def watched(monkeypatch: pytest.MonkeyPatch, upload: type) -> list[int]:
    """The numbers of the parts that are sent from now on."""
    sent: list[int] = []
    real = getattr(upload, "put")  # noqa: B009  # of a type that has it

    def put(self: Any, number: int, data: Any) -> None:
        sent.append(number)
        real(self, number, data)

    monkeypatch.setattr(upload, "put", put)
    return sent
