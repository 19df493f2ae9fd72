"""A provider of one rank: under every style of names the ranks' parts together are the whole weight, as vLLM would cut
it: rows of q, k, v, gate and up, columns of o and down, everything of norms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors, make_folder

import weighbridge as wb
from weighbridge.base.errors import UsageError

RANKS = 2
#: The axis along which each role is cut, by the ending of its canonical name; None: each rank has all of it.
AXES = {"q.weight": 0, "k.weight": 0, "v.weight": 0, "gate.weight": 0, "up.weight": 0, "o.weight": 1,
        "down.weight": 1, "norm.weight": None, "embed.weight": 0, "head.weight": 0}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A Llama whose sizes the ranks can halve between groups of 32."""
    folder = tmp_path_factory.mktemp("ranks")
    rng = np.random.default_rng(4)
    wide = {"intermediate_size": 128}
    tensors = {
        name: rng.normal(size=tuple(128 if n == CONFIG["intermediate_size"] else n for n in t.shape)).astype(t.dtype)
        for name, t in llama_tensors().items()
    }
    hf = make_folder(folder / "hf", {**CONFIG, **wide}, tensors)
    wb.convert(hf, folder / "f16.gguf", dtype="f16", tokenizer=False)
    wb.convert(hf, folder / "q8_0.gguf", dtype="q8_0", tokenizer=False)
    wb.convert(hf, folder / "gptq", to=wb.SchemeOptions(scheme="gptq", q_group_size=32))
    wb.convert(hf, folder / "mlx", to=wb.MlxOptions(q_bits=4, q_group_size=32))
    return {"hf": hf, "gptq": folder / "gptq", "mlx": folder / "mlx", "f16": folder / "f16.gguf",
            "q8_0": folder / "q8_0.gguf"}  # fmt: skip


@pytest.mark.parametrize("names", ["canonical", "akunu", "hf", "gguf", "logical"])
@pytest.mark.parametrize("kind", ["hf", "gptq", "mlx", "f16", "q8_0"])
def test_the_parts_are_the_whole(kind: str, names: str, sources: Mapping[str, Path]) -> None:
    whole = wb.provider(sources[kind], names=names)
    parts = [wb.provider(sources[kind], names=names, rank=r, of=RANKS) for r in range(RANKS)]
    canonical = list(wb.provider(sources[kind]))
    assert all(list(part) == list(whole) for part in parts)
    for number, name in enumerate(whole):
        values, cut = whole.get(name), [part.get(name) for part in parts]
        assert all(part.dtype(name) == whole.dtype(name) for part in parts), name
        if names == "canonical":
            axis = AXES[next(end for end in AXES if canonical[number].endswith(end))]
            assert np.array_equal(values, cut[0] if axis is None else np.concatenate(cut, axis)), name
        else:
            fits = [np.array_equal(values, np.concatenate(cut, axis)) for axis in range(values.ndim)]
            assert any(fits) or np.array_equal(values, cut[0]), name


def test_what_can_not_be_cut_is_refused(sources: Mapping[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"share a (group|scale)"):
        list(wb.provider(sources["gptq"], rank=0, of=8))
    with pytest.raises(UsageError, match="must be given together"):
        wb.provider(sources["hf"], rank=0)
    with pytest.raises(UsageError, match="rank 2 of 2"):
        list(wb.provider(sources["hf"], rank=2, of=2))
    arrays: dict[str, Any] = {"a": np.zeros(4, np.float32)}
    with pytest.raises(UsageError, match="doesn't apply to arrays"):
        wb.provider(arrays, rank=0, of=2)
