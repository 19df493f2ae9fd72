"""Adapters whose training changed the number of tokens, by PEFT: the base is resized, and what PEFT's own merge gives
comes out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests import llama

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError, WeighbridgeError

torch: Any = pytest.importorskip("torch")
peft: Any = pytest.importorskip("peft")
transformers: Any = pytest.importorskip("transformers")

EMBEDDINGS = ["embed_tokens", "lm_head"]
#: How PEFT stores the embeddings: saved whole, or next to the pairs of both.
KINDS: Mapping[str, dict[str, Any]] = {
    "whole": {"target_modules": ["q_proj"], "modules_to_save": EMBEDDINGS},
    "pairs": {"target_modules": ["q_proj", *EMBEDDINGS]},
}
ROWS = (72, 80, 88)
TIED = (False, True)


def tokenizer(tokens: int) -> dict[str, Any]:
    made = llama.tokenizer()
    added = [{"id": i, "content": f"<new {i}>", "special": True, "lstrip": False, "rstrip": False, "normalized": False,
              "single_word": False} for i in range(80, tokens)]  # fmt: skip
    return {**made, "added_tokens": added}


def make_base(path: Path, *, tied: bool) -> Path:
    config = {**llama.CONFIG, "torch_dtype": "float32", "tie_word_embeddings": tied}
    values = {name: v.astype("f4") for name, v in llama.llama_tensors().items() if not tied or name != "lm_head.weight"}
    return llama.make_folder(path, config, values, words=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bases, and adapters with what PEFT makes of the resized base and them."""
    root = tmp_path_factory.mktemp("grown")
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # about tied embeddings
        make_adapters(root)
    return root


def make_adapters(root: Path) -> None:
    for tied in TIED:
        base = make_base(root / f"base {tied}", tied=tied)
        for kind, how in KINDS.items():
            for rows in ROWS:
                torch.manual_seed(rows)
                model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
                model.resize_token_embeddings(rows)
                listed = {key: [m for m in value if not tied or m != "lm_head"] for key, value in how.items()}
                tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, **listed))
                with torch.no_grad():
                    for name, value in tuned.named_parameters():
                        if "lora_" in name or "modules_to_save" in name:
                            value.normal_(std=0.3)
                adapter = root / f"{kind} {rows} {tied}"
                tuned.save_pretrained(adapter, save_embedding_layers=kind == "pairs")
                (adapter / "tokenizer.json").write_text(json.dumps(tokenizer(rows)))
                after = tuned.merge_and_unload().state_dict()
                kept = {
                    n: v.contiguous().clone().numpy() for n, v in after.items() if not tied or n != "lm_head.weight"
                }
                save_file(kept, root / f"{adapter.name}.safetensors")


@pytest.mark.costly
@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_merge_is_peft_s(kind: str, rows: int, tied: bool, models: Path, tmp_path: Path) -> None:
    base, adapter = models / f"base {tied}", models / f"{kind} {rows} {tied}"
    wb.convert(base, f"{tmp_path}/hf/", lora=adapter)
    expected = load_file(models / f"{adapter.name}.safetensors")
    found = load_file(tmp_path / "hf/model.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)
    assert json.loads((tmp_path / "hf/config.json").read_text())["vocab_size"] == rows
    owner = adapter if rows != 80 else base
    assert (tmp_path / "hf/tokenizer.json").read_bytes() == (owner / "tokenizer.json").read_bytes()
    _, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    pre: dict[str, Any] = {"pre": "gpt-2"} if rows >= 80 else {"tokenizer": False}  # with fewer rows than tokens
    wb.convert(base, tmp_path / "m.gguf", lora=adapter, **pre)
    assert wb.get(f"{tmp_path / 'm.gguf'}::token_embd.weight").shape == (rows, 64)


def test_what_is_planned_is_said(models: Path, tmp_path: Path) -> None:
    with wb.plan_convert(models / "base False", tmp_path / "out", lora=models / "whole 88 False") as plan:
        said = [note for note in plan.notes if "resized" in note]
    assert said == ["the adapter has embeddings of 88 tokens, the base of 80: resized, with the adapter's tokenizer"]
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (bare / name).write_bytes((models / "whole 88 False" / name).read_bytes())
    with wb.plan_convert(models / "base False", tmp_path / "out", lora=bare) as plan:
        assert any("the adapter has none" in note for note in plan.notes)


def test_what_is_extracted_is_merged(models: Path, tmp_path: Path) -> None:
    """An adapter of a model with more tokens gives that model back."""
    tuned, base = tmp_path / "tuned", models / "base False"
    wb.convert(base, f"{tuned}/", lora=models / "pairs 88 False")
    wb.extract_lora(base, tuned, tmp_path / "adapter", rank=64)
    wb.convert(base, f"{tmp_path}/again/", lora=tmp_path / "adapter")
    after, again = (load_file(path / "model.safetensors") for path in (tuned, tmp_path / "again"))
    for name, values in after.items():
        np.testing.assert_allclose(again[name], values, atol=1e-4, err_msg=name)


def changed(adapter: Path, target: Path, change: Any) -> Path:
    target.mkdir()
    tensors = change(load_file(adapter / "adapter_model.safetensors"))
    save_file(tensors, target / "adapter_model.safetensors")
    (target / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    return target


def test_refused(models: Path, tmp_path: Path) -> None:
    base, whole = models / "base False", models / "whole 88 False"
    one = changed(whole, tmp_path / "one", lambda t: {n: v for n, v in t.items() if "lm_head" not in n})
    uneven = changed(whole, tmp_path / "uneven", lambda t: {n: v[:84] if "head" in n else v for n, v in t.items()})
    wb.convert(base, tmp_path / "base.gguf", pre="gpt-2")
    wb.convert(base, tmp_path / "mlx", to="mlx", q_bits=4)
    cases: list[tuple[Path, list[str], type[WeighbridgeError], str]] = [
        (base, [str(one)], UnsupportedError, r"doesn't contain lm_head\.weight"),
        (base, [str(uneven)], UsageError, "different numbers of tokens: 84, 88"),
        (base, [f"{whole}:0.5"], UnsupportedError, "none to weigh them against"),
        (base, [str(whole), str(models / "pairs 88 False")], UnsupportedError, "has them too"),
        (base, [str(whole), str(models / "whole 80 False")], UnsupportedError, "has them too"),
        (tmp_path / "base.gguf", [str(whole)], UnsupportedError, "GGUF's tokenizer"),
        (tmp_path / "mlx", [str(whole)], RefusedError, r"embedding \S+ is quantized"),
    ]
    for source, adapters, error, words in cases:
        with pytest.raises(error, match=words):
            wb.convert(source, tmp_path / "out", lora=adapters)
        assert not (tmp_path / "out").exists()
