"""`wb quality`: equals transformers' logits compared in torch, and llama-perplexity's file and its rules."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forward.texts import CTX, TEXT
from tests.oracles import models

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.containers.ggml.logits import read_header
from weighbridge.forward.saved_logits import SavedLogits
from weighbridge.io.source import BytesSource

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text.txt, a model's folder llama, its q4.gguf, and a copy of the folder with other weights."""
    here = tmp_path_factory.mktemp("quality")
    (here / "text.txt").write_text(TEXT)
    models.build(models.CASES["llama"], here / "llama")
    wb.convert(here / "llama", here / "f32.gguf", dtype="f32")
    wb.quantize(here / "f32.gguf", here / "q8.gguf", "Q8_0")
    return here


def _text(place: Path, **more: Any) -> dict[str, Any]:
    return {"text": [str(place / "text.txt")], "context": CTX, "chunks": 4, **more}


def _logits(folder: Path, ids: Any) -> Any:
    """By transformers, f64[chunks, scored positions, vocab]."""
    rows = [torch.from_numpy(models.logits(folder, [int(i) for i in row])) for row in ids]
    return torch.stack(rows).double()[:, CTX // 2 : -1]


def _tokens(place: Path) -> Any:
    """The tokens of a saved file, with BOS at the start of each chunk as the model reads them."""
    wb.quality(place / "llama", save=place / "tokens.kld", overwrite=True, **_text(place))
    with SavedLogits(place / "tokens.kld") as saved:
        return saved.tokens


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, Any]:
    """Each number, computed in torch from transformers' logits."""
    tokens = _tokens(place)
    ids = tokens.copy()
    ids[:, 0] = tokens[0, 0]
    wb.convert(place / "q8.gguf", place / "back", to="hf", dtype="f32")
    p, q = (_logits(place / name, ids).log_softmax(-1) for name in ("llama", "back"))
    following = torch.from_numpy(tokens[:, CTX // 2 + 1 :]).unsqueeze(-1)
    losses = [-x.gather(-1, following).squeeze(-1) for x in (p, q)]
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    top, other, right = p.argmax(-1), q.argmax(-1), following.squeeze(-1)
    change = (-losses[1]).exp() - (-losses[0]).exp()
    return {
        "reference_perplexity": losses[0].mean().exp(), "perplexity": losses[1].mean().exp(),
        "log_ratio": (losses[1] - losses[0]).mean(), "kl": kl.mean(), "same_top": (top == other).double().mean(),
        "lost": ((top == right) & (other != right)).double().mean(),
        "gained": ((top != right) & (other == right)).double().mean(),
        "delta_p": change.mean(), "rms_delta_p": change.square().mean().sqrt(),
        "error of kl": kl.mean(-1).std() / len(kl) ** 0.5, "median kl": kl.flatten().quantile(0.5),
    }  # fmt: skip


def test_numbers_equal_transformers(place: Path, expected: dict[str, Any]) -> None:
    report = wb.quality(place / "llama", place / "q8.gguf", **_text(place))
    found = {name: getattr(report, name).value for name in expected if hasattr(report, name)}
    assert report.kl is not None
    assert report.kl_quantiles is not None
    found |= {"error of kl": report.kl.error, "median kl": report.kl_quantiles["0.5"]}
    assert found == {name: pytest.approx(float(value), rel=2e-3, abs=1e-6) for name, value in expected.items()}
    assert report.kl.value > 1e-6
    assert report.same_tokens
    assert report.positions == 4 * (CTX // 2 - 1)


def test_a_model_equals_itself(place: Path) -> None:
    report = wb.quality(place / "llama", place / "f32.gguf", **_text(place))
    assert report.kl is not None
    assert report.kl.value == pytest.approx(0, abs=1e-9)
    assert report.same_top == wb.SampleMean(1.0, 0.0)
    alone = wb.quality(place / "llama", **_text(place))
    assert alone.reference_perplexity == report.reference_perplexity
    assert alone.kl is None
    assert wb.quality(place / "llama", **_text(place, chunks=1)).reference_perplexity.error is None


def test_a_saved_file_stands_for_its_model(place: Path) -> None:
    """The reader below follows llama-perplexity's sources, not ours."""
    base = place / "base.kld"
    direct = wb.quality(place / "llama", place / "q8.gguf", save=base, overwrite=True, **_text(place))
    saved = wb.quality(base, place / "q8.gguf")
    for name in ("reference_perplexity", "perplexity", "log_ratio", "kl"):
        assert getattr(saved, name).value == pytest.approx(getattr(direct, name).value, rel=0.02, abs=2e-5), name
    data = base.read_bytes()
    magic, context, vocab, chunks = struct.unpack_from("<8s3i", data)
    assert (magic, context, chunks) == (b"_logits_", CTX, 4)
    width = 2 * ((vocab + 1) // 2) + 4  # of 16-bit words
    start, positions = 20 + 4 * CTX * 4, CTX - 1 - CTX // 2
    assert len(data) == start + chunks * positions * width * 2
    tokens = np.frombuffer(data, "<i4", CTX * 4, 20).reshape(4, CTX)
    row = np.frombuffer(data, "<u2", width, start + 3 * width * 2)  # the fourth position of the first chunk
    scale, least = row[:4].view("<f4")
    reference = _logits(place / "llama", tokens[:1])[0, 3].log_softmax(-1).numpy()
    kept = reference > reference.max() - 16
    assert np.abs(scale * row[4 : 4 + vocab] + least - reference)[kept].max() <= scale


def test_chunks_of_a_file(place: Path) -> None:
    base = place / "some.kld"
    wb.quality(place / "llama", save=base, **_text(place))
    assert wb.quality(base, place / "q8.gguf", chunks=2).chunks == 2
    assert wb.quality(base).model is None


def test_refusals(place: Path, tmp_path: Path) -> None:
    llama, q8, base = place / "llama", place / "q8.gguf", tmp_path / "base.kld"
    wb.quality(llama, save=base, **_text(place))
    with pytest.raises(RefusedError, match="exists"):
        wb.quality(llama, save=base, **_text(place))
    with pytest.raises(UsageError, match="no text"):
        wb.quality(llama, q8)
    for option in ({"text": ["x"]}, {"chat": True}, {"field": "a"}, {"parse_special": True}, {"context": 64}):
        with pytest.raises(UsageError, match="doesn't apply to saved"):
            wb.quality(base, q8, **option)
    with pytest.raises(UsageError, match="save doesn't apply"):
        wb.quality(base, q8, save=tmp_path / "other.kld")
    with pytest.raises(UnsupportedError, match="mamba"):
        wb.quality(models.build(models.CASES["mamba"], tmp_path / "mamba"), **_text(place))
    other = models.build(models.CASES["qwen2moe"], tmp_path / "other")
    with pytest.raises(UsageError, match=r"different tokens|vocabularies have"):
        wb.quality(llama, other, **_text(place))


def _file(context: int = 4, vocab: int = 3, chunks: int = 1, tokens: bytes | None = None, more: bytes = b"") -> bytes:
    head = struct.pack("<8sIii", b"_logits_", context, vocab, chunks)
    rows = (struct.pack("<2f", 0.5, -1) + bytes(2 * (vocab + vocab % 2))) * (context - 1 - context // 2)
    return head + (bytes(4 * context * chunks) if tokens is None else tokens) + rows * chunks + more


BAD: dict[str, tuple[bytes, str]] = {
    "another magic": (b"_logitz_" + _file()[8:], "not a file of log-prob"),
    "cut in the head": (_file()[:15], "beyond the end|ends|size"),
    "cut": (_file()[:-1], "don't belong to the file's size"),
    "longer": (_file(more=b"x"), "don't belong to the file's size"),
    "no chunks": (struct.pack("<8sIii", b"_logits_", 4, 3, 0), "too small"),
    "a negative vocabulary": (struct.pack("<8sIii", b"_logits_", 4, -3, 1), "too small"),
    "a huge context": (struct.pack("<8sIii", b"_logits_", 0xFFFFFFFF, 2**31 - 1, 2**31 - 1), "file's size"),
    "a token outside": (_file(tokens=struct.pack("<4i", 0, 1, 2, 3)), "isn't in the vocabulary"),
    "a negative token": (_file(tokens=struct.pack("<4i", 0, -1, 2, 1)), "isn't in the vocabulary"),
    "a scale that isn't finite": (_file()[:36] + struct.pack("<f", float("inf")) + _file()[40:], "isn't finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path) -> None:
    data, words = BAD[case]
    (path := tmp_path / "bad.kld").write_bytes(data)
    with pytest.raises(FormatError, match=words), SavedLogits(path) as saved:
        saved.chunk(0)


def test_a_good_file() -> None:
    assert read_header(BytesSource(_file())).positions == 1
