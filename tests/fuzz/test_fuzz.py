"""Every fuzz harness of this folder, for a short while: the invariant holds on its seeds and on 60 damaged ones.
`make fuzz`, which CI runs, gives each of them many more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.programs import load_program

harness = load_program(Path(__file__).with_name("harness.py"))


@pytest.mark.fuzz
@pytest.mark.parametrize("path", harness.harnesses(), ids=lambda p: p.stem)
def test_invariant(path: Path) -> None:
    module = harness.load(path)
    assert "invariant" in module.__doc__.splitlines()[0].lower()
    assert harness.run_module(module, iterations=60, seed=1) >= 60


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.costly
@pytest.mark.parametrize(
    ("target", "why"),
    [
        (lambda data: 1 / len(data), "ZeroDivisionError"),
        (lambda data: bytes(64 << 20), "peak"),
        (lambda data: burn(harness.SLOW + 0.1), "took"),
    ],
    ids=["other exception", "big allocation", "slow"],
)
def test_the_harness_sees(target: Any, why: str) -> None:
    with pytest.raises(harness.Broken, match=why):
        harness.run(target, [b"abc"])


def test_inputs_are_reproducible() -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        harness.run(seen.append, [bytes(range(64))], iterations=50, seed=seed)
        return seen

    assert inputs(1) == inputs(1) != inputs(2)


TOYS = {
    "fuzz_formats": b"TNSR",
    "fuzz_packings": b"toy_codes",
    "fuzz_gguf": (7000).to_bytes(4, "little"),
    "fuzz_arch_file": b'name = "toy"',
}


@pytest.mark.parametrize("name", TOYS)
def test_plugins_are_fuzzed(name: str) -> None:
    """The seeds of a harness over a registry contain what plug-ins add to it."""
    module = harness.load(harness.HERE / f"{name}.py")
    assert not any(TOYS[name] in data for data in module.seeds()) or name in ("fuzz_gguf", "fuzz_arch_file")
    with module.context():
        assert any(TOYS[name] in data for data in module.seeds())
