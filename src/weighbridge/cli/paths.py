"""The types of arguments that name files: completed by a shell, read from a stream, checked before any work."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from weighbridge.base.errors import WeighbridgeError
from weighbridge.cli.render import SCREEN
from weighbridge.io.location import is_remote

_OFFERED: Final = 200  # tensor names


class NamedPath(click.Path):
    """A path that isn't empty: an unset variable in a script would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class SourcePath(NamedPath):
    """A file or folder to look into, or `-`: standard input, which is read in any order and so is kept in a temporary
    file while the command runs, unless it is redirected from a file. With `tensor`, `PATH::TENSOR` too."""

    def __init__(self, *, tensor: bool = False) -> None:
        super().__init__()
        self.tensor = tensor

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _standard_input(ctx) if value == "-" and ctx is not None else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        path, colons, name = incomplete.partition("::")
        if not (self.tensor and colons):
            return super().shell_complete(ctx, param, incomplete)
        return [CompletionItem(f"{path}::{found}") for found in tensor_names(path, name)]


def _standard_input(ctx: click.Context) -> str:
    if stat.S_ISREG(os.fstat(0).st_mode):
        return "/dev/stdin"
    from weighbridge.io.sink import spooled

    SCREEN.spooled = str(ctx.with_resource(spooled(sys.stdin.buffer, "-")))
    return SCREEN.spooled


def is_standard_input(path: str) -> bool:
    """Whether a path stands for standard input."""
    return path == "/dev/stdin" or (path != "" and path == SCREEN.spooled)


class ModelPath(NamedPath):
    """A file or folder: here a Path, elsewhere (hf://, https://, s3://, ...) as it was written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_remote(value) else super().convert(value, param, ctx)


class OutputPath(NamedPath):
    """What a command writes. `-` isn't a target: files are written in any order. `only_file`: nor is a folder."""

    def __init__(self, *, only_file: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.only_file = only_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = os.fspath(value)
        if text == "-":
            what = "this" if self.only_file else "a model"
            self.fail(f"{what} can't be written to standard output: name a file.", param, ctx)
        if self.only_file and text.endswith(("/", os.sep)):
            self.fail(f"{text!r} names a folder, but a file is written.", param, ctx)
        return super().convert(value, param, ctx)


class TensorName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A tensor of the model that the argument `path` names."""

    name = "tensor"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in tensor_names(str(ctx.params.get("path")), incomplete)]


def tensor_names(path: str, incomplete: str) -> list[str]:
    """The tensors of a model whose names begin like this, up to the next dot where they are many."""
    from weighbridge.models.open import open_headers

    try:
        with open_headers(path).model as model:
            found = [name for name in model.index.by_name if name.startswith(incomplete)]
    except (OSError, WeighbridgeError):
        return []
    if len(found) <= _OFFERED:
        return found
    cut = {name[: name.find(".", len(incomplete)) + 1] or name for name in found}
    return sorted(cut)[:_OFFERED]


class DTypeName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A number type by name, in any case and spelling; the library says which apply. `quantized`: with the types of
    `wb quantize`."""

    name = "type"

    def __init__(self, *, quantized: bool = False) -> None:
        self.quantized = quantized

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = ["f32", "f16", "bf16"]
        if self.quantized:
            words += ["auto", "q8_0", *type_names()]
        return [CompletionItem(word) for word in dict.fromkeys(words) if word.startswith(incomplete.lower())]


def type_names() -> list[str]:
    """The types of `wb quantize`, in lower case."""
    from weighbridge.conversion.quantize.ftypes import ftype_names

    return [name.lower() for name in ftype_names()]


class QuantizeWord(SourcePath):
    """A word of `wb quantize SRC [DST] TYPE`: a path, or behind the first one also a type."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NamedPath.convert(self, value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = [w for w in type_names() if incomplete and w.startswith(incomplete.lower())]
        if ctx.params.get("words") and words:
            return [CompletionItem(w.upper()) for w in words]
        return super().shell_complete(ctx, param, incomplete)


#: A model to convert, as a Path, or as it was written where it lies elsewhere; `-` is refused with the reason.
PATH: Final = ModelPath(path_type=Path)
#: A file or folder to look into.
SOURCE: Final = SourcePath()
SOURCE_OR_TENSOR: Final = SourcePath(tensor=True)
#: A target, with the slash at its end that means a folder.
OUTPUT: Final = OutputPath()
#: A file to write.
FILE: Final = OutputPath(only_file=True)
