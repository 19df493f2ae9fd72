"""A text for tests of calibration, and what they share: a built folder, an importance matrix that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.oracles import models

from weighbridge.conversion.quantize import imatrix as matrices
from weighbridge.conversion.quantize.imatrix import ImportanceMatrix
from weighbridge.io.location import open_source

CTX: Final = 32
TEXT: Final = "It was the best of times, it was the worst of times. \n" * 40


def written(folder: Path) -> Path:
    """The text as a file."""
    path = folder / "text.txt"
    path.write_text(TEXT)
    return path


def built(name: str, parent: Path) -> Path:
    return models.build(models.CASES[name], parent / name)


def read_imatrix(path: Path) -> ImportanceMatrix:
    with open_source(path) as source:
        return matrices.read(source)
