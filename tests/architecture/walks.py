"""Counts the functions of weighbridge that a command passes, so that a walk through the code stays short.

    python -m tests.architecture.walks [--show WALK]

`--show convert` lists each function of one walk, file by file. A function counts once, however often it runs; functions
that run during an import, comprehensions and lambdas don't count.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tests.architecture import house

_PACKAGE = f"{house.PACKAGE}/"
#: Modules that make other code once: what they do depends on what ran before.
_MAKERS = {f"{_PACKAGE}base/records.py", f"{_PACKAGE}base/imports/tables.py"}
_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: a function, not the body of a class


class Command(NamedTuple):
    """Arguments of `wb`, where `{}` is the folder of the inputs; the exit code expected."""

    arguments: str
    code: int = 0


WALKS = {
    "convert": Command("convert {}/tiny-llama {}/out.gguf --dtype q8_0"),
    "fit": Command("fit {}/tiny-llama --device 8GB"),
    "scan": Command("scan {}/hostile.pkl", 1),
}


class Function(NamedTuple):
    file: str
    name: str


def make_inputs(folder: Path) -> None:
    """Writes a Llama of two layers with a byte-level vocabulary, and a pickle that runs a command."""
    import numpy as np
    from safetensors.numpy import save_file
    from tests.oracles import vocabularies

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": vocabularies.BPE_SIZE}
    config = sizes | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "bos_token_id": vocabularies.BPE_SIZE - 3,
        "eos_token_id": vocabularies.BPE_SIZE - 2,
        "torch_dtype": "float32",
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabularies.BPE_SIZE, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (vocabularies.BPE_SIZE, 64),
    }
    layer = {
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (64,)),
        **dict.fromkeys(("self_attn.q_proj", "self_attn.o_proj"), (64, 64)),
        **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (32, 64)),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (96, 64)),
        "mlp.down_proj": (64, 96),
    }
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in layer.items()}
    random = np.random.default_rng(1)
    model = folder / "tiny-llama"
    model.mkdir()
    save_file(
        {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}, model / "model.safetensors"
    )
    (model / "config.json").write_text(json.dumps(config))
    vocabularies.write_byte_level(model)
    (folder / "hostile.pkl").write_bytes(pickle.dumps(Hostile()))


class Hostile:
    """Pickles as a call of os.system, which nothing here ever loads."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("true",)


class Tracer:
    """A profiler of all threads: the code of each function of weighbridge that runs outside of an import."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self._local = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            self._local.imports = getattr(self._local, "imports", 0) + (1 if event == "call" else -1)
        elif event == "call" and code.co_filename.startswith(_PACKAGE) and not getattr(self._local, "imports", 0):
            self.codes.add(code)

    def functions(self) -> list[Function]:
        """The functions proper: no class bodies, comprehensions or lambdas, no methods that a dataclass has."""
        return sorted(
            Function(code.co_filename.removeprefix(_PACKAGE), code.co_qualname)
            for code in self.codes
            if not code.co_name.startswith("<") and code.co_flags & _OPTIMIZED and code.co_filename not in _MAKERS
        )


def trace(call: Callable[[], object]) -> list[Function]:
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return tracer.functions()


def walk(name: str, folder: Path) -> list[Function]:
    """The functions that a command passes in a fresh interpreter, where nothing is cached."""
    command = WALKS[name]
    arguments = [argument.format(folder) for argument in command.arguments.split()]
    module = [sys.executable, "-m", "tests.architecture.walks", "--trace", *arguments]
    result = subprocess.run(module, cwd=house.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == command.code, f"{name}: exit code {result.returncode}\n{result.stderr}"
    return [Function(*row) for row in json.loads(result.stderr.splitlines()[-1])]


def walks(names: list[str]) -> dict[str, list[Function]]:
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder))
        return {name: walk(name, Path(folder)) for name in names}


def figure(functions: list[Function]) -> str:
    return f"{len(functions):,} functions in {len({function.file for function in functions})} files"


def _run_traced(arguments: list[str]) -> int:
    """Runs the command and prints the functions as the last line of stderr."""
    from weighbridge.cli.main import main

    codes: list[int] = []
    functions = trace(lambda: codes.append(main(arguments)))
    print(json.dumps(functions), file=sys.stderr)
    return codes[0]


def main() -> int:
    if sys.argv[1:2] == ["--trace"]:
        return _run_traced(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", choices=WALKS, help="list the functions of this walk")
    arguments = parser.parse_args()
    if not arguments.show:
        for name, functions in walks(list(WALKS)).items():
            print(f"{name:12}{figure(functions)}")
        return 0
    functions = walks([arguments.show])[arguments.show]
    for file, count in sorted(Counter(function.file for function in functions).items()):
        print(f"{file}: {count}: {', '.join(function.name for function in functions if function.file == file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
