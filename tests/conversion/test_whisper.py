"""Whisper between OpenAI, transformers and whisper.cpp: the bytes of whisper.cpp's scripts, the numbers of
transformers, and every part that doesn't fit is listed."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers import whisper_files as cases

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.containers.ggml import whisper as tensors
from weighbridge.models.whisper import config, mel, names, tokens

# OpenAI's whisper/assets/mel_filters.npz
OPENAI_FILTERS = {
    80: "4f2701b1d287d74a0dc9871026e9519d98cb76426615f2539b0d151a0ae4ec2e",
    128: "2a5f9822897750e047c85dea37cc268d3be0ecfd23c28a5f10da129d99d05afe",
}
# The files that whisper.cpp 1.8.5 loaded and computed as transformers does: `record_whisper.py`.
GOLDEN = json.loads((Path(__file__).parent / "golden" / "whisper.json").read_text())
KINDS = ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
HEADER = [cases.CONFIG[key] for key in cases.HEADER]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("whisper") / "whisper-base.en"
    cases.folder(path)
    return path


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("plain") / "ggml-base.en.bin"
    wb.convert(source, path)
    return path


def openai(prefix: str = "model.") -> cases.Arrays:
    return {cases.openai_name(name): array for name, array in cases.weights().items()}


def encode(array: Any, kind: str) -> bytes:
    """ggml's bytes: gguf's NumPy form of the simple types; that of K-quants has its own judges (tests/kernels)."""
    if kind.endswith("_K"):
        from weighbridge.base.dtypes import BY_NAME
        from weighbridge.tensors import kernels

        values = np.ascontiguousarray(array, np.float32)
        out = np.empty(values.size // 256 * BY_NAME[kind].size, np.uint8)
        kernels.encode(BY_NAME[kind], values.reshape(-1), out)
        return out.tobytes()
    import gguf

    return bytes(gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind]).tobytes())


# ------------------------------------------------------------------------------------------------ mel filters


@pytest.mark.parametrize("bands", OPENAI_FILTERS)
def test_the_filters_are_openais(bands: int) -> None:
    from transformers import WhisperFeatureExtractor

    filters = np.frombuffer(mel.filters(bands), "<f4").reshape(bands, 201)
    assert hashlib.sha256(filters.tobytes()).hexdigest() == OPENAI_FILTERS[bands]
    other = WhisperFeatureExtractor(feature_size=bands).mel_filters.T.astype("<f4")
    assert np.abs(filters.view("<i4") - other.view("<i4")).max() == 1


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("name", "value"),
    [("SAMPLE_RATE", 16001), ("BINS", 200), ("_HZ_PER_MEL", 66.6), ("_CORNER_HZ", 1001.0), ("_CORNER_MEL", 15.1),
     ("_STEP", 0.0688)],
)  # fmt: skip
def test_a_wrong_constant_of_the_filters_is_seen(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mel, name, value)
    assert hashlib.sha256(mel.filters(80)).hexdigest() != OPENAI_FILTERS[80]


# ------------------------------------------------------------------------------------------------ to whisper.cpp


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_the_references(source: Path, plain: Path, tmp_path: Path, kind: str) -> None:
    expected = cases.reference(HEADER, openai(), mel.filters(80), kind, encode=encode)
    wb.convert(source, tmp_path / "ggml-out.bin", dtype=kind.lower())
    assert (tmp_path / "ggml-out.bin").read_bytes() == expected
    assert hashlib.sha256(expected).hexdigest() == GOLDEN[kind]["sha256"]
    assert not wb.verify(tmp_path / "ggml-out.bin").findings
    if kind not in ("F32", "F16"):
        wb.quantize(plain, tmp_path / "quantized.bin", kind)
        assert (tmp_path / "quantized.bin").read_bytes() == expected


def test_whisper_cpp_computes_as_transformers() -> None:
    assert {*GOLDEN} == {*KINDS}
    for kind, bound in {"F16": 0.999, "Q8_0": 0.999, "Q6_K": 0.998, "Q5_0": 0.99, "Q4_K": 0.98, "Q4_0": 0.97}.items():
        assert GOLDEN[kind]["correlation"] > bound


@pytest.mark.parametrize("dtype", ["<f2", "<f4"])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_the_sources_type_and_prefix_dont_matter(tmp_path: Path, plain: Path, dtype: str, prefix: str) -> None:
    cases.folder(tmp_path / "m", dtype=dtype, prefix=prefix)
    wb.convert(tmp_path / "m", tmp_path / "ggml-out.bin")
    assert (tmp_path / "ggml-out.bin").read_bytes() == plain.read_bytes()


def test_the_commands(source: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As people type them; the answers as JSON list the same tensors."""
    answers = []
    for words in (
        ["quantize", plain, tmp_path / "a.bin", "q5_0"],
        ["quantize", source, tmp_path / "ggml-b.bin", "Q5_0"],
        ["convert", source, tmp_path / "c.bin", "--to", "whisper.cpp", "--dtype", "q5_0"],
    ):
        assert main([*map(str, words), "--dry-run", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
        assert main([*map(str, words)]) == 0
        capsys.readouterr()
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert [answer["format"] for answer in answers] == ["ggml"] * 3
    targets = {row["name"]: row["target"] for row in answers[0]["tensors"]}
    assert targets == {t["name"]: t["dtype"] for t in answers[2]["files"][0]["tensors"]}
    assert {*targets.values()} == {"Q5_0", "F16", "F32"}


def test_no_report_of_errors(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ["--report", str(tmp_path / "r.json")]
    assert main(["quantize", str(plain), str(tmp_path / "a.bin"), "Q4_0", *report]) == 2
    assert "--report doesn't apply" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_file_of_f32_is_for_quantizing(source: Path, plain: Path, tmp_path: Path) -> None:
    notes = wb.convert(source, tmp_path / "ggml-f32.bin", dtype="f32").notes
    assert any("source for quantizing" in note for note in notes)
    for path in (plain, tmp_path / "ggml-f32.bin"):
        wb.quantize(path, tmp_path / f"{path.stem}-q.bin", "Q4_1")
    assert (tmp_path / "ggml-f32-q.bin").read_bytes() == (tmp_path / "ggml-base.en-q.bin").read_bytes()


@pytest.mark.parametrize("kind", [None, "q5_0"])
def test_a_folder_gets_whisper_cpps_names(source: Path, tmp_path: Path, kind: str | None) -> None:
    wb.convert(source, f"{tmp_path}/out/", to="ggml", dtype=kind)
    name = "ggml-base.en.bin" if kind is None else "ggml-base.en-q5_0.bin"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_a_checkpoint_of_openais(tmp_path: Path) -> None:
    import torch

    arrays = dict(sorted(openai().items()))  # its order is kept
    arrays |= {name: arrays[name].squeeze() for name in arrays}
    state = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    torch.save({"dims": dict(zip(cases.DIMS, HEADER, strict=True)), "model_state_dict": state}, tmp_path / "base.en.pt")
    with pytest.raises(UnsupportedError, match="no tokenizer"):
        wb.convert(tmp_path / "base.en.pt", tmp_path / "ggml-a.bin")
    ranks = b"".join(base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(cases.STRINGS))
    (tmp_path / "gpt2.tiktoken").write_bytes(ranks)
    result = wb.convert(tmp_path / "base.en.pt", tmp_path / "ggml-a.bin")
    assert result.losses == ()
    assert (tmp_path / "ggml-a.bin").read_bytes() == cases.reference(HEADER, arrays, mel.filters(80))
    wb.convert(tmp_path / "base.en.pt", tmp_path / "hf", to="hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["d_model"] == cases.STATE


def test_filters_of_the_folder_are_kept(source: Path, tmp_path: Path) -> None:
    cases.folder(tmp_path / "m")
    own = np.random.RandomState(1).rand(80, 201).astype("<f4")
    for stored in (own, own.T):
        (tmp_path / "m" / "preprocessor_config.json").write_text(json.dumps({"mel_filters": stored.tolist()}))
        result = wb.convert(tmp_path / "m", tmp_path / "ggml-own.bin", overwrite=True)
        assert own.tobytes() in (tmp_path / "ggml-own.bin").read_bytes()[:70_000]
        assert any("mel filters" in note for note in result.notes)
    back = wb.convert(tmp_path / "ggml-own.bin", tmp_path / "hf")
    assert [loss.effect for loss in back.losses if "mel filters" in loss.message] == ["results"]


def test_losses_of_a_folder(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    cases.folder(tmp_path / "m", config={**cases.CONFIG, "tie_word_embeddings": False})
    weights = load_file(tmp_path / "m" / "model.safetensors")
    embedding = weights["model.decoder.embed_tokens.weight"]
    save_file(
        {**weights, "proj_out.weight": embedding + 1, "extra": embedding[:1]}, tmp_path / "m" / "model.safetensors"
    )
    generation = {"alignment_heads": [[0, 1]], "suppress_tokens": [1], "forced_decoder_ids": None}
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "m" / "normalizer.json").write_text("{}")
    (tmp_path / "m" / "added_tokens.json").write_text(
        json.dumps({"<|nocaptions|>": cases.TOKENS + 105, "<|me|>": 9000})
    )
    losses = " / ".join(loss.message for loss in wb.convert(tmp_path / "m", tmp_path / "ggml-a.bin").losses)
    for text in ("left out: extra", "proj_out.weight", "alignment_heads, suppress_tokens;", "normalizer.json",
                 "1 token that Whisper doesn't have, first '<|me|>'"):  # fmt: skip
        assert text in losses


def no_tensor(path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(path / "model.safetensors")
    del weights["model.decoder.layers.0.fc1.bias"]
    save_file(weights, path / "model.safetensors")


def json_of(name: str, **changes: Any) -> Any:
    def change(path: Path) -> None:
        data = json.loads((path / name).read_text()) | changes
        (path / name).write_text(json.dumps({key: value for key, value in data.items() if value != "gone"}))

    return change


CONFIG_JSON, PREPROCESSOR, VOCAB = "config.json", "preprocessor_config.json", "vocab.json"
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no size": (json_of(CONFIG_JSON, d_model="gone"), FormatError, "d_model"),
    "no number": (json_of(CONFIG_JSON, encoder_layers=True), FormatError, "encoder_layers"),
    "a negative size": (json_of(CONFIG_JSON, num_mel_bins=-80), FormatError, "num_mel_bins"),
    "a huge size": (json_of(CONFIG_JSON, vocab_size=1 << 31), FormatError, "vocab_size"),
    "billions of layers": (json_of(CONFIG_JSON, decoder_layers=2_000_000_000), FormatError, "missing"),
    "another size": (json_of(CONFIG_JSON, max_source_positions=99), FormatError, "shape"),
    "a missing tensor": (no_tensor, FormatError, "missing"),
    "another activation": (json_of(CONFIG_JSON, activation_function="relu"), UnsupportedError, "relu"),
    "scaled embeddings": (json_of(CONFIG_JSON, scale_embedding=True), UnsupportedError, "scale_embedding"),
    "a wide feed-forward": (json_of(CONFIG_JSON, encoder_ffn_dim=512), UnsupportedError, "encoder_ffn_dim"),
    "a wide decoder": (json_of(CONFIG_JSON, decoder_ffn_dim=512), UnsupportedError, "decoder_ffn_dim"),
    "another transform": (json_of(PREPROCESSOR, n_fft=512), UnsupportedError, "n_fft"),
    "another hop": (json_of(PREPROCESSOR, hop_length=128), UnsupportedError, "hop_length"),
    "another rate": (json_of(PREPROCESSOR, sampling_rate=8000), UnsupportedError, "sampling_rate"),
    "few filters": (json_of(PREPROCESSOR, mel_filters=[[1.0]]), FormatError, "mel_filters"),
    "filters of text": (json_of(PREPROCESSOR, mel_filters="x"), FormatError, "mel_filters"),
    "no end token": (json_of(VOCAB, **{"<|endoftext|>": "gone"}), FormatError, "isn't Whisper's"),
    "a gap": (json_of(VOCAB, **{cases.printed(b"A"): "gone"}), FormatError, "an id has no token"),
    "no bytes": (json_of(VOCAB, **{cases.printed(b"A"): "gone", "\u4e00": 32}), FormatError, "byte-level"),
    "no tokenizer": (lambda path: (path / VOCAB).unlink(), UnsupportedError, "no tokenizer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_folders_are_refused(tmp_path: Path, name: str) -> None:
    change, error, text = REFUSED[name]
    cases.folder(tmp_path / "m")
    change(tmp_path / "m")
    with pytest.raises(error, match=text):
        wb.convert(tmp_path / "m", tmp_path / "ggml-a.bin")
    assert not (tmp_path / "ggml-a.bin").exists()


def test_types_and_options_that_whisper_cpp_doesnt_have(source: Path, plain: Path, tmp_path: Path) -> None:
    cases.folder(tmp_path / "m", config={**cases.CONFIG, "d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256})
    target = tmp_path / "ggml-a.bin"
    with pytest.raises(UsageError, match="rows of 64"):
        wb.convert(tmp_path / "m", target, dtype="q4_k")
    for dtype in ("bf16", "iq4_nl", "tq1_0"):
        with pytest.raises(UsageError, match=r"whisper\.cpp"):
            wb.convert(source, target, dtype=dtype)
    with pytest.raises(UsageError, match="IQ4_NL"):
        wb.quantize(plain, target, "IQ4_NL")
    given: dict[str, Any] = {"recipe": plain, "target_bpw": 5, "target_size": "1MB"}
    for option, value in given.items():
        with pytest.raises(UsageError, match=f"{option} doesn't determine"):
            wb.quantize(plain, target, **{option: value})
    with pytest.raises(UsageError, match="doesn't apply"):
        wb.quantize(plain, target, "Q4_0", pure=True)
    with pytest.raises(UsageError, match="doesn't read"):
        wb.quantize(plain, tmp_path / "a.gguf", "Q4_0")
    wb.quantize(plain, target, "Q4_0")
    with pytest.raises(RefusedError, match="quantized again"):
        wb.quantize(target, tmp_path / "b.bin", "Q8_0")
    wb.quantize(target, tmp_path / "b.bin", "Q8_0", allow_requantize=True)
    with pytest.raises(UsageError, match="isn't a Whisper"):
        wb.convert(source / "model.safetensors", tmp_path / "c.bin", to="ggml", config=json_config(tmp_path))


def json_config(path: Path) -> Path:
    (path / "config.json").write_text('{"model_type": "another"}')
    return path / "config.json"


# ------------------------------------------------------------------------------------------------ to transformers


def test_a_folder_and_back(source: Path, plain: Path, tmp_path: Path) -> None:
    """transformers loads the folder, and its weights are those of the original; a second file is the first."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    result = wb.convert(plain, tmp_path / "hf")
    losses = [loss.message for loss in result.losses]
    assert losses == ["the source has no alignment_heads, forced_decoder_ids, suppress_tokens: "
                      "the folder has none of them"]  # fmt: skip
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    original = WhisperForConditionalGeneration.from_pretrained(source, dtype=torch.float32).eval()
    assert {n: t.tolist() for n, t in model.state_dict().items() if t.ndim == 1} == {
        n: t.tolist() for n, t in original.state_dict().items() if t.ndim == 1
    }
    for key, value in original.config.to_dict().items():
        if key in cases.CONFIG and key != "dtype":
            assert getattr(model.config, key) == value, key
    processor = WhisperProcessor.from_pretrained(tmp_path / "hf")
    sound = np.sin(np.arange(16000) / 20).astype(np.float32)
    features = processor(sound, sampling_rate=16000, return_tensors="pt").input_features
    assert features.shape == (1, cases.MELS, 2 * cases.AUDIO)
    ids = torch.tensor([[cases.TOKENS + 1, cases.TOKENS + 2]])
    with torch.no_grad():
        outputs = [m(features, decoder_input_ids=ids).logits for m in (model, original)]
    assert torch.equal(*outputs)
    wb.convert(tmp_path / "hf", tmp_path / "ggml-again.bin")
    assert (tmp_path / "ggml-again.bin").read_bytes() == plain.read_bytes()


def test_the_tokenizer(plain: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    wb.convert(plain, tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(tokenizer).__name__ == "WhisperTokenizer"
    assert len(tokenizer) == cases.ROWS
    texts = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in [*LANGUAGES][:99]), "<|translate|>",
             "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
    texts += [f"<|{i * 0.02:.2f}|>" for i in range(1501)]
    assert tokenizer.convert_tokens_to_ids(texts) == [*range(cases.TOKENS, cases.ROWS)]
    ids = tokenizer("abc d", add_special_tokens=False).input_ids
    assert [cases.STRINGS[i] for i in ids] == [b"ab", b"c", b" ", b"d"]
    assert tokenizer.all_special_ids[-1] + 1 == cases.ROWS - 1501  # `decode` takes what follows for timestamps
    assert [*tokens.LANGUAGES] == [*LANGUAGES]


def test_generation_of_a_multilingual_model() -> None:
    sizes = dict(zip(config.KEYS, (51866, 1500, 8, 2, 1, 448, 8, 2, 1, 128), strict=True))
    special = tokens.special_tokens(51866, 50257)
    generation = json.loads(config.folder_files(sizes, special, 220, None)["generation_config.json"])
    # as in openai/whisper-large-v3
    assert generation["lang_to_id"]["<|en|>"] == 50259
    assert generation["lang_to_id"]["<|yue|>"] == 50358
    assert generation["task_to_id"] == {"transcribe": 50360, "translate": 50359}
    assert (generation["no_timestamps_token_id"], generation["prev_sot_token_id"]) == (50364, 50362)
    assert generation["begin_suppress_tokens"] == [220, 50257]
    assert generation["is_multilingual"] is True
    assert tokens.languages(51864, 50256) == tokens.languages(51865, 50257) == 99
    assert tokens.languages(51867, 50257) is None


def test_the_empty_token_of_multilingual_models(tmp_path: Path) -> None:
    vocab = {cases.printed(token): i for i, token in enumerate(cases.STRINGS)}
    for listed in ({"": cases.TOKENS}, {}):
        whole = {**vocab, **listed, "<|endoftext|>": cases.TOKENS + 1}
        assert tokens._split(whole, 400, "vocab.json") == ([*cases.STRINGS, b""], [])


def test_quantized_files_become_folders(source: Path, tmp_path: Path) -> None:
    wb.convert(source, tmp_path / "ggml-q.bin", dtype="q8_0")
    result = wb.convert(tmp_path / "ggml-q.bin", tmp_path / "hf")
    decoded = {loss.tensor for loss in result.losses if loss.message == "decoded from Q8_0 to F16"}
    matrices = {name for name, array in cases.weights().items() if array.ndim == 2 and "positions" not in name}
    assert decoded == matrices
    with wb.open(tmp_path / "hf") as model, wb.open(source) as original:
        for name, tensor in original.items():
            assert np.allclose(model[name].numpy(), tensor.numpy(), atol=2e-3)


def test_without_a_tokenizer(plain: Path, tmp_path: Path) -> None:
    files = {path.name for path in Path(str(wb.convert(plain, tmp_path / "hf").target)).iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json"} <= files
    rest = wb.convert(plain, tmp_path / "bare", tokenizer=False)
    assert "left out, as asked: the tokenizer" in [loss.message for loss in rest.losses]
    assert "tokenizer.json" not in {path.name for path in (tmp_path / "bare").iterdir()}


# ------------------------------------------------------------------------------------------------ tables


def test_the_names_are_inverse() -> None:
    sizes = dict(zip(config.KEYS, HEADER, strict=True))
    listed = [(row.openai, row.hf) for row in names.names(sizes)]
    assert listed == [(cases.openai_name(n), n.removeprefix("model.")) for n in cases.weights()]
    assert tensors.tensor_count(sizes) == len(listed) == len({hf for _, hf in listed})


@pytest.mark.mutation
@pytest.mark.parametrize(("table", "row"), [(t, r) for t in ("WHOLE", "BLOCK") for r in getattr(names, t)])
def test_every_name_is_seen(
    source: Path, tmp_path: Path, table: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {**getattr(names, table), row: "wrong"}
    monkeypatch.setattr(names, table, rows)
    with pytest.raises(FormatError):
        wb.convert(source, tmp_path / "ggml-a.bin")


@pytest.mark.mutation
@pytest.mark.parametrize("key", config.KEYS)
def test_every_size_is_seen(
    source: Path, plain: Path, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "max_target_positions" if config.KEYS[key] != "max_target_positions" else "encoder_layers"
    monkeypatch.setattr(config, "KEYS", {**config.KEYS, key: other})
    try:
        wb.convert(source, tmp_path / "ggml-a.bin")
    except FormatError:
        return
    assert (tmp_path / "ggml-a.bin").read_bytes() != plain.read_bytes()
