"""llama.cpp's own account of a model's memory: the buffers that it would allocate, without allocating them.

A file of metadata and tensor infos is enough: its data is a hole, since with `no_alloc` llama.cpp reads none of it. Run
as a script, this file is the process: JSON in, a line for each file out.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.oracles import llamacpp

from weighbridge.base.spec import Spec
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV

# std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> llama_get_memory_breakdown(const llama_context *)
_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_ROOT, _LEFT, _RIGHT, _VALUES = 2, 2, 3, 5  # words of libstdc++'s _Rb_tree: header's root; of a node its children, data


@dataclass(frozen=True)
class Settings:
    """llama_context_params. `type_k`, `type_v`: ggml type ids. `outputs`: n_outputs_max."""

    context: int
    parallel: int = 1
    unified: bool = False
    batch: int = 2048
    ubatch: int = 512
    type_k: int = 1
    type_v: int = 1
    swa_full: bool = False
    flash_attention: bool = True
    outputs: int = 1


@dataclass(frozen=True)
class Breakdown:
    """Bytes of weights, of the context (keys, values, states) and of compute buffers."""

    model: int
    context: int
    compute: int


def write_hollow(path: Path, tensors: Iterable[tuple[str, Spec]], keys: Mapping[str, KV]) -> Path:
    """A GGUF whose data is a hole."""
    layout = gguf.layout(list(tensors), keys)
    path.write_bytes(layout.pieces[0][1])
    os.truncate(path, layout.size)
    return path


def all_breakdowns(jobs: Mapping[Path, Sequence[Settings]]) -> dict[Path, list[Breakdown | str]]:
    """For the settings of each file llama.cpp's figures, or why there are none. One process forks for each file, since
    llama.cpp aborts on some."""
    todo = json.dumps({str(path): [asdict(s) for s in settings] for path, settings in jobs.items()})
    done = subprocess.run([sys.executable, __file__], input=todo, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise AssertionError(f"llama.cpp: exit {done.returncode}: {done.stderr[-800:]}")
    found = map(json.loads, done.stdout.splitlines())
    return {path: [_answer(row) for row in rows] for path, rows in zip(jobs, found, strict=True)}


def _answer(row: str | dict[str, int]) -> Breakdown | str:
    return row if isinstance(row, str) else Breakdown(**row)


def _measure(lib: c.CDLL, model: int, wanted: Settings) -> Breakdown | str:
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = wanted.context, wanted.batch, wanted.ubatch
    params.n_seq_max, params.kv_unified, params.swa_full = wanted.parallel, wanted.unified, wanted.swa_full
    params.type_k, params.type_v, params.flash_attn_type = wanted.type_k, wanted.type_v, int(wanted.flash_attention)
    params.n_outputs_max = max(wanted.outputs, wanted.parallel)
    ctx = lib.llama_init_from_model(model, params)
    if not ctx:
        return "".join(llamacpp.messages[-4:])
    tree = (c.c_uint64 * 6)()
    function = getattr(lib, _SYMBOL)
    function.restype, function.argtypes = c.c_void_p, [c.c_void_p, c.c_void_p]
    function(c.addressof(tree), ctx)
    rows = list(_nodes(tree[_ROOT]))
    lib.llama_free(ctx)
    return Breakdown(*(sum(column) for column in zip(*rows, strict=True)))


def _nodes(address: int) -> Iterable[tuple[int, int, int]]:
    """(model, context, compute) of each buffer type."""
    if address:
        words = (c.c_uint64 * 8).from_address(address)
        yield tuple(words[_VALUES : _VALUES + 3])  # type: ignore[misc]
        yield from _nodes(words[_LEFT])
        yield from _nodes(words[_RIGHT])


def _measured(lib: c.CDLL, path: str, settings: Sequence[Settings]) -> list[Breakdown | str]:
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.no_alloc, params.load_mode = 0, True, llamacpp.LOAD_MODE_NONE
    params.use_extra_bufts = False
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return ["".join(llamacpp.messages[-6:])] * len(settings)
    return [_measure(lib, model, row) for row in settings]


def _in_a_fork(lib: c.CDLL, path: str, settings: Sequence[Settings]) -> str:
    """The answer as JSON; that of a process that died says so."""
    read, write = os.pipe()
    if not os.fork():
        rows = [row if isinstance(row, str) else asdict(row) for row in _measured(lib, path, settings)]
        os.write(write, json.dumps(rows).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.wait()
    return answer or json.dumps(["llama.cpp died"] * len(settings))


def _main() -> None:
    lib = llamacpp.library()
    for path, rows in json.load(sys.stdin).items():
        print(_in_a_fork(lib, path, [Settings(**row) for row in rows]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main()
