"""The reference converter (`convert_hf_to_gguf.py` of b11549) in a process of its own.

It recognises a pre-tokenizer by hashing the tokens of one probe text, so it knows only published vocabularies; one that
a test trained is unknown by construction. `pre` puts the name in place of that hash. Everything else is untouched.

Run as a script, this file is the process: `reference_converter.py TREE PRE ARGUMENTS...`.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path


def convert(folder: Path, out: Path, outtype: str, *, pre: str | None = None, arguments: tuple[str, ...] = ()) -> Path:
    """`folder` converted to `out` by the reference. `pre`: the pre-tokenizer's name."""
    from tests.oracles import tree

    options = ["--outtype", outtype, "--outfile", str(out), *arguments, str(folder)]
    command = [sys.executable, __file__, str(tree.require()), pre or "", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=300)
    if done.returncode:
        raise AssertionError(f"the reference converter failed on {folder}:\n{done.stderr[-3000:]}")
    return out


def _environment() -> dict[str, str]:
    """Offline and quiet; its own gguf-py is put on the path by the script itself."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    return {k: v for k, v in os.environ.items() if k != "NO_LOCAL_GGUF"} | quiet


def _main(tree: str, pre: str, arguments: list[str]) -> None:
    sys.path[0] = tree  # in place of this file's folder, as if the script itself had been started
    sys.path.insert(1, os.path.join(tree, "gguf-py"))
    sys.argv = ["convert_hf_to_gguf.py", *arguments]
    if pre:
        from conversion.base import TextModel  # type: ignore[import-not-found]

        TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    runpy.run_path(os.path.join(tree, "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3:])
