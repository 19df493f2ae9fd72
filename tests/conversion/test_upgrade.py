"""Llamas from before GGUF, upgraded: the bytes of llama.cpp's converter where it can, the same numbers where not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers import ggml_files
from tests.conversion.record_upgrade import CASES

import weighbridge as wb
from weighbridge.base.dtypes import OLD
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError
from weighbridge.conversion.gguf import ggml_upgrade as upgrade
from weighbridge.tensors.reference import legacy_blocks

GOLDEN = json.loads((Path(__file__).parent / "golden" / "upgrade.json").read_text())
ASKED: dict[str, Any] = {"rms_eps": 1e-5, "context_length": 512}


def upgraded(tmp_path: Path, data: bytes, **options: Any) -> Any:
    source, target = tmp_path / "old.bin", tmp_path / "new.gguf"
    source.write_bytes(data)
    return wb.convert(source, target, overwrite=True, **{**ASKED, **options})


def digest(tmp_path: Path) -> str:
    return hashlib.sha256((tmp_path / "new.gguf").read_bytes()).hexdigest()


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_are_the_references(tmp_path: Path, case: str) -> None:
    result = upgraded(tmp_path, ggml_files.llama(*CASES[case]))
    assert digest(tmp_path) == GOLDEN[case]
    assert (result.losses, result.notes) == ((), ())


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("table", "row"), [("LAYER", r) for r in upgrade.LAYER] + [("WHOLE", r) for r in upgrade.WHOLE]
    + [("_FTYPES", r) for _, _, r in CASES.values()],
)  # fmt: skip
def test_every_row_is_seen(tmp_path: Path, table: str, row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(getattr(upgrade, table))
    other = next(r for r in rows if r != row)
    rows[row], rows[other] = rows[other], rows[row]
    monkeypatch.setattr(upgrade, table, rows)
    cases = [c for c, (_, _, ftype) in CASES.items() if table != "_FTYPES" or ftype == row]
    try:
        upgraded(tmp_path, ggml_files.llama(*CASES[cases[0]]))
    except (FormatError, UnsupportedError, RefusedError, KeyError):
        return
    assert digest(tmp_path) != GOLDEN[cases[0]]


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("name", "value"),
    [("_SPECIAL", (*upgrade._SPECIAL[:2], (b"<s>", 3))), ("_SPECIAL", ((b"<unk>", 1), *upgrade._SPECIAL[1:])),
     ("_BYTES", range(3, 258)), ("_BYTES", range(4, 259)), ("_BYTE", 1), ("_CONTROL", 4), ("_NORMAL", 4)],
)  # fmt: skip
def test_every_word_of_the_vocabulary_is_seen(
    tmp_path: Path, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, name, value)
    try:
        upgraded(tmp_path, ggml_files.llama("ggml"))
    except RefusedError:  # llama.cpp would not load it
        return
    assert digest(tmp_path) != GOLDEN["ggml F32"]


OLD_CASES = [("ggjt1", k) for k in ("Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0")] + [
    ("ggjt2", k) for k in ("Q4_0", "Q4_1", "Q8_0")
]
EXACT = {("ggjt1", "Q5_0"), ("ggjt1", "Q5_1")}


@pytest.mark.oracle
@pytest.mark.parametrize(("form", "kind"), OLD_CASES)
def test_old_blocks_become_todays_with_the_same_numbers(tmp_path: Path, form: str, kind: str) -> None:
    from gguf import GGMLQuantizationType, GGUFReader
    from gguf.quants import dequantize

    data = ggml_files.llama(form, kind, 2)
    result = upgraded(tmp_path, data)
    gone = kind in ("Q4_2", "Q4_3")
    assert bool(result.losses) == ((form, kind) not in EXACT)
    tensors = {t.name: t for t in GGUFReader(tmp_path / "new.gguf").tensors}
    found = tensors["blk.1.ffn_down.weight"]
    assert found.tensor_type == (GGMLQuantizationType.F16 if gone else GGMLQuantizationType[kind])
    assert found.shape.tolist() == [96, 64]
    seed = [*ggml_files.llama_shapes(ggml_files.LLAMA)].index("layers.1.feed_forward.w2.weight")
    generation = int(form[-1])
    raw = ggml_files.data_of(kind, generation, (64, 96), seed)
    true = ggml_files.expected(kind, generation, raw, 64 * 96)
    got = dequantize(found.data, found.tensor_type).astype(np.float32).reshape(-1)
    if (form, kind) in EXACT:
        assert np.array_equal(got, true)
    else:  # a scale, or a value, rounded to 11 bits; with a minimum, both parts
        bound = np.abs(true).max() * 2 ** (-10 if kind in ("Q4_1", "Q4_3") else -11)
        assert 0 < np.abs(got - true).max() <= bound


@pytest.mark.parametrize(("form", "kind"), OLD_CASES)
def test_old_blocks_are_read_as_the_numbers_that_they_were(tmp_path: Path, form: str, kind: str) -> None:
    (tmp_path / "old.bin").write_bytes(ggml_files.llama(form, kind, 2))
    seed = [*ggml_files.llama_shapes(ggml_files.LLAMA)].index("layers.0.attention.wq.weight")
    raw = ggml_files.data_of(kind, int(form[-1]), (64, 64), seed)
    true = ggml_files.expected(kind, int(form[-1]), raw, 64 * 64).reshape(64, 64)
    with wb.open(tmp_path / "old.bin") as model:
        tensor = model["layers.0.attention.wq.weight"]
        assert np.array_equal(tensor.numpy(), true)
        assert np.array_equal(tensor[3:5], true[3:5])
    upgraded(tmp_path, (tmp_path / "old.bin").read_bytes(), dtype="f32")
    with wb.open(tmp_path / "new.gguf") as model:
        assert np.array_equal(model.source.stored["blk.0.attn_q.weight"].read_all().view(np.float32), true.ravel())
        assert model.metadata["general.file_type"] == 0
    wb.convert(tmp_path / "old.bin", tmp_path / "new.safetensors")
    with wb.open(tmp_path / "new.safetensors") as model:
        assert np.array_equal(model["layers.0.attention.wq.weight"].numpy(), true)


@pytest.mark.mutation
@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("change", ["neighbours", "zero", "current_type"])
def test_a_wrong_form_is_seen(tmp_path: Path, name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = legacy_blocks.FORMS[name]
    if (change == "current_type" and form.current_type is None) or (change == "neighbours" and name == "Q8_0_V1"):
        pytest.skip("it has none")
    values: dict[str, Any] = {
        "neighbours": not form.neighbours,
        "zero": form.zero + 1,
        "current_type": "Q5_1" if form.current_type != "Q5_1" else "Q5_0",
    }
    monkeypatch.setattr(
        legacy_blocks, "FORMS", {**legacy_blocks.FORMS, name: form._replace(**{change: values[change]})}
    )
    kind = name.removesuffix("_V1").removesuffix("_V2")
    test = (
        test_old_blocks_become_todays_with_the_same_numbers if change == "current_type"
        else test_old_blocks_are_read_as_the_numbers_that_they_were
    )  # fmt: skip
    with pytest.raises((AssertionError, ValueError)):
        test(tmp_path, "ggjt2" if "V2" in name else "ggjt1", kind)


@pytest.mark.oracle
@pytest.mark.parametrize(("form", "kind"), [("ggjt1", "Q5_0"), ("ggjt1", "Q4_1"), ("ggjt3", "Q8_0"), ("ggmf1", "F16")])
def test_llama_cpp_runs_what_was_upgraded(tmp_path: Path, form: str, kind: str) -> None:
    """The upgraded file and the old one's own numbers in F32 give the same logits, but for rounding."""
    from tests.oracles.llamacpp import numbers_in_subprocess

    data = ggml_files.llama(form, kind, 1 if kind == "F16" else 2)
    logits = []
    for dtype in (None, "f32"):
        upgraded(tmp_path, data, dtype=dtype)
        assert not [f for f in wb.verify(tmp_path / "new.gguf").findings if f.severity == "error"]
        found = numbers_in_subprocess(tmp_path / "new.gguf", [1, 5, 260, 270, 40])
        assert not isinstance(found, str), found
        logits.append(found)
    assert logits[0].shape == (5, 300)
    assert np.abs(logits[0] - logits[1]).max() < 0.05 * np.abs(logits[1]).max()


def test_what_the_file_does_not_say_is_told(tmp_path: Path) -> None:
    result = upgraded(tmp_path, ggml_files.llama("ggjt3"), rms_eps=None, context_length=None, name="mine")
    assert len(result.notes) == 2
    with wb.open(tmp_path / "new.gguf") as model:
        assert model.metadata["general.name"] == "mine"
        assert model.metadata["llama.context_length"] == 2048
        assert model.metadata["llama.attention.head_count_kv"] == 2


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (ggml_files.llama("ggml", "Q4_0", 2), UnsupportedError, "before blocks had versions"),
        (ggml_files.llama("ggmf1", "Q4_1", 3), UnsupportedError, "before blocks had versions"),
        (ggml_files.gpt2(), UnsupportedError, "is a gpt-2 model, which llama.cpp"),
        (ggml_files.whisper(), UnsupportedError, "is a whisper model, which llama.cpp"),
        (
            ggml_files.llama("ggjt3", n_layer=3).replace(b"layers.2.", b"layers.3."),
            UnsupportedError,
            "isn't a tensor of a llama",
        ),
        (
            ggml_files.llama("ggjt3").replace(b"norm.weight", b"norm.weighs", 1),
            UnsupportedError,
            "isn't a tensor of a llama",
        ),
        (ggml_files.llama("ggjt3", n_head=0), FormatError, "don't fit"),
        (ggml_files.llama("ggjt3", n_head=7), FormatError, "don't fit"),
    ],
)
def test_what_is_not_upgraded(tmp_path: Path, data: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        upgraded(tmp_path, data)
    assert not (tmp_path / "new.gguf").exists()


def test_a_part_of_a_model_is_known_as_one(tmp_path: Path) -> None:
    data = bytearray(ggml_files.llama("ggjt3"))
    data[12:16] = (128).to_bytes(4, "little")  # n_embd, of which the tensors have half
    with pytest.raises(UnsupportedError, match="one of several parts"):
        upgraded(tmp_path, bytes(data))


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    data = bytearray(ggml_files.llama("ggjt3"))
    data[24:28] = (3).to_bytes(4, "little")
    with pytest.raises(FormatError, match="9 tensors are missing"):
        upgraded(tmp_path, bytes(data))
