"""A Jinja chat template as a Go template for Ollama, where a conversation is written turn by turn.

The texts between the messages are learned from renderings of a few conversations, which covers ChatML, Llama 2 and 3,
Gemma, Phi, Zephyr, Mistral and their relatives without a table of them. Dates in them are found by their forms
(`dates.py`). Others are then rendered both ways, also on other days; a template that writes one of those differently is
refused. What a Go template can't do (trimming, removing earlier reasoning, tools) is listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final, NamedTuple

from weighbridge.adapters.chat_template import Conversation, RenderedChat, render_chats
from weighbridge.base.errors import UnsupportedError
from weighbridge.shipping.ollama import dates

Messages = tuple[tuple[str, str], ...]
_OTHER_WAY: Final = "--template none leaves it to the model's own template, which current versions of Ollama render"
_S, _U, _A = (("system", "Ssystemtext"), ("user", "Uusertext"), ("assistant", "Areplytext"))
_U2, _A2, _U3 = (("user", "Usecondtext"), ("assistant", "Asecondreply"), ("user", "Uthirdtext"))
_ODD: Final = (("user", 'two\n\nlines, "quotes", {{ braces }}, ünïcode \U0001f600'), ("assistant", "a\nb\tc"), _U3)
_LEARNED: Final[tuple[Messages, ...]] = ((_U,), (_S, _U), (_U, _A, _U2))
_CHECKED: Final[tuple[Messages, ...]] = (
    *_LEARNED,
    (_S, _U, _A, _U2),
    (_U, _A, _U2, _A2, _U3),
    (_S, _U, _A, _U2, _A2, _U3),
    _ODD,
    (_S, *_ODD),
)
_TOOL: Final = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather of a place.",
                 "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}  # fmt: skip
#: What Go templates can't do: a conversation that shows it, and the words for it.
_BEYOND: Final[tuple[tuple[Messages, str], ...]] = (
    ((("user", "  spaced \n"),), "the model's own template removes spaces around the text of a message"),
    ((_U, ("assistant", "<think>\nReasoning.\n</think>\n\nReply."), _U2),
     "the model's own template removes the reasoning of earlier replies"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The texts before the first message, between messages, and after the last, with marks for dates. `system`: before
    a system message; None where the template refuses one. `system_last`: a system message is put into the last user's,
    before its text and `after_system`."""

    first_user: str
    system: str | None
    after_system: str
    reply: str
    next_user: str
    prompt: str
    system_last: bool = False

    def render(self, messages: Messages, day: date = dates.LEARNED_DAY) -> str:
        """A conversation that ends with a user's message, on a day."""
        text, before, moved = "", "", ""
        if self.system_last and messages[0][0] == "system":
            moved, messages = messages[0][1] + self.after_system, messages[1:]
        for number, (role, content) in enumerate(messages, 1):
            put = moved if number == len(messages) else ""
            text += dates.on(self._leading(role, before), day) + put + content
            before = role
        return text + dates.on(self.prompt, day)

    def _leading(self, role: str, before: str) -> str:
        if role == "user":
            return {"": self.first_user, "system": self.after_system}.get(before, self.next_user)
        return self.reply if role == "assistant" else self.system or ""


@dataclass(frozen=True)
class GoTemplate:
    """`text`: the template; `turns`: what it writes; `differences`: what it can't do that the Jinja template does."""

    text: str
    turns: TurnFormat
    differences: tuple[str, ...] = ()


def translate(jinja: str, special: Mapping[str, str]) -> GoTemplate:
    """The Go template of a Jinja one. `special`: the texts of bos_token and eos_token. The text of bos_token at the
    start is left out, since Ollama's tokenizer adds it. UnsupportedError, with the reason, where there is none."""
    chats = _rendered(jinja, special)
    turns = _learned(chats)
    moved = replace(turns, system_last=True)
    if turns.system == turns.first_user and _wrong(moved, chats) is None:
        turns = moved
    if (reason := _wrong(turns, chats)) is not None:
        raise _refused(reason)
    return GoTemplate(go_text(turns), turns, tuple(_differences(turns, chats)))


class _Rendered(NamedTuple):
    """The template's renderings of `_CHECKED`, of `_BEYOND`, of the first one with tools, and on other days."""

    checked: Mapping[Messages, RenderedChat]
    beyond: Sequence[RenderedChat]
    with_tools: RenderedChat
    later: Mapping[date, RenderedChat]


def _rendered(jinja: str, special: Mapping[str, str]) -> _Rendered:
    plain = [*_CHECKED, *(messages for messages, _ in _BEYOND)]
    now = dates.seconds(dates.LEARNED_DAY)
    asked = [Conversation(messages, now=now, special=special) for messages in plain]
    asked.append(Conversation(_CHECKED[0], (_TOOL,), now, special))
    days = dates.CHECKED_DAYS if "strftime_now" in jinja else dates.CHECKED_DAYS[:1]
    asked += [Conversation(_CHECKED[0], now=dates.seconds(day), special=special) for day in days]
    bos = special.get("bos_token", "")
    found = [replace(c, text=c.text and c.text.removeprefix(bos)) for c in render_chats(jinja, asked)]
    checked = dict(zip(_CHECKED, found, strict=False))
    beyond, with_tools = found[len(_CHECKED) : len(plain)], found[len(plain)]
    return _Rendered(checked, beyond, with_tools, dict(zip(days, found[len(plain) + 1 :], strict=True)))


def _differences(turns: TurnFormat, chats: _Rendered) -> Iterator[str]:
    """What the Go template doesn't do, in words."""
    for (messages, words), found in zip(_BEYOND, chats.beyond, strict=True):
        if found.text is not None and found.text != turns.render(messages):
            yield words
    if chats.with_tools.text != chats.checked[_CHECKED[0]].text:
        yield "the model's own template describes tools"
    if turns.system is None:
        yield "the model's own template has no system message; it is put before the first user's text"


def _learned(chats: _Rendered) -> TurnFormat:
    """The texts around the messages of three conversations."""
    one, two, three = (chats.checked[messages] for messages in _LEARNED)
    if one.text is None or three.text is None:
        listing = one.text is None and chats.with_tools.text is not None
        raise _refused(
            "it can be rendered with tools alone" if listing else f"it can't be rendered: {one.error or three.error}"
        )
    first, prompt = _parts(one.text, _LEARNED[0])
    _, reply, following, _ = _parts(three.text, _LEARNED[2])
    if two.text is None:  # no system role
        return TurnFormat(first, None, "\n", reply, following, prompt)
    before, after, _ = _parts(two.text, _LEARNED[1])
    return TurnFormat(first, before, after, reply, following, prompt)


def _parts(text: str, messages: Messages) -> list[str]:
    """What stands around the messages."""
    found, rest = [], text
    for _, content in messages:
        before, there, rest = rest.partition(content)
        if not there:
            raise _refused("it doesn't write the messages one after the other")
        found.append(dates.marked(before))
    return [*found, dates.marked(rest)]


def _wrong(turns: TurnFormat, chats: _Rendered) -> str | None:
    """Which conversation is rendered differently, or whether one is on another day."""
    for day, later in chats.later.items():
        if later.text != turns.render(_CHECKED[0], day):
            return "it writes the date in a form of its own"
    for messages, found in chats.checked.items():
        if turns.system is None and messages[0][0] == "system":
            continue
        if found.text != turns.render(messages):
            roles = ", ".join(role for role, _ in messages)
            return f"it isn't written turn by turn: a conversation of {roles} comes out differently"
    return None


def _refused(reason: str) -> UnsupportedError:
    return UnsupportedError(f"the chat template can't be translated to a Go template: {reason}", hint=_OTHER_WAY)


def go_text(turns: TurnFormat) -> str:
    """The Go template that renders as `turns` does. Texts are quoted, so that nothing in them is trimmed or run."""
    first = _quoted(turns.first_user)
    system = first if turns.system is None else _quoted(turns.system)
    after = _quoted(turns.after_system)
    beginning, system_turn, before_content = "{{- range .Messages }}\n", f"{system}{{{{ .Content }}}}", ""
    if turns.system_last:
        beginning, system_turn, before_content = _NUMBERED, "", _SYSTEM_LAST.replace("AFTER", after)
        after = first
    return (
        '{{- $before := "" }}\n'
        f"{beginning}"
        f'{{{{- if eq .Role "system" }}}}{system_turn}\n'
        '{{- else if eq .Role "user" }}\n'
        f'{{{{- if eq $before "" }}}}{first}\n'
        f'{{{{- else if eq $before "system" }}}}{after}\n'
        f"{{{{- else }}}}{_quoted(turns.next_user)}\n"
        f"{{{{- end }}}}{before_content}{{{{ .Content }}}}\n"
        f'{{{{- else if eq .Role "assistant" }}}}{_quoted(turns.reply)}{{{{ .Content }}}}\n'
        "{{- end }}\n"
        "{{- $before = .Role }}\n"
        f"{{{{- end }}}}{_quoted(turns.prompt)}"
    )


#: Where the system message goes into the last user's.
_NUMBERED: Final = (
    '{{- $system := "" }}\n'
    '{{- range .Messages }}{{ if eq .Role "system" }}{{ $system = .Content }}{{ end }}{{ end }}\n'
    "{{- range $number, $message := .Messages }}\n"
)
_SYSTEM_LAST: Final = "{{ if and $system (eq (len (slice $.Messages $number)) 1) }}{{ $system }}AFTER{{ end }}"


def _quoted(text: str) -> str:
    """A text as Go strings, with actions for its dates; the escapes of JSON are among Go's."""
    return "".join(_action(piece) if form is None else form.go for piece, form in dates.pieces(text))


def _action(text: str) -> str:
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""
