"""The verdict on a model, with the findings of verify and scan. For a model with many tensors it is computed in a
subprocess: the reports parse the headers again, and that memory is freed with the process.

    python -m weighbridge.page.findings PATH      the verdict as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.plain import plain
from weighbridge.page.control import Control

_MANY: Final = 20_000  # tensors; from here on, the memory saved is worth a process
_TICK: Final = 0.1  # seconds


def findings(path: str, tensors: int, control: Control) -> dict[str, Any]:
    """Returns the verdict with its findings. Raises the reports' errors, and CancelledError."""
    if tensors <= _MANY or sys.platform == "emscripten":  # a browser has no processes
        return _reports(path)
    command = [sys.executable, "-m", __name__, path]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            while True:
                control.progress(0, 0)
                try:
                    output, errors = child.communicate(timeout=_TICK)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise UnsupportedError(f"the checks exited with {child.returncode}: {errors[-500:].decode(errors='replace')}")
    reports: dict[str, Any] = json.loads(output)
    if "error" in reports:
        raise UnsupportedError(reports["error"], hint=reports["hint"])
    return reports


def _reports(path: str) -> dict[str, Any]:
    from weighbridge.page.verdict import verdict
    from weighbridge.reports.scan.engine import scan
    from weighbridge.reports.verify.report import verify

    return plain(verdict(path, verify(path), scan(path)))  # type: ignore[no-any-return]


if __name__ == "__main__":
    output: dict[str, Any]
    try:
        output = _reports(sys.argv[1])
    except WeighbridgeError as failure:
        output = {"error": failure.message, "hint": failure.hint}
    sys.stdout.write(json.dumps(output))
