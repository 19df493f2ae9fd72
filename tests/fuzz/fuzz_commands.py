"""Invariant: whatever the files of a model's folder hold, no command ends as a fault of ours (exit code 70).

An input is a number and bytes: the number says which file of a small folder has these bytes, the others are whole. A
command's lines are those of tests/cli/every_command.py; each input is given to one of them, in turn.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import harness
from tests.cli.every_command import commands, lines, missing

from weighbridge.cli.main import FAULT, main

_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip
_TOKENIZER = {
    "version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2}, "merges": ["a b"]},
}  # fmt: skip


def _safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("x/data.pkl"), pickle.dumps({"step": 1}, 2))
    return out.getvalue()


@cache
def _files() -> tuple[tuple[str, bytes], ...]:
    return (
        ("config.json", json.dumps(_CONFIG).encode()),
        ("model.safetensors", _safetensors()),
        ("model.safetensors.index.json", b'{"metadata": {}, "weight_map": {"a": "model.safetensors"}}'),
        ("tokenizer.json", json.dumps(_TOKENIZER).encode()),
        ("tokenizer_config.json", b'{"bos_token": "<s>", "chat_template": "{{ messages[0].content }}"}'),
        ("generation_config.json", b'{"eos_token_id": [1, 2]}'),
        ("adapter_config.json", b'{"r": 8, "lora_alpha": 16, "peft_type": "LORA"}'),
        ("chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %}"),
        ("pytorch_model.bin", _zip()),
        ("hparams.yaml", b"a: [1, 2]\nb: {c: d}\n"),
        ("model.gguf", b"GGUF\3\0\0\0" + bytes(16)),
    )


@cache
def _turns() -> Iterator[str]:
    return itertools.cycle(commands())


def target(data: bytes) -> None:
    if not data:
        return
    changed, _ = _files()[data[0] % len(_files())]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        model, base = (Path(folder, name) for name in ("model", "base"))
        for place in (model, base):
            place.mkdir()
            for name, good in _files():
                if place is base or name == changed or name.startswith(("config", "model.safetensors")):
                    (place / name).write_bytes(data[1:] if (place, name) == (model, changed) else good)
        for line in lines(next(_turns()), model, base, Path(folder, "out"), (changed,)):
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                code = main(line)
            assert code != FAULT, f"{line}: {errors.getvalue()[-2000:]}"


def seeds() -> list[bytes]:
    assert not missing()
    whole = [bytes([number]) + data for number, (_, data) in enumerate(_files())]
    unknown = b"\0" + json.dumps({**_CONFIG, "model_type": "nobodys", "architectures": ["Nobodys"]}).encode()
    for known in (whole[0], unknown):
        for _ in commands():
            # What a command imports is not what is measured, nor the tables of all families, which are read once,
            # to name the nearest of an architecture that is unknown.
            target(known)
    documents = [(n, json.loads(data)) for n, (name, data) in enumerate(_files()) if name.endswith(".json")]
    return [*whole, *(bytes([n]) + text for n, document in documents for text in harness.odd(document, 2))]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
