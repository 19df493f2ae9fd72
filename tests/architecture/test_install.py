"""The package installs where there is no compiler: the same functions, in pure Python. `pip` builds in a folder of its
own, with the tools of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.architecture import house

from weighbridge import __version__
from weighbridge.cli import guides

_USE = """
import numpy as np
from weighbridge.base.dtypes import dtype
from weighbridge.base.native import native, reason
from weighbridge.tensors import kernels

assert native is None and reason, "there should be no extension"
values = np.linspace(-3, 3, 64, dtype=np.float32)
stored = np.empty(68, np.uint8)
kernels.encode(dtype("q8_0"), values, stored)
back = np.empty(64, np.float32)
kernels.decode(dtype("q8_0"), stored, back)
assert abs(back - values).max() < 3 / 127
print(stored.tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("scikit_build_core", "nanobind"))), reason="the build tools are not here")
def test_installs_and_works_without_a_compiler(tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    # A copy, so that the build folder of the real one is left alone; a compiler that always fails.
    source = tmp_path / "source"
    for path in house.tracked():
        kept = path.relative_to(house.ROOT)
        if kept.parts[0] in ("src", "native", "docs", "share") or len(kept.parts) == 1:
            (source / kept).parent.mkdir(parents=True, exist_ok=True)
            (source / kept).write_bytes(path.read_bytes())
    broken = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    done = subprocess.run(
        [*command, "--target", target, source], env=broken, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(target.rglob("_native*.so"))
    without = run(target, "", "-c", _USE)
    assert without == run(house.PACKAGE.parent, "none", "-c", _USE)
    assert run(target, "", "-m", "weighbridge", "--version").startswith(f"weighbridge {__version__} (pure Python, ")
    for path in (p for p in house.tracked() if p.relative_to(house.ROOT).parts[0] == "share"):
        assert (target / path.relative_to(house.ROOT)).read_bytes() == path.read_bytes()
    for topic in guides.topics():  # every page, and nothing else of the docs
        assert run(target, "", "-m", "weighbridge", "help", topic) == guides.read(topic).rstrip("\n") + "\n"
    assert {p.name for p in (target / "weighbridge" / "docs").iterdir()} == {
        p.name for p in house.ROOT.glob("docs/*.md")
    }


def run(place: Path, simd: str, *arguments: str) -> str:
    """What Python prints with the package at `place`. -S: `.pth` files would bring in an editable install."""
    path = os.pathsep.join((str(place), sysconfig.get_path("purelib")))
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        env={**os.environ, "PYTHONPATH": path, "WEIGHBRIDGE_SIMD": simd},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
