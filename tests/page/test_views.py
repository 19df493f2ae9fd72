"""What the page says of a folder, of an adapter, and of two models' tokens and descent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.page.samples import CONFIG, llama

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.models.config.keys import rules
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer import Vocab, VocabKind
from weighbridge.page.control import Control
from weighbridge.page.data import PageData
from weighbridge.page.several.pair import token_pair
from weighbridge.page.views.adapter import adapter_view
from weighbridge.page.views.folder import FolderContents, FolderSetting, folder_table, folder_view

pytestmark = pytest.mark.costly


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = llama(tmp_path / "model")
    config = {
        **CONFIG,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "attention_dropout": 0.1,
        "odd_setting": 3,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "do_sample": True}))
    (path / "README.md").write_text("---\nlicense: mit\nbase_model: [a/b]\ntags: [x, y]\n---\nText")
    (path / "LICENSE").write_text("\n\nMIT License\nmore")
    for name in ("tokenizer.json", "modeling_own.py", "pytorch_model.bin", "model.safetensors.incomplete", "notes.xyz"):
        (path / name).write_bytes(b"12")
    return path


def view_of(path: Path) -> FolderContents:
    with open_model(path) as model:
        return folder_view(model)


def settings(view: FolderContents) -> dict[str, FolderSetting]:
    return {row.key: row for row in view.settings}


def test_settings_have_their_place_in_a_gguf(folder: Path, tmp_path: Path) -> None:
    """With the values that a conversion writes."""
    found = settings(view_of(folder))
    (folder / "tokenizer.json").unlink()
    wb.convert(folder, tmp_path / "made.gguf", tokenizer=False)
    with open_model(tmp_path / "made.gguf") as made:
        written = dict(made.metadata)
    held = {key: value for row in found.values() for key, value in row.gguf}
    assert found["hidden_size"].gguf == (("llama.embedding_length", "256"),)
    assert found["num_key_value_heads"].gguf == (("llama.attention.head_count_kv", "2"),)
    assert ("llama.rope.scaling.factor", "2.0") in found["rope_scaling"].gguf
    assert ("llama.rope.freq_base", "10000.0") in found["rope_theta"].gguf
    for key, value in held.items():
        if key.startswith("llama."):
            assert written[key] == pytest.approx(json.loads(value)), key
    assert {k for k in written if k.startswith("llama.")} - held.keys() <= {"llama.vocab_size"}


def test_settings_without_a_place_say_why(folder: Path) -> None:
    view = view_of(folder)
    found = settings(view)
    assert found["tie_word_embeddings"].note == "the tensors show it"
    assert found["hidden_act"].note.startswith("built into llama.cpp")
    assert found["attention_dropout"].note.startswith("training")
    assert all(row.gguf or row.note or row.lost for row in view.settings)
    assert found["odd_setting"].lost
    assert any("odd_setting" in loss for loss in view.losses)
    assert not found["hidden_size"].lost
    assert found["hidden_size"].meaning


def test_a_default_isnt_stated(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["rms_norm_eps"]
    (folder / "config.json").write_text(json.dumps(config))
    row = settings(view_of(folder))["rms_norm_eps"]
    assert (row.stated, row.value) == (False, "1e-06")


def test_files_are_known_by_what_they_belong_to(folder: Path) -> None:
    kinds = {file.name: file.kind for file in view_of(folder).files}
    assert kinds == {
        "model.safetensors": "weights", "config.json": "settings", "generation_config.json": "settings",
        "README.md": "card", "LICENSE": "licence", "tokenizer.json": "tokenizer", "modeling_own.py": "code",
        "pytorch_model.bin": "other weights", "model.safetensors.incomplete": "left over", "notes.xyz": "other",
    }  # fmt: skip


def test_generation_card_and_licence(folder: Path) -> None:
    view = view_of(folder)
    assert [(row.key, row.gguf) for row in view.generation] == [
        ("temperature", (("general.sampling.temp", "0.5"),)), ("do_sample", ()),
    ]  # fmt: skip
    assert dict(view.card) == {"license": "mit", "base_model": "a/b", "tags": "x, y"}
    assert view.licence == (("LICENSE", "MIT License"),)
    assert view.card_trouble is None


def test_damaged_small_files_dont_hide_the_rest(folder: Path) -> None:
    (folder / "README.md").write_text("---\na: [\n---\n")
    (folder / "generation_config.json").write_text("[1")
    view = view_of(folder)
    assert view.card_trouble
    assert view.generation == ()
    assert view.settings


def test_meanings_are_of_keys_that_exist() -> None:
    from weighbridge.models.arch.registry import families

    known = {row.name.removeprefix("{a}.") for family in families().values() for row in rules(family).keys}
    assert folder_table().gguf.keys() <= known


def adapter(path: Path, rank: int = 4) -> dict[str, np.ndarray]:
    path.mkdir()
    random = np.random.default_rng(3)
    tensors = {}
    for name, (out, columns) in {"self_attn.q_proj": (256, 256), "mlp.down_proj": (256, 512)}.items():
        start = f"base_model.model.model.layers.1.{name}"
        tensors[f"{start}.lora_A.weight"] = random.normal(0, 0.1, (rank, columns)).astype(np.float32)
        tensors[f"{start}.lora_B.weight"] = random.normal(0, 0.1, (out, rank)).astype(np.float32)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return tensors


def test_changes_of_an_adapter_have_the_norms_of_their_products(tmp_path: Path) -> None:
    tensors, base = adapter(tmp_path / "lora"), llama(tmp_path / "base")
    with open_model(tmp_path / "lora") as model, open_model(base) as weights:
        view = adapter_view(model, weights, Control())
        alone = adapter_view(model, None, Control())
    assert view.alpha == 8
    assert len(view.changes) == 2
    for change in view.changes:
        start = f"base_model.model.{change.name.removesuffix('.weight')}"
        product = tensors[f"{start}.lora_B.weight"] @ tensors[f"{start}.lora_A.weight"] * 2
        assert change.rank == 4
        assert change.norm == pytest.approx(float(np.linalg.norm(product)), rel=1e-5)
        with wb.open(base) as opened:
            weight = float(np.linalg.norm(opened[change.name].numpy("f32")))
        assert change.relative == pytest.approx(change.norm / weight, rel=1e-5)
    assert [c.relative for c in alone.changes] == [None, None]


def test_a_model_has_no_changes(tmp_path: Path) -> None:
    with open_model(llama(tmp_path / "base")) as model, pytest.raises(UnsupportedError, match="isn't an adapter"):
        adapter_view(model, None, Control())


def asked(data: PageData, name: str, **given: object) -> Any:
    return json.loads(data.answer(name, {key: str(value) for key, value in given.items()}))


def test_descent_of_two(models: Path) -> None:
    with PageData(models / "f16.gguf", models / "q4.gguf") as data:
        found = asked(data, "lineage")
    assert found["pairs"][0]["text"].startswith("quantized")
    assert "q4.gguf" in found["sentence"]


def test_operators_of_a_gguf_and_its_folder_are_the_same(models: Path) -> None:
    with PageData(models / "llama", models / "q4.gguf") as data:
        a, b = (asked(data, "graph", model=number)["graph"] for number in range(2))
    assert a["kinds"] == b["kinds"]
    assert a["kinds"][0]["layers"] == [0, 1, 2]


def test_a_file_of_no_family_has_no_operators(models: Path) -> None:
    with PageData(models / "hostile.safetensors") as data:
        found = asked(data, "graph", model=0)
    assert found["graph"] is None
    assert "family" in found["reason"]


def test_tokens_of_two() -> None:
    a = Vocab(VocabKind.BPE, ("q", "x", "y"), (1, 1, 3), pre="gpt-2", special={"eos": 2})
    b = Vocab(VocabKind.BPE, ("q", "y", "z", "w"), (1, 3, 1, 1), pre="gpt-2", special={"bos": 0, "eos": 1})
    pair = token_pair(a, b)
    assert (pair.sizes, pair.only, pair.same, pair.moved) == ((3, 4), (1, 2), 1, 1)
    assert pair.first == (((1, "x"),), ((2, "z"), (3, "w")))
    assert [(row.role, row.a, row.b) for row in pair.roles] == [("eos", (2, "y"), (1, "y")), ("bos", None, (0, "q"))]
    assert pair.tables == ("tokens: 3 and 4", "types of tokens: 3 and 4")
    assert token_pair(a, a).tables == token_pair(a, a).special == ()


def test_tokens_of_models_without_a_tokenizer(models: Path) -> None:
    with PageData(models / "llama", models / "q4.gguf") as data:
        assert asked(data, "token_pair", a=0, b=1)["pair"] is None
