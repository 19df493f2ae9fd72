"""The entry point of `wb` and `weighbridge`, which sets the garbage collector for the process of a command."""

from __future__ import annotations

import gc
from typing import Final

# New objects between two collections. With Python's default of 700, importing the 300 modules of a command triggers 100
# collections, which find nothing and take a seventh of the start.
_THRESHOLD: Final = 100_000


def run() -> int:
    """Runs `main` and returns its exit code."""
    gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])
    from weighbridge.cli.main import main

    try:
        return main()
    finally:
        gc.freeze()  # otherwise the interpreter collects once more before it exits, which takes 20 ms
