"""The files of a merged model's tokenizer: tokens are added, a chat template is chosen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import TOKENIZER_JSON
from weighbridge.models.jsonfile import decode
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.vocab import TokenType, Vocab

_TOKENIZER: Final = "tokenizer.json"
_SETTINGS: Final = "tokenizer_config.json"
_ADDED: Final = "added_tokens.json"  # of tokenizers without a tokenizer.json
_TEMPLATE: Final = "chat_template.jinja"
_AUTO: Final = "auto"
_FLAGS: Final = ("lstrip", "normalized", "rstrip", "single_word", "special")

# The templates that a recipe may name: formats of prompts, which render as mergekit's of these names do
# (arcee-ai/mergekit 0.1.5, _data/chat_templates; recorded in tests/conversion/golden/merging_templates.json). Others
# have line breaks and blanks between the turns, as no model expects, and are refused. These have no line breaks of
# their own, so Jinja's `trim_blocks` changes nothing.
_CHATML: Final = (
    r"{% for turn in messages %}{{ '<|im_start|>' ~ turn.role ~ '\n' ~ turn.content ~ '<|im_end|>\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As mergekit has it, with a line break after <|eot_id|> that Meta's template doesn't have.
_LLAMA3: Final = (
    r"{{ bos_token if messages else '' }}{% for turn in messages %}{{ '<|start_header_id|>' ~ turn.role ~ "
    r"'<|end_header_id|>\n\n' ~ turn.content | trim ~ '<|eot_id|>\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_MISTRAL: Final = (
    r"{% set first = 1 if messages[0].role == 'system' else 0 %}{{ bos_token }}{% for turn in messages[first:] %}"
    r"{% if turn.role != ('assistant' if loop.index0 % 2 else 'user') %}"
    r"{{ raise_exception('after an optional system message, user and assistant must take turns') }}{% endif %}"
    r"{% if turn.role == 'assistant' %}{{ ' ' ~ turn.content ~ eos_token }}{% else %}"
    r"{{ ' [INST] ' ~ (messages[0].content ~ '\n\n' if first and loop.first else '') ~ turn.content ~ ' [/INST]' }}"
    r"{% endif %}{% endfor %}"
)

TEMPLATES: Final[Mapping[str, str]] = MappingProxyType({"chatml": _CHATML, "llama3": _LLAMA3, "mistral": _MISTRAL})


def with_tokens(
    model: OpenModel, added: Mapping[str, int], models: Iterable[tuple[OpenModel, Vocab]]
) -> dict[str, bytes]:
    """Returns the tokenizer files of `model` with tokens added, by their ids. `models`: the models that have them,
    whose settings they get. Raises UsageError for a model without a tokenizer.json."""
    if (data := model.read(_TOKENIZER)) is None:
        raise UsageError(
            f"{model.place.path} has no tokenizer.json, to which tokens could be added",
            hint="tokenizer_source: base, or a model's name",
        )
    flags = _flags(models)
    plain = {**dict.fromkeys(_FLAGS, False), "normalized": True}  # a token that is added as text (as tokenizers does)
    entries = {token: {"id": row, "content": token, **flags.get(token, plain)} for token, row in added.items()}
    tokenizer = decode(data, _TOKENIZER, dict[str, Any])
    tokenizer["added_tokens"] = [*(tokenizer.get("added_tokens") or ()), *entries.values()]
    files = {_TOKENIZER: _text(tokenizer)}
    settings = model.json(_SETTINGS) or {}
    if isinstance(listed := settings.get("added_tokens_decoder"), Mapping):
        rows = {str(row["id"]): {k: v for k, v in row.items() if k != "id"} for row in entries.values()}
        files[_SETTINGS] = _text({**settings, "added_tokens_decoder": {**listed, **rows}})
    if (ids := model.json(_ADDED)) is not None:
        files[_ADDED] = _text({**ids, **added})
    return files


def _flags(models: Iterable[tuple[OpenModel, Vocab]]) -> dict[str, dict[str, bool]]:
    """The settings of the added tokens of models, by token; the first model's count."""
    out: dict[str, dict[str, bool]] = {}
    for model, vocab in models:
        data = None if model.format == "gguf" else model.place.read(_TOKENIZER, TOKENIZER_JSON)
        listed = decode(data, _TOKENIZER, dict[str, Any]).get("added_tokens") if data else None
        for row in listed if isinstance(listed, list) else ():
            if isinstance(row, Mapping) and isinstance(row.get("content"), str):
                out.setdefault(row["content"], {key: bool(row.get(key)) for key in _FLAGS})
        for token, kind in zip(vocab.tokens, vocab.types, strict=False):
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
                out.setdefault(str(token), {**dict.fromkeys(_FLAGS, False), "special": kind == TokenType.CONTROL})
    return out


def chosen_template(choice: str, vocabularies: Iterable[Vocab]) -> str | None:
    """Returns a recipe's chat template: the commonest of the models for "auto" (None if they have none), that of a
    known name, or the Jinja text itself. Raises UsageError for another name."""
    if choice == _AUTO:
        templates = Counter(template.strip() for vocab in vocabularies if (template := vocab.template))
        return templates.most_common(1)[0][0] if templates else None
    if "{" in choice:
        return choice
    if choice not in TEMPLATES:
        raise UsageError(
            f"chat_template: no template is called {choice!r}",
            hint=f"auto, {', '.join(TEMPLATES)}, or the template's text in the recipe",
        )
    return TEMPLATES[choice]


def with_template(model: OpenModel, template: str) -> dict[str, bytes]:
    """Returns the files of `model` that hold its chat template, with another one."""
    settings = model.json(_SETTINGS)
    if model.read(_TEMPLATE) is not None or settings is None:
        return {_TEMPLATE: template.encode()}
    return {_SETTINGS: _text({**settings, "chat_template": template})}


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
