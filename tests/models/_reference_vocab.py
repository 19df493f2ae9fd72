"""The reference converter's vocabulary methods over folders that hold no tensors: `--vocab-only`, all in one process.

A script: `_reference_vocab.py TREE < jobs.json`, a job being [folder, output, pre-tokenizer name or null, method]. It
prints a list: null, or the traceback of what the reference raised. The name stands in for its hash, which knows no
vocabulary that a test made. The method, "module:Class", is for models whose other keys don't matter: the class's
`set_vocab` alone is run. ranks.json in a folder stands in for a tokenizer whose program lies in the model's repository.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace


def convert(jobs: Sequence[tuple[Path, Path, str | None] | tuple[Path, Path, str | None, str]]) -> list[str | None]:
    """Run all jobs; skips the calling test where the reference isn't there."""
    from tests.oracles import tree

    todo = json.dumps([[None if part is None else str(part) for part in job] for job in jobs])
    environment = {k: v for k, v in os.environ.items() if k != "NO_LOCAL_GGUF"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, str(tree.require())]
    done = subprocess.run(command, input=todo, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[str | None] = json.loads(done.stdout)
    return results


class _Ranks:
    """The attributes that the reference takes from such a tokenizer; tokens are spelled in Latin-1 in ranks.json."""

    def __init__(self, folder: str) -> None:
        content = json.loads((Path(folder) / "ranks.json").read_text())
        self.mergeable_ranks = {token.encode("latin-1"): rank for token, rank in content["ranks"].items()}
        self.special_tokens = content["special"]
        self.eos_id = content.get("eos")
        self.model = SimpleNamespace(_mergeable_ranks=self.mergeable_ranks)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.special_tokens)


def _method(folder: str, out: str, name: str) -> None:
    """`set_vocab` of one class, and a file of what it wrote."""
    import gguf
    from transformers import AutoTokenizer

    module, _, kind = name.partition(":")
    made = getattr(importlib.import_module(f"conversion.{module}"), kind)
    model, original = made.__new__(made), AutoTokenizer.from_pretrained
    model.dir_model = Path(folder)
    model.hparams = json.loads((Path(folder) / "config.json").read_text())
    model.gguf_writer = gguf.GGUFWriter(out, "llama")
    try:
        if (Path(folder) / "ranks.json").is_file():
            AutoTokenizer.from_pretrained = lambda *_, **__: _Ranks(folder)
        model.set_vocab()
    finally:
        AutoTokenizer.from_pretrained = original
    model.gguf_writer.write_header_to_file()
    model.gguf_writer.write_kv_data_to_file()
    model.gguf_writer.close()


def _one(tree: str, folder: str, out: str, pre: str | None, method: str | None = None) -> str | None:
    from conversion.base import TextModel  # type: ignore[import-not-found]

    original = TextModel.get_vocab_base_pre
    try:
        if pre is not None:
            TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
        if method is not None:
            _method(folder, out, method)
            return None
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
