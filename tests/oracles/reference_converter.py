"""The reference converters (`convert_hf_to_gguf.py`, `convert_lora_to_gguf.py` of b11549) in a process of their own.

They recognise a pre-tokenizer by hashing the tokens of one probe text, so they know only published vocabularies; one
that a test trained is unknown by construction. `pre` puts the name in place of that hash. Everything else is untouched.

Starting the process (torch, transformers) costs seconds, a small model costs none, so one process serves all jobs of a
test session: a line of JSON in, a list of jobs, and a line out. Run as a script, this file is that process.
"""

from __future__ import annotations

import atexit
import copy
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Job:
    """`folder` to `out`.

    `outtype`: None for the vocabulary alone (`--vocab-only`). `pre`: its pre-tokenizer's name, for a vocabulary that
    the reference can't know. `hparams`: what it reads from a config beside what transformers 5 keeps of it. `flags`:
    further options. `base`: the folder of a base model that it would download. `method`: "module:Class" of the
    reference, whose `set_vocab` alone is run, for a vocabulary whose model doesn't matter; ranks.json in the folder
    replaces a tokenizer whose program lies in the model's repository.
    """

    folder: str
    out: str
    outtype: str | None = None
    pre: str | None = None
    hparams: dict[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()
    script: str = "convert_hf_to_gguf.py"
    method: str | None = None
    base: str | None = None

    @property
    def arguments(self) -> list[str]:
        what = ["--outtype", self.outtype] if self.outtype else ["--vocab-only"]
        return [*self.flags, *what, "--outfile", self.out, self.folder]


def convert_all(jobs: Sequence[Job]) -> list[str | None]:
    """For each job None, or the reference's traceback. Skips the calling test where the reference is missing."""
    from tests.oracles import tree

    return _server(str(tree.require())).ask(jobs)


def convert(folder: Path, out: Path, outtype: str | None, *, pre: str | None = None) -> Path:
    """One job; the reference's failure is an AssertionError."""
    return run(Job(str(folder), str(out), outtype, pre))


def run(job: Job) -> Path:
    """One job; the reference's failure is an AssertionError."""
    failure = convert_all([job])[0]
    if failure:
        raise AssertionError(f"the reference converter failed on {job.folder}:\n{failure[-3000:]}")
    return Path(job.out)


def convert_apart(job: Job) -> str | None:
    """Converts in a process of its own, for options that the reference's classes keep for the next model."""
    from tests.oracles import tree

    return _Server(str(tree.require())).ask([job])[0]


@cache
def _server(tree: str) -> _Server:
    return _Server(tree)


class _Server:
    """The process: the first job starts it, it ends with the tests. If it dies, the next job starts another."""

    def __init__(self, tree: str) -> None:
        self._tree, self._log = tree, tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process lives
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self._end)

    def ask(self, jobs: Sequence[Job]) -> list[str | None]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            self._end()
            self._log.seek(0)
            raise AssertionError(f"the reference converter's process ended:\n{self._log.read()[-3000:]}")
        return list(json.loads(answer))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command, pipe = [sys.executable, __file__, self._tree], subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._log, text=True, env=_environment()
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _environment() -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    return {k: v for k, v in os.environ.items() if k != "NO_LOCAL_GGUF"} | quiet


def with_hparams(known: dict[str, Any], hparams: dict[str, Any]) -> dict[str, Any]:
    """The reference's view of a config with the job's values; None removes a key that transformers adds."""
    own = copy.deepcopy(hparams)  # the reference writes into its view
    return {key: value for key, value in (known | own).items() if own.get(key, "") is not None}


def with_narrow_plamo() -> None:
    """PLaMo's class of the reference asserts the width of the one published model, 5120: its two moves of heads, for 40
    heads of any width."""
    from conversion.plamo import PlamoModel  # type: ignore[import-not-found]

    PlamoModel.shuffle_attn_q_weight = lambda self, data: (
        data.reshape(8, 5, -1, data.shape[1]).permute(1, 0, 2, 3).reshape(data.shape)
    )
    PlamoModel.shuffle_attn_output_weight = lambda self, data: (
        data.reshape(data.shape[0], 8, 5, -1).permute(0, 2, 1, 3).reshape(data.shape)
    )


def with_exact_mean() -> None:
    """The mean of a whole tensor from a sum in F64: torch's depends on the processor's vectors and on the threads.
    BitNet's matrices are rounded by it, a bias of Sarvam's has it subtracted."""
    import torch

    plain = torch._C.TensorBase.mean
    torch.Tensor.mean = lambda self, *rest, **named: (
        plain(self, *rest, **named) if rest or named else plain(self.double()).to(self.dtype)
    )


# --- the process itself ---------------------------------------------------------------------------------------------


def _run(tree: str, job: Job) -> str | None:
    import huggingface_hub
    from conversion import load_all_models  # type: ignore[import-not-found]
    from conversion.base import ModelBase, TextModel  # type: ignore[import-not-found]
    from gguf import TensorNameMap

    names = dict(TensorNameMap.block_mappings_cfg)  # to which Arctic's adds its own for all models
    original, load = TextModel.get_vocab_base_pre, ModelBase.load_hparams
    load_all_models()  # else its own attributes would be taken for a job's
    known = _with_own(ModelBase, "no_mtp")
    downloads = huggingface_hub.hf_hub_download, huggingface_hub.snapshot_download
    with_narrow_plamo()
    with_exact_mean()
    try:
        if job.base is not None:
            huggingface_hub.hf_hub_download = lambda repo, name, **_: os.path.join(job.base or "", name)
            huggingface_hub.snapshot_download = lambda repo, **_: job.base
        if job.pre is not None:
            TextModel.get_vocab_base_pre = lambda self, tokenizer: job.pre
        if job.method is not None:
            _set_vocab(job.folder, job.out, job.method)
            return None
        ModelBase.load_hparams = staticmethod(lambda *args, **kw: with_hparams(load(*args, **kw), job.hparams))
        sys.argv = [job.script, *job.arguments]
        runpy.run_path(os.path.join(tree, job.script), run_name="__main__")
    except (Exception, SystemExit):
        return traceback.format_exc()
    finally:
        TextModel.get_vocab_base_pre, ModelBase.load_hparams = original, staticmethod(load)
        huggingface_hub.hf_hub_download, huggingface_hub.snapshot_download = downloads
        TensorNameMap.block_mappings_cfg = names
        for model in _with_own(ModelBase, "no_mtp") - known:  # an option of one job would be one of all that follow
            del model.no_mtp
        for model in _with_own(ModelBase, "lerp_weights"):  # RWKV's, kept by a class for all that it converts
            model.lerp_weights.clear()
    return None


def _with_own(model: Any, name: str) -> set[Any]:
    """The classes that define this attribute themselves (`no_mtp`: leave out the layers that predict further
    tokens)."""
    own = {model} if name in vars(model) else set()
    return own.union(*(_with_own(each, name) for each in model.__subclasses__()))


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


def _set_vocab(folder: str, out: str, method: str) -> None:
    """`set_vocab` of one class, and a file of what it wrote."""
    import gguf
    from transformers import AutoTokenizer

    module, _, name = method.partition(":")
    made = getattr(importlib.import_module(f"conversion.{module}"), name)
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


def _main(tree: str) -> None:
    sys.path[0] = tree  # in place of this file's folder, as if the script itself had been started
    sys.path.insert(1, os.path.join(tree, "gguf-py"))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the reference prints goes to the log
    for line in sys.stdin:
        results = [_run(tree, Job(**job)) for job in json.loads(line)]
        answers.write(json.dumps(results) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
