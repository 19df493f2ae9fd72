"""Runs the ```console blocks of the pages on small models and writes their output below each command.

    python docs/console.py            run them all
    python docs/console.py --check    exit 1 if the output of one has changed (a test does this)

A command begins with `$ `; its output runs to the next command or the end of the block. Commands run in a shell, in an
empty folder with `my-model/` (a Llama of two layers), `model.gguf` (the same in F16) and `download.pt` (a pickle that
calls os.system). Files that one page writes are gone on the next. `head` shortens an output.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
#: The only part of the outputs that a machine decides: a time, and the rate that follows unless it was short.
_TIME = re.compile(r"\bin \d+(\.\d+)? ?s\b(, [\d.]+ [kMG]?B/s)?")


def make_inputs(folder: Path) -> None:
    from tests.architecture.walks import make_inputs

    make_inputs(folder)
    (folder / "tiny-llama").rename(folder / "my-model")
    (folder / "hostile.pkl").rename(folder / "download.pt")
    run("wb convert my-model model.gguf --dtype f16", folder)


def run(command: str, folder: Path) -> str:
    """Returns the output of a command in a shell, without the time that it took."""
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)]),
        **{"NO_COLOR": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"},
    }
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, timeout=120, check=False,
    )  # fmt: skip
    return _TIME.sub("in 0.1s", done.stdout.decode())


def with_output(page: str, inputs: Path) -> str:
    """Returns a page's text with the present output of its console blocks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        shutil.copytree(inputs, folder)

        def block(match: re.Match[str]) -> str:
            commands = _COMMAND.findall(match[1])
            shown = (f"$ {command}\n{run(command, folder).rstrip()}".rstrip() for command in commands)
            return "```console\n" + "\n".join(shown) + "\n```"

        return _BLOCK.sub(block, page)


def stale_pages(write: bool) -> list[str]:
    """Returns the pages whose outputs have changed, and rewrites them if `write`."""
    stale = []
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name)
        make_inputs(inputs)
        for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
            page = path.read_text("utf-8")
            if _BLOCK.search(page) and (shown := with_output(page, inputs)) != page:
                stale.append(path.name)
                if write:
                    path.write_text(shown, "utf-8")
    return stale


def main(arguments: Sequence[str]) -> int:
    sys.path.insert(0, str(ROOT))
    check = "--check" in arguments
    stale = stale_pages(write=not check)
    if check and stale:
        sys.stdout.write(f"outputs have changed in {', '.join(stale)}; run `make docs`\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
