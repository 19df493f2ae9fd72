"""JAX in a process of its own: once it is loaded, every fork of the process warns of its threads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest


def run(code: str, *arguments: str) -> str:
    """What `code` prints, with JAX on the CPU; skips where there is no JAX."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("JAX IS MISSING, so nothing of it was tried: install requirements/oracles.txt")
    head = "import sys, os\nos.environ['JAX_PLATFORMS'] = 'cpu'\nimport jax, numpy as np, weighbridge as wb\n"
    done = subprocess.run([sys.executable, "-c", head + code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
