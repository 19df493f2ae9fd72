"""jinja2 without its sandbox, where every step to Python's insides is noticed: by an underscored name of anything, or
by a format string that walks along attributes."""

from __future__ import annotations

import re
import string

INSIDE = re.compile(
    r"_|(mro|func_(globals|code|closure)|(gi|cr|ag)_(frame|code)|tb_frame|f_(globals|locals|builtins|code|back))\Z"
)
FIELD = re.compile(r"[.\[]\s*_")


def render(text, state):
    """Render a chat template as loaders without a sandbox do, with messages that notice who asks for their insides."""
    import jinja2

    environment = _environment(jinja2, state)
    template = environment.from_string(text)
    template.render(
        messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "_"}], tools=None,
        bos_token="<s>", eos_token="</s>", add_generation_prompt=True, raise_exception=_refuse, strftime_now=str,
    )  # fmt: skip


def _refuse(*_):
    raise ValueError


def _environment(jinja2, state):
    def noticed(name):
        if isinstance(name, str) and INSIDE.match(name):
            state.say(f"call attribute {name}")
            raise state.stopped()

    class Environment(jinja2.Environment):
        def getattr(self, obj, attribute):
            if not (isinstance(obj, dict) and attribute in obj):
                noticed(attribute)
            return super().getattr(obj, attribute)

        def getitem(self, obj, argument):
            if not (isinstance(obj, dict) and argument in obj):
                noticed(argument)
            return super().getitem(obj, argument)

    class Context(jinja2.runtime.Context):
        def call(self, obj, *args, **kwargs):
            owner = getattr(obj, "__self__", None)
            if isinstance(owner, str) and getattr(obj, "__name__", "") in ("format", "format_map"):
                walks(owner)
            return super().call(obj, *args, **kwargs)

    def walks(text):
        try:
            fields = [f for _, f, spec, _ in string.Formatter().parse(text) for f in (f, spec) if f]
        except ValueError:
            return
        if any(FIELD.search(f) for f in fields):
            state.say("call format")
            raise state.stopped()

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.context_class = Context
    environment.filters["attr"] = lambda obj, name: environment.getattr(obj, str(name))
    environment.filters["tojson"] = lambda x, **_: str(x)
    return environment
