"""The reference converters (`convert_hf_to_gguf.py`, `convert_lora_to_gguf.py` of b11549) in a process of their own.

It recognises a pre-tokenizer by hashing the tokens of one probe text, so it knows only published vocabularies; one that
a test trained is unknown by construction. `pre` puts the name in place of that hash. Everything else is untouched.

Starting it (torch, transformers) costs seconds, a small model costs none, so jobs are done in batches: run as a script,
this file is the process, `reference_converter.py TREE < jobs.json > results.json`.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """`folder` to `out`. `pre`: its pre-tokenizer's name, for a vocabulary that the reference can't know. `hparams`:
    what it looks for in a config, and transformers 5, through which it reads configs, keeps no more. `flags`: further
    options."""

    folder: str
    out: str
    outtype: str
    pre: str | None = None
    hparams: dict[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()
    script: str = "convert_hf_to_gguf.py"

    @property
    def arguments(self) -> list[str]:
        return [*self.flags, "--outtype", self.outtype, "--outfile", self.out, self.folder]


def convert_all(jobs: Sequence[Job]) -> list[str | None]:
    """For each job None, or the traceback that the reference ended with."""
    from tests.oracles import tree

    command = [sys.executable, __file__, str(tree.require())]
    todo = json.dumps([asdict(job) for job in jobs])
    done = subprocess.run(command, input=todo, capture_output=True, text=True, env=_environment(), timeout=600)
    if done.returncode:
        raise AssertionError(f"the reference converter didn't run:\n{done.stderr[-3000:]}")
    return list(json.loads(done.stdout))


def convert(folder: Path, out: Path, outtype: str, *, pre: str | None = None) -> Path:
    """One job; the reference's failure is an AssertionError."""
    failure = convert_all([Job(str(folder), str(out), outtype, pre)])[0]
    if failure:
        raise AssertionError(f"the reference converter failed on {folder}:\n{failure[-3000:]}")
    return out


def _environment() -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    return {k: v for k, v in os.environ.items() if k != "NO_LOCAL_GGUF"} | quiet


def told(known: dict[str, Any], hparams: dict[str, Any]) -> dict[str, Any]:
    """What the reference knows of a config and what it is told beside; None takes away what transformers adds."""
    return {key: value for key, value in (known | hparams).items() if hparams.get(key, "") is not None}


def _run(tree: str, job: Job) -> str | None:
    from conversion.base import ModelBase, TextModel  # type: ignore[import-not-found]

    original, load = TextModel.get_vocab_base_pre, ModelBase.load_hparams
    known = _saying(ModelBase)
    try:
        if job.pre:
            TextModel.get_vocab_base_pre = lambda self, tokenizer: job.pre
        ModelBase.load_hparams = staticmethod(lambda *args, **kw: told(load(*args, **kw), job.hparams))
        sys.argv = [job.script, *job.arguments]
        runpy.run_path(os.path.join(tree, job.script), run_name="__main__")
    except (Exception, SystemExit):
        return traceback.format_exc()
    finally:
        TextModel.get_vocab_base_pre, ModelBase.load_hparams = original, staticmethod(load)
        for model in _saying(ModelBase) - known:  # an option of one job would be one of all that follow
            del model.no_mtp
    return None


def _saying(model: Any) -> set[Any]:
    """The classes that say themselves whether they leave out what predicts further tokens."""
    own = {model} if "no_mtp" in vars(model) else set()
    return own.union(*map(_saying, model.__subclasses__()))


def _main(tree: str) -> None:
    sys.path[0] = tree  # in place of this file's folder, as if the script itself had been started
    sys.path.insert(1, os.path.join(tree, "gguf-py"))
    jobs = [Job(**job) for job in json.load(sys.stdin)]
    with contextlib.redirect_stdout(sys.stderr):
        results = [_run(tree, job) for job in jobs]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1])
