"""Options and commands of other tools that people type out of habit, and the command line that does the same."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import click

#: Command ("" for any) and option of a third-party tool -> the equivalent command line.
OPTIONS: Final = MappingProxyType(
    {
        ("convert", "--hf-path"): "wb convert SRC DST --to mlx --q-bits 4",  # mlx_lm.convert
        ("convert", "--type"): "wb convert SRC DST.gguf --dtype q8_0, or wb quantize SRC DST.gguf Q4_K_M",
        ("convert", "--quantization"): "wb quantize SRC DST.gguf Q4_K_M",
        ("convert", "--remote"): "wb convert hf://ORG/NAME DST.gguf",  # convert_hf_to_gguf.py
        ("convert", "--output-dir"): "wb convert SRC DST/",
        ("convert", "--upload-repo"): "wb convert SRC DST, then wb ship hub DST",
        ("quantize", "--type"): "wb quantize SRC DST.gguf Q4_K_M",
        ("quantize", "--quant"): "wb quantize SRC DST.gguf Q4_K_M",
        ("quantize", "--outtype"): "wb quantize SRC DST.gguf Q4_K_M",
        ("quantize", "--bits"): "wb quantize SRC DST.gguf --target-bpw 4.5",
        ("fit", "-c"): "wb fit SRC --context 32k",
        ("fit", "--ngl"): "wb fit SRC --device 8GB shows how many layers fit",
        ("fit", "--n-gpu-layers"): "wb fit SRC --device 8GB shows how many layers fit",
        ("split", "--split"): "wb split SRC DST --max-shard-size 4GB",  # llama-gguf-split
        ("merge", "--merge"): "wb merge SRC DST",
        ("fetch", "--local-dir"): "wb fetch hf://ORG/NAME DIR",  # hf download
        ("", "--format"): "--json prints the answer as JSON",
        ("", "--output-format"): "--json prints the answer as JSON",
        ("", "-y"): "--overwrite replaces an existing target",
        ("", "--yes"): "--overwrite replaces an existing target",
        ("", "--no-color"): "--color never",
        ("", "--trust-remote-code"): "leave it out: code of a model is never run",
        ("", "--token"): "set HF_TOKEN, or run hf auth login",
        ("", "--cache-dir"): "set HF_HUB_CACHE",
    }
)
#: Unknown command -> the equivalent command line.
WORDS: Final = MappingProxyType(
    {
        "run": "wb ship llama-server MODEL prints the command that runs it",
        "chat": "wb ship llama-server MODEL prints the command that runs it",
        "generate": "wb ship llama-server MODEL prints the command that runs it",
        "upload": "wb ship hub MODEL",
        "create": "wb ship ollama MODEL",
        "import": "wb ship lmstudio MODEL",
        "export": "wb convert SRC DST --to gguf",
        "to-gguf": "wb convert SRC DST.gguf",
        "gguf-split": "wb split SRC DST --max-shard-size 4GB, or wb merge SRC DST",
        "dequantize": "wb convert SRC DST --dtype f16",
        "tensors": "wb inspect FILE --tensors",
        "header": "wb inspect FILE --metadata",
        "config": "wb inspect FILE --metadata",
        "template": "wb edit FILE --get tokenizer.chat_template",
        "tokenizer": "wb convert SRC DST.gguf --vocab-only",
        "lora": "wb convert BASE DST --lora ADAPTER",
        "clean": "wb du FOLDER, then wb dedupe FOLDER",
        "rm": "wb du FOLDER shows disk usage; no command deletes models",
        "upgrade": "wb convert OLD.bin NEW.gguf",
    }
)
_REPOSITORY: Final = re.compile(r"(?:hf:(?!//))?([\w.-]+/[\w.-]+)", re.ASCII)
_EXTRA_TYPE: Final = re.compile(r"\(((?:i?q|tq)\d\w*|f16|f32|bf16|mxfp4\w*)\)", re.ASCII | re.IGNORECASE)


def advice(error: click.UsageError) -> str | None:
    """Returns the command line equivalent to a refused one, if it is known."""
    command = error.ctx.command.name if error.ctx is not None else None
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        return OPTIONS.get((command or "", name)) or OPTIONS.get(("", name))
    if command == "convert" and (extra := _EXTRA_TYPE.search(error.format_message())):
        return f"wb convert SRC DST.gguf --outtype {extra[1]}"
    return None


def explain_word(word: str, commands: Mapping[str, str]) -> str:
    """Returns the error for an unknown command, which may be a file or a typo. `commands`: name or alias -> name."""
    if os.path.exists(word) or "/" in word or "." in word:
        return f"no command is called {word!r}. To look into that file: wb inspect {word}"
    if word in WORDS:
        return f"no command is called {word!r}: {WORDS[word]}"
    from difflib import get_close_matches

    near = get_close_matches(word, commands, 1)
    advice = f"Did you mean {commands[near[0]]!r}?" if near else "See wb --help."
    return f"no command is called {word!r}. {advice}"


_WINDOWS_PATH: Final = 260  # characters of a path, unless long paths are enabled


def next_step(error: OSError) -> str | None:
    """Returns the hub address that a missing path probably means, or how to lift Windows' limit for paths."""
    path = error.filename if isinstance(error.filename, str) else ""
    if sys.platform == "win32" and len(os.path.abspath(path)) >= _WINDOWS_PATH:
        return "the path has 260 characters or more: enable long paths in Windows, or choose a shorter one"
    repository = _REPOSITORY.fullmatch(path)
    return f"a repository on the Hub is hf://{repository[1]}" if error.errno == errno.ENOENT and repository else None
