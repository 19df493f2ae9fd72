"""Models that speak: their GGUFs are the reference converter's byte for byte, load in llama.cpp, and come back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import gguf_file, models, reference_converter, vocabularies
from tests.oracles.families.speech import CASES
from tests.oracles.llama_loads import Judge

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError

EMBEDDING = "token_embd.weight"
VOCODERS = ("wavtokenizer", "lfm2-vocoder")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", VOCODERS)
def test_a_vocoder_is_written_as_the_reference_writes_it(name: str, dtype: str, tmp_path: Path, judge: Judge) -> None:
    folder = models.build(CASES[name], tmp_path / name)
    ours = wb.convert(folder, tmp_path / "ours.gguf", dtype=dtype).target
    theirs = reference_converter.convert(folder, tmp_path / "theirs.gguf", dtype)
    assert gguf_file.differences(gguf_file.read(Path(ours)), gguf_file.read(theirs)) == []
    assert judge.refusal(tmp_path / "ours.gguf") is None


@pytest.mark.parametrize("name", VOCODERS)
def test_a_vocoder_s_gguf_is_a_folder_again(name: str, tmp_path: Path) -> None:
    folder = models.build(CASES[name], tmp_path / name)
    wb.convert(folder, tmp_path / "a.gguf", dtype="f32")
    with wb.plan_convert(tmp_path / "a.gguf", tmp_path / "back", to="hf") as plan:
        assert plan.losses == ()
        plan.run()
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert not list((tmp_path / "back").glob("tokenizer*"))
    wb.convert(tmp_path / "back", tmp_path / "b.gguf", dtype="f32")
    first, again = (gguf_file.read(tmp_path / f"{x}.gguf") for x in "ab")
    assert first.fields == again.fields  # in whatever order
    assert gguf_file.differences(gguf_file.File({}, first.tensors), gguf_file.File({}, again.tensors)) == []


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_a_talker_is_written_as_the_reference_writes_it(dtype: str, tmp_path: Path, judge: Judge) -> None:
    """Apart from the last bits of the embedding that a network computes."""
    case = CASES["qwen3-tts"]
    folder = models.build(case, tmp_path / "Qwen3-TTS")
    wb.convert(folder, tmp_path / "ours.gguf", dtype=dtype, pre=case.pre)
    reference_converter.convert(folder, tmp_path / "theirs.gguf", dtype, pre=case.pre)
    ours, theirs = (gguf_file.read(tmp_path / f"{whose}.gguf") for whose in ("ours", "theirs"))
    ours_made, theirs_made = ours.tensors.pop(EMBEDDING), theirs.tensors.pop(EMBEDDING)
    assert gguf_file.differences(ours, theirs) == []
    assert (ours_made.type, ours_made.shape) == (theirs_made.type, theirs_made.shape)
    if dtype == "q8_0":
        assert np.mean(ours_made.data != theirs_made.data) < 1e-3
    else:
        near = {"f32": 1e-5, "f16": 2e-3}[dtype]
        assert np.allclose(ours_made.data, theirs_made.data, rtol=near, atol=near)
    assert judge.refusal(tmp_path / "ours.gguf") is None


@pytest.mark.oracle
def test_a_talker_without_its_tokenizer_loads(tmp_path: Path, judge: Judge) -> None:
    folder = models.build(CASES["qwen3-tts"], tmp_path / "Qwen3-TTS")
    wb.convert(folder, tmp_path / "a.gguf", tokenizer=False)
    assert judge.refusal(tmp_path / "a.gguf") is None
    rows = vocabularies.QWEN_SIZE + 3072
    assert gguf_file.read(tmp_path / "a.gguf").fields["qwen3tts.vocab_size"].value == rows


@pytest.mark.oracle
def test_a_talker_without_an_output_or_with_another_is_judged_as_llama_cpp_does(tmp_path: Path, judge: Judge) -> None:
    """Without one, llama.cpp takes the embedding, which isn't the model's output; it has one number of codes."""
    folder = models.build(CASES["qwen3-tts"], tmp_path / "Qwen3-TTS")
    wb.convert(folder, tmp_path / "a.gguf", dtype="f32", tokenizer=False)

    def none(file: gguf_file.File) -> None:
        del file.tensors["output.weight"]

    def fewer(file: gguf_file.File) -> None:
        file.tensors["output.weight"] = gguf_file.Tensor("F32", (1024, 64), np.zeros((1024, 64), np.float32))

    for fault, rule in ((none, "llamacpp/optional"), (fewer, "llamacpp/shape")):
        path = gguf_file.mutate(gguf_file.read(tmp_path / "a.gguf"), tmp_path / f"{rule[9:]}.gguf", fault)
        report = wb.verify(path)
        assert {finding.rule for finding in report.findings} == {rule}
        assert report.verdicts[0].accepts is (judge.refusal(path) is None)


def test_a_talker_s_gguf_has_its_tokenizer_and_codes(tmp_path: Path) -> None:
    folder, path = models.build(CASES["qwen3-tts"], tmp_path / "model"), tmp_path / "m.gguf"
    wb.convert(folder, path, dtype="f32")

    def verdict(path: Path) -> str:
        return next(c.verdict for c in wb.prove(folder, path, run=False).checks if c.name == "tokenizer")

    assert verdict(path) == "same"
    with wb.open(path) as model:
        tokens, end = list(model.metadata["tokenizer.ggml.tokens"]), model.metadata["tokenizer.ggml.eos_token_id"]
    for key, value in (("tokens", [*tokens[:-1], "<|other|>"]), ("eos_token_id", end - 1)):
        changed = Path(shutil.copy(path, tmp_path / "changed.gguf"))
        wb.edit(changed, set={f"tokenizer.ggml.{key}": value}, allow_guarded=True)
        assert verdict(changed) == "different", key


@pytest.mark.parametrize("name", ["qwen3-tts", "pocket-tts"])
def test_talkers_merge_with_all_their_tensors(name: str, tmp_path: Path) -> None:
    """Also with those from which a GGUF's embedding is computed."""
    first = models.build(CASES[name], tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    before = load_file(first / "model.safetensors")
    save_file({key: array * 3 for key, array in before.items()}, second / "model.safetensors")
    wb.merge([first, second], f"{tmp_path / 'merged'}/", method="linear")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert merged.keys() == before.keys()
    assert all(np.allclose(merged[key], array * 2, rtol=1e-6) for key, array in before.items())


def test_no_folder_is_made_of_a_talker(tmp_path: Path) -> None:
    folder = models.build(CASES["qwen3-tts"], tmp_path / "Qwen3-TTS")
    with wb.plan_convert(folder, tmp_path / "a.gguf", pre=CASES["qwen3-tts"].pre) as plan:
        told = {loss.tensor for loss in plan.losses if "no folder can be made of it again" in loss.message}
        plan.run()
    parts = {"model.text_embedding.weight", "model.codec_embedding.weight"}
    parts |= {f"text_projection.linear_fc{i}.{end}" for i in (1, 2) for end in ("weight", "bias")}
    assert told == {f"talker.{name}" for name in parts}
    with pytest.raises(
        UnsupportedError, match=r"token_embd\.weight is computed from the embeddings of texts and codes"
    ):
        wb.convert(tmp_path / "a.gguf", tmp_path / "back", to="hf")
    assert not (tmp_path / "back").exists()


def _pocket(name: str, root: Path) -> Path:
    """A folder as it is published: without a config.json."""
    folder = models.build(CASES[name], root / name)
    (folder / "config.json").unlink()
    (folder / "tokenizer.model").write_bytes(vocabularies.unigram_model("xlmr"))
    return folder


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["pocket-tts", "pocket-tts-mute"])
def test_a_folder_without_a_config_is_written_as_the_reference_writes_it(
    name: str, tmp_path: Path, judge: Judge
) -> None:
    folder = _pocket(name, tmp_path)
    with wb.plan_convert(folder, tmp_path / "ours.gguf", dtype="f32") as plan:
        assert not [loss for loss in plan.losses if loss.effect == "results"]
        plan.run()
    reference_converter.convert(folder, tmp_path / "theirs.gguf", "f32")
    ours, theirs = (gguf_file.read(tmp_path / f"{whose}.gguf") for whose in ("ours", "theirs"))
    ours_made, theirs_made = ours.tensors.pop(EMBEDDING), theirs.tensors.pop(EMBEDDING)
    assert gguf_file.differences(ours, theirs) == []
    assert np.array_equal(ours_made.data[:-1], theirs_made.data[:-1])
    assert np.allclose(ours_made.data[-1], theirs_made.data[-1], rtol=1e-5, atol=1e-5)
    assert judge.refusal(tmp_path / "ours.gguf") is None
    with pytest.raises(UnsupportedError, match="no folder can be made of it"):
        wb.convert(tmp_path / "ours.gguf", tmp_path / "back", to="hf")


@pytest.mark.parametrize("lost", ["flow_lm.conditioner.embed.weight", "flow_lm.transformer.layers.0.linear1.weight"])
def test_a_folder_without_a_config_lacks_no_tensor_that_tells_its_sizes(lost: str, tmp_path: Path) -> None:
    folder = _pocket("pocket-tts", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(FormatError, match="a Pocket TTS needs this tensor"):
        wb.convert(folder, tmp_path / "a.gguf")


@pytest.mark.parametrize(("key", "value"), [("codec_eos_token_id", 20), ("vocab_size", -1), ("text_vocab_size", "x")])
def test_a_talker_of_nonsense_is_refused(key: str, value: object, tmp_path: Path) -> None:
    folder = models.build(CASES["qwen3-tts"], tmp_path / "Qwen3-TTS")
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=key):
        wb.convert(folder, tmp_path / "a.gguf", pre=CASES["qwen3-tts"].pre)


def test_the_config_of_llama_cpp_s_script_names_no_type(tmp_path: Path) -> None:
    folder = models.build(CASES["wavtokenizer"], tmp_path / "w")
    wb.convert(folder, tmp_path / "a.gguf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    wb.convert(folder, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_vocoder_has_no_tokenizer(tmp_path: Path) -> None:
    folder = models.build(CASES["wavtokenizer"], tmp_path / "w")
    with pytest.raises(UsageError, match="pre llama-bpe doesn't apply: the model has no tokenizer"):
        wb.convert(folder, tmp_path / "a.gguf", pre="llama-bpe")
    assert not (tmp_path / "a.gguf").exists()
    with wb.plan_convert(folder, tmp_path / "a.gguf", dtype="f32") as plan:
        assert not [loss for loss in plan.losses if "tokenizer" in loss.message]
