"""The one place where the proofs call the converter under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import weighbridge as api

# Small models whose GGUF llama.cpp has no graph for: biases and norms that it doesn't know, a width that it has built
# in, fewer layers than it tells a model by. `wb convert` refuses them (tests/proof/test_refused.py).
REFUSED = frozenset(
    {
        "smollm3-bias", "seed-oss-out", "command-r-plus", "starcoder2-plain", "phi-moe-plain", "deepseek-v2-lite",
        "gemma3n",
    }
)  # fmt: skip


def to_gguf(source: Path, target: Path, dtype: str | None, *, pre: str | None = None, checked: bool = True) -> Path:
    """`source` (a folder or a file) as one GGUF. `pre` as the command's `--pre`. Without `checked` also one that
    llama.cpp refuses, for its bytes."""
    with nullcontext() if checked else unchecked():
        api.convert(source, target, to="gguf", dtype=dtype, pre=pre)
    return target


@contextmanager
def unchecked() -> Iterator[None]:
    """Plans of GGUFs aren't held to what llama.cpp loads."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("weighbridge.conversion.plan.build.check_loadable", lambda files, source: [])
        yield


def to_folder(source: Path, target: Path, dtype: str | None = None) -> Path:
    """`source` as a Hugging Face folder."""
    api.convert(source, target, to="hf", dtype=dtype)
    return target


def report_of(plan: Any) -> Any:
    """Carries out the plan of a rename, a slice or a strip; what it changes."""
    with plan:
        plan.run()
    return plan.report
