"""Folders as they are published: what has one meaning is converted to the very bytes of the tidy folder and said; what
hasn't is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors, make_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.naming import MappingError
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.config.mapping import config_to_gguf

Break = Callable[[Path], None]


def rewrite(change: Callable[[str], str], name: str = "config.json") -> Break:
    def breaks(folder: Path) -> None:
        (folder / name).write_text(change((folder / name).read_text()), "utf-8")

    return breaks


def put(name: str, value: object) -> Break:
    def change(folder: Path) -> None:
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    return change


def quoted(text: str) -> str:
    config = json.loads(text)
    keys = ("hidden_size", "num_hidden_layers", "rms_norm_eps", "vocab_size")
    return json.dumps({k: str(v) if k in keys else v for k, v in config.items()})


STALE = {"metadata": {}, "weight_map": {name: "model-00001-of-00002.safetensors" for name in llama_tensors()}}
ADAPTER = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
POOLED = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]

# name -> what is odd about the folder, and the words about it
READ: dict[str, tuple[Break, str]] = {
    "infinity": (rewrite(lambda text: f'{text[:-1]}, "time_step_limit": [0.0, Infinity]}}'), "it has Infinity"),
    "not a number": (rewrite(lambda text: f'{text[:-1]}, "x": NaN}}'), "it has NaN"),
    "byte order mark": (rewrite(lambda text: f"\ufeff{text}"), "a byte order mark"),
    "trailing comma": (rewrite(lambda text: f"{text[:-1]},}}"), "a comma before a closing bracket"),
    "numbers in quotes": (rewrite(quoted), "numbers in quotes: hidden_size"),
    "malformed generation_config": (put("generation_config.json", '{"temperature": 0.6,'), "generation_config.json"),
    "stale index": (put("model.safetensors.index.json", STALE), "none of the files that it lists exists"),
    "adapter_config beside a model": (put("adapter_config.json", ADAPTER), ""),
}
REFUSED: dict[str, tuple[Break, str]] = {
    "a pooling module without its file": (put("modules.json", POOLED), "the kind of pooling is unknown"),
    "no config at all": (put("config.json", '{"a": '), "invalid JSON"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "llama", words=True)


@pytest.mark.parametrize("name", list(READ))
def test_an_odd_folder_is_the_tidy_one(name: str, folder: Path, tmp_path: Path) -> None:
    breaks, words = READ[name]
    wb.convert(folder, tmp_path / "tidy.gguf")
    breaks(folder)
    with wb.plan_convert(folder, tmp_path / "odd.gguf") as plan:
        assert words in " ".join((*plan.notes, *(loss.message for loss in plan.losses)))
        plan.run()
    assert (tmp_path / "odd.gguf").read_bytes() == (tmp_path / "tidy.gguf").read_bytes()


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_could_mean_two_things_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    breaks, words = REFUSED[name]
    breaks(folder)
    with pytest.raises(FormatError, match=words):
        wb.convert(folder, tmp_path / "odd.gguf")


def renamed(change: Callable[[str], str]) -> dict[str, np.ndarray]:
    return {change(name): values for name, values in llama_tensors().items()}


CACHES = {f"model.layers.0.self_attn.rotary_emb.{n}": np.zeros(8, np.float32) for n in ("inv_freq", "cos_cached")}
# name -> tensors of the same model under other names, or with others beside, and the words about it
NAMES: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "torch.compile": (renamed(lambda n: f"_orig_mod.{n}"), "begin with _orig_mod."),
    "DistributedDataParallel": (renamed(lambda n: f"module.{n}"), "begin with module."),
    "both": (renamed(lambda n: f"module._orig_mod.{n}"), "begin with module._orig_mod."),
    "PEFT": (renamed(lambda n: f"base_model.model.{n}"), "begin with base_model.model."),
    "inside another class": (renamed(lambda n: f"transformer.{n}"), "begin with transformer."),
    "bare": (renamed(lambda n: n.removeprefix("model.")), ""),
    "caches of rotation": (llama_tensors() | CACHES, "left out, since they carry nothing: 2 tensors"),
    "frequencies at the top": (
        llama_tensors() | {"model.rotary_emb.inv_freq": np.zeros(8, np.float32)},
        "left out, since they carry nothing: 1 tensor",
    ),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_names_as_they_are(name: str, folder: Path, tmp_path: Path) -> None:
    tensors, words = NAMES[name]
    wb.convert(folder, tmp_path / "tidy.gguf", name="llama")
    odd = make_folder(tmp_path / "odd", CONFIG, tensors, words=True)
    with wb.plan_convert(odd, tmp_path / "odd.gguf", name="llama") as plan:
        assert words in " ".join(plan.notes)
        plan.run()
    with wb.open(tmp_path / "tidy.gguf") as tidy, wb.open(tmp_path / "odd.gguf") as found:
        assert dict(found.metadata) == dict(tidy.metadata)
        assert sorted(found) == sorted(tidy)  # the order is that of the names in the file
        assert all(found[n].raw() == tidy[n].raw() for n in tidy)


@pytest.mark.parametrize("name", ["torch.compile", "DistributedDataParallel", "both", "PEFT", "inside another class"])
@pytest.mark.parametrize("to", ["hf", "mlx", "w4a16"])
def test_names_as_they_are_in_folders(name: str, to: str, folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"scheme": to, "q_group_size": 32} if to == "w4a16" else {"to": to}
    tensors, words = NAMES[name]
    wb.convert(folder, tmp_path / "tidy", **how)
    with wb.plan_convert(make_folder(tmp_path / "odd", CONFIG, tensors, words=True), tmp_path / "out", **how) as plan:
        assert words in " ".join(plan.notes)
        plan.run()
    with wb.open(tmp_path / "tidy") as tidy, wb.open(tmp_path / "out") as found:
        assert list(found) == list(tidy)
        assert all(np.array_equal(found[n].numpy(), tidy[n].numpy()) for n in tidy)


def test_names_of_a_folder_without_a_family_are_kept(tmp_path: Path) -> None:
    odd = make_folder(tmp_path / "odd", {"model_type": "nobody's"}, renamed(lambda n: f"module.{n}"), words=True)
    wb.convert(odd, tmp_path / "out", to="hf")
    with wb.open(tmp_path / "out") as found:
        assert all(name.startswith("module.") for name in found)


def padded(rows: int) -> dict[str, np.ndarray]:
    """A llama's tensors, with so many rows more for tokens."""
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    return {n: np.pad(v, ((0, rows), (0, 0))) if n in tables else v for n, v in llama_tensors().items()}


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_more_rows_than_the_config_says(to: str, tmp_path: Path) -> None:
    """The reference converter writes fewer tokens than rows, and llama.cpp refuses the file."""
    size = int(str(CONFIG["vocab_size"]))
    tidy = make_folder(tmp_path / "a" / "llama", {**CONFIG, "vocab_size": size + 8}, padded(8), words=True)
    stale = make_folder(tmp_path / "b" / "llama", CONFIG, padded(8), words=True)
    for folder in (tidy, stale):
        with wb.plan_convert(folder, folder.parent / f"m.{to}", to=to) as plan:
            told = [note for note in plan.notes if f"but the tensors have {size + 8}" in note]
            assert len(told) == (folder == stale)
            plan.run()
    files = [p for p in (tidy.parent / f"m.{to}", *(tidy.parent / f"m.{to}").glob("*")) if p.is_file()]
    assert files
    for file in files:
        twin = stale.parent / file.relative_to(tidy.parent)
        assert twin.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("rows", [-1, -3])
def test_fewer_rows_than_the_config_says_are_refused(rows: int, tmp_path: Path) -> None:
    tensors = {n: v[:rows] if v.shape[0] == CONFIG["vocab_size"] else v for n, v in llama_tensors().items()}
    with pytest.raises(MappingError, match="but the tensors have"):
        wb.convert(make_folder(tmp_path / "llama", CONFIG, tensors, words=True), tmp_path / "m.gguf")


def test_names_of_no_family_stay_refused(folder: Path, tmp_path: Path) -> None:
    odd = make_folder(tmp_path / "odd", CONFIG, renamed(lambda n: f"a.b.{n}"), words=True)
    with pytest.raises(UnsupportedError, match="has a name of the llama family"):
        wb.convert(odd, tmp_path / "odd.gguf")


OLDER = [{"hidden_size": "n_embed"}, {"n_head": "num_attention_heads"}, {"n_layer": "num_hidden_layers"}]


@pytest.mark.parametrize("old", OLDER, ids=lambda words: next(iter(words)))
def test_a_bloom_in_older_words(old: dict[str, str]) -> None:
    """As bigscience/bloom is published: 112 heads, where the class's default is 8."""
    words = {"hidden_size": 14336, "n_head": 112, "n_layer": 70}
    bloom = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "vocab_size": 250880, "seq_length": 2048}
    written = [
        config_to_gguf({**bloom, **{names.get(k, k): v for k, v in words.items()}}, family_of_hf(bloom), file_type=1)
        for names in ({}, old)
    ]
    assert written[0] == written[1]
    assert written[1]["bloom.attention.head_count"].value == 112
    assert written[1]["bloom.feed_forward_length"].value == 4 * 14336
