"""Renders chat templates in a process of its own: a template is a program, which may loop or grow without end.

Run by `adapters/chat_template.py` as a script, with nothing of Weighbridge imported. Reads one JSON object from
standard input, {"template", "limit" (bytes), "cases": [{"messages", "tools", "bos_token", "eos_token", "now"}]}, and
writes a JSON list with {"text"} or {"error"} for each case; `now` is in seconds since 1970. The environment is that of
transformers (utils/chat_template_utils.py, 5.23).
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    _bound(request["limit"])
    json.dump([_answer(request["template"], case) for case in request["cases"]], sys.stdout)


def _bound(limit: int) -> None:
    """Let the process have so many bytes of memory, where the system can hold it to that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(template: str, case: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": _environment(case["now"]).from_string(template).render(**_variables(case))}
    except (Exception, MemoryError, RecursionError) as error:  # a program of anybody's may raise anything
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _variables(case: dict[str, Any]) -> dict[str, Any]:
    known = {"messages": case["messages"], "add_generation_prompt": True, "tools": case.get("tools")}
    return known | {name: case[name] for name in ("bos_token", "eos_token") if case.get(name) is not None}


def _environment(now: float) -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.fromtimestamp(now, UTC).strftime(form)
    return environment


def _raise(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    main()
