"""Rules that complete a config with values that a class of transformers computes from its keys, in the words that all
classes share.

A table names them in `config_rules`: the rules of `common.py`, and one per module here, named after the family that
brought it. A module has `complete(config)`, the entries to add to a config (None: none), and may have
`restore(config)`, its inverse for a config that is read from a GGUF, in which None removes a key, and `KEYS`, keys of
a config that only the rule reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.rules import common
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.validate import nearest_word
from weighbridge.models.arch.tables.values import Config

Rule = Callable[[Config], dict[str, Any]]

#: The modules with the rule of one family.
OF_FAMILIES: Final = (
    "bailingmoe3", "d1omni", "deci", "deepseek4", "deepseek4_dspark", "dflash", "dots3note", "eagle3", "falcon",
    "gemma3n", "gemma4", "glm5next", "glmmoedsa", "granite4_vision", "granite_swa", "grok", "hrm", "jais", "k2horizon",
    "laguna", "lfm2", "minimax01", "minimax_m3", "mistral4", "muse_glimmer", "nemotronhpuzzle", "openelm", "plamo2",
    "plamo3", "projectors.conformer", "projectors.deepseekocr", "projectors.dots3note", "projectors.gemma3",
    "projectors.gemma4", "projectors.glm5v", "projectors.internvl", "projectors.janus_pro", "projectors.kimik25",
    "projectors.llama4", "projectors.llava", "projectors.mimo", "projectors.minicpmv4_6", "projectors.muse_glimmer",
    "projectors.paddleocr", "projectors.phi4", "projectors.qwen25vl", "projectors.qwen3vl", "projectors.radio",
    "qwen3tts", "qwen4exp", "rwkv6", "rwkv6qwen2", "smallthinker", "step35",
)  # fmt: skip


@lru_cache(maxsize=256)
def completing_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules named by `NAME` or `NAME(KEYS)`. UsageError if one doesn't exist."""
    rules: list[Rule] = []
    for text in texts:
        name, arguments = expression.call(expression.parse(text)) or (text, ())
        if name in OF_FAMILIES:
            rules += [module.complete for module in family_rules([name])]
        elif name in common.RULES:
            rules.append(partial(common.RULES[name], keys=[expression.path(key) or "" for key in arguments]))
        else:
            raise UsageError(f"config_rules: unknown rule {name!r}{nearest_word(name, (*common.RULES, *OF_FAMILIES))}")
    return tuple(rules)


def family_rules(texts: Iterable[str]) -> list[ModuleType]:
    """The modules of the families' rules among these."""
    return [import_module(f"{__name__}.{text}") for text in texts if text in OF_FAMILIES]
