"""Rewrites command-line options in messages as Python keywords: `--overwrite` as `overwrite=True`, `--dtype f32` as
`dtype="f32"`. Options inside a whole command stay unchanged."""

from __future__ import annotations

import re
from typing import Final

#: Options without a value.
FLAGS: Final = frozenset(
    """all-parts allow-dangerous allow-expand allow-guarded allow-requantize create-pr ema flash-attention hard-link
    keep-split leave-output-tensor overwrite parents private pure renumber replace-folder rerank resume static sym
    values vocab-only""".split()  # noqa: SIM905
)
#: Options that Python spells otherwise.
RENAMED: Final = {
    "asym": "sym=False",
    "text": "texts",
}
#: Options that only commands have.
COMMANDS_ONLY: Final = frozenset(
    "check list offline raw replan set-array task-size tensor-type-file token".split()  # noqa: SIM905
)
_WORDS: Final = "auto|default|float|gguf|go|hf|mlx|near|none|refuse|safetensors"
_OPTION: Final = re.compile(
    r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])"
    rf"(?:[ =]('[^']*'|(?:{_WORDS})\b|[A-Z][\w.=:\[\]/]*|[a-z]*\d[\w.-]*\w|\d))?"
)
_COMMAND: Final = re.compile(r"\b(?:wb|llama-\w+|ollama|hf|pip|python|sudo|gcloud|vllm|mlx_lm\.\w+) [^;,()\n]*")
_SIZE: Final = re.compile(r"(\d+)GB")


def in_python(text: str) -> str:
    """A message with options as keywords."""
    kept = [match.span() for match in _COMMAND.finditer(text)]

    def spelled(match: re.Match[str]) -> str:
        inside = any(start <= match.start() < end for start, end in kept)
        return match[0] if inside or match[1] in COMMANDS_ONLY else _keyword(match[1], match[2])

    return _OPTION.sub(spelled, text)


def _keyword(option: str, value: str | None) -> str:
    name = RENAMED.get(option, option.replace("-", "_"))
    if name.startswith("no_"):
        name = f"{name.removeprefix('no_')}=False"
    if "=" in name:
        return name if value is None else f"{name} {value}"
    if option in FLAGS:
        return f"{name}=True" if value is None else f"{name}=True {value}"
    if value is None:
        return name
    if size := _SIZE.fullmatch(value):
        return f"{name}={size[1]} * 10**9"
    literal = re.fullmatch(r"\d+(?:\.\d+)?(?:e-?\d+)?|[A-Z]+|'.*'", value)  # a number, a placeholder, a quoted word
    return f"{name}={value}" if literal else f'{name}="{value}"'
