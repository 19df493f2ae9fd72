"""examples/llama_cpp.py: a folder runs in llama.cpp without a GGUF on the disk, with the logits of the weights."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from examples.engine import Engine
from tests.llama import CONFIG, llama_tensors, write

import weighbridge as wb

ROOT = Path(__file__).parents[2]
PROMPT = [1, 5, 7, 2]
CODE = """
import json, sys
from examples.llama_cpp import logits
print(json.dumps(logits(sys.argv[1], json.loads(sys.argv[2])).tolist()))
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("xllamacpp") is None,
    reason="NOTHING HERE WAS PROVED: it takes Linux and requirements/oracles.txt",
)


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, str(folder), json.dumps(PROMPT)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_llama_cpp_computes_the_models_logits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write(tmp_path / "model.safetensors", llama_tensors())
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.array(json.loads(done.stdout.splitlines()[-1]))
    with wb.provider(tmp_path) as weights:
        want = Engine(weights).forward(PROMPT)[-1]
    assert np.abs(found - want).max() <= 5e-3 * np.abs(want).max()
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
