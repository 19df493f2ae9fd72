"""The chat templates that a recipe may name: formats of prompts, which render as mergekit's templates of these names do
(arcee-ai/mergekit 0.1.5, _data/chat_templates; recorded in tests/conversion/golden/merging_templates.json).

Of mergekit's other names the templates have line breaks and blanks between the turns, as no model expects; they are
refused. A template is rendered with Jinja's `trim_blocks` and `lstrip_blocks`, as transformers does, and has no line
breaks of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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
