"""The reference converter's vocabulary methods over folders that hold no tensors: `--vocab-only`, all in one process.

A script: `_reference_vocab.py TREE < jobs.json`, a job being [folder, output, pre-tokenizer name or null]. It prints a
list: null, or the traceback of what the reference raised. The name stands in for its hash, which knows no vocabulary
that a test made.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


def convert(jobs: Sequence[tuple[Path, Path, str | None]]) -> list[str | None]:
    """Run all jobs; skips the calling test where the reference isn't there."""
    from tests.oracles import tree

    todo = json.dumps([[str(folder), str(out), pre] for folder, out, pre in jobs])
    environment = {k: v for k, v in os.environ.items() if k != "NO_LOCAL_GGUF"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, str(tree.require())]
    done = subprocess.run(command, input=todo, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[str | None] = json.loads(done.stdout)
    return results


def _one(tree: str, folder: str, out: str, pre: str | None) -> str | None:
    from conversion.base import TextModel  # type: ignore[import-not-found]

    original = TextModel.get_vocab_base_pre
    try:
        if pre is not None:
            TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
        sys.argv = ["convert_hf_to_gguf.py", "--vocab-only", "--outfile", out, folder]
        runpy.run_path(os.path.join(tree, "convert_hf_to_gguf.py"), run_name="__main__")
    except (Exception, SystemExit):
        return traceback.format_exc()
    finally:
        TextModel.get_vocab_base_pre = original
    return None


def _main(tree: str) -> None:
    sys.path[0] = tree
    sys.path.insert(1, os.path.join(tree, "gguf-py"))
    jobs = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        results = [_one(tree, *job) for job in jobs]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1])
