"""What a report says first is the cause, and its sums are those of the files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.conformance.samples import samples
from tests.reports.makers import gguf

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.containers.formats import READ
from weighbridge.providers import layouts
from weighbridge.reports.verify import packing

WHOLE = gguf({"general.architecture": ("str", "llama"), "llama.block_count": ("u32", 1)}, {"w": ("F32", (2, 3))})


@pytest.mark.parametrize("cut", range(8, 64))
def test_a_cut_header_is_the_only_cause(cut: int, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(WHOLE[:cut])
    found = wb.verify(tmp_path / "x.gguf").findings
    errors = [f.rule for f in found if f.severity.name == "ERROR"]
    assert set(errors) <= {"gguf/truncated-header", "gguf/counts"}
    assert "gguf/truncated-header" in errors


def _saved(save: Callable[[Any], object]) -> bytes:
    out = io.BytesIO()
    save(out)
    return out.getvalue()


ARRAYS: dict[str, Any] = {"a": np.ones(2), "b": np.arange(300)}
_SEVERAL = ("", ".llamafile", ".mlmodel")  # a folder, a program, a header whose weights are another file
INNER = {
    "array.pkl": pickle.dumps(ARRAYS, 4), "old.pkl": pickle.dumps(ARRAYS, 0),
    "packed.npz": _saved(lambda out: np.savez_compressed(out, **ARRAYS)),
    **{f"{f.name}{f.suffix}": data for f in READ if f.suffix not in _SEVERAL for data in samples(f)[:1]},
}  # fmt: skip


@pytest.mark.parametrize("name", INNER)
def test_the_size_of_one_file_is_its_size(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(INNER[name])
    try:
        report = wb.inspect(tmp_path / name)
    except WeighbridgeError:
        pytest.skip("a sample that is damaged on purpose")
    assert (report.nbytes, len(report.files)) == (len(INNER[name]), 1)
    assert sum(file.tensors for file in report.files) == report.tensor_count
    assert {tensor.file for tensor in report.tensors} <= {name}


def test_more_of_the_same_are_counted_after_the_last_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    errors = [UnsupportedError(f"w{number:02} has no reader") for number in range(44, 0, -1)]
    monkeypatch.setattr(packing, "unpacked", lambda repo: SimpleNamespace(errors=errors))
    told = [flaw.message for flaw in packing.unread(SimpleNamespace(root=tmp_path, memo={}, single=False))]  # type: ignore[arg-type]
    assert told == sorted(told)
    assert told[0] == "w01 has no reader"
    assert told[-1] == "w10 has no reader (and 34 more weights)"


@pytest.mark.parametrize(("blocks", "wanted", "words", "hint"), [
    ((), None, "no ggml type holds the codes of toy", "ask for a dtype"),
    ((), "q8_0", "Q8_0 doesn't hold the codes of toy", "ask for a dtype"),
    (("Q4_0",), "q8_0", "Q8_0 doesn't hold the codes of toy", "types that do: Q4_0"),
])  # fmt: skip
def test_codes_without_a_block_type(blocks: Any, wanted: str | None, words: str, hint: str) -> None:
    from weighbridge.base.dtypes import dtype

    tensor: Any = SimpleNamespace(packing=SimpleNamespace(name="toy", blocks=tuple(map(dtype, blocks))), members={})
    with pytest.raises(UnsupportedError, match=words) as error:
        layouts._as_blocks(tensor, None if wanted is None else dtype(wanted))
    assert hint in str(error.value.hint)
