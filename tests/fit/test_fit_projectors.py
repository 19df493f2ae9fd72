"""The memory of a projector, by `wb fit --mmproj`. The judge is llama.cpp: the sizes of buffers that mtmd logs when it
loads a file of these numbers (b11549, CPU, flash attention; the second without it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from tests.models.projector_cases import WITHOUT_TEXT, golden, write_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.cli.main import main
from weighbridge.fitting import media
from weighbridge.models.llamacpp.candidate import Candidate

MIB: Final = 1 << 20
#: Type, modality, [feed forward, embedding, text width, heads], further keys, MiB logged, and without flash attention.
LOGGED: Final = [
    ("gemma3", "vision", [4304, 1152, 2560, 16], {"image_size": 896, "patch_size": 14}, 121.25, 1132.0),
    ("gemma3", "vision", [1152, 1152, 64, 16], {"image_size": 896, "patch_size": 14}, 90.0, None),
    ("idefics3", "vision", [4304, 1152, 2048, 16], {"image_size": 384, "patch_size": 14}, 21.58, None),
    ("idefics3", "vision", [3072, 768, 576, 12], {"image_size": 512, "patch_size": 16}, 21.0, None),
    ("qwen2vl_merger", "vision", [5120, 1280, 1536, 4], {"patch_size": 14}, 267.08, 1318.88),
    ("qwen2.5vl_merger", "vision", [3420, 1280, 3584, 4], {"patch_size": 14}, 569.7, 1592.18),
    ("qwen3vl_merger", "vision", [4304, 1152, 4096, 4], {"patch_size": 16}, 312.67, 1415.62),
    ("glm4v", "vision", [13696, 1536, 4096, 4], {"patch_size": 14}, 515.05, 1459.4),
    ("qwen2a", "audio", [5120, 1280, 4096, 20], {}, 51.27, None),
    ("voxtral", "audio", [5120, 1280, 3072, 20], {"projector.stack_factor": 4}, 51.27, None),
    ("qwen3tts_spkenc", "audio", [1536, 1536, 2048, 1], {}, 140.66, None),
    ("qwen3tts_gen", "gen.audio", [3072, 1024, 2048, 16], {}, 0, None),
    ("pockettts_gen", "gen.audio", [2048, 512, 1024, 8], {}, 0, None),
]


def candidate(named: str, modality: str, numbers: list[int], more: dict[str, int]) -> Candidate:
    names = ("feed_forward_length", "embedding_length", "projection_dim", "attention.head_count")
    keys = {**dict(zip(names, numbers, strict=True)), **more}
    first = {"general.architecture": "clip", f"clip.has_{modality}_encoder": True, "clip.projector_type": named}
    return Candidate({**first, **{f"clip.{modality}.{name}": n for name, n in keys.items()}}, {})


def within(row: Any, fused: bool, most: float) -> bool:
    named, modality, numbers, more, logged, apart = row
    memory = media.tower_memory(candidate(named, modality, numbers, more), modality, "x", fused)
    expected = (logged if fused else apart) * MIB
    return bool(memory.certain == fused and abs(memory.buffers - expected) <= most * expected)


@pytest.mark.parametrize("row", LOGGED, ids=[f"{row[0]}-{row[4]}" for row in LOGGED])
def test_buffers_are_those_that_llama_cpp_reserves(row: Any) -> None:
    assert within(row, True, 0.01)
    assert row[5] is None or within(row, False, 0.11)


@pytest.mark.parametrize(("modality", "named"), [(m, n) for m, rows in media.table().items() for n in rows])
def test_a_fault_in_a_row_is_seen(modality: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in LOGGED if row[0] == named]
    row = media.table()[modality][named]
    stages = [[n + 1 for n in stage] for stage in row.stages]
    fault = type(row)(**{**{f: getattr(row, f) for f in row.__struct_fields__}, "stages": stages})
    monkeypatch.setattr(media, "table", lambda: {modality: {named: fault}})
    assert rows
    assert not all(within(r, True, 0.01) for r in rows)


def test_an_unknown_type_is_an_estimate() -> None:
    memory = media.tower_memory(candidate("llama4", *LOGGED[0][1:4]), "vision", "x", True)
    assert (memory.certain, memory.tokens, memory.buffers) == (False, 0, int(121.25 * MIB))


@pytest.mark.parametrize("name", ["dots-ocr", "gemma4-unified"])
def test_estimates_have_the_order_of_what_llama_cpp_reserves(name: str, tmp_path: Path) -> None:
    """A picture of any size, and towers without blocks."""
    towers = tmp_path / "mmproj.gguf"
    wb.convert(write_folder(golden()[name], tmp_path / "m"), towers, mmproj=True)
    logged = {"dots-ocr": 28.61, "gemma4-unified": 0.85 + 14.65}[name] * MIB
    found = media.projector_memory(towers, {}, fused=True).towers
    assert not any(tower.certain for tower in found)
    assert logged * 0.8 < sum(tower.buffers for tower in found) < logged * 1.25


TOKENS: Final = [
    ("gemma3", "vision", {"image_size": 896, "patch_size": 14}, 256),
    ("idefics3", "vision", {"image_size": 512, "patch_size": 16, "projector.scale_factor": 4}, 64),
    ("qwen2.5vl_merger", "vision", {"patch_size": 14}, 4096),
    ("qwen2a", "audio", {}, 750),
    ("voxtral", "audio", {"projector.stack_factor": 4}, 375),
    ("qwen3tts_spkenc", "audio", {}, 1),
    ("qwen3tts_gen", "gen.audio", {}, 0),
]


@pytest.mark.parametrize(("named", "modality", "more", "tokens"), TOKENS)
def test_tokens_of_the_context(named: str, modality: str, more: dict[str, int], tokens: int) -> None:
    """As published: Gemma 3 has 256 an image, SmolVLM 64 a tile, Voxtral 375 for 30 seconds."""
    model = candidate(named, modality, [4304, 1152, 64, 16], more)
    assert media.tower_memory(model, modality, "x", True).tokens == tokens


#: Their recorded folders lack a file of the text, or have fewer codes than llama.cpp's graph, which refuses the text.
WITHOUT_HEAD: Final = ("clef", "qwen3-tts")


@pytest.mark.parametrize("name", [name for name in golden() if name not in (*WITHOUT_TEXT, *WITHOUT_HEAD)])
def test_the_report_counts_the_projector(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_folder(golden()[name], tmp_path / "model")
    text, towers = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    wb.convert(source, text, tokenizer=False)
    wb.convert(source, towers, mmproj=True)
    before, after = wb.fit(text, device="8GB"), wb.fit(text, device="8GB", mmproj=towers)
    rows = {row.part: row.nbytes for row in after.memory}
    added = rows.keys() - {row.part for row in before.memory}
    assert {"projector"} < added <= {"projector", "image buffers", "audio buffers"}
    speaks = any("when it first generates" in note for note in after.notes)
    assert speaks == any("_gen" in str(value) for value in wb.inspect(towers).metadata.values())
    assert after.needs - before.needs == sum(rows[part] for part in added)
    assert rows["projector"] == sum(-(-t.nbytes // 32) * 32 for t in wb.inspect(towers).tensors)
    assert after.longest_context <= before.longest_context
    assert main(["fit", str(text), "--device", "8GB", "--mmproj", str(towers), "--json"]) == 0
    assert {row["part"] for row in json.loads(capsys.readouterr().out)["memory"]} == set(rows)


def test_what_does_not_apply_is_refused(tmp_path: Path) -> None:
    source = write_folder(golden()["gemma3"], tmp_path / "model")
    text, towers, other = tmp_path / "text.gguf", tmp_path / "mmproj.gguf", tmp_path / "other.gguf"
    wb.convert(source, text, tokenizer=False)
    wb.convert(source, towers, mmproj=True)
    wb.convert(write_folder(golden()["qwen3-vl"], tmp_path / "other"), other, mmproj=True)
    with pytest.raises(UsageError, match="isn't an mmproj file"):
        wb.fit(text, device="8GB", mmproj=text)
    with pytest.raises(UsageError, match=r"width 192.*width 64"):
        wb.fit(text, device="8GB", mmproj=other)
    with pytest.raises(UsageError, match="takes no mmproj file"):
        wb.fit(source, device="8GB", mmproj=towers, runtime="mlx")
    wb.edit(towers, remove=["clip.vision.image_size"])
    with pytest.raises(FormatError, match=r"clip\.vision\.image_size"):
        wb.fit(text, device="8GB", mmproj=towers)
