"""`wb imatrix`: the sums equal those of hooks on transformers' modules, and add up; bad input is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forward.texts import CTX, TEXT, built, read_imatrix, written
from tests.oracles import models

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.forward.options import TextOptions
from weighbridge.forward.texts import chunks_of, read_text
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer.of_model import tokenizer_json, vocab_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("text"))


def _ids(folder: Path, chunks: int) -> Any:
    """The chunks as llama-imatrix cuts them, with the `tokenizers` package alone."""
    with open_model(folder) as model:
        vocab = vocab_of(model)
        encoder = tokenizers.Tokenizer.from_buffer(tokenizer_json(model, vocab))
    encoder.encode_special_tokens = True
    ids = encoder.encode(TEXT, add_special_tokens=False).ids
    bos = vocab.special["bos"] if vocab.add.get("bos") else None
    ids = [bos, *ids] if bos is not None else ids
    cut = np.array(ids[: chunks * CTX]).reshape(chunks, CTX)
    if bos is not None:
        cut[:, 0] = bos
    return torch.tensor(cut)


#: (case, module's name -> tensors in a GGUF) of the first layer
MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {
        "self_attn.q_proj": ("attn_q", "attn_k", "attn_v"), "self_attn.o_proj": ("attn_output",),
        "mlp.gate_proj": ("ffn_gate", "ffn_up"), "mlp.down_proj": ("ffn_down",),
    },
    "gemma2": {"self_attn.q_proj": ("attn_q",), "mlp.down_proj": ("ffn_down",)},
    "phi-mini": {"self_attn.qkv_proj": ("attn_qkv",), "mlp.gate_up_proj": ("ffn_up",), "mlp.down_proj": ("ffn_down",)},
    "starcoder2": {"self_attn.k_proj": ("attn_k",), "mlp.c_fc": ("ffn_up",), "mlp.c_proj": ("ffn_down",)},
    "qwen2moe": {
        "self_attn.q_proj": ("attn_q",), "mlp.shared_expert.gate_proj": ("ffn_gate_shexp", "ffn_up_shexp"),
        "mlp.shared_expert.down_proj": ("ffn_down_shexp",), "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
    },
}  # fmt: skip


def test_special_tokens_of_a_text_are_text_unless_asked_for(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    with open_model(built("llama", tmp_path)) as model:
        vocab = vocab_of(model)
        special = vocab.special["bos"]
        text.write_text(("word " * 9 + vocab.tokens[special]) * 20)
        plain, parsed = (
            chunks_of(model, TextOptions(text=[str(text)], context=CTX, parse_special=on)).ids[:, 1:]
            for on in (False, True)
        )
    assert special not in plain
    assert special in parsed


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_sums_equal_hooks(tmp_path: Path, text: Path, name: str, source: str) -> None:
    folder, out = built(name, tmp_path), tmp_path / "imatrix.gguf"
    model = models.load(folder)
    sums: dict[str, Any] = {}

    def hook(key: str) -> Any:
        def add(module: Any, inputs: Any) -> None:
            squares = inputs[0].double().square().reshape(-1, inputs[0].shape[-1]).sum(0)
            sums[key] = sums.get(key, 0) + squares

        return add

    for key in MODULES[name]:
        model.get_submodule(f"model.layers.0.{key}").register_forward_pre_hook(hook(key))
    with torch.no_grad():
        for row in _ids(folder, 3):
            model(row[None])
    place = folder
    if source == "gguf":
        place = tmp_path / "model.gguf"
        wb.convert(folder, place, dtype="f32")
    report = wb.imatrix(place, out, text=[str(text)], context=CTX, chunks=3)
    assert report.chunks == 3
    found = read_imatrix(out)
    assert (found.chunks, found.chunk_size, found.datasets) == (3, CTX, ("text.txt",))
    for key, tensors in MODULES[name].items():
        for tensor in tensors:
            entry = found.entries[f"blk.0.{tensor}.weight"]
            assert entry.counts.tolist() == [3 * CTX]
            expected = sums[key].numpy()
            assert np.abs(entry.sums[0] - expected).max() < 1e-3 * expected.max(), tensor


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "gpt-oss"])
def test_experts_count_their_own_tokens(tmp_path: Path, text: Path, name: str) -> None:
    """The routed rows add up to the tokens times the experts used; the sums of gate and up over all experts are those
    of the router's input, each row as often as it was routed."""
    folder, out = built(name, tmp_path), tmp_path / "imatrix.gguf"
    report = wb.imatrix(folder, out, text=[str(text)], context=CTX, chunks=2)
    found = read_imatrix(out)
    with wb.provider(folder) as weights:
        used, experts = int(weights.config.experts_used or 0), int(weights.config.experts or 0)
    for part in ("gate", "up", "down"):
        entry = found.entries[f"blk.0.ffn_{part}_exps.weight"]
        assert entry.counts.shape == (experts,)
        assert entry.counts.sum() == 2 * CTX * used
    router = found.entries["blk.0.ffn_gate_inp.weight"].sums[0]
    gate = found.entries["blk.0.ffn_gate_exps.weight"].sums.sum(0)
    assert np.allclose(gate, router * used, rtol=1e-4)
    unseen = {name: int((e.counts == 0).sum()) for name, e in found.entries.items() if (e.counts == 0).any()}
    assert report.unseen == unseen


def test_every_matrix_of_the_layers_has_an_entry(tmp_path: Path, text: Path) -> None:
    folder, out, gguf = built("llama", tmp_path), tmp_path / "imatrix.gguf", tmp_path / "model.gguf"
    wb.imatrix(folder, out, text=[str(text)], context=CTX, chunks=1)
    wb.convert(folder, gguf, dtype="f32")
    with open_model(gguf) as model:
        expected = {e.name for e in model.index if len(e.spec.shape) > 1 and e.name.startswith("blk.")}
    assert {*read_imatrix(out).entries} == expected
    wb.imatrix(folder, out, text=[str(text)], context=CTX, chunks=1, process_output=True, overwrite=True)
    assert {*read_imatrix(out).entries} == expected | {"output.weight"}


def test_runs_add_up(tmp_path: Path, text: Path) -> None:
    """All chunks at once, in two runs with --resume, and as two files that are added: the same sums."""
    folder = built("llama", tmp_path)
    whole, parts, second = (tmp_path / f"{name}.gguf" for name in ("whole", "parts", "second"))
    wb.imatrix(folder, whole, text=[str(text)], context=CTX, chunks=4)
    wb.imatrix(folder, parts, text=[str(text)], context=CTX, chunks=2)
    wb.imatrix(folder, second, text=[str(text)], context=CTX, chunk=2, chunks=2, in_file=[str(parts)])
    report = wb.imatrix(folder, parts, text=[str(text)], context=CTX, chunks=4, resume=True)
    assert (report.first, report.chunks, report.total_chunks) == (2, 2, 4)
    expected = read_imatrix(whole)
    for path in (parts, second):
        found = read_imatrix(path)
        assert found.chunks == 4
        for name, entry in expected.entries.items():
            assert np.allclose(found.entries[name].sums, entry.sums, rtol=1e-5)
            assert np.array_equal(found.entries[name].counts, entry.counts)
    assert read_imatrix(parts).datasets == ("text.txt",)


def test_the_older_form(tmp_path: Path, text: Path) -> None:
    folder = built("llama", tmp_path)
    for name in ("i.gguf", "i.dat"):
        wb.imatrix(folder, tmp_path / name, text=[str(text)], context=CTX, chunks=2)
    new, old = read_imatrix(tmp_path / "i.gguf"), read_imatrix(tmp_path / "i.dat")
    assert old.legacy
    assert old.entries.keys() == new.entries.keys()
    for name in new.entries:
        assert np.allclose(new.weights(name), old.weights(name), rtol=1e-5)


def test_quantize_takes_it(tmp_path: Path, text: Path) -> None:
    folder, out = built("llama", tmp_path), tmp_path / "i.gguf"
    wb.imatrix(folder, out, text=[str(text)], context=CTX)
    wb.quantize(folder, tmp_path / "small.gguf", "Q4_K_M", imatrix=out)
    fit = wb.inspect_imatrix(out, model=folder).fit
    assert fit is not None
    assert not fit.missing


def test_texts(tmp_path: Path) -> None:
    lines, chats = tmp_path / "lines.jsonl", tmp_path / "chats.jsonl"
    lines.write_text("".join(json.dumps({"text": f"line {n}", "id": n}) + "\n" for n in range(3)))
    assert read_text([str(lines)], "text") == "line 0\nline 1\nline 2"
    chats.write_text(json.dumps({"messages": [{"role": "user", "content": TEXT}]}) + "\n")
    folder, out = built("qwen2", tmp_path), tmp_path / "i.gguf"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(UsageError, match="no chat template"):
        wb.imatrix(folder, out, text=[str(chats)], chat=True, context=CTX)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    assert wb.imatrix(folder, out, text=[str(chats)], chat=True, context=CTX).chunks > 1


def test_several_texts_of_which_one_is_standard_input_are_one(tmp_path: Path) -> None:
    first, second, joined = (tmp_path / name for name in ("first.txt", "second.txt", "joined.txt"))
    first.write_text(TEXT)
    second.write_text(TEXT.upper())
    joined.write_text(f"{TEXT}\n{TEXT.upper()}")
    folder, files = built("qwen2", tmp_path), [tmp_path / f"{n}.gguf" for n in range(3)]
    given: list[list[Path | str]] = [[joined], [first, second], ["-", second]]
    for out, texts in zip(files, given, strict=True):
        options = [word for text in texts for word in ("--text", text)]
        command = [sys.executable, "-m", "weighbridge", "imatrix", folder, out, "--ctx", str(CTX), *options]
        subprocess.run(command, input=TEXT, text=True, check=True, capture_output=True)
    found = [read_imatrix(out) for out in files]
    assert found[0].entries.keys() == found[1].entries.keys() == found[2].entries.keys()
    for name, entry in found[0].entries.items():
        for other in found[1:]:
            np.testing.assert_array_equal(np.asarray(other.entries[name].sums), np.asarray(entry.sums), name)


BAD: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no text": ({}, UsageError, "no text"),
    "short": ({"text": ["hi"]}, UsageError, "less than one chunk"),
    "not UTF-8": ({"text": [b"\xff\xfe" * 90]}, FormatError, "UTF-8"),
    "no JSON": ({"text": ["plain\n"], "field": "text"}, FormatError, "not a JSON object"),
    "no field": ({"text": ['{"a": 1}\n'], "field": "text"}, FormatError, "no text in this field"),
    "no messages": ({"text": ['{"a": 1}\n'], "chat": True}, (FormatError, UsageError), "no (messages|chat template)"),
    "field and chat": ({"text": ["x"], "field": "a", "chat": True}, UsageError, "doesn't apply"),
    "all skipped": ({"text": [TEXT], "chunk": 10_000}, UsageError, "no chunk is left"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_texts_are_refused(tmp_path: Path, case: str) -> None:
    options, error, words = BAD[case]
    folder, out = built("llama", tmp_path), tmp_path / "i.gguf"
    given: dict[str, Any] = dict(options)
    for n, content in enumerate(given.get("text", [])):
        (tmp_path / f"{n}").write_bytes(content if isinstance(content, bytes) else content.encode())
    given["text"] = [str(tmp_path / f"{n}") for n in range(len(given.get("text", [])))]
    with pytest.raises(error, match=words):
        wb.imatrix(folder, out, context=CTX, **given)
    assert not out.exists()


def test_other_refusals(tmp_path: Path, text: Path) -> None:
    folder, out = built("llama", tmp_path), tmp_path / "i.gguf"
    with pytest.raises(UsageError, match=r"\.gguf or a \.dat"):
        wb.imatrix(folder, tmp_path / "i.bin", text=[str(text)], context=CTX)
    wb.imatrix(folder, out, text=[str(text)], context=CTX, chunks=1)
    with pytest.raises(RefusedError, match="exists"):
        wb.imatrix(folder, out, text=[str(text)], context=CTX)
    with pytest.raises(UsageError, match="chunks of another length: 32"):
        wb.imatrix(folder, out, text=[str(text)], context=16, resume=True)
    (other := tmp_path / "other.txt").write_text(TEXT)
    with pytest.raises(UsageError, match=r"was made from text\.txt"):
        wb.imatrix(folder, out, text=[str(other)], context=CTX, resume=True)
    with pytest.raises(UsageError, match="no chunk is left"):
        wb.imatrix(folder, out, text=[str(text)], context=CTX, chunks=1, resume=True)
    mamba = built("mamba", tmp_path)
    with pytest.raises(UnsupportedError, match="mamba models isn't computed"):
        wb.imatrix(mamba, tmp_path / "m.gguf", text=[str(text)], context=CTX)


#: Case -> a weight, and the place that is named.
DAMAGED = {
    "llama": ("model.layers.1.mlp.down_proj.weight", r"layers\.1\.mlp"),
    "qwen3": ("model.layers.0.self_attn.v_proj.weight", r"layers\.0\.attention"),
    "qwen3moe": ("model.layers.1.mlp.gate.weight", r"layers\.1\.mlp"),
    "phi2": ("model.layers.1.self_attn.dense.weight", r"layers\.1"),
    "deepseek-v3": ("model.layers.1.self_attn.kv_b_proj.weight", r"layers\.1\.attention"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_weights_name_the_layer(tmp_path: Path, text: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    (weight, place), folder, out = DAMAGED[name], built(name, tmp_path), tmp_path / "i.gguf"
    tensors = load_file(folder / "model.safetensors")
    tensors[weight][3] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with np.errstate(invalid="ignore"), pytest.raises(FormatError, match=rf"{place}: values aren't finite"):
        wb.imatrix(folder, out, text=[str(text)], context=CTX)
    assert not out.exists()


@pytest.mark.parametrize("content", [None, "{}", '{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}'])
def test_a_tokenizer_that_cannot_be_used(tmp_path: Path, text: Path, content: str | None) -> None:
    folder, out = built("qwen3", tmp_path), tmp_path / "i.gguf"
    for file in folder.glob("token*"):
        file.unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises((FormatError, UnsupportedError), match="token"):
        wb.imatrix(folder, out, text=[str(text)], context=CTX)
    assert not out.exists()
