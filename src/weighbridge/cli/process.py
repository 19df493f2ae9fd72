"""The commands `wb` and `weighbridge`: a process of their own, whose garbage collector is set for that."""

from __future__ import annotations

import gc

# Net new objects between two collections. A command imports some 300 modules, which Python's 700 make it search 100
# times, and a plan holds all its objects until the end: a seventh of the time of a start. Cycles still end as garbage.
_OBJECTS = 100_000


def run() -> int:
    """Runs `main` and returns its exit code."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    from weighbridge.cli.main import main

    try:
        return main()
    finally:
        gc.freeze()  # else the interpreter, when it ends, searches what ends with it: 20 ms
