"""Record the digests of what llama.cpp's converter of old files writes, for tests/conversion/test_upgrade.py.

python tests/conversion/record_upgrade.py PATH/TO/convert_llama_ggml_to_gguf.py > tests/conversion/golden/upgrade.json

The converter of b11549 hands shapes in elements to a writer that takes them in bytes: of an unquantized file it writes
shapes with a quarter or half of the columns, of a quantized one nothing. Nor does it say the version of the blocks,
which every other converter does. Here the shapes are handed over in bytes, and the version is added; with `--as-it-is`
they are not, and what comes out is said on standard error.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

# What the reference takes: unquantized, Q5 of GGJT 2, all of GGJT 3.
CASES = {
    "ggml F32": ("ggml", "F32", 0), "ggmf1 F16": ("ggmf1", "F16", 1), "ggjt1 F16": ("ggjt1", "F16", 1),
    "ggjt2 Q5_0": ("ggjt2", "Q5_0", 8), "ggjt2 Q5_1": ("ggjt2", "Q5_1", 9), "ggjt3 Q4_0": ("ggjt3", "Q4_0", 2),
    "ggjt3 Q4_1": ("ggjt3", "Q4_1", 3), "ggjt3 Q8_0": ("ggjt3", "Q8_0", 7), "ggjt3 Q5_1": ("ggjt3", "Q5_1", 9),
}  # fmt: skip
OPTIONS = ("--gqa", "2", "--eps", "1e-5", "--context-length", "512")


def run_reference(script: str, arguments: list[str]) -> None:
    """The converter, with shapes handed over as its writer takes them."""
    import gguf

    plain = gguf.GGUFWriter.add_tensor

    def add_tensor(self: Any, name: str, tensor: Any, raw_shape: Any = None, raw_dtype: Any = None) -> None:
        block, size = gguf.GGML_QUANT_SIZES[raw_dtype]
        shape = [*raw_shape[:-1], raw_shape[-1] // block * size]
        plain(self, name, tensor, raw_shape=shape, raw_dtype=raw_dtype)

    file_type = gguf.GGUFWriter.add_file_type

    def add_file_type(self: Any, ftype: int) -> None:
        file_type(self, ftype)
        if ftype > 1:
            self.add_quantization_version(2)

    gguf.GGUFWriter.add_tensor = add_tensor
    gguf.GGUFWriter.add_file_type = add_file_type
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def main(script: str, *, fixed: bool) -> None:
    from tests.containers import ggml_files

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (form, kind, ftype) in CASES.items():
            source, target = Path(folder) / "old.bin", Path(folder) / "new.gguf"
            source.write_bytes(ggml_files.llama(form, kind, ftype))
            start = [__file__, "--run", script] if fixed else [script]
            command = [sys.executable, *start, "-i", str(source), "-o", str(target), *OPTIONS]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.stderr.write(f"{name}: {done.stderr.splitlines()[-1]}\n")
                continue
            found[name] = hashlib.sha256(target.read_bytes()).hexdigest()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run_reference(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1], fixed="--as-it-is" not in sys.argv)
