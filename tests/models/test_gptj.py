"""GPT-J in a GGUF is a Phi-2: what tells them apart, and what must be zero."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden
from tests.models.record_families import values

import weighbridge as wb
from weighbridge.models.arch.registry import family_of_gguf
from weighbridge.models.model import open_weights


def _gguf(parent: Path, model: str) -> Path:
    recorded, folder = golden()[model], parent / model
    folder.mkdir()
    arrays = {n: values(n, tuple(shape)) for n, shape in recorded["hf"].items()}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(recorded["config"]))
    wb.convert(folder, parent / f"{model}.gguf", dtype="f32", tokenizer=False)
    return parent / f"{model}.gguf"


@pytest.mark.parametrize(("model", "family"), [("gptj", "gptj"), ("gptj-wide", "gptj"), ("phi2", "phi2")])
def test_each_is_known_by_its_biases(model: str, family: str, tmp_path: Path) -> None:
    with open_weights(_gguf(tmp_path, model)) as found:
        assert found.metadata["general.architecture"] == "phi2"
        assert found.family.name == family


def test_a_phi2_of_older_files_is_one() -> None:
    """They have queries, keys and values in one tensor."""
    names = ["token_embd.weight", "blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias"]
    assert family_of_gguf({"general.architecture": "phi2"}, names=names).name == "phi2"


def test_biases_of_zeros_go_and_others_are_told(tmp_path: Path) -> None:
    gguf = _gguf(tmp_path, "gptj")
    with wb.open(gguf) as model:
        assert all(not np.asarray(model[f"blk.{i}.attn_output.bias"]).any() for i in (0, 1))
    assert not any("attn_output" in (loss.tensor or "") for loss in wb.plan_convert(gguf, tmp_path / "a").losses)
    data = bytearray(gguf.read_bytes())
    with open_weights(gguf) as model:
        at = model.index.by_name["blk.1.attn_output.bias"].offset
    data[at : at + 4] = np.float32(0.5).tobytes()
    (tmp_path / "other.gguf").write_bytes(data)
    told = [
        loss for loss in wb.plan_convert(tmp_path / "other.gguf", tmp_path / "c").losses if "no place" in loss.message
    ]
    assert [loss.tensor for loss in told] == ["blk.1.attn_output.bias"]
    wb.convert(gguf, tmp_path / "hf", tokenizer=False)
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == golden()["gptj"]["hf"].keys()


def test_heads_go_to_ranks_in_both_forms(tmp_path: Path) -> None:
    """A rank's queries are those of its heads, whichever way they lie."""
    gguf = _gguf(tmp_path, "gptj")
    for source, name in ((gguf, "blk.0.attn_q.weight"), (tmp_path / "gptj", "transformer.h.0.attn.q_proj.weight")):
        wb.split(source, tmp_path / f"{source.name}-ranks", tp=2)
        rank = sorted(p for p in (tmp_path / f"{source.name}-ranks").iterdir() if "rank-1-of-2" in p.name)[0]
        with open_weights(rank) as part, open_weights(source) as whole:
            assert part.stored[name].read(0, 32).tobytes() == whole.stored[name].read(32, 64).tobytes()
