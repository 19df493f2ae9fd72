"""Runs a command and prints its seconds and peak memory as JSON; its output goes nowhere, its errors to ours.

A process of its own because a program inherits the peak memory of the process that started it: this one is small.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main() -> int:
    began = time.perf_counter()
    child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "memory": memory}))
    return child.returncode


if __name__ == "__main__":
    raise SystemExit(main())
