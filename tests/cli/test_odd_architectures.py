"""GGUFs without a usable architecture: every command answers or refuses; none ends as a fault of Weighbridge."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.containers._gguf import STR, U32, File, Item, Tensor

from weighbridge.cli.main import main

KEY = "general.architecture"
ODD: dict[str, list[tuple[str | bytes, Item]]] = {
    "none": [],
    "a number": [(KEY, Item(U32, 7))],
    "unknown": [(KEY, Item(STR, "zzz"))],
    "empty": [(KEY, Item(STR, ""))],
    "without keys": [(KEY, Item(STR, "llama"))],
}
COMMANDS = (
    "fit {} --device 24GB", "inspect {}", "verify {}", "ship llama-server {} --device 24GB", "ship vllm {}",
    "ship mlx {}", "ship lmstudio {} --dry-run", "ship ollama {} me/x --dry-run", "arch check {}", "anatomy {}",
    "choose {}",
    "prove {} {} --static", "convert {} {}.mlx --to mlx --dry-run", "convert {} {}.hf --to hf --dry-run",
    "quantize {} {}.q8 q8_0 --dry-run", "get {} t", "diff {} {}",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c.replace("{}", "").split()[:2]))
@pytest.mark.parametrize("odd", ODD)
def test_no_command_fails_on_an_odd_architecture(
    odd: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "m.gguf"
    path.write_bytes(File(keys=ODD[odd], tensors=[Tensor("t", [8])]).bytes())
    code = main([part.format(path) for part in command.split()])
    assert "a fault of weighbridge" not in capsys.readouterr().err
    assert code != 70
