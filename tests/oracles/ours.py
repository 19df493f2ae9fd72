"""The one place where the proofs call the converter under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import weighbridge as api


def to_gguf(source: Path, target: Path, dtype: str | None, *, pre: str | None = None) -> Path:
    """`source` (a folder or a file) as one GGUF. `pre` as the command's `--pre`."""
    api.convert(source, target, to="gguf", dtype=dtype, pre=pre)
    return target


def to_folder(source: Path, target: Path, dtype: str | None = None) -> Path:
    """`source` as a Hugging Face folder."""
    api.convert(source, target, to="hf", dtype=dtype)
    return target


def report_of(plan: Any) -> Any:
    """Carries out the plan of a rename, a slice or a strip; what it changes."""
    with plan:
        plan.run()
    return plan.report
