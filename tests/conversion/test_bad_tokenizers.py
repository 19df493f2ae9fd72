"""A model whose tokenizer can't be right is refused before anything is written: the message names the file, the field,
what was expected and found, and what to do. The table is the verdict on each kind of bad file, both ways.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models._tokenizers import folder_files
from tests.oracles import gguf_file, vocabularies

import weighbridge as api
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError

Files = dict[str, Any]
HIDDEN = 32


def tensors(rows: int) -> dict[str, Any]:
    """A Llama of one layer with an embedding of `rows`."""
    rng = np.random.default_rng(0)
    square, layer = (HIDDEN, HIDDEN), "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (rows, HIDDEN), "lm_head.weight": (rows, HIDDEN), "model.norm.weight": (HIDDEN,),
        **{f"{layer}self_attn.{n}_proj.weight": square for n in "qkvo"},
        **{f"{layer}mlp.{n}_proj.weight": square for n in ("gate", "up", "down")},
        **{f"{layer}{n}_layernorm.weight": (HIDDEN,) for n in ("input", "post_attention")},
    }  # fmt: skip
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def model(folder: Path, files: Files, rows: int) -> Path:
    """A folder with these tokenizer files; `config.json` of them goes over the model's."""
    from safetensors.numpy import save_file

    folder.mkdir()
    save_file(tensors(rows), folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": rows, "hidden_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": HIDDEN,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        **files.get("config.json", {}),
    }  # fmt: skip
    for name, content in {**files, "config.json": config}.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def changed(kind: str, name: str, change: Callable[[Any], object]) -> Files:
    """The files of a trained tokenizer with a change to one JSON file."""
    files: Files = dict(folder_files(kind))
    content = json.loads(files[name])
    change(content)
    return {**files, name: content}


def rows(kind: str) -> int:
    return vocabularies.SIZES[kind]


# what is wrong -> (the tokenizer's files, rows of the embedding, error, what the message says)
HF: dict[str, tuple[Callable[[], Files], int, type[WeighbridgeError], str]] = {
    "no merges": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t["model"].update(merges=[])), 704, FormatError,
        r"tokenizer\.json, merges: .*expected at least one, found 0\)\n.*publisher",
    ),
    "vocabulary longer than the embedding": (
        lambda: dict(folder_files("bpe")), 700, FormatError,
        r"config\.json, vocab_size: .*expected > 703, found 700\)\n.*another model's",
    ),
    "the same of SentencePiece in tokenizer.json": (
        lambda: dict(folder_files("spm-json")), 600, FormatError,
        r"config\.json, vocab_size: .*expected >= 640, found 600\)\n.*another model's",
    ),
    "the same of Unigram": (
        lambda: dict(folder_files("t5")), 600, FormatError,
        r"config\.json, vocab_size: .*expected >= 604, found 600\)\n.*from the model's folder",
    ),
    "an embedding that isn't config.json's": (
        lambda: {**folder_files("bpe"), "config.json": {"vocab_size": 720}}, 704, FormatError, "embed_tokens",
    ),
    "a token that occurs twice": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t["added_tokens"].append(
            {"id": 704, "content": "[PAD705]", "special": True, "normalized": False}
        )), 706, FormatError, r"tokenizer\.ggml\.tokens: a token occurs twice, as id 704 and 705 .*\n.*aborts",
    ),
    "an id that two tokens have": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t["model"]["vocab"].update(zq=5)), 704, FormatError,
        r"tokenizer\.json, model\.vocab: tokens .* have the same id \(found 5\)",
    ),
    "an id out of range": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t["model"]["vocab"].update(zq=1 << 40)), 704,
        FormatError, r"tokenizer\.json.*\$\.model\.vocab",
    ),
    "holes in the ids of SentencePiece": (
        lambda: changed("spm-json", "tokenizer.json", lambda t: t["model"]["vocab"].update(zq=650)), 660,
        FormatError, r"tokenizer\.json, model\.vocab: ids have gaps \(expected 0\.\.640, found 650\)\n.*renumbers",
    ),
    "text that isn't UTF-8": (
        lambda: {**folder_files("bpe"), "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {"\xff": 0}}}'},
        704, FormatError, r"tokenizer\.json: .*",
    ),
    "a special id that is no number of a token": (
        lambda: {**folder_files("bpe"), "config.json": {"pad_token_id": -1}}, 704, FormatError,
        r"pad_token_id: not a token id \(found -1\)",
    ),
    "a bos to be added, and none named": (
        lambda: changed("t5", "tokenizer_config.json", lambda t: t.update(add_bos_token=True)), 608, FormatError,
        r"tokenizer_config\.json, bos_token: .*no bos token is named\n.*add_bos_token = false",
    ),
    "a merge of an unknown token": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t["model"]["merges"].append(["qq", "zz"])), 704,
        FormatError, r"tokenizer\.json, merge \d+: .*\(found qq\)",
    ),
    "a template that isn't UTF-8": (
        lambda: {
            **changed("bpe", "tokenizer_config.json", lambda t: t.pop("chat_template")), "chat_template.jinja": b"\xff",
        }, 704, FormatError, r"chat_template\.jinja, byte 0",
    ),
    "no tokenizer": (dict, 704, UnsupportedError, r"no supported tokenizer file.*\n.*tokenizer=False"),
    "a pre-tokenizer without a name": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t.update(pre_tokenizer={"type": "Whitespace"})), 704,
        UnsupportedError, r"no pre-tokenizer with this definition[\s\S]*nearest.*pre=NAME.*tokenizer=False",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HF)
def test_a_folder_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    files, count, error, words = HF[name]
    source, target = model(tmp_path / "model", files(), count), tmp_path / "out.gguf"
    with pytest.raises(error, match=words):
        api.convert(source, target, to="gguf", dtype="f32")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    if name != "an embedding that isn't config.json's":  # which isn't the tokenizer's fault
        api.convert(source, target, to="gguf", dtype="f32", tokenizer=False)
        assert target.exists()


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("right")
    source = model(folder / "model", dict(folder_files("bpe")), rows("bpe"))
    api.convert(source, folder / "right.gguf", to="gguf", dtype="f32")
    return folder / "right.gguf"


def put(key: str, change: Callable[[Any], Any]) -> Callable[[gguf_file.File], object]:
    def fault(file: gguf_file.File) -> None:
        field = file.fields[f"tokenizer.ggml.{key}"]
        field.value = change(field.value)

    return fault


def longer(file: gguf_file.File) -> None:
    """Two tokens more than the embedding has rows."""
    put("tokens", lambda v: [*v, "zq", "zr"])(file)
    put("token_type", lambda v: [*v, 1, 1])(file)


# what is wrong -> (the fault, what the message says)
GGUF: dict[str, tuple[Callable[[gguf_file.File], object], str]] = {
    "no merges": (
        lambda f: f.fields.pop("tokenizer.ggml.merges"),
        r"tokenizer\.ggml\.merges: .*at least one, found 0\)\n.*tokenizer=False",
    ),
    "a merge of one part": (put("merges", lambda v: ["ab", *v[1:]]), r"tokenizer\.ggml\.merges\[0\]: .*\(found ab\)"),
    "a merge of an unknown token": (put("merges", lambda v: ["qq zz", *v[1:]]), r"tokenizer\.ggml\.merges.*found qq"),
    "a token that occurs twice": (
        put("tokens", lambda v: [*v[:5], v[3], *v[6:]]),
        r"tokenizer\.ggml\.tokens: a token occurs twice, as id 3 and 5",
    ),
    "vocabulary longer than the embedding": (
        longer,
        r"tokenizer\.ggml\.tokens: .*\(expected <= 704, found 706\)\n.*tokenizer=False",
    ),
    "types too short": (
        put("token_type", lambda v: v[:9]),
        r"tokenizer\.ggml\.token_type: .*\(expected 704, found 9\)",
    ),
    "an unknown model": (
        put("model", lambda v: "hybriddna"),
        r"'hybriddna' .*no form in a model folder[\s\S]*tokenizer=False",
    ),
    "an unknown pre-tokenizer": (put("pre", lambda v: "own"), r"no pre-tokenizer named 'own'[\s\S]*tokenizer=False"),
}


@pytest.mark.parametrize("name", GGUF)
def test_a_gguf_is_refused_and_nothing_is_written(name: str, right: Path, tmp_path: Path) -> None:
    fault, words = GGUF[name]
    file = gguf_file.read(right)
    fault(file)
    bad = gguf_file.write(tmp_path / "bad.gguf", file)
    with pytest.raises(WeighbridgeError, match=words):
        api.convert(bad, tmp_path / "out", to="hf")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


LOST: dict[str, tuple[Callable[[], Files], int, str]] = {
    "a special id beyond the vocabulary": (
        lambda: {**folder_files("bpe"), "config.json": {"pad_token_id": 704}}, 704,
        "the pad token's id 704: the vocabulary has 704 tokens",
    ),
    "the same of SentencePiece": (
        lambda: {**folder_files("spm"), "config.json": {"pad_token_id": 32000}}, 640, "the pad token's id 32000",
    ),
    "pieces that the model has no row for": (
        lambda: {**folder_files("spm"), "config.json": {"vocab_size": 600}}, 600, "pieces 600..639 of the tokenizer",
    ),
    "a template that no file names": (
        lambda: {"tokenizer.json": folder_files("bpe")["tokenizer.json"], "chat_template.jinja": b"{{ x }}"}, 704,
        "chat_template.jinja: tokenizer_config.json is missing",
    ),
    "a normalizer": (
        lambda: changed("bpe", "tokenizer.json", lambda t: t.update(normalizer={"type": "NFC"})), 704, "NFC",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_is_left_out_is_told(name: str, tmp_path: Path) -> None:
    """Where the rest is right: the plan lists it as a loss."""
    files, count, words = LOST[name]
    source = model(tmp_path / "model", files(), count)
    plan = api.plan_convert(source, tmp_path / "out.gguf", to="gguf", dtype="f32")
    assert any(words in loss.message for loss in plan.losses), [loss.message for loss in plan.losses]


@pytest.mark.costly
def test_holes_and_missing_rows_are_padding(tmp_path: Path) -> None:
    """What has an embedding and no token: every kind names it, and llama.cpp counts as many tokens as rows."""
    for kind in ("bpe", "spm", "spm-json", "t5"):
        source = model(tmp_path / kind, dict(folder_files(kind)), rows(kind) + 16)
        api.convert(source, tmp_path / f"{kind}.gguf", to="gguf", dtype="f32")
        file = gguf_file.read(tmp_path / f"{kind}.gguf")
        tokens = file.fields["tokenizer.ggml.tokens"].value
        assert len(tokens) == rows(kind) + 16 == file.tensors["token_embd.weight"].shape[0]
        assert tokens[-1] == f"[PAD{rows(kind) + 15}]"
