"""The entry point of `wb` and `weighbridge`, which sets the garbage collector and numpy's BLAS for the process of a
command."""

from __future__ import annotations

import gc
import os
from typing import Final

# New objects between two collections. With Python's default of 700, importing the 300 modules of a command triggers 100
# collections, which find nothing and take a seventh of the start.
_THRESHOLD: Final = 100_000
# For how long OpenBLAS's threads wait for work before they sleep, as a power of two of clock cycles. By default each of
# them takes a core for 0.1 s once numpy is imported; 0.5 ms is enough for products of matrices one after the other.
_BLAS_WAIT: Final = ("OPENBLAS_THREAD_TIMEOUT", "20")


def run() -> int:
    """Runs `main` and returns its exit code."""
    gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])
    os.environ.setdefault(*_BLAS_WAIT)
    from weighbridge.cli.main import main

    try:
        return main()
    finally:
        gc.freeze()  # otherwise the interpreter collects once more before it exits, which takes 20 ms
