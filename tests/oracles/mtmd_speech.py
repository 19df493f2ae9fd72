"""What llama.cpp computes of a part of an mmproj file that generates: codes or latents of a hidden state, and sound.

Run as a script, this file is a process of its own, since llama.cpp aborts on some input.
"""

from __future__ import annotations

import ctypes as c
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from weighbridge.adapters.runtimes.mtmd import MtmdRuntime

CODES, SOUND = 0, 1  # MTMD_GEN_PROCESS_TYPE_GEN_CODE, MTMD_GEN_PROCESS_TYPE_GEN_WAV


class Input(c.Structure):
    """mtmd_gen_inp (tools/mtmd/mtmd.h, llama.cpp b11549)."""

    _fields_ = (
        ("type", c.c_int), ("code0", c.c_int32), ("embd", c.c_void_p), ("top_k", c.c_int32), ("top_p", c.c_float),
        ("seed", c.c_uint32), ("temp", c.c_float), ("codes", c.c_void_p), ("n_codes", c.c_size_t),
        ("feats", c.c_void_p), ("n_feats", c.c_size_t), ("state_data", c.c_void_p), ("state_size", c.c_size_t),
    )  # fmt: skip


class Output(c.Structure):
    """mtmd_gen_out."""

    _fields_ = (
        ("codes", c.POINTER(c.c_int32)), ("n_codes", c.c_size_t), ("feats", c.POINTER(c.c_float)),
        ("n_feats", c.c_size_t), ("embd", c.POINTER(c.c_float)), ("is_eos", c.c_bool),
        ("audio", c.POINTER(c.c_float)), ("n_samples", c.c_size_t), ("state_data", c.c_void_p),
        ("state_size", c.c_size_t),
    )  # fmt: skip


def generated(mmproj: Path, text: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The outputs for a hidden state (`embd`, `code0`), for `codes` or for `feats`. Nothing is drawn at random."""
    np.savez(mmproj.with_name("given.npz"), **given)
    command = [sys.executable, "-m", "tests.oracles.mtmd_speech", str(mmproj), str(text)]
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2], timeout=300)
    return dict(np.load(mmproj.with_name("found.npz")))


def _generate(mmproj: Path, text: str) -> None:
    runtime = MtmdRuntime(str(mmproj), {"text": text})
    library, context, given = runtime._lib, runtime._context_of_towers, np.load(mmproj.with_name("given.npz"))
    defaults, process = library.mtmd_gen_inp_default, library.mtmd_gen_audio_process
    defaults.restype, defaults.argtypes = Input, [c.c_void_p]
    process.restype, process.argtypes = c.c_int32, [c.c_void_p, c.POINTER(Input), c.POINTER(Output)]
    wanted, found = defaults(context), Output()
    wanted.type = CODES if "embd" in given else SOUND
    wanted.top_k, wanted.top_p, wanted.temp, wanted.seed = 1, 1.0, 1e-30, 1
    kept = {name: np.ascontiguousarray(given[name]) for name in given}
    for name, values in kept.items():
        setattr(wanted, name, values.item() if name == "code0" else values.ctypes.data)
        if name in ("codes", "feats"):
            setattr(wanted, f"n_{name}", values.size)
    first = defaults(context)  # llama.cpp sets up its graph by a hidden state
    zeros = np.zeros(library.llama_model_n_embd_inp(runtime._model), np.float32)
    first.type, first.embd = CODES, zeros.ctypes.data
    for each in (first, wanted):
        if process(context, c.byref(each), c.byref(found)):
            raise SystemExit("llama.cpp generates nothing")
    lengths = {"codes": found.n_codes, "feats": found.n_feats, "audio": found.n_samples}
    lengths["embd"] = kept["embd"].size if "embd" in kept else 0
    arrays: dict[str, Any] = {
        n: np.ctypeslib.as_array(getattr(found, n), (size,)) for n, size in lengths.items() if size
    }
    np.savez(mmproj.with_name("found.npz"), **arrays)


if __name__ == "__main__":
    _generate(Path(sys.argv[1]), sys.argv[2])
