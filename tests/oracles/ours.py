"""The one place where the proofs call the converter under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import weighbridge as api

# Small models whose GGUF llama.cpp has no graph for, and what of each is too much, missing or of another size for it.
# `wb convert` refuses them (tests/proof/test_refused.py), and `wb prove` says that they aren't loaded.
REFUSED = {
    "smollm3-bias": "doesn't have: 16 tensors: blk.0.ffn_down.bias",
    "seed-oss-out": "doesn't have: 2 tensors: blk.0.attn_output.bias",
    "command-r-plus": "doesn't have: 4 tensors: blk.0.attn_k_norm.weight",  # of 64 layers and more alone
    "starcoder2-plain": "missing: blk.0.attn_output.bias",
    "phi-moe-plain": "missing: output",
    "deepseek-v2-lite": "deepseek2.attention.q_lora_rank is missing",  # of 26 or 27 layers it isn't needed
    "gemma3n": "llama.cpp's graph has 256",
}


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
        patched.setattr("weighbridge.conversion.gguf.loadable.check_loadable", lambda files, source, **options: [])
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
