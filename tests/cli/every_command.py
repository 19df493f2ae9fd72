"""A command line for every command, over a folder `{m}` whose files may hold anything; `{out}` is a place to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from weighbridge.cli.main import COMMANDS

#: By command. Each is tried on the folder, those with `{file}` on each of its files as well.
LINES: Final[dict[str, tuple[str, ...]]] = {
    "identify": ("{m} --json", "{file}"),
    "inspect": ("{m} --json", "{file} --json"),
    "ls": ("{m} --json",),
    "du": ("{m} --json",),
    "anatomy": ("{m} --json", "{file} --json"),
    "explain": ("{file} --json",),
    "get": ("{m}::a --json", "{file}::a"),
    "verify": ("{m} --json", "{file} --json"),
    "diff": ("{m} {base} --json", "{file} {m} --json"),
    "lineage": ("{m} {base} --json", "{file} {m}"),
    "arch": ("check {m} --json",),
    "view": ("{m} -o {out}.html --overwrite",),
    "prove": ("{m} {base} --no-run --json", "{m} {m} --static --json"),
    "quality": ("{m} --text {base}/config.json --context 16 --json",),
    "stats": ("{m} --json", "{file} --json"),
    "choose": ("{m} --purpose chat --json",),
    "ship": (
        "llama-server {m} --dry-run --json",
        "llama-server {m} --device 24GB --dry-run",
        "vllm {m} --dry-run",
        "mlx {m} --dry-run",
        "lmstudio {m} --dry-run",
        "ollama {m} me/x --dry-run",
    ),
    "scan": ("{m} --json", "{m} --sarif -", "{m}"),
    "fit": ("{m} --device 8GB --json", "{m} --device 8GB --type Q4_K_M --explain"),
    "hash": ("{m} --json",),
    "sbom": ("{m} --json", "{file} --format spdx"),
    "sign": ("{m} --key {base}/config.json", "{m} --key {base}/config.json --dry-run"),
    "convert": (
        "{m} {out}.gguf --dry-run",
        "{m} {out}.safetensors",
        "{m} {out} --dry-run",
        "{m} {out} --to mlx --dry-run",
        "{m} {out} --to hf --dry-run",
    ),
    "quantize": ("{m} {out}.gguf Q8_0 --dry-run", "{m} Q4_K_M --dry-run"),
    "imatrix": ("{m} {out}.gguf --text {base}/config.json --context 16 --dry-run",),
    "plan": ("{m} {out}.gguf --json",),
    "split": ("{m} {out} --max-shard-tensors 1 --dry-run",),
    "merge": ("{m} {out}.safetensors --dry-run", "{m} {m} {out} --method linear --dry-run"),
    "extract-lora": ("{base} {m} {out} --dry-run", "{m} {m} {out}.gguf --dry-run"),
    "strip": ("{m} {out} --dry-run",),
    "rename": ("{m} {out} --add-prefix x. --dry-run",),
    "slice": ("{m} {out} --layers 0-0 --dry-run",),
    "fetch": ("{m} {out} --dry-run",),
    "dedupe": ("{m} --dry-run --json",),
    "pack": ("{m} {out} --dry-run", "{file} {out}.safetensors"),
    "unpack": ("{m} {out} --dry-run",),
    "edit": ("{file} --list", "{file} --set a=b --dry-run"),
}
#: They answer until they are stopped (tests/serve, tests/mount), run others of these, or read no file.
ELSEWHERE: Final = frozenset({"serve", "mount", "completion", "fleet"})


def lines(command: str, folder: Path, base: Path, out: Path, files: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The command's lines, those with `{file}` for each of `files`."""
    places = {"m": folder, "base": base, "out": out}
    for line in LINES[command]:
        for file in files if "{file}" in line else ("",):
            yield [command, *(word.format(**places, file=folder / file) for word in line.split())]


def commands() -> list[str]:
    return [row.name for row in COMMANDS if row.name in LINES]


def missing() -> set[str]:
    """Commands without a line."""
    return {row.name for row in COMMANDS} - set(LINES) - ELSEWHERE
