"""Renders a chat template in a process with limits on memory, time and output. A template is untrusted: Jinja2's
sandbox keeps it from Python's objects, but not from using up the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import TEMPLATE_MEMORY, TEMPLATE_OUTPUT, TEMPLATE_SECONDS, TEMPLATE_WAIT

_WORKER: Final = Path(__file__).with_name("worker.py")
_OLDEST: Final = (3, 1, 6)  # older ones have known ways out of the sandbox

Stopped = Literal["", "memory", "time", "output"]


@dataclass(frozen=True, slots=True)
class Rendering:
    """`text`: up to where it ended. `error`: the template's own, or Jinja2's. `stopped`: the limit that it broke."""

    text: str
    error: str | None = None
    stopped: Stopped = ""


def render(
    template: str, variables: Mapping[str, Any], *, memory: int = TEMPLATE_MEMORY, seconds: int = TEMPLATE_SECONDS,
    output: int = TEMPLATE_OUTPUT, wait: float = TEMPLATE_WAIT,
) -> Rendering:  # fmt: skip
    """The text that `template` makes of `variables`, which are JSON values. `seconds`: of the processor; `wait`: of the
    clock. UnsupportedError where Jinja2 isn't installed, or is too old to be safe."""
    _check_version()
    request = {
        "template": template, "variables": dict(variables), "memory": memory, "seconds": seconds, "output": output,
        "path": sys.path,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PYTHONHASHSEED": "0"},
    ) as child:  # fmt: skip
        try:
            answer, trouble = child.communicate(json.dumps(request).encode("utf-8", "surrogatepass"), wait)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return Rendering("", stopped="time")
        return _answer(child.returncode, answer, trouble)


def _answer(code: int, answer: bytes, trouble: bytes) -> Rendering:
    if code == 0 and answer:
        return Rendering(**json.loads(answer))
    if b"MemoryError" in trouble:
        return Rendering("", stopped="memory")
    if code < 0:  # the system ended it: SIGXCPU or SIGKILL for time, SIGSEGV and SIGABRT where memory is short
        return Rendering("", stopped="time" if -code in _TIME else "memory")
    return Rendering("", error=f"the renderer ended with {code}: {trouble[-500:].decode('utf-8', 'replace')}")


_TIME: Final = (9, 24)  # SIGKILL, SIGXCPU


def _check_version() -> None:
    jinja2 = package("jinja2", "rendering a chat template", "view")
    found = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal())
    if found < _OLDEST:
        raise UnsupportedError(
            f"Jinja2 {jinja2.__version__} has known ways out of its sandbox", hint="pip install 'jinja2>=3.1.6'"
        )
