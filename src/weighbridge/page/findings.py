"""What verify and scan say of a model. That of many tensors is checked in a process of its own: both read its headers
again, and the memory for that goes back with the process.

    python -m weighbridge.page.findings PATH      the findings as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.plain import plain

if TYPE_CHECKING:
    from weighbridge.page.book import Control

_MANY: Final = 20_000  # tensors, from which on a process costs less than its memory is worth
_SHOWN: Final = 200  # findings of a report
_TICK: Final = 0.1  # seconds


def findings(path: str, tensors: int, control: Control) -> Any:
    """The first findings of both reports. Errors: as theirs; CancelledError."""
    return _apart(path, control) if tensors > _MANY else _found(path)


def _found(path: str) -> dict[str, Any]:
    from weighbridge.reports.scan.engine import scan
    from weighbridge.reports.verify.report import verify

    checked, scanned = plain(verify(path)), plain(scan(path))
    return {
        "verify": {**checked, "findings": checked["findings"][:_SHOWN], "verdicts": []},
        "scan": {**scanned, "files": [f for f in scanned["files"] if f["findings"] or f["skipped"]][:_SHOWN]},
    }


def _apart(path: str, control: Control) -> Any:
    command = [sys.executable, "-m", __name__, path]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            while True:
                control.progress(0, 0)
                try:
                    answer, trouble = child.communicate(timeout=_TICK)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise UnsupportedError(f"the checks ended with {child.returncode}: {trouble[-500:].decode(errors='replace')}")
    found = json.loads(answer)
    if "error" in found:
        raise UnsupportedError(found["error"], hint=found["hint"])
    return found


def _main(path: str) -> None:
    found: dict[str, Any]
    try:
        found = _found(path)
    except WeighbridgeError as error:
        found = {"error": error.message, "hint": error.hint}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1])
