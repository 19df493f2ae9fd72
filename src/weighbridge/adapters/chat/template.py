"""Chat templates rendered by Jinja2 in a separate process with limits on memory, time and output. A template is
untrusted: Jinja2's sandbox protects Python's objects, but not the machine's resources."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import TEMPLATE_MEMORY, TEMPLATE_OUTPUT, TEMPLATE_SECONDS, TEMPLATE_WAIT
from weighbridge.base.records import dataclass

_WORKER: Final = Path(__file__).with_name("worker.py")
_OLDEST: Final = (3, 1, 6)  # older ones have known ways out of the sandbox
_TIME: Final = (9, 24)  # SIGKILL, SIGXCPU
_SECONDS: Final = 60.0  # of the clock, for all conversations of `render_chats`, and for transformers with its import

Stopped = Literal["", "memory", "time", "output"]
Engine = Literal["jinja2", "transformers"]


@dataclass(frozen=True, slots=True)
class Rendering:
    """`text`: the output up to the end or the error. `error`: the error of the template or of Jinja2. `stopped`: the
    limit that was exceeded."""

    text: str
    error: str | None = None
    stopped: Stopped = ""


def render(template: str, variables: Mapping[str, Any], *, wait: float = TEMPLATE_WAIT) -> Rendering:
    """The text that `template` makes of `variables`, which are JSON values. `wait`: seconds of the clock.
    UnsupportedError where Jinja2 isn't installed, or is too old to be safe."""
    return render_each(template, [dict(variables)], None, wait, "view")[0]


def render_by_transformers(template: str, variables: Mapping[str, Any], *, wait: float = _SECONDS) -> Rendering:
    """As `render`, by transformers' own code. UnsupportedError where transformers isn't installed."""
    if find_spec("transformers") is None:
        raise UnsupportedError("transformers isn't installed", hint='pip install "weighbridge[transformers]"')
    return render_each(template, [dict(variables)], None, wait, "view", "transformers")[0]


def render_each(
    template: str,
    cases: Sequence[dict[str, Any]],
    now: float | None,
    wait: float,
    extra: str,
    engine: Engine = "jinja2",
) -> list[Rendering]:
    """Renders the template for each case in one process. A case that exceeds a limit ends all. The CPU time grows with
    `wait`: large templates take a second for a dozen conversations."""
    jinja2 = package("jinja2", "rendering a chat template", extra)
    found = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal())
    if found < _OLDEST:
        raise UnsupportedError(
            f"Jinja2 {jinja2.__version__} has known ways out of its sandbox", hint="pip install 'jinja2>=3.1.6'"
        )
    request = {
        "template": template, "cases": cases, "now": now, "path": sys.path, "memory": TEMPLATE_MEMORY,
        "seconds": math.ceil(TEMPLATE_SECONDS * wait / TEMPLATE_WAIT), "output": TEMPLATE_OUTPUT, "engine": engine,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            answer, trouble = child.communicate(json.dumps(request).encode(), wait)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return [Rendering("", stopped="time")] * len(cases)
    if child.returncode == 0 and answer:
        return [Rendering(**found) for found in json.loads(answer)]
    return [_ended(child.returncode, trouble)] * len(cases)


def _ended(code: int, trouble: bytes) -> Rendering:
    """Explains why the process ended without an answer."""
    if b"MemoryError" in trouble:
        return Rendering("", stopped="memory")
    if code < 0:  # the system ended it; SIGSEGV and SIGABRT come where memory is short
        return Rendering("", stopped="time" if -code in _TIME else "memory")
    return Rendering("", error=f"the renderer ended with {code}: {trouble[-500:].decode('utf-8', 'replace')}")


# ---- conversations of plain turns ----


@dataclass(frozen=True)
class Conversation:
    """`messages`: role and content. `now`: seconds since 1970 (UTC), for templates that write the date."""

    messages: tuple[tuple[str, str], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    now: float = 0.0
    special: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RenderedChat:
    """The prompt, up to the assistant's reply; None with the reason in `error`."""

    text: str | None
    error: str = ""


def render_chats(template: str, conversations: Sequence[Conversation]) -> list[RenderedChat]:
    """Each conversation as the template writes it. UnsupportedError where Jinja2 isn't installed, or the template
    breaks a limit on time or memory."""
    out: list[RenderedChat] = []
    times = {c.now for c in conversations}
    found = {now: iter(render_each(template, [_case(c) for c in conversations if c.now == now], now, _SECONDS, "ship"))
             for now in times}  # fmt: skip
    for one in conversations:
        made = next(found[one.now])
        if made.stopped:
            raise UnsupportedError("the chat template didn't come to an end within its limits of time and memory")
        out.append(RenderedChat(None if made.error else made.text, made.error or ""))
    return out


def _case(one: Conversation) -> dict[str, Any]:
    messages = [{"role": role, "content": content} for role, content in one.messages]
    tokens = {name: one.special[name] for name in ("bos_token", "eos_token") if one.special.get(name) is not None}
    return {"messages": messages, "tools": list(one.tools) or None, "add_generation_prompt": True, **tokens}
