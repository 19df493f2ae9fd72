"""Whether llama.cpp loads a file as a model: `llama_model_load_from_file` with its own defaults, each file in a process
of its own (it aborts on some), forked from one that has the library in memory.

Run as a script, this file is that process: a path a line in, an answer in JSON a line out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ABORTED = "llama.cpp aborted"


class Judge:
    """The process. Close it when done."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)

    def refusal(self, path: Path) -> str | None:
        """None where llama.cpp loads the file, else what it says."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the loader's process ended")
        said: str | None = json.loads(answer)
        return said

    def close(self) -> None:
        self._process.communicate()


def _judge(path: str) -> str | None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            os.write(write, (_load(path) or "loaded").encode()[:4000])
        finally:
            os._exit(0)  # never back to the parent's loop
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        said = answers.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return None if said == "loaded" else said or ABORTED


def _load(path: str) -> str | None:
    from tests.oracles import llamacpp

    library = llamacpp.library()
    params = library.llama_model_default_params()
    params.n_gpu_layers = 0
    llamacpp.messages.clear()
    if library.llama_model_load_from_file(os.fsencode(path), params):
        return None
    return "".join(llamacpp.messages[-3:]).strip() or "refused"


def _main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.oracles import llamacpp

    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.environ["GGML_NO_BACKTRACE"] = "1"
    llamacpp.library()
    for line in sys.stdin:
        os.write(answers, f"{json.dumps(_judge(line.rstrip()))}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    _main()
