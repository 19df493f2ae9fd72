"""One scanner over many files, for `scanners.py`: its command is imported once, and called in a fork for each file as
its console script does, so that a crash, an exit or a change of state stays with that file.

    PYTHON scanner_worker.py MODULE:FUNCTION ARGUMENT... < paths (one a line)  > lines of JSON {code, seconds}

`code`: what the process exits with; 128 and more: killed by that signal (14: our alarm).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time

TIMEOUT = 60


def child(main: object, arguments: list[str], path: str) -> None:
    """What the console script does, with nothing on the screen. Ends the process."""
    signal.alarm(TIMEOUT)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.argv = [sys.argv[1], *arguments, path]
        try:
            code = main()  # type: ignore[operator]
        except SystemExit as stop:
            code = stop.code
        except BaseException:  # a crash of the scanner, which Python would report with 1
            code = 70
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def run(main: object, arguments: list[str], path: str) -> tuple[int, float]:
    """Exit code and seconds."""
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        child(main, arguments, path)
    _, status = os.waitpid(pid, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    return code, time.perf_counter() - start


def work() -> None:
    module, _, name = sys.argv[1].partition(":")
    main = getattr(importlib.import_module(module), name)
    paths = sys.stdin.read().splitlines()
    for path in paths:
        code, seconds = run(main, sys.argv[2:], path)
        print(json.dumps({"code": code, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    work()
