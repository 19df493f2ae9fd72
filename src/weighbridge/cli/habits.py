"""What people type out of habit from other tools, where it is no word of ours: the command that does what they mean."""

from __future__ import annotations

import errno
import re
from types import MappingProxyType
from typing import Final

import click

#: Command ("" for any) and option of another tool -> the command line that does it.
OPTIONS: Final = MappingProxyType(
    {
        ("convert", "--hf-path"): "wb convert SRC DST --to mlx -q",  # mlx_lm.convert
        ("convert", "--type"): "wb convert SRC DST.gguf --dtype q8_0, or wb quantize SRC DST.gguf Q4_K_M",
        ("convert", "--quantization"): "wb quantize SRC DST.gguf Q4_K_M",
        ("convert", "--remote"): "wb convert hf://ORG/NAME DST.gguf",  # convert_hf_to_gguf.py
        ("convert", "--mmproj"): "wb inspect SRC shows the parts; the text model is converted",
        ("convert", "--ctx"): "wb convert SRC DST.gguf --context-length 4096",
        ("convert", "--output-dir"): "wb convert SRC DST/",
        ("convert", "--upload-repo"): "wb convert SRC DST, then wb ship hub DST",
        ("quantize", "--type"): "wb quantize SRC DST.gguf Q4_K_M",
        ("quantize", "--quant"): "wb quantize SRC DST.gguf Q4_K_M",
        ("quantize", "--outtype"): "wb quantize SRC DST.gguf Q4_K_M",
        ("quantize", "--bits"): "wb quantize SRC DST.gguf --target-bpw 4.5",
        ("fit", "--ngl"): "wb fit SRC --device 8GB, which says how many layers fit",
        ("fit", "--n-gpu-layers"): "wb fit SRC --device 8GB, which says how many layers fit",
        ("split", "--split"): "wb split SRC DST --max-size 4GB",  # llama-gguf-split
        ("merge", "--merge"): "wb merge SRC DST",
        ("fetch", "--local-dir"): "wb fetch hf://ORG/NAME DIR",  # hf download
        ("", "--format"): "--json prints the answer as JSON",
        ("", "--output-format"): "--json prints the answer as JSON",
        ("", "--no-color"): "--color never",
        ("", "--trust-remote-code"): "leave it out: nothing in a model is ever run",
        ("", "--token"): "set HF_TOKEN, or run hf auth login",
        ("", "--cache-dir"): "set HF_HUB_CACHE",
    }
)
#: A word that is no command -> the command line that does it.
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
        "gguf-split": "wb split SRC DST --max-size 4GB, or wb merge SRC DST",
        "dequantize": "wb convert SRC DST --dtype f16",
        "tensors": "wb inspect FILE --tensors",
        "header": "wb inspect FILE --metadata",
        "config": "wb inspect FILE --metadata",
        "template": "wb edit FILE --get tokenizer.chat_template",
        "tokenizer": "wb convert SRC DST.gguf --vocab-only",
        "lora": "wb convert BASE DST --lora ADAPTER",
        "clean": "wb du FOLDER, then wb dedupe FOLDER",
        "rm": "wb du FOLDER shows what takes space; nothing here deletes models",
        "upgrade": "wb convert OLD.bin NEW.gguf",
    }
)
_REPOSITORY: Final = re.compile(r"(?:hf:(?!//))?([\w.-]+/[\w.-]+)", re.ASCII)
_EXTRA_TYPE: Final = re.compile(r"\(((?:i?q|tq)\d\w*|f16|f32|bf16|mxfp4\w*)\)", re.ASCII | re.IGNORECASE)


def advice(error: click.UsageError) -> str | None:
    """The command line that does what a refused one means, if it is known."""
    command = error.ctx.command.name if error.ctx is not None else None
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        return OPTIONS.get((command or "", name)) or OPTIONS.get(("", name))
    if command == "convert" and (extra := _EXTRA_TYPE.search(error.format_message())):
        return f"wb convert SRC DST.gguf --outtype {extra[1]}"
    return None


def next_step(error: OSError) -> str | None:
    """The address that a missing path probably means: a repository of the Hub."""
    path = error.filename if isinstance(error.filename, str) else ""
    repository = _REPOSITORY.fullmatch(path)
    return f"a repository on the Hub is hf://{repository[1]}" if error.errno == errno.ENOENT and repository else None
