"""The process that renders a chat template: a template is a program, which may loop or grow without bound.

`adapters/chat/template.py` runs it as a script; it imports nothing from Weighbridge. It reads one JSON object from
standard input: {"template", "cases" (its variables), "now" (seconds since 1970, or null: the clock's), "path",
"memory" in bytes and "seconds" of CPU time on top of the process's use without a template, "output" in characters,
"engine"}. It drops everything that a template could abuse, renders, and writes a JSON list of {"text", "error",
"stopped"}, one for each case.

The engine "transformers" is that library's own code. The other engine's environment matches it
(utils/chat_template_utils.py, `_compile_jinja_template`): an immutable sandbox, trim_blocks, lstrip_blocks, break
and continue, `{% generation %}`, `tojson`, `raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def confine(memory: int, seconds: int) -> None:
    """Sets limits for the rest of the process, if the system has them (Windows doesn't). They are added to the
    process's use so far: importing another library takes more than any template."""
    with suppress(ImportError):
        import resource

        with suppress(OSError):  # Linux has this file
            memory += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        seconds += int(time.process_time()) + 1
        limits = ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, 0),
                  (resource.RLIMIT_CORE, 0))  # fmt: skip
        for which, limit in limits:
            try:
                resource.setrlimit(which, (limit, limit))
            except (ValueError, OSError):  # macOS maps more address space at start than any such limit
                if sys.platform != "darwin" or which != resource.RLIMIT_AS:
                    raise
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def environment(now: float | None) -> Any:
    from datetime import UTC, datetime

    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's text; it renders as its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    at = datetime.now() if now is None else datetime.fromtimestamp(now, UTC)
    made.globals["strftime_now"] = at.strftime
    return made


#: The text of a template with its variables, in pieces.
Engine = Callable[[str, dict[str, Any]], Iterable[str]]


def engine_of(name: str, now: float | None) -> Engine:
    """Returns the engine with this name and imports everything that it needs."""
    if name == "transformers":
        from transformers.utils.chat_template_utils import render_jinja_template

        def of_transformers(template: str, variables: dict[str, Any]) -> Iterable[str]:
            given = {"chat_template": template, **variables}
            return render_jinja_template([given.pop("messages")], **given)[0]  # type: ignore[no-any-return]

        return of_transformers
    made = environment(now)
    return lambda template, variables: made.from_string(template).generate(**variables)


def render(engine: Engine, template: str, variables: dict[str, Any], most: int) -> dict[str, str]:
    """`text`, and what ended it: `error` (the template's own), `stopped` ("output", "memory")."""
    parts: list[str] = []
    size = 0
    try:
        for part in engine(template, variables):
            parts.append(part[: most - size])
            size += len(part)
            if size > most:
                return {"text": "".join(parts), "stopped": "output"}
    except MemoryError:
        parts.clear()
        return {"text": "", "stopped": "memory"}
    except Exception as error:  # a program of anybody's may raise anything
        return {"text": "".join(parts), "error": f"{type(error).__name__}: {error}"[:2000]}
    return {"text": "".join(parts)}


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    engine = engine_of(request["engine"], request["now"])  # imported before memory is short
    sys.setrecursionlimit(500)
    confine(request["memory"], request["seconds"])
    answers = [render(engine, request["template"], case, request["output"]) for case in request["cases"]]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
