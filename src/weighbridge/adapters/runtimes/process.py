"""A runtime in a separate process: llama.cpp aborts on some files, and two frameworks in one process can conflict.

Run as a module, this file is that process. A request is a line of JSON on its stdin: [method, arguments]. An answer
is a line of JSON on its stdout: {"value": ...}, {"error": ...}, or {"shape": ...} followed by that many F32 numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError


class RuntimeRow(NamedTuple):
    """A runtime: the packages that it needs, and the class of a module here."""

    packages: tuple[str, ...]
    module: str
    cls: str

    def load(self, path: str, settings: Mapping[str, Any]) -> Any:
        """The model at `path`, in this process. `settings`: of its config, which the runtime would overrule."""
        module = import_module(f"weighbridge.adapters.runtimes.{self.module}")
        return getattr(module, self.cls)(path, **({"settings": settings} if settings else {}))


RUNTIMES: Final = MappingProxyType({
    "transformers": RuntimeRow(("torch", "transformers"), "transformers", "TransformersRuntime"),
    "llama.cpp": RuntimeRow(("xllamacpp",), "llamacpp", "LlamaCppRuntime"),
    "mlx-lm": RuntimeRow(("mlx", "mlx_lm"), "mlx_lm", "MlxLmRuntime"),
    "mtmd": RuntimeRow(("xllamacpp",), "mtmd", "MtmdRuntime"),
    "transformers' towers": RuntimeRow(("torch", "transformers", "PIL"), "transformers_media", "TransformersTowers"),
})  # fmt: skip
#: Of sounds, a second: what llama.cpp and the feature extractors of the towers take.
SAMPLING_RATE: Final = 16_000
_QUIET: Final = {
    "GGML_NO_BACKTRACE": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_LAST: Final = 600  # bytes of a process's last output that an error quotes


def missing(runtime: str) -> list[str]:
    """The packages of a runtime that aren't installed."""
    return [name for name in RUNTIMES[runtime].packages if find_spec(name) is None]


class RuntimeProcess:
    """One model, loaded by one runtime. Close it when done. UnsupportedError, with the runtime's own words, for
    whatever it refuses or fails at."""

    def __init__(self, runtime: str, path: str | os.PathLike[str], settings: Mapping[str, Any] = _NONE) -> None:
        self.runtime = runtime
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", __name__, runtime, os.fspath(path), json.dumps(dict(settings))]
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._errors, env={**os.environ, **_QUIET}
        )
        self._loaded = False

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._ask("tokenize", text)["value"]
        return ids

    def logits(self, ids: Sequence[int], answer: Sequence[int] = ()) -> NDArray[np.float32]:
        return self._numbers("logits", list(ids), list(answer))

    def embedding(self, ids: Sequence[int]) -> NDArray[np.float32]:
        return self._numbers("embedding", list(ids))

    def media(self, path: str | os.PathLike[str]) -> NDArray[np.float32]:
        return self._numbers("media", os.fspath(path))

    def _numbers(self, method: str, *arguments: Any) -> NDArray[np.float32]:
        shape = self._ask(method, *arguments)["shape"]
        assert self._process.stdout is not None
        data = self._process.stdout.read(4 * int(np.prod(shape)))
        if len(data) != 4 * int(np.prod(shape)):
            raise self._ended()
        return np.frombuffer(data, "<f4").reshape(shape)

    def _ask(self, method: str, *arguments: Any) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnsupportedError(f"{self.runtime}: {answer['error']}")
        return answer

    def _ended(self) -> UnsupportedError:
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read()[-_LAST:].decode("utf-8", "replace").strip().splitlines()
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        return UnsupportedError(f"{self.runtime} ended with {why}: {' '.join(last[-3:])}")


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print isn't an answer
    model: Any = None
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            if model is None:
                model = RUNTIMES[sys.argv[1]].load(sys.argv[2], json.loads(sys.argv[3]))
            value = getattr(model, method)(*arguments)
        except Exception as error:  # whatever a framework raises is an answer
            answer, data = {"error": f"{type(error).__name__}: {error}"[:_LAST]}, b""
        else:
            numbers = isinstance(value, np.ndarray)
            answer = {"shape": value.shape} if numbers else {"value": value}
            data = value.astype("<f4").tobytes() if numbers else b""
        answers.write(json.dumps(answer).encode() + b"\n" + data)
        answers.flush()
    os._exit(0)  # without the libraries' exit handlers


if __name__ == "__main__":
    _main()
