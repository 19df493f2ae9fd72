"""The kinds of values that arguments and options accept: how each is checked, and how a shell completes it."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.cli.render import SCREEN
from weighbridge.containers import by_target, writable
from weighbridge.containers.formats import GRAPHS
from weighbridge.io.location import is_remote, split_tensor

if TYPE_CHECKING:
    from weighbridge.conversion.edit.values import Edit

_OFFERED: Final = 200  # completed tensor names


class NamedPath(click.Path):
    """A path that isn't empty: an unset variable in a script would mean the current folder. A URL (hf://, https://,
    s3://, ...) remains text, without its user and password."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the path is empty.", param, ctx)
        if is_remote(value):  # secrets must not be printed or stored
            from weighbridge.adapters.remote.credentials import without_credentials

            return without_credentials(value)
        return super().convert(value, param, ctx)


class SourcePath(NamedPath):
    """A file or folder to read, or `-` for standard input. That is copied to a temporary file for random access, unless
    it is redirected from a file. With `tensor`, accepts `PATH::TENSOR` too."""

    def __init__(self, *, tensor: bool = False) -> None:
        super().__init__()
        self.tensor = tensor

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value != "-" or ctx is None:
            return super().convert(value, param, ctx)
        if stat.S_ISREG(os.fstat(0).st_mode):
            return "/dev/stdin"
        from weighbridge.io.sink import spooled

        SCREEN.spooled = str(ctx.with_resource(spooled(sys.stdin.buffer, "-")))
        return SCREEN.spooled

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        path, colons, name = split_tensor(incomplete)
        if not (self.tensor and colons):
            return super().shell_complete(ctx, param, incomplete)
        return [CompletionItem(f"{path}::{tensor}") for tensor in tensor_names(path, name)]


def is_standard_input(path: str) -> bool:
    """Whether a path means standard input."""
    return path == "/dev/stdin" or (path != "" and path == SCREEN.spooled)


class OutputPath(NamedPath):
    """A path to write. `-` is refused, because files are written in any order. `only_file`: refuses folders too."""

    def __init__(self, *, only_file: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.only_file = only_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = os.fspath(value)
        if text == "-":
            content = "this" if self.only_file else "a model"
            self.fail(f"{content} can't be written to standard output: name a file.", param, ctx)
        if self.only_file and text.endswith(("/", os.sep)):
            self.fail(f"{text!r} names a folder, but a file is written.", param, ctx)
        return super().convert(value, param, ctx)


class TensorName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A tensor of the model in the argument `path`."""

    name = "tensor"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in tensor_names(str(ctx.params.get("path")), incomplete)]


def tensor_names(path: str, incomplete: str) -> list[str]:
    """The tensor names of a model with this beginning, cut at the next dot if there are many."""
    from weighbridge.models.open import WHOLE, open_headers

    try:
        with open_headers(path, WHOLE).model as model:
            names = [name for name in model.index.by_name if name.startswith(incomplete)]
    except (OSError, WeighbridgeError):
        return []
    if len(names) <= _OFFERED:
        return names
    cut = {name[: name.find(".", len(incomplete)) + 1] or name for name in names}
    return sorted(cut)[:_OFFERED]


class DTypeName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A number type by name, in any case and spelling; the library checks it. `quantized`: completes the types of
    `wb quantize` too."""

    name = "type"

    def __init__(self, *, quantized: bool = False) -> None:
        self.quantized = quantized

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        types = ["f32", "f16", "bf16"]
        if self.quantized:
            types += ["auto", "q8_0", "smallest-exact", *type_names()]
        return [CompletionItem(name) for name in dict.fromkeys(types) if name.startswith(incomplete.lower())]


def type_names() -> list[str]:
    """The types of `wb quantize`, in lower case."""
    from weighbridge.conversion.quantize.ftypes import ftype_names

    return [name.lower() for name in ftype_names()]


class QuantizeWord(SourcePath):
    """An argument of `wb quantize SRC [DST] TYPE`: a path, or after the first one also a type."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NamedPath.convert(self, value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        types = [name for name in type_names() if incomplete and name.startswith(incomplete.lower())]
        if ctx.params.get("words") and types:
            return [CompletionItem(name.upper()) for name in types]
        return super().shell_complete(ctx, param, incomplete)


# Other names of targets.
_NICKNAMES: Final = MappingProxyType(
    {"huggingface": "hf", "transformers": "hf", "mlx-lm": "mlx", "mlx_lm": "mlx", "llama.cpp": "gguf",
     "whisper.cpp": "ggml"}
)  # fmt: skip
#: Targets that aren't containers: model folders, whisper.cpp files, distributed checkpoints, models with a graph.
MODELS: Final = ("hf", "mlx", "ggml", "dcp", *GRAPHS)


class TargetType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """The target of a conversion: a model folder, a built-in format or alias, or a plug-in's format, in any case."""

    name = "format"

    def __init__(self, *others: str) -> None:
        self.targets = (*writable(), *MODELS, *others)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = _NICKNAMES.get(str(value).lower(), str(value).lower())
        if word in self.targets:
            return word
        plugin = by_target(word)
        if plugin is None:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.targets))}.", param, ctx)
        return plugin.target

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self.targets)}]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self.targets if word.startswith(incomplete.lower())]


class ContextType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A number of tokens; `32k` is 32,768."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower().strip()
        digits, scale = (text[:-1], 1024) if text.endswith("k") else (text, 1)
        if not digits.isdecimal() or not 0 < int(digits) * scale <= 1 << 24:
            self.fail(f"{value!r} is not a number of tokens; write it like 8192 or 32k.", param, ctx)
        return int(digits) * scale


class DeviceType(click.ParamType):  # type: ignore[type-arg]
    """A device's name, a size of memory, or `this`."""

    name = "device"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from weighbridge.fitting.devices import device_names

        typed = incomplete.lower()
        spelled = ((name, name.replace("-", "")) for name in ("this", *device_names()))  # rtx-4090 and rtx4090
        matches = (next((word for word in words if word.startswith(typed)), None) for words in spelled)
        return [CompletionItem(word) for word in matches if word is not None]


# Decimal without an `i`, as in the reference tools: llama-gguf-split reads `5G` as 5 * 10^9, transformers reads `5GB`
# as 5 * 10^9 and `5GiB` as 5 * 2^30.
_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parses a number of bytes: `5GB`, `5G` (5 * 10^9), `5GiB` (5 * 2^30), `1.5 MB`, `4096`."""
    match = _SIZE.fullmatch(text)
    number, unit, binary, _ = match.groups() if match else ("", "", "", "")
    if not number or (binary and not unit):
        raise UsageError(f"{text!r} is not a size", hint="write it like 5GB, 500M, 4GiB or 4096")
    base = 1024 if binary else 1000
    whole, _, part = number.partition(".")
    # Exact in integers: 0.1 of a unit is not a binary fraction.
    scale: int = base ** _UNITS[unit.lower()]
    fraction: int = int(part or 0) * scale // 10 ** len(part)
    return int(whole or 0) * scale + fraction


def parse_layers(text: str) -> tuple[int, ...]:
    """Parses layers like llama-quantize: `4,5,6`."""
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of layers; write 4,5,6")
    return tuple(sorted({int(part) for part in parts}))


def parse_offset(text: str) -> int:
    """Parses an offset: `4096`, `4_096`, `0x1000`."""
    try:
        return int(text.replace("_", "").replace(",", ""), 0)
    except ValueError:
        raise UsageError(f"{text!r} is not an offset", hint="write it like 4096 or 0x1000") from None


def parse_share(text: str) -> tuple[int, int]:
    """Parses a share of a job: `2/8` is the second of eight."""
    match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter(f"{text!r} is not a share: write 1/8 to 8/8.")
    return int(match[1]), int(match[2])


def parse_label(text: str) -> tuple[str, str]:
    """Parses a label of a node: `zone=a`."""
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise click.BadParameter(f"{text!r} is not a label: write KEY=VALUE.")
    return key, value


def parse_assignment(text: str) -> Edit:
    """Parses `KEY=[TYPE:]VALUE`."""
    from weighbridge.conversion.edit import values

    return values.parse_assignment(text)


def parse_array(text: str) -> Edit:
    """Parses `KEY=TYPE:[...]`, or `KEY=TYPE:@FILE`."""
    from weighbridge.conversion.edit import values

    return values.parse_array(text, lambda name: Path(name).read_text("utf-8"))


#: A model to convert: a Path, or the text of a URL. `-` is refused with the reason.
PATH: Final = NamedPath(path_type=Path)
#: A file or folder to read.
SOURCE: Final = SourcePath()
SOURCE_OR_TENSOR: Final = SourcePath(tensor=True)
#: A target; a slash at its end means a folder.
OUTPUT: Final = OutputPath()
#: A file to write.
FILE: Final = OutputPath(only_file=True)
#: Kind of an option (`base/options.py`) -> what converts its text.
KINDS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "path": PATH,
        "file": FILE,
        "output": OUTPUT,
        "file or stdout": click.Path(),
        "existing file": click.Path(path_type=Path, exists=True, dir_okay=False),
        "assignment": parse_assignment,
        "array": parse_array,
        "size": parse_size,
        "dtype": DTypeName(),
        "type": DTypeName(quantized=True),
        "format": TargetType(),
        "format or checkpoint": TargetType("checkpoint"),
        "layers": parse_layers,
        "offset": parse_offset,
        "share": parse_share,
        "label": parse_label,
        "device": DeviceType(),
        "tokens": ContextType(),
    }
)
