"""Folders of pytorch_model.bin: the reference converter reads tensors in the order of the pickles, and so do we."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors, tokenizer
from tests.oracles import gguf_file, reference_converter

import weighbridge

pytestmark = pytest.mark.oracle


def folder_of(path: Path, parts: list[list[str]]) -> Path:
    """A llama's folder with its tensors dealt to so many pickles, whose index lists them by name."""
    torch = pytest.importorskip("torch")
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    values = {name: torch.tensor(np.asarray(value, np.float32)) for name, value in llama_tensors().items()}
    where: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = f"pytorch_model-{number:05}-of-{len(parts):05}.bin" if len(parts) > 1 else "pytorch_model.bin"
        torch.save({name: values[name] for name in names}, path / file)
        where |= dict.fromkeys(names, file)
    if len(parts) > 1:
        index = {"metadata": {}, "weight_map": dict(sorted(where.items()))}
        (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize("count", [1, 2])
def test_the_order_is_that_of_the_pickles(count: int, tmp_path: Path) -> None:
    names = sorted(llama_tensors())
    random.Random(3).shuffle(names)
    half = len(names) // 2
    folder = folder_of(tmp_path / "llama", [names] if count == 1 else [names[half:], names[:half]])
    reference_converter.convert(folder, tmp_path / "theirs.gguf", "f16", pre="llama-bpe")
    weighbridge.convert(folder, tmp_path / "ours.gguf", dtype="f16")
    found, expected = (list(gguf_file.read(tmp_path / f"{name}.gguf").tensors) for name in ("ours", "theirs"))
    assert found == expected
    assert found != sorted(found)
