"""Chat templates rendered by jinja2, in a process of its own with bounds on time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import GIB

_SECONDS: Final = 60.0  # for all conversations; they take milliseconds
_MEMORY: Final = GIB


@dataclass(frozen=True)
class Conversation:
    """`messages`: role and content. `now`: seconds since 1970 (UTC), for templates that write the date."""

    messages: tuple[tuple[str, str], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    now: float = 0.0
    special: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RenderedChat:
    """The prompt, up to where the assistant goes on; None with the reason in `error`."""

    text: str | None
    error: str = ""


def render_chats(template: str, conversations: Sequence[Conversation]) -> list[RenderedChat]:
    """Each conversation as the template writes it. UnsupportedError where jinja2 isn't installed, or the template takes
    more than a minute or a GiB."""
    if find_spec("jinja2") is None:
        raise UnsupportedError("chat templates need the package jinja2", hint='pip install "weighbridge[ship]"')
    worker = Path(__file__).with_name("chat_worker.py")
    request = {"template": template, "limit": _MEMORY, "cases": [_case(c) for c in conversations]}
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(worker)], input=json.dumps(request), capture_output=True, text=True,
            timeout=_SECONDS, check=True, encoding="utf-8", errors="surrogatepass",
        )  # fmt: skip
        answers = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        raise UnsupportedError("the chat template didn't come to an end within a minute and a GiB of memory") from None
    return [RenderedChat(answer.get("text"), answer.get("error", "")) for answer in answers]


def _case(one: Conversation) -> dict[str, Any]:
    messages = [{"role": role, "content": content} for role, content in one.messages]
    return {"messages": messages, "tools": list(one.tools) or None, "now": one.now, **one.special}
