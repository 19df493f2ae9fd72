"""Renders a model's chat template with example conversations, marks special tokens, and compares with transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from weighbridge.adapters.chat import template as templates
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.models.tokenizer import Vocab
from weighbridge.page.chat.conversations import CONVERSATIONS
from weighbridge.page.chat.tokens import special_tokens
from weighbridge.page.side_by_side import LinePair, side_by_side

SCHEMA: Final = "weighbridge/rendered-template/1"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The special token `id` at characters [start, end) of the text."""

    start: int
    end: int
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    """`text`: the model's input. It is incomplete if the template raised an `error`, or if a limit (memory, time,
    output) `stopped` it."""

    conversation: str
    template: str
    text: str
    spans: tuple[TokenSpan, ...]
    error: str | None
    stopped: str
    schema: str = SCHEMA

    @property
    def ended(self) -> str:
        """The reason why the text is incomplete; empty for a complete one."""
        return self.error or self.stopped


@dataclass(frozen=True, slots=True)
class TemplateComparison:
    """Our rendering of a conversation and that of transformers. `reference`: None without transformers, for the
    `reason` given. `same`: equal text, or equal error. `lines`: different texts side by side."""

    ours: RenderedTemplate
    reference: RenderedTemplate | None
    same: bool
    lines: tuple[LinePair, ...] = ()
    reason: str = ""


def render(
    vocab: Vocab,
    conversation: str | Mapping[str, Any] = "plain",
    *,
    template: str = DEFAULT,
    add_generation_prompt: bool = True,
) -> RenderedTemplate:
    """Renders a template in a process with limits. `conversation`: a name in `CONVERSATIONS`, or the template's
    variables. Raises UsageError for an unknown name, and UnsupportedError if the model has no template or Jinja2 isn't
    installed."""
    variables = _variables(vocab, conversation, add_generation_prompt)
    rendering = templates.render(_template_text(vocab, template), variables)
    name = conversation if isinstance(conversation, str) else "own"
    spans = tuple(_spans(vocab, rendering.text))
    return RenderedTemplate(name, template, rendering.text, spans, rendering.error, rendering.stopped)


def render_both(
    vocab: Vocab,
    conversation: str | Mapping[str, Any] = "plain",
    *,
    template: str = DEFAULT,
    add_generation_prompt: bool = True,
) -> TemplateComparison:
    """Renders a template like `render`, and with transformers."""
    ours = render(vocab, conversation, template=template, add_generation_prompt=add_generation_prompt)
    variables = _variables(vocab, conversation, add_generation_prompt)
    try:
        rendering = templates.render_by_transformers(_template_text(vocab, template), variables)
    except UnsupportedError as error:
        return TemplateComparison(ours, None, same=False, reason=error.message)
    spans = tuple(_spans(vocab, rendering.text))
    reference = replace(ours, text=rendering.text, error=rendering.error, stopped=rendering.stopped, spans=spans)
    if ours.ended or reference.ended:  # transformers returns no text on an error
        return TemplateComparison(ours, reference, same=ours.ended == reference.ended)
    same = ours.text == reference.text
    return TemplateComparison(ours, reference, same, () if same else side_by_side(ours.text, reference.text))


def _template_text(vocab: Vocab, name: str) -> str:
    texts = {template.name: template.text for template in vocab.templates}
    if not texts:
        raise UnsupportedError("the model has no chat template")
    if name not in texts:
        raise UsageError(f"unknown template {name!r}", hint=", ".join(texts))
    return texts[name]


def _variables(vocab: Vocab, conversation: str | Mapping[str, Any], prompt: bool) -> dict[str, Any]:
    if isinstance(conversation, str):
        if conversation not in CONVERSATIONS:
            raise UsageError(f"unknown conversation {conversation!r}", hint=", ".join(CONVERSATIONS))
        conversation = CONVERSATIONS[conversation]
    roles = {f"{role}_token": vocab.token(role) for role in vocab.special}
    tokens = {name: text for name, text in roles.items() if text is not None}
    return {"tools": None, "documents": None, **tokens, "add_generation_prompt": prompt, **conversation}


def _spans(vocab: Vocab, text: str) -> Iterator[TokenSpan]:
    """Yields the special tokens in a text, the longest match at each place."""
    ids = {token.text: token.id for token in special_tokens(vocab) if token.text.strip()}
    if not ids:
        return
    pattern = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    for match in re.finditer(pattern, text):
        yield TokenSpan(match.start(), match.end(), ids[match[0]], match[0])
