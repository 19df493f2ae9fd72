"""A model's chat template rendered on example conversations, with its special tokens marked, and beside it what
transformers makes of the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from weighbridge.adapters import chat_template
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.models.tokenizer import Vocab
from weighbridge.reports.chat.conversations import CONVERSATIONS
from weighbridge.reports.chat.tokens import special_tokens
from weighbridge.reports.side_by_side import LinePair, side_by_side

SCHEMA: Final = "weighbridge/rendered-template/1"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Characters [start, end) of the text are the special token `id`."""

    start: int
    end: int
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    """`text`: what the model is given; up to where it ended if there is an `error` of the template's own, or a limit
    that `stopped` names (memory, time, output)."""

    conversation: str
    template: str
    text: str
    spans: tuple[TokenSpan, ...]
    error: str | None
    stopped: str
    schema: str = SCHEMA

    @property
    def ended(self) -> str:
        """What ended it before its end; "" for a whole text."""
        return self.error or self.stopped


def render(
    vocab: Vocab,
    conversation: str | Mapping[str, Any] = "plain",
    *,
    template: str = DEFAULT,
    add_generation_prompt: bool = True,
) -> RenderedTemplate:
    """The conversation (a name of `CONVERSATIONS`, or a template's variables) as the template of that name renders it,
    in a process with limits. UsageError for an unknown name; UnsupportedError where the model has no template, or
    Jinja2 isn't installed."""
    variables = _variables(vocab, conversation, add_generation_prompt)
    found = chat_template.render(template_text(vocab, template), variables)
    name = conversation if isinstance(conversation, str) else "own"
    spans = tuple(_spans(vocab, found.text))
    return RenderedTemplate(name, template, found.text, spans, found.error, found.stopped)


@dataclass(frozen=True, slots=True)
class TemplateComparison:
    """What we and transformers make of one conversation. `reference`: None where transformers isn't installed, with the
    `reason`. `same`: the same text, or the same error. `lines`: the texts side by side, where they differ."""

    ours: RenderedTemplate
    reference: RenderedTemplate | None
    same: bool
    lines: tuple[LinePair, ...] = ()
    reason: str = ""


def render_both(
    vocab: Vocab,
    conversation: str | Mapping[str, Any] = "plain",
    *,
    template: str = DEFAULT,
    add_generation_prompt: bool = True,
) -> TemplateComparison:
    """As `render`, and by transformers."""
    ours = render(vocab, conversation, template=template, add_generation_prompt=add_generation_prompt)
    variables = _variables(vocab, conversation, add_generation_prompt)
    try:
        found = chat_template.render_by_transformers(template_text(vocab, template), variables)
    except UnsupportedError as error:
        return TemplateComparison(ours, None, same=False, reason=error.message)
    spans = tuple(_spans(vocab, found.text))
    theirs = replace(ours, text=found.text, error=found.error, stopped=found.stopped, spans=spans)
    if ours.ended or theirs.ended:  # transformers gives no text where an error ends it
        return TemplateComparison(ours, theirs, same=ours.ended == theirs.ended)
    same = ours.text == theirs.text
    return TemplateComparison(ours, theirs, same, () if same else side_by_side(ours.text, theirs.text))


def template_text(vocab: Vocab, name: str = DEFAULT) -> str:
    """The source of a template."""
    texts = {template.name: template.text for template in vocab.templates}
    if not texts:
        raise UnsupportedError("the model has no chat template")
    if name not in texts:
        raise UsageError(f"no template is called {name!r}", hint=", ".join(texts))
    return texts[name]


def _variables(vocab: Vocab, conversation: str | Mapping[str, Any], prompt: bool) -> dict[str, Any]:
    if isinstance(conversation, str) and conversation not in CONVERSATIONS:
        raise UsageError(f"no conversation is called {conversation!r}", hint=", ".join(CONVERSATIONS))
    given = CONVERSATIONS[conversation] if isinstance(conversation, str) else conversation
    roles = {f"{role}_token": vocab.token(role) for role in vocab.special}
    tokens = {name: text for name, text in roles.items() if text is not None}
    return {"tools": None, "documents": None, **tokens, "add_generation_prompt": prompt, **given}


def _spans(vocab: Vocab, text: str) -> Iterator[TokenSpan]:
    """Special tokens in a text, the longest of those that begin at a place."""
    ids = {token.text: token.id for token in special_tokens(vocab) if token.text.strip()}
    if not ids:
        return
    pattern = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    for match in re.finditer(pattern, text):
        yield TokenSpan(match.start(), match.end(), ids[match[0]], match[0])
