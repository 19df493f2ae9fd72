"""Models that llama.cpp has no graph for: `wb convert` refuses their GGUF, and llama.cpp does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.oracles import models, ours
from tests.oracles.llama_loads import Judge

from weighbridge.base.errors import RefusedError

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", sorted(ours.REFUSED))
def test_a_model_without_a_graph_is_refused(
    name: str, judge: Judge, folder_of: Callable[[str], Path], gguf_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=r"llama\.cpp would refuse"):
        ours.to_gguf(folder_of(name), tmp_path / "m.gguf", "f32", pre=models.CASES[name].pre)
    assert not (tmp_path / "m.gguf").exists()
    assert judge.refusal(gguf_of(name, "f32")) is not None
