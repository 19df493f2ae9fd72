"""Every fuzz harness of this folder, for a short while: the invariant holds on its seeds and on 200 damaged ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import harness
import pytest

HERE = Path(__file__).parent


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(HERE.glob("fuzz_*.py")), ids=lambda p: p.stem)
def test_invariant(path: Path) -> None:
    module = load(path)
    assert module.__doc__ and "invariant" in module.__doc__.splitlines()[0].lower()
    assert harness.run(module.target, module.seeds(), iterations=200, seed=1) >= 200


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (lambda data: 1 / len(data), "ZeroDivisionError"),
        (lambda data: bytes(64 << 20), "peak"),
        (lambda data: harness.time.sleep(harness.SLOW + 0.1), "took"),
    ],
    ids=["other exception", "big allocation", "slow"],
)
def test_the_harness_sees(target: harness.Target, why: str) -> None:
    with pytest.raises(harness.Broken, match=why):
        harness.run(target, [b"abc"])
