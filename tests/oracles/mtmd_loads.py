"""Whether llama.cpp takes an mmproj file: `mtmd_init_from_file`, which builds and runs the tower once (its warm-up).

Run as a script, this file is a process of its own, since the loader aborts on some files. The answer is the exit code,
and on stderr what llama.cpp said. Without a language model the widths of the embeddings aren't compared.
"""

from __future__ import annotations

import ctypes as c
import os
import subprocess
import sys
from pathlib import Path

from weighbridge.adapters.runtimes.mtmd import MtmdParameters


def refusal(mmproj: Path) -> str | None:
    """None where llama.cpp loads the file and computes with it, else what it says."""
    command = [sys.executable, "-m", "tests.oracles.mtmd_loads", str(mmproj)]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=Path(__file__).parents[2], timeout=300)
    said = done.stderr.decode("utf-8", "replace")
    return None if done.returncode == 0 else said.strip()[-800:] or f"exit {done.returncode}"


def _load(mmproj: str) -> bool:
    from tests.oracles import llamacpp

    library = llamacpp.library()
    make, init = library.mtmd_context_params_default, library.mtmd_init_from_file
    make.restype, init.restype = MtmdParameters, c.c_void_p
    init.argtypes = [c.c_char_p, c.c_void_p, MtmdParameters]
    parameters = make()
    parameters.use_gpu, parameters.print_timings, parameters.n_threads = False, False, 1
    return bool(init(os.fsencode(mmproj), None, parameters))


if __name__ == "__main__":
    loaded = _load(sys.argv[1])
    sys.stderr.flush()
    os._exit(0 if loaded else 1)
