"""llama-quantize itself, as a judge: its two source files and the imatrix loader compiled (7 seconds, once) against the
shared object in the wheel, which has all the rest of llama.cpp b11549 inside. Whole files can be compared with its own.

The tool prints and exits as it likes, so it runs in a process of its own, many jobs in one: it sets up large tables for
some types. `quantize_all` gives each job's exit code and what was said.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SOURCES = ("src/llama-quant.cpp", "tools/quantize/quantize.cpp", "common/imatrix-loader.cpp")
_INCLUDES = ("include", "ggml/include", "src", "common")
# The wheel is built with the older C++ ABI (manylinux2014).
_FLAGS = ("-std=c++17", "-O1", "-D_GLIBCXX_USE_CXX11_ABI=0", "-fPIC", "-shared")
_MAIN = "_Z14llama_quantizeiPPc"  # int llama_quantize(int, char **)


@cache
def library() -> Path:
    """The compiled tool, kept beside the tree; without a compiler or the tree the calling test is skipped, or fails
    where CI=true."""
    from tests import system
    from tests.oracles import tree

    source = tree.require()
    compiler = system.find("g++") or system.program("c++")
    if compiler is None or sys.platform != "linux":
        import pytest

        message = "LLAMA-QUANTIZE IS MISSING, so no file was compared with its: it takes Linux and a C++ compiler"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    assert compiler is not None
    stamp = hashlib.sha256(repr((_SOURCES, _FLAGS, compiler, tree.VERSION, str(_wheel()))).encode()).hexdigest()[:16]
    made = tree.ROOT / f"llama-quantize-{stamp}.so"
    with tree.alone():
        if not made.exists():
            _compile(compiler, source, made)
    return made


def _wheel() -> Path:
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("xllamacpp*.so"))


def _compile(compiler: str, source: Path, made: Path) -> None:
    wheel = _wheel()
    link = [f"-L{wheel.parent}", f"-l:{wheel.name}", f"-Wl,-rpath,{wheel.parent}"]
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        out = Path(folder) / made.name
        includes = [f"-I{source / part}" for part in _INCLUDES]
        files = [str(source / name) for name in _SOURCES]
        subprocess.run([compiler, *_FLAGS, *includes, *files, "-o", str(out), *link], check=True, capture_output=True)
        os.rename(out, made)


def quantize_all(jobs: Sequence[Sequence[str]]) -> list[int]:
    """Each job (the tool's arguments) in turn, all in one process; their exit codes."""
    done = _run(jobs)
    if done.returncode:
        raise AssertionError(f"llama-quantize ended with {done.returncode}: {done.stderr[-2000:]}")
    return list(json.loads(done.stdout))


def quantize(*arguments: str) -> tuple[int, str]:
    """One job in a process of its own: its exit code and what it said. It may also abort (a negative code)."""
    done = _run([arguments])
    code = done.returncode or json.loads(done.stdout)[0]
    return code, done.stderr


def process() -> list[str]:
    """The process that does the jobs it reads from its input, a JSON array of arrays of arguments."""
    return [sys.executable, __file__, str(library()), str(_wheel())]


def _run(jobs: Sequence[Sequence[str]]) -> subprocess.CompletedProcess[str]:
    todo = json.dumps([list(map(str, job)) for job in jobs])
    return subprocess.run(process(), input=todo, capture_output=True, text=True, errors="replace", timeout=900)


def _main(library_: str, wheel: str) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what the tool prints goes with its complaints
    c.CDLL(wheel)
    tool: Any = getattr(c.CDLL(library_), _MAIN)
    codes = []
    for job in json.load(sys.stdin):
        words = [b"llama-quantize", *map(os.fsencode, job)]
        codes.append(tool(len(words), (c.c_char_p * (len(words) + 1))(*words)))
    os.write(answers, json.dumps(codes).encode())
    os._exit(0)  # skip the library's exit handlers


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
