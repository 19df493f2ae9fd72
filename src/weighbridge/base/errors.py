"""The exception tree. An error means that work can't continue; findings of a check are data, not exceptions.

    WeighbridgeError
    +- FormatError       the file is wrong: path, offset, field, expected, found
    +- UnsupportedError  the file may be right, but this version can't handle it: what would work
    |  +- PluginError    a plug-in raised an unexpected exception: its name and package
    +- RefusedError      policy (would overwrite, would requantize): names the option that allows it
    +- UsageError        the caller is wrong
    +- RemoteError       the network or a server failed: the request, the next step

`OSError` passes through unchanged: the operating system's message is the best one. A `LeftoverWarning` is about work
that succeeded.
"""

from __future__ import annotations

import re
from typing import Any, Final


class WeighbridgeError(Exception):
    """Base of every error that Weighbridge raises deliberately. `hint` is the next step for the user. `code` identifies
    the fault for programs, if the reader that raises it declares codes: a message may be reworded, a code stays.

    `message` and `hint` name options as the command line does, `str(error)` as Python does.
    """

    def __init__(self, message: str, *, hint: str | None = None, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        from weighbridge.base.errors import in_python

        return in_python(self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}")


class FormatError(WeighbridgeError):
    """The file violates its format. Names the place: `path`, byte `offset`, `field`, what was `expected` and
    `found`."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        field: str | None = None,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
        code: str = "",
    ) -> None:
        place = [] if path is None else [path]
        place += [] if offset is None else [f"byte {offset}"]
        place += [] if field is None else [field]
        text = f"{', '.join(place)}: {message}" if place else message
        if expected is not None:
            text += f" (expected {expected}, found {found})"
        elif found is not None:
            text += f" (found {found})"
        super().__init__(text, hint=hint, code=code)
        self.reason = message
        self.path, self.offset, self.field = path, offset, field
        self.expected, self.found = expected, found


class UnsupportedError(WeighbridgeError):
    """The input may be valid, but this version can't handle it; the message names something that works."""


class UncomputedError(UnsupportedError):
    """No graph is known for a model that would have to be run."""


class PluginError(UnsupportedError):
    """A plug-in raised an unexpected exception, or returned something invalid: a bug of its package."""


class RefusedError(WeighbridgeError):
    """Policy forbids it; `option` names the switch that allows it."""

    def __init__(self, message: str, *, option: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or (f"use {option} to allow it" if option else None))
        self.option = option


class UsageError(WeighbridgeError):
    """The caller's request is invalid."""


class RemoteError(WeighbridgeError):
    """A server or the connection to it failed: not found, not allowed, interrupted."""


class ChangedError(RemoteError):
    """A remote file changed while it was read: the result can't be completed."""


class LeftoverWarning(UserWarning):
    """The result is complete, but a temporary file couldn't be deleted: which one, and how to delete it."""


#: Options without a value.
FLAGS: Final = frozenset(
    """all-parts allow-dangerous allow-expand allow-guarded allow-requantize chat comfy-folders create-pr dense-modules
    draft ema flash-attention hard-link keep-split leave-output-tensor overwrite parents parse-special private pure
    renumber replace-folder rerank resume static sym towers values vocab-only with-mmproj""".split()  # noqa: SIM905
)
#: Options that Python spells otherwise.
RENAMED: Final = {
    "asym": "sym=False",
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


def error_words(error: Exception) -> dict[str, str | None]:
    """An error as a page shows it."""
    if isinstance(error, WeighbridgeError):
        return {"error": error.message, "hint": error.hint}
    return {"error": getattr(error, "strerror", None) or str(error) or type(error).__name__, "hint": None}
