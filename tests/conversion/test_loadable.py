"""What `wb verify` would call refused by llama.cpp is never written: by no target, and by no command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.containers._gguf_models import Metadata, Tensors, model, render, tensors
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import RefusedError
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.gguf.loadable import LayoutSource

TOKENS = "tokenizer.ggml.tokens"


def small(path: Path, change: Callable[[Metadata, Tensors], None] | None = None) -> Path:
    path.write_bytes(model(change))
    return path


def twice(keys: Metadata, _: Tensors) -> None:
    keys[TOKENS].value[9] = keys[TOKENS].value[8]


def without_a_tensor(_: Metadata, slots: Tensors) -> None:
    del slots[-1]


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "convert": lambda source, target: wb.convert(source, target / "m.gguf", dtype="f16"),
    "split": lambda source, target: wb.convert(source, target / "m", to="gguf", max_shard_tensors=4),
    "quantize": lambda source, target: wb.quantize(source, target / "m.gguf", "Q8_0"),
}


@pytest.mark.parametrize("writer", list(WRITERS))
def test_a_folder_whose_gguf_would_be_refused_is_refused(writer: str, tmp_path: Path) -> None:
    """Two tokens of the vocabulary are one to llama.cpp, which aborts."""
    folder = make_folder(tmp_path / "m", words=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ends = dict(zip(list(tokenizer["model"]["vocab"])[-2:], ("a\0b", "a\0c"), strict=True))
    tokenizer["model"]["vocab"] = {ends.get(k, k): v for k, v in tokenizer["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(RefusedError, match="token given twice"):
        WRITERS[writer](folder, target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("writer", list(WRITERS))
@pytest.mark.parametrize("change", [twice, without_a_tensor])
def test_what_the_source_is_refused_for_is_a_note(
    writer: str, change: Callable[[Metadata, Tensors], None], tmp_path: Path
) -> None:
    """A GGUF that llama.cpp refuses can still be converted, and the plan says so."""
    source, target = small(tmp_path / "bad.gguf", change), tmp_path / "out"
    target.mkdir()
    WRITERS[writer](source, target)
    with wb.plan_convert(source, tmp_path / "again.gguf") as plan:
        assert any("llama.cpp refuses the result as it does the source" in note for note in plan.notes)


def test_a_part_of_a_model_is_no_gguf(tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf")
    with pytest.raises(RefusedError, match="llamacpp/missing"):
        wb.slice(source, tmp_path / "part.gguf", drop=["blk.0.ffn_up.weight"])
    wb.slice(source, tmp_path / "part.safetensors", drop=["blk.0.ffn_up.weight"])


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ({"llama.vocab_size": 7, "tokenizer.ggml.model": "none"}, "llamacpp/shape"),
        ({"tokenizer.ggml.model": "bpe"}, "llamacpp/tokenizer"),
        ({"llama.rope.scaling.type": "ntk"}, "llamacpp/rope"),
        ({"llama.expert_used_count": 3}, "llamacpp/experts"),
    ],
)
def test_an_edit_that_breaks_a_model_takes_force(edits: dict[str, object], rule: str, tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf")
    with pytest.raises(RefusedError, match=rule) as refused:
        wb.edit(source, set=edits)
    assert refused.value.option == "--allow-guarded"
    wb.edit(source, set=edits, allow_guarded=True)
    wb.edit(source, set={"general.name": "another"})  # what was wrong before is no matter of this edit


def test_a_planned_file_is_parsed_as_it_will_be() -> None:
    layout = gguf.layout(tensors(), {"general.architecture": KV("str", "llama")})
    planned = gguf.parse(LayoutSource("m", layout))
    written = render(layout, lambda name, size: bytes(size))
    assert LayoutSource("m", layout).read(0, layout.size) == written
    assert [e.name for e in planned] == [name for name, _ in tensors()]


def test_data_that_cannot_be_mapped_is_a_note(tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf")
    notes: list[str] = []
    for length in range(8, 40, 8):
        with wb.plan_convert(source, tmp_path / "a.gguf", align=8, name="x" * length) as plan:
            notes += plan.notes
    assert len([note for note in notes if "aborts if it maps the file" in note]) == 3


def test_rows_of_another_number_than_tokens(tmp_path: Path) -> None:
    """As Gemma 3 is published: a vocabulary that is shorter than the embedding."""

    def longer(_: Metadata, slots: Tensors) -> None:
        slots[:] = [(n, Spec((s.shape[0] + 8, *s.shape[1:]), s.dtype) if "token_embd" in n else s) for n, s in slots]

    verdict = wb.verify(small(tmp_path / "m.gguf", longer)).verdicts[0]
    assert (verdict.accepts, verdict.stage) == (False, "model")
    assert BY_NAME["F32"].block == 1


def test_a_vocabulary_becomes_the_files_of_a_tokenizer(tmp_path: Path) -> None:
    def vocabulary(keys: Metadata, slots: Tensors) -> None:
        slots.clear()

    source = small(tmp_path / "vocab.gguf", vocabulary)
    result = wb.convert(source, tmp_path / "folder", to="hf")
    assert any("the folder has its tokenizer and no model" in note for note in result.notes)
    names = {path.name for path in (tmp_path / "folder").iterdir()}
    assert {"tokenizer.model", "config.json"} <= names  # --vocab-only makes the GGUF again
    assert not [name for name in names if name.endswith(".safetensors")]
