"""Completion in real shells: bash, zsh and fish complete commands, files, types and the names of tensors."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests import system
from tests.architecture import house

pty = pytest.importorskip("pty", reason="no terminals to drive on this system")

SHARE = house.ROOT / "share"
# Shell -> its options, and what makes it complete `wb`: the command, or the file in the wheel.
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], "source <(wb completion bash)"),
    "zsh": (["-f", "-i"], "autoload -Uz compinit; compinit -u -d ./dump; source <(wb completion zsh)"),
    "fish": (["--no-config", "-i"], "wb completion fish | source"),
    "bash, installed": (["--norc", "--noprofile", "-i"], f"source {SHARE}/bash-completion/completions/wb"),
    "zsh, installed": (
        ["-f", "-i"],
        f"fpath+=({SHARE}/zsh/site-functions); autoload -Uz compinit; compinit -u -d ./dump",
    ),
    "fish, installed": (["--no-config", "-i"], f"source {SHARE}/fish/vendor_completions.d/wb.fish"),
}
# What is typed before a tab -> what must appear.
TYPED = {
    "wb quan": "wb quantize",
    "wb get only.safetensors model.no": "model.norm.weight",
    "wb inspect only.safetensors::lm": "only.safetensors::lm_head.weight",
    "wb scan onl": "wb scan only.safetensors",
    "wb hash --manifest onl": "only.safetensors",
    "wb convert only.safetensors o.npz --dtype bf": "bf16",
    "wb quantize only.safetensors o.gguf IQ4_X": "IQ4_XS",
    "wb fit only.safetensors --device rtx409": "rtx4090",
    "wb convert only.safetensors o --to saf": "--to safetensors",
}


def read(terminal: int, until: str, seconds: float) -> str:
    """What a shell prints until a text comes, or the time is over."""
    out, end = "", time.monotonic() + seconds
    while until not in out and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            out += os.read(terminal, 65536).decode(errors="replace")
    return out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    (options, load), program = SHELLS[shell], system.require(shell.partition(",")[0])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not Path(sys.executable).with_name("wb").exists():
        pytest.skip("NOT CHECKED: wb isn't installed beside this Python")
    save_file(
        {n: np.ones(2, np.float32) for n in ("lm_head.weight", "model.norm.weight")}, tmp_path / "only.safetensors"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execve(
            program,
            [program, *options],
            {**os.environ, "TERM": "xterm", "PS1": "$ ", "PATH": path, "HOME": str(tmp_path)},
        )
    try:
        os.write(terminal, f"{load}; echo rea''dy\n".encode())
        assert "ready" in read(terminal, "ready\r\n", 60)
        for typed, wanted in TYPED.items():
            os.write(terminal, f"{typed}\t".encode())
            assert wanted in (found := read(terminal, wanted, 30)), (typed, found)
            os.write(terminal, b"\x15")  # the line is cleared
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
