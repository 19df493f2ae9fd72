"""Translates a Jinja chat template to a Go template for Ollama, if it writes a conversation turn by turn.

The texts between messages are learned from renderings of a few conversations, which covers ChatML, Llama 2 and 3,
Gemma, Phi, Zephyr, Mistral and related formats without a table. Dates are found by format (`dates.py`). Further
conversations are then rendered both ways, also on other days; a template with a different result is refused. Features
that Go templates lack (trimming, removing earlier reasoning, tools) are reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Final, NamedTuple

from weighbridge.adapters.chat.template import Conversation, RenderedChat, render_chats
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.shipping.ollama import dates

Messages = tuple[tuple[str, str], ...]
_HINT: Final = "--template none keeps the Jinja template, which current versions of Ollama render"
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
#: Features that Go templates lack: a conversation that reveals the feature, and its description.
_UNSUPPORTED: Final[tuple[tuple[Messages, str], ...]] = (
    ((("user", "  spaced \n"),), "the Jinja template removes spaces around the text of a message"),
    ((_U, ("assistant", "<think>\nReasoning.\n</think>\n\nReply."), _U2),
     "the Jinja template removes the reasoning of earlier replies"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The texts before the first message, between messages, and after the last, with marked dates. `system`: before a
    system message, None if the template refuses one. `system_last`: a system message is inserted into the last user
    message, before its text and `after_system`."""

    first_user: str
    system: str | None
    after_system: str
    reply: str
    next_user: str
    prompt: str
    system_last: bool = False

    def render(self, messages: Messages, day: date = dates.LEARNED_DAY) -> str:
        """Renders a conversation that ends with a user message, on a day."""
        text, previous, system = "", "", ""
        if self.system_last and messages[0][0] == "system":
            system, messages = messages[0][1] + self.after_system, messages[1:]
        for number, (role, content) in enumerate(messages, 1):
            if role == "user":
                leading = {"": self.first_user, "system": self.after_system}.get(previous, self.next_user)
            else:
                leading = self.reply if role == "assistant" else self.system or ""
            text += dates.write_dates(leading, day) + (system if number == len(messages) else "") + content
            previous = role
        return text + dates.write_dates(self.prompt, day)


@dataclass(frozen=True)
class GoTemplate:
    """`text`: the template. `turns`: its format. `differences`: features of the Jinja template that it lacks."""

    text: str
    turns: TurnFormat
    differences: tuple[str, ...] = ()


def translate(jinja: str, special: Mapping[str, str]) -> GoTemplate:
    """Translates a Jinja template. `special`: the texts of bos_token and eos_token. A leading bos_token is left out,
    since Ollama's tokenizer adds it. Raises UnsupportedError, with the reason, for a template that can't be translated.
    """
    chats = _render(jinja, special)
    turns = _learn(chats)
    system_last = replace(turns, system_last=True)
    if turns.system == turns.first_user and _mismatch(system_last, chats) is None:
        turns = system_last
    if (reason := _mismatch(turns, chats)) is not None:
        raise _refusal(reason)
    differences = [
        feature
        for (messages, feature), chat in zip(_UNSUPPORTED, chats.unsupported, strict=True)
        if chat.text is not None and chat.text != turns.render(messages)
    ]
    if chats.with_tools.text != chats.checked[_CHECKED[0]].text:
        differences.append("the Jinja template describes tools")
    if turns.system is None:
        differences.append("the Jinja template has no system message; it is inserted before the first user message")
    return GoTemplate(go_text(turns), turns, tuple(differences))


class _Rendered(NamedTuple):
    """The renderings of `_CHECKED`, of `_UNSUPPORTED`, of the first conversation with tools, and on other days."""

    checked: Mapping[Messages, RenderedChat]
    unsupported: Sequence[RenderedChat]
    with_tools: RenderedChat
    later: Mapping[date, RenderedChat]


def _render(jinja: str, special: Mapping[str, str]) -> _Rendered:
    plain = [*_CHECKED, *(messages for messages, _ in _UNSUPPORTED)]
    now = dates.seconds(dates.LEARNED_DAY)
    conversations = [Conversation(messages, now=now, special=special) for messages in plain]
    conversations.append(Conversation(_CHECKED[0], (_TOOL,), now, special))
    days = dates.CHECKED_DAYS if "strftime_now" in jinja else dates.CHECKED_DAYS[:1]
    conversations += [Conversation(_CHECKED[0], now=dates.seconds(day), special=special) for day in days]
    bos = special.get("bos_token", "")
    chats = [replace(c, text=c.text and c.text.removeprefix(bos)) for c in render_chats(jinja, conversations)]
    checked = dict(zip(_CHECKED, chats, strict=False))
    unsupported, with_tools = chats[len(_CHECKED) : len(plain)], chats[len(plain)]
    return _Rendered(checked, unsupported, with_tools, dict(zip(days, chats[len(plain) + 1 :], strict=True)))


def _learn(chats: _Rendered) -> TurnFormat:
    """Returns the texts around the messages of three conversations."""
    plain, with_system, several = (chats.checked[messages] for messages in _LEARNED)
    if plain.text is None or several.text is None:
        needs_tools = plain.text is None and chats.with_tools.text is not None
        error = plain.error or several.error
        raise _refusal("it needs tools to be rendered" if needs_tools else f"it can't be rendered: {error}")
    first, prompt = _texts_around(plain.text, _LEARNED[0])
    _, reply, following, _ = _texts_around(several.text, _LEARNED[2])
    if with_system.text is None:
        return TurnFormat(first, None, "\n", reply, following, prompt)
    before, after, _ = _texts_around(with_system.text, _LEARNED[1])
    return TurnFormat(first, before, after, reply, following, prompt)


def _texts_around(text: str, messages: Messages) -> list[str]:
    """Returns the texts before, between and after the messages."""
    texts, rest = [], text
    for _, content in messages:
        before, separator, rest = rest.partition(content)
        if not separator:
            raise _refusal("it doesn't write the messages in order")
        texts.append(dates.mark_dates(before))
    return [*texts, dates.mark_dates(rest)]


def _mismatch(turns: TurnFormat, chats: _Rendered) -> str | None:
    """Returns why the format differs from the template's renderings, or None."""
    for day, chat in chats.later.items():
        if chat.text != turns.render(_CHECKED[0], day):
            return "it writes the date in an unsupported format"
    for messages, chat in chats.checked.items():
        if turns.system is None and messages[0][0] == "system":
            continue
        if chat.text != turns.render(messages):
            roles = ", ".join(role for role, _ in messages)
            return f"it doesn't write turn by turn: the result differs for a conversation of {roles}"
    return None


def _refusal(reason: str) -> UnsupportedError:
    return UnsupportedError(f"the chat template can't be translated to a Go template: {reason}", hint=_HINT)


def go_text(turns: TurnFormat) -> str:
    """Returns the Go template for the format. Texts are quoted, so that nothing in them is trimmed or executed."""
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


#: Inserts the system message into the last user message.
_NUMBERED: Final = (
    '{{- $system := "" }}\n'
    '{{- range .Messages }}{{ if eq .Role "system" }}{{ $system = .Content }}{{ end }}{{ end }}\n'
    "{{- range $number, $message := .Messages }}\n"
)
_SYSTEM_LAST: Final = "{{ if and $system (eq (len (slice $.Messages $number)) 1) }}{{ $system }}AFTER{{ end }}"


def _quoted(text: str) -> str:
    """Returns a text as quoted Go strings and actions for its dates. JSON's escapes are valid in Go."""
    return "".join(
        form.go if form else f"{{{{ {json.dumps(piece, ensure_ascii=False)} }}}}" if piece else ""
        for piece, form in dates.pieces(text)
    )
