"""The values of `--to`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from weighbridge.containers import by_target, writable

# What people call these.
_NICKNAMES: Final = MappingProxyType(
    {"huggingface": "hf", "transformers": "hf", "mlx-lm": "mlx", "mlx_lm": "mlx", "llama.cpp": "gguf"}
)
#: Targets that are model folders of more than one container's files.
MODELS: Final = ("hf", "mlx")


class TargetType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A target of a conversion: a model folder, a built-in format, an alias of one, or a plug-in's, in any case."""

    name = "format"

    def __init__(self, *others: str) -> None:
        self.words = (*writable(), *MODELS, *others)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = _NICKNAMES.get(str(value).lower(), str(value).lower())
        found = None if word in self.words else by_target(word)
        if word not in self.words and found is None:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.words))}.", param, ctx)
        return found.target if found else word

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self.words)}]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete.lower())]
