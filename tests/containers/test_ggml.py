"""Files of before GGUF: read, every byte named, nothing believed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers import ggml_files
from tests.containers.regions import check_regions

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.ggml import container as ggml
from weighbridge.io.source import BytesSource

FILES: dict[str, tuple[bytes, str]] = {
    **{form: (ggml_files.llama(form), "llama") for form in ggml_files.MAGICS},
    "gpt-2": (ggml_files.gpt2(), "gpt-2"),
    "gpt-2 quantized": (ggml_files.gpt2("Q5_1", 2009), "gpt-2"),
    "gpt-2 quantized before": (ggml_files.gpt2("Q4_0", 1002, 2), "gpt-2"),
    "whisper": (ggml_files.whisper(), "whisper"),
    "parakeet": (ggml_files.parakeet(), "parakeet"),
    "silero-vad": (ggml_files.silero(), "silero-vad"),
}
#: What whisper.cpp loads today.
CURRENT = ("whisper", "parakeet", "silero-vad")


@pytest.mark.parametrize("name", FILES)
def test_files_are_read(tmp_path: Path, name: str) -> None:
    data, model = FILES[name]
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    index = ggml.parse(BytesSource(data))
    assert index.metadata["model"] == model
    assert index.entries[-1].offset + index.entries[-1].nbytes == len(data)
    regions = check_regions(ggml.regions(BytesSource(data)), len(data))
    assert not [r for r in regions if r.kind == "unknown"]
    assert wb.identify(path).format == "ggml"
    assert wb.inspect(path).format == "ggml"
    assert not [f for f in wb.verify(path).findings if f.severity == "error"]
    with wb.open(path) as opened:
        assert [e.name for e in index] == list(opened)
        assert all(opened[n].numpy().shape == opened[n].shape for n in opened)


@pytest.mark.parametrize("name", FILES)
def test_current_files_are_not_called_old(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.bin").write_bytes(FILES[name][0])
    found = wb.identify(tmp_path / "m.bin")
    assert not found.damage
    assert ("before GGUF" in " ".join(found.evidence)) != (name in CURRENT)
    assert (found.variant in CURRENT) == (name in CURRENT)


def test_a_model_of_whisper_cpps_tests_has_no_tensors(tmp_path: Path) -> None:
    whole = ggml_files.whisper()
    (tmp_path / "m.bin").write_bytes(whole[: whole.index(b"encoder.conv1.weight") - 24])
    assert not wb.identify(tmp_path / "m.bin").damage
    assert [f.rule for f in wb.verify(tmp_path / "m.bin").findings] == ["ggml/no-tensors"]


def test_shapes_and_values(tmp_path: Path) -> None:
    for form in ggml_files.MAGICS:
        (tmp_path / "m.bin").write_bytes(ggml_files.llama(form, "F16", 1))
        with wb.open(tmp_path / "m.bin") as model:
            shapes = ggml_files.llama_shapes(ggml_files.LLAMA)
            assert {n: t.shape for n, t in model.items()} == shapes
            seed = [*shapes].index("layers.0.feed_forward.w2.weight")
            raw = ggml_files.data_of("F16", 1, (64, 96), seed)
            assert model["layers.0.feed_forward.w2.weight"].raw() == raw
            if form.startswith("ggjt"):
                assert all(e.offset % 32 == 0 for e in model.source.index)


def test_the_vocabulary() -> None:
    source = BytesSource(ggml_files.llama("ggmf1"))
    items = ggml.vocabulary(source, ggml.read_header(source))
    wanted = ggml_files.vocabulary(300)
    assert [w for w, _ in items] == [w for w, _ in wanted]
    assert np.allclose([s for _, s in items], [s for _, s in wanted])


def test_the_examples_go_on_as_safetensors(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(ggml_files.gpt2("Q4_0", 2002))
    wb.convert(tmp_path / "m.bin", tmp_path / "m.safetensors")
    with wb.open(tmp_path / "m.safetensors") as model, wb.open(tmp_path / "m.bin") as old:
        assert np.array_equal(model["model/wte"].numpy(), old["model/wte"].numpy())


def test_blocks_of_unsaid_age_are_told() -> None:
    index = ggml.parse(BytesSource(ggml_files.llama("ggmf1", "Q4_0", 2)))
    assert [f.rule for f in index.findings] == ["ggml/old-blocks"]
    assert index["output.weight"].dtype.name == "Q4_0_V1"
    assert ggml.parse(BytesSource(ggml_files.llama("ggjt2", "Q4_0", 2)))["output.weight"].dtype.name == "Q4_0_V2"
    assert ggml.parse(BytesSource(ggml_files.llama("ggjt3", "Q4_0", 2)))["output.weight"].dtype.name == "Q4_0"


LLAMA = ggml_files.llama("ggjt3")
TENSOR = LLAMA.index(b"tok_embeddings.weight") - 20


def changed(at: int, value: int, data: bytes = LLAMA) -> bytes:
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


BAD: dict[str, tuple[bytes, str]] = {
    "no magic": (b"gglm" + LLAMA[4:], "no magic"),
    "only a magic": (b"tjgg", "ends inside"),
    "sizes cut off": (LLAMA[:20], "ends inside"),
    "huge vocabulary": (changed(8, 0xFFFFFFFF), "too many tokens"),
    "vocabulary beyond the file": (changed(8, 2_000_000), "ends inside"),
    "long token": (changed(36, 5000), "absurdly long"),
    "no dimensions": (changed(TENSOR, 0), "no number of dimensions"),
    "five dimensions": (changed(TENSOR, 5), "no number of dimensions"),
    "no name": (changed(TENSOR + 4, 0), "no length of a name"),
    "long name": (changed(TENSOR + 4, 4096), "no length of a name"),
    "type that is gone": (changed(TENSOR + 8, 4), "no such type"),
    "type of later": (changed(TENSOR + 8, 16), "no such type"),
    "huge dims": (changed(TENSOR + 12, 0xFFFFFFFF), "ends inside"),
    "half a block": (changed(TENSOR + 12, 33, changed(TENSOR + 8, 2)), "a multiple of the block size"),
    "cut off": (LLAMA[:-1], "ends inside"),
    "bytes behind": (LLAMA + b"\0" * 40, "no number of dimensions"),
    "no tensors": (LLAMA[:TENSOR], "no tensors"),
    "one name twice": (LLAMA.replace(b"layers.0.attention.wk", b"layers.0.attention.wq"), "one name"),
    "two counts": (changed(28, 4, ggml_files.gpt2()), "."),
    "two bands": (changed(48, 79, ggml_files.whisper()), "."),
    "too many words": (changed(4, 3, ggml_files.whisper()), "."),
    "parakeet, two bands": (changed(64, 79, ggml_files.parakeet()), "."),
    "parakeet, a window beyond the file": (changed(1032, 1 << 30, ggml_files.parakeet()), "."),
    "parakeet, durations beyond the file": (changed(56, 1 << 30, ggml_files.parakeet()), "."),
    "silero, a long name": (changed(4, 1 << 20, ggml_files.silero()), "."),
    "silero, another name": (ggml_files.silero().replace(b"silero-16k", b"sileno-16k"), "."),
    "silero, layers beyond the file": (changed(38, 1 << 30, ggml_files.silero()), "."),
    "a scalar in a whisper": (ggml_files.whisper() + ggml_files.record("x", "F32", (), bytes(4), 0, False), "."),
    "no such quantization": (changed(24, 9001, ggml_files.gpt2()), "."),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_files_are_refused(name: str) -> None:
    data, words = BAD[name]
    with pytest.raises(FormatError, match=words):
        ggml.parse(BytesSource(data))
    check_regions(ggml.regions(BytesSource(data)), len(data))


@pytest.mark.parametrize(
    ("magic", "words"), [(b"algg\1\0\0\0", "LoRA"), (b"nsgg", "session"), (b"tjgg\4\0\0\0", "version 4")]
)
def test_what_is_not_read(tmp_path: Path, magic: bytes, words: str) -> None:
    (tmp_path / "m.bin").write_bytes(magic + bytes(64))
    with pytest.raises(UnsupportedError, match=words):
        wb.open(tmp_path / "m.bin")


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("name", "value"), [("ALIGN", 16), ("_DIMS", 9), ("_WORD", 1 << 20), ("VOCABULARY", 1 << 40), ("_THOUSANDS", 100)]
)
def test_a_wrong_constant_is_seen(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml, name, value)

    def wrong() -> bool:
        for data, words in BAD.values():
            try:
                ggml.parse(BytesSource(data))
            except FormatError as error:
                if words in str(error):
                    continue
            return True
        return any(ggml.parse(BytesSource(d)).metadata["model"] != m for d, m in FILES.values())

    try:
        assert wrong()
    except FormatError:
        return


@pytest.mark.mutation
@pytest.mark.parametrize("generation", range(1, 4))
def test_a_generation_taken_for_another_is_seen(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ggml_files.llama(f"ggjt{generation}", "Q4_0", 2)
    right = [e.dtype for e in ggml.parse(BytesSource(data))]
    rows = list(ggml.GENERATIONS)
    rows[generation] = rows[generation % 3 + 1]
    monkeypatch.setattr(ggml, "GENERATIONS", tuple(rows))
    try:
        assert [e.dtype for e in ggml.parse(BytesSource(data))] != right
    except FormatError:
        return
