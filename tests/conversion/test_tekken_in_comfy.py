"""Mistral's tokenizer for ComfyUI, rebuilt from tokenizer.json: transformers' converter makes the same one of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conversion import test_comfy_folders as sets

import weighbridge as wb
from weighbridge.models.diffusion.tokenizers import tekken_of

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+"
WORDS = [b"th", b"the", b"in", b"ing", b" the", "é".encode(), b" t", b"he", b" in"]


def tekken(beyond: int = 3) -> dict[str, Any]:
    """A file as Mistral's, with tokens beyond its vocabulary."""
    tokens = [bytes([n]) for n in range(256)] + WORDS + [f"never{n}".encode() for n in range(beyond)]
    vocab = [{"rank": n, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for n, t in enumerate(tokens)]
    names = ["<unk>", "<s>", "</s>", "[INST]", "<pad>"]
    specials = [{"rank": n, "token_str": t, "is_control": True} for n, t in enumerate(names)]
    size = {"default_vocab_size": 256 + len(WORDS) + len(names), "default_num_special_tokens": len(names)}
    config = {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "version": "v7", **size}
    return {"config": config, "vocab": vocab, "special_tokens": specials}


def converted(folder: Path, data: bytes) -> dict[str, Any]:
    """The tokenizer.json that transformers makes of a tekken.json."""
    mistral = pytest.importorskip("transformers.integrations.mistral")
    (folder / "tekken.json").write_bytes(data)
    document: dict[str, Any] = json.loads(mistral.MistralConverter(str(folder / "tekken.json")).converted().to_str())
    return document


def test_the_same_tokenizer(tmp_path: Path) -> None:
    original = tekken()
    document = converted(tmp_path, json.dumps(original).encode())
    rebuilt = tekken_of(json.dumps(document).encode(), "tokenizer.json")
    assert rebuilt is not None
    assert converted(tmp_path, rebuilt) == document
    found, count = json.loads(rebuilt), 256 + len(WORDS)
    assert [row["token_bytes"] for row in found["vocab"]] == [row["token_bytes"] for row in original["vocab"][:count]]
    assert found["special_tokens"] == original["special_tokens"]
    for key in ("pattern", "default_vocab_size", "default_num_special_tokens"):
        assert found["config"][key] == original["config"][key]


@pytest.mark.parametrize("fault", ["merge", "special", "pattern", "byte", "twice", "not json"])
def test_other_tokenizers_are_not_rebuilt(fault: str, tmp_path: Path) -> None:
    document = converted(tmp_path, json.dumps(tekken()).encode())
    if fault == "merge":
        document["model"]["merges"].reverse()
    elif fault == "special":
        document["added_tokens"][0]["id"] = 300
    elif fault == "pattern":
        document["pre_tokenizer"] = document["pre_tokenizer"]["pretokenizers"][1]
    elif fault == "byte":
        document["model"]["vocab"]["\N{SNOWMAN}"] = len(document["model"]["vocab"])
    elif fault == "twice":
        document["model"]["vocab"]["x"] = 7
    data = b"{" if fault == "not json" else json.dumps(document).encode()
    assert tekken_of(data, "tokenizer.json") is None


def test_the_file_of_flux2s_encoder_has_it(tmp_path: Path) -> None:
    source = sets.write(tmp_path / "Model", "flux2")
    (source / "tokenizer/tekken.json").unlink()
    document = converted(tmp_path, json.dumps(tekken()).encode())
    (source / "tokenizer/tokenizer.json").write_text(json.dumps(document))
    result = wb.convert(source, f"{tmp_path / 'set'}/", comfy_folders=True)
    assert not any("tekken" in loss.message for loss in result.losses)
    stored = sets.load(tmp_path / "set/text_encoders/mistral_3_small_flux2.safetensors")["tekken_model"]
    assert converted(tmp_path, bytes(stored.tolist())) == document
    wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config=source)
    assert not (tmp_path / "back/tokenizer/tekken.json").exists()  # the pipeline has a tokenizer
    (source / "tokenizer/tokenizer.json").write_text("{}")
    plan = wb.plan_convert(source, f"{tmp_path / 'other'}/", comfy_folders=True)
    assert any("tokenizer.json there isn't one of its kind" in loss.message for loss in plan.losses)
