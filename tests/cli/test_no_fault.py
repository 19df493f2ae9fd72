"""Whatever a folder's small files or a GGUF's architecture hold, no command ends as a fault of ours (exit 70)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.every_command import commands, lines, missing
from tests.containers._gguf import STR, U32, File, Item, Tensor

from weighbridge.cli.main import main

_HUGE = 10**400
_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip
#: Changes of config.json.
CONFIGS: dict[str, dict[str, object]] = {
    "bits of 400 digits": {"quantization_config": {"quant_method": "gptq", "bits": _HUGE}},
    "an epsilon of 400 digits": {"rms_norm_eps": _HUGE},
    "a base of 400 digits": {"rope_theta": -_HUGE},
    "a size of 400 digits": {"hidden_size": _HUGE},
    "a list of 400 digits": {"eos_token_id": [1, _HUGE]},
    "quantization that is a number": {"quantization": 5},
    "quantization_config that is a list": {"quantization_config": [1]},
    "MLX groups that are text": {"quantization": {"group_size": "x", "bits": "y"}},
    "no layers": {"num_hidden_layers": 0},
    "sizes that are text": {"hidden_size": "64", "num_attention_heads": None},
    "rope_scaling that is a number": {"rope_scaling": 3},
    "architectures that are a number": {"architectures": 1, "model_type": 7},
    "text_config that is a list": {"text_config": [{}]},
}
#: Other files of the folder.
FILES: dict[str, dict[str, str]] = {
    "an index of nothing": {"model.safetensors.index.json": '{"metadata": {}, "weight_map": {}}'},
    "an index of numbers": {"model.safetensors.index.json": '{"metadata": 1, "weight_map": {"a": 5}}'},
    "a tokenizer of nothing": {"tokenizer.json": "{}", "tokenizer_config.json": "[]"},
    "a tokenizer of numbers": {"tokenizer.json": '{"model": 1, "added_tokens": 2}', "tokenizer_config.json": "5"},
    "a long sum": {"chat_template.jinja": "{{ " + "~".join(["'a'"] * 5000) + " }}"},
    "a config that is a list": {"config.json": "[1]"},
}


def _folder(path: Path, config: dict[str, object], files: dict[str, str]) -> Path:
    path.mkdir()
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (path / "config.json").write_text(json.dumps(_CONFIG | config))
    for name, text in files.items():
        (path / name).write_text(text)
    return path


CASES = [*CONFIGS, *FILES]


def _files(case: str) -> tuple[str, ...]:
    """Those that a case changes, and the weights."""
    return ("model.safetensors", *(FILES.get(case) or {"config.json": ""}))


@pytest.mark.costly
@pytest.mark.parametrize("case", CASES)
def test_no_command_fails_by_its_own_fault(case: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", CONFIGS.get(case, {}), FILES.get(case, {}))
    _run_all(folder, tmp_path, _files(case))


KEY = "general.architecture"
ARCHITECTURES: dict[str, list[tuple[str | bytes, Item]]] = {
    "none": [],
    "a number": [(KEY, Item(U32, 7))],
    "unknown": [(KEY, Item(STR, "zzz"))],
    "empty": [(KEY, Item(STR, ""))],
    "without keys": [(KEY, Item(STR, "llama"))],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ARCHITECTURES)
def test_no_command_fails_on_an_odd_architecture(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "m.gguf"
    path.write_bytes(File(keys=ARCHITECTURES[case], tensors=[Tensor("a", [8])]).bytes())
    _run_all(path, tmp_path, ("",))  # the file itself


def _run_all(model: Path, tmp_path: Path, files: tuple[str, ...]) -> None:
    base = _folder(tmp_path / "base", {}, {})
    faults = []
    for command in commands():
        for line in lines(command, model, base, tmp_path / "out", files):
            faults += [" ".join(line)] if main(line) == 70 else []
    assert not faults


def test_every_command_is_tried() -> None:
    assert missing() == set()
