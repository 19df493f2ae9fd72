"""Whether llama.cpp loads a file: as a model by `llama_model_load_from_file` with its own defaults, as an mmproj file
by `mtmd_init_from_file`, which builds and runs the tower once (its warm-up); without a language model the widths of
the embeddings aren't compared. Each file has a process of its own (llama.cpp aborts on some), forked from one that has
the library in memory.

Run as a script, this file is that process: a path a line in, an answer in JSON a line out.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ABORTED = "llama.cpp aborted"
_SAID = 800  # the last bytes of what llama.cpp printed about an mmproj file


class Judge:
    """The process. Close it when done. `kind`: `model` or `mmproj`."""

    def __init__(self, kind: str = "model") -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__, kind], stdin=pipe, stdout=pipe, text=True)

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


def _judge(path: str, kind: str) -> str | None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            if kind == "mmproj":
                os.dup2(write, 2)
                os._exit(0 if _loads_mmproj(path) else 1)
            os.write(write, (_load(path) or "loaded").encode()[:4000])
        finally:
            os._exit(0)  # never back to the parent's loop
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        said = answers.read().decode("utf-8", "replace")
    status = os.waitpid(child, 0)[1]
    if kind == "mmproj":
        return None if status == 0 else said.strip()[-_SAID:] or ABORTED
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


def _loads_mmproj(path: str) -> bool:
    from tests.oracles import llamacpp

    from weighbridge.adapters.runtimes.mtmd import MtmdParameters

    library = llamacpp.library()
    make, init = library.mtmd_context_params_default, library.mtmd_init_from_file
    make.restype, init.restype = MtmdParameters, c.c_void_p
    init.argtypes = [c.c_char_p, c.c_void_p, MtmdParameters]
    parameters = make()
    parameters.use_gpu, parameters.print_timings, parameters.n_threads = False, False, 1
    return bool(init(os.fsencode(path), None, parameters))


def _main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.oracles import llamacpp

    import_module("weighbridge.adapters.runtimes.mtmd")  # before the forks
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.environ["GGML_NO_BACKTRACE"] = "1"
    llamacpp.library()
    for line in sys.stdin:
        os.write(answers, f"{json.dumps(_judge(line.rstrip(), sys.argv[1]))}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    _main()
